"""Tables that turn the votes for many classes into one label: the best table, and the proof that it is private.

A table says how likely a class with z votes becomes the label when the other classes have certain numbers of votes,
whichever classes these are. What a class sees of the votes is called its standing here: its own votes, and the votes
of the others without their names. By averaging over teachers and class names, no other rule does better under a prior
that treats classes alike.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import optimize, sparse, special

from ..arrays import FloatArray, IntArray
from ..errors import InvalidArgument, check_number
from ..privacy.guarantees import round_up
from .certificate import GRID, SelfBoundingCertificate, check_overlap
from .regions import growth_at_least

__all__ = [
    "VAGUE_VOTES",
    "PluralityPrior",
    "PluralityVotes",
    "Standings",
    "VoteTable",
    "noise_free_table",
    "self_bounding_table",
    "standings",
    "vote_private_table",
    "votes_within",
]


# --- what is believed about the votes ----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PluralityVotes:
    """A teacher is right with chance ``accuracy``; the wrong classes share the rest alike.

    The chances themselves vary from item to item, together for all teachers: Dirichlet, with these means and this
    concentration, so that the votes are Dirichlet-multinomial. It says where a table should be good, and never affects
    privacy; take it from public knowledge, not from votes on secret data.

    Args:
        accuracy: in (0, 1), and at least one in the number of classes.
        concentration: > 0; small: hard items fool all teachers at once; infinite: teachers err independently.

    Raises:
        InvalidArgument: a number out of range.
    """

    accuracy: float
    concentration: float = math.inf

    def __post_init__(self) -> None:
        accuracy = check_number("accuracy", self.accuracy, low=0.0, high=1.0, low_open=True, high_open=True)
        object.__setattr__(self, "accuracy", accuracy)
        concentration = check_number("concentration", self.concentration, low=0.0, low_open=True)
        object.__setattr__(self, "concentration", concentration)

    def weights(self, space: Standings) -> FloatArray:
        """Pr[this is the standing of the true class], for each standing; they sum to 1.

        Raises:
            InvalidArgument: an accuracy below that of guessing.
        """
        classes = space.classes
        if self.accuracy * classes < 1:
            raise InvalidArgument(
                "accuracy", f"at least 1/{classes}: with {classes} classes, guessing is that good", self.accuracy
            )
        wrong = (1 - self.accuracy) / (classes - 1)
        counts = np.zeros((len(space.own), classes))  # the true class first
        counts[:, 0] = space.own
        for row, others in zip(counts, space.others, strict=True):
            row[1 : 1 + len(others)] = others
        log = special.gammaln(classes) + special.gammaln(space.votes + 1) - special.gammaln(counts + 1).sum(axis=1)
        for votes in range(space.votes + 1):  # in how many ways the others' votes can be given to them
            log -= special.gammaln((counts[:, 1:] == votes).sum(axis=1) + 1)
        means = np.full(classes, wrong)
        means[0] = self.accuracy
        if math.isinf(self.concentration):
            log += counts @ np.log(means)
        else:
            prior = self.concentration * means
            log += (special.gammaln(prior + counts) - special.gammaln(prior)).sum(axis=1)
            log -= special.gammaln(self.concentration + space.votes) - special.gammaln(self.concentration)
        return np.asarray(np.exp(log))

    def sample(self, *, votes: int, classes: int, count: int, rng: np.random.Generator) -> IntArray:
        """``(count, classes)`` histograms of ``votes`` votes, the true class first."""
        means = np.full(classes, (1 - self.accuracy) / (classes - 1))
        means[0] = self.accuracy
        if math.isfinite(self.concentration):
            means = rng.dirichlet(self.concentration * means, size=count)
        return rng.multinomial(votes, means, size=count)


PluralityPrior: TypeAlias = PluralityVotes | Sequence[PluralityVotes]
"""One belief, or several that are thought equally likely."""

VAGUE_VOTES: tuple[PluralityVotes, ...] = (
    PluralityVotes(accuracy=0.5),
    PluralityVotes(accuracy=0.7),
    PluralityVotes(accuracy=0.9),
    PluralityVotes(accuracy=0.7, concentration=3.0),
)
"""Weak, middling and good teachers with independent errors, and teachers who find the same items hard."""


def check_plurality_prior(prior: Any) -> tuple[PluralityVotes, ...]:
    """``prior`` as a tuple, or :class:`InvalidArgument` when it is none."""
    parts = (prior,) if isinstance(prior, PluralityVotes) else prior
    if not isinstance(parts, Sequence) or not parts or not all(isinstance(part, PluralityVotes) for part in parts):
        raise InvalidArgument("prior", "PluralityVotes, or a sequence of them", prior)
    return tuple(parts)


# --- histograms of votes -------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Standings:
    """All standings of a class among ``classes`` with ``votes`` votes in all; N of them. See :func:`standings`.

    Attributes:
        others: N partitions: the votes of the other classes, descending, without zeros.
        own: (N,), the class's own votes.
        histogram: (N,), the number of the sorted histogram that the standing belongs to.
        ties: (N,), how many classes of that histogram have this standing.
        moves: for each standing, groups of voters who can change it by one vote: how many they are, and what the
            class's standing can become when one of them votes otherwise.
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
        """How many sorted histograms there are."""
        return int(self.histogram.max()) + 1

    @functools.cached_property
    def lookup(self) -> IntArray:
        """(histograms, votes + 1): the number of the standing with z own votes in a histogram, -1 if there is none."""
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
        """(N,): of a law (histograms, classes) of the label given each row of :attr:`counts`, the chance of each."""
        chance = np.zeros(len(self.own))
        chance[self.lookup[np.arange(self.histograms)[:, None], self.counts]] = law
        return chance

    @functools.cached_property
    def neighbours(self) -> tuple[IntArray, IntArray]:
        """All changes of one vote, up to the names of the classes: (M, classes) standings before, and after."""
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
        """(N, votes + 1): the number of the standing whose others are these and one more class with t votes, or -1."""
        number = {part: index for index, part in enumerate(self.others)}
        return np.array(
            [[number.get(_changed(part, add=more), -1) for more in range(self.votes + 1)] for part in self.others]
        )

    @functools.cached_property
    def _names(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64], IntArray]:
        """Random numbers for each count, whose sums over classes (mod 2**64) name the histograms, without sorting."""
        numbers = np.random.default_rng(0).integers(0, 2**64, size=self.votes + 1, dtype=np.uint64)
        names = np.zeros(self.histograms, dtype=np.uint64)
        for others, own, histogram in zip(self.others, self.own, self.histogram, strict=True):
            zeros = self.classes - 1 - len(others)
            names[histogram] = numbers[[own, *others, *[0] * zeros]].sum()
        order = np.argsort(names)
        if np.any(np.diff(names[order]) == 0):
            raise AssertionError("two histograms have one name")
        return numbers, names[order], order

    def find(self, counts: IntArray) -> IntArray:
        """The number of the histogram of each row of ``counts`` (B, classes), rows that sum to ``votes``: (B,)."""
        numbers, names, order = self._names
        return np.asarray(order[np.searchsorted(names, numbers[counts].sum(axis=1))])


@functools.lru_cache(maxsize=32)
def standings(votes: int, classes: int) -> Standings:
    """The standings of a class among ``classes`` >= 2 that share ``votes`` >= 1 votes."""
    others = tuple(part for total in range(votes + 1) for part in _partitions(total, classes - 1))
    number = {part: index for index, part in enumerate(others)}
    own = np.array([votes - sum(part) for part in others])
    found: dict[tuple[int, ...], int] = {}
    histogram, ties, moves = [], [], []
    for part, mine in zip(others, own.tolist(), strict=True):
        zeros = classes - 1 - len(part)
        histogram.append(found.setdefault(_changed(part, add=mine), len(found)))
        ties.append(1 + (part.count(mine) if mine else zeros))
        receivers = sorted(set(part)) + [0] * (zeros > 0)
        groups = []
        if mine:  # a voter of this class turns to another
            groups.append((mine, tuple(number[_changed(part, drop=to, add=to + 1)] for to in receivers)))
        for votes_there in sorted(set(part)):  # a voter of another class turns to this one, or to a third
            left = _changed(part, drop=votes_there, add=votes_there - 1)
            rest = _changed(part, drop=votes_there)
            third = sorted(set(rest)) + [0] * (zeros > 0)
            groups.append(
                (
                    votes_there * part.count(votes_there),
                    (
                        number[left],
                        *(number[_changed(_changed(rest, drop=to, add=to + 1), add=votes_there - 1)] for to in third),
                    ),
                )
            )
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
    """``total`` as a sum of at most ``parts`` positive numbers, descending, none above ``largest``."""
    if total == 0:
        yield ()
    elif parts:
        for first in range(min(total, largest or total), (total - 1) // parts, -1):
            for rest in _partitions(total - first, parts - 1, first):
                yield (first, *rest)


def _changed(part: tuple[int, ...], *, drop: int = 0, add: int = 0) -> tuple[int, ...]:
    """The partition without one class of ``drop`` votes and with one of ``add`` votes; zeros are not written."""
    result = list(part)
    if drop:
        result.remove(drop)
    if add:
        result.append(add)
    return tuple(sorted(result, reverse=True))


def votes_within(limit: int, *, votes: int, classes: int) -> int:
    """The most votes, at most ``votes``, whose sorted histograms over ``classes`` are no more than ``limit``.

    >>> votes_within(250, votes=51, classes=10)
    16
    """
    # Sorted histograms of s votes are partitions of s into parts of at most C (turn the diagram round).
    votes = min(votes, 2 * limit)  # of which there are limit + 1 or more
    ways = np.zeros(votes + 1, dtype=object)
    ways[0] = 1
    for part in range(1, min(classes, votes) + 1):
        for total in range(part, votes + 1):
            ways[total] = min(ways[total] + ways[total - part], limit + 1)
    return max(total for total in range(1, votes + 1) if total == 1 or ways[total] <= limit)


# --- tables and their proofs -----------------------------------------------------------------------------------------


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
        return float(_weights(self.space, prior) @ self.chances)

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

    def lacking_growth(self, growth: float, slack: float = 0.0) -> float:
        """By how much chances exceed ``growth`` times what one changed vote makes of them, and ``slack``; > 0: they do.

        For any set of labels: the excesses of all classes that have one are added up.
        """
        exact, (chances, unit) = Fraction(growth), self._exact
        times, over = exact.numerator, exact.denominator
        if slack == 0:
            return float(max(chance - exact * least for chance, least in self._changes()) / unit)
        most = 0
        for before, after in zip(*(side.tolist() for side in self.space.neighbours), strict=True):
            excesses = (chances[i] * over - chances[j] * times for i, j in zip(before, after, strict=True))
            most = max(most, sum(excess for excess in excesses if excess > 0))
        return float(Fraction(most, over * unit) - Fraction(slack))

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


def self_bounding_table(
    space: Standings, *, allowance: float, overlap: int | None = None, prior: PluralityPrior = VAGUE_VOTES
) -> VoteTable:
    """The table whose labels add up, and that tells the true class most often: m-self-bounding, m = ``allowance``.

    Formal guarantee: that of the :class:`SelfBoundingCertificate` it comes with, checked in exact rational arithmetic:
    Q labels of the same (eps, Delta)-DP teachers are (Q m eps, Q m Delta)-DP together (theory, section 9).

    One linear program: for each standing and group of voters a variable bounds the fall that one of them can bring
    about. Noise-free plurality is returned where it is self-bounding enough.

    Args:
        space: the standings; :func:`votes_within` says for how many votes they are practical.
        allowance: m >= 1e-6, real.
        overlap: r, how many votes one record can touch; None for all.
        prior: where the table should be good.

    Raises:
        InvalidArgument: bad input.

    >>> table = self_bounding_table(standings(3, 3), allowance=2)
    >>> dict(zip(table.space.others, table.chances.round(4).tolist()))[(1,)]  # two votes against one
    0.8333
    """
    m = check_number("allowance", allowance, low=1e-6, high=math.inf, high_open=True)
    touched = check_overlap(overlap, space.votes)
    weights = _weights(space, prior)
    table, bound = noise_free_table(space), math.inf
    if table.lacking_allowance(m, touched) > 0:
        chances, bound = _best(space, weights, _self_bounding_rows(space, m, touched))
        # Mixed with the uniform table of weight b/m for each class, a table that lacks b lacks nothing.
        table = _mended(space, chances, lambda table: table.lacking_allowance(m, touched) / m)
    reached = float(weights @ table.chances)
    certificate = SelfBoundingCertificate(
        teachers=space.votes,
        overlap=touched,
        digest=table.digest,
        allowance=m,
        smallest=min(m, table.smallest_allowance(touched)),
        optimality_gap=max(0.0, bound - reached) if math.isfinite(bound) else 0.0,
    )
    return replace(table, certificate=certificate)


def vote_private_table(
    space: Standings, *, epsilon: float, delta: float = 0.0, prior: PluralityPrior = VAGUE_VOTES
) -> VoteTable:
    """The table that tells the true class most often among those where one changed vote is (epsilon, delta)-DP.

    For teachers without privacy of their own. Proven in exact rational arithmetic: for no set of labels does the chance
    exceed e^epsilon times what one changed vote can make of it by more than delta.

    Args:
        space: the standings.
        epsilon: in [1e-6, 500].
        delta: in [0, 1).
        prior: where the table should be good.

    Raises:
        InvalidArgument: bad input.

    >>> table = vote_private_table(standings(1, 3), epsilon=math.log(4))  # randomized response
    >>> table.chances.round(4).tolist()
    [0.6667, 0.1667]
    """
    growth = growth_at_least(check_number("epsilon", epsilon, low=1e-6, high=500.0))
    slack = check_number("delta", delta, low=0.0, high=1.0, high_open=True)
    rows = _slack_rows(space, growth, slack) if slack else _vote_private_rows(space, growth)
    chances, _ = _best(space, _weights(space, prior), rows)
    # With uniform chances of weight w each, a sum of excesses that is positive falls by w (growth - 1) or more.
    return _mended(space, chances, lambda table: table.lacking_growth(growth, slack) / (growth - 1))


def _weights(space: Standings, prior: PluralityPrior) -> FloatArray:
    return np.asarray(np.mean([part.weights(space) for part in check_plurality_prior(prior)], axis=0))


def _best(space: Standings, weights: FloatArray, rows: Any) -> tuple[FloatArray, float]:
    """The chances with most ``weights`` for which ``rows @ (chances, other variables) <= 0``, and an upper bound."""
    count, columns = len(weights), rows.shape[1]
    costs = np.append(-weights, np.zeros(columns - count))
    sums = sparse.csr_array(
        (space.ties.astype(np.float64), (space.histogram, np.arange(count))), shape=(space.histograms, columns)
    )
    ones = np.ones(space.histograms)
    found = optimize.linprog(
        costs, A_ub=rows, b_ub=np.zeros(rows.shape[0]), A_eq=sums, b_eq=ones, bounds=(0, 1), method="highs-ipm"
    )
    if found.status != 0:
        raise RuntimeError(f"HiGHS stopped: {found.message}")
    # Weak duality, whatever the solver's tolerances: all variables are in [0, 1].
    prices, values = np.minimum(found.ineqlin.marginals, 0.0), found.eqlin.marginals
    bound = -values.sum() - np.minimum(costs - prices @ rows - values @ sums, 0.0).sum()
    return np.asarray(found.x[:count]), float(bound)


def _self_bounding_rows(space: Standings, allowance: float, overlap: int) -> Any:
    """Variables: chances q; for each group of voters its fall f beyond l; for each standing a level l (0 if all vote).

    f >= q - q(target) - l,  f >= 0,  l >= 0    and    sum (voters f) + overlap l <= m q,

    where the least left side over f and l is the sum of the ``overlap`` largest falls.
    """
    count = len(space.own)
    standing = np.repeat(np.arange(count), [len(groups) for groups in space.moves])
    voters = np.array([n for groups in space.moves for n, _ in groups], dtype=np.float64)
    targets = [group for groups in space.moves for _, group in groups]
    group = np.repeat(np.arange(len(targets)), [len(some) for some in targets])
    target = np.array([to for some in targets for to in some])
    level = count + len(targets) + np.arange(count if overlap < space.votes else 0)
    each = np.arange(len(target))
    last = len(target) + np.arange(count)
    entries = [
        (each, standing[group], 1.0),
        (each, target, -1.0),
        (each, count + group, -1.0),
        (last, np.arange(count), -allowance),
        (last[standing], count + np.arange(len(targets)), voters),
    ]
    if len(level):
        entries += [(each, level[standing[group]], -1.0), (last, level, float(overlap))]
    return _matrix(entries, len(target) + count, count + len(targets) + len(level))


def _vote_private_rows(space: Standings, growth: float) -> Any:
    """q / growth <= q(target)."""
    pairs = np.array([(i, to) for i, groups in enumerate(space.moves) for _, targets in groups for to in targets])
    each = np.arange(len(pairs))
    return _matrix([(each, pairs[:, 0], 1 / growth), (each, pairs[:, 1], -1.0)], len(pairs), len(space.own))


def _slack_rows(space: Standings, growth: float, slack: float) -> Any:
    """Variables: chances q; for each pair of standings that are one vote apart the excess f of the first.

    f >= q / growth - q(after),  f >= 0    and    sum f <= slack / growth (sum q), over the classes of a histogram.
    """
    before, after = space.neighbours
    count = len(space.own)
    pairs, number = np.unique(before * count + after, return_inverse=True)
    number = number.reshape(before.shape)
    each = np.arange(len(pairs))
    moves = len(pairs) + np.repeat(np.arange(len(before))[:, None], space.classes, axis=1)
    entries = [
        (each, pairs // count, 1 / growth),
        (each, pairs % count, -1.0),
        (each, count + each, -1.0),
        (moves.ravel(), count + number.ravel(), 1.0),
        (moves.ravel(), before.ravel(), -slack / growth),
    ]
    return _matrix(entries, len(pairs) + len(before), count + len(pairs))


def _matrix(entries: list[tuple[IntArray, IntArray, Any]], rows: int, columns: int) -> Any:
    row, column = (np.concatenate([entry[side] for entry in entries]) for side in (0, 1))
    value = np.concatenate([np.broadcast_to(value, len(where)) for where, _, value in entries])
    return sparse.csr_array((value, (row, column)), shape=(rows, columns))


def _mended(space: Standings, chances: FloatArray, lacking: Callable[[VoteTable], float]) -> VoteTable:
    """The chances on the grid, mixed with as much of the uniform table as it takes; usually none, or some 1e-12.

    Args:
        lacking: the weight of the uniform table for each class that mends a table; rounding may ask for a little more.
    """
    table = _rounded(space, chances)
    for attempt in range(60):
        weight = lacking(table)
        if weight <= 0:
            return table
        weight = min(2.0**attempt * (weight + 2.0**-52), 1 / space.classes)
        table = _rounded(space, (1 - space.classes * weight) * table.chances + weight)
    raise AssertionError("the uniform table is private")


def _rounded(space: Standings, chances: FloatArray) -> VoteTable:
    """As a table: each histogram's shares, rounded down; what is left goes to its likeliest standing."""
    shares = np.asarray(np.maximum(chances, 0.0) * space.ties, dtype=np.float64)
    shares = shares / np.bincount(space.histogram, shares)[space.histogram]
    whole = np.floor(shares * GRID).astype(np.int64)
    left = np.full(space.histograms, GRID)
    np.subtract.at(left, space.histogram, whole)
    order = np.lexsort((whole, space.histogram))
    likeliest = order[np.append(np.diff(space.histogram[order]) != 0, True)]
    whole[likeliest] += left
    return VoteTable(space=space, shares=whole)
