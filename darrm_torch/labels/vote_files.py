"""Files of votes: tables of numbers or class names, either way round, read in parts."""

from __future__ import annotations

import csv
import gzip
import importlib.util
import io
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from ..arguments import checked
from ..arrays import IntArray
from ..errors import InvalidArgument, check_integer
from ..limits import check_file, check_unpacked
from .labeler import MISSING

__all__ = ["VoteBatch", "VoteFile"]

Layout = Literal["inputs-by-teachers", "teachers-by-inputs", "counts"]

_ENDINGS = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".npy", ".npz", ".parquet")
_LONGEST_LINE = 2**24
_EMPTY = "nan"  # how an empty or undefined cell is called


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
    matrix; text has columns, with or without a line of names; a Parquet file has columns with names.

    Iterating yields the inputs in parts, so that tables with columns may be larger than memory. The whole file is
    checked before the first part is yielded.

    Args:
        path: the file or folder: .csv, .tsv (also .gz), .npy, .npz, .parquet.
        teachers: K, the number of teachers.
        classes: how classes are written in the file, in the order of the labels; a number C: as 0..C-1.
        layout: see above; ``None``: the only one that fits.
        keys: the column that identifies the input, by name or position; ``None``: the number of the row does. A file
            whose rows have moved then needs another ledger.
        header: whether the first line of text holds names; ``None``: if it cannot be votes.
        missing: how votes that are missing are written, such as ``["-1", "?"]``; ``"nan"``: empty cells and NaN.
        array: the name of the array in an .npz file with several.
        part: how many inputs are yielded together.

    Raises:
        InvalidArgument: a file of another kind or shape, several layouts that fit, values that are no classes, or a
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
        part: int = 65_536,
    ) -> None:
        self.path = Path(path)
        self.teachers = check_integer("teachers", teachers, low=1, high=2**20)
        if isinstance(classes, int):
            names = [str(one) for one in range(check_integer("classes", classes, low=2, high=2**20))]
        else:
            names = _texts("classes", classes)
        if len(names) < 2 or len(set(names)) < len(names):
            raise InvalidArgument("classes", "at least two different names, or how many", classes)
        self.classes = tuple(names)
        absent = set(_texts("missing", missing))
        if absent & set(names):
            raise InvalidArgument("missing", "no class", sorted(absent & set(names)))
        self._codes = {name: number for number, name in enumerate(names)} | dict.fromkeys(absent, MISSING)
        self._layout, self._keys, self._array = layout, keys, array
        self._part = check_integer("part", part, low=1, high=2**24)
        self._kind = _kind(self.path)
        if self._kind == "text":
            self._header = self._has_header() if header is None else header
        elif header is not None:
            raise InvalidArgument("header", "left out for a file without lines of text", header)
        if self._kind == "matrix" and keys is not None:
            raise InvalidArgument("keys", "left out for a matrix, which has no column of keys", keys)
        self.names, self._columns, self._key_column = self._settle()
        self.rows = sum(len(batch.keys) for batch in self._batches())

    def __repr__(self) -> str:
        return f"VoteFile({self.path.name}, {self.teachers} teachers, {len(self.classes)} classes, {self.rows} inputs)"

    def __len__(self) -> int:
        return self.rows

    def __iter__(self) -> Iterator[VoteBatch]:
        return self._batches()

    # --- shape ----------------------------------------------------------------------------------------------------

    def _settle(self) -> tuple[tuple[str, ...], list[int], int | None]:
        """The names of the teachers, the columns of their votes or counts, and the column of keys."""
        names, shape = self._names_and_shape()
        key, columns = self._key_position(names, shape[1]), list(range(shape[1]))
        if key is not None:
            columns.remove(key)
        lines, width = shape[0], len(columns)
        fits: dict[str, bool] = {
            "inputs-by-teachers": width == self.teachers,
            "teachers-by-inputs": lines == self.teachers and key is None and self._kind != "parquet",
            "counts": width == len(self.classes),
        }
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
            raise InvalidArgument("path", expected, f"{lines} lines and {width} columns", cure)
        if self._layout == "inputs-by-teachers" and names is not None:
            return tuple(names[column] for column in columns), columns, key
        return tuple(f"teacher {number}" for number in range(self.teachers)), columns, key

    def _key_position(self, names: list[str] | None, width: int) -> int | None:
        if self._keys is None:
            if self._kind == "parquet" and self.path.is_dir():
                cure = "The order of the parts of a folder is no identity."
                raise InvalidArgument("keys", f"the column that identifies the inputs: {names}", None, cure)
            return None
        if names is not None and self._keys in names:
            return names.index(str(self._keys))
        position = int(self._keys) if str(self._keys).isdigit() else -1
        if not 0 <= position < width:
            raise InvalidArgument("keys", f"one of the columns {names or f'0..{width - 1}'}", self._keys)
        return position

    def _names_and_shape(self) -> tuple[list[str] | None, tuple[int, int]]:
        if self._kind == "matrix":
            shape = self._matrix().shape
            return None, (shape[0], shape[1])
        if self._kind == "parquet":
            parts = [_parquet(part) for part in self._parts()]
            names = [list(part.schema_arrow.names) for part in parts]
            different = [part for part, one in zip(self._parts(), names, strict=True) if one != names[0]]
            if different:
                raise InvalidArgument("path", f"parts with the columns {names[0]}", f"others in {different[0].name}")
            return names[0], (sum(part.metadata.num_rows for part in parts), len(names[0]))
        first, lines = None, 0
        for line in self._lines():
            first = first or line
            lines += 1
            if len(line) != len(first):
                raise InvalidArgument("path", f"{len(first)} cells in each line", f"{len(line)} in line {lines}")
        if first is None:
            raise InvalidArgument("path", "a table of votes", "an empty file")
        return (first, (lines - 1, len(first))) if self._header else (None, (lines, len(first)))

    def _has_header(self) -> bool:
        """Whether the first line holds names; refused where it may hold names or votes."""
        first = next(self._lines(), [])
        values = [_written(cell) for cell in first]
        if values and values == [str(number) for number in range(len(values))]:
            got = f"a first line {', '.join(values[:3])}, ..., which may be names or votes"
            raise InvalidArgument("header", "given", got, "Say whether the first line holds names.")
        skipped = {self._keys} if isinstance(self._keys, int) else set()
        known = [_is_number(one) or one in self._codes or number in skipped for number, one in enumerate(values)]
        return not all(known)

    # --- content --------------------------------------------------------------------------------------------------

    def _batches(self) -> Iterator[VoteBatch]:
        line = 0
        for cells, keys in self._tables():
            if self._layout == "counts":
                counts = _whole_numbers(cells, line)
                wrong = (counts < 0).any(axis=1) | (counts.sum(axis=1) != self.teachers)
                if wrong.any():
                    row = line + int(np.argmax(wrong))
                    raise InvalidArgument("path", f"counts that add up to {self.teachers} teachers", f"row {row}")
                votes = None
            else:
                counts, votes = None, self._coded(cells, line).T
            names = [f"row {number}".encode() for number in range(line, line + len(cells))] if keys is None else keys
            line += len(cells)
            yield VoteBatch(names, votes, counts)

    def _coded(self, cells: Any, line: int) -> IntArray:
        """The classes of cells ``(B, K)``, by their number; -1 where a vote is missing."""
        values, places = np.unique(cells, return_inverse=True)
        codes = [self._codes.get(_written(value)) for value in values.tolist()]
        if None in codes:
            written = _written(values[codes.index(None)])
            row = line + int(np.argmax((places.reshape(cells.shape) == codes.index(None)).any(axis=1)))
            shown = list(self.classes) if len(self.classes) <= 10 else f"{self.classes[0]} to {self.classes[-1]}"
            cure = f'If it stands for a vote that is missing, pass missing=["{written}"].'
            raise InvalidArgument("path", f"votes that are one of {shown}", f"{written!r} in row {row}", cure)
        return np.array(codes, dtype=np.int64)[places].reshape(cells.shape)

    def _tables(self) -> Iterator[tuple[Any, list[bytes] | None]]:
        """Cells ``(B, columns)`` and keys, part by part, each part with one line for each input."""
        if self._kind == "matrix" or self._layout == "teachers-by-inputs":
            whole = self._matrix() if self._kind == "matrix" else np.array(list(self._body()))
            table = whole.T if self._layout == "teachers-by-inputs" else whole
            for start in range(0, len(table), self._part):
                yield table[start : start + self._part], None
        elif self._kind == "parquet":
            for file in self._parts():
                names = list(_parquet(file).schema_arrow.names)
                for batch in _parquet(file).iter_batches(batch_size=self._part):
                    keys = None if self._key_column is None else batch.column(self._key_column).to_pylist()
                    cells = [_plain(batch.column(column), names[column]) for column in self._columns]
                    yield np.stack(cells, axis=1), None if keys is None else [str(key).encode() for key in keys]
        else:
            lines: list[list[str]] = []
            for line in self._body():
                lines.append(line)
                if len(lines) == self._part:
                    yield self._cells(lines)
                    lines = []
            if lines:
                yield self._cells(lines)

    def _cells(self, lines: list[list[str]]) -> tuple[Any, list[bytes] | None]:
        key = self._key_column
        cells = np.array([[line[column] for column in self._columns] for line in lines])
        return cells, None if key is None else [line[key].encode() for line in lines]

    def _body(self) -> Iterator[list[str]]:
        lines = self._lines()
        if self._header:
            next(lines, None)
        return lines

    def _lines(self) -> Iterator[list[str]]:
        opened: Any = gzip.open(self.path, "rb") if self.path.suffix == ".gz" else open(self.path, "rb")  # noqa: SIM115
        delimiter = "\t" if ".tsv" in self.path.suffixes else ","
        try:
            with opened, io.TextIOWrapper(opened, encoding="utf-8-sig", newline="") as text:
                lines = iter(lambda: text.readline(_LONGEST_LINE), "")
                yield from (line for line in csv.reader(map(_complete, lines), delimiter=delimiter) if line)
        except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
            raise InvalidArgument("path", "a table that can be read", str(self.path), str(error)) from None

    def _matrix(self) -> Any:
        try:
            content = np.load(self.path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise InvalidArgument("path", "an array of numbers or text", str(self.path), str(error)) from None
        if self.path.suffix == ".npz":
            names = content.files
            name = names[0] if self._array is None and len(names) == 1 else self._array
            if name not in names:
                raise InvalidArgument("array", f"one of the arrays in the file: {names}", self._array)
            content = content[name]
        elif self._array is not None:
            raise InvalidArgument("array", "left out for a file with one array", self._array)
        if content.ndim != 2 or content.dtype.kind not in "iufU":
            cure = "Turn one-hot votes into class numbers first: votes.argmax(axis=-1)." if content.ndim == 3 else ""
            got = f"{content.dtype} of shape {content.shape}"
            raise InvalidArgument("path", "a matrix of numbers or class names", got, cure)
        return content

    def _parts(self) -> list[Path]:
        if not self.path.is_dir():
            return [self.path]
        parts = sorted(part for part in self.path.glob("*.parquet") if part.is_file())
        if not parts:
            raise InvalidArgument("path", "a folder with .parquet files", str(self.path), "It holds none.")
        return parts


def _kind(path: Path) -> Literal["text", "matrix", "parquet"]:
    if path.is_dir():
        return "parquet"
    expected = f"a folder of .parquet files, or a file: {', '.join(_ENDINGS)}"
    check_file("path", path, expected=expected)
    check_unpacked("path", path, expected=expected)
    if not path.name.endswith(_ENDINGS):
        raise InvalidArgument("path", expected, str(path))
    if path.suffix == ".parquet":
        return "parquet"
    return "matrix" if path.suffix in (".npy", ".npz") else "text"


def _complete(line: str) -> str:
    if len(line) == _LONGEST_LINE and not line.endswith("\n"):
        raise csv.Error(f"a line has over {_LONGEST_LINE:,} characters")
    return line


def _parquet(path: Path) -> Any:
    if importlib.util.find_spec("pyarrow") is None:
        cure = "Parquet needs pyarrow: pip install 'darrm-torch[tables]'"
        raise InvalidArgument("path", "a file of text or NumPy", str(path), cure)
    import pyarrow
    import pyarrow.parquet

    try:
        return pyarrow.parquet.ParquetFile(path)
    except (OSError, pyarrow.ArrowException) as error:
        raise InvalidArgument("path", "a Parquet file", str(path), str(error)) from None


def _plain(column: Any, name: str) -> Any:
    """A column as a NumPy array of numbers or text."""
    values = column.to_numpy(zero_copy_only=False)
    if values.dtype.kind == "O":
        values = np.array([_EMPTY if value is None else str(value) for value in values])
    if values.dtype.kind not in "iufU":
        raise InvalidArgument("path", "columns of numbers or class names", f"{values.dtype} in {name}")
    return values


def _whole_numbers(cells: Any, line: int) -> IntArray:
    try:
        numbers = np.asarray(cells).astype(np.float64)
    except ValueError:
        numbers = np.full(cells.shape, np.nan)
    wrong = ~(np.isfinite(numbers) & (numbers == np.round(numbers))).all(axis=1)
    if wrong.any():
        row = line + int(np.argmax(wrong))
        raise InvalidArgument("path", "counts that are whole numbers", f"others in row {row}")
    return numbers.astype(np.int64)


def _texts(name: str, values: Sequence[str]) -> list[str]:
    if isinstance(values, str) or not all(isinstance(one, str) for one in values):
        raise InvalidArgument(name, "a list of texts, as in the file", values if isinstance(values, str) else "others")
    return [_written(one) for one in values]


def _written(value: Any) -> str:
    """A vote as it is compared: whole numbers without a point, anything empty or undefined as "nan"."""
    text = str(value).strip()
    if _is_number(text):
        number = float(text)
        return str(int(number)) if number == int(number) else text
    return _EMPTY if text.lower() in ("", "nan", "na", "none", "null", "<na>") else text


def _is_number(text: str) -> bool:
    try:
        return np.isfinite(float(text)) and "_" not in text
    except ValueError:
        return False
