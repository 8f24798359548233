"""Ledgers of format 1 were SQLite databases: they are rewritten in today's format when they are opened."""

from __future__ import annotations

import contextlib
import itertools
import json
import operator
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

from ..errors import LedgerError
from ..files import write_whole
from .ledger_file import Entry, EntryFile, ledger_format, sync_folder

__all__ = ["migrate"]


def migrate(path: str, timeout: float) -> None:
    """Rewrite a ledger of format 1, an SQLite database; the old one is kept beside it, with ``.format-1`` added.

    Any other file is left alone.

    Raises:
        LedgerError: it is damaged, read-only, in use or has more than one name.
    """
    deadline = time.monotonic() + timeout
    while ledger_format(path) == 1:
        try:
            _rewrite(os.path.realpath(path), timeout)  # the file is replaced, not a link to it
        except (sqlite3.Error, ValueError, TypeError, AttributeError) as error:
            if ledger_format(path) != 1:
                return  # another process was quicker
            if not isinstance(error, sqlite3.OperationalError) or time.monotonic() > deadline:
                raise LedgerError(f"{path} has an old format and cannot be migrated: {error}") from error
            time.sleep(0.01)


def _rewrite(path: str, timeout: float) -> None:
    old = os.stat(path)
    if old.st_nlink > 1:
        raise LedgerError(f"{path} has {old.st_nlink} names (hard links). Keep one, and it can be migrated")
    database = sqlite3.connect(path, timeout=timeout, isolation_level=None)
    try:
        database.execute("PRAGMA journal_mode=DELETE")  # takes in what the -wal file still has
        database.execute("PRAGMA locking_mode=EXCLUSIVE")  # from the next transaction until it is closed
        database.execute("BEGIN EXCLUSIVE")
        database.execute("COMMIT")
        if os.stat(path).st_ino != old.st_ino:
            return  # another process was quicker
        ((health,),) = database.execute("PRAGMA quick_check(1)").fetchall()
        charged = database.execute("SELECT number, labels FROM charges ORDER BY 1").fetchall()
        answers = database.execute("SELECT charge, COUNT(*) FROM labels GROUP BY 1 ORDER BY 1").fetchall()
        if health != "ok" or answers != charged:
            raise LedgerError(f"{path} is damaged ({health}), or its labels are not those of its charges")
        with write_whole(Path(path), private=True) as beside:
            beside.unlink()
            target = EntryFile(str(beside), timeout)
            list(target.news())
            with target.locked():
                for entry in _old_entries(database):
                    target.commit(entry, durable=False)
                    list(target.news())
                target.sync()
            target.close()
            kept = Path(f"{path}.format-1")
            kept.unlink(missing_ok=True)
            os.close(os.open(kept, os.O_CREAT | os.O_EXCL, 0o600))
            with contextlib.closing(sqlite3.connect(kept)) as copy:
                database.backup(copy)
        sync_folder(path)
    finally:
        database.close()


def _old_entries(database: sqlite3.Connection) -> Iterator[Entry]:
    for name, value in database.execute("SELECT name, value FROM facts"):
        yield {"fact": name, "value": json.loads(value)}
    rows = database.execute("SELECT number, time, key, label FROM charges, labels WHERE charge = number ORDER BY 1, 3")
    for (_, moment), answers in itertools.groupby(rows, key=lambda row: row[:2]):
        yield {"time": str(moment), "labels": {key.hex(): operator.index(label) for _, _, key, label in answers}}
