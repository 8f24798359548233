"""Tables that turn the votes for more than two classes into one label, and the exact check that a table is private.

A table gives the probability that a class of each standing (see :mod:`histograms`) becomes the label. Averaging any
rule over teachers and class names gives such a table that is as good under a prior that treats classes alike.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from ..arguments import as_array
from ..arrays import FloatArray, IntArray
from ..errors import InvalidArgument, PrivacyViolation
from ..privacy.guarantees import round_up
from .grid import GRID
from .histograms import Standings, standings
from .plurality_priors import PluralityPrior, standing_weights
from .self_bounding import SelfBoundingCertificate, largest_falls, largest_ratio, sealed

__all__ = ["VoteTable", "noise_free_table"]


@dataclass(frozen=True, kw_only=True, eq=False)
class VoteTable:
    """The probability that each class is the label, for every histogram of votes.

    Attributes:
        space: the standings, N of them.
        shares: (N,) int64, read-only: the probability, in units of 2**-53, that the label is one of the classes with
            this standing, each of which is then equally likely. The shares of every histogram sum to 2**53.
        certificate: the proof that the table is self-bounding; None without one.
    """

    space: Standings
    shares: IntArray
    certificate: SelfBoundingCertificate | None = None

    @classmethod
    def from_shares(cls, space: Standings, shares: Sequence[int]) -> VoteTable:
        """A table that was stored, without its certificate.

        Raises:
            InvalidArgument: these are not shares of the standings.
        """
        expected = "for each standing, in units of 2**-53, with sums of 1"
        numbers = as_array("shares", shares, expected).copy()
        right = numbers.shape == space.own.shape and numbers.dtype == np.int64 and numbers.min() >= 0
        if not right or np.any(_sums(space, numbers) != GRID):
            raise InvalidArgument("shares", expected, "others")
        numbers.setflags(write=False)
        return cls(space=space, shares=numbers)

    def certified(self, *, allowance: float, overlap: int, optimality_gap: float | None = None) -> VoteTable:
        """The table with the proof that it is self-bounding, in exact rational arithmetic.

        Raises:
            PrivacyViolation: ``allowance`` is too small for the table.
        """
        if self.lacking_allowance(allowance, overlap) > 0:
            raise PrivacyViolation(f"the table is not {allowance!r}-self-bounding for an overlap of {overlap}")
        certificate = sealed(
            SelfBoundingCertificate,
            teachers=self.space.votes,
            overlap=overlap,
            digest=self.digest,
            allowance=allowance,
            smallest=min(allowance, self.smallest_allowance(overlap)),
            optimality_gap=optimality_gap,
        )
        return replace(self, certificate=certificate)

    @functools.cached_property
    def chances(self) -> FloatArray:
        """(N,): the probability that one class of this standing is the label."""
        return self.shares / self.space.ties / GRID

    def label_probabilities(self, counts: IntArray) -> FloatArray:
        """The law of the label of each row of ``counts`` (B, C), rows that sum to the space's votes: (B, C)."""
        return np.asarray(self.chances[self.space.lookup[self.space.find(counts)[:, None], counts]])

    @functools.cached_property
    def steps(self) -> tuple[IntArray, IntArray]:
        """For drawing: each histogram's standings by their own votes, and the running sums of their shares.

        Both are (histograms, L). A uniform integer below 2**53 is less than the first sum with the probability of the
        first standing, and so on.
        """
        space, order = self.space, np.lexsort((-self.space.own, self.space.histogram))
        histogram = space.histogram[order]
        place = np.arange(len(order)) - np.searchsorted(histogram, histogram)
        levels = np.zeros((space.histograms, place.max() + 1), dtype=np.int64)
        shares = np.zeros_like(levels)
        levels[histogram, place], shares[histogram, place] = space.own[order], self.shares[order]
        return levels, np.cumsum(shares, axis=1)

    @functools.cached_property
    def _exact(self) -> tuple[list[int], int]:
        """The probabilities as integer multiples of one unit, and the number of units in 1."""
        common = math.lcm(*set(self.space.ties.tolist()))
        pairs = zip(self.shares.tolist(), self.space.ties.tolist(), strict=True)
        return [share * (common // tie) for share, tie in pairs], GRID * common

    @property
    def digest(self) -> str:
        """Identifies the table: SHA-256 of its numbers."""
        head = f"{self.space.votes},{self.space.classes}:".encode()
        return hashlib.sha256(head + self.shares.astype("<i8").tobytes()).hexdigest()

    def accuracy(self, prior: PluralityPrior) -> float:
        """The expected probability of the true class."""
        return float(standing_weights(self.space, prior) @ self.chances)

    def smallest_allowance(self, overlap: int, teachers: int | None = None) -> float:
        """The smallest m for which the table is m-self-bounding, rounded up; at most ``overlap``.

        For every standing, each voter alone can lower its probability by some amount. The sum of the ``overlap``
        largest amounts is at most m times the probability.

        Args:
            overlap: r.
            teachers: K: the table looks at its number of votes, drawn from K without replacement; None: at all votes.
        """
        if teachers is None or teachers == self.space.votes:
            return round_up(largest_ratio(self._falls(overlap)))
        space, chances = self._drawn_from(teachers)
        return round_up(largest_ratio(_largest_falls(space, chances, overlap)))

    def _drawn_from(self, teachers: int) -> tuple[Standings, list[int]]:
        """The probabilities for all votes of ``teachers``, in some exact unit: drop votes at random, one by one."""
        space, (chances, _) = self.space, self._exact
        while space.votes < teachers:
            fewer = dict(zip(space.others, chances, strict=True))
            space = standings(space.votes + 1, space.classes)
            chances = []
            for part, own in zip(space.others, space.own.tolist(), strict=True):
                chance = own * fewer[part] if own else 0
                for votes in set(part):
                    left = list(part)
                    left.remove(votes)
                    kept = tuple(sorted([*left, votes - 1] if votes > 1 else left, reverse=True))
                    chance += votes * part.count(votes) * fewer[kept]
                chances.append(chance)
        return space, chances

    def lacking_allowance(self, allowance: float, overlap: int) -> float:
        """Largest excess of a sum of falls over ``allowance`` times its probability; positive if m is too small."""
        exact = Fraction(allowance)
        return float(max(fall - exact * chance for fall, chance in self._falls(overlap)) / self._exact[1])

    def _falls(self, overlap: int) -> Iterator[tuple[int, int]]:
        """For each standing the sum of the ``overlap`` largest falls, and the probability, in the same exact unit."""
        return _largest_falls(self.space, self._exact[0], overlap)

    @functools.cached_property
    def vote_epsilon(self) -> float:
        """The smallest epsilon for which one changed vote changes no probability by more than e^epsilon; rounded up."""
        if any(chance > least == 0 for chance, least in self._changes()):
            return math.inf
        growth = round_up(largest_ratio(self._changes()))
        # The C library computes the logarithm to within one unit in the last place.
        return math.nextafter(math.log(growth), math.inf) if growth > 1 else 0.0

    def lacking_growth(self, growth: float) -> float:
        """Largest excess of a probability over ``growth`` times its value after one changed vote; positive if any."""
        exact, (_, unit) = Fraction(growth), self._exact
        return float(max(chance - exact * least for chance, least in self._changes()) / unit)

    def _changes(self) -> Iterator[tuple[int, int]]:
        """For each standing the probability, and its least value after one changed vote, in the same exact unit."""
        chances, _ = self._exact
        for chance, groups in zip(chances, self.space.moves, strict=True):
            yield chance, min(chances[to] for _, targets in groups for to in targets)


def _largest_falls(space: Standings, chances: list[int], overlap: int) -> Iterator[tuple[int, int]]:
    for chance, groups in zip(chances, space.moves, strict=True):
        falls = ((chance - min(chances[to] for to in targets), voters) for voters, targets in groups)
        yield largest_falls(falls, overlap), chance


def noise_free_table(space: Standings) -> VoteTable:
    """The plurality; a fair choice among the classes that tie for it."""
    best = np.zeros(space.histograms, dtype=np.int64)
    np.maximum.at(best, space.histogram, space.own)
    return VoteTable(space=space, shares=np.where(space.own == best[space.histogram], GRID, 0))


def _sums(space: Standings, shares: IntArray) -> IntArray:
    """The sum of the shares of each histogram: (histograms,)."""
    sums = np.zeros(space.histograms, dtype=np.int64)
    np.add.at(sums, space.histogram, np.minimum(shares, GRID + 1))
    return sums
