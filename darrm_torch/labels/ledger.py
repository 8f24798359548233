"""The ledger: what was asked, what was answered, what it cost; durable, shared by processes, never overspent."""

from __future__ import annotations

import json
import math
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from fractions import Fraction
from typing import Any

from ..errors import BudgetExceeded, InvalidArgument, LedgerError, check_integer, check_number
from ..privacy.guarantees import PrivacyGuarantee, check_guarantee

__all__ = ["Cost", "PrivacyLedger", "is_ledger"]

Cost = PrivacyGuarantee | Callable[[int], PrivacyGuarantee]

_APPLICATION = 0x44615252  # "DaRR": marks the file as a ledger
_SCHEMA = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE charges (number INTEGER PRIMARY KEY, labels INTEGER NOT NULL, time TEXT NOT NULL);
CREATE TABLE labels (key BLOB PRIMARY KEY, label INTEGER NOT NULL, charge INTEGER NOT NULL) WITHOUT ROWID;
"""
_IN_MEMORY = "a ledger in memory belongs to the process that made it. Give it a file to share it"
_AT_ONCE = 500  # keys looked up in one statement
_alive: weakref.WeakSet[PrivacyLedger] = weakref.WeakSet()
_inherited: list[sqlite3.Connection] = []


def _after_fork() -> None:
    """In a child: a lock held by a thread of the parent is never released; SQLite forbids even to close its files."""
    for ledger in _alive:
        ledger._lock = threading.RLock()
        if ledger._process != -1:
            _inherited.append(ledger._database)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def is_ledger(path: str | os.PathLike[str]) -> bool:
    """Whether a file is one, by a look alone: SQLite would make one of an empty file."""
    try:
        with open(path, "rb") as stream:
            header = stream.read(72)
    except OSError:  # a folder, or not to be read
        return False
    return header.startswith(b"SQLite format 3\0") and header[68:] == _APPLICATION.to_bytes(4, "big")


class PrivacyLedger:
    """Gives out labels one transaction at a time: budget checked, label drawn, label and charge stored, then given out.

    What a crash leaves: before the commit nothing was charged and nothing seen; after it the label is paid for and
    stored, and is given to whoever asks the same question again, free of charge. Several processes may share one file;
    together they never exceed the budget, and the same question has the same answer in all of them. A pickled ledger is
    the name of its file. Votes, counts and coins are never stored.

    Args:
        path: a file, made if it is missing, or ":memory:".
        budget: the most that all labels together may cost; ``None`` keeps what the file says, no limit in a new one.
        cost: what N labels together cost: a function of N, or one label's guarantee, of which N cost exactly N times as
            much (in decimals, so that a hundred labels of 0.01 cost 1). Needed when there is a budget; may be given to
            :meth:`bind`.
        timeout: seconds to wait for another process that is answering.

    Raises:
        LedgerError: the file is damaged, read-only, no ledger, or has another budget or another label's cost.

    >>> ledger = PrivacyLedger(budget=PrivacyGuarantee(epsilon=0.2), cost=PrivacyGuarantee(epsilon=0.1))
    >>> ledger.answer([b"a", b"b", b"a"], lambda new: [1 for _ in new])
    [1, 1, 1]
    >>> ledger.answer([b"c"], lambda new: [0])
    Traceback (most recent call last):
    ...
    darrm_torch.errors.BudgetExceeded: 3 labels would cost (0.3, 0)-DP, over the budget of (0.2, 0)-DP. Nothing was \
given out; 0 more labels fit
    """

    _process: int  # that opened the file; -1: none
    _most: int  # labels that were seen in it
    _database: sqlite3.Connection

    def __init__(
        self,
        path: str | os.PathLike[str] = ":memory:",
        budget: PrivacyGuarantee | None = None,
        *,
        cost: Cost | None = None,
        timeout: float = 60.0,
    ) -> None:
        if budget is not None:
            check_guarantee("budget", budget, expected="a PrivacyGuarantee or None")
        self.path = os.fspath(path)
        if self.path != ":memory:":
            self.path = os.path.abspath(self.path)  # another process may work in another folder
        self._set_cost(cost)
        self._timeout = check_number("timeout", timeout, low=0.0, high_open=True)
        self._prepare()
        self._open()
        with self._transaction() as database:
            stored = self._fact(database, "budget")
            if budget is not None and stored is None and self.count == 0:
                database.execute(
                    "INSERT INTO facts VALUES ('budget', ?)", (json.dumps([budget.epsilon, budget.delta]),)
                )
            elif budget is not None and stored != [budget.epsilon, budget.delta]:
                kept = (
                    "no budget"
                    if stored is None
                    else f"the budget {PrivacyGuarantee(epsilon=stored[0], delta=stored[1])}"
                )
                raise LedgerError(
                    f"{self.path} was started with {kept}, not {budget}. Open it without a budget to keep that."
                )
            self._keep_cost(database, cost)

    # --- asking ---------------------------------------------------------------------------------------------------

    def bind(self, identity: Mapping[str, str], cost: Cost | None = None) -> None:
        """Names the teachers, the mechanism and the rules that this ledger is for; the first call fixes them.

        Raises:
            LedgerError: it was kept for others.
        """
        wanted = {str(name): str(value) for name, value in identity.items()}
        with self._transaction() as database:
            kept = self._fact(database, "identity")
            if kept is None:
                database.execute("INSERT INTO facts VALUES ('identity', ?)", (json.dumps(wanted, sort_keys=True),))
            elif kept != wanted:
                names = sorted(name for name in kept.keys() | wanted.keys() if kept.get(name) != wanted.get(name))
                changes = "; ".join(f"{name}: {kept.get(name)!r} there, {wanted.get(name)!r} here" for name in names)
                raise LedgerError(
                    f"{self.path} was kept for others ({changes}). Use one ledger for each group of teachers; "
                    "trained anew, they are another."
                )
            self._keep_cost(database, cost)
        if cost is not None:
            self._set_cost(cost)

    def answer(self, keys: Sequence[bytes], draw: Callable[[Sequence[int]], Sequence[int]]) -> list[int]:
        """The label of each key: the stored one where there is one, else a new one that is charged first.

        Args:
            keys: a digest of each input; equal keys get equal labels and are charged once.
            draw: given the positions of the new keys, returns their labels. Called at most once, after the budget was
                checked; the whole batch is answered or nothing.

        Raises:
            BudgetExceeded: the new labels would exceed the budget; ``draw`` was not called.
            LedgerError: the file cannot be read or written; nothing was given out.
        """
        keys = _checked_keys(keys)
        with self._transaction() as database:
            before = self._check_history()
            known = self._known(database, keys)
            new: dict[bytes, int] = {}
            for position, key in enumerate(keys):
                if key not in known:
                    new.setdefault(key, position)
            if new:
                self._check_budget(len(new))
                # Charged before it is drawn: a file that cannot be written is noticed before votes are taken.
                charge = database.execute(
                    "INSERT INTO charges (labels, time) VALUES (?, ?)",
                    (len(new), datetime.now(timezone.utc).isoformat(timespec="seconds")),
                ).lastrowid
                drawn = [check_integer("label", one, low=-(2**63), high=2**63 - 1) for one in draw(list(new.values()))]
                if len(drawn) != len(new):
                    raise InvalidArgument("draw", f"a function that returns {len(new)} labels", len(drawn))
                answers = dict(zip(new, drawn, strict=True))
                rows = [(key, label, charge) for key, label in answers.items()]
                database.executemany("INSERT INTO labels VALUES (?, ?, ?)", rows)
                known.update(answers)
        self._most = max(self._most, before + len(new))
        return [known[key] for key in keys]

    def check(self, keys: Sequence[bytes]) -> None:
        """Whether all these keys could be answered now; charges nothing.

        Raises:
            BudgetExceeded: the labels of those that are new would together exceed the budget.
        """
        keys = _checked_keys(keys)
        with self._reading() as database:
            self._check_budget(len(set(keys) - self._known(database, keys).keys()))

    def note(self, name: str, words: str | None = None) -> str | None:
        """What was first noted under this name; ``words`` are kept if nothing was. Decides nothing by itself.

        >>> PrivacyLedger().note("for", "the first survey")
        'the first survey'
        """
        with self._transaction() as database:
            kept = self._fact(database, f"note:{name}")
            if kept is None and words is not None:
                kept = str(words)
                database.execute("INSERT INTO facts VALUES (?, ?)", (f"note:{name}", json.dumps(kept)))
        return None if kept is None else str(kept)

    # --- reading --------------------------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """How many labels have been given out and charged."""
        with self._reading() as database:
            return int(database.execute("SELECT COUNT(*) FROM labels").fetchone()[0])

    @property
    def budget(self) -> PrivacyGuarantee | None:
        """The budget, if there is one."""
        with self._reading() as database:
            stored = self._fact(database, "budget")
        return None if stored is None else PrivacyGuarantee(epsilon=stored[0], delta=stored[1])

    def spent(self, labels: int | None = None) -> PrivacyGuarantee | None:
        """What the labels so far cost together, or what ``labels`` would; ``None`` when no cost is known."""
        return None if self._cost is None else _total(self._cost, self.count if labels is None else labels)

    def left(self, most: int) -> int:
        """How many new labels, up to ``most``, still fit in the budget."""
        budget, count = self.budget, self.count
        if budget is None:
            return most
        fits, too_many = 0, most + 1
        while too_many - fits > 1:
            middle = (fits + too_many) // 2
            fits, too_many = (middle, too_many) if self._fits(count + middle, budget) else (fits, middle)
        return fits

    def report(self) -> dict[str, Any]:
        """What was asked, of whom and at what cost, ready for JSON. Reads only."""
        with self._reading() as database:
            charges, first, last = database.execute("SELECT COUNT(*), MIN(time), MAX(time) FROM charges").fetchone()
            identity = self._fact(database, "identity")
        budget, spent = self.budget, self.spent()
        return {
            "ledger": self.path,
            "identity": identity,
            "labels": self.count,
            "batches": charges,
            "first": first,
            "last": last,
            "spent": _plain(spent),
            "budget": _plain(budget),
        }

    def export_json(self) -> str:
        """The whole ledger as JSON: the report, every charge, and every label with its key in hexadecimal.

        Like the file it is to be kept where the teachers are: what it is bound to has a digest of their weights.
        """
        with self._reading() as database:
            charges = database.execute("SELECT number, labels, time FROM charges ORDER BY number").fetchall()
            labels = database.execute("SELECT key, label, charge FROM labels ORDER BY charge, key").fetchall()
        return json.dumps(
            {
                **self.report(),
                "charges": [{"number": number, "labels": count, "time": time} for number, count, time in charges],
                "answers": [{"key": key.hex(), "label": label, "charge": charge} for key, label, charge in labels],
            },
            indent=2,
        )

    def close(self) -> None:
        """Closes the file; the ledger opens it again when it is needed. One in memory forgets nothing and stays."""
        with self._lock:
            if self._process == os.getpid() and self.path != ":memory:":
                self._database.close()
                self._process = -1

    def __deepcopy__(self, memo: dict[int, Any]) -> PrivacyLedger:
        return self  # a copy of an ensemble spends from the same ledger

    def __getstate__(self) -> dict[str, Any]:
        if self.path == ":memory:":
            raise LedgerError(_IN_MEMORY)
        return {"path": self.path, "_cost": self._cost, "_timeout": self._timeout}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._set_cost(self._cost)
        self._prepare()

    # --- the file -------------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        self._lock = threading.RLock()
        self._process = -1
        self._most = 0
        _alive.add(self)

    def _set_cost(self, cost: Cost | None) -> None:
        if not (cost is None or isinstance(cost, PrivacyGuarantee) or callable(cost)):
            raise InvalidArgument("cost", "a PrivacyGuarantee of one label or a function of the number of labels", cost)
        self._cost = cost
        self._fitting = 0  # so many labels are known to fit in the budget,
        self._too_many: int | None = None  # and so many not to

    def _keep_cost(self, database: sqlite3.Connection, cost: Cost | None) -> None:
        """One label's cost stays what it was: at another, the labels before would seem to have cost that."""
        if isinstance(cost, PrivacyGuarantee):
            stored = self._fact(database, "cost")
            if stored is None:
                database.execute("INSERT INTO facts VALUES ('cost', ?)", (json.dumps([cost.epsilon, cost.delta]),))
            elif stored != [cost.epsilon, cost.delta]:
                kept = PrivacyGuarantee(epsilon=stored[0], delta=stored[1])
                raise LedgerError(f"{self.path} was kept at a cost of {kept} a label, not {cost}. Use another ledger.")

    def _fits(self, labels: int, budget: PrivacyGuarantee) -> bool:
        cost = self._cost
        if cost is None:
            cure = "There is a budget: pass the rule to bind()."
            raise InvalidArgument("cost", "a rule that says what N labels cost", None, cure)
        if not isinstance(cost, PrivacyGuarantee):
            total = cost(labels)
            return total.epsilon <= budget.epsilon and total.delta <= budget.delta
        pairs = ((cost.epsilon, budget.epsilon), (cost.delta, budget.delta))
        return all(_times(labels, one) <= _times(1, most) for one, most in pairs)

    def _check_history(self) -> int:
        """How many labels there are. None is ever taken back: where there were more, an older copy took the place."""
        count = self.count
        if count < self._most:
            raise LedgerError(
                f"{self.path} has {count} labels and had {self._most}: an older copy took its place. Nothing was given "
                "out; restore the newest copy, or the labels since would be given out without a charge"
            )
        self._most = max(self._most, count)
        return count

    def _check_budget(self, new: int) -> None:
        budget, total = self.budget, self.count + new
        # A price can take long to find. Fewer labels than were found to fit do fit, so few prices are asked for.
        while budget is not None and total > self._fitting:
            guess = 2 * total if self._too_many is None else max(total, (total + self._too_many) // 2)
            if self._fits(guess, budget):
                self._fitting = guess
            elif guess > total:
                self._too_many = guess
            else:
                assert self._cost is not None
                left = self.left(new)
                raise BudgetExceeded(
                    f"{total} label{'s' * (total > 1)} would cost {_total(self._cost, total)}, over the budget of "
                    f"{budget}. Nothing was given out; {left} more label{'s fit' if left != 1 else ' fits'}"
                )

    @staticmethod
    def _known(database: sqlite3.Connection, keys: Sequence[bytes]) -> dict[bytes, int]:
        known: dict[bytes, int] = {}
        for start in range(0, len(keys), _AT_ONCE):
            some = keys[start : start + _AT_ONCE]
            marks = ",".join("?" * len(some))
            known.update(database.execute(f"SELECT key, label FROM labels WHERE key IN ({marks})", some))
        return known

    def _open(self) -> None:
        with self._lock, _one_clear_error(self.path):
            if self._process == os.getpid():
                return
            if self._process != -1 and self.path == ":memory:":
                raise LedgerError(_IN_MEMORY)
            self._database = sqlite3.connect(
                self.path, timeout=self._timeout, isolation_level=None, check_same_thread=False
            )
            try:
                self._tables()  # before anything is written: what is another program's stays as it is
                self._write_ahead()
                self._database.execute("PRAGMA synchronous=FULL")
                # At every commit into the file itself: who copies that alone, without its -wal, must lose no charge.
                self._database.execute("PRAGMA wal_autocheckpoint=1")
                self._database.execute("BEGIN IMMEDIATE")
                if not self._tables():
                    for statement in _SCHEMA.strip().split("\n"):
                        self._database.execute(statement)
                    self._database.execute(f"PRAGMA application_id={_APPLICATION}")
                ((health,),) = self._database.execute("PRAGMA quick_check(1)").fetchall()
                (answers,) = self._database.execute("SELECT COUNT(*) FROM labels").fetchone()
                (charged,) = self._database.execute("SELECT COALESCE(SUM(labels), 0) FROM charges").fetchone()
                if health != "ok" or answers != charged:
                    raise LedgerError(f"{self.path} is damaged: {health}, {answers} labels for {charged} charges")
                self._database.execute("COMMIT")
                self._file = _file(self.path)
                self._process = os.getpid()  # only now: what failed is tried again, with all its checks
            except BaseException:
                self._database.close()  # which rolls back
                self._process = -1
                raise

    def _write_ahead(self) -> None:
        """Readers and a writer at once. SQLite does not wait by itself while others that start switch to it, too."""
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                self._database.execute("PRAGMA journal_mode=WAL")
                return
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > deadline:
                    raise
            time.sleep(0.01)

    def _tables(self) -> int:
        """How many there are, which is none in a new ledger."""
        (tables,) = self._database.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
        (application,) = self._database.execute("PRAGMA application_id").fetchone()  # read after: set with them
        if tables and application != _APPLICATION:
            raise LedgerError(f"{self.path} is a database, but no ledger")
        return int(tables)

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock, _one_clear_error(self.path):
            self._open()
            yield self._database

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._reading() as database:
            if database.in_transaction:
                raise LedgerError(f"{self.path} was asked while it is answering: teachers cannot ask for labels")
            if _file(self.path) != self._file:
                raise LedgerError(f"{self.path} was moved or replaced while it was open. Nothing was given out")
            try:
                database.execute("BEGIN IMMEDIATE")
                yield database
                database.execute("COMMIT")
            except BaseException:
                if database.in_transaction:
                    database.execute("ROLLBACK")
                raise

    @staticmethod
    def _fact(database: sqlite3.Connection, name: str) -> Any:
        row = database.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return None if row is None else json.loads(row[0])


@contextmanager
def _one_clear_error(path: str) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise LedgerError(
            f"{path} cannot be used: {error}. Nothing was given out; see who else has the file open, or restore a copy"
        ) from error


def _file(path: str) -> tuple[int, int] | None:
    """Which file this is, not by name; None if there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _checked_keys(keys: Sequence[bytes]) -> list[bytes]:
    keys = list(keys)
    if not all(isinstance(key, bytes) and key for key in keys):
        raise InvalidArgument("keys", "non-empty bytes, a digest of each input", keys[:3])
    return keys


def _total(cost: Cost, labels: int) -> PrivacyGuarantee:
    """What ``labels`` labels cost together; nothing for none."""
    if labels == 0:
        return PrivacyGuarantee(epsilon=0.0)
    if not isinstance(cost, PrivacyGuarantee):
        return cost(labels)
    epsilon, delta = (float(_times(labels, one)) for one in (cost.epsilon, cost.delta))
    return PrivacyGuarantee(epsilon=epsilon, delta=min(1.0, delta))


def _times(count: int, number: float) -> Fraction | float:
    """A multiple of the number as it is written, exact in whatever decimal context; infinity stays."""
    return count * Fraction(repr(number)) if math.isfinite(number) else number


def _plain(guarantee: PrivacyGuarantee | None) -> dict[str, float | None] | None:
    if guarantee is None:
        return None
    return {"epsilon": guarantee.epsilon if math.isfinite(guarantee.epsilon) else None, "delta": guarantee.delta}
