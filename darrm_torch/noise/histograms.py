"""Sorted histograms of votes over more than two classes, and the standing of a class in them.

The standing of a class is what it sees of the votes: its own votes, and the votes of the other classes without their
names.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..arrays import FloatArray, IntArray

__all__ = ["Standings", "standings", "votes_within"]


@dataclass(frozen=True, eq=False)
class Standings:
    """All N standings of a class among ``classes`` classes that share ``votes`` votes; see :func:`standings`.

    Attributes:
        others: N partitions: the votes of the other classes, descending, without zeros.
        own: (N,), the class's own votes.
        histogram: (N,), the number of the sorted histogram that the standing belongs to.
        ties: (N,), how many classes of that histogram have this standing.
        moves: for each standing, groups of voters that can change it by one vote. A group is its size, and the
            standings that the class can have after one of them changes its vote.
    """

    votes: int
    classes: int
    others: tuple[tuple[int, ...], ...]
    own: IntArray
    histogram: IntArray
    ties: IntArray
    moves: tuple[tuple[tuple[int, tuple[int, ...]], ...], ...]

    @property
    def histograms(self) -> int:
        """The number of sorted histograms."""
        return int(self.histogram.max()) + 1

    @functools.cached_property
    def lookup(self) -> IntArray:
        """(histograms, votes + 1): the number of the standing with z own votes in a histogram, or -1."""
        table = np.full((self.histograms, self.votes + 1), -1)
        table[self.histogram, self.own] = np.arange(len(self.own))
        return table

    @functools.cached_property
    def counts(self) -> IntArray:
        """(histograms, classes): the votes of all classes, ascending."""
        rows = np.zeros((self.histograms, self.classes), dtype=np.int64)
        for others, own, histogram in zip(self.others, self.own, self.histogram, strict=True):
            rows[histogram] = np.sort([own, *others, *[0] * (self.classes - 1 - len(others))])
        return rows

    def per_standing(self, law: FloatArray) -> FloatArray:
        """(N,): each standing's probability under a law (histograms, classes) of the label given :attr:`counts`."""
        chances = np.zeros(len(self.own))
        chances[self.lookup[np.arange(self.histograms)[:, None], self.counts]] = law
        return chances

    @functools.cached_property
    def neighbours(self) -> tuple[IntArray, IntArray]:
        """All changes of one vote up to the names of the classes: the standings before and after, (M, classes) each."""
        here, moved = [], []
        for row in self.counts:
            levels, first = np.unique(row, return_index=True)
            last = np.append(first[1:], self.classes) - 1
            for start in first[levels > 0]:
                for end in last[last != start]:
                    here.append(row)
                    moved.append(row.copy())
                    moved[-1][[start, end]] += [-1, 1]
        before, after = np.array(here), np.array(moved)
        return self.lookup[self.find(before)[:, None], before], self.lookup[self.find(after)[:, None], after]

    @functools.cached_property
    def joined(self) -> IntArray:
        """(N, votes + 1): the number of the standing whose others gain one class with t votes, or -1."""
        number = {part: index for index, part in enumerate(self.others)}
        return np.array(
            [[number.get(_changed(part, add=more), -1) for more in range(self.votes + 1)] for part in self.others]
        )

    @functools.cached_property
    def _names(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64], IntArray]:
        """Random numbers for each count; their sums over classes (mod 2**64) identify histograms without sorting."""
        numbers = np.random.default_rng(0).integers(0, 2**64, size=self.votes + 1, dtype=np.uint64)
        names = np.zeros(self.histograms, dtype=np.uint64)
        for others, own, histogram in zip(self.others, self.own, self.histogram, strict=True):
            zeros = self.classes - 1 - len(others)
            names[histogram] = numbers[[own, *others, *[0] * zeros]].sum()
        order = np.argsort(names)
        if np.any(np.diff(names[order]) == 0):
            raise AssertionError("two histograms share an identifier")
        return numbers, names[order], order

    def find(self, counts: IntArray) -> IntArray:
        """(B,): the number of the histogram of each row of ``counts`` (B, classes); each row sums to ``votes``."""
        numbers, names, order = self._names
        return np.asarray(order[np.searchsorted(names, numbers[counts].sum(axis=1))])


@functools.lru_cache(maxsize=32)
def standings(votes: int, classes: int) -> Standings:
    """The standings of a class among ``classes`` >= 2 that share ``votes`` >= 1 votes."""
    others = tuple(part for total in range(votes + 1) for part in _partitions(total, classes - 1))
    number = {part: index for index, part in enumerate(others)}
    own = np.array([votes - sum(part) for part in others])
    numbers: dict[tuple[int, ...], int] = {}
    histogram, ties, moves = [], [], []
    for part, mine in zip(others, own.tolist(), strict=True):
        zeros = classes - 1 - len(part)
        histogram.append(numbers.setdefault(_changed(part, add=mine), len(numbers)))
        ties.append(1 + (part.count(mine) if mine else zeros))
        receivers = sorted(set(part)) + [0] * (zeros > 0)
        groups = []
        if mine:  # a voter of this class changes to another class
            groups.append((mine, tuple(number[_changed(part, drop=to, add=to + 1)] for to in receivers)))
        for votes_there in sorted(set(part)):  # a voter of another class changes to this one, or to a third
            left = _changed(part, drop=votes_there, add=votes_there - 1)
            rest = _changed(part, drop=votes_there)
            third = sorted(set(rest)) + [0] * (zeros > 0)
            moved = [number[_changed(_changed(rest, drop=to, add=to + 1), add=votes_there - 1)] for to in third]
            groups.append((votes_there * part.count(votes_there), (number[left], *moved)))
        moves.append(tuple(groups))
    return Standings(
        votes=votes,
        classes=classes,
        others=others,
        own=own,
        histogram=np.array(histogram),
        ties=np.array(ties),
        moves=tuple(moves),
    )


def _partitions(total: int, parts: int, largest: int | None = None) -> Iterator[tuple[int, ...]]:
    """The ways to write ``total`` as at most ``parts`` positive numbers, descending, none above ``largest``."""
    if total == 0:
        yield ()
    elif parts:
        for first in range(min(total, largest or total), (total - 1) // parts, -1):
            for rest in _partitions(total - first, parts - 1, first):
                yield (first, *rest)


def _changed(part: tuple[int, ...], *, drop: int = 0, add: int = 0) -> tuple[int, ...]:
    """The partition without one class of ``drop`` votes and with one of ``add`` votes; zeros are left out."""
    result = list(part)
    if drop:
        result.remove(drop)
    if add:
        result.append(add)
    return tuple(sorted(result, reverse=True))


def votes_within(limit: int, *, votes: int, classes: int) -> int:
    """The largest number of votes, at most ``votes``, that has no more than ``limit`` sorted histograms.

    Args:
        limit: the largest number of histograms.
        votes: the largest number of votes.
        classes: how many classes share the votes.

    >>> votes_within(250, votes=51, classes=10)
    16
    """
    # Sorted histograms of s votes over C classes are as many as partitions of s into parts of at most C (conjugation).
    votes = min(votes, 2 * limit)  # 2 * limit votes have more than limit histograms
    ways = np.zeros(votes + 1, dtype=object)
    ways[0] = 1
    for part in range(1, min(classes, votes) + 1):
        for total in range(part, votes + 1):
            ways[total] = min(ways[total] + ways[total - part], limit + 1)
    return max(total for total in range(1, votes + 1) if total == 1 or ways[total] <= limit)
