"""The labeler: votes in, private labels out. It knows what teachers promise, and needs none of their networks."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arguments import checked
from ..arrays import BoolArray, IntArray
from ..errors import BudgetExceeded, InvalidArgument, check_integer, check_number
from ..mechanisms.base import Mechanism
from ..mechanisms.interactive import informed
from ..mechanisms.noise_free import NoiseFree
from ..privacy.allocation import RandomAllocation
from ..privacy.guarantees import PrivacyGuarantee
from ..privacy.profiles import PrivacyProfile
from ..privacy.totals import TotalPrivacy, total_privacy
from ..privacy.units import RECORD, Neighbours, common_unit
from ..reprs import cut
from ..teachers.allocations import settled_allocation
from ..teachers.independence import check_overlap
from ..teachers.structures import Structure, rows_of
from .advice import memory_ledger, warn_before_labels
from .identity import checked_inputs, input_keys
from .kept import check_built_for, described, kept_jury, kept_mechanism, note_noise
from .ledger import PrivacyLedger
from .ledger_index import checked_keys
from .questions import (
    MISSING,
    checked_findings,
    checked_votes,
    classes_of_votes,
    counts_of_votes,
    label_shape,
    question_keys,
    restored_labels,
    stored_labels,
    table_of,
)
from .report import report_as_dict, report_as_text
from .voters import Panel, Voter, distinct_names

__all__ = ["PrivateLabeler"]


class PrivateLabeler:
    """Turns the votes of K teachers into private labels, each charged to a ledger before it is returned.

    Formal guarantee: see :meth:`total_privacy` and :meth:`privacy_report`. It covers the labels, and nothing else:
    votes are sensitive, and the party that runs the labeler sees them. A teacher's vote must be a function of the
    teacher that its profile describes and of the input.

    A vote that is missing is replaced by a class that depends only on the key of the input and the number of the
    teacher, spread evenly over the classes. This is a fixed public rule, so the guarantee is that of teachers that
    vote; the majority is only less certain. Whether a vote is missing must not depend on private data except through
    the teacher.

    Args:
        mechanism: turns vote counts into labels.
        teachers: what names each of the K teachers: a digest, or a :class:`Voter`. The ledger is bound to them.
        profiles, overlap, allocation, neighbours, ledger, delta: see :class:`~darrm_torch.PrivateMajorityEnsemble`.
        classes: C, the number of classes; ``None``: that of the mechanism. It is declared, because the classes that
            occur among the votes are private.
        findings: the names of F findings; each input is then F questions of two classes, which are asked and charged
            together. Votes are ``(K, B, F)``, labels ``(B, F)``, and an input costs F labels where costs grow with the
            number of labels (theory, many labels). The ledger is bound to the names and their order. ``None``: one
            question for each input.
        assumptions: what the labels rest on besides what :func:`~darrm_torch.total_privacy` assumes, for the report;
            ``None``: how votes come about.
        rules: further public facts to which the ledger is bound, ready for JSON, such as the names of the classes.

    Raises:
        InvalidArgument: no teachers, two with one name, not one profile for each, an overlap above K, no number of
            classes, or a mechanism built for another number of teachers or classes or for a smaller overlap.
        LedgerError: the ledger belongs to other teachers, other promises, another mechanism or other rules.

    >>> from darrm_torch import NoiseFreeMajority, PrivacyLedger
    >>> labeler = PrivateLabeler(
    ...     NoiseFreeMajority(teachers=3), teachers=["clinic 1", "clinic 2", "clinic 3"], classes=2,
    ...     ledger=PrivacyLedger(), overlap=1,
    ...     profiles=[PrivacyProfile.from_guarantee(PrivacyGuarantee(epsilon=0.5, delta=1e-5))] * 3,
    ... )
    >>> labeler.label([b"patient 7", b"patient 8"], [[0, 1], [1, 1], [0, 1]]).tolist()
    [0, 1]
    >>> print(labeler.total_privacy(labels=2, delta=1e-5).guarantee)
    (0.5, 1e-05)-DP
    """

    def __repr__(self) -> str:
        what = f"{len(self.profiles)} teachers, overlap {self.overlap}, {self.classes or 'any'} classes"
        what += "" if self.findings is None else f", {len(self.findings)} findings"
        return f"<{type(self).__name__}: {what}, {cut(self.mechanism)}, {self.ledger!r}>"

    @checked
    def __init__(
        self,
        mechanism: Mechanism,
        *,
        teachers: Sequence[str | Voter],
        profiles: Sequence[PrivacyProfile] | None = None,
        overlap: int | None = None,
        allocation: RandomAllocation | None = None,
        neighbours: Neighbours = "add/remove",
        classes: int | None = None,
        findings: Sequence[str] | None = None,
        ledger: PrivacyLedger | None = None,
        delta: float | None = None,
        rules: Mapping[str, Any] | None = None,
        assumptions: Sequence[str] | None = None,
    ) -> None:
        names = distinct_names(teachers)
        count = check_integer("the number of teachers", len(names), low=1)
        if profiles is None:
            profiles = [PrivacyProfile.non_private()] * count
        if len(profiles) != count:
            raise InvalidArgument("profiles", f"one for each of the {count} teachers", f"{len(profiles)} of them")
        for profile in profiles:
            if not isinstance(profile, PrivacyProfile):
                cure = "Make one with PrivacyProfile.from_guarantee(PrivacyGuarantee(epsilon=..., delta=...))."
                raise InvalidArgument("profiles", "a PrivacyProfile for each teacher", profile, cure)
        if mechanism.teachers not in (None, count):
            raise InvalidArgument("mechanism", f"built for {count} teachers", f"one for {mechanism.teachers}")
        allocation, overlap = settled_allocation(profiles, allocation, overlap, neighbours)
        self.allocation, self.neighbours = allocation, neighbours
        self._given: dict[str, Any] = {"overlap": overlap, "classes": classes, "findings": findings}
        self._given |= {"rules": rules, "assumptions": assumptions}
        self.overlap = count if overlap is None else check_integer("overlap", overlap, low=1, high=count)
        check_overlap(profiles, self.overlap)
        self._overlap_unknown = overlap is None and count > 1
        self.findings = checked_findings(findings)
        if self.findings is not None:
            if classes not in (None, 2) or mechanism.shares > 1:
                cure = "A finding is there (1) or not (0)."
                raise InvalidArgument("findings", "None with more classes or soft labels", findings, cure)
            classes = 2
        for teacher in teachers:
            if getattr(teacher, "findings", self.findings) != self.findings:
                raise InvalidArgument("findings", "those of the voters", findings)
        self.classes = None if classes is None else check_integer("classes", classes, low=2, high=2**20)
        if self.classes is not None and mechanism.classes not in (None, self.classes):
            raise InvalidArgument("classes", f"{mechanism.classes} of them, as the mechanism needs", classes)
        check_built_for(mechanism, self.overlap, stated=overlap is not None)
        self.profiles = tuple(profiles)
        self.ledger = memory_ledger() if ledger is None else ledger
        self.mechanism = mechanism = kept_mechanism(self.ledger, mechanism)
        if delta is None:
            promises = (self.ledger.budget, getattr(mechanism.certificate, "target", None))
            delta = next((promise.delta for promise in promises if promise is not None), 1e-5)
        self.delta = check_number("delta", delta, low=0, high=1, high_open=True)
        terms: dict[str, Any] = {"overlap": self.overlap, "classes": self.classes, "delta": self.delta, **(rules or {})}
        terms |= {} if self.findings is None else {"findings": self.findings}
        terms |= {} if allocation is None else {"allocation": allocation.to_dict()}
        terms |= {} if neighbours == "add/remove" else {"neighbours": neighbours}
        unit = common_unit(profile.unit for profile in profiles)
        terms |= {} if unit == RECORD else {"unit": unit.name, "records_per_unit": unit.records}
        self.identity = {
            "teachers": hashlib.sha256(json.dumps(names).encode()).hexdigest(),
            "mechanism": described(mechanism),
            "promises": hashlib.sha256(json.dumps([one.to_dict() for one in self.profiles]).encode()).hexdigest(),
            "rules": _as_json(terms),
        }
        # It holds no teacher: a ledger may be pickled to places where the teachers may not go.
        self._situation: dict[str, Any] = {"teachers": self.profiles, "overlap": self.overlap, "mechanism": mechanism}
        self._situation |= {"neighbours": neighbours, "allocation": allocation}
        self._assumptions = (_VOTES,) if assumptions is None else tuple(assumptions)
        if isinstance(assumptions, str) or not all(isinstance(one, str) for one in self._assumptions):
            raise InvalidArgument("assumptions", "a list of sentences", assumptions)
        self.teachers = tuple(teachers)
        self.panel = Panel([teacher for teacher in teachers if not isinstance(teacher, str)], self.findings)
        # Last, so that a refused labeler leaves the ledger free for the right one.
        self.ledger.bind(self.identity, cost=partial(_price, delta=self.delta, **self._situation))
        note_noise(self.ledger, mechanism)
        warn_before_labels(mechanism, self.ledger, self._situation, self.delta)
        self._jury = kept_jury(self.ledger, mechanism, teachers=count)

    @checked
    def spending_from(self, ledger: PrivacyLedger) -> PrivateLabeler:
        """The same labeler with another ledger."""
        same: dict[str, Any] = {"profiles": self.profiles, "delta": self.delta, **self._given}
        same |= {"allocation": self.allocation, "neighbours": self.neighbours}
        return PrivateLabeler(self.mechanism, teachers=self.teachers, ledger=ledger, **same)

    # --- labels ---------------------------------------------------------------------------------------------------

    @checked
    def label(
        self, keys: Sequence[bytes], votes: npt.ArrayLike | Callable[[Sequence[int]], Any], *, guesses: Any = None
    ) -> IntArray:
        """Private labels ``(B,)`` int64 for these votes, ``(B, F)`` of findings; charged and stored, then returned.

        Args:
            keys: what identifies each of the B inputs, such as a digest or an identifier as bytes. A key that was
                labelled before gets the same label again, free of charge, whatever its votes are now.
            votes: ``(K, B)``: the class that teacher k prefers for input b, an integer in 0..C-1, or -1 where teacher
                k has no vote; ``(K, B, F)`` for findings. K counts the teachers, in the order of ``teachers``. A
                function returns the votes for the positions of the keys that are new; it is called at most once, after
                the budget was checked.
            guesses: a student's class probabilities ``(B, C)``, for :class:`InteractiveGNMax`.

        Raises:
            InvalidArgument: votes of another shape or another kind, or classes outside 0..C-1; nothing was charged.
            BudgetExceeded: the batch would cost more than the ledger's budget; nothing was charged.
        """
        keys = checked_keys(keys)
        ask: Any = votes if callable(votes) else None
        table = None if ask else self._checked_votes(votes, len(keys))

        def counted(rows: Sequence[int], juries: BoolArray | None) -> IntArray:
            new = self._checked_votes(ask(rows), len(rows)) if table is None else table[:, rows]
            return self._counts(new, [keys[row] for row in rows], juries)

        return np.asarray(self.answer(keys, counted, guesses=guesses), dtype=np.int64)

    @checked
    def label_counts(self, keys: Sequence[bytes], counts: npt.ArrayLike) -> IntArray:
        """As :meth:`label`, for vote counts ``(B, C)``, or ``(B, F, 2)``, whose rows add up to K.

        Raises:
            InvalidArgument: counts that are no such integers; nothing was charged.
            BudgetExceeded: as :meth:`label`.
        """
        keys = checked_keys(keys)
        shape = (*label_shape(len(keys), self.findings), classes_of_votes(self.mechanism, self.classes))
        expected = f"integers of shape {shape}"
        table = table_of("counts", counts, expected)
        if table.dtype.kind not in "iu" or table.shape != shape:
            raise InvalidArgument("counts", expected, f"{table.dtype} of shape {table.shape}")
        table = table.astype(np.int64)
        if (table < 0).any() or (table.sum(axis=-1) != len(self.profiles)).any():
            raise InvalidArgument("counts", f"rows that add up to {len(self.profiles)} votes", "others")
        if self.mechanism.jury is not None:
            raise InvalidArgument("counts", "votes of each teacher, for a mechanism with a jury", "counts of all")
        return np.asarray(self.answer(keys, lambda rows, juries: table[list(rows)]), dtype=np.int64)

    def __call__(self, inputs: Structure, *, keys: Sequence[bytes] | None = None) -> IntArray:
        """Private labels ``(B,)`` or ``(B, F)`` int64; each teacher, a :class:`Voter`, is asked for the new inputs.

        Whatever a voter does, the others' work is not lost: the votes of one that raises an error, or that answers
        with another shape or other classes, count as missing. :attr:`sensitive_events` names it.

        Args:
            inputs, keys: as for :class:`~darrm_torch.PrivateMajorityEnsemble`.

        Raises:
            InvalidArgument: teachers that are only named, or inputs that are not finite numbers.
            BudgetExceeded: the batch would cost more than the ledger's budget; no teacher was asked.
        """
        if len(self.panel.voters) < len(self.profiles):
            cure = "Pass their votes: label(keys, votes)."
            raise InvalidArgument("teachers", "voters, to be asked for votes", "names", cure)
        inputs = checked_inputs(inputs)
        keys = input_keys(inputs, keys)
        classes = classes_of_votes(self.mechanism, self.classes)  # where votes cannot be read, no teacher is asked

        def counts(rows: Sequence[int], juries: BoolArray | None) -> IntArray:
            new = rows_of(inputs, rows)
            votes = np.full((len(self.profiles), *label_shape(len(rows), self.findings)), MISSING)
            for number in range(len(votes)):
                if juries is None or juries[..., number].any():
                    votes[number] = self.panel.vote(number, new, classes=classes)
            return self._counts(votes, [keys[row] for row in rows], juries)

        return np.asarray(self.answer(keys, counts), dtype=np.int64)

    @checked
    def answer(
        self, keys: Sequence[bytes], counts: Callable[[Sequence[int], BoolArray | None], Any], *, guesses: Any = None
    ) -> Any:
        """The labels of these keys, for callers that count votes themselves.

        Args:
            keys: what identifies each of the B inputs.
            counts: returns the vote counts ``(rows, C)`` for the positions of the keys that are new, of the teachers
                that are on the jury of each, ``(rows, K)``; of all teachers where that is ``None``. With findings both
                have a further dimension F after the first. It is called at most once, after the budget was checked.
            guesses: as for :meth:`label`.

        Returns:
            ``(B,)`` int64; ``(B, F)`` for findings; ``(B, C)`` float32 for mechanisms that release soft labels.

        Raises:
            BudgetExceeded: as :meth:`label`.
        """

        mechanism_for = informed(self.mechanism, guesses, math.prod(label_shape(len(keys), self.findings)))

        def draw(questions: Sequence[int]) -> Sequence[int | bytes]:
            new = self._inputs_of(questions)
            juries = self._juries(len(questions))
            shape = label_shape(len(new), self.findings)
            votes = counts(new, None if juries is None else juries.reshape(*shape, -1))
            votes = votes if self.findings is None else votes.reshape(-1, 2)
            return stored_labels(mechanism_for(questions).aggregate(votes))

        with self._overlap_hint():
            answers = self.ledger.answer(question_keys(keys, self.findings), draw)
        labels = restored_labels(answers, soft=self.mechanism.shares > 1)
        return labels if self.findings is None else labels.reshape(label_shape(len(keys), self.findings))

    def _inputs_of(self, questions: Sequence[int]) -> list[int]:
        """The positions of the inputs that questions at these positions are about."""
        of_each = math.prod(label_shape(1, self.findings))
        return list(dict.fromkeys(question // of_each for question in questions))

    def _juries(self, items: int) -> BoolArray | None:
        """Which teachers vote on each of so many new questions, ``(items, K)``; ``None``: all of them on every one."""
        if not isinstance(self.mechanism, NoiseFree) or self.mechanism.jury is None:
            return None
        votes = np.zeros((items, len(self.profiles)), dtype=np.bool_)
        if self._jury is not None:
            votes[:, self._jury] = True
        else:
            members = self.mechanism.draw_juries(teachers=len(self.profiles), items=items)
            np.put_along_axis(votes, members, True, axis=1)
        return votes

    @checked
    def check_budget(self, keys: Sequence[bytes]) -> list[int]:
        """The first positions of the new keys, if labels for all of them fit in the budget. Draws and charges nothing.

        Raises:
            BudgetExceeded: the new labels would not fit.
        """
        keys = question_keys(checked_keys(keys), self.findings)
        with self._overlap_hint():
            new = self.ledger.check(keys)
        warn_before_labels(self.mechanism, self.ledger, self._situation, self.delta, labels=len(set(keys)))
        return self._inputs_of(new)

    @contextmanager
    def _overlap_hint(self) -> Iterator[None]:
        """Explain a refusal that may be due only to an overlap that was not given."""
        try:
            yield
        except BudgetExceeded as error:
            if not self._overlap_unknown:
                raise
            raise BudgetExceeded(
                f"{error}. No overlap was given, so a record may be in the data of all {len(self.profiles)} teachers. "
                "If it can be in fewer, pass overlap=...: labels then cost less"
            ) from None

    # --- votes ----------------------------------------------------------------------------------------------------

    @property
    def sensitive_events(self) -> tuple[str, ...]:
        """The last 1,000 times that a voter failed; for the party that runs the labeler only."""
        return tuple(self.panel.events)

    def _checked_votes(self, votes: Any, inputs: int) -> IntArray:
        """A copy of the votes ``(K, B)`` or ``(K, B, F)`` of all teachers on so many inputs."""
        count, classes = len(self.profiles), classes_of_votes(self.mechanism, self.classes)
        cure = f"Row k holds the votes of teacher k: {count} teachers, one column for each key."
        return checked_votes(votes, (count, *label_shape(inputs, self.findings)), classes=classes, cure=cure)

    def _counts(self, votes: IntArray, keys: Sequence[bytes], juries: BoolArray | None) -> IntArray:
        """Vote counts ``(rows, C)``, or ``(rows, F, 2)``, of votes ``(K, rows)`` or ``(K, rows, F)``."""
        keys = question_keys(keys, self.findings)
        flat = None if juries is None else juries.reshape(len(keys), -1)
        counts = counts_of_votes(
            votes.reshape(len(votes), -1), keys, classes_of_votes(self.mechanism, self.classes), flat
        )
        return counts.reshape(*votes.shape[1:], -1)

    # --- privacy --------------------------------------------------------------------------------------------------

    @checked
    def total_privacy(self, *, labels: int, delta: float | None = None) -> TotalPrivacy:
        """The cost of ``labels`` labels together, F for each input with findings, at ``delta`` (of the labeler)."""
        total = total_privacy(labels=labels, delta=self.delta if delta is None else delta, **self._situation)
        return replace(total, assumptions=(*total.assumptions, *self._assumptions))

    @checked
    def privacy_report(self, *, as_dict: bool = False, markdown: bool = False) -> Any:
        """What was released, what one label and all labels cost, by which argument, under which assumptions.

        The report holds no digest of the teachers' weights. A digest is an exact function of the training data, so
        anyone who guesses the weights could confirm the guess. Only the ledger names the teachers.

        Args:
            as_dict: return a dictionary ready for JSON; ``label``, ``total`` and their ``routes`` are as in
                :meth:`TotalPrivacy.to_dict`: an epsilon is ``None`` where nothing is proven.
            markdown: return Markdown.

        Returns:
            Text for the person who answers for the data, or the same facts as a dictionary.
        """
        given = self.ledger.count
        facts = report_as_dict(
            self.ledger,
            mechanism=self.mechanism,
            profiles=self.profiles,
            overlap=self.overlap,
            label=self.total_privacy(labels=1),
            total=self.total_privacy(labels=given) if given else None,
            findings=self.findings,
        )
        return facts if as_dict else report_as_text(facts, markdown=markdown)


def _as_json(terms: Mapping[str, Any]) -> str:
    try:
        return json.dumps(terms)
    except (TypeError, ValueError) as error:
        raise InvalidArgument("rules", "facts that are ready for JSON", type(error).__name__, str(error)) from None


def _price(labels: int, **situation: Any) -> PrivacyGuarantee:
    return total_privacy(labels=labels, **situation).guarantee


_VOTES = (
    "Origin of the votes: each vote is computed from its input and the teacher that is named, and from nothing else. "
    "Whether a vote is missing does not depend on private records. Labels are protected, not votes: the party that "
    "runs the labeler sees the votes and is trusted with them, unless each site randomized its own."
)
