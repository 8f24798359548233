"""Files that are read, and files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
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
    "read_tensor",
    "read_text",
    "saved",
    "teacher_files",
    "whole",
]

# Options that name files, whatever the command: those that are read, and those that are written.
_READ = (
    *("config", "file", "sources", "teachers_folder", "inputs", "models", "accountants"),
    *("labels", "test_inputs", "test_labels"),
)
_WRITTEN = ("ledger", "out", "plot")


def existing(name: str, path: str) -> Path:
    """A file or folder that was given and must be there."""
    if not Path(path).exists():
        raise InvalidArgument(name, "a file or folder that exists", path, "Check the spelling.")
    return Path(path)


def teacher_files(name: str, path: str) -> list[Path]:
    """What lies in a folder of teachers, or in that of its run."""
    folder = existing(name, path)
    files, below = _teachers_in(folder), _teachers_in(folder / "teachers")
    if not files:
        cure = f"Did you mean {folder / 'teachers'}?" if below else "It holds none."
        raise InvalidArgument(name, "a folder with teacher-*.pt files", path, cure)
    return files


def given_files(name: str, paths: Sequence[str]) -> list[Path]:
    """Files that were given, or those in one folder of teachers."""
    files = [existing(name, path) for path in paths]
    return teacher_files(name, paths[0]) if len(files) == 1 and files[0].is_dir() else files


def _teachers_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("teacher-*.pt"))


def check_places(chosen: Any) -> None:
    """Before any work: what can be known of the files that will be written; none of them is one of the others."""
    taken = []
    for option in _READ:
        given = chosen.get(option)
        for one in given if isinstance(given, list) else [given]:
            if not (one is None or isinstance(one, int)):
                taken += [(option, file) for file in (Path(str(one)), *_teachers_in(Path(str(one))))]
    for option in _WRITTEN:
        path = chosen.get(option)
        if path is None:
            continue
        goal = Path(path)
        if goal.is_dir():
            raise InvalidArgument(option_name(option), "a file", path, "This is a folder.")
        if not goal.parent.is_dir() or not os.access(goal.parent, os.W_OK | os.X_OK):
            reason = "It may not be written to." if goal.parent.is_dir() else "There is no such folder."
            raise InvalidArgument(option_name(option), "a file in a folder that can be written to", path, reason)
        for other, file in taken:
            if os.path.realpath(goal) == os.path.realpath(file) or (
                goal.exists() and file.exists() and goal.samefile(file)
            ):
                cure = "One would be written over the other."
                raise InvalidArgument(option_name(option), f"another file than {option_name(other)}", path, cure)
        taken.append((option, goal))


def check_ending(name: str, path: str, *endings: str) -> None:
    """That a file has one of these endings."""
    if Path(path).suffix not in endings:
        raise InvalidArgument(name, f"a file that ends in {' or '.join(endings)}", path)


@contextlib.contextmanager
def whole(name: str, path: str) -> Iterator[Path]:
    """A file to write beside ``path``, which becomes it when all went well."""
    try:
        with write_whole(Path(path)) as beside:
            yield beside
    except OSError as error:
        raise InvalidArgument(name, "a file that can be written", path, error.strerror or "") from None


def read_text(name: str, path: str) -> str:
    """What a text file says."""
    try:
        return existing(name, path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(name, "a text file that can be read", path, str(error)) from None


def read_tensor(name: str, path: str) -> Any:
    """An array of a .npy, .npz or .pt file, as a tensor."""
    import numpy as np
    import torch

    file, expected = existing(name, path), "an array in a .npy, .npz or .pt file"
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
    except Exception as error:  # NumPy and Torch raise many kinds on a damaged file
        raise InvalidArgument(name, expected, path, one_line(error, 80)) from None
    raise InvalidArgument(name, expected, path)


@contextlib.contextmanager
def saved(name: str, path: str) -> Iterator[Callable[[Any], None]]:
    """Ready to write an array of labels before it is paid for."""
    import numpy as np
    import torch

    with whole(name, path) as beside:

        def save(tensor: Any) -> None:
            if beside.suffix == ".npy":
                np.save(beside, tensor.numpy())
            elif beside.suffix == ".csv":
                rows = "".join(f"{index},{label}\n" for index, label in enumerate(tensor.tolist()))
                beside.write_text(f"index,label\n{rows}", encoding="utf-8")
            else:
                torch.save(tensor, beside)

        yield save
