"""The Gaussian mechanism and compositions: exact delta, epsilon and standard deviation, each rounded toward privacy.

A Gaussian mechanism is described by ``mu``, its L2 sensitivity divided by the standard deviation of its noise.
Adaptively chosen Gaussian mechanisms compose to one whose ``mu`` is the root of the sum of the squares (Dong, Roth, Su
2022, Cor. 3.3).
"""

from __future__ import annotations

import functools
import math

from scipy import special

from ..bisection import last_true
from ..privacy.composition import optimal_composition, simple_composition
from ..privacy.guarantees import PrivacyGuarantee
from .sampling import arithmetic

__all__ = ["gaussian_delta", "gaussian_epsilon", "gaussian_mu", "pure_composition", "rdp_mu", "zcdp_epsilon"]

_BITS = 200
_MOST_COMPOSED = 10**7  # optimal composition of more labels would take minutes


def gaussian_delta(epsilon: float, mu: float) -> float:
    """The smallest delta of a Gaussian mechanism at ``epsilon`` (Balle & Wang 2018, Theorem 8), rounded up.

    Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu), computed to 60 digits, so that the cancellation does no
    harm for mu > 1e-20, and then increased by the factor 1 + 2**-50.

    >>> round(gaussian_delta(0.2556, 2**0.5 / 13.4267), 6)
    0.0003
    """
    if mu == 0 or math.isinf(epsilon):
        return 0.0
    if epsilon / mu - mu / 2 > 40:  # Phi(-40) is below the smallest double
        return 5e-324
    mp = arithmetic(_BITS)
    e, m = mp.mpf(epsilon), mp.mpf(mu)
    delta = mp.ncdf(m / 2 - e / m) - mp.exp(e) * mp.ncdf(-m / 2 - e / m)
    return min(1.0, float(delta) * (1 + 2.0**-50) + 5e-324)


def _delta_is_at_most(delta: float, epsilon: float, mu: float) -> bool:
    """Whether :func:`gaussian_delta` is at most ``delta``; 60 digits are used only where doubles cannot tell."""
    if mu > 0 and 1e-290 < delta < 1 and epsilon / mu < 1e4:
        near = float(special.ndtr(mu / 2 - epsilon / mu))
        far = math.exp(min(0.0, epsilon + float(special.log_ndtr(-mu / 2 - epsilon / mu))))
        error = 2.0**-44 * (near + far) * (1 + epsilon + (mu / 2 + epsilon / mu) ** 2)
        if abs(near - far - delta) > error:
            return near - far < delta
    return gaussian_delta(epsilon, mu) <= delta


@functools.lru_cache(maxsize=256)
def gaussian_epsilon(delta: float, mu: float) -> float:
    """The smallest epsilon of a Gaussian mechanism at ``delta``, rounded up by a relative 2**-44 at most."""
    if mu == 0 or _delta_is_at_most(delta, 0.0, mu):
        return 0.0
    if delta == 0:
        return math.inf
    high = mu * mu / 2 + mu * math.sqrt(-2 * math.log(delta)) + 1e-300
    while not _delta_is_at_most(delta, high, mu):
        high *= 2
    return last_true(lambda epsilon: _delta_is_at_most(delta, epsilon, mu), high, 0.0)


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The largest mu whose Gaussian mechanism is (epsilon, delta)-DP, rounded down by a relative 2**-44 at most."""
    epsilon, high = min(epsilon, 1e300), 1.0  # the squares of more are no numbers
    while _delta_is_at_most(delta, epsilon, high):
        high *= 2
    low = high / 2
    while not _delta_is_at_most(delta, epsilon, low):
        low /= 2
    return last_true(lambda mu: _delta_is_at_most(delta, epsilon, mu), low, high)


def rdp_mu(epsilon: float, delta: float) -> float:
    """The largest mu that the Renyi bound proves to be (epsilon, delta)-DP: the inverse of :func:`zcdp_epsilon`.

    >>> round(2**0.5 / rdp_mu(0.2556, 3e-4), 2), round(2**0.5 / rdp_mu(0.2676, 3e-4), 2)
    (22.46, 21.46)
    """
    log = -math.log(delta)
    return math.sqrt(2) * epsilon / (math.sqrt(log + epsilon) + math.sqrt(log)) * (1 - 2.0**-48)


def zcdp_epsilon(rho: float, delta: float) -> float:
    """The epsilon at ``delta`` of a rho-zCDP mechanism, one that is (a, a rho)-RDP for every order a > 1; rounded up.

    It is (a rho + log(1/delta)/(a - 1), delta)-DP for every a (Mironov 2017, Prop. 3); a Gaussian has rho = mu**2 / 2.
    The best order, 1 + sqrt(log(1/delta)/rho), gives rho + 2 sqrt(rho log(1/delta)) (Bun & Steinke 2016, Prop. 1.3).
    """
    return (rho + 2 * math.sqrt(-rho * math.log(delta))) * (1 + 2.0**-48)


def pure_composition(epsilon: float, rho: float, *, labels: int, delta: float) -> PrivacyGuarantee:
    """The guarantee at ``delta`` of adaptive ``labels``, each epsilon-DP and rho-zCDP.

    The better of optimal composition (simple composition for more than ten million labels) and zCDP.
    """
    one = PrivacyGuarantee(epsilon=epsilon)
    if delta == 0:
        return simple_composition(one, labels)
    many = labels > _MOST_COMPOSED
    composed = simple_composition(one, labels) if many else optimal_composition(one, labels, delta=delta)
    return PrivacyGuarantee(epsilon=min(composed.epsilon, zcdp_epsilon(labels * rho, delta)), delta=delta)
