"""The cells of tables of votes: what each of them stands for, and whether a line holds votes or names."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from ..arrays import IntArray

__all__ = ["EMPTY", "UNKNOWN", "Codes", "as_written", "is_header"]

UNKNOWN = -2  # the code of a cell that stands for nothing
EMPTY = "nan"  # an empty cell, a null of Parquet, and NaN

# Ways to write a missing vote that an error may show; any other cell may be a vote or a key, and is not shown.
_MARKS = frozenset({EMPTY, "-1", "-9", "-99", "-999", "?", "-", "NA", "N/A", "n/a", "None", "null", "NULL", "<NA>"})


class Codes(dict[str, int]):
    """What cells stand for, by their text: an integer, or :data:`UNKNOWN`. Holds each text that was looked up.

    >>> codes = Codes({"cat": 0, "7": 1})
    >>> codes["cat"], codes[" 7.0 "], codes["dog"]
    (0, 1, -2)
    """

    def __init__(self, meanings: Mapping[str, int]) -> None:
        super().__init__()
        self.meanings = meanings

    def __missing__(self, cell: str) -> int:
        code = self[cell] = self.meanings.get(as_written(cell), UNKNOWN)
        return code

    @property
    def unknown_marks(self) -> list[str]:
        """The unknown cells so far that usually mean a missing vote."""
        return sorted({as_written(cell) for cell, code in self.items() if code == UNKNOWN} & _MARKS)

    def of_array(self, cells: Any) -> IntArray:
        """The codes of an array of numbers or text, in its shape; each distinct value is looked up once."""
        if cells.dtype.kind in "iu" and cells.size:
            low, high = int(cells.min()), int(cells.max())
            if low > -(2**62) and high < 2**62 and high - low < 2**16:
                places = cells.astype(np.int64).ravel() - low
                present = np.flatnonzero(np.bincount(places))
                table = np.full(high - low + 1, UNKNOWN, dtype=np.int64)
                table[present] = [self[str(low + value)] for value in present.tolist()]
                return np.asarray(table[places].reshape(cells.shape))
        values, places = np.unique(cells, return_inverse=True)
        codes = np.array([self[str(value)] for value in values.tolist()], dtype=np.int64)
        return np.asarray(codes[places].reshape(cells.shape))

    def of_column(self, column: Any) -> IntArray:
        """The codes of a column of Arrow, whatever its type; integers keep all their digits."""
        import pyarrow

        encoded = column.dictionary_encode()
        values = ["" if value is None else str(value) for value in encoded.dictionary.to_pylist()]
        values += [""] * bool(encoded.null_count)
        codes = np.array([self[value] for value in values], dtype=np.int64)
        return np.asarray(codes[encoded.indices.cast(pyarrow.int64()).fill_null(len(values) - 1).to_numpy()])


def as_written(cell: Any) -> str:
    """A cell as it is compared: whole numbers without a point, empty ones and NaN as :data:`EMPTY`.

    >>> [as_written(cell) for cell in (" cat ", "03", 3.0, "1e2", "9007199254740993", "", float("nan"), "NA")]
    ['cat', '3', '3', '100', '9007199254740993', 'nan', 'nan', 'NA']
    """
    text = str(cell).strip()
    if text.lower() in ("", EMPTY):
        return EMPTY
    if not text.isascii() or "_" in text or len(text) > 64:
        return text
    try:
        return str(int(text))
    except ValueError:
        pass
    try:
        number = float(text)
    except ValueError:
        return text
    return str(int(number)) if abs(number) < 2**53 and number == int(number) else text


def is_header(cells: Sequence[str], *, codes: Codes | None, classes: Collection[str]) -> bool | None:
    """Whether a line of text holds names and not votes; None where it may hold either. An empty cell decides nothing.

    Args:
        cells: the line, without the key of the input.
        codes: what votes stand for; None: the line holds counts.
        classes: the names of the classes, with which a header may name columns of counts.
    """
    texts = [text for text in map(as_written, cells) if text != EMPTY]
    values = [_is_number(text) or (codes is not None and codes[text] != UNKNOWN) for text in texts]
    if not values or any(values) != all(values):
        return None
    if not values[0]:
        return True
    numbered = ({str(number) for number in range(start, start + len(texts))} for start in (0, 1))
    return None if len(set(texts)) == len(cells) and set(texts) in (*numbered, set(classes)) else False


def _is_number(text: str) -> bool:
    try:
        return np.isfinite(float(text)) and "_" not in text
    except ValueError:
        return False
