"""The cost of the worst r of K unlike teachers: exact where few subsets can be the worst, a proven bound elsewhere."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache, reduce

import numpy as np

from .guarantees import round_up
from .loss_distributions import grid_parts, grid_step, has_grids
from .loss_grids import Composed, LossGrid, compose_grids, connect_the_dots
from .profiles import PrivacyProfile, largest_of

__all__ = ["worst_epsilon", "worst_subsets"]

_ENUMERATED = 64  # subsets up to which each is priced


@lru_cache(maxsize=256)
def worst_epsilon(profiles: tuple[PrivacyProfile, ...], count: int, rounds: int, delta: float) -> float:
    """The largest epsilon at ``delta`` of any ``count`` of the teachers ``profiles`` together, in ``rounds`` rounds.

    >>> teachers = tuple(PrivacyProfile.from_dp_sgd([(3.0, 1 / n, 10 * n)]) for n in range(6, 12))
    >>> round(worst_epsilon(teachers, 2, 1, 1e-5), 2)  # PrivacyProfile.weakest of them, twice: 3.74
    2.57
    """
    if count == len(profiles):
        return reduce(PrivacyProfile.compose, profiles).compose(rounds).epsilon(delta)
    if count == 1:
        return largest_of(profiles, lambda profile: profile.compose(rounds).epsilon(delta))
    subsets = worst_subsets(profiles, count, limit=_ENUMERATED)
    if subsets is not None and len(subsets) == 1:
        return reduce(PrivacyProfile.compose, subsets[0]).compose(rounds).epsilon(delta)
    weakest = PrivacyProfile.weakest(profiles)
    proven = min(weakest.compose(count * rounds).epsilon(delta), _added_up(profiles, count, rounds, delta))
    if delta and all(has_grids(profile.dp_sgd, profile.promises) for profile in set(profiles)):
        if subsets is None:
            proven = min(proven, _ranked(profiles, count, rounds, delta))
        else:
            proven = min(proven, _enumerated(subsets, rounds, delta))
    return proven


def worst_subsets(
    profiles: Sequence[PrivacyProfile], count: int, *, limit: int
) -> list[tuple[PrivacyProfile, ...]] | None:
    """Subsets of ``count`` teachers, one of which costs most; None if there are more than ``limit``.

    If teacher A promises no more than B (:meth:`PrivacyProfile.weakest` of both is A), a subset with B and without A
    costs no more than that with A in place of B. So only subsets that hold all such A with each B matter.
    """
    times = Counter(profiles)
    above = {
        one: {other for other in times if other != one and _weaker(other, one) and not _weaker(one, other)}
        for one in times
    }
    left = [one for one in times if sum(times[other] for other in above[one]) < count]
    left.sort(key=lambda one: len(above[one]))
    found: list[tuple[PrivacyProfile, ...]] = []

    def extend(place: int, chosen: Counter[PrivacyProfile], missing: int) -> bool:
        if missing == 0:
            found.append(tuple(chosen.elements()))
            return len(found) <= limit
        if place == len(left) or sum(times[one] for one in left[place:]) < missing:
            return True
        one = left[place]
        allowed = all(chosen[other] == times[other] for other in above[one])
        most = min(missing, times[one]) if allowed else 0
        return all(extend(place + 1, chosen + Counter({one: n}), missing - n) for n in range(most, -1, -1))

    return found if extend(0, Counter(), count) else None


def _weaker(one: PrivacyProfile, other: PrivacyProfile) -> bool:
    both = PrivacyProfile.weakest((one, other))
    return (both.dp_sgd, both.promises) == (one.dp_sgd, one.promises)


def _added_up(profiles: Sequence[PrivacyProfile], count: int, rounds: int, delta: float) -> float:
    """Simple composition of the largest epsilons and the largest deltas."""
    stated = [profile.stated_sum() for profile in profiles]
    if any(point is None for point in stated):
        return math.inf
    epsilons = sorted((point[0] for point in stated if point), reverse=True)[:count]
    deltas = sorted((point[1] for point in stated if point), reverse=True)[:count]
    return round_up(rounds * sum(epsilons, Fraction(0))) if rounds * sum(deltas) <= delta else math.inf


def _step(profiles: Sequence[PrivacyProfile]) -> float:
    runs = tuple(run for profile in profiles for run in profile.dp_sgd)
    return grid_step(runs, tuple(promise for profile in profiles for promise in profile.promises))


def _enumerated(subsets: Sequence[Sequence[PrivacyProfile]], rounds: int, delta: float) -> float:
    """The largest epsilon of any of ``subsets``."""
    largest = 0.0
    for subset in subsets:
        together = reduce(PrivacyProfile.compose, subset).compose(rounds)
        step = _step([together])
        for added in (False, True):
            composed = compose_grids(grid_parts(together.dp_sgd, together.promises, step, added), delta)
            largest = max(largest, math.inf if composed is None else composed.epsilon(delta))
    return largest


def _ranked(profiles: Sequence[PrivacyProfile], count: int, rounds: int, delta: float) -> float:
    """A bound over all subsets, from curves that fall in any one order of the teachers.

    Let D(j) be the pointwise maximum of the curves of the teachers from place j on. The teacher of a subset that comes
    j-th in it stands at place j or later, so its curve lies below D(j), and the subset costs no more than mechanisms
    with the curves D(1) to D(count) do. Here the order is by what each teacher costs alone.
    """
    distinct = Counter(profiles)
    step = _step(list(distinct))
    largest = 0.0
    for added in (False, True):
        alone: list[Composed] = []
        for profile in distinct:
            parts = grid_parts(profile.dp_sgd, profile.promises, step, added)
            composed = compose_grids([(law, times * rounds) for law, times in parts], delta / count, near=0.0)
            if composed is None:
                return math.inf
            alone.append(composed)
        low = min(one.grid.low for one in alone)
        high = max(one.grid.low + len(one.grid.masses) for one in alone)
        curves = np.array([one.curve(low, high) for one in alone])
        order = np.argsort(-np.count_nonzero(curves > delta, axis=1), kind="stable")
        repeated = np.repeat(curves[order], [list(distinct.values())[place] for place in order], axis=0)
        falling = np.maximum.accumulate(repeated[::-1], axis=0)[::-1][:count]
        laws: list[tuple[LossGrid, int]] = [(connect_the_dots(step, low, curve), 1) for curve in falling]
        together = compose_grids(laws, delta)
        if together is None:
            return math.inf
        largest = max(largest, together.epsilon(delta) + count * max(one.grid.shift for one in alone))
    return largest
