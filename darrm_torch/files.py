"""Files that are written completely or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from .errors import InvalidArgument

__all__ = ["keep_copy", "make_private_folder", "owner_unmasked", "weights_in", "write_private", "write_whole"]


@contextlib.contextmanager
def write_whole(path: Path, *, private: bool = False) -> Iterator[Path]:
    """A temporary file in the same folder, with the same suffix, that replaces ``path`` when the block ends.

    If the block raises, the temporary file is removed and ``path`` stays as it was. A process that is killed can leave
    a hidden temporary file behind, never a damaged ``path``; nor does a loss of power damage it. Permissions follow the
    umask, as for any new file; only the owner can read or write a ``private`` one.

    Raises:
        OSError: the folder cannot be written to, or ``path`` is read-only, or a link, folder, pipe or device.
    """
    _check_replaceable(path)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=path.suffix)
    os.close(handle)
    os.chmod(name, 0o600)  # a umask may have taken even the owner's right to write
    try:
        yield Path(name)
        os.chmod(name, 0o600 if private else 0o666 & ~_umask())
        with open(name, "rb") as written:
            _sync(written.fileno())
        _check_replaceable(path)
        os.replace(name, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)


def write_private(path: Path, content: str | bytes) -> None:
    """Write a file completely or not at all, as :func:`write_whole` does, for its owner only."""
    with write_whole(path, private=True) as temporary:
        temporary.write_bytes(content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content)


def keep_copy(path: Path, number: int) -> None:
    """Keep a file of an older format beside itself as ``{path}.format-{number}`` before it is rewritten."""
    kept = Path(f"{path}.format-{number}")
    if kept.exists():  # an interrupted migration left it
        return
    try:
        os.link(path, kept)
    except OSError:  # some file systems have no links
        shutil.copy2(path, kept)


def weights_in(folder: Path) -> list[Path]:
    """The teachers' files in a folder, by name: ``teacher-*.pt``, or any ``*.pt`` if there are none."""
    if not os.path.isdir(folder):
        return []
    # A hidden one is what a process that was killed left of a file.
    return sorted(folder.glob("teacher-*.pt")) or sorted(folder.glob("[!.]*.pt"))


def make_private_folder(path: Path, name: str = "folder") -> None:
    """Create a folder, and those above it, for their owner only, whatever the umask. One that exists is left as it is.

    Raises:
        InvalidArgument: it cannot be created; ``name`` is the argument that named it.
    """
    if os.path.isdir(path):
        return
    if path.parent != path:
        make_private_folder(path.parent, name)
    try:
        path.mkdir(mode=0o700)
        path.chmod(0o700)
    except (OSError, ValueError) as error:  # a null character in the name is a ValueError
        if not os.path.isdir(path):  # else another process was quicker
            expected = "a folder that exists or can be created"
            raise InvalidArgument(name, expected, str(path), f"{error}.") from None


@contextlib.contextmanager
def owner_unmasked() -> Iterator[None]:
    """Leave the owner all rights in new files, whatever the umask: Python's own helpers, such as sockets, need them."""
    mask = _umask()
    os.umask(mask & 0o077)
    try:
        yield
    finally:
        os.umask(mask)


def _check_replaceable(path: Path) -> None:
    """Only a new file, or one that the user may write to, is written."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        kind = "a link" if stat.S_ISLNK(mode) else "a folder" if stat.S_ISDIR(mode) else "a pipe, socket or device"
        raise FileExistsError(errno.EEXIST, f"This is {kind}, which is not replaced", str(path))
    if not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, "This file is read-only", str(path))


def _sync(number: int) -> None:
    with contextlib.suppress(OSError):  # some file systems cannot, and a Windows handle must be open for writing
        os.fsync(number)


def _umask() -> int:
    mask = os.umask(0o077)  # another thread may create a file meanwhile
    os.umask(mask)
    return mask
