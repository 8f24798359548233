"""Bisection: the one search behind every calibration."""

from __future__ import annotations

import math
from collections.abc import Callable

__all__ = ["last_true", "smallest_epsilon"]

_LARGEST = 600.0  # e^epsilon is a float


def last_true(
    holds: Callable[[float], bool], true: float, false: float, *, tolerance: float = 2.0**-44, geometric: bool = False
) -> float:
    """Where a monotone condition stops to hold, found by bisection; the condition holds at the number returned.

    Args:
        holds: the condition. It is not evaluated at the two ends.
        true: an end of the interval at which the condition holds; may be the larger or the smaller end.
        false: the other end, at which it need not hold.
        tolerance: the search stops when the interval is no longer than this fraction of its true end.
        geometric: halve the logarithm of the interval (both ends positive) instead of the interval.

    >>> round(last_true(lambda x: x * x <= 2, 1.0, 2.0), 6)
    1.414214
    """
    while abs(true - false) > tolerance * abs(true):
        middle = math.sqrt(true * false) if geometric else (true + false) / 2
        true, false = (middle, false) if holds(middle) else (true, middle)
    return true


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
