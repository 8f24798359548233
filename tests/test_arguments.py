"""Types of arguments: what an annotation admits passes, anything else is refused by name."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest
import torch

import darrm_torch as dt
from darrm_torch import InvalidArgument, PrivacyGuarantee, PrivateMajorityEnsemble
from darrm_torch.arguments import as_array, checked
from darrm_torch.errors import check_integer, check_number

TABLE = type("DataFrame", (list,), {})(["a", "b"])
POINT = PrivacyGuarantee(epsilon=0.1)


class Odd:
    """Nothing can be found out about it."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __repr__(self) -> str:
        raise RuntimeError("repr")


ENDLESS = [itertools.count(), itertools.repeat(1), itertools.cycle([1]), range(10**30), np.broadcast_to(1, 10**10)]
KINDS: list[tuple[Any, list[Any], list[Any]]] = [  # an annotation, what it admits, what it refuses
    (
        int,
        [0, np.int64(3), torch.tensor(3)],
        [1.0, True, "1", None, [1], torch.ones(2, dtype=torch.int64), torch.tensor(True)],
    ),
    (
        float,
        [0, 0.5, np.float32(1), torch.tensor(0.5), Decimal("0.5"), Fraction(1, 2)],
        [True, "0.5", None, [0.5], 10**400, np.ones(2)],
    ),
    (bool, [True, np.False_], [0, 1, "yes", None]),
    (str, ["", "x"], [0, None, b"x", ["x"]]),
    (Sequence, [[1], (1,), np.ones(2)], ["text", b"x", {1: 2}, {1}, 3, None, iter([1]), np.ones(())]),
    (Iterable, [[1], iter([1])], ["text", bytearray(1), {1: 2}, {1}, 3, None, torch.tensor(1), TABLE, *ENDLESS]),
    (Mapping, [{}], [[], "x", None]),
    (Callable, [len, lambda: 0], [0, "len", None]),
    (str | os.PathLike[str], ["x", Path("x"), "", "\udcff"], ["\ud800", "a\0b", Path("a\0b"), b"x", 3, None, ["x"]]),
    (Literal["fixed", "fresh"], ["fixed", "fresh"], ["all", 0, None, ["fixed"], np.array(["fixed", "fresh"])]),
    (Collection[Literal["a", "b"]], [(), ["a"], {"a"}], ["a", ["c"], [1], None]),
    (PrivacyGuarantee, [POINT], [0.1, (0.1, 0), "0.1,0", None]),
    (PrivacyGuarantee | None, [POINT, None], [0.1, ()]),
    (npt.ArrayLike, [1, [1], "x", None], []),
    (Any, [1, None, "x"], []),
]


def function_of(annotation: Any) -> Callable[..., Any]:
    def function(value: Any) -> Any:
        return value

    function.__annotations__["value"] = annotation
    return checked(function)


@pytest.mark.parametrize(("annotation", "admitted", "refused"), KINDS, ids=lambda value: str(value)[:20])
def test_an_annotation_admits_its_values_and_no_others(
    annotation: Any, admitted: list[Any], refused: list[Any]
) -> None:
    function = function_of(annotation)
    for value in admitted:
        for found in (function(value), function(value=value)):
            other = type(found) in (int, float) and found is not value  # a number of another library
            assert found == value if other else found is value
    for value in refused:
        with pytest.raises(InvalidArgument, match=r"^value must be "):
            function(value)


def test_data_are_not_shown() -> None:
    """A tensor in the wrong place may hold private records."""
    with pytest.raises(InvalidArgument, match=r"^value must be an integer, got 'Tensor'$"):
        function_of(int)(torch.tensor([41.5, 42.5]))


def test_missing_and_unknown_arguments_are_those_of_python() -> None:
    for arguments in ({}, {"value": 1, "other": 2}):
        with pytest.raises(TypeError):
            function_of(int)(**arguments)


def test_a_functions_own_check_of_numbers_says_more() -> None:
    @checked
    def release(labels: int) -> None:
        raise InvalidArgument("labels", "an integer >= 1", labels, "Its own cure.")

    with pytest.raises(InvalidArgument, match="Its own cure"):
        release("many")


def test_classes_check_what_constructs_them() -> None:
    @checked
    @dataclass(frozen=True)
    class Settings:
        steps: int

    assert Settings(3).steps == 3
    with pytest.raises(InvalidArgument, match=r"^steps must be an integer, got 'three'"):
        Settings("three")


@pytest.mark.parametrize("value", [[1, 2], np.ones(2), torch.ones(2, requires_grad=True), 1.5])
def test_arrays_of_numbers(value: Any) -> None:
    assert as_array("gamma", value, "numbers").dtype.kind in "iuf"


@pytest.mark.parametrize("value", [[[1], [1, 2]], "text", [None], [1j], torch.ones(2).to_sparse(), [True]])
def test_what_is_no_array_of_numbers_is_refused(value: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"^gamma must be numbers, got "):
        as_array("gamma", value, "numbers")


class Built:
    @checked
    def __init__(self, noise: float) -> None:
        self.noise = noise

    @classmethod
    @checked
    def calibrated(cls, *, target: float) -> Built:
        return cls(1 / target)


def test_an_argument_of_another_way_to_build_the_class_is_named_with_that_way() -> None:
    with pytest.raises(
        TypeError, match=r"^Built\(\) has no argument 'target'; Built.calibrated\(target=...\) takes it$"
    ):
        Built(target=2.0)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument 'nonsense'"):
        Built(nonsense=2.0)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'noise'") as caught:
        Built()  # type: ignore[call-arg]
    assert caught.value.__context__ is None  # one clear error, not two
    with pytest.raises(InvalidArgument, match="got 'the class Built itself'"):
        Built(noise=Built)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"from_opacus\(allowance=...\) takes it"):
        PrivateMajorityEnsemble([], allowance=1)  # type: ignore[call-arg]
    for mechanism in (dt.GNMax, dt.LNMax, dt.ConfidentGNMax, dt.InteractiveGNMax):
        with pytest.raises(TypeError, match=rf"{mechanism.__name__}\.calibrated\(target=...\) takes it"):
            mechanism(target=POINT)  # type: ignore[call-arg]


@pytest.mark.parametrize("annotation", [int, float, str, bool, Sequence, Iterable, Mapping, Callable, PrivacyGuarantee])
def test_what_cannot_be_looked_at_is_refused(annotation: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"^value must be .*, got '?Odd"):
        function_of(annotation)(Odd())
    for check in (check_integer, check_number):
        with pytest.raises(InvalidArgument, match=r"value must be .* got a value of type Odd"):
            check("value", Odd(), low=0)


def test_numbers_of_other_libraries_cannot_overflow() -> None:
    function = function_of(int | Sequence[int] | float | None)
    for value in (np.int8(100), np.array(100), torch.tensor(100, dtype=torch.int8)):
        assert type(function(value)) is int
        assert function(value) * 2 == 200
    assert type(function(Decimal("0.5"))) is float
    assert function([np.int8(1)]) == [1]


@pytest.mark.parametrize(
    "value", [np.broadcast_to(np.int8(1), (10**6, 10**6)), torch.zeros(1).expand(10**12), range(10**12)]
)
def test_what_a_copy_would_inflate_is_no_array(value: Any) -> None:
    with pytest.raises(InvalidArgument, match="value must be numbers"):
        as_array("value", value, "numbers")


def test_a_large_array_with_one_row_is_an_array() -> None:
    row = np.empty(2**29, dtype=np.int8)[None]  # its one step is 0
    assert row.strides[0] == 0
    assert as_array("value", row, "numbers").shape == (1, 2**29)
