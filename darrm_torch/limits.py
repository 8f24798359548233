"""How large a question or a file may be: sizes are estimated before any work, and what is too large is refused.

Nothing is started that needs more than :data:`MOST_BYTES` of memory at once or that takes minutes without a word.
"""

from __future__ import annotations

import os
import stat
import zipfile
from pathlib import Path
from typing import Any

from .errors import InvalidArgument

__all__ = ["MOST_BYTES", "MOST_CELLS", "MOST_TEXT", "check_bytes", "check_file", "check_unpacked", "read_file"]

MOST_BYTES = 2**31
MOST_CELLS = 2**23  # of a grid of privacy losses: its transforms take seconds, and about 70 bytes a cell
MOST_TEXT = 2**26  # bytes of a file of text or JSON


def check_bytes(name: str, needed: float, got: Any, *, what: str, cure: str = "") -> None:
    """Refuse a value for which ``what`` would need more than :data:`MOST_BYTES` of memory.

    >>> check_bytes("classes", 8 * 10**14, 10**7, what="the pairs of counts")
    Traceback (most recent call last):
    ...
    darrm_torch.errors.InvalidArgument: classes must be so small that the pairs of counts fit in 2 GiB, got 10000000
    """
    if needed > MOST_BYTES:
        raise InvalidArgument(name, f"so small that {what} fit in {MOST_BYTES >> 30} GiB", got, cure)


def check_file(
    name: str,
    path: str | os.PathLike[str],
    *,
    expected: str = "a file that exists",
    most: float = float("inf"),
    may_be_empty: bool = False,
) -> Path:
    """The path of a regular file of at most ``most`` bytes; never opens it.

    Some files of /proc, such as /proc/kmsg, count as regular files without content, and reading them blocks. So a file
    to read must not be empty.

    Raises:
        InvalidArgument: there is no such file, it is a folder, pipe, socket or device, it is empty, or it is larger.
    """
    try:
        status = os.stat(path)
    except (OSError, ValueError) as error:  # a null character in the name is a ValueError
        cure = "Check the spelling." if isinstance(error, FileNotFoundError) else f"It cannot be read: {error}."
        raise InvalidArgument(name, expected, str(path), cure) from None
    _check_status(name, path, status, expected, most, may_be_empty)
    return Path(path)


def read_file(
    name: str, path: str | os.PathLike[str], *, expected: str = "a file that exists", most: float = float("inf")
) -> bytes:
    """The content of a file that :func:`check_file` accepts, also if another process exchanges it meanwhile.

    Raises:
        InvalidArgument: as :func:`check_file`.
        OSError: it cannot be read.
    """
    check_file(name, path, expected=expected, most=most)
    number = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with open(number, "rb") as stream:
        status = os.fstat(number)
        _check_status(name, path, status, expected, most, False)
        return stream.read(status.st_size)


def _check_status(
    name: str, path: str | os.PathLike[str], status: os.stat_result, expected: str, most: float, may_be_empty: bool
) -> None:
    if not stat.S_ISREG(status.st_mode):
        what = "a folder" if stat.S_ISDIR(status.st_mode) else "a pipe, a socket or a device"
        raise InvalidArgument(name, expected, str(path), f"This is {what}.")
    if status.st_size == 0 and not may_be_empty:
        raise InvalidArgument(name, expected, str(path), "This is an empty file.")
    if status.st_size > most:
        raise InvalidArgument(
            name, f"{expected}, of at most {most:,.0f} bytes", str(path), f"It has {status.st_size:,}."
        )


def check_unpacked(name: str, path: Path, *, expected: str) -> None:
    """Refuse an archive (``.npz``, or a file of Torch) that unpacks to far more than it is.

    Raises:
        InvalidArgument: it unpacks to more than :data:`MOST_BYTES` and to more than its own size.
    """
    if not zipfile.is_zipfile(path):
        return
    try:
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
    except (zipfile.BadZipFile, OSError, NotImplementedError):  # opening it reports what is wrong with it
        return
    if unpacked > max(MOST_BYTES, path.stat().st_size):
        cure = f"It unpacks to {unpacked:,} bytes. Save it without compression."
        raise InvalidArgument(name, expected, str(path), cure)
