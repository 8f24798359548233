"""Tables that turn the votes for more than two classes into one label, and the exact check that a table is private.

A table gives the probability that a class of each standing (see :mod:`histograms`) becomes the label. Averaging any
rule over teachers and class names gives such a table that is as good under a prior that treats classes alike.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from ..arrays import FloatArray, IntArray
from ..privacy.guarantees import round_up
from .grid import GRID
from .histograms import Standings
from .plurality_priors import PluralityPrior, standing_weights
from .self_bounding import SelfBoundingCertificate

__all__ = ["VoteTable", "noise_free_table"]


@dataclass(frozen=True, kw_only=True, eq=False)
class VoteTable:
    """How likely each class is the label, for every histogram of votes.

    Attributes:
        space: the standings.
        shares: (N,) int64, read-only: the chance, in units of 2**-53, that the label is one of the classes with this
            standing, each of which is then equally likely. They sum to 2**53 in every histogram.
        certificate: that it is self-bounding, if that has been proven.
    """

    space: Standings
    shares: IntArray
    certificate: SelfBoundingCertificate | None = None

    @functools.cached_property
    def chances(self) -> FloatArray:
        """(N,): the probability that one class of this standing is the label."""
        return self.shares / self.space.ties / GRID

    def label_probabilities(self, counts: IntArray) -> FloatArray:
        """The law of the label of each row of ``counts`` (B, C), rows that sum to the space's votes: (B, C)."""
        return np.asarray(self.chances[self.space.lookup[self.space.find(counts)[:, None], counts]])

    @functools.cached_property
    def steps(self) -> tuple[IntArray, IntArray]:
        """For drawing: the own votes of each histogram's standings, and their shares, added up; (histograms, L) each.

        A uniform integer below 2**53 falls short of the first sum with the chance of the first standing, and so on.
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
        """The same exactly: whole multiples of one over a number, and that number."""
        common = math.lcm(*set(self.space.ties.tolist()))
        pairs = zip(self.shares.tolist(), self.space.ties.tolist(), strict=True)
        return [share * (common // tie) for share, tie in pairs], GRID * common

    @property
    def digest(self) -> str:
        """A name for the table: SHA-256 of its numbers."""
        head = f"{self.space.votes},{self.space.classes}:".encode()
        return hashlib.sha256(head + self.shares.astype("<i8").tobytes()).hexdigest()

    def accuracy(self, prior: PluralityPrior) -> float:
        """The expected probability of the true class."""
        return float(standing_weights(self.space, prior) @ self.chances)

    def smallest_allowance(self, overlap: int) -> float:
        """The smallest m for which the table is m-self-bounding when a record touches ``overlap`` votes, rounded up.

        For every standing, the falls of its chance that each voter alone can bring about, summed over the ``overlap``
        voters who can bring about the largest, are at most m times the chance. At most ``overlap``.
        """
        most, over = 0, 1
        for fall, chance in self._falls(overlap):
            if fall * over > most * chance:
                most, over = fall, chance
        return round_up(Fraction(most, over))

    def lacking_allowance(self, allowance: float, overlap: int) -> float:
        """By how much a fall exceeds ``allowance`` times its chance; at most 0 if the table is self-bounding."""
        exact = Fraction(allowance)
        return float(max(fall - exact * chance for fall, chance in self._falls(overlap)) / self._exact[1])

    def _falls(self, overlap: int) -> Iterator[tuple[int, int]]:
        """For each standing the sum of the ``overlap`` largest falls, and the chance, both in the same exact unit."""
        chances, _ = self._exact
        for chance, groups in zip(chances, self.space.moves, strict=True):
            falls = sorted(((chance - min(chances[to] for to in targets), n) for n, targets in groups), reverse=True)
            left, total = overlap, 0
            for fall, voters in falls:
                if fall <= 0 or not left:
                    break
                total += fall * min(voters, left)
                left -= min(voters, left)
            yield total, chance

    @functools.cached_property
    def vote_epsilon(self) -> float:
        """The smallest epsilon for which one changed vote changes a chance by at most e^epsilon; rounded up."""
        most, over = 1, 1
        for chance, least in self._changes():
            if chance * over > most * least:
                if least == 0:
                    return math.inf
                most, over = chance, least
        # The logarithm of the C library is off by less than one unit in the last place.
        return math.nextafter(math.log(round_up(Fraction(most, over))), math.inf) if most > over else 0.0

    def lacking_growth(self, growth: float) -> float:
        """Largest excess of a probability over ``growth`` times its value after one changed vote; positive if any."""
        exact, (_, unit) = Fraction(growth), self._exact
        return float(max(chance - exact * least for chance, least in self._changes()) / unit)

    def _changes(self) -> Iterator[tuple[int, int]]:
        """For each standing the chance, and the least that one changed vote can make of it, in the same exact unit."""
        chances, _ = self._exact
        for chance, groups in zip(chances, self.space.moves, strict=True):
            yield chance, min(chances[to] for _, targets in groups for to in targets)


def noise_free_table(space: Standings) -> VoteTable:
    """The plurality; a fair choice among the classes that tie for it."""
    best = np.zeros(space.histograms, dtype=np.int64)
    np.maximum.at(best, space.histogram, space.own)
    return VoteTable(space=space, shares=np.where(space.own == best[space.histogram], GRID, 0))
