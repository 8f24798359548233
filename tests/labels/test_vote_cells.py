"""What a cell stands for, in every type that a table may have."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from darrm_torch.labels.vote_cells import UNKNOWN, Codes, as_written, is_header

MEANINGS = {"0": 0, "1": 1, "cat": 2, "nan": -1, str(2**53 + 1): 3}


@pytest.mark.slow
@settings(max_examples=50)
@given(st.integers() | st.floats() | st.text(max_size=9))
def test_writing_a_cell_twice_changes_nothing(cell: Any) -> None:
    assert as_written(as_written(cell)) == as_written(cell)


@settings(max_examples=50)
@given(st.integers(-(2**70), 2**70))
def test_integers_keep_all_their_digits(number: int) -> None:
    assert as_written(number) == as_written(f" {number} ") == str(number)
    assert (as_written(float(number)) == str(number)) == (abs(number) < 2**53 and float(number) == number)


@pytest.mark.parametrize("kind", ["i1", "u8", "i8", ">i4", "f2", "f8", "g", "U5"])
def test_arrays_of_any_type_have_the_same_codes(kind: str) -> None:
    cells = np.array([[0, 1], [1, 7]]).astype(kind)
    assert Codes(MEANINGS).of_array(cells).tolist() == [[0, 1], [1, UNKNOWN]]


def test_values_that_do_not_occur_are_not_looked_up() -> None:
    codes = Codes({"0": 0})
    assert codes.of_array(np.array([-9, 0])).tolist() == [UNKNOWN, 0]
    assert codes.unknown_marks == ["-9"]
    assert Codes({"0": 0}).of_array(np.array([2**64 - 1, 0], dtype=np.uint64)).tolist() == [UNKNOWN, 0]
    assert Codes({"0": 0}).of_array(np.array([np.nan, np.inf, 0])).tolist() == [UNKNOWN, UNKNOWN, 0]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0, None, 1], [0, -1, 1]),
        ([0.0, None, float("nan")], [0, -1, -1]),
        (["cat", "", None], [2, -1, -1]),
        ([2**53 + 1, 2**53, None], [3, UNKNOWN, -1]),
        ([Decimal("1.00"), Decimal("0.50")], [1, UNKNOWN]),
        ([True, False], [UNKNOWN, UNKNOWN]),
        ([None, None], [-1, -1]),
        ([], []),
    ],
)
def test_columns_of_arrow(values: list[Any], expected: list[int]) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    column = pyarrow.array(values)
    assert Codes(MEANINGS).of_column(column).tolist() == expected
    assert Codes(MEANINGS).of_column(column.dictionary_encode()).tolist() == expected
    codes = Codes({})
    codes.of_column(column)
    assert ("nan" in codes.unknown_marks) == (-1 in expected)


@pytest.mark.parametrize(
    ("line", "header"),
    [
        (["a", "b"], True),
        (["", "a"], True),
        (["1", "1"], False),
        (["1", ""], False),
        (["", ""], None),
        (["1", "b"], None),
        (["0", "1"], None),
        (["2", "1"], None),
        (["cat", "1"], False),
        (["9", "17"], False),
    ],
)
def test_the_first_line(line: list[str], header: bool | None) -> None:
    assert is_header(line, codes=Codes(MEANINGS), classes=["cat", "dog"]) is header


def test_the_first_line_of_counts() -> None:
    assert is_header(["dog", "cat"], codes=None, classes=["cat", "dog"]) is True
    assert is_header(["dog", "cat"], codes=Codes({"cat": 0, "dog": 1}), classes=["cat", "dog"]) is None
    assert is_header(["7", "4"], codes=None, classes=["cat", "dog"]) is False
