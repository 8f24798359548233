"""Ledgers of the first format, SQLite databases: migrated whole, or refused and left alone."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
import subprocess
import sys
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


DAMAGE = [
    "DELETE FROM labels WHERE label = 1",
    "DROP TABLE facts",
    "UPDATE labels SET charge = 1",  # another charge
    "UPDATE labels SET charge = 9 WHERE charge = 2",  # one that does not exist
    "UPDATE charges SET labels = 3 - labels",
    "INSERT INTO charges VALUES (3, 0, '2026-01-02T03:04:07+00:00')",
    "UPDATE facts SET value = '[0.2'",
    "UPDATE labels SET label = 'one' WHERE charge = 2",
    "UPDATE labels SET key = 'text' WHERE charge = 2",
]


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_ledger_of_the_first_format_is_refused_and_stays(tmp_path, damage):
    file = tmp_path / "ledger.sqlite"
    old(file)
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as database:
        database.execute(damage)
    with pytest.raises(LedgerError, match=r"damaged|cannot be migrated"):
        PrivacyLedger(file, timeout=0.05)
    assert file.read_bytes().startswith(b"SQLite")
    assert [path.name for path in tmp_path.iterdir()] == ["ledger.sqlite"]


def test_a_link_to_a_ledger_of_the_first_format_leads_to_the_migrated_one(tmp_path):
    """Otherwise each of the two paths would have the whole budget."""
    file = tmp_path / "ledger.sqlite"
    old(file)
    (tmp_path / "link").symlink_to(file)
    assert PrivacyLedger(tmp_path / "link").count == 3
    assert (tmp_path / "link").is_symlink()
    assert file.read_bytes().startswith(b"darrm-torch ledger")


def test_a_ledger_of_the_first_format_with_two_names_is_refused(tmp_path):
    file = tmp_path / "ledger.sqlite"
    old(file)
    os.link(file, tmp_path / "other")
    with pytest.raises(LedgerError, match=r"has 2 names \(hard links\)"):
        PrivacyLedger(file)
    assert file.read_bytes().startswith(b"SQLite")


KILLED = """
import os, sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute(f"PRAGMA journal_mode={sys.argv[2]}")
database.execute("PRAGMA cache_size=1")
database.execute("BEGIN")
database.execute("INSERT INTO charges VALUES (3, 5000, '2026-01-02T03:04:07+00:00')")
for number in range(3, 5003):
    database.execute("INSERT INTO labels VALUES (?, 1, 3)", (number.to_bytes(8, "big"),))
if sys.argv[3] == "committed":
    database.execute("COMMIT")
os._exit(0)
"""


@pytest.mark.parametrize(("mode", "end"), [("WAL", "committed"), ("WAL", "open"), ("DELETE", "open")])
def test_what_a_killed_process_left_beside_the_file_is_taken_in_or_undone(tmp_path, mode, end):
    """A commit that is only in the -wal file, and hot journals of both modes."""
    file = tmp_path / "ledger.sqlite"
    old(file)
    subprocess.run([sys.executable, "-c", KILLED, str(file), mode, end], check=True)
    assert len(list(tmp_path.iterdir())) > 1
    assert PrivacyLedger(file).count == (5003 if end == "committed" else 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ledger.sqlite", "ledger.sqlite.format-1"]


def test_a_ledger_of_the_first_format_that_is_in_use_is_refused(tmp_path):
    file = tmp_path / "ledger.sqlite"
    old(file)
    with contextlib.closing(sqlite3.connect(file)) as other:
        other.execute("SELECT * FROM facts").fetchone()
        with pytest.raises(LedgerError, match=r"cannot be migrated: database is locked"):
            PrivacyLedger(file, timeout=0.05)
    assert PrivacyLedger(file).count == 3


def test_several_processes_may_migrate_one_ledger_together(tmp_path):
    file = tmp_path / "ledger.sqlite"
    old(file)
    code = "import sys, darrm_torch as d; print(d.PrivacyLedger(sys.argv[1]).count)"
    command = [sys.executable, "-c", code, str(file)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [process.communicate()[0].strip() for process in processes] == ["3"] * 3
