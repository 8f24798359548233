"""Files that a command reads, and files that it writes whole or not at all."""

from __future__ import annotations

import contextlib
import csv
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ..arguments import MISSING_VALUE, is_dense
from ..errors import InvalidArgument
from ..files import weights_in, write_whole
from ..limits import MOST_BYTES, MOST_TEXT, check_bytes, check_file, check_unpacked, read_file
from .parser import one_line, option_name

__all__ = [
    "ARRAYS",
    "check_ending",
    "check_places",
    "existing",
    "given_files",
    "options_in_file",
    "read_ids",
    "read_inputs",
    "read_tensor",
    "read_text",
    "table_columns",
    "teacher_files",
    "whole",
    "write_labels",
]

# Options of any command that name a file to read, and those that name a file to write.
_READ = (
    *("config", "file", "sources", "teachers_folder", "inputs", "ids", "models", "accountants"),
    *("initial", "labels", "test_inputs", "test_labels", "votes"),
)
_WRITTEN = ("ledger", "out", "plot")
_MOST_OPTIONS = 2**16  # bytes; YAML is slow
_MOST_ARRAYS = 1000  # in one file
_LONGEST_LINE = 2**24


def existing(name: str, path: str) -> Path:
    """The path of a file or folder, which must exist; pipes and devices are refused."""
    return Path(path) if os.path.isdir(path) else check_file(name, path, expected="a file or folder that exists")


def teacher_files(name: str, path: str) -> list[Path]:
    """The teachers' files in a folder, in order."""
    folder = existing(name, path)
    if files := weights_in(folder):
        return files
    cure = f"Did you mean {folder / 'teachers'}?" if weights_in(folder / "teachers") else "It holds none."
    raise InvalidArgument(name, "a folder with .pt files", path, cure)


def given_files(name: str, paths: Sequence[str]) -> list[Path]:
    """The files at ``paths``; if that is a single folder, the teachers' files in it."""
    files = [existing(name, path) for path in paths]
    return teacher_files(name, paths[0]) if len(files) == 1 and files[0].is_dir() else files


def check_places(options: Mapping[str, Any]) -> None:
    """Refuse, before any work, a file to write that cannot be written or that is another file of the command."""
    taken = []
    for option in _READ:
        given = options.get(option)
        for path in given if isinstance(given, list) else [given]:
            if isinstance(path, str) and "\0" in path:
                raise InvalidArgument(option_name(option), "a path", path, "It holds a null character.")
            if isinstance(path, str):
                taken += [(option, file) for file in (Path(path), *weights_in(Path(path)))]
    for option in _WRITTEN:
        path = options.get(option)
        if path is None:
            continue
        goal = Path(path)
        try:
            os.stat(goal)
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:  # too long, a loop of links, a null character
            reason = f"It cannot be one: {error}."
            raise InvalidArgument(option_name(option), "a file", path, one_line(reason, 160)) from None
        if os.path.isdir(goal):
            raise InvalidArgument(option_name(option), "a file", path, "This is a folder.")
        if not os.path.isdir(goal.parent) or not os.access(goal.parent, os.W_OK | os.X_OK):
            reason = "You may not write to this folder." if os.path.isdir(goal.parent) else "There is no such folder."
            raise InvalidArgument(option_name(option), "a file in a folder that can be written to", path, reason)
        for other, file in taken:
            if os.path.realpath(goal) == os.path.realpath(file) or (
                os.path.exists(goal) and os.path.exists(file) and os.path.samefile(goal, file)
            ):
                cure = "The command would overwrite one with the other."
                raise InvalidArgument(option_name(option), f"another file than {option_name(other)}", path, cure)
        taken.append((option, goal))


def check_ending(name: str, path: str, *endings: str) -> None:
    """Refuse a file that has none of these endings."""
    if Path(path).suffix not in endings:
        raise InvalidArgument(name, f"a file that ends in {' or '.join(endings)}", path)


@contextlib.contextmanager
def whole(name: str, path: str) -> Iterator[Path]:
    """A temporary file to write, which replaces ``path`` unless an error is raised."""
    try:
        with write_whole(Path(path)) as beside:
            yield beside
    except OSError as error:
        raise InvalidArgument(name, "a file that can be written", path, error.strerror or "") from None


def read_text(name: str, path: str, *, most: int = MOST_TEXT) -> str:
    """The text of a file of at most ``most`` bytes."""
    try:
        text = read_file(name, path, expected="a text file", most=most).decode("utf-8-sig")
        return text.replace("\r\n", "\n").replace("\r", "\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(name, "a text file that can be read", path, str(error)) from None


def options_in_file(name: str, path: str) -> list[str]:
    """The options of a YAML or JSON file, as words of a command line: ``teachers: 3`` is ``--teachers=3``."""
    import yaml

    class WithoutAliases(yaml.SafeLoader):  # type: ignore[misc]
        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):  # a page of them fills all memory
                raise ValueError("Write out what an alias (*) stands for.")
            return super().compose_node(parent, index)

    expected, words = "a YAML or JSON file that gives each option a value or a list of values", list[str]()
    try:
        options = yaml.load(read_text(name, path, most=_MOST_OPTIONS), WithoutAliases)
        if not isinstance(options, dict):
            raise InvalidArgument(name, expected, path)
        for key, value in options.items():
            option, values = "--" + str(key).replace("_", "-"), value if isinstance(value, list) else [value]
            if not all(item is None or isinstance(item, str | int | float) for item in values):
                raise InvalidArgument(name, expected, path, f"That of {key} is neither.")
            if isinstance(value, list):
                words += [option, *map(str, value)]
            elif value is True:
                words.append(option)
            elif value is not None and value is not False:
                words.append(f"{option}={value}")
    except InvalidArgument:
        raise
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # also dates that are none, and huge integers
        raise InvalidArgument(name, expected, path, one_line(error, 160)) from None
    return words


ARRAYS = ".npy, .npz, .pt, .csv or .parquet"


def read_inputs(name: str, path: str, tokenizer: str | None = None) -> Any:
    """Inputs of any structure: see :func:`read_tensor`; a .npz or .pt file may hold several arrays by name.

    With the folder of a tokenizer, the lines of a text file, as this tokenizer encodes them.
    """
    if tokenizer is None:
        return read_tensor(name, path, several=True)
    try:
        from transformers import AutoTokenizer
    except ImportError:
        cure = "Texts need transformers: pip install 'darrm-torch[adapters]'"
        raise InvalidArgument("--tokenizer", "given where transformers is installed", tokenizer, cure) from None
    texts = read_text(name, path, most=MOST_BYTES).splitlines()
    if not all(text.strip() for text in texts) or not texts:
        raise InvalidArgument(name, "a file with one text in each line", path, "It has an empty line.")
    expected = "a folder that save_pretrained of a tokenizer wrote"
    if not os.path.isdir(tokenizer):
        raise InvalidArgument("--tokenizer", expected, tokenizer)
    try:
        loaded = AutoTokenizer.from_pretrained(tokenizer, local_files_only=True)
        return dict(loaded(texts, padding=True, truncation=True, return_tensors="pt"))
    except Exception as error:  # transformers raises many kinds for folders and texts that do not fit
        raise InvalidArgument("--tokenizer", expected, tokenizer, one_line(error, 160)) from None


def read_ids(name: str, path: str, count: int) -> list[bytes]:
    """The identifiers of ``count`` inputs, one in each line of a text file."""
    ids = read_text(name, path, most=MOST_BYTES).splitlines()
    if len(ids) != count or not all(ids):
        got = f"{len(ids)} lines" if all(ids) else "one with an empty line"
        raise InvalidArgument(name, f"a file of {count} lines, an identifier of each input", got)
    return [one.encode() for one in ids]


def read_tensor(name: str, path: str, *, column: str | None = None, several: bool = False) -> Any:
    """The array (N, ...) in a .npy, .npz or .pt file, or the numbers in a table, as a dense tensor.

    A table is a .csv file, whose first line may hold the names of its columns, or a .parquet file. Its columns become
    ``(N, D)`` float32; or, if it has one that is called ``column``, or a single one, that column becomes ``(N,)``.

    With ``several``, a .npz file with several arrays becomes a dictionary of tensors, and a .pt file may hold a
    dictionary or a tuple of them.
    """
    import torch

    from ..teachers.structures import mapped, tensors_of

    expected = f"an array in a {ARRAYS} file"
    file, array = check_file(name, path, expected=expected), None
    check_unpacked(name, file, expected=expected)
    try:
        if file.suffix == ".npy":
            array = np.load(file, allow_pickle=False)
        if file.suffix == ".npz":
            with np.load(file, allow_pickle=False) as arrays:
                if several and 1 < len(arrays.files) <= _MOST_ARRAYS:
                    size = file.stat().st_size
                    return {one: _as_tensor(f"{name} {one}", arrays[one], size) for one in arrays.files}
                if len(arrays.files) == 1:
                    array = arrays[arrays.files[0]]
                expected = f"a .npz file with one array, not {len(arrays.files)}"
        if file.suffix == ".pt":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about files of other kinds, which are refused below
                tensor = torch.load(file, map_location="cpu", weights_only=True)
            if several or isinstance(tensor, torch.Tensor):
                parts = sum(1 for _ in islice(tensors_of(tensor), _MOST_ARRAYS + 1))  # refuses what is no structure
                if parts > _MOST_ARRAYS:  # lists that hold each other are many from few bytes
                    raise InvalidArgument(name, f"at most {_MOST_ARRAYS} arrays in a {ARRAYS} file", path)
                return mapped(tensor, lambda part: _checked_tensor(name, part, file.stat().st_size))
        if file.suffix in (".csv", ".parquet"):
            names, numbers = _read_csv(name, file) if file.suffix == ".csv" else _read_parquet(name, file)
            if column is None:
                array = numbers.astype(np.float32)
            elif column not in names and len(names) > 1:
                expected = f"a table with a column {column}, or with one column, not {len(names)}"
            else:
                chosen = numbers[:, names.index(column) if column in names else 0]
                whole_numbers = bool((chosen == np.floor(chosen)).all())
                array = chosen.astype(np.int64) if whole_numbers else chosen
    except InvalidArgument as error:
        if error.name.startswith("inputs"):
            raise InvalidArgument(name, expected, path) from None
        raise
    except ImportError:
        cure = "Parquet needs pyarrow: pip install 'darrm-torch[tables]'"
        raise InvalidArgument(name, expected, path, cure) from None
    except Exception as error:  # NumPy, Torch and pyarrow raise many kinds of errors for a damaged file
        raise InvalidArgument(name, expected, path, one_line(error, 80)) from None
    if array is None:
        raise InvalidArgument(name, expected, path)
    return _as_tensor(name, array, file.stat().st_size)


def _as_tensor(name: str, array: Any, size: int) -> Any:
    import torch

    if array.dtype.kind not in "biuf":
        raise InvalidArgument(name, "an array of real numbers or integers", str(array.dtype))
    kind = array.dtype.newbyteorder("=")
    if kind.kind == "u" and kind.itemsize > 1:  # Torch calculates with no unsigned integers but bytes
        if array.size and array.max() > np.iinfo(np.int64).max:
            raise InvalidArgument(name, "integers below 2**63", int(array.max()))
        kind = np.dtype(np.int32 if kind.itemsize == 2 else np.int64)
    return _checked_tensor(name, torch.from_numpy(array.astype(kind, copy=False)), size)


def _checked_tensor(name: str, tensor: Any, size: int) -> Any:
    """The tensor, if it is an ordinary one of (N, ...) numbers, no larger than the file of ``size`` bytes can hold."""
    if tensor.dim() and not tensor.numel():
        raise InvalidArgument(name, "an array with at least one number", f"shape {tuple(tensor.shape)}")
    if not tensor.dim() or not is_dense(tensor) or tensor.numel() * tensor.element_size() > max(size, MOST_BYTES):
        got = f"{tensor.dtype}, {tensor.layout}, of shape {tuple(tensor.shape)}"
        raise InvalidArgument(name, "a dense array (N, ...) of real numbers or integers", got)
    return tensor


def _read_csv(name: str, file: Path) -> tuple[list[str], Any]:
    """The names and the numbers of a .csv file's columns; the names are empty if its first line holds numbers."""
    check_file(name, file, expected="a .csv file (a .npy file may be larger)", most=MOST_BYTES)
    first, named = _first_line(file)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there are no numbers, which read_tensor says
            numbers = np.loadtxt(file, delimiter=",", skiprows=int(named), ndmin=2, quotechar='"', encoding="utf-8-sig")
    except ValueError as error:
        at_row = re.search(r"at row (\d+)", str(error))  # NumPy counts rows of numbers
        if (mistake := _first_mistake(file, first if named else [], int(at_row[1]) if at_row else 0)) is None:
            raise
        raise InvalidArgument(name, "a table of numbers, separated by commas", *mistake) from None
    return first if named else [""] * len(first), numbers


def _first_line(file: Path) -> tuple[list[str], bool]:
    """The first line of a .csv file, and whether it holds the names of the columns: not only numbers."""
    with file.open(encoding="utf-8-sig", newline="") as text:
        first = [one.strip() for one in next(csv.reader([text.readline(_LONGEST_LINE)]), [])]
    try:
        list(map(float, first))
        return first, False
    except ValueError:
        return first, True


def _first_mistake(file: Path, names: Sequence[str], row: int) -> tuple[str, str] | None:
    """What the first cell of a .csv file that is no number holds, in words, and what to do; rows before are right."""
    with file.open(encoding="utf-8-sig", newline="") as text:
        skipped = sum(1 for _ in islice(text, row + bool(names)))
        lines = csv.reader(text)
        for cells in lines:
            for place, cell in enumerate(cells):
                try:
                    float(cell)
                except ValueError:
                    column = repr(names[place]) if place < len(names) else place + 1
                    line = skipped + lines.line_num
                    where = f"in line {line}, column {column}"
                    if not cell.strip():
                        return f"nothing {where}", MISSING_VALUE
                    if ";" in cell or "\t" in cell:
                        return (
                            f"another separator in line {line}",
                            "Write the table with commas, and numbers with points.",
                        )
                    return f"text {where}", "Leave such a column out, or write its values as numbers."
    return None


def table_columns(path: str) -> list[str] | None:
    """The names of the columns of a table that can be read; None if they have none, or if it is no table."""
    file = Path(path)
    if file.suffix == ".parquet":
        from pyarrow import parquet

        return list(parquet.read_schema(file).names)
    first, named = _first_line(file) if file.suffix == ".csv" else ([], False)
    return first if named else None


def _read_parquet(name: str, file: Path) -> tuple[list[str], Any]:
    """The names and the numbers of a .parquet file's columns."""
    from pyarrow import parquet

    shape, schema = parquet.read_metadata(file), parquet.read_schema(file)
    check_bytes(name, 8.0 * shape.num_rows * shape.num_columns, f"{shape.num_rows} rows", what="its numbers")
    for field in schema:  # a column of text may repeat one long text in few bytes
        if not any(kind in str(field.type) for kind in ("int", "float", "double", "bool", "decimal")):
            raise InvalidArgument(name, "a table of numbers", f"{field.type} in column {field.name}")
    table = parquet.read_table(file)
    return table.column_names, np.column_stack([column.to_numpy().astype(np.float64) for column in table.columns])


def write_labels(file: Path, labels: Any, findings: Sequence[str] | None = None) -> None:
    """Write a tensor of labels as .npy, .pt or .csv, with a column for each finding if there are any."""
    import torch

    if file.suffix == ".npy":
        np.save(file, labels.numpy())
    elif file.suffix == ".csv":
        with file.open("w", encoding="utf-8", newline="") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow(["index", *(findings or ["label"])])
            writer.writerows([index, *row] for index, row in enumerate(labels.reshape(len(labels), -1).tolist()))
    else:
        torch.save(labels, file)
