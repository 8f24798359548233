"""The exact price of self-bounding labels from teachers with one promise each; theory, section 15.

Linear pricing, (M epsilon, M Delta), and the composition of all teachers are both larger, by up to a tenth.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.stats import binom

from ..arguments import checked
from ..arrays import FloatArray
from ..bisection import last_true
from ..errors import check_integer, check_number
from .guarantees import PrivacyGuarantee, check_guarantee

__all__ = ["exact_self_bounding_delta", "exact_self_bounding_epsilon"]

_MOST_TEACHERS = 100_000  # more take minutes
_ROUNDING = 1e-12  # relative error of binomial probabilities


@checked
def exact_self_bounding_delta(
    teacher: PrivacyGuarantee, epsilon: float, *, teachers: int, allowance: float, allocated: bool = False
) -> float:
    """The smallest delta at ``epsilon`` for all self-bounding rules, for pure teachers; otherwise an upper bound.

    Args:
        teacher: the promise of each teacher; teachers are trained independently.
        epsilon: in nats.
        teachers: K.
        allowance: M = Q m, the sum of the self-bounding allowances of all labels, for an overlap of all K teachers.
        allocated: whether each record is in one shard only, drawn at random and in secret; otherwise it may be in all.

    Raises:
        InvalidArgument: a value out of range.

    >>> pure = PrivacyGuarantee(epsilon=0.1)
    >>> 0 < exact_self_bounding_delta(pure, 3.365, teachers=101, allowance=35) < 1.01e-5
    True
    """
    check_guarantee("teacher", teacher)
    epsilon = check_number("epsilon", epsilon, low=0.0, high=700.0)
    teachers = check_integer("teachers", teachers, low=1, high=_MOST_TEACHERS)
    allowance = min(check_number("allowance", allowance, low=0.0, low_open=True), float(teachers))
    if teacher.epsilon > 300.0:
        return 1.0
    high = 1 / (1 + math.exp(-teacher.epsilon))
    low = 1 / (1 + math.exp(teacher.epsilon))
    counts = np.arange(teachers + 1)
    without = binom.pmf(counts, teachers, low)
    if allocated:  # one teacher, at random, is changed
        rest = binom.pmf(counts, teachers - 1, low)
        with_record = high * np.concatenate([[0.0], rest[:-1]]) + low * rest
    else:
        with_record = binom.pmf(counts, teachers, high)
    removal = _largest_difference(with_record, without, math.exp(epsilon), allowance)
    addition = _largest_difference(without[::-1], with_record[::-1], math.exp(epsilon), allowance)
    revealed = (allowance / teachers if allocated else allowance) * teacher.delta * (1 + _ROUNDING)
    return min(1.0, max(removal + revealed, addition + revealed * (math.exp(epsilon) if allocated else 1.0)))


@checked
def exact_self_bounding_epsilon(
    teacher: PrivacyGuarantee, delta: float, *, teachers: int, allowance: float, allocated: bool = False
) -> float:
    """The smallest epsilon at ``delta`` for all labels together, ``math.inf`` if there is none.

    It is the inverse of :func:`exact_self_bounding_delta`, whose arguments it takes.

    >>> pure = PrivacyGuarantee(epsilon=0.1)
    >>> round(exact_self_bounding_epsilon(pure, 1e-5, teachers=101, allowance=35), 3)
    3.365
    """
    teacher, delta = check_guarantee("teacher", teacher), check_number("delta", delta, low=0.0, high=1.0)
    teachers = check_integer("teachers", teachers, low=1, high=_MOST_TEACHERS)
    allowance = check_number("allowance", allowance, low=0.0, low_open=True)

    def holds(epsilon: float) -> bool:
        return (
            exact_self_bounding_delta(teacher, epsilon, teachers=teachers, allowance=allowance, allocated=allocated)
            <= delta
        )

    low, high = 0.0, min(600.0, 2 * max(1.0, min(allowance, teachers) * teacher.epsilon))
    if not holds(high) or holds(low):
        return low if holds(low) else math.inf
    return last_true(holds, high, low, tolerance=1e-7)


def _largest_difference(p: FloatArray, q: FloatArray, factor: float, allowance: float) -> float:
    """The largest ``sum (p - factor q) f`` over the self-bounding f of a count, an upper bound.

    The differences change their sign once, at ``turn``. Given f there, all that follow are as large as possible and
    all before as small as possible. The sum is concave in that value: two chords bound it from above.
    """
    weights = (p * (1 + _ROUNDING) - factor * q * (1 - _ROUNDING)).tolist()
    turn = next((place for place, weight in enumerate(weights) if weight > 0), len(weights) - 1)
    count = len(weights) - 1

    def total(start: float) -> float:
        terms, value = [weights[turn] * start], start
        for l in range(turn, count):  # noqa: E741
            bounds = [1.0]
            if l + 1 > allowance:
                bounds.append(value * (l + 1) / (l + 1 - allowance))
            bounds.append(1 - (1 - value) * max(0.0, 1 - allowance / (count - l)))
            value = min(bounds)
            terms.append(weights[l + 1] * value)
        value = start
        for l in range(turn, 0, -1):  # noqa: E741
            bounds, others = [0.0, value * max(0.0, 1 - allowance / l)], count - l + 1
            if others > allowance:
                bounds.append((others * value - allowance) / (others - allowance))
            value = max(bounds)
            terms.append(weights[l - 1] * value)
        return math.fsum(terms)

    ends = [0.0, 0.25, 0.5, 0.75, 1.0]
    values = [total(end) for end in ends]
    for _ in range(40):
        best = min(max(range(5), key=values.__getitem__), 3) or 1
        a, b, c = best - 1, best, best + 1
        above = max(values[b] + abs(values[b] - values[a]), values[b] + abs(values[b] - values[c]))
        if above - values[b] <= 1e-9 * max(values[b], 1e-30):
            break
        ends = [ends[a], (ends[a] + ends[b]) / 2, ends[b], (ends[b] + ends[c]) / 2, ends[c]]
        values = [values[a], total(ends[1]), values[b], total(ends[3]), values[c]]
    # Rounding of the recursion is a few units of each term.
    return max(0.0, above) * (1 + _ROUNDING) + 64 * len(weights) * 2.0**-53 * float(p.max())
