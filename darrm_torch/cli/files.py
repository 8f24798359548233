"""Files that are read, and files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..errors import InvalidArgument
from .parser import one_line, option_name

__all__ = ["check_ending", "check_places", "existing", "read_tensor", "read_text", "saved", "whole"]


def existing(name: str, path: str) -> Path:
    """A file or folder that was given and must be there."""
    if not Path(path).exists():
        raise InvalidArgument(name, "a file or folder that exists", path, "Check the spelling.")
    return Path(path)


def check_places(chosen: Any) -> None:
    """Before any work: what can be known of the files that will be written."""
    for option in ("out", "plot", "ledger"):
        path = chosen.get(option)
        if path is None:
            continue
        goal = Path(path)
        if goal.is_dir():
            raise InvalidArgument(option_name(option), "a file", path, "This is a folder.")
        if not goal.parent.is_dir() or not os.access(goal.parent, os.W_OK | os.X_OK):
            reason = "It may not be written to." if goal.parent.is_dir() else "There is no such folder."
            raise InvalidArgument(option_name(option), "a file in a folder that can be written to", path, reason)


def check_ending(name: str, path: str, *endings: str) -> None:
    """That a file has one of these endings."""
    if Path(path).suffix not in endings:
        raise InvalidArgument(name, f"a file that ends in {' or '.join(endings)}", path)


@contextlib.contextmanager
def whole(name: str, path: str) -> Iterator[Path]:
    """A file to write beside ``path``, which becomes it when all went well."""
    goal = Path(path)
    try:
        handle, beside = tempfile.mkstemp(dir=goal.parent, prefix=f".{goal.stem}-", suffix=goal.suffix)
    except OSError as error:
        raise InvalidArgument(name, "a file in a folder that can be written to", path, error.strerror or "") from None
    os.close(handle)
    try:
        yield Path(beside)
        os.chmod(beside, 0o666 & ~_umask())
        os.replace(beside, goal)
    except OSError as error:
        raise InvalidArgument(name, "a file that can be written", path, error.strerror or "") from None
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(beside)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def read_text(name: str, path: str) -> str:
    """What a text file says."""
    try:
        return existing(name, path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(name, "a text file that can be read", path, str(error)) from None


def read_tensor(name: str, path: str) -> Any:
    """An array of a .npy or .pt file, as a tensor."""
    import numpy as np
    import torch

    file = existing(name, path)
    try:
        if file.suffix == ".npy":
            return torch.from_numpy(np.load(file, allow_pickle=False))
        if file.suffix == ".pt":
            tensor = torch.load(file, map_location="cpu", weights_only=True)
            if isinstance(tensor, torch.Tensor):
                return tensor
    except Exception as error:  # NumPy and Torch raise many kinds on a damaged file
        raise InvalidArgument(name, "an array in a .npy or .pt file", path, one_line(error)[:80]) from None
    raise InvalidArgument(name, "an array in a .npy or .pt file", path)


@contextlib.contextmanager
def saved(name: str, path: str) -> Iterator[Callable[[Any], None]]:
    """Ready to write an array before it is paid for."""
    import numpy as np
    import torch

    with whole(name, path) as beside:

        def save(tensor: Any) -> None:
            if beside.suffix == ".npy":
                np.save(beside, tensor.numpy())
            else:
                torch.save(tensor, beside)

        yield save
