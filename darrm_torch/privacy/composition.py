"""Composition of releases with independent randomness: simple, general (the paper's Theorem 2.3) and optimal.

None of these bounds the cost of many labels from the *same* trained teachers: such labels share the randomness of the
training. Use :func:`darrm_torch.total_privacy` for them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from ..arguments import checked
from ..errors import check_integer, check_number
from .guarantees import PrivacyGuarantee, check_guarantee, multiple, times
from .profiles import PrivacyProfile

__all__ = ["as_if_redrawn", "general_composition", "optimal_composition", "simple_composition"]

_MOST_RELEASES = 2**53  # every integer up to this is a float
_SLACK = 1 + 2.0**-48  # covers the rounding of the closed forms below, a few dozen units


def simple_composition(guarantee: PrivacyGuarantee, count: int) -> PrivacyGuarantee:
    """``(k epsilon, k delta)`` for ``count = k`` adaptive releases (the paper's Theorem 2.2), rounded up.

    Raises:
        InvalidArgument: ``count`` is below 1.

    >>> simple_composition(PrivacyGuarantee(epsilon=0.5, delta=1e-6), 3)
    PrivacyGuarantee(epsilon=1.5, delta=3e-06)
    """
    count = check_integer("count", count, low=1, high=_MOST_RELEASES)
    return multiple(check_guarantee("guarantee", guarantee), count)


def general_composition(guarantee: PrivacyGuarantee, count: int, *, slack: float) -> PrivacyGuarantee:
    """The closed form of Kairouz, Oh and Viswanath (2015, Theorem 3.4; the paper's Theorem 2.3), all three terms.

    Args:
        guarantee: the guarantee of each release.
        count: k, the number of adaptive releases.
        slack: the paper's delta', in (0, 1]. The total delta is always ``1 - (1 - delta)^k (1 - delta')``, even if the
            first term, ``k epsilon``, is the smallest.

    Raises:
        InvalidArgument: ``count`` is below 1 or ``slack`` is outside (0, 1].

    >>> total = general_composition(PrivacyGuarantee(epsilon=0.2676, delta=0.0003), 50, slack=1e-4)
    >>> round(total.epsilon, 3), round(total.delta, 3)
    (9.901, 0.015)
    """
    count = check_integer("count", count, low=1, high=_MOST_RELEASES)
    slack = check_number("slack", slack, low=0.0, high=1.0, low_open=True)
    epsilon = check_guarantee("guarantee", guarantee).epsilon
    total = math.inf
    if math.isfinite(epsilon):
        drift = math.tanh(epsilon / 2) * epsilon * count  # (e^eps - 1) eps k / (e^eps + 1)
        spread = math.sqrt(count) * epsilon
        total = _SLACK * min(
            drift + epsilon * math.sqrt(2 * count * math.log(math.e + spread / slack)),
            drift + epsilon * math.sqrt(2 * count * math.log(1 / slack)),
        )
        total = min(total, times(count, epsilon))
    if guarantee.delta == 1.0 or slack == 1.0:
        return PrivacyGuarantee(epsilon=total, delta=1.0)
    delta = -math.expm1(count * math.log1p(-guarantee.delta) + math.log1p(-slack))
    return PrivacyGuarantee(epsilon=total, delta=min(1.0, delta * _SLACK))


@checked
def as_if_redrawn(label: PrivacyGuarantee, labels: int, *, slack: float) -> PrivacyGuarantee:
    """The paper's total: general composition of one label's guarantee, as if teachers were retrained for every label.

    This is no guarantee when the same trained teachers make all labels: for K = 3 and K = 11 the true loss of two
    labels exceeds it. `total_privacy` never uses it. It reproduces the paper's tables.

    Args:
        label: the guarantee of one label.
        labels: Q.
        slack: the paper's delta'.

    >>> total = as_if_redrawn(PrivacyGuarantee(epsilon=0.2676, delta=3e-4), 100, slack=1e-4)
    >>> round(total.epsilon, 3), round(total.delta, 2)
    (15.044, 0.03)
    """
    return general_composition(label, check_integer("labels", labels, low=1, high=_MOST_RELEASES), slack=slack)


@checked
def optimal_composition(
    guarantee: PrivacyGuarantee | Iterable[PrivacyGuarantee], count: int = 1, *, delta: float
) -> PrivacyGuarantee:
    """The smallest epsilon at ``delta`` of adaptive releases with independent randomness.

    For one guarantee this is the exact optimum of Kairouz, Oh and Viswanath (2015, Theorem 3.3), rounded up, for up to
    2^20 releases. More releases and unlike guarantees are composed as privacy loss distributions.

    Args:
        guarantee: the guarantee of each release; a sequence has one guarantee for each release.
        count: how many times these releases are repeated.
        delta: the delta of the total.

    Raises:
        InvalidArgument: ``count`` is below 1, ``delta`` is outside [0, 1], or there is no guarantee.

    >>> round(optimal_composition(PrivacyGuarantee(epsilon=0.1), 50, delta=1e-5).epsilon, 3)
    2.845
    """
    count = check_integer("count", count, low=1, high=_MOST_RELEASES)
    try:
        releases = [guarantee] if isinstance(guarantee, PrivacyGuarantee) else list(guarantee)
    except Exception:  # no list, an array without axes, a nested tensor
        releases = []
    if not releases or not all(isinstance(release, PrivacyGuarantee) for release in releases):
        check_guarantee("guarantee", guarantee, expected="one or more guarantees")
    together = PrivacyProfile(promises=tuple(((release,), 1) for release in releases)).compose(count)
    return PrivacyGuarantee(epsilon=together.epsilon(delta), delta=delta)


def seen_through(epsilon: float, eta: float) -> float:
    """T with tanh(T / 2) = tanh(epsilon / 2) tanh(eta / 2), rounded up; at most the smaller of the two."""
    low, high = sorted((epsilon, eta))
    product = math.nextafter(math.tanh(low / 2) * math.tanh(high / 2), 1.0)  # it may be too little for a float
    if product < 0.9:
        exact = 2 * math.atanh(product)
    else:  # e^T = (e^low + e^-high) / (1 + e^(low - high))
        exact = low + math.log1p(math.exp(-low - high)) - math.log1p(math.exp(low - high)) if low < math.inf else low
    return min(low, exact * (1 + 2.0**-46))
