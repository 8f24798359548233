"""Finds the best tables: linear programs, whose solutions are rounded and then proven by :mod:`tables`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import optimize, sparse

from ..arrays import FloatArray, IntArray
from ..errors import check_number
from .grid import GRID
from .histograms import Standings
from .plurality_priors import VAGUE_VOTES, PluralityPrior, standing_weights
from .regions import check_overlap, growth_at_least
from .tables import VoteTable, noise_free_table

__all__ = ["self_bounding_table", "vote_private_table"]


def self_bounding_table(
    space: Standings, *, allowance: float, overlap: int | None = None, prior: PluralityPrior = VAGUE_VOTES
) -> VoteTable:
    """The m-self-bounding table, m = ``allowance``, that reports the true class most often.

    Formal guarantee: that of its :class:`SelfBoundingCertificate`, checked in exact rational arithmetic: Q labels of
    the same (eps, Delta)-DP teachers are together (Q m eps, Q m Delta)-DP (theory, section 9).

    The table solves one linear program. A variable for each standing and group of voters bounds the fall of the
    probability that one of these voters can cause. If noise-free plurality is m-self-bounding, it is returned.

    Args:
        space: the standings; :func:`votes_within` gives the number of votes that is practical.
        allowance: m >= 1e-6, real.
        overlap: r, the largest number of votes that one record affects; None for all.
        prior: the expected votes. It decides where the noise is small and never affects privacy.

    Raises:
        InvalidArgument: bad input.

    >>> from darrm_torch.noise.histograms import standings
    >>> table = self_bounding_table(standings(3, 3), allowance=2)
    >>> dict(zip(table.space.others, table.chances.round(4).tolist()))[(1,)]  # two votes against one
    0.8333
    """
    m = check_number("allowance", allowance, low=1e-6, high=math.inf, high_open=True)
    affected = check_overlap(overlap, space.votes)
    weights = standing_weights(space, prior)
    table, bound = noise_free_table(space), math.inf
    if table.lacking_allowance(m, affected) > 0:
        chances, bound = _best(space, weights, _self_bounding_rows(space, m, affected))
        # A table that exceeds its bound by b keeps it when mixed with the uniform table of weight b/m for each class.
        table = _repaired(space, chances, lambda table: table.lacking_allowance(m, affected) / m)
    reached = float(weights @ table.chances)
    gap = max(0.0, bound - reached) if math.isfinite(bound) else 0.0
    return table.certified(allowance=m, overlap=affected, optimality_gap=gap)


def vote_private_table(space: Standings, *, epsilon: float, prior: PluralityPrior = VAGUE_VOTES) -> VoteTable:
    """The table that reports the true class most often among those where one changed vote is (epsilon, 0)-DP.

    For teachers without privacy of their own. Proven in exact rational arithmetic: one changed vote changes no
    probability by more than a factor of e^epsilon.

    Args:
        space: the standings.
        epsilon: in [1e-6, 500].
        prior: the expected votes. It decides where the noise is small and never affects privacy.

    Raises:
        InvalidArgument: bad input.

    >>> from darrm_torch.noise.histograms import standings
    >>> table = vote_private_table(standings(1, 3), epsilon=math.log(4))  # randomized response
    >>> table.chances.round(4).tolist()
    [0.6667, 0.1667]
    """
    growth = growth_at_least(check_number("epsilon", epsilon, low=1e-6, high=500.0))
    chances, _ = _best(space, standing_weights(space, prior), _vote_private_rows(space, growth))
    # With uniform probabilities of weight w each, a positive excess falls by w (growth - 1) or more.
    return _repaired(space, chances, lambda table: table.lacking_growth(growth) / (growth - 1))


def _best(space: Standings, weights: FloatArray, rows: Any) -> tuple[FloatArray, float]:
    """The probabilities q that maximise ``weights @ q`` subject to ``rows @ (q, others) <= 0``; an upper bound."""
    count, columns = len(weights), rows.shape[1]
    costs = np.append(-weights, np.zeros(columns - count))
    sums = sparse.csr_array(
        (space.ties.astype(np.float64), (space.histogram, np.arange(count))), shape=(space.histograms, columns)
    )
    ones = np.ones(space.histograms)
    result = optimize.linprog(
        costs, A_ub=rows, b_ub=np.zeros(rows.shape[0]), A_eq=sums, b_eq=ones, bounds=(0, 1), method="highs-ipm"
    )
    if result.status != 0:
        raise RuntimeError(f"HiGHS stopped: {result.message}")
    # Weak duality, whatever the solver's tolerances: all variables are in [0, 1].
    prices, values = np.minimum(result.ineqlin.marginals, 0.0), result.eqlin.marginals
    bound = -values.sum() - np.minimum(costs - prices @ rows - values @ sums, 0.0).sum()
    return np.asarray(result.x[:count]), float(bound)


def _self_bounding_rows(space: Standings, allowance: float, overlap: int) -> Any:
    """The constraints of the self-bounding property.

    The variables are the probabilities q, for each group of voters its fall f beyond a level, and for each standing
    this level l (0 if ``overlap`` is all votes):

        f >= q - q(target) - l,  f >= 0,  l >= 0    and    sum (voters f) + overlap l <= m q.

    The smallest left side over f and l is the sum of the ``overlap`` largest falls.
    """
    count = len(space.own)
    standing = np.repeat(np.arange(count), [len(groups) for groups in space.moves])
    voters = np.array([n for groups in space.moves for n, _ in groups], dtype=np.float64)
    targets = [group for groups in space.moves for _, group in groups]
    group = np.repeat(np.arange(len(targets)), [len(standings) for standings in targets])
    target = np.array([to for standings in targets for to in standings])
    level = count + len(targets) + np.arange(count if overlap < space.votes else 0)
    index = np.arange(len(target))
    last = len(target) + np.arange(count)
    entries = [
        (index, standing[group], 1.0),
        (index, target, -1.0),
        (index, count + group, -1.0),
        (last, np.arange(count), -allowance),
        (last[standing], count + np.arange(len(targets)), voters),
    ]
    if len(level):
        entries += [(index, level[standing[group]], -1.0), (last, level, float(overlap))]
    return _matrix(entries, len(target) + count, count + len(targets) + len(level))


def _vote_private_rows(space: Standings, growth: float) -> Any:
    """q / growth <= q(target)."""
    pairs = np.array([(i, to) for i, groups in enumerate(space.moves) for _, targets in groups for to in targets])
    index = np.arange(len(pairs))
    return _matrix([(index, pairs[:, 0], 1 / growth), (index, pairs[:, 1], -1.0)], len(pairs), len(space.own))


def _matrix(entries: list[tuple[IntArray, IntArray, Any]], rows: int, columns: int) -> Any:
    row, column = (np.concatenate([entry[side] for entry in entries]) for side in (0, 1))
    value = np.concatenate([np.broadcast_to(value, len(where)) for where, _, value in entries])
    return sparse.csr_array((value, (row, column)), shape=(rows, columns))


def _repaired(space: Standings, chances: FloatArray, lacking: Callable[[VoteTable], float]) -> VoteTable:
    """The probabilities on the grid, mixed with as much of the uniform table as needed: usually none, or about 1e-12.

    Args:
        lacking: the weight of the uniform table, for each class, that repairs a table. Rounding can require slightly
            more.
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
    """The table with each histogram's shares rounded down; the remainder goes to its likeliest standing."""
    shares = np.asarray(np.maximum(chances, 0.0) * space.ties, dtype=np.float64)
    shares = shares / np.bincount(space.histogram, shares)[space.histogram]
    whole = np.floor(shares * GRID).astype(np.int64)
    left = np.full(space.histograms, GRID)
    np.subtract.at(left, space.histogram, whole)
    order = np.lexsort((whole, space.histogram))
    likeliest = order[np.append(np.diff(space.histogram[order]) != 0, True)]
    whole[likeliest] += left
    return VoteTable(space=space, shares=whole)
