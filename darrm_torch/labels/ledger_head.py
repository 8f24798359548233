"""A ledger's head: how long the ledger is, kept in a second place, so that a restored backup is noticed."""

from __future__ import annotations

import json
import operator
import os
from pathlib import Path

from ..errors import LedgerError
from ..files import write_private
from ..limits import read_file
from .ledger_file import Mark, file_errors

__all__ = ["LedgerHead"]


class LedgerHead:
    """The number of a ledger's entries and their digest, in a file of its own.

    Args:
        path: of the head. A link is followed, so that the head stays where the link leads.
        ledger: the path of the ledger, for messages.
    """

    def __init__(self, path: str | os.PathLike[str], ledger: str) -> None:
        self.path, self._ledger = os.path.realpath(os.fsdecode(path)), ledger

    def read(self, ledger_id: str, *, required: bool) -> Mark | None:
        """The head as it was last written; ``None`` if there is none yet.

        Raises:
            LedgerError: it is missing though ``required``, damaged, or of another ledger.
        """
        try:
            if not os.path.lexists(self.path):
                raise FileNotFoundError(self.path)
            head = json.loads(read_file("head", self.path, most=_LARGEST))
            if operator.index(head.get("format", 1)) > _FORMAT:
                raise LedgerError(
                    f"{self.path} has format {head['format']}, and this version reads format {_FORMAT}: a newer "
                    "version of darrm-torch wrote it"
                )
            owner, mark = head["ledger"], Mark(int(head["entries"]), 0, str(head["digest"]))
        except FileNotFoundError:
            if required:
                raise LedgerError(
                    f"{self.path} is missing, and {self._ledger} was kept with a head. Restore it, or open the ledger "
                    "without a head"
                ) from None
            return None
        except LedgerError:
            raise
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise LedgerError(f"{self.path} is no head of a ledger: {error}") from None
        if owner != ledger_id:
            raise LedgerError(f"{self.path} is the head of another ledger than {self._ledger}")
        return mark

    def compare(self, head: Mark, last: Mark) -> None:
        """Check an entry of the ledger against the head, if the head is that of this entry.

        Raises:
            LedgerError: they differ, so one of the two files is an older copy.
        """
        if last.entries == head.entries and last.digest != head.digest:
            raise LedgerError(f"{self._ledger} and its head {self.path} disagree. {_RESTORED}")

    def check_length(self, head: Mark, last: Mark) -> None:
        """Check that the ledger is not shorter than it was when the head was written.

        Raises:
            LedgerError: it is shorter, so it is an older copy.
        """
        if head.entries > last.entries:
            raise LedgerError(
                f"{self._ledger} has {last.entries} entries and had {head.entries} when its head {self.path} was "
                f"written. {_RESTORED}"
            )

    def write(self, ledger_id: str, last: Mark) -> None:
        """Replace the head; it is on disk when this returns."""
        head = {"format": _FORMAT, "ledger": ledger_id, "entries": last.entries, "digest": last.digest}
        with file_errors(self.path):
            write_private(Path(self.path), json.dumps(head) + "\n")


_FORMAT = 1
_LARGEST = 2**12  # bytes
_RESTORED = (
    "One of them is an older copy. Nothing was given out. Restore the newest ledger, or labels would be drawn again"
)
