"""Mechanisms that look labels up in a table: for private teachers, and for teachers without privacy."""

from __future__ import annotations

import functools
import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeVar

import numpy as np
from scipy import stats

from ..arrays import FloatArray, IntArray
from ..errors import PrivacyViolation, check_integer, check_number
from ..noise.histograms import Standings, standings, votes_within
from ..noise.plurality_priors import VAGUE_VOTES, PluralityPrior, check_plurality_prior
from ..noise.regions import check_overlap, growth_at_least
from ..noise.table_program import self_bounding_table, vote_private_table
from ..noise.tables import VoteTable
from ..privacy.guarantees import PrivacyGuarantee
from .base import MOST_VOTES, Mechanism, check_request
from .gaussian import pure_composition
from .sampling import RandomBits, fair_argmax

__all__ = ["MOST_CLASSES", "SelfBoundingPlurality", "VotePrivatePlurality"]

MOST_CLASSES = 10_000
_Table = TypeVar("_Table", bound="_Plurality")
_LISTED = 350  # the most histograms of all votes for which the allowance of a sample is computed on them


@dataclass(frozen=True, kw_only=True)
class _Plurality(Mechanism):
    """Draws ``sample`` of the K votes and looks their histogram up in a table; both steps are exact."""

    teachers: int = 0  # required: zero is refused
    classes: int = 0
    overlap: int | None = None
    prior: PluralityPrior = VAGUE_VOTES
    sample: int | None = None
    _most_histograms: ClassVar[int] = 350  # the most for which a linear program takes two or three seconds
    _table: VoteTable = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._validate("teachers", check_integer, low=1, high=MOST_VOTES)
        self._validate("classes", check_integer, low=2, high=MOST_CLASSES)
        count, classes, sample = self.teachers, self.classes, self.sample
        if sample is None:
            sample = votes_within(self._most_histograms, votes=count, classes=classes)
        sample = check_integer("sample", sample, low=1, high=count)
        if self.overlap is not None:
            object.__setattr__(self, "overlap", check_overlap(self.overlap, count))
        object.__setattr__(self, "sample", sample)
        object.__setattr__(self, "prior", check_plurality_prior(self.prior))
        object.__setattr__(self, "_table", self._solve(standings(sample, classes)))

    @abstractmethod
    def _solve(self, space: Standings) -> VoteTable: ...

    @abstractmethod
    def _proven(self, table: VoteTable) -> VoteTable:
        """The table, proven to keep what the mechanism promises."""

    def with_shares(self: _Table, shares: Sequence[int]) -> _Table:
        """This mechanism with a table that was solved before, perhaps on another machine, and is proven again.

        Args:
            shares: ``table.shares`` of a mechanism with the same arguments.

        Raises:
            InvalidArgument: they are not the shares of such a table.
            PrivacyViolation: the table does not keep what this mechanism promises.
        """
        other = replace(self)
        object.__setattr__(other, "_table", self._proven(VoteTable.from_shares(self._table.space, shares)))
        return other

    @property
    def table(self) -> VoteTable:
        """The table in which the ``sample`` votes are looked up."""
        return self._table

    @property
    def _affected(self) -> int:
        """The overlap, as a number."""
        return check_overlap(self.overlap, self.teachers)

    @property
    def _votes(self) -> int:
        """The number of votes that the table is for."""
        return self._table.space.votes

    @property
    def certificate(self) -> Any:
        """A :class:`SelfBoundingCertificate`, where there is one."""
        proven = self._table.certificate
        return None if proven is None else proven.for_votes_of(self.teachers, self._affected)

    def guarantee(
        self, *, labels: int = 1, delta: float | None = None, overlap: int | None = None
    ) -> PrivacyGuarantee | None:
        """What the mechanism's own randomness promises; ``None`` if some label is possible for some votes only.

        If one changed vote makes a label of the table eta-DP, it makes a label that looks at s of K votes log(1 + s/K
        (e^eta - 1))-DP (Balle, Barthe, Gaboardi 2018, Theorem 9), and r changed votes cost r times that.
        """
        labels, delta, overlap = check_request(labels, delta, overlap)
        epsilon = self._table.vote_epsilon
        if math.isinf(epsilon):
            return None
        if self._votes < self.teachers:
            epsilon = math.log1p(self._votes / self.teachers * math.expm1(epsilon)) * (1 + 2.0**-46)
        epsilon *= min(overlap or self._affected, self.teachers) * (1 + 2.0**-50)
        return pure_composition(epsilon, epsilon**2 / 2, labels=labels, delta=delta or 0.0)

    def self_bounding_allowance(self, *, teachers: int | None = None, overlap: int | None = None) -> float:
        """The smallest m for which the label is m-self-bounding, exact and rounded up; at most the overlap.

        Where K votes have more histograms than can be listed, it is that of the table for the votes drawn, which is no
        less: a mixture of m-self-bounding rules is m-self-bounding.
        """
        count = self._teacher_count(teachers)
        affected = check_overlap(overlap, count)
        proven = self._table.smallest_allowance(min(affected, self._votes))
        if self._votes < count == votes_within(_LISTED, votes=count, classes=self._table.space.classes):
            proven = min(proven, self._table.smallest_allowance(affected, count))
        return proven

    def expected_accuracy(self, prior: PluralityPrior) -> float:
        """The exact probability that a label is the true class; the votes drawn have the same prior as all K."""
        return self._table.accuracy(prior)

    def _parameters(self) -> dict[str, Any]:
        return {"overlap": self._affected, "sample": self._votes, "table": self._table.digest}

    def _notes(self) -> list[str]:
        return [f"draws {self._votes} of the votes for each label"] if self._votes < self.teachers else []

    def _draw(self, counts: IntArray) -> IntArray:
        drawn = _sampled(counts, self._votes, self._bits)
        histogram = self._table.space.find(drawn)
        levels, steps = self._table.steps
        words = (self._bits.words(len(drawn), 1) >> np.uint64(11)).astype(np.int64)
        level = levels[histogram, (words >= steps[histogram]).sum(axis=1)]
        return fair_argmax((drawn == level[:, None]).astype(np.int64), self._bits)

    def _law(self, counts: IntArray) -> FloatArray:
        if self._votes < self.teachers:
            rows, inverse = np.unique(counts, axis=0, return_inverse=True)
            return _sampled_law(rows, self._table)[inverse.reshape(-1)]
        return self._table.label_probabilities(counts)


@dataclass(frozen=True, kw_only=True)
class SelfBoundingPlurality(_Plurality):
    """A private plurality of C classes whose labels add up: the best that is m-self-bounding (theory, section 9).

    Formal guarantee: let the teachers be independent, each (eps, Delta)-DP as a trained model, and let a record be in
    the training data of at most ``overlap`` of them. Then Q labels, requested adaptively of the same teachers, are
    together (Q m eps, Q m Delta)-DP with m = ``allowance``, at every (eps, Delta) that the teachers keep. Building it
    needs no epsilon. Its ``certificate`` is a proof in exact rational arithmetic, and
    :func:`darrm_torch.total_privacy` prices labels by it. Its own randomness promises nothing.

    The best table is the solution of a linear program over all histograms of votes. Where there are too many, each
    label looks at ``sample`` of the K votes, drawn again without replacement, which keeps the guarantee. The noise-free
    plurality is returned where it is self-bounding enough. For two classes it is
    :func:`darrm_torch.self_bounding_noise`.

    Args:
        teachers: K.
        classes: C >= 2.
        allowance: m >= 1e-6, real: the price of a label, in units of one teacher's guarantee.
        overlap: r, the largest number of teachers that have a record in their training data; None for all.
        prior: where labels should be good, from public knowledge; does not affect privacy.
        sample: the number of votes that a label looks at; None: as many as can be solved for in two or three seconds
            (all 51 for three classes, 18 for ten).

    Raises:
        InvalidArgument: an argument out of range.

    >>> mechanism = SelfBoundingPlurality(teachers=5, classes=3, allowance=2.0)
    >>> mechanism.label_probabilities(np.array([[4, 1, 0], [2, 2, 1]])).round(3).tolist()
    [[1.0, 0.0, 0.0], [0.464, 0.464, 0.071]]
    """

    allowance: float

    def _solve(self, space: Standings) -> VoteTable:
        allowance = check_number("allowance", self.allowance, low=1e-6, high=math.inf, high_open=True)
        object.__setattr__(self, "allowance", allowance)
        return _self_bounding(space, allowance=allowance, overlap=min(self._affected, space.votes), prior=self.prior)

    def _proven(self, table: VoteTable) -> VoteTable:
        return table.certified(allowance=self.allowance, overlap=min(self._affected, table.space.votes))

    def _parameters(self) -> dict[str, Any]:
        return {"allowance": self.allowance, **super()._parameters()}


@dataclass(frozen=True, kw_only=True)
class VotePrivatePlurality(_Plurality):
    """The best plurality that protects single votes by its own randomness, whatever the teachers promise.

    The optimal counterpart of :class:`PermuteAndFlip` for few teachers: the solution of a linear program over all
    histograms, in which one changed vote changes no probability by more than a factor of e^(epsilon / r). With more
    than about 10 / epsilon teachers :class:`PermuteAndFlip` is as good, or better because it looks at all votes.

    Formal guarantee, whatever the teachers promise: a label is epsilon-DP, with delta = 0, if one record changes the
    votes of at most ``overlap`` teachers. A delta would gain next to nothing: if a label is right with probability a,
    at most (C a - 1) delta / (e^epsilon - 1) of it (r = 1), because mixing with uniform labels until no delta is needed
    costs no more than that.

    Args:
        teachers: K.
        classes: C >= 2.
        epsilon: of one label; epsilon / r in [1e-6, 500].
        overlap: r, the largest number of teachers that have a record in their training data: 1 for disjoint shards;
            None for all.
        prior: where labels should be good, from public knowledge; does not affect privacy.
        sample: as in :class:`SelfBoundingPlurality` (all 101 for three classes, 22 for ten); with fewer votes drawn,
            the same privacy needs less noise on each.

    Raises:
        InvalidArgument: an argument out of range.

    >>> mechanism = VotePrivatePlurality(teachers=11, classes=10, epsilon=0.5)
    >>> str(mechanism.guarantee())
    '(0.5, 0)-DP'
    """

    epsilon: float
    overlap: int | None = 1
    _most_histograms: ClassVar[int] = 910

    def _solve(self, space: Standings) -> VoteTable:
        affected = self._affected
        epsilon = check_number("epsilon", self.epsilon, low=affected * 1e-6, high=affected * 500.0)
        object.__setattr__(self, "epsilon", epsilon)
        return _vote_private(space, epsilon=self._one_vote(space), prior=self.prior)

    def _proven(self, table: VoteTable) -> VoteTable:
        if table.lacking_growth(growth_at_least(self._one_vote(table.space))) > 0:
            raise PrivacyViolation(f"the table does not keep epsilon = {self.epsilon!r}")
        return table

    def _one_vote(self, space: Standings) -> float:
        """The epsilon of one vote that the table sees."""
        one_vote = self.epsilon / self._affected * (1 - 2.0**-40)
        if space.votes < self.teachers:
            one_vote = math.log1p(self.teachers / space.votes * math.expm1(one_vote)) * (1 - 2.0**-40)
        return min(one_vote, 500.0)

    def _parameters(self) -> dict[str, Any]:
        return {"epsilon": self.epsilon, **super()._parameters()}


# Each linear program is solved once for all mechanisms that need it.
_self_bounding = functools.lru_cache(maxsize=32)(self_bounding_table)
_vote_private = functools.lru_cache(maxsize=32)(vote_private_table)


def _sampled(counts: IntArray, sample: int, bits: RandomBits) -> IntArray:
    """The counts of ``sample`` of each row's votes, drawn without replacement, exactly: (B, C) -> (B, C)."""
    if not len(counts):
        return counts
    teachers = int(counts[0].sum())
    rest, rows = counts.copy(), np.arange(len(counts))
    for left in range(teachers, teachers - min(sample, teachers - sample), -1):
        vote = bits.below(np.full(len(counts), left))
        rest[rows, (np.cumsum(rest, axis=1) <= vote[:, None]).sum(axis=1)] -= 1
    return rest if teachers - sample < sample else counts - rest


def _sampled_law(counts: IntArray, table: VoteTable) -> FloatArray:
    """The law of the label when the table sees a sample: (B, C) -> (B, C).

    Independent Binomial(n_c, s/K) votes, conditioned on their sum s, are a sample without replacement. For each class
    the other classes are added one after the other, which gives the law of its standing.
    """
    space = table.space
    law = np.zeros(counts.shape)
    for row, votes in enumerate(counts):
        teachers = int(votes.sum())
        share = space.votes / teachers
        drawn = stats.binom.pmf(np.arange(space.votes + 1), votes[:, None], share)
        for level in np.unique(votes):
            mine = int(np.flatnonzero(votes == level)[0])
            reached = np.zeros(len(space.own))
            reached[0] = 1.0  # no other class yet
            for other in np.flatnonzero(votes):
                if other != mine:
                    grown = np.zeros_like(reached)
                    for more in range(min(int(votes[other]), space.votes) + 1):
                        fits = space.joined[:, more] >= 0
                        grown[space.joined[fits, more]] += reached[fits] * drawn[other, more]
                    reached = grown
            reached *= drawn[mine, space.own] * table.chances
            law[row, votes == level] = reached.sum() / stats.binom.pmf(space.votes, teachers, share)
    return law
