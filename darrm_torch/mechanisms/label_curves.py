"""The privacy curve of one label by the mechanism's own randomness, where all histograms of the votes can be listed.

The curve is the largest delta at each epsilon over all pairs of neighbouring histograms, in both orders. Theory: "Own
randomness, many labels" in ``docs/theory/composition.md``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np

from ..arrays import FloatArray, IntArray
from ..noise.histograms import Standings, standings, votes_within
from ..privacy.guarantees import PrivacyGuarantee
from ..privacy.profiles import PrivacyProfile

__all__ = ["LARGEST_LISTED", "composed_epsilon", "curve_of_pairs", "worst_curve"]

_MOST_HISTOGRAMS = 1000
_MOST_PAIRS = 100_000
_MOST_TERMS = 2e7  # values of the noise, for all histograms: seconds
_MOST_MOVES = 8  # votes that may move at once
LARGEST_LISTED = 64.0  # nats; a label with a larger epsilon gains nothing worth listing
_MOST_LABELS = 2**17  # composing more takes seconds
_POINTS = 257
_MOST_NUMBERS = 2**18  # in one array
_ERROR = 1.01e-12  # of each probability: see Mechanism.label_probabilities


def worst_curve(
    law: Callable[[IntArray], FloatArray],
    *,
    teachers: int,
    classes: int,
    overlap: int,
    beyond: PrivacyGuarantee,
    terms: float = 1.0,
) -> tuple[PrivacyGuarantee, ...]:
    """Guarantees of one label that all hold at once, for all votes of which up to ``overlap`` change.

    Args:
        law: (B, C) counts to (B, C) probabilities, or (B, C + 1) with a last column that names no class. Classes are
            alike: permuting the counts permutes the probabilities.
        teachers: K.
        classes: C.
        overlap: r.
        beyond: a known guarantee of one label; the curve is computed up to its epsilon.
        terms: how many values of the noise the law of one histogram sums over.

    Returns:
        Points at epsilons from 0 to that of ``beyond``; empty where the histograms are too many.
    """
    listed = _neighbours(teachers, classes, overlap)
    if listed is None or not 0 < beyond.epsilon <= LARGEST_LISTED:
        return ()
    space, before, after = listed
    if space.histograms * terms > _MOST_TERMS:
        return ()
    chances = law(space.counts)
    named = space.per_standing(chances[:, :classes])
    here = named[space.lookup[before[:, None], space.counts[before]]]
    there_histogram = space.find(after)
    there = named[space.lookup[there_histogram[:, None], after]]
    if chances.shape[1] > classes:
        here = np.column_stack([here, chances[before, classes:]])
        there = np.column_stack([there, chances[there_histogram, classes:]])
    return curve_of_pairs(here + _ERROR, np.maximum(there - _ERROR, 0.0), beyond)


def curve_of_pairs(here: FloatArray, there: FloatArray, beyond: PrivacyGuarantee) -> tuple[PrivacyGuarantee, ...]:
    """Guarantees that hold at once for each of several pairs of laws, from epsilon = 0 up to that of ``beyond``.

    Args:
        here, there: (N, labels) the pairs, of which each occurs in both orders.
        beyond: a known guarantee.
    """
    epsilons = np.linspace(0.0, beyond.epsilon, _POINTS)[:-1].tolist()
    factors = np.array([math.exp(epsilon) * (1 - 2.0**-50) for epsilon in epsilons])[:, None, None]
    at_once = max(1, _MOST_NUMBERS // max(1, here.size))
    excesses = [
        np.maximum(here - factors[first : first + at_once] * there, 0.0).sum(axis=2).max(axis=1, initial=0.0)
        for first in range(0, len(epsilons), at_once)
    ]
    deltas = np.minimum(1.0, np.concatenate(excesses) * (1 + 2.0**-40)).tolist()
    points = [PrivacyGuarantee(epsilon=one, delta=delta) for one, delta in zip(epsilons, deltas, strict=True)]
    return (*points, beyond)


@functools.lru_cache(maxsize=256)
def composed_epsilon(points: tuple[PrivacyGuarantee, ...], labels: int, delta: float) -> float:
    """Epsilon at ``delta`` of ``labels`` labels that keep ``points`` each; infinite without points or for too many."""
    if not points or labels > _MOST_LABELS:
        return math.inf
    return PrivacyProfile.from_guarantee(*points).compose(labels).epsilon(delta)


@functools.lru_cache(maxsize=16)
def _neighbours(teachers: int, classes: int, overlap: int) -> tuple[Standings, IntArray, IntArray] | None:
    """Sorted histograms, and all ways to move up to ``overlap`` votes of one: its number, and the counts after it.

    Classes are alike, so moves that differ only by exchanging classes of equal counts are listed once.
    """
    if votes_within(_MOST_HISTOGRAMS, votes=teachers, classes=classes) < teachers:
        return None
    space, overlap = standings(teachers, classes), min(overlap, teachers)
    reached = np.column_stack([np.arange(space.histograms), space.counts])
    moves = np.array([(i, j) for i in range(classes) for j in range(classes) if i != j])
    if overlap > _MOST_MOVES:
        return None
    for _ in range(overlap):
        if len(reached) * len(moves) > _MOST_PAIRS * 20:
            return None
        moved = np.repeat(reached[:, None], len(moves), axis=1)
        place = np.arange(len(moves))
        moved[:, place, moves[:, 0] + 1] -= 1
        moved[:, place, moves[:, 1] + 1] += 1
        moved = moved.reshape(-1, classes + 1)
        moved = moved[(moved[:, 1:] >= 0).all(axis=1)]
        levels = space.counts[moved[:, 0]] * (teachers + 1)  # ascending: only classes that had equal counts are sorted
        moved[:, 1:] = np.sort(levels + moved[:, 1:], axis=1) - levels
        reached = np.unique(np.concatenate([reached, moved]), axis=0)
        if len(reached) > _MOST_PAIRS:
            return None
    return space, reached[:, 0], reached[:, 1:]
