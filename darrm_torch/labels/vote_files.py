"""Files of votes: tables of numbers or class names, either way round, read in parts."""

from __future__ import annotations

import hashlib
import operator
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from ..arguments import checked
from ..arrays import IntArray
from ..errors import InvalidArgument, check_integer, is_integer
from .questions import MISSING
from .vote_cells import EMPTY, UNKNOWN, Codes, as_written, is_header
from .vote_tables import kind_of, lines_of, matrix_of, parquet_batches, parquet_shape, parts_of

__all__ = ["VoteBatch", "VoteFile"]

Layout = Literal["inputs-by-teachers", "teachers-by-inputs", "counts"]


class VoteBatch(NamedTuple):
    """Some inputs of a file: their keys, and either their votes ``(K, B)`` or their counts ``(B, C)``."""

    keys: list[bytes]
    votes: IntArray | None
    counts: IntArray | None


class VoteFile:
    """The votes of K teachers in a file, or in a folder of Parquet files as Dask, Ray and Spark write them.

    A table has one line for each input and one column for each teacher (``"inputs-by-teachers"``), or the other way
    round (``"teachers-by-inputs"``), or one column for each class with the number of its votes (``"counts"``). The
    layout is concluded from the shape where only one fits, and is never guessed. A ``.npy`` or ``.npz`` file holds a
    matrix; text has columns, with or without a line of names; a Parquet file has columns with names. Columns of counts
    that have names are named as the classes, in any order.

    Cells are compared as text, whole numbers as numbers: ``2``, ``2.0`` and ``02`` are the same vote. An empty cell is
    never a class.

    Iterating yields the inputs in parts, so that tables with columns may be larger than memory. The whole file is
    checked before the first part is yielded. No file is unpickled.

    Args:
        path: the file or folder: .csv, .tsv (also .gz), .npy, .npz, .parquet. In a folder, names that begin with "." or
            "_" are skipped, and any other file is refused.
        teachers: K, the number of teachers.
        classes: how classes are written in the file, in the order of the labels; a number C: as 0..C-1.
        layout: see above; ``None``: the only one that fits.
        keys: the column that identifies the input, by name or position. Equal keys are one input: the first votes
            count. ``None``: the number of the row is the key; see ``digest``.
        header: whether the first line of text holds names; ``None``: concluded from what it holds.
        missing: how votes that are missing are written, such as ``["-1", "?"]``; ``"nan"``: empty cells and NaN.
        array: the name of the array in an .npz file with several.
        part: how many inputs are yielded together.

    Attributes:
        names: the names of the teachers, as the file has them.
        rows: the number of inputs.
        digest: of all votes, where a row is known by its number only; ``None`` with ``keys``. A file whose rows have
            moved has another digest: pass it to the ``rules`` of :class:`PrivateLabeler`, which then refuses that file.
            It is an exact function of the votes, and as private as they are.

    Raises:
        InvalidArgument: a file of another kind or shape, several layouts that fit, values that are no class, or a
            vote that is missing without ``missing``. The message says which argument resolves it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "votes.csv"
    ...     _ = file.write_text("north,south,west\\ncat,dog,cat\\ndog,dog,dog\\n")
    ...     [batch.votes.tolist() for batch in VoteFile(file, teachers=3, classes=["cat", "dog"])]
    [[[0, 1], [1, 1], [0, 1]]]
    """

    @checked
    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        teachers: int,
        classes: int | Sequence[str],
        layout: Layout | None = None,
        keys: str | int | None = None,
        header: bool | None = None,
        missing: Sequence[str] = (),
        array: str | None = None,
        part: int = 16_384,
    ) -> None:
        self.path = Path(path)
        self.teachers = check_integer("teachers", teachers, low=1, high=2**20)
        if is_integer(classes) or not isinstance(classes, Iterable):
            names = [str(one) for one in range(check_integer("classes", classes, low=2, high=2**20))]
        else:
            names = _texts("classes", classes)
        if len(names) < 2 or len(set(names)) < len(names) or EMPTY in names:
            raise InvalidArgument(
                "classes", f'at least two different names, none of them empty or "{EMPTY}", or how many', classes
            )
        self.classes = tuple(names)
        absent = set(_texts("missing", missing))
        if absent & set(names):
            raise InvalidArgument("missing", "values that are no class", sorted(absent & set(names)))
        self._codes = Codes({name: number for number, name in enumerate(names)} | dict.fromkeys(absent, MISSING))
        self._layout, self._keys, self._array = layout, keys, array
        self._part = check_integer("part", part, low=1, high=2**24)
        self._kind, self._files = kind_of(self.path), parts_of(self.path)
        if self._kind != "text" and header is not None:
            raise InvalidArgument("header", "left out for a file without lines of text", header)
        if self._kind == "matrix" and keys is not None:
            raise InvalidArgument("keys", "left out for a matrix, which has no column of keys", keys)
        if self._kind != "matrix" and array is not None:
            raise InvalidArgument("array", "left out for a file that is no .npz", array)
        self._header = self._has_header() if self._kind == "text" and header is None else bool(header)
        self.names, self._columns, self._key_column = self._settle()
        if self._layout == "counts":
            self._codes = Codes({str(number): number for number in range(self.teachers + 1)})
        content = hashlib.sha256(b"counts" if self._layout == "counts" else b"votes")
        self.rows = 0
        for batch in self._batches():
            self.rows += len(batch.keys)
            if keys is None:
                content.update(np.asarray(batch.counts if batch.votes is None else batch.votes.T).tobytes())
        if self.rows == 0:
            raise InvalidArgument("path", "a table with at least one input", "a table with none")
        self.digest = content.hexdigest() if keys is None else None

    def __repr__(self) -> str:
        return f"VoteFile({self.path.name}, {self.teachers} teachers, {len(self.classes)} classes, {self.rows} inputs)"

    def __len__(self) -> int:
        return self.rows

    def __iter__(self) -> Iterator[VoteBatch]:
        return self._batches()

    # --- shape ----------------------------------------------------------------------------------------------------

    def _settle(self) -> tuple[tuple[str, ...], list[int], int | None]:
        """The names of the teachers, the columns of their votes or counts, and the column of keys."""
        names, (lines, all_columns) = self._names_and_shape()
        key, columns = self._key_position(names, all_columns), list(range(all_columns))
        if key is not None:
            columns.remove(key)
        width = len(columns)
        fits: dict[str, bool] = {
            "inputs-by-teachers": width == self.teachers,
            "teachers-by-inputs": lines == self.teachers and key is None,
            "counts": width == len(self.classes),
        }
        if key is not None and self._layout == "teachers-by-inputs":
            raise InvalidArgument("keys", "left out if the columns are the inputs (teachers-by-inputs)", self._keys)
        if self._layout is None:
            possible = [name for name, fit in fits.items() if fit]
            if len(possible) > 1:
                got = f"a table of {lines} x {width}, which could be {' or '.join(possible)}"
                raise InvalidArgument("layout", "given", got, f"There are {self.teachers} teachers. Say which it is.")
            self._layout = possible[0] if possible else None  # type: ignore[assignment]
        if self._layout is None or not fits[self._layout]:
            wanted = {
                "inputs-by-teachers": f"{self.teachers} columns of votes",
                "teachers-by-inputs": f"{self.teachers} lines of votes",
                "counts": f"{len(self.classes)} columns of counts",
            }
            expected = wanted[self._layout] if self._layout else f"a table with {' or '.join(wanted.values())}"
            cure = "If a column identifies the inputs, name it with keys." if key is None else ""
            if self._layout == "teachers-by-inputs":
                cure = "Each teacher has one line, and one guarantee."
            if width == 1 and self._kind == "text":
                cure = "Text has commas between cells (.csv), or tabs (.tsv), and a point in decimal numbers."
            raise InvalidArgument("path", expected, f"{lines} lines and {width} columns", cure)
        if names is not None and self._layout == "counts":
            place = {as_written(names[column]): column for column in columns}
            if place.keys() != set(self.classes):
                cure = "Rename the columns, or pass as classes what they are called, in the order of the labels."
                raise InvalidArgument("path", f"columns of counts named {list(self.classes)}", "other names", cure)
            columns = [place[name] for name in self.classes]
        elif names is not None and self._layout == "inputs-by-teachers":
            teachers = tuple(names[column].strip() for column in columns)
            if len(set(teachers)) < len(teachers) or "" in teachers:
                got = "an empty name, or a name twice"  # they are votes where a header was wrongly stated
                raise InvalidArgument("path", "columns with a different name for each teacher", got)
            return teachers, columns, key
        return tuple(f"teacher {number}" for number in range(self.teachers)), columns, key

    def _key_position(self, names: list[str] | None, width: int) -> int | None:
        if self._keys is None:
            if self._kind == "parquet" and os.path.isdir(self.path):
                cure = "The order of the parts of a folder is no identity."
                raise InvalidArgument("keys", f"the column that identifies the inputs: {names}", None, cure)
            return None
        position = self._stated_position()
        named = [place for place, name in enumerate(names or []) if name.strip() == self._keys]
        if len(named) > 1 or (named and position is not None and position < width and named != [position]):
            cure = "Rename a column."
            raise InvalidArgument("keys", "the name or position of one column", f"{self._keys!r}, of several", cure)
        position = named[0] if named else position
        if position is None or position >= width:
            raise self._no_column(names, width)
        return position

    def _no_column(self, names: list[str] | None, width: int) -> InvalidArgument:
        named = f", by name {names}" if names and self._kind == "parquet" else ""  # a line of text may hold votes
        return InvalidArgument("keys", f"one of the columns 0..{width - 1}{named}", self._keys)

    def _stated_position(self) -> int | None:
        """The position that ``keys`` is, if it may be one."""
        text = str(self._keys)
        return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None

    def _names_and_shape(self) -> tuple[list[str] | None, tuple[int, int]]:
        if self._kind == "matrix":
            shape = matrix_of(self.path, self._array).shape
            return None, (shape[0], shape[1])
        if self._kind == "parquet":
            names, rows = parquet_shape(self._files)
            return names, (rows, len(names))
        lines, first = 0, None
        for line in lines_of(self.path):
            lines, first = lines + 1, first or line
        if first is None:
            raise InvalidArgument("path", "a table of votes", "an empty file")
        return (first, (lines - 1, len(first))) if self._header else (None, (lines, len(first)))

    def _has_header(self) -> bool:
        """Whether the first line holds names; refused where it may hold names or votes."""
        first, position = next(lines_of(self.path), []), self._stated_position()
        named = self._keys in [name.strip() for name in first]
        if not first or (position is None and named):
            return bool(first)  # an empty file is refused later
        if self._keys is not None and not named and not (position is not None and position < len(first)):
            raise self._no_column(None, len(first))
        cells = [cell for place, cell in enumerate(first) if place != position]
        codes = None if self._layout == "counts" else Codes(self._codes.meanings)
        header = is_header(cells, codes=codes, classes=self.classes)
        if header is None:
            cure = "Say whether the first line holds names. Values that mean a missing vote go into missing."
            raise InvalidArgument("header", "given", "a first line that may hold names or votes", cure)
        return header

    # --- content --------------------------------------------------------------------------------------------------

    def _batches(self) -> Iterator[VoteBatch]:
        row = 0
        for cells, keys in self._inputs():
            if self._layout == "counts" and (wrong := cells.sum(axis=1) != self.teachers).any():
                got = f"another sum in row {row + int(np.argmax(wrong))}"
                raise InvalidArgument("path", f"a table of counts that add up to {self.teachers} teachers", got)
            if keys is None:
                keys = [f"row {number}".encode() for number in range(row, row + len(cells))]
            elif not all(map(bytes.strip, keys)):
                got = f"an empty one in row {row + [key.strip() for key in keys].index(b'')}"
                raise InvalidArgument("keys", "a column without empty cells", got)
            row += len(cells)
            yield VoteBatch(keys, None, cells) if self._layout == "counts" else VoteBatch(keys, cells.T, None)

    def _inputs(self) -> Iterator[tuple[IntArray, list[bytes] | None]]:
        """Codes ``(B, columns)`` and keys, part by part, each part with one row for each input."""
        if self._kind == "matrix":
            matrix = matrix_of(self.path, self._array)
            table = matrix.T if self._layout == "teachers-by-inputs" else matrix
            for start in range(0, len(table), self._part):
                yield self._known(self._codes.of_array(table[start : start + self._part]), start), None
        elif self._layout == "teachers-by-inputs":
            whole = np.concatenate([codes.astype(np.int32) for codes, _ in self._rows()]).T
            for start in range(0, len(whole), self._part):
                yield whole[start : start + self._part].astype(np.int64), None
        else:
            yield from self._rows()

    def _rows(self) -> Iterator[tuple[IntArray, list[bytes] | None]]:
        """The same for each row of the table."""
        row = 0
        for codes, keys in self._parquet_rows() if self._kind == "parquet" else self._text_rows():
            yield self._known(codes, row), keys
            row += len(codes)

    def _known(self, codes: IntArray, row: int) -> IntArray:
        """The codes, if no cell is unknown."""
        unknown = (codes == UNKNOWN).any(axis=1)
        if unknown.any():
            row, marks = row + int(np.argmax(unknown)), self._codes.unknown_marks
            if self._layout == "counts":
                expected = f"a table of counts that add up to {self.teachers} teachers, whole numbers up to that"
                raise InvalidArgument("path", expected, f"others in row {row}")
            shown = list(self.classes) if len(self.classes) <= 10 else f"{self.classes[0]} to {self.classes[-1]}"
            got = f"{' and '.join(map(repr, marks)) or 'another value'} in row {row}"
            listed = ", ".join(f'"{mark}"' for mark in marks) or "..."
            cure = f"If that stands for a vote that is missing, pass missing=[{listed}]."
            raise InvalidArgument("path", f"a table of votes that are one of {shown}", got, cure)
        return codes

    def _text_rows(self) -> Iterator[tuple[IntArray, list[bytes] | None]]:
        lines, key, width = lines_of(self.path), self._key_column, len(self._columns)
        if self._header:
            next(lines, None)
        pick = operator.itemgetter(*self._columns)
        size = 1 if self._layout == "teachers-by-inputs" else self._part
        while part := list(islice(lines, size)):
            cells = map(pick, part) if width == 1 else chain.from_iterable(map(pick, part))
            codes = np.fromiter(map(self._codes.__getitem__, cells), dtype=np.int64, count=len(part) * width)
            yield codes.reshape(len(part), width), None if key is None else [line[key].encode() for line in part]

    def _parquet_rows(self) -> Iterator[tuple[IntArray, list[bytes] | None]]:
        for columns, keys in parquet_batches(self._files, key=self._key_column, rows=self._part):
            yield np.stack([self._codes.of_column(columns[column]) for column in self._columns], axis=1), keys


def _texts(name: str, values: Sequence[str]) -> list[str]:
    if isinstance(values, str) or not all(isinstance(one, str) for one in values):
        raise InvalidArgument(name, "a list of texts, as in the file", values if isinstance(values, str) else "others")
    return [as_written(one) for one in values]
