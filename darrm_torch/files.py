"""Files that are written completely or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

__all__ = ["write_whole"]


@contextlib.contextmanager
def write_whole(path: Path, *, private: bool = False) -> Iterator[Path]:
    """A temporary file in the same folder, with the same suffix, that replaces ``path`` when the block ends.

    If the block raises, the temporary file is removed and ``path`` stays as it was. A process that is killed can leave
    a hidden temporary file behind, never a damaged ``path``. Permissions follow the umask, as for any new file;
    only the owner can read or write a ``private`` one.

    Raises:
        OSError: the folder cannot be written to.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=path.suffix)
    os.close(handle)
    try:
        yield Path(name)
        os.chmod(name, 0o600 if private else 0o666 & ~_umask())
        os.replace(name, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
