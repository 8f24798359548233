"""The errors of the library. A message says what was expected, what was received and how to fix it.

All of them derive from :class:`ValueError`, so ``except ValueError`` catches every one.
"""

from __future__ import annotations

import inspect
import math
import operator
import reprlib
import warnings
from typing import Any

__all__ = [
    "BudgetExceeded",
    "DarrmError",
    "InvalidArgument",
    "LabelWarning",
    "LedgerError",
    "PrivacyViolation",
    "UnprovenPrivacy",
]


class DarrmError(ValueError):
    """Base class of all errors that the library raises on purpose."""


class InvalidArgument(DarrmError):
    """A function or a constructor received a value that it does not accept.

    Args:
        name: the name of the argument, as the caller wrote it.
        expected: the values that are accepted.
        got: the value that was received; only its type and shape if the argument is secret, such as vote counts.
        cure: how to fix it, if ``expected`` does not make that obvious.
    """

    def __init__(self, name: str, expected: str, got: Any, cure: str = "") -> None:
        got = _without_content(got) if name in _SECRET else got
        self.name, self.expected, self.got, self.cure = name, expected, got, cure
        message = f"{name} must be {expected}, got {_shown(got)}"
        super().__init__(f"{message}. {_shortened(cure, 1000)}" if cure else message)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.name, self.expected, self.got, self.cure)  # so that it can be pickled


class PrivacyViolation(DarrmError):
    """A noise function violates the guarantee that it was checked against; the message names the worst case."""


class UnprovenPrivacy(DarrmError):
    """A privacy claim is not a proven upper bound; the message says why and how to obtain one.

    Args:
        message: why, and how to obtain a bound.
        finding: the name with which ``accept`` admits the claim, if it can be admitted.
    """

    def __init__(self, message: str, *, finding: str | None = None) -> None:
        super().__init__(message)
        self.finding = finding


class BudgetExceeded(DarrmError):
    """A request would exceed the privacy budget; nothing was released."""


class LedgerError(DarrmError):
    """A ledger cannot be used: it is damaged or read-only, or belongs to other teachers or to another mechanism."""


class LabelWarning(UserWarning):
    """Labels that cost more than they need to, that no budget pays for, or that are hardly better than guessing."""


def warn_caller(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line of the user: the nearest one outside this library and outside what calls it in between."""
    level, frame = 1, inspect.currentframe()
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in _NOT_THE_USER:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


_LARGEST = 10**4000 - 1  # of the integers: Python writes none of more than 4,300 digits
_NOT_THE_USER = ("darrm_torch", "torch", "lightning")
_SECRET = ("counts", "votes", "inputs", "key")  # never shown, whatever is wrong with them


def _without_content(value: Any) -> Any:
    """What an error may show of a secret value: words about it, or its type and shape."""
    if value is None or isinstance(value, str) or _is_shape(value):
        return value
    known = not getattr(value, "is_nested", False) and _is_shape(getattr(value, "shape", None))
    shape = f" and shape {tuple(value.shape)}" if known else ""
    return f"a value of type {type(value).__name__}{shape}"


def _is_shape(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) < 8 and all(type(one) is int for one in value)


class _Bounded(reprlib.Repr):
    """Short texts of nested values: those from a file may hold each other so often that no memory holds their text."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxlong = 4, 10**4
        self.maxtuple = self.maxlist = self.maxdict = self.maxset = self.maxfrozenset = 20

    def repr_instance(self, x: Any, level: int) -> str:
        if getattr(x, "is_nested", False):  # it has no shape
            return type(x).__name__
        if getattr(x, "ndim", 0):  # an array may hold records
            return f"{type(x).__name__} of {x.dtype} with shape {tuple(x.shape)}"
        return repr(x)

    repr_str = repr_instance
    repr_OrderedDict = reprlib.Repr.repr_dict


_BOUNDED = _Bounded()


def _shown(value: Any) -> str:
    """``value`` as an error shows it, shortened; of an array only type and shape."""
    try:
        text = _BOUNDED.repr(value)
    except Exception:  # a huge integer, or a tensor that cannot be printed
        return f"a value of type {type(value).__name__}"
    return _shortened(text, 500)


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}..."


def is_integer(value: Any) -> bool:
    """Whether ``value`` is an integer of any library, and no list or array of them."""
    number = hasattr(value, "__index__") and not getattr(value, "ndim", 0)
    return number and not is_no_number(value)


def is_no_number(value: Any) -> bool:
    """Whether it is a boolean, a text or a complex number, of Python, NumPy or Torch, though ``float`` may read it."""
    kind = str(getattr(value, "dtype", ""))
    return isinstance(value, (bool, str, bytes)) or kind.endswith("bool") or "complex" in kind


def check_integer(name: str, value: Any, *, low: int, high: int | None = None, cure: str = "") -> int:
    """``value`` as ``int`` in ``[low, high]``, otherwise :class:`InvalidArgument`. Booleans and floats are refused."""
    if type(value) is int and low <= value <= (_LARGEST if high is None else high):
        return value  # the usual case, without the words for the others
    expected = f"an integer >= {low}" if high is None else f"an integer in [{low}, {high}]"
    try:
        if not is_integer(value):
            raise TypeError
        number = operator.index(value)
    except Exception:  # an object may raise any
        raise InvalidArgument(name, expected, value, cure) from None
    if high is None and number > _LARGEST:
        raise InvalidArgument(name, f"{expected}, of 4,000 digits at most", value, cure)
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
    """``value`` as a ``float`` in the interval, otherwise :class:`InvalidArgument`; NaN is always refused.

    A closed infinite bound admits that infinity. Use an open one to require finite numbers.
    """
    expected = f"a number in {'(' if low_open else '['}{low:g}, {high:g}{')' if high_open else ']'}"
    try:
        if getattr(value, "ndim", False) or is_no_number(value):
            raise TypeError
        number = float(value)
    except Exception:  # an object may raise any
        raise InvalidArgument(name, expected, value, cure) from None
    above = number > low if low_open else number >= low
    below = number < high if high_open else number <= high
    if not (above and below):  # NaN fails both comparisons
        raise InvalidArgument(name, expected, value, cure)
    return number
