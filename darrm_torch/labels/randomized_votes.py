"""A site that randomizes its votes before they leave it, for an aggregator that may not see true votes."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..arguments import checked
from ..arrays import IntArray
from ..errors import InvalidArgument, check_integer
from ..mechanisms.selection import RandomizedPlurality
from ..privacy.profiles import PrivacyProfile
from .identity import as_tensors
from .labeler import PrivateLabeler
from .ledger import PrivacyLedger
from .voters import Voter

__all__ = ["RandomizedVotes"]


class RandomizedVotes:
    """A voter whose answers are private before anybody else sees them: randomized response on each vote.

    Formal guarantee: all answers that this site ever gives are together (epsilon, delta)-DP, the budget of its ledger,
    whatever anyone does with them and however the inputs are chosen (theory, composition: votes that are randomized at
    the sites). An input that is asked about again has the answer that it had before. An input that the budget does not
    pay for has no answer: :meth:`vote` raises :class:`BudgetExceeded`, and a labeler counts the vote as missing.

    The site is a :class:`PrivateLabeler` of one teacher, and its price is that of any other: the smallest of what
    publishing the teacher, the randomness of its answers, and both together prove.

    Args:
        teacher: votes, see :class:`Voter`. A vote that it fails to give is replaced by a public rule, then randomized.
        classes: C; 2 with findings.
        findings: the names of F findings, as for :class:`PrivateLabeler`; an input costs F answers.
        epsilon: of one answer. It is the vote with probability e^epsilon / (e^epsilon + C - 1), else another class.
        ledger: a ledger of the site's own, with a budget. It stores the answers, and nobody else may see it.
        profile: the guarantee of the teacher's training; ``None``: only the randomness of the answers protects, which
            then covers everything at the site, whatever the teacher does with it.

    Attributes:
        digest: names this site: random, and noted in the ledger, because a digest of the weights would reveal them. A
            site that starts another ledger has another name, so that the party that runs the labeler notices.
        profile: what the site's answers guarantee, for ``profiles`` of the labeler that asks it.
        labeler: the labeler of the one teacher, for its report and for the cost of so many answers.

    Raises:
        InvalidArgument: a ledger without a budget, or an argument out of range.
        LedgerError: the ledger belongs to another teacher or to other randomness.

    >>> import torch
    >>> from darrm_torch import PrivacyGuarantee
    >>> class Teacher:
    ...     digest = "weights of north"
    ...     def vote(self, inputs):
    ...         return (inputs.sum(dim=1) > 0).long()
    >>> ledger = PrivacyLedger(budget=PrivacyGuarantee(epsilon=3.0))  # pass a file, which outlives the process
    >>> site = RandomizedVotes(Teacher(), classes=2, epsilon=1.0, ledger=ledger)
    >>> answers = site.vote(torch.tensor([[1.0], [-1.0], [2.0]]))
    >>> answers.shape, bool((site.vote(torch.tensor([[1.0], [-1.0]])) == answers[:2]).all())
    ((3,), True)
    >>> print(site.profile.epsilon(0.0), ledger.left(10))
    3.0 0
    """

    @checked
    def __init__(
        self,
        teacher: Voter,
        *,
        classes: int,
        epsilon: float,
        ledger: PrivacyLedger,
        profile: PrivacyProfile | None = None,
        findings: Sequence[str] | None = None,
    ) -> None:
        if not isinstance(teacher, Voter):
            raise InvalidArgument(
                "teacher", "an object with a digest and a method vote(inputs)", type(teacher).__name__
            )
        if ledger.budget is None:
            cure = "The budget is what all answers of the site may reveal: PrivacyLedger(FILE, budget)."
            raise InvalidArgument("ledger", "one with a budget", ledger, cure)
        self.labeler = PrivateLabeler(
            RandomizedPlurality(epsilon=epsilon, teachers=1, classes=check_integer("classes", classes, low=2)),
            teachers=[teacher],
            profiles=None if profile is None else [profile],
            overlap=1,
            classes=classes,
            findings=findings,
            ledger=ledger,
        )
        self.findings = self.labeler.findings
        name = ledger.note("site", secrets.token_hex(16))
        assert name is not None
        self.digest = name
        promise = PrivacyProfile.from_guarantee(ledger.budget)
        self.profile = promise if profile is None else replace(promise, unit=profile.unit)

    def __repr__(self) -> str:
        return f"<RandomizedVotes: {self.labeler.mechanism!r}, {self.labeler.ledger!r}>"

    def vote(self, inputs: Any) -> IntArray:
        """Answers ``(B,)`` or ``(B, F)`` int64, stored before they are returned.

        Args:
            inputs: a tensor or an array ``(B, ...)``, or a structure of tensors.

        Raises:
            InvalidArgument: inputs that are no finite numbers.
            BudgetExceeded: the inputs that are new would cost more than the budget; no vote was taken.
        """
        return self.labeler(as_tensors(inputs))
