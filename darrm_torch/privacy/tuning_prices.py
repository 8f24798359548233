"""What it costs to choose the best of a random number of runs: private tuning.

Only the best run is released, and how many there were stays secret. Proofs: `docs/theory/tuning.md`.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

import numpy as np

from ..arguments import checked, validate
from ..arrays import FloatArray
from ..bisection import last_true, smallest_epsilon
from ..errors import InvalidArgument, check_integer, check_number
from .allocation import RandomAllocation
from .allocation_prices import allocated_law, for_draws
from .guarantees import PrivacyGuarantee, lower_hull
from .profiles import PrivacyProfile, as_profiles
from .ratios import RatioLaw, pair_law

__all__ = ["RandomRuns", "tuning_delta", "tuning_epsilon"]

_RANKS, _LOSSES = 2**13, 400  # points at which ranks and privacy losses are tried
_SLACK = 2.0**-30  # over all rounding, and over what the tables of the numbers of runs leave out
_LARGEST = 600.0  # of an epsilon
_LEAST = 1e-36  # probability of a number of runs, in units of the most likely one, that is still drawn
_MOST_RUNS = 10**6


@checked
@dataclass(frozen=True, kw_only=True)
class RandomRuns:
    """The law of the number of runs of a tuning (Papernot and Steinke, 2021), which is drawn once and kept secret.

    Args:
        mean: the expected number of runs, in [1, 1000].
        shape: 0: logarithmic; 1: geometric; other numbers up to 100: truncated negative binomial, the closer to its
            mean the larger; ``math.inf``: Poisson, which may also be 0. The larger, the more runs are likely and the
            more they cost.

    Raises:
        InvalidArgument: a number out of range.

    >>> runs = RandomRuns(mean=20, shape=1)
    >>> 1 <= runs.draw()
    True
    >>> round(runs.chance_of_missing(1 / 12), 2)  # of never trying one of twelve candidates
    0.35
    """

    mean: float
    shape: float = 1.0

    def __post_init__(self) -> None:
        validate(self, "mean", low=1.0, high=1000.0)
        if self.shape != math.inf:
            validate(self, "shape", low=0.0, high=100.0, cure="Or infinity.")

    @property
    def zero(self) -> float:
        """The probability of no run at all."""
        return math.exp(-self.mean) if self.shape == math.inf else 0.0

    def chance_of_missing(self, share: float) -> float:
        """The probability that no run draws a candidate that each run draws with probability ``share``."""
        left = 1 - check_number("share", share, low=0.0, high=1.0)
        if self.shape == math.inf:
            return math.exp(-self.mean * (1 - left))
        stop = _stop(self)
        if stop == 1:
            return left
        ratio = 1 - (1 - stop) * left
        if self.shape == 0:
            return math.log(ratio) / math.log(stop)
        return float((ratio**-self.shape - 1) / (stop**-self.shape - 1))

    def draw(self) -> int:
        """A number of runs, from the operating system's randomness."""
        table = _table(self)
        drawn = secrets.randbelow(table[-1][1])
        return next(number for number, upper in table if drawn < upper)


def _density(runs: RandomRuns, better: FloatArray) -> FloatArray:
    """The density of the winning outcome with respect to that of one run, where a run beats it with chance ``better``.

    That is the derivative of the generating function at ``1 - better``, at most the mean.
    """
    if runs.shape == math.inf:
        return np.asarray(runs.mean * np.exp(-runs.mean * better))
    stop = _stop(runs)
    return np.asarray(_mean(stop, runs.shape) * (stop / (stop + (1 - stop) * better)) ** (1 + runs.shape))


def _fall(runs: RandomRuns, better: FloatArray) -> FloatArray:
    """The percentage by which the density falls if ``better`` grows by one percent."""
    if runs.shape == math.inf:
        return runs.mean * better
    stop = _stop(runs)
    return np.asarray((1 + runs.shape) * (1 - stop) * better / (stop + (1 - stop) * better))


def _mean(stop: float, shape: float) -> float:
    """The mean of the truncated negative binomial law with this probability of stopping."""
    if stop == 1:
        return 1.0
    grown = -math.log(stop) if shape == 0 else -math.expm1(shape * math.log(stop)) / shape
    return (1 - stop) / stop / grown


@lru_cache(maxsize=64)
def _stop(runs: RandomRuns) -> float:
    """The probability of stopping that gives the mean."""
    if runs.mean == 1:
        return 1.0
    return last_true(lambda stop: _mean(stop, runs.shape) >= runs.mean, 1e-9, 1.0, geometric=True)


@lru_cache(maxsize=8)
def _table(runs: RandomRuns) -> list[tuple[int, int]]:
    """Numbers of runs and cumulated integer weights."""
    if runs.shape == math.inf:
        numbers = range(math.ceil(runs.mean + 20 * math.sqrt(runs.mean) + 80))
        logs = [number * math.log(runs.mean) - math.lgamma(number + 1) for number in numbers]
        chances = [math.exp(log - max(logs)) for log in logs]
    else:
        stop, shape = _stop(runs), runs.shape
        numbers, chances, largest = range(1, _MOST_RUNS), [1.0], 1.0
        for number in numbers:
            following = chances[-1] * (1 - stop) * (number + shape) / (number + 1)
            if following < _LEAST * largest:
                break
            chances.append(following)
            largest = max(largest, following)
        chances = [chance / largest for chance in chances]
    weights = accumulate(int(math.ldexp(chance, 500)) >> 372 for chance in chances)  # multiples of 2**-128
    return list(zip(numbers, weights, strict=False))


@checked
def tuning_delta(
    training: PrivacyProfile | PrivacyGuarantee | Sequence[PrivacyProfile | PrivacyGuarantee],
    epsilon: float,
    *,
    runs: RandomRuns,
    overlap: int = 1,
    allocation: RandomAllocation | None = None,
    validation: PrivacyProfile | PrivacyGuarantee | None = None,
) -> float:
    """Delta at ``epsilon`` of the best of a random number of runs, released with its score: theorem 20.

    Each run draws its candidate, trains all teachers with it and is scored by a private validation. The runs are
    independent, given the draws that they share. The score alone decides which is the best.

    Args:
        training: what one trained teacher promises; several, of which the worst counts, for several candidates.
        epsilon: in nats.
        runs: the law of the number of runs.
        overlap: r, how many teachers a record influences, if all runs share one draw; ignored with ``allocation``.
        allocation: how records are allocated to the teachers' shards, if each run draws its own allocation.
        validation: what the score of one run promises to the units that it is computed from. None of them may be in
            the training data of the same run (theorem 18). ``None``: the score does not depend on private data, beyond
            the trained teachers.

    Raises:
        InvalidArgument: a value out of range, an allocation with a validation of its own, or either of them with
            promises about replacing a unit.

    >>> teacher = PrivacyProfile.from_dp_sgd([(1.7, 1 / 35, 175)])
    >>> teacher.delta(1.7) < 1e-8 < tuning_delta(teacher, 1.7, runs=RandomRuns(mean=20)) < 1e-5
    True
    """
    epsilon = check_number("epsilon", epsilon, low=0.0, high_open=True)
    return max(price.delta(epsilon) for price in _prices(training, runs, overlap, allocation, validation))


@checked
def tuning_epsilon(
    training: PrivacyProfile | PrivacyGuarantee | Sequence[PrivacyProfile | PrivacyGuarantee],
    delta: float,
    *,
    runs: RandomRuns,
    overlap: int = 1,
    allocation: RandomAllocation | None = None,
    validation: PrivacyProfile | PrivacyGuarantee | None = None,
) -> float:
    """Epsilon at ``delta`` of the best of a random number of runs; the arguments are those of :func:`tuning_delta`.

    >>> teacher = PrivacyProfile.from_dp_sgd([(1.7, 1 / 35, 175)])
    >>> [round(tuning_epsilon(teacher, 1e-5, runs=RandomRuns(mean=mean)), 2) for mean in (1, 5, 20)]
    [0.99, 1.33, 1.62]
    """
    delta = check_number("delta", delta, low=0.0, high=1.0)
    prices = _prices(training, runs, overlap, allocation, validation)
    return max(price.epsilon(delta) for price in prices)


def _prices(
    training: PrivacyProfile | PrivacyGuarantee | Sequence[PrivacyProfile | PrivacyGuarantee],
    runs: RandomRuns,
    overlap: int,
    allocation: RandomAllocation | None,
    validation: PrivacyProfile | PrivacyGuarantee | None,
) -> list[_Price]:
    """The prices of which the largest counts.

    Given a shared draw, a unit is held out in all runs or in none. With fresh draws it may be held out in some of them.
    """
    overlap = check_integer("overlap", overlap, low=1, high=10**6)
    several = [training] if isinstance(training, (PrivacyProfile, PrivacyGuarantee)) else training
    profiles = tuple(dict.fromkeys(as_profiles("training", several)))
    if allocation is not None or validation is not None:
        profiles = tuple(for_draws("training", profile) for profile in profiles)
    alone = () if validation is None else (for_draws("validation", validation),)
    if allocation is not None:
        if allocation.validation is not None:
            raise InvalidArgument("allocation", "one without a validation, which is an argument of its own", allocation)
        return [_price(profiles, runs, allocation, alone)]
    together = tuple(profile.compose(overlap) for profile in profiles)
    return [_price(part, runs, None, ()) for part in (together, alone) if part]


@lru_cache(maxsize=64)
def _price(
    training: tuple[PrivacyProfile, ...],
    runs: RandomRuns,
    allocation: RandomAllocation | None,
    more: tuple[PrivacyProfile, ...],
) -> _Price:
    trained = [pair_law(one) if allocation is None else allocated_law(one, allocation) for one in training]
    return _Price([*trained, *map(pair_law, more)], runs)


class _Price:
    """The proven delta of the best run, from the laws of the ratio of one run, of which the worst counts.

    An outcome that a run beats with probability a under one data set is beaten with at most ``most(a)`` under the
    other. Its odds of winning are then ``density(a)`` against at least ``density(most(a))``. These pairs lie above and
    to the left of a polygon, and what is summed over outcomes is largest at its corners.
    """

    def __init__(self, laws: Sequence[RatioLaw], runs: RandomRuns) -> None:
        self._laws, self._runs = laws, runs
        reach = max(float(np.log(law.values.max(initial=1.0))) for law in laws)
        losses = min(reach, _LARGEST) * np.linspace(0.0, 1.0, _LOSSES) ** 2
        curves = [
            np.max([[one(law, float(loss)) for loss in losses] for law in laws], axis=0)
            for one in (RatioLaw.removal, RatioLaw.addition)
        ]
        ranks = np.geomspace(1e-9 / runs.mean, 1.0, _RANKS)
        there, back = curves
        # For a unit that is removed, and for one that is added.
        self._corners = [_corners(runs, ranks, _most(ranks, losses, *pair)) for pair in ((back, there), (there, back))]

    def delta(self, epsilon: float) -> float:
        """Delta at ``epsilon`` for a unit that is removed or added, whichever is larger."""
        best = max(self._best(law, epsilon) for law in self._laws)
        default = max(max(law.removal(epsilon), law.addition(epsilon)) for law in self._laws)  # any of the candidates
        return float(min(1.0, best + self._runs.zero * default))

    def epsilon(self, delta: float) -> float:
        """The smallest epsilon with that delta, rounded up; ``math.inf`` if there is none."""
        return smallest_epsilon(self.delta, delta)

    def _best(self, law: RatioLaw, epsilon: float) -> float:
        """What one or more runs cost, if all outcomes had the odds of this law."""
        factor = math.exp(min(epsilon, _LARGEST)) * (1 - law.value_error - _SLACK)
        removed = _largest(self._corners[0], law.values, np.full_like(law.values, factor))
        added = _largest(self._corners[1], np.ones_like(law.values), factor * law.values)
        most = float(_density(self._runs, np.zeros(1))[0])
        delta = max(float(law.masses @ removed) + most * law.lost, float(law.masses @ added)) + most * law.gone
        return delta * (1 + law.mass_error + law.value_error + _SLACK)


def _most(ranks: FloatArray, losses: FloatArray, there: FloatArray, back: FloatArray) -> FloatArray:
    """The largest probability of an event that has these ``ranks`` as its probabilities under the other law.

    ``there`` and ``back`` are the deltas at ``losses``, of the law in question against the other and the other way.
    """
    largest = np.ones_like(ranks)
    for loss, one, other in zip(losses, there, back, strict=True):
        factor = math.exp(-loss)
        np.minimum(largest, math.exp(loss) * ranks + one, out=largest)
        np.minimum(largest, factor * ranks + (1 - factor) + factor * other, out=largest)
    return largest


def _corners(runs: RandomRuns, ranks: FloatArray, most: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Corners of a polygon above which all pairs of densities lie, from the origin to the right.

    ``most`` is concave, so from a rank to the next it grows by no larger a factor than the rank does. If both grow by
    the same one, the second density is a convex function of the first, and lies above its tangent.
    """
    high, least = _density(runs, ranks), _density(runs, most)
    with np.errstate(divide="ignore", invalid="ignore"):
        following = np.where(high[:-1] > high[1:], high[1:] / high[:-1], 1.0)  # 1 also below the smallest float
        steep = np.where(high[:-1] > high[1:], _fall(runs, most[:-1]) / _fall(runs, ranks[:-1]), 0.0)
    tangent = least[:-1] * np.maximum(1 - steep * (1 - following), 0.0)
    best = _density(runs, np.zeros(1))  # up to the first rank
    rights = np.concatenate([best, np.ravel(np.column_stack([high[:-1], high[1:]]))])
    heights = np.concatenate([least[:1], np.ravel(np.column_stack([least[:-1], tangent]))])
    rights, heights = rights * (1 + _SLACK) + _SLACK**2, np.maximum(heights * (1 - _SLACK) - _SLACK**2, 0.0)
    order = np.lexsort((heights, rights))
    rights, lowest = np.unique(np.append(0.0, rights[order]), return_index=True)  # of one column the lowest counts
    corners = np.array(lower_hull(zip(rights.tolist(), np.append(0.0, heights[order])[lowest].tolist(), strict=True)))
    return corners[:, 0], corners[:, 1]


def _largest(corners: tuple[FloatArray, FloatArray], gain: FloatArray, cost: FloatArray) -> FloatArray:
    """The largest ``gain * high - cost * least`` of any corner."""
    high, least = corners
    with np.errstate(divide="ignore", over="ignore"):
        corner = np.searchsorted(np.diff(least) / np.diff(high), gain / cost)
    return np.maximum(gain * high[corner] - cost * least[corner], 0.0)
