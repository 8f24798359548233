"""Ledgers of the first format, SQLite databases: migrated whole, or refused and left alone."""

from __future__ import annotations

import contextlib
import sqlite3
import stat
from pathlib import Path

import pytest

from darrm_torch import LedgerError, PrivacyGuarantee, PrivacyLedger
from darrm_torch.labels.ledger_file import is_ledger

ONE = PrivacyGuarantee(epsilon=0.01, delta=1e-7)
FOR_20 = PrivacyGuarantee(epsilon=0.2, delta=2e-6)


def key(number: int) -> bytes:
    return number.to_bytes(8, "big")


def forbidden(new):
    pytest.fail("labels were drawn")


SQLITE = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE charges (number INTEGER PRIMARY KEY, labels INTEGER NOT NULL, time TEXT NOT NULL);
CREATE TABLE labels (key BLOB PRIMARY KEY, label INTEGER NOT NULL, charge INTEGER NOT NULL) WITHOUT ROWID;
PRAGMA application_id=1147228754;
INSERT INTO facts VALUES ('budget', '[0.2, 2e-06]'), ('identity', '{"teachers": "abc"}'), ('note:for', '"tests"');
INSERT INTO charges VALUES (1, 2, '2026-01-02T03:04:05+00:00'), (2, 1, '2026-01-02T03:04:06+00:00');
INSERT INTO labels VALUES (x'0000000000000000', 0, 1), (x'0000000000000001', 1, 1), (x'0000000000000002', 0, 2);
"""


def old(file: Path) -> None:
    with contextlib.closing(sqlite3.connect(file)) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.executescript(SQLITE)


def test_a_ledger_of_the_first_format_is_migrated_and_kept(tmp_path):
    file = tmp_path / "ledger.sqlite"
    old(file)
    assert is_ledger(file)
    ledger = PrivacyLedger(file, cost=ONE)
    assert (ledger.budget, ledger.note("for"), ledger.bound("teachers")) == (FOR_20, "tests", "abc")
    assert [charge.labels for charge in ledger.charges] == [2, 1]
    assert ledger.charges[0].time == "2026-01-02T03:04:05+00:00"
    assert ledger.answer([key(2), key(1), key(0)], forbidden) == [0, 1, 0]
    assert ledger.left(100) == 17
    assert file.read_bytes().startswith(b"darrm-torch ledger, format 0002 ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ledger.sqlite", "ledger.sqlite.format-1"]
    with contextlib.closing(sqlite3.connect(tmp_path / "ledger.sqlite.format-1")) as kept:
        assert kept.execute("SELECT COUNT(*) FROM labels").fetchone() == (3,)
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in tmp_path.iterdir())


@pytest.mark.parametrize("damage", ["DELETE FROM labels WHERE label = 1", "DROP TABLE facts"])
def test_a_damaged_ledger_of_the_first_format_is_refused_and_stays(tmp_path, damage):
    file = tmp_path / "ledger.sqlite"
    old(file)
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as database:
        database.execute(damage)
    with pytest.raises(LedgerError, match=r"damaged|cannot be migrated"):
        PrivacyLedger(file)
    assert file.read_bytes().startswith(b"SQLite")
    assert [path.name for path in tmp_path.iterdir()] == ["ledger.sqlite"]
