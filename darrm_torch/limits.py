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

__all__ = ["MOST_BYTES", "MOST_CELLS", "MOST_TEXT", "check_bytes", "check_file", "check_unpacked"]

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
    name: str, path: str | os.PathLike[str], *, expected: str = "a file that exists", most: float = float("inf")
) -> Path:
    """The path of a regular file of at most ``most`` bytes; never opens it.

    Raises:
        InvalidArgument: there is no such file, it is a folder, pipe, socket or device, or it is larger.
    """
    try:
        status = os.stat(path)
    except (OSError, ValueError) as error:  # a null character in the name is a ValueError
        cure = "Check the spelling." if isinstance(error, FileNotFoundError) else f"It cannot be read: {error}."
        raise InvalidArgument(name, expected, str(path), cure) from None
    if not stat.S_ISREG(status.st_mode):
        what = "a folder" if stat.S_ISDIR(status.st_mode) else "a pipe, a socket or a device"
        raise InvalidArgument(name, expected, str(path), f"This is {what}.")
    if status.st_size > most:
        raise InvalidArgument(
            name, f"{expected}, of at most {most:,.0f} bytes", str(path), f"It has {status.st_size:,}."
        )
    return Path(path)


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
