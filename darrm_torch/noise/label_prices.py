"""What one label costs by its exact curve against all teachers that keep their promises: the price of a single label.

The curve is :func:`label_profile`. It depends on which points of the teachers' profile are used; any choice is sound.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from ..arrays import FloatArray
from ..privacy.guarantees import PrivacyGuarantee
from ..privacy.profiles import PrivacyProfile
from .certificate import LabelProfile
from .grid import is_monotone
from .regions import Region

__all__ = ["label_promise"]

_LARGEST_SEARCH = 1e6  # numbers that one search for the worst case may go through: about a third of a second
_POINTS = 9  # of the curve, for labels that compose


def label_promise(
    gamma: FloatArray, *, teacher: PrivacyProfile, overlap: int, labels: int, delta: float
) -> PrivacyProfile | None:
    """One label as a release: guarantees that hold at once, chosen for ``labels`` such labels at ``delta`` together.

    Args:
        gamma: the noise function, on the grid.
        teacher: what each teacher promises.
        overlap: r.
        labels: how many such labels, each of votes of its own, are to be composed; 1: the point at ``delta`` suffices.
        delta: of all labels together.

    Returns:
        None if there is no finite epsilon, or the search would take too long.
    """
    points = _points(gamma.tobytes(), teacher, overlap, labels, delta)
    return PrivacyProfile.from_guarantee(*points) if points else None


@lru_cache(maxsize=256)
def _points(
    noise: bytes, teacher: PrivacyProfile, overlap: int, labels: int, delta: float
) -> tuple[PrivacyGuarantee, ...]:
    gamma = np.frombuffer(noise, dtype=np.float64)
    regions = _regions(teacher, gamma, overlap, delta / labels / (10 * overlap))
    curves = [LabelProfile(gamma=gamma, region=region, overlap=overlap) for region in regions]
    if labels == 1:
        epsilon = min((curve.epsilon(delta) for curve in curves), default=math.inf)
        return (PrivacyGuarantee(epsilon=epsilon, delta=delta),) if epsilon < math.inf else ()
    for curve in curves:
        for rest in (delta / labels / 1e4, delta / labels / 10):
            if (last := curve.epsilon(rest)) < math.inf:
                epsilons = np.linspace(0.0, last, _POINTS)[:-1].tolist()
                points = [PrivacyGuarantee(epsilon=epsilon, delta=curve(epsilon)) for epsilon in epsilons]
                return (*points, PrivacyGuarantee(epsilon=last, delta=rest))
    return ()


def _regions(teacher: PrivacyProfile, gamma: FloatArray, overlap: int, small: float) -> Iterator[Region]:
    """The region of the profile's own points, and one for a small delta, each small enough to search."""
    choices = [[teacher.guarantees()]]
    stated = not teacher.dp_sgd and not teacher.unlike and sum(count for _, count in teacher.promises) == 1
    if teacher.is_private and not stated:
        at_zero = teacher.delta(0.0)
        deltas = [share * at_zero for share in (1.0, 0.2, 0.02) if share * at_zero > small]
        choices.append([teacher.guarantees([*deltas[:most], small]) for most in range(len(deltas), -1, -1)])
    teachers, monotone = len(gamma) - 1, is_monotone(gamma)
    for several in choices:
        for points in several:
            region = Region(guarantees=points)
            between = (len(region.chain) if monotone else len(region.tilted)) - 2
            spare = teachers - overlap + 1 if monotone else teachers + 1
            if math.comb(overlap + max(between, 0), max(between, 0)) * (overlap + 1) * spare <= _LARGEST_SEARCH:
                yield region
                break
