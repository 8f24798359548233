"""Types of arguments, checked where users call: a value of another type than its annotation is refused by name."""

from __future__ import annotations

import functools
import inspect
import itertools
import math
import operator
import os
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import numpy as np
import numpy.typing as npt

from .errors import DarrmError, InvalidArgument, check_number, is_no_number
from .limits import MOST_BYTES

__all__ = ["MISSING_VALUE", "as_array", "checked", "is_dense", "is_inflated", "validate"]

MISSING_VALUE = "A missing value needs a public number in its place, and a column that marks it as missing."

_Function = TypeVar("_Function", bound=Callable[..., Any])

_TEXT = (str, bytes, bytearray, memoryview)
_PLURALS = (Sequence, Iterable, Collection)
_PLAIN = (int, float, bool, str, types.NoneType)
_READ: dict[type, Callable[[Any], int | float]] = {int: operator.index, float: float}
_CALLED: dict[Any, str] = {
    None: "None",
    bool: "True or False",
    int: "an integer",
    float: "a number",
    str: "a string",
    os.PathLike: "a path",
    Callable: "a function",
    Mapping: "a mapping",
    **dict.fromkeys(_PLURALS, "a list"),
}


def checked(function: _Function) -> _Function:
    """Decorate a public function or dataclass: an argument whose type is not the annotated one is refused by name.

    Only what is visible from outside is checked: a number, a flag, one of several words, a function, a list, a path,
    an instance of a class. The function itself checks ranges and elements. ``Any`` admits everything. A number of
    another library becomes one of Python's: those of NumPy may overflow.

    >>> @checked
    ... def release(labels: int, *, votes: Literal["fixed", "fresh"] = "fixed") -> int:
    ...     return labels
    >>> release(3, votes="all")
    Traceback (most recent call last):
    ...
    darrm_torch.errors.InvalidArgument: votes must be "fixed" or "fresh", got 'all'
    >>> release(2.0)
    Traceback (most recent call last):
    ...
    darrm_torch.errors.InvalidArgument: labels must be an integer, got 2.0
    """
    if isinstance(function, type):
        function.__init__ = checked(function.__init__)  # type: ignore[misc]
        return function
    signature = inspect.signature(function)

    @functools.cache
    def alternatives(name: str) -> tuple[Any, ...]:
        annotation = signature.parameters[name].annotation
        if signature.parameters[name].kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            return (Any,)
        try:
            return _parts(eval(annotation, function.__globals__) if isinstance(annotation, str) else annotation)
        except NameError:  # imported for type checkers only
            return (Any,)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:  # a missing or an unknown argument, which Python names
            if hint := _taken_elsewhere(function, args, kwargs.keys() - signature.parameters.keys()):
                raise TypeError(hint) from None
            bound = None
        given, numbers = {} if bound is None else bound.arguments, dict[str, Any]()
        for name, value in given.items():
            admitted = alternatives(name)
            if type(value) not in _PLAIN and (number := _number(value, admitted)) is not None:
                numbers[name] = number
            if not _is_any(value, admitted):
                telling = any(kind in (int, float) or "PrivacyGuarantee" in str(kind) for kind in admitted)
                if telling and not is_inflated(value):
                    try:
                        function(*args, **kwargs)  # its own check of numbers and promises says more, if it has one
                    except DarrmError as error:
                        if name.rstrip("s") in str(error):
                            raise
                    except Exception:  # whatever a wrong value leads to where nothing checks it
                        pass
                shown = value if isinstance(value, (int, float, str, types.NoneType)) else type(value).__name__
                shown = f"the class {value.__name__} itself" if isinstance(value, type) else shown
                raise InvalidArgument(
                    name, " or ".join(dict.fromkeys(map(_called, admitted))), shown
                )  # data are private
        if bound is None or not numbers:
            return function(*args, **kwargs)
        given.update(numbers)
        return function(*bound.args, **bound.kwargs)

    return call  # type: ignore[return-value]


def _taken_elsewhere(function: Callable[..., Any], args: Sequence[Any], unknown: Collection[str]) -> str:
    """An error about an argument that not the class itself takes, but another way to build it; empty if none does."""
    kind = type(args[0]) if args and function.__name__ == "__init__" else object
    for name, way in inspect.getmembers(kind, inspect.ismethod):
        if taken := sorted(unknown & inspect.signature(way).parameters.keys()):
            place = f"{kind.__name__}.{name}"
            return f"{kind.__name__}() has no argument {taken[0]!r}; {place}({taken[0]}=...) takes it"
    return ""


def validate(frozen: Any, name: str, check: Callable[..., Any] = check_number, **limits: Any) -> None:
    """Replace a field of a frozen dataclass by what ``check`` makes of it: a float or an integer within ``limits``."""
    object.__setattr__(frozen, name, check(name, getattr(frozen, name), **limits))


def _parts(annotation: Any) -> tuple[Any, ...]:
    """The alternatives of an annotation."""
    if annotation is npt.ArrayLike or annotation is inspect.Parameter.empty:
        return (Any,)
    if get_origin(annotation) in (Union, types.UnionType):
        parts = tuple(part for one in get_args(annotation) for part in _parts(one))
        place = any(get_origin(part) is os.PathLike for part in parts)  # takes strings, too
        return tuple(part for part in parts if not (part is str and place))
    return (None if annotation is type(None) else annotation,)


def _number(value: Any, admitted: Collection[Any]) -> int | float | None:
    """A number of NumPy, Torch or another library as one of Python's, where one is asked for; otherwise None."""
    for kind, read in _READ.items():
        if kind in admitted and _is_any(value, [kind]):
            return read(value)
    return None


def _is_any(value: Any, kinds: Iterable[Any]) -> bool:
    """Whether a value is of one of these kinds; one that cannot be looked at is of none."""
    for kind in kinds:
        try:
            if _is(value, kind):
                return True
        except Exception:  # an object may raise any
            continue
    return False


def _is(value: Any, kind: Any) -> bool:
    """Whether a value is of this kind, as far as it is visible from outside."""
    origin = get_origin(kind) or kind
    if origin is Literal:
        return isinstance(value, str) and value in get_args(kind)
    if origin is float and isinstance(value, int):
        return not isinstance(value, bool) and abs(value) < 2**1023
    if origin in (int, float):  # also NumPy's numbers and tensors without axes
        number = hasattr(value, "__index__" if origin is int else "__float__") and not getattr(value, "ndim", 0)
        return number and not is_no_number(value) and isinstance(_READ[origin](value), origin)
    if origin is bool:
        return isinstance(value, (bool, np.bool_))
    if origin in _PLURALS:
        items = hasattr(value, "__getitem__") if origin is Sequence else True
        items = items and (origin is Iterable or hasattr(value, "__len__"))
        if not items or not isinstance(value, Iterable) or isinstance(value, (type, *_TEXT, Mapping)):
            return False
        if getattr(value, "ndim", None) == 0 or getattr(value, "is_nested", False):  # an array without axes or length
            return False
        if is_inflated(value):
            return False
        if type(value).__name__ == "DataFrame" or (isinstance(value, Set) and origin is not Collection):
            return False  # a table lists its columns, a set has no order
        words = next(iter(get_args(kind)), None)  # of Collection[Literal[...]]
        return get_origin(words) is not Literal or all(_is(one, words) for one in value)
    if origin is os.PathLike:
        return isinstance(value, str | os.PathLike) and b"\0" not in os.fsencode(value)
    if origin is None:
        return value is None
    if origin is tuple:
        return isinstance(value, (tuple, list))
    unseen = origin is Any or origin is np.ndarray or getattr(origin, "_is_protocol", False)  # lists become arrays
    return unseen or not isinstance(origin, type) or isinstance(value, origin)


def _called(kind: Any) -> str:
    """How an error calls a kind of value."""
    origin = get_origin(kind) or kind
    if origin is Literal:
        return " or ".join(f'"{word}"' for word in get_args(kind))
    if origin in _PLURALS and get_origin(next(iter(get_args(kind)), None)) is Literal:
        return f"a list of {_called(get_args(kind)[0])}"
    name = str(getattr(origin, "__name__", origin))
    return _CALLED.get(origin, f"{'an' if name[0] in 'AEIO' else 'a'} {name}")


def is_inflated(value: Any) -> bool:
    """Whether a copy of ``value`` would fill the memory that it does not take itself.

    This is so for an array or tensor that repeats few numbers (``broadcast_to``, ``expand``), for a long ``range``, and
    for an iterator without an end.
    """
    try:
        if isinstance(value, (itertools.count, itertools.cycle, itertools.repeat)):
            return operator.length_hint(value, -1) < 0
        steps = value.stride() if hasattr(value, "stride") else getattr(value, "strides", None)
        if steps is None:
            return hasattr(value, "__len__") and 8 * len(value) > MOST_BYTES
        repeats = any(size > 1 and step == 0 for size, step in zip(value.shape, steps, strict=True))
        return repeats and 8 * math.prod(value.shape) > MOST_BYTES
    except OverflowError:  # a length beyond 2**63
        return True
    except Exception:  # a sparse tensor has no strides, an object may raise any
        return False


def is_dense(tensor: Any) -> bool:
    """Whether a tensor of Torch holds a real number or an integer at each place, and its data: not a sparse one etc."""
    ordinary = str(tensor.layout) == "torch.strided" and not tensor.is_nested and not is_inflated(tensor)
    return ordinary and not (tensor.is_complex() or tensor.is_quantized or tensor.is_meta)


def as_array(name: str, value: Any, expected: str, *, kinds: str = "iuf") -> npt.NDArray[Any]:
    """``value`` as an array of numbers (``kinds``: NumPy's letters), otherwise :class:`InvalidArgument`.

    Tensors on any device and with gradients are accepted.
    """
    try:
        if is_inflated(value):
            raise ValueError
        array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
    except Exception:  # ragged or long lists; sparse, quantized and meta tensors: each has its own error
        raise InvalidArgument(name, expected, value) from None
    if (array.dtype.kind not in kinds and array.size) or np.ma.is_masked(value):  # what is masked is no number
        raise InvalidArgument(name, expected, value)
    return array
