"""Files of votes as tables of cells: lines of text, matrices, Parquet. What is damaged or ambiguous is refused."""

from __future__ import annotations

import csv
import gzip
import importlib.util
import io
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..errors import InvalidArgument
from ..limits import MOST_BYTES, check_file, check_unpacked

__all__ = ["Kind", "kind_of", "lines_of", "matrix_of", "parquet_batches", "parquet_shape", "parts_of"]

Kind = Literal["text", "matrix", "parquet"]

_ENDINGS = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".npy", ".npz", ".parquet")
_LONGEST_LINE = 2**24
_TEXTS = ("string", "large_string", "string_view")  # types of Arrow


def kind_of(path: Path) -> Kind:
    """What a file holds, by its name; a folder holds Parquet files."""
    if os.path.isdir(path):
        return "parquet"
    expected = f"a folder of .parquet files, or a file: {', '.join(_ENDINGS)}"
    check_file("path", path, expected=expected)
    check_unpacked("path", path, expected=expected)
    if not path.name.endswith(_ENDINGS):
        raise InvalidArgument("path", expected, str(path))
    if path.suffix == ".parquet":
        return "parquet"
    return "matrix" if path.suffix in (".npy", ".npz") else "text"


def parts_of(path: Path) -> list[Path]:
    """The file, or all files of a folder without those that are hidden or notes of Spark."""
    if not os.path.isdir(path):
        return [path]
    expected = "a folder of .parquet files only"
    parts = sorted(part for part in path.iterdir() if not part.name.startswith((".", "_")))
    for part in parts:
        if part.suffix != ".parquet":
            cure = "The votes in a file that is not read would be lost. Move it."
            raise InvalidArgument("path", expected, part.name, cure)
        check_file("path", part, expected=expected, may_be_empty=True)  # pyarrow says of which part
    if not parts:
        raise InvalidArgument("path", "a folder with .parquet files", str(path), "It holds none.")
    return parts


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """What goes wrong while a file is read, as one line about the file."""
    try:
        yield
    except (InvalidArgument, MemoryError):
        raise
    except UnicodeDecodeError as error:
        raise InvalidArgument("path", "text in UTF-8", str(path), f"{error.reason}.".capitalize()) from None
    except Exception as error:  # NumPy and zipfile raise many kinds for a damaged file
        if path.suffix in (".npy", ".npz"):
            cure = "It is damaged, or no file of NumPy, or it holds Python objects, which are not read."
            raise InvalidArgument("path", "an array of numbers or text", str(path), cure) from None
        cure = " ".join(str(error).split())
        cure = "A quote is never closed." if cure == "unexpected end of data" else cure
        raise InvalidArgument("path", "a table that can be read", str(path), cure) from None


# --- text -------------------------------------------------------------------------------------------------------------


def lines_of(path: Path) -> Iterator[list[str]]:
    """The cells of each line of text, all lines of one width. A record that is not exactly one line is refused."""
    opened: Any = gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb")  # noqa: SIM115
    delimiter = "\t" if path.name.endswith((".tsv", ".tsv.gz")) else ","
    with _readable(path), opened, io.TextIOWrapper(opened, encoding="utf-8-sig", newline="") as text:
        lines = iter(lambda: text.readline(_LONGEST_LINE), "")
        reader = csv.reader(map(_complete, lines), delimiter=delimiter, strict=True)
        width, empty = 0, 0
        for number, line in enumerate(reader, 1):
            if reader.line_num != number:
                got = f"a quoted one that goes on after line {number}"
                raise InvalidArgument("path", "a table whose cells end in their line", got)
            if not line:
                empty = number
                continue
            width = width or len(line)
            if empty:
                break
            if len(line) != width:
                got = f"{width} in the first line and {len(line)} in line {number}"
                raise InvalidArgument("path", "a table with as many cells in each line", got)
            yield line
        if empty and (line or width == 1):  # at the end of a table with several columns it means nothing
            raise InvalidArgument("path", "a table without empty lines", f"line {empty}")


def _complete(line: str) -> str:
    if len(line) == _LONGEST_LINE and not line.endswith("\n"):
        raise csv.Error(f"a line has over {_LONGEST_LINE:,} characters")
    return line


# --- NumPy ------------------------------------------------------------------------------------------------------------


def matrix_of(path: Path, name: str | None) -> Any:
    """The matrix in a .npy file, or the one of this name in a .npz file; nothing is unpickled."""
    with _readable(path):
        content = np.load(path, mmap_mode="r", allow_pickle=False)
        archive = isinstance(content, np.lib.npyio.NpzFile)
        with content if archive else nullcontext():
            if archive != (path.suffix == ".npz"):
                cure = f"Rename it: it holds {'an archive, .npz' if archive else 'one array, .npy'}."
                raise InvalidArgument("path", "a file whose ending fits what it holds", path.name, cure)
            if archive:
                content = _array_of(content, name)
            elif name is not None:
                raise InvalidArgument("array", "left out for a file that is no .npz", name)
    if content.ndim != 2 or content.dtype.kind not in "iufU":
        cures = {"b": "Save it as votes.astype(int).", "S": "Save it as votes.astype(str)."}
        one_hot = "Turn one-hot votes into class numbers first: votes.argmax(axis=-1)."
        cure = one_hot if content.ndim == 3 else cures.get(content.dtype.kind, "")
        got = f"{content.dtype} of shape {content.shape}"
        raise InvalidArgument("path", "a matrix of numbers or class names", got, cure)
    return content


def _array_of(archive: Any, name: str | None) -> Any:
    """An array of an archive that holds as much of it as the array's own header says."""
    names = archive.files
    name = names[0] if name is None and len(names) == 1 else name
    if name not in names:
        raise InvalidArgument("array", f"one of the arrays in the file: {', '.join(names)[:200] or 'none'}", name)
    entry = archive.zip.getinfo(f"{name}.npy")
    with archive.zip.open(entry) as stream:
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, kind = read(stream)
    if math.prod(shape) * kind.itemsize > entry.file_size:
        raise InvalidArgument("path", "an array as large as its header says", f"less than one of shape {shape}")
    return archive[name]


# --- Parquet ----------------------------------------------------------------------------------------------------------


def _parquet(path: Path) -> Any:
    if importlib.util.find_spec("pyarrow") is None:
        cure = "Parquet needs pyarrow: pip install 'darrm-torch[tables]'"
        raise InvalidArgument("path", "a file of text or NumPy", str(path), cure)
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
            if any(group.total_byte_size > max(MOST_BYTES, path.stat().st_size) for group in groups):
                cure = f"A row group unpacks to more than {MOST_BYTES:,} bytes. Write smaller ones."
                raise InvalidArgument("path", "a Parquet file", str(path), cure)
            texts = [field.name for field in file.schema_arrow if str(field.type) in _TEXTS]
        return pyarrow.parquet.ParquetFile(path, read_dictionary=texts)  # a text that is repeated stays one
    except (OSError, pyarrow.ArrowException) as error:
        raise InvalidArgument("path", "a Parquet file", str(path), " ".join(str(error).split())) from None


def parquet_shape(parts: list[Path]) -> tuple[list[str], int]:
    """The names of the columns, alike in all parts, and the number of rows."""
    names, rows = list[str](), 0
    for part in parts:
        with _parquet(part) as opened:
            for field in opened.schema_arrow:
                if field.type.num_fields or field.type in ("halffloat", "float16"):
                    raise InvalidArgument("path", "columns of numbers or text", f"{field.type} in {field.name}")
            if part is parts[0]:
                names = list(opened.schema_arrow.names)
            elif names != list(opened.schema_arrow.names):
                raise InvalidArgument("path", f"parts with the columns {names}", f"others in {part.name}")
            rows += opened.metadata.num_rows
    return names, rows


def parquet_batches(parts: list[Path], *, key: int | None, rows: int) -> Iterator[tuple[Any, list[bytes] | None]]:
    """The columns of up to ``rows`` rows at a time, and their keys."""
    for part in parts:
        with _readable(part), _parquet(part) as opened:
            for batch in opened.iter_batches(batch_size=rows):
                yield batch.columns, None if key is None else _keys(batch.column(key))


def _keys(column: Any) -> list[bytes]:
    """A column of keys, of text or integers; null and empty text are empty."""
    import pyarrow

    kind = column.type.value_type if pyarrow.types.is_dictionary(column.type) else column.type
    if not (pyarrow.types.is_integer(kind) or str(kind) in _TEXTS):
        raise InvalidArgument("keys", "a column of text or integers", str(kind), "Write the column as text.")
    encoded = column.dictionary_encode()  # each key is in memory once
    values: list[bytes] = encoded.dictionary.cast(pyarrow.string()).cast(pyarrow.binary()).fill_null(b"").to_pylist()
    values.append(b"")
    return [values[place] for place in encoded.indices.fill_null(len(values) - 1).to_pylist()]
