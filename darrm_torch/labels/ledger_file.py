"""A ledger's entries: a file that only grows, whose entries are chained by digests; or a list in memory.

The file is text. Its first line names the format and the ledger. Two marks follow; each says how many entries the file
has, where they end and the digest of all of them. Then comes one line for each entry: JSON and the digest of everything
up to it. A commit appends the entry, waits until it is on disk, and then overwrites the older of the two marks. So:

* an entry that is damaged, missing or changed contradicts its digest or a mark, and the file is refused;
* bytes after the last entry are what an interrupted commit left. A whole entry among them is stored and paid for;
  anything else was never committed and is cut off at the next commit;
* one damaged mark does no harm, because the other one and the entries after it are valid;
* there is no second file. Processes that reach the file by different paths lock the same file, and a copy of it is
  complete or refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import secrets
import stat
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from ..errors import LedgerError

if sys.platform == "win32":
    import msvcrt
else:
    with contextlib.suppress(ImportError):
        import fcntl

__all__ = ["Entry", "EntryFile", "EntryList", "Mark", "file_errors", "is_ledger", "ledger_format", "sync_folder"]

FORMAT = 2
_MAGIC = b"darrm-torch ledger, format "
_ID_SIZE = 32
_MARK_SIZE = 20 + 1 + 20 + 1 + 64 + 1 + 16 + 1  # count, end, digest, check
_FIRST_LINE = len(_MAGIC) + 4 + 1 + _ID_SIZE + 1
_START = _FIRST_LINE + 2 * _MARK_SIZE  # of the entries
_SQLITE, _SQLITE_ID = b"SQLite format 3\0", (0x44615252).to_bytes(4, "big")  # format 1

Entry = dict[str, Any]


class Mark(NamedTuple):
    """How many entries there are, where they end, and the digest of all of them."""

    entries: int
    end: int
    digest: str


def is_ledger(path: str | os.PathLike[str]) -> bool:
    """Whether a file is a ledger of any format. Looks at its first bytes only and changes nothing."""
    return ledger_format(path) is not None


def ledger_format(path: str | os.PathLike[str]) -> int | None:
    """The format of a ledger; ``None`` for any other file."""
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode) or not status.st_size:  # reading a file of /proc without a size may block
            return None
        with open(path, "rb") as stream:
            first = stream.read(_FIRST_LINE)
            if first.startswith(_SQLITE):
                stream.seek(68)
                return 1 if stream.read(4) == _SQLITE_ID else None
    except OSError:
        return None
    number = first[len(_MAGIC) : len(_MAGIC) + 4]
    return int(number) if first.startswith(_MAGIC) and number.isdigit() else None


class EntryList:
    """Entries in memory; the same interface as :class:`EntryFile`."""

    def __init__(self) -> None:
        self.id = ""
        self._entries: list[Entry] = []
        self._read = 0

    def news(self) -> Iterator[tuple[Mark, Entry]]:
        """The entries that were not read yet."""
        for entry in self._entries[self._read :]:
            yield Mark(self._read + 1, 0, ""), entry
            self._read += 1

    def entries(self) -> Iterator[Entry]:
        """All entries, the oldest first."""
        return iter(self._entries)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else can commit meanwhile."""
        yield

    def reserve(self, size: int) -> None:
        """Make sure that there is space for an entry of so many bytes."""

    def commit(self, entry: Entry) -> None:
        """Store an entry."""
        self._entries.append(entry)

    def close(self) -> None:
        """Nothing to close."""


class EntryFile:
    """Entries in a file, shared by any number of processes.

    Args:
        path: absolute; created if it is missing, for its owner only.
        timeout: seconds to wait for another process that is writing.

    Raises:
        LedgerError: the file is no ledger, damaged, of a newer format, or has more than one name; or it cannot be
            created or read.
    """

    def __init__(self, path: str, timeout: float, *, create: bool = True) -> None:
        self.path, self._timeout = path, timeout
        self.id = ""
        self._at = Mark(0, _START, "")  # the last entry that was read
        self._marked = self._at  # the latest mark that was read, and which of the two places holds it
        self._place = 0
        self._stream: io.FileIO | None = None
        self._locked: io.FileIO | None = None  # the stream that holds the lock
        with file_errors(path):
            if create:
                self._create()
            self._open()

    # --- reading --------------------------------------------------------------------------------------------------

    def news(self) -> Iterator[tuple[Mark, Entry]]:
        """The entries that were not read yet, each with the mark after it.

        Raises:
            LedgerError: an entry that was committed is damaged or missing, or an older copy took the file's place.
        """
        stream = self._open()
        last, size = self._last_mark(), os.fstat(stream.fileno()).st_size
        known = {one.entries: one for one in (self._marked, self._at)}
        if last.entries < self._marked.entries or known.get(last.entries, last) != last or size < self._at.end:
            raise LedgerError(
                f"{self.path} has {last.entries} entries and had {self._at.entries}: an older copy took its place. "
                "Nothing was given out. Restore the newest copy, or the labels since then would be drawn again"
            )
        self._marked = last
        if last == self._at and size == self._at.end:
            return
        stream.seek(self._at.end)
        lines = io.BufferedReader(io.FileIO(stream.fileno(), closefd=False))
        while (line := lines.readline()).endswith(b"\n"):
            content, _, digest = line[:-1].rpartition(b" ")
            mark = Mark(self._at.entries + 1, self._at.end + len(line), _chained(self._at.digest, content))
            if digest != mark.digest.encode() or (mark.entries == last.entries and mark != last):
                break
            yield mark, json.loads(content)
            self._at = mark
        if self._at.entries < last.entries:
            raise self._damaged(f"entry {self._at.entries + 1} of {last.entries} is not the one that was committed")
        if self._at.entries > last.entries:  # its process ended before it knew that the entry is on disk
            _sync(stream)

    def entries(self) -> Iterator[Entry]:
        """All entries that were read so far, the oldest first, one at a time from the file."""
        with open(self.path, "rb") as stream:
            stream.seek(_START)
            for _ in range(self._at.entries):
                yield json.loads(stream.readline().rpartition(b" ")[0])

    def _last_mark(self) -> Mark:
        stream = self._open()
        stream.seek(0)
        text = stream.read(_START)
        if text[:_FIRST_LINE] != self._first_line():
            raise self._damaged("its first line was changed")
        halves = (text[_FIRST_LINE:-_MARK_SIZE], text[-_MARK_SIZE:])
        marks = [(mark, place) for place, half in enumerate(halves) if (mark := self._valid_mark(half)) is not None]
        if not marks:
            raise self._damaged("neither of its two marks is valid")
        last, self._place = max(marks)
        return last

    def _first_line(self) -> bytes:
        return _MAGIC + f"{FORMAT:04d} {self.id}\n".encode()

    def _valid_mark(self, text: bytes) -> Mark | None:
        if text != self._sealed(text[:106]):
            return None
        return Mark(int(text[:20]), int(text[21:41]), text[42:106].decode())

    def _sealed(self, text: bytes) -> bytes:
        return text + b" " + hashlib.sha256(self.id.encode() + text).hexdigest()[:16].encode() + b"\n"

    def _damaged(self, reason: str) -> LedgerError:
        return LedgerError(f"{self.path} is damaged: {reason}. Nothing was given out. Restore the newest copy")

    # --- writing --------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else can commit meanwhile, whatever path they use.

        Raises:
            LedgerError: another process has it locked for too long, or the file is read-only, moved, replaced or has
                more than one name.
        """
        with file_errors(self.path):
            stream = self._open()
        if not stream.writable():
            raise LedgerError(f"{self.path} is read-only. Nothing was given out")
        deadline = time.monotonic() + self._timeout
        try:
            while not self._try_lock(stream):
                if time.monotonic() > deadline:
                    raise LedgerError(f"{self.path} is locked: another process is answering. Nothing was given out")
                time.sleep(0.002)
            self._check_file(stream)
            self._locked = stream
            yield
        finally:
            self._locked = None
            _unlock(stream)

    def _try_lock(self, stream: io.FileIO) -> bool:
        """Whether the lock was free; this process then holds it."""
        with file_errors(self.path):
            return _try_lock(stream)

    def reserve(self, size: int) -> None:
        """Make sure that there is space for an entry of so many bytes. Only when locked and without more news."""
        with file_errors(self.path):
            _write(self._writable(), self._at.end, b" " * size)

    def commit(self, entry: Entry, *, durable: bool = True) -> None:
        """Store an entry; it is on disk when this returns. Only when locked and without more news.

        Raises:
            LedgerError: the file was replaced or closed, or the process was forked, since it was locked.
        """
        stream, content = self._writable(), json.dumps(entry).encode()
        digest = _chained(self._at.digest, content)
        try:
            end = _write(stream, self._at.end, content + b" " + digest.encode() + b"\n")
            stream.truncate(end)
            if durable:
                _sync(stream)
        except OSError:
            with contextlib.suppress(OSError):
                stream.truncate(self._at.end)  # nobody may rely on an entry that may never reach the disk
            raise
        mark = Mark(self._at.entries + 1, end, digest)
        _write(stream, _FIRST_LINE + (1 - self._place) * _MARK_SIZE, self._sealed(_mark_text(mark)))

    def _writable(self) -> io.FileIO:
        stream = self._stream
        if stream is None or self._locked is not stream:
            raise LedgerError(
                f"{self.path} was closed, or its process was forked, while it was answering. Nothing was given out"
            )
        self._check_file(stream)
        return stream

    def sync(self) -> None:
        """Wait until everything is on disk."""
        _sync(self._open())

    # --- opening --------------------------------------------------------------------------------------------------

    def _open(self) -> io.FileIO:
        if self._stream is not None:
            return self._stream
        number = ledger_format(self.path)
        if number is None:
            raise self._no_ledger()
        if number != FORMAT:
            reason = "a newer version of darrm-torch wrote it" if number > FORMAT else "there is no such format"
            raise LedgerError(f"{self.path} has format {number}, and this version reads format {FORMAT}: {reason}")
        try:
            stream = io.FileIO(self.path, "r+")
        except OSError:  # read-only: it can still be shown
            stream = io.FileIO(self.path, "r")
        try:
            self._check_file(stream)
            self.id = stream.read(_FIRST_LINE)[-_ID_SIZE - 1 : -1].decode("ascii", "replace")
            self._stream = stream
            if not self._at.entries:
                self._at = self._marked = Mark(0, _START, _chained("", self.id.encode()))
            self._last_mark()
        except BaseException:
            self._stream = None
            stream.close()
            raise
        return stream

    def _no_ledger(self) -> LedgerError:
        if not os.path.exists(self.path):
            return LedgerError(f"{self.path} is missing")
        if os.path.isfile(self.path):
            first = b""
            if os.path.getsize(self.path):
                with open(self.path, "rb") as stream:  # an OSError says more
                    first = stream.read(len(_MAGIC))
            if _MAGIC.startswith(first):
                return LedgerError(
                    f"{self.path} is no ledger: it is empty or ends in its first line. Restore the newest copy; if "
                    "the ledger was never used (its process was killed while it created it), delete the file"
                )
        return LedgerError(f"{self.path} is no ledger")

    def _create(self) -> None:
        """Write an empty ledger if there is no file."""
        try:
            number = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)
        except FileExistsError:
            deadline = time.monotonic() + min(self._timeout, 3.0)
            while self._may_be_unfinished() and time.monotonic() < deadline:
                time.sleep(0.002)  # another process is creating it
            return
        with io.FileIO(number, "r+") as stream:
            os.chmod(number if os.chmod in os.supports_fd else self.path, 0o600)  # whatever the umask
            self.id = secrets.token_hex(_ID_SIZE // 2)
            mark = self._sealed(_mark_text(Mark(0, _START, _chained("", self.id.encode()))))
            _write(stream, 0, self._first_line() + 2 * mark)
            _sync(stream)
        sync_folder(self.path)

    def _may_be_unfinished(self) -> bool:
        """Whether the file is the beginning of a new ledger."""
        if not os.path.isfile(self.path) or not os.path.getsize(self.path):
            return os.path.isfile(self.path)
        with open(self.path, "rb") as stream:
            content = stream.read(_START)
        return len(content) < _START and content[: len(_MAGIC)] == _MAGIC[: len(content)]

    def _check_file(self, stream: io.FileIO) -> None:
        """The open file is the one at the path, a plain file with one name."""
        mine = os.fstat(stream.fileno())
        try:
            there = os.stat(self.path)
        except OSError:
            there = None
        if there is None or (there.st_dev, there.st_ino) != (mine.st_dev, mine.st_ino):
            raise LedgerError(f"{self.path} was moved or replaced while it was open. Nothing was given out")
        if mine.st_nlink > 1:
            raise LedgerError(
                f"{self.path} has {mine.st_nlink} names (hard links). Nothing was given out. Keep one: a copy that "
                "is restored under one of them would go unnoticed under the others"
            )

    def close(self) -> None:
        """Close the file; it is opened again when it is needed. A forked child so drops what is its parent's."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def __del__(self) -> None:
        if vars(self).get("_stream") is not None:
            self.close()


@contextlib.contextmanager
def file_errors(path: str) -> Iterator[None]:
    """Errors of the system, as one clear line about the file."""
    try:
        yield
    except OSError as error:
        raise LedgerError(f"{path} cannot be used: {error.strerror or error}. Nothing was given out") from error


def _chained(before: str, content: bytes) -> str:
    return hashlib.sha256(before.encode() + content).hexdigest()


def _mark_text(mark: Mark) -> bytes:
    return f"{mark.entries:020d} {mark.end:020d} {mark.digest}".encode()


def _write(stream: io.FileIO, start: int, content: bytes) -> int:
    """Write at a place, completely; returns where that ends."""
    stream.seek(start)
    rest = memoryview(content)
    while rest:
        rest = rest[stream.write(rest) :]
    return start + len(content)


def _sync(stream: io.FileIO) -> None:
    getattr(os, "fdatasync", os.fsync)(stream.fileno())


def sync_folder(path: str) -> None:
    """Make the name of a new file durable, where folders can be synchronised."""
    with contextlib.suppress(OSError):
        number = os.open(os.path.dirname(path), os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


# --- locks of platforms -----------------------------------------------------------------------------------------------


def _try_lock(stream: io.FileIO) -> bool:
    try:
        if sys.platform == "win32":
            stream.seek(2**40)
            msvcrt.locking(stream.fileno(), msvcrt.LK_NBLCK, 1)
        elif "fcntl" in globals():
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        else:
            raise LedgerError("a ledger file needs file locks, which this platform lacks. Use a ledger in memory")
    except (BlockingIOError, PermissionError):
        return False
    return True


def _unlock(stream: io.FileIO) -> None:
    with contextlib.suppress(OSError, NameError, ValueError):
        if sys.platform == "win32":
            stream.seek(2**40)
            msvcrt.locking(stream.fileno(), msvcrt.LK_UNLCK, 1)
        else:
            fcntl.flock(stream, fcntl.LOCK_UN)
