"""One small tree of errors. Each message says what was expected, what was got and what to do.

Everything derives from :class:`ValueError`, so ``except ValueError`` around one's own input sees all of them.
"""

from __future__ import annotations

import math
import operator
from typing import Any

__all__ = [
    "BudgetExceeded",
    "DarrmError",
    "InvalidArgument",
    "LedgerError",
    "PrivacyViolation",
    "UnprovenPrivacy",
]


class DarrmError(ValueError):
    """Base of every error that the library raises on purpose."""


class InvalidArgument(DarrmError):
    """A value that a function or a constructor cannot take.

    Args:
        name: the argument, as the caller wrote it.
        expected: what would have been accepted.
        got: the value received.
        cure: what to do about it, when that is not obvious from ``expected``.
    """

    def __init__(self, name: str, expected: str, got: Any, cure: str = "") -> None:
        self.name, self.expected, self.got, self.cure = name, expected, got, cure
        message = f"{name} must be {expected}, got {got!r}"
        super().__init__(f"{message}. {cure}" if cure else message)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.name, self.expected, self.got, self.cure)  # so that it can leave its process


class PrivacyViolation(DarrmError):
    """A noise function that does not keep the promise it was checked against; names the worst case."""


class UnprovenPrivacy(DarrmError):
    """A privacy claim that cannot be accepted as a proven upper bound; says why and what would make it one."""


class BudgetExceeded(DarrmError):
    """A request that would spend more than the budget; nothing was given out."""


class LedgerError(DarrmError):
    """A ledger that cannot be used: damaged, read-only, or kept for other teachers or another mechanism."""


def check_integer(name: str, value: Any, *, low: int, high: int | None = None, cure: str = "") -> int:
    """``value`` as an ``int`` in ``[low, high]``, or :class:`InvalidArgument`; booleans and floats are refused."""
    expected = f"an integer >= {low}" if high is None else f"an integer in [{low}, {high}]"
    if isinstance(value, bool):
        raise InvalidArgument(name, expected, value, cure)
    try:
        number = operator.index(value)
    except TypeError:
        raise InvalidArgument(name, expected, value, cure) from None
    if number < low or (high is not None and number > high):
        raise InvalidArgument(name, expected, value, cure)
    return number


def check_number(
    name: str,
    value: Any,
    *,
    low: float = -math.inf,
    high: float = math.inf,
    low_open: bool = False,
    high_open: bool = False,
    cure: str = "",
) -> float:
    """``value`` as a ``float`` in the interval, or :class:`InvalidArgument`; NaN is always refused.

    An infinite bound that is closed admits that infinity; make it open to ask for finite numbers.
    """
    expected = f"a number in {'(' if low_open else '['}{low:g}, {high:g}{')' if high_open else ']'}"
    if isinstance(value, (bool, str, bytes)):
        raise InvalidArgument(name, expected, value, cure)
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise InvalidArgument(name, expected, value, cure) from None
    above = number > low if low_open else number >= low
    below = number < high if high_open else number <= high
    if not (above and below):  # NaN fails both comparisons
        raise InvalidArgument(name, expected, value, cure)
    return number
