"""The ledger: labels that were given out and what they cost; durable, shared by processes, never overspent."""

from __future__ import annotations

import json
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import IO, Any, NamedTuple

from ..arguments import checked
from ..errors import InvalidArgument, LedgerError, check_integer, check_number
from ..privacy.guarantees import PrivacyGuarantee, check_guarantee
from ..reprs import text_or_nothing
from .cost import Cost, Price, guarantee_of, plain_guarantee
from .ledger_file import Entry, EntryFile, EntryList, Mark, file_errors
from .ledger_head import LedgerHead
from .ledger_index import LabelIndex, checked_keys, new_keys
from .ledger_migration import migrate

__all__ = ["Charge", "PrivacyLedger"]

_IN_MEMORY = "a ledger in memory belongs to the process that created it. Give it a file to share it"
_alive: weakref.WeakSet[PrivacyLedger] = weakref.WeakSet()


def _after_fork() -> None:
    """In a child: the parent's threads never release their locks here, and its files are locked for the parent."""
    for ledger in _alive:
        ledger._lock, ledger._call = threading.RLock(), None
        ledger._inherited = ledger.path == ":memory:"
        ledger._entries.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class _Call:
    """A transaction in progress."""


class Charge(NamedTuple):
    """One batch of new labels: how many, and when (UTC, ISO 8601)."""

    labels: int
    time: str


class PrivacyLedger:
    """Gives out labels one transaction at a time: checks the budget, draws, stores label and charge, then returns.

    After a crash, either nothing was charged and nothing given out, or the label is stored and paid for, and anyone who
    asks the same question gets it free of charge. Several processes may share one file; together they never exceed the
    budget, and a question has the same answer in all of them. A pickled ledger is the name of its file. Votes, counts
    and the mechanism's randomness are never stored.

    The file is text, readable by its owner only. A digest chains all entries, so a changed, lost or damaged entry is
    noticed. An older copy that takes the place of the whole file cannot be noticed from the file alone. A ``head``
    notices it: a small file in a second place, with the number of entries and their digest.

    Args:
        path: a file, created if it is missing, or ":memory:".
        budget: the most that all labels together may cost; ``None`` keeps what the file says, no limit in a new one.
        cost: the cost of N labels: a function of N, or the guarantee of one label, of which N cost exactly N times as
            much (in decimals, so that a hundred labels of 0.01 cost 1). Needed if there is a budget; :meth:`bind` can
            set it later.
        head: a file, best on another disk, that notices a restored backup of the ledger; created if it is missing.
        timeout: seconds to wait for another process that is answering.

    Raises:
        LedgerError: the file is damaged, no ledger, older than its head, of a newer format, has several names (hard
            links), or was started with another budget or another cost of a label.

    >>> ledger = PrivacyLedger(budget=PrivacyGuarantee(epsilon=0.2), cost=PrivacyGuarantee(epsilon=0.1))
    >>> ledger.answer([b"a", b"b", b"a"], lambda new: [1 for _ in new])
    [1, 1, 1]
    >>> ledger.answer([b"c"], lambda new: [0])
    Traceback (most recent call last):
    ...
    darrm_torch.errors.BudgetExceeded: 3 labels would cost (0.3, 0)-DP, over the budget of (0.2, 0)-DP. Nothing was \
given out; 0 more labels fit
    """

    @checked
    def __init__(
        self,
        path: str | os.PathLike[str] = ":memory:",
        budget: PrivacyGuarantee | None = None,
        *,
        cost: Cost | None = None,
        head: str | os.PathLike[str] | None = None,
        timeout: float = 60.0,
    ) -> None:
        if budget is not None:
            check_guarantee("budget", budget, expected="a PrivacyGuarantee or None")
        self.path = os.fsdecode(path)
        if self.path != ":memory:":
            self.path = os.path.abspath(self.path)  # another process may work in another folder
        elif head is not None:
            raise InvalidArgument("head", "left out for a ledger in memory", str(head))
        self._head = None if head is None else LedgerHead(head, self.path)
        self._price = Price(cost)
        self._timeout = check_number("timeout", timeout, low=0.0, high_open=True)
        self._prepare(create=True)
        if self._head is not None:
            self._keep("head", True)
        if budget is not None:
            if not self.count:
                self._keep("budget", [budget.epsilon, budget.delta])
            kept = self.budget
            if kept != budget:
                started = "no budget" if kept is None else f"the budget {kept}"
                raise LedgerError(f"{self.path} was started with {started}, not {budget}. Open it without a budget.")
        self._keep_cost(cost)

    # --- asking ---------------------------------------------------------------------------------------------------

    @checked
    def bind(self, identity: Mapping[str, str], cost: Cost | None = None) -> None:
        """Bind the ledger to teachers, a mechanism and rules; the first call fixes them.

        Raises:
            LedgerError: it is bound to others; the message names which, and no value.
        """
        wanted = {str(name): str(value) for name, value in identity.items()}
        self._keep("identity", wanted)
        different = self.differences(wanted)
        if different:
            raise LedgerError(
                f"{self.path} belongs to another ensemble (different {', '.join(different)}). Use a separate ledger "
                "for each group of teachers. Retrained teachers are a new group"
            )
        self._keep_cost(cost)
        if cost is not None:
            self._price = Price(cost)

    @checked
    def differences(self, identity: Mapping[str, str]) -> list[str]:
        """The names in ``identity`` under which the ledger is bound to something else."""
        with self._reading():
            kept = self._facts.get("identity", identity)
        return sorted(name for name in kept.keys() | identity.keys() if kept.get(name) != identity.get(name))

    @checked
    def bound(self, name: str) -> str | None:
        """What the ledger is bound to under a name, such as ``"mechanism"``; ``None`` if nothing."""
        with self._reading():
            value = self._facts.get("identity", {}).get(name)
        return None if value is None else str(value)

    @checked
    def answer(self, keys: Sequence[bytes], draw: Callable[[Sequence[int]], Sequence[int | bytes]]) -> list[Any]:
        """The label of each key: the stored one if there is one, else a new one, which is charged.

        Args:
            keys: a digest of each input; equal keys get equal labels and are charged once.
            draw: returns labels for the positions of the new keys: integers, or bytes, which are returned as they are
                (a soft label is stored as the bytes of its numbers). It is called at most once, after the budget was
                checked; the whole batch is answered or nothing.

        Raises:
            BudgetExceeded: the new labels would exceed the budget; ``draw`` was not called.
            LedgerError: the file cannot be read or written; nothing was given out.
        """
        keys = checked_keys(keys)
        with self._transaction():
            labels = self._labels.find(keys)
            if new := new_keys(keys, labels):
                self._check_budget(len(new))
                self._entries.reserve(256 + sum(2 * len(key) + 26 for key in new))  # a full disk shows before the votes
                drawn = [_checked_label(one) for one in draw(list(new.values()))]
                if len(drawn) != len(new):
                    raise InvalidArgument("draw", f"a function that returns {len(new)} labels", len(drawn))
                moment = datetime.now(timezone.utc).isoformat(timespec="seconds")
                self._commit({"time": moment, "labels": {k.hex(): one for k, one in zip(new, drawn, strict=True)}})
                labels = self._labels.find(keys)
            return labels

    @checked
    def check(self, keys: Sequence[bytes]) -> list[int]:
        """Check that all these keys could be answered now; charges nothing.

        Returns:
            The positions of the keys that are new, the first one of each.

        Raises:
            BudgetExceeded: the labels of those that are new would together exceed the budget.
        """
        keys = checked_keys(keys)
        with self._reading():
            new = new_keys(keys, self._labels.find(keys))
            self._check_budget(len(new))
        return list(new.values())

    @checked
    def note(self, name: str, text: str | None = None) -> str | None:
        """The first text that was noted under this name; ``text`` becomes it if there is none. Decides nothing.

        >>> PrivacyLedger().note("for", "the first survey")
        'the first survey'
        """
        if text is not None:
            self._keep(f"note:{name}", str(text))
        with self._reading():
            kept = self._facts.get(f"note:{name}")
        return None if kept is None else str(kept)

    # --- reading --------------------------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """The number of labels that were given out and charged."""
        with self._reading():
            return len(self._labels)

    @property
    def budget(self) -> PrivacyGuarantee | None:
        """The budget, if there is one."""
        with self._reading():
            return guarantee_of(self._facts.get("budget"))

    @property
    def charges(self) -> list[Charge]:
        """All charges, the oldest first."""
        with self._reading():
            return list(self._charges.values())

    @property
    def trust(self) -> str:
        """A sentence that says what would go unnoticed."""
        if self.path == ":memory:":
            return "The ledger is in memory and ends with its process. A new run draws the same labels again."
        if self._head is None:
            return (
                "A digest chains the ledger's entries. If an older copy takes the place of the file, nothing shows it, "
                "because the ledger has no head."
            )
        return (
            f"A digest chains the ledger's entries, and a head is kept in {os.path.basename(self._head.path)}. An "
            "older copy of one of them is noticed; older copies of both, restored together, are not."
        )

    @checked
    def spent(self, labels: int | None = None) -> PrivacyGuarantee | None:
        """The cost of the labels so far, or of ``labels`` labels; ``None`` if no cost is known."""
        least = self.count or int(self.note("validation 1") is not None)  # a validation is in the price of any label
        labels = least if labels is None else check_integer("labels", labels, low=0, high=2**53)
        return self._price.of(labels)

    @checked
    def left(self, most: int) -> int:
        """How many new labels, up to ``most``, still fit in the budget."""
        return self._price.left(self.count, check_integer("most", most, low=0, high=2**62), self.budget)

    def report(self) -> dict[str, Any]:
        """Labels, charges, budget and cost, ready for JSON; no digest of the teachers."""
        charges, budget, spent = self.charges, self.budget, self.spent()
        return {
            "ledger": self.path,
            "labels": self.count,
            "batches": len(charges),
            "first": charges[0].time if charges else None,
            "last": charges[-1].time if charges else None,
            "spent": plain_guarantee(spent),
            "budget": plain_guarantee(budget),
            "trust": self.trust,
        }

    def export_json(self, stream: IO[str]) -> None:
        """Write the report, every charge, and every label with its key in hexadecimal, as one JSON object.

        Written entry by entry, so that memory does not grow with the ledger.
        """
        if not hasattr(stream, "write"):
            raise InvalidArgument("stream", "a text file that is open for writing", stream)
        stream.write(json.dumps(self.report(), indent=2)[:-2] + ',\n  "charges": [')
        number = 0
        for entry in self._entries.entries():
            if "labels" in entry:
                number += 1
                stream.write(("," if number > 1 else "") + "\n    " + json.dumps({"number": number, **entry}))
        stream.write("\n  ]\n}\n")

    def __repr__(self) -> str:
        return f"<PrivacyLedger {self.path!r}{text_or_nothing(lambda: f': {self.count} labels, budget {self.budget}')}>"

    def close(self) -> None:
        """Close the file; the ledger opens it again when needed. A ledger in memory forgets nothing and stays open."""
        with self._lock:
            self._entries.close()

    def __deepcopy__(self, memo: dict[int, Any]) -> PrivacyLedger:
        return self  # a copy of an ensemble spends from the same ledger

    def __getstate__(self) -> dict[str, Any]:
        if self.path == ":memory:":
            raise LedgerError(_IN_MEMORY)
        return {"path": self.path, "_head": self._head, "_cost": self._price.cost, "_timeout": self._timeout}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._price = Price(state.pop("_cost"))
        self.__dict__.update(state)
        self._prepare(create=False)

    # --- entries --------------------------------------------------------------------------------------------------

    def _prepare(self, *, create: bool) -> None:
        self._lock = threading.RLock()
        self._call: weakref.ref[_Call] | None = None
        self._inherited = False
        self._facts: dict[str, Any] = {}
        self._labels = LabelIndex()
        self._charges: dict[int, Charge] = {}  # by the number of the entry
        self._last = Mark(0, 0, "")
        self._entries: EntryList | EntryFile
        if self.path == ":memory:":
            self._entries = EntryList()
        else:
            with file_errors(self.path):
                migrate(self.path, self._timeout)
            self._entries = EntryFile(self.path, self._timeout, create=create)
        _alive.add(self)
        self._read()

    def _read(self) -> None:
        """Take in the entries that this or another process has added."""
        head = self._head and self._head.read(self._entries.id, required="head" in self._facts)
        with file_errors(self.path):
            for mark, entry in self._entries.news():
                if "labels" in entry:
                    self._labels.add(
                        {
                            bytes.fromhex(key): label if isinstance(label, int) else bytes.fromhex(label)
                            for key, label in entry["labels"].items()
                        }
                    )
                    self._charges[mark.entries] = Charge(len(entry["labels"]), entry["time"])
                else:
                    self._facts[entry["fact"]] = entry["value"]
                self._last = mark
                if self._head and head:
                    self._head.compare(head, mark)
        if self._head and head:
            self._head.compare(head, self._last)  # also where the ledger is as it was and the head is not
            self._head.check_length(head, self._last)

    def _commit(self, entry: Entry) -> None:
        """Store an entry and take it in; the head follows before anything is given out."""
        with file_errors(self.path):
            self._entries.commit(entry)
        self._read()
        if self._head is not None:
            self._head.write(self._entries.id, self._last)

    def _keep(self, name: str, value: Any) -> None:
        """Store a fact unless the ledger has one of this name."""
        with self._reading():
            if name in self._facts:
                return
        with self._transaction():
            if name not in self._facts:
                self._commit({"fact": name, "value": value})

    @contextmanager
    def _held(self) -> Iterator[bool]:
        """The lock of this process; whether this thread is inside a transaction."""
        with self._lock:
            if self._inherited:
                raise LedgerError(_IN_MEMORY)
            yield self._call is not None and self._call() is not None

    @contextmanager
    def _reading(self) -> Iterator[None]:
        with self._held() as answering:
            if not answering:
                self._read()
            yield

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._held() as answering:
            if answering:
                raise LedgerError(
                    f"{self.path} received a request while it is answering another: teachers cannot request labels"
                )
            call = _Call()  # gone with this frame, also where an interruption keeps it from saying so
            with self._entries.locked():
                self._read()
                self._call = weakref.ref(call)
                try:
                    yield
                finally:
                    self._call = None

    # --- cost -----------------------------------------------------------------------------------------------------

    def _keep_cost(self, cost: Cost | None) -> None:
        """The cost of one label never changes: otherwise the labels before would seem to have cost something else."""
        if isinstance(cost, PrivacyGuarantee):
            self._keep("cost", [cost.epsilon, cost.delta])
            kept = guarantee_of(self._facts["cost"])
            if kept != cost:
                raise LedgerError(f"{self.path} charges {kept} a label, not {cost}. Use another ledger.")

    def _check_budget(self, new: int) -> None:
        self._price.check(len(self._labels), new, guarantee_of(self._facts.get("budget")))


def _checked_label(label: Any) -> int | str:
    """A label as the file has it: an integer, or bytes in hexadecimal."""
    return label.hex() if isinstance(label, bytes) else check_integer("label", label, low=-(2**63), high=2**63 - 1)
