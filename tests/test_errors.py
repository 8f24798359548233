"""Errors say what was expected, what was received and how to fix it; checks of numbers refuse NaN."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from darrm_torch import DarrmError, InvalidArgument, UnprovenPrivacy, errors
from darrm_torch.errors import check_integer, check_number


def test_every_error_is_a_value_error() -> None:
    for name in set(errors.__all__) - {"LabelWarning"}:
        assert issubclass(getattr(errors, name), DarrmError)
        assert issubclass(getattr(errors, name), ValueError)


def test_a_message_names_argument_expectation_value_and_cure() -> None:
    error = InvalidArgument("labels", "an integer >= 1", 0, "Ask for one label or more.")
    assert str(error) == "labels must be an integer >= 1, got 0. Ask for one label or more."
    assert str(InvalidArgument("labels", "an integer >= 1", 0)) == "labels must be an integer >= 1, got 0"
    assert len(str(InvalidArgument("path", "a folder", "x", "no folder: " + "y" * 10**6))) < 1100
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.cure) == (str(error), error.cure)
    assert UnprovenPrivacy("no", finding="gdp").finding == "gdp"


class Raises:
    def __index__(self) -> int:
        raise RuntimeError

    __float__ = __index__


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError


def test_any_value_can_be_shown_and_long_ones_are_cut() -> None:
    assert "a value of type Unprintable" in str(InvalidArgument("x", "a number", Unprintable()))
    assert "a value of type int" in str(InvalidArgument("x", "small", 10**5000))
    assert (
        str(InvalidArgument("x", "one", np.ones((2, 3)))) == "x must be one, got ndarray of float64 with shape (2, 3)"
    )
    nested: Any = [1, 2]
    for _ in range(60):
        nested = [nested] * 9
    assert str(InvalidArgument("x", "small", {"a": nested})).startswith("x must be small, got {'a': [[[[...], [...], ")
    assert len(str(InvalidArgument("x", "short", "x" * 10**6))) < 600


@given(st.integers(-(2**70), 2**70), st.integers(-100, 100), st.integers(0, 100))
def test_integers_in_the_interval_pass_and_no_others(value: int, low: int, width: int) -> None:
    inside = low <= value <= low + width
    if inside:
        assert check_integer("n", value, low=low, high=low + width) == value
    else:
        with pytest.raises(InvalidArgument, match=r"^n must be an integer in \["):
            check_integer("n", value, low=low, high=low + width)


@pytest.mark.parametrize("one", [1, np.int8(1), np.uint64(1), torch.tensor(1), np.array(1)])
def test_integers_of_other_libraries_become_int(one: object) -> None:
    assert type(check_integer("n", one, low=0)) is int


@pytest.mark.parametrize(
    "bad", [True, 1.0, "1", None, math.nan, np.array([1]), torch.tensor([1, 2]), 1j, torch.tensor(True), Raises()]
)
def test_what_is_no_integer_is_refused(bad: object) -> None:
    with pytest.raises(InvalidArgument, match=r"^n must be an integer >= 0, got "):
        check_integer("n", bad, low=0)


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_numbers_in_the_interval_pass_and_no_others(value: float) -> None:
    for low_open, high_open in ((False, False), (True, False), (False, True), (True, True)):
        inside = (value > 0 if low_open else value >= 0) and (value < 1 if high_open else value <= 1)
        if inside:
            assert check_number("p", value, low=0, high=1, low_open=low_open, high_open=high_open) == value
        else:
            with pytest.raises(InvalidArgument, match=r"^p must be a number in [\[(]0, 1[\])], got "):
                check_number("p", value, low=0, high=1, low_open=low_open, high_open=high_open)


@pytest.mark.parametrize("bad", [True, "0.5", b"1", None, math.nan, [0.5], np.array([0.5]), 10**400, 1j])
def test_what_is_no_number_is_refused_even_without_limits(bad: object) -> None:
    with pytest.raises(InvalidArgument, match=r"^p must be a number in "):
        check_number("p", bad)


def test_an_open_end_at_infinity_requires_a_finite_number() -> None:
    assert check_number("p", math.inf) == math.inf
    with pytest.raises(InvalidArgument):
        check_number("p", math.inf, high_open=True)
