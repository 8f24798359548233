"""Bisection: the one search behind every calibration."""

from __future__ import annotations

import math
from collections.abc import Callable

__all__ = ["last_true"]


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
