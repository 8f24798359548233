"""Finds the best tables: linear programs, whose solutions are rounded and then proven by :mod:`tables`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from scipy import optimize, sparse

from ..arrays import FloatArray, IntArray
from ..errors import check_number
from .grid import GRID
from .histograms import Standings
from .plurality_priors import VAGUE_VOTES, PluralityPrior, standing_weights
from .regions import check_overlap, growth_at_least
from .self_bounding import SelfBoundingCertificate
from .tables import VoteTable, noise_free_table

__all__ = ["self_bounding_table", "vote_private_table"]


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

    >>> from darrm_torch.noise.histograms import standings
    >>> table = self_bounding_table(standings(3, 3), allowance=2)
    >>> dict(zip(table.space.others, table.chances.round(4).tolist()))[(1,)]  # two votes against one
    0.8333
    """
    m = check_number("allowance", allowance, low=1e-6, high=math.inf, high_open=True)
    touched = check_overlap(overlap, space.votes)
    weights = standing_weights(space, prior)
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


def vote_private_table(space: Standings, *, epsilon: float, prior: PluralityPrior = VAGUE_VOTES) -> VoteTable:
    """The table that reports the true class most often among those where one changed vote is (epsilon, 0)-DP.

    For teachers without privacy of their own. Proven in exact rational arithmetic: one changed vote changes no
    probability by more than a factor of e^epsilon.

    Args:
        space: the standings.
        epsilon: in [1e-6, 500].
        prior: where the table should be good.

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
    return _mended(space, chances, lambda table: table.lacking_growth(growth) / (growth - 1))


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
