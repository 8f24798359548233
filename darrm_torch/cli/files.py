"""Files that a command reads, and files that it writes whole or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import InvalidArgument
from ..files import write_whole
from .parser import one_line, option_name

__all__ = [
    "check_ending",
    "check_places",
    "existing",
    "given_files",
    "options_in_file",
    "read_tensor",
    "read_text",
    "teacher_files",
    "whole",
    "write_labels",
]

# Options of any command that name a file to read, and those that name a file to write.
_READ = (
    *("config", "file", "sources", "teachers_folder", "inputs", "models", "accountants"),
    *("labels", "test_inputs", "test_labels", "votes"),
)
_WRITTEN = ("ledger", "out", "plot")


def existing(name: str, path: str) -> Path:
    """The path of a file or folder, which must exist."""
    if not Path(path).exists():
        raise InvalidArgument(name, "a file or folder that exists", path, "Check the spelling.")
    return Path(path)


def teacher_files(name: str, path: str) -> list[Path]:
    """The teachers' files in a folder, in order."""
    folder = existing(name, path)
    files, below = _teachers_in(folder), _teachers_in(folder / "teachers")
    if not files:
        cure = f"Did you mean {folder / 'teachers'}?" if below else "It holds none."
        raise InvalidArgument(name, "a folder with teacher-*.pt files", path, cure)
    return files


def given_files(name: str, paths: Sequence[str]) -> list[Path]:
    """The files at ``paths``; if that is a single folder, the teachers' files in it."""
    files = [existing(name, path) for path in paths]
    return teacher_files(name, paths[0]) if len(files) == 1 and files[0].is_dir() else files


def _teachers_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("teacher-*.pt"))


def check_places(options: Mapping[str, Any]) -> None:
    """Refuse, before any work, a file to write that cannot be written or that is another file of the command."""
    taken = []
    for option in _READ:
        given = options.get(option)
        for path in given if isinstance(given, list) else [given]:
            if isinstance(path, str):
                taken += [(option, file) for file in (Path(path), *_teachers_in(Path(path)))]
    for option in _WRITTEN:
        path = options.get(option)
        if path is None:
            continue
        goal = Path(path)
        if goal.is_dir():
            raise InvalidArgument(option_name(option), "a file", path, "This is a folder.")
        if not goal.parent.is_dir() or not os.access(goal.parent, os.W_OK | os.X_OK):
            reason = "You may not write to this folder." if goal.parent.is_dir() else "There is no such folder."
            raise InvalidArgument(option_name(option), "a file in a folder that can be written to", path, reason)
        for other, file in taken:
            if os.path.realpath(goal) == os.path.realpath(file) or (
                goal.exists() and file.exists() and goal.samefile(file)
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


def read_text(name: str, path: str) -> str:
    """The text of a file."""
    if not existing(name, path).is_file():
        raise InvalidArgument(name, "a text file", path, "This is a folder or a device.")
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(name, "a text file that can be read", path, str(error)) from None


def options_in_file(name: str, path: str) -> list[str]:
    """The options of a YAML or JSON file, as words of a command line: ``teachers: 3`` is ``--teachers=3``."""
    import yaml

    expected, words = "a YAML or JSON file that gives each option a value or a list of values", list[str]()
    try:
        options = yaml.safe_load(read_text(name, path))
    except yaml.YAMLError as error:
        raise InvalidArgument(name, expected, path, one_line(error, 160)) from None
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
    return words


def read_tensor(name: str, path: str) -> Any:
    """The array in a .npy, .npz or .pt file, as a tensor."""
    import numpy as np
    import torch

    file, expected = existing(name, path), "an array in a .npy, .npz or .pt file"
    if not file.is_file():
        raise InvalidArgument(name, expected, path, "This is a folder or a device.")
    try:
        if file.suffix == ".npy":
            return torch.from_numpy(np.load(file, allow_pickle=False))
        if file.suffix == ".npz":
            with np.load(file, allow_pickle=False) as arrays:
                if len(arrays.files) == 1:
                    return torch.from_numpy(arrays[arrays.files[0]])
                expected = f"a .npz file with one array, not {len(arrays.files)}"
        if file.suffix == ".pt":
            tensor = torch.load(file, map_location="cpu", weights_only=True)
            if isinstance(tensor, torch.Tensor):
                return tensor
    except Exception as error:  # NumPy and Torch raise many kinds of errors for a damaged file
        raise InvalidArgument(name, expected, path, one_line(error, 80)) from None
    raise InvalidArgument(name, expected, path)


def write_labels(file: Path, labels: Any) -> None:
    """Write a tensor of labels as .npy, .pt or .csv."""
    import numpy as np
    import torch

    if file.suffix == ".npy":
        np.save(file, labels.numpy())
    elif file.suffix == ".csv":
        rows = "".join(f"{index},{label}\n" for index, label in enumerate(labels.tolist()))
        file.write_text(f"index,label\n{rows}", encoding="utf-8")
    else:
        torch.save(labels, file)
