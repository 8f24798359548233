"""Bisection: the one search behind every calibration."""

from __future__ import annotations

import math
from collections.abc import Callable

from scipy import optimize

__all__ = ["last_true", "last_within", "relative_excess", "smallest_epsilon"]

_LARGEST = 600.0  # e^epsilon is a float


def last_true(
    holds: Callable[[float], bool], true: float, false: float, *, tolerance: float = 2.0**-44, geometric: bool = False
) -> float:
    """Where a monotone condition stops to hold, found by bisection; the condition holds at the number returned.

    Args:
        holds: the condition. It is not evaluated at the two ends.
        true: an end of the interval at which the condition holds; may be the larger or the smaller end.
        false: the other end, at which it need not hold.
        tolerance: the search stops when the interval is no longer than this fraction of its true end, or when no number
            is left between its ends.
        geometric: halve the logarithm of the interval (both ends positive) instead of the interval.

    >>> round(last_true(lambda x: x * x <= 2, 1.0, 2.0), 6)
    1.414214
    """
    while abs(true - false) > tolerance * abs(true):
        # Neither way overflows; a geometric mean is found by halves of the exponent.
        middle = math.sqrt(true) * math.sqrt(false) if geometric else true / 2 + false / 2
        if middle in (true, false):
            break
        true, false = (middle, false) if holds(middle) else (true, middle)
    return true


def last_within(
    excess: Callable[[float], float], true: float, false: float, *, tolerance: float, geometric: bool = False
) -> float:
    """The number at which :func:`last_true` stops for the condition ``excess(number) <= 0``, sooner.

    Brent's method encloses the number first. The bisection then evaluates only what this leaves open.

    Args:
        excess: a monotone function, the relative distance to a limit: -1 or more, also infinite.
        true: an end of the interval at which it is not positive; may be the larger or the smaller end; positive.
        false: the other end, at which it need not be.
        tolerance, geometric: as in :func:`last_true`.

    >>> tried = []
    >>> round(last_within(lambda x: tried.append(x) or x * x / 2 - 1, 1.0, 64.0, tolerance=1e-6), 5)
    1.41421
    >>> len(tried) < 15
    True
    """
    known: dict[float, float] = {}
    sign = 1 if false > true else -1

    def value(number: float) -> float:
        if number not in known:
            known[number] = excess(number)
        return known[number]

    def logarithm(part: float) -> float:
        more = value(false if part == 1 else true * (false / true) ** part)
        return max(-20.0, min(20.0, math.log1p(max(more, -1 + 2.0**-40)))) or -1e-300  # no zero, where Brent's stops

    def holds(number: float) -> bool:
        if any(more <= 0 and number * sign <= one * sign for one, more in known.items()):
            return True
        return not any(more > 0 and number * sign >= one * sign for one, more in known.items()) and value(number) <= 0

    width = tolerance / 4 / abs(math.log(false / true))
    if value(false) > 0:
        optimize.brentq(logarithm, 0.0, 1.0, xtol=width, rtol=1e-15, maxiter=40, disp=False)
    found = last_true(holds, true, false, tolerance=tolerance, geometric=geometric)
    if value(found) <= 0:
        return found
    # It is not monotone.
    return last_true(lambda number: value(number) <= 0, true, false, tolerance=tolerance, geometric=geometric)


def relative_excess(cost: float, limit: float) -> float:
    """``cost / limit - 1``, positive only if the cost exceeds the limit, whatever is rounded.

    >>> relative_excess(3.0, 2.0), relative_excess(2.0, 2.0), relative_excess(1.0, 0.0)
    (0.5, 0.0, inf)
    """
    if cost <= limit:
        return min(cost / limit - 1, 0.0) if 0 < limit < math.inf else -1.0
    return max(cost / limit - 1, 5e-324) if limit else math.inf


def smallest_epsilon(
    delta_at: Callable[[float], float], delta: float, *, most: float = math.inf, tolerance: float = 1e-9
) -> float:
    """The smallest epsilon at which a curve is at most ``delta``, rounded up.

    Args:
        delta_at: the curve, which falls.
        delta: what it must not exceed.
        most: the largest answer; infinite: so is the answer where the curve exceeds ``delta`` up to 600 nats.
        tolerance: relative, of epsilon.

    >>> round(smallest_epsilon(lambda epsilon: math.exp(-epsilon), 0.01), 6)
    4.60517
    """
    if delta_at(0.0) <= delta:
        return 0.0
    low, high = 0.0, min(most, 1.0)
    while high < most and delta_at(high) > delta:
        low, high = high, 2 * high
        if high > _LARGEST and most == math.inf:
            return math.inf
    return last_true(lambda epsilon: delta_at(epsilon) <= delta, min(high, most), low, tolerance=tolerance)
