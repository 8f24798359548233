"""Privacy loss distributions of composed releases: pessimistic discretisation by dp-accounting, plus an allowance."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any

import numpy as np
from scipy import fft, special

from ..arrays import FloatArray
from ..bisection import last_true, smallest_epsilon
from ..limits import MOST_CELLS
from .guarantees import LARGEST_EPSILON, PrivacyGuarantee, curve_corners
from .loss_grids import Composed, LossGrid, compose_grids, connect_the_dots, sampled_gaussian
from .units import group_loss

__all__ = [
    "DpSgd",
    "DpSgdRun",
    "LossDistribution",
    "Promises",
    "RepeatedPromise",
    "composed_epsilon",
    "composed_law",
    "grid_parts",
    "grid_step",
    "has_grids",
    "loss_distribution",
    "run_parts",
]

# The fields of a PrivacyProfile: runs (noise_multiplier, sample_rate, steps) of units with one record, or with a fourth
# number, the records of a unit; and (guarantees that hold at once, count).
DpSgdRun = tuple[float, float, int] | tuple[float, float, int, int]
DpSgd = tuple[DpSgdRun, ...]
Promises = tuple[tuple[tuple[PrivacyGuarantee, ...], int], ...]

_CELLS = 16  # grid cells per standard deviation of one release: the variance grows by less than 1 / (4 * 16**2)
_FINEST = 1e-6  # on a finer grid the rounding errors of the curve would show
_SPARSE = 1_000  # masses up to which dp_accounting composes them one by one
_TAIL = 1e-15  # probability mass that dp_accounting may move to an infinite loss, per composition
_SUMMED = 2**20  # releases up to which the exact optimum is summed
_UNIT = 2.0**-53
_FINEST_TILTED, _LEAST_NOISE = 1e-9, 0.2
_NO_NOISE, _LARGEST_NOISE = 2.0**-10, 2.0**20  # less counts as none; more counts as this
_LEAST_RATE = 2.0**-64  # smaller sample rates count as this
_MOST_RUNS, _FEW_RUNS = 256, 16  # of different noise or rate; each takes some hundredths of a second
_SCALE, _LAST_SCALE = 16.0, 16  # tilted convolutions are computed for powers of this; smaller deltas are left to Renyi


def run_parts(run: DpSgdRun) -> tuple[float, float, int, int]:
    """Noise multiplier, sample rate, steps and records of a unit."""
    return run if len(run) == 4 else (*run, 1)


@dataclass(frozen=True)
class LossDistribution:
    """The privacy loss of all releases together, one probability mass function for each direction.

    Where these would not fit in memory there are none, the allowance is infinite, and Renyi accounting remains.
    """

    pmfs: tuple[Any, ...]
    allowance: float
    dp_sgd: DpSgd | None  # for Renyi accounting; None if it does not apply

    def delta(self, epsilon: float) -> float:
        """The smallest proven delta at ``epsilon``."""
        proven = self._convolved(epsilon)
        if self.dp_sgd and proven < 16 * self.allowance:
            proven = min(proven, _small_delta(self.dp_sgd, epsilon))
        return min(1.0, proven)

    def epsilon(self, delta: float) -> float:
        """The smallest proven epsilon at ``delta``; ``math.inf`` if there is none."""
        epsilon, slack = math.inf, 1e-12
        if delta > self.allowance:
            epsilon = max(_least_epsilon(pmf, delta - self.allowance) for pmf in self.pmfs)
            while math.isfinite(epsilon) and self._convolved(epsilon) > delta:  # its sums are rounded
                epsilon, slack = epsilon + slack * max(1.0, epsilon), 2 * slack
        if self.dp_sgd and delta < 16 * self.allowance:
            epsilon = min(epsilon, _small_epsilon(self.dp_sgd, delta))
        return epsilon

    def _convolved(self, epsilon: float) -> float:
        convolved = max((float(pmf.get_delta_for_epsilon(epsilon)) for pmf in self.pmfs), default=1.0)
        return convolved + self.allowance


class RepeatedPromise:
    """``count`` releases, each (epsilon, delta)-DP: the exact optimum of Kairouz, Oh and Viswanath (2015, Theorem 3.3).

    With L = (2 j - count) epsilon, where j has a binomial law with chance e^epsilon / (1 + e^epsilon), delta at E is
    ``1 - (1 - delta)^count (1 - E[(1 - e^(E - L))_+])``. The terms of the sum are positive; the error of each is known.
    """

    def __init__(self, promise: PrivacyGuarantee, count: int) -> None:
        self.promise, self.count = promise, count
        ones, epsilon, factorials = np.arange(count + 1, dtype=np.float64), promise.epsilon, _log_factorials(count)
        choices = factorials[-1] - factorials - factorials[::-1]
        logs = choices - ones * math.log1p(math.exp(-epsilon)) - (count - ones) * np.logaddexp(0.0, epsilon)
        error = 16 * _UNIT * (8 + 3 * float(factorials[-1]) + 2 * count * (epsilon + 1))
        positive = np.flatnonzero(logs > -750)  # the rest is below the smallest double
        kept = slice(positive[0], positive[-1] + 1)
        self._losses = (2 * ones - count)[kept] * epsilon
        self._masses = np.exp(logs[kept]) * math.exp(min(error, 700.0))
        self._largest = count * epsilon
        self._revealed = -math.expm1(count * math.log1p(-promise.delta)) * (1 + 16 * _UNIT)

    def delta(self, epsilon: float) -> float:
        """The smallest delta at ``epsilon``, rounded up."""
        epsilon = epsilon * (1 - 4 * _UNIT)
        first = int(np.searchsorted(self._losses, epsilon))
        excess = min(1.0, float(self._masses[first:] @ -np.expm1(epsilon - self._losses[first:])))
        return min(1.0, self._revealed + (1 - self._revealed) * excess * (1 + 16 * _UNIT) + 1e-300)

    def epsilon(self, delta: float) -> float:
        """The smallest epsilon at ``delta``, rounded up; ``math.inf`` if there is none."""
        most = self._largest * (1 + 8 * _UNIT)
        if self.delta(most) > delta:
            return math.inf
        return smallest_epsilon(self.delta, delta, most=most, tolerance=2.0**-44)


_repeated_promise = lru_cache(maxsize=64)(RepeatedPromise)


@lru_cache(maxsize=8)
def _log_factorials(count: int) -> FloatArray:
    """(count + 1,) log j! for j = 0 to ``count``."""
    return np.asarray(special.gammaln(np.arange(1.0, count + 2)))


def composed_law(dp_sgd: DpSgd, promises: Promises) -> LossDistribution | RepeatedPromise:
    """The loss of all releases together: an exact sum where one promise is repeated, else a convolution."""
    if not dp_sgd and len(promises) == 1 and promises[0][1] <= _SUMMED:
        points, count = promises[0]
        if len(points) == 1 and points[0].epsilon > 0:
            return _repeated_promise(points[0], count)
    return loss_distribution(dp_sgd, promises)


@lru_cache(maxsize=1024)
def composed_epsilon(dp_sgd: DpSgd, promises: Promises, delta: float) -> float:
    """The smallest proven epsilon; searched once, because plans ask for the same total again and again."""
    return composed_law(dp_sgd, promises).epsilon(delta)


@lru_cache(maxsize=128)
def loss_distribution(dp_sgd: DpSgd, promises: Promises) -> LossDistribution:
    """The loss distribution of DP-SGD runs and of the worst releases that keep ``promises``, all composed."""
    from dp_accounting.pld import pld_pmf

    if any(noise < _NO_NOISE for noise, *_ in dp_sgd):
        return LossDistribution((), math.inf, None)
    dp_sgd = _fewer_runs(dp_sgd)
    step = grid_step(dp_sgd, promises)
    pmfs, widest = [], 1
    for added in (False, True):
        runs, many = [run_parts(run) for run in dp_sgd], len(dp_sgd) > _FEW_RUNS
        parts = [(_dp_sgd_step(noise, rate, records, step, added, many), count) for noise, rate, count, records in runs]
        parts += [(_promise(points, step), count) for points, count in promises]
        widest = max(widest, *(pmf.size for pmf, _ in parts))
        finite = math.prod((1 - pmf._infinity_mass) ** count for pmf, count in parts)
        if finite <= 2 * _TAIL or sum(_composed_size(pmf, count) for pmf, count in parts) > MOST_CELLS:
            return LossDistribution((), math.inf, dp_sgd if not promises else None)
        composed = [_repeated(pmf, count) for pmf, count in parts]
        pmfs.append(reduce(lambda a, b: pld_pmf.compose_pmfs(a, b, _TAIL), composed))
    # The allowance bounds the rounding error of delta at any epsilon, in units of 2^-53. One release: its curve
    # has an error of a few units, and so has each of its at most `widest` masses; n releases, replaced one after the
    # other, have n times that. The n-th power of a discrete Fourier transform of length N has an error of a few
    # n log2(N) units in the 2-norm (Higham 2002, Theorem 24.2), and a sum over its N entries sqrt(N) times that.
    # Evaluating delta adds N units. "A few" is at most 16.
    releases = sum(run[2] + 1 for run in dp_sgd) + sum(count + 1 for _, count in promises)
    cells = max(pmf.size for pmf in pmfs)
    units = 16 * (releases * (widest + math.log2(2 * cells) * math.sqrt(cells)) + cells)
    return LossDistribution(tuple(pmfs), units * _UNIT, dp_sgd if not promises else None)


def _fewer_runs(dp_sgd: DpSgd) -> DpSgd:
    """At most ``_MOST_RUNS`` runs that cost at least as much: noise is rounded down, the sample rate up.

    DP-SGD is monotone in both (:meth:`PrivacyProfile.weakest`). Fewer runs stay as they are, up to a noise so large
    that its square would not be a number.
    """
    dp_sgd = tuple((min(noise, _LARGEST_NOISE), max(rate, _LEAST_RATE), *rest) for noise, rate, *rest in dp_sgd)  # type: ignore[misc]
    digits, runs = 2.0**12, dict[tuple[float, float, int], int]()
    while len(dp_sgd) > _MOST_RUNS and (not runs or len(runs) > _MOST_RUNS):
        runs = {}
        for noise, rate, steps, records in map(run_parts, dp_sgd):
            weaker = (
                min(noise, 2.0 ** (math.floor(math.log2(noise) * digits) / digits)),
                min(1.0, max(rate, 2.0 ** (math.ceil(math.log2(rate) * digits) / digits))),
                records,
            )
            runs[weaker] = runs.get(weaker, 0) + steps
        digits /= 2
    return tuple((noise, rate, runs[noise, rate, g], g) for noise, rate, g in sorted(runs)) if runs else dp_sgd


def _repeated(pmf: Any, count: int) -> Any:
    """``count`` such releases together: ``pmf.self_compose(count, _TAIL)``, whose range of losses is found faster."""
    from dp_accounting.pld import pld_pmf

    if count == 1:
        return pmf
    few = count <= 2**16 and count * math.log(pmf.size) <= math.log(_SPARSE)
    if few and isinstance(pmf, pld_pmf.SparsePLDPmf):
        return pmf.self_compose(count, _TAIL)
    dense = pmf.to_dense_pmf()
    low, high = _composed_range(dense._probs, count)
    cells = fft.next_fast_len(max(high - low + 1, dense.size))
    masses = np.real(fft.ifft(fft.fft(dense._probs, cells) ** count))
    return pld_pmf.DensePLDPmf(
        dense._discretization,
        dense._lower_loss * count + low,
        np.roll(masses, -low)[: high - low + 1],
        _TAIL - math.expm1(count * math.log1p(-dense._infinity_mass)),
        True,
    )


def _composed_range(masses: FloatArray, count: int) -> tuple[int, int]:
    """The cells of ``count`` such releases together outside of which there is at most ``_TAIL``: Chernoff bounds."""
    # At the 40 orders of `dp_accounting`. No exponent exceeds 20, so the sums need no scaling, which takes long.
    cells, low, high = np.arange(len(masses)), 0, (len(masses) - 1) * count
    with np.errstate(divide="ignore"):
        for order in np.arange(1, 21) / len(masses):
            powers = np.exp(cells * order)
            above = (count * np.log(masses @ powers) + math.log(2 / _TAIL)) / order
            below = (count * np.log(masses @ (1 / powers)) + math.log(2 / _TAIL)) / -order
            high = min(high, math.ceil(above)) if math.isfinite(above) else high
            low = max(low, math.floor(below)) if math.isfinite(below) else low
    return low, high


def _composed_size(pmf: Any, count: int) -> int:
    """The number of cells of ``count`` such releases together, as :func:`_repeated` will cut it off."""
    if count == 1 or pmf.size * count <= MOST_CELLS // 64:
        return int(pmf.size * count)
    low, high = _composed_range(pmf.to_dense_pmf()._probs, count)
    return high - low


def _least_epsilon(pmf: Any, delta: float) -> float:
    """``pmf.get_epsilon_for_delta(delta)``: the same sums, on arrays where `dp_accounting` loops over the cells."""
    from dp_accounting.pld import pld_pmf

    if not isinstance(pmf, pld_pmf.DensePLDPmf):
        with np.errstate(over="ignore"):  # it divides by the mass of the far tail, which may be tiny
            return float(pmf.get_epsilon_for_delta(delta))
    if pmf._infinity_mass > delta:
        return math.inf
    step, top = pmf._discretization, pmf._lower_loss + pmf.size - 1
    cells = min(pmf.size, max(top, 0))  # those of positive losses
    losses = np.cumsum(np.r_[top * step, np.full(cells, -step)])
    masses = pmf._probs[::-1][:cells]
    upper = np.cumsum(np.r_[pmf._infinity_mass, masses])
    lower = np.cumsum(np.r_[0.0, np.exp(-losses[:-1]) * masses])
    if hidden := int(np.searchsorted(lower, 0.0, side="right")) - 1:  # cells whose e^-loss is 0
        reached = int(np.searchsorted(upper[1 : hidden + 1], delta))
        if reached < hidden:
            return float(max(0.0, losses[reached]))
    with np.errstate(all="ignore"):
        epsilons = np.log((upper - delta) / lower)
        stops = np.flatnonzero((upper > delta) & (lower > 0) & (epsilons >= losses))
    last = stops[0] if len(stops) else cells
    return 0.0 if upper[last] <= lower[last] + delta else float(epsilons[last])


def _small_epsilon(dp_sgd: DpSgd, delta: float) -> float:
    """Epsilon where rounding errors of the convolution hide ``delta``: by a tilted one, or by Renyi accounting."""
    tilted = _tilted(dp_sgd, math.ceil(-math.log(delta, _SCALE)))
    return min(_renyi_epsilon(dp_sgd, delta), max((one.epsilon(delta) for one in tilted), default=math.inf))


@lru_cache(maxsize=1024)
def _small_delta(dp_sgd: DpSgd, epsilon: float) -> float:
    """Delta where it is no larger than rounding errors of the convolution; see :func:`_small_epsilon`."""
    exponent = 512.0
    if _renyi_epsilon(dp_sgd, 2.0**-exponent) > epsilon:
        exponent = last_true(
            lambda power: _renyi_epsilon(dp_sgd, 2.0**-power) <= epsilon, 0.0, exponent, tolerance=0.01
        )
    proven = math.ldexp(1.0, -math.floor(exponent))
    scale = math.ceil(-math.log(proven, _SCALE))
    # Accurate for deltas from _SCALE^-scale on.
    while tilted := _tilted(dp_sgd, scale):
        proven = min(proven, max(one.delta(epsilon) for one in tilted))
        if proven >= 2 * _SCALE**-scale:
            break
        scale = max(scale + 1, math.ceil(-math.log(proven, _SCALE)) if proven else _LAST_SCALE + 1)
    return proven


def _renyi_epsilon(dp_sgd: DpSgd, delta: float) -> float:
    """Epsilon by the Renyi accountant of `dp_accounting`: looser, but rounding errors do not hide a tiny delta."""
    if delta >= 1.0:
        return 0.0
    if any(run_parts(run)[3] > 1 for run in dp_sgd):
        return math.inf  # it knows units of one record only
    epsilon = float(_renyi_accountant(dp_sgd).get_epsilon(delta))
    # The divergence of a step is the logarithm of a number near 1 with an error of about 1e-15. If it is smaller than
    # that, the accountant returns 0, which proves nothing.
    rounding = 1e-12 * sum(run[2] for run in dp_sgd)
    return epsilon + rounding if epsilon > rounding else math.inf


@lru_cache(maxsize=128)
def _renyi_accountant(dp_sgd: DpSgd) -> Any:
    from dp_accounting import dp_event, rdp

    accountant = rdp.RdpAccountant()
    for noise, rate, steps, _ in map(run_parts, dp_sgd):
        accountant.compose(dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(noise)), steps)
    return accountant


def grid_step(dp_sgd: DpSgd, promises: Promises, *, most_cells: int = 2**17, finest: float = _FINEST) -> float:
    """The distance between grid points. Any distance is sound; a smaller one is tighter."""
    epsilons = {g.epsilon for points, _ in promises for g in points if 0 < g.epsilon <= LARGEST_EPSILON}
    if not dp_sgd and len(epsilons) < 2:
        return max(epsilons, default=1.0)  # the losses lie exactly on the grid
    variance, widest, releases = 0.0, 0.0, 0
    for noise, rate, count, records in map(run_parts, dp_sgd):
        # Quadrature of the loss of one step over its noise.
        group = group_loss(noise, rate, records)
        x = np.linspace(-12 * noise, group.top + 12 * noise, 20001)
        loss, weight = group.at(x), np.exp(-0.5 * (x / noise) ** 2)
        weight /= weight.sum()
        variance += count * float(weight @ (loss - weight @ loss) ** 2)
        widest, releases = max(widest, float(np.ptp(loss))), releases + count
    for points, count in promises:
        largest = max(g.epsilon for g in points if g.epsilon <= LARGEST_EPSILON)
        variance += count * (largest**2 if len(points) == 1 else _variance(points, largest))
        widest, releases = max(widest, 2 * largest), releases + count
    return max(math.sqrt(variance / releases) / _CELLS, 2 * widest / most_cells, finest)


@lru_cache(maxsize=128)
def _variance(points: tuple[PrivacyGuarantee, ...], largest: float) -> float:
    """The variance of the finite losses of the worst release that keeps all ``points``."""
    step = max(largest, 1e-300) / 512
    law = connect_the_dots(step, -512, _promise_curve(points, np.arange(-512, 513) * step))
    masses = law.masses / law.masses.sum()
    return float(masses @ (law.losses - masses @ law.losses) ** 2)


@lru_cache(maxsize=128)
def _dp_sgd_step(noise: float, rate: float, records: int, step: float, added: bool, many: bool = False) -> Any:
    """One Poisson-sampled Gaussian release, for a unit added or removed, as `dp_accounting` discretises it.

    For units of several records `dp_accounting` finds events to 1e-6 only, so its curve may lie below the truth. Where
    there are ``many`` runs it takes thirty times as long, to the same numbers but for rounding.
    """
    from dp_accounting.pld import pld_pmf, privacy_loss_mechanism

    if records > 1 or many:
        group = group_loss(noise, rate, records)
        ends = sorted((-1 if added else 1) * float(group.at(x)) for x in (-10 * noise, group.top + 10 * noise))
        low, high = math.floor(ends[0] / step), math.ceil(ends[1] / step)
        curve = group.curve(np.arange(low, high + 1) * step, added)
        curve = np.maximum.accumulate(curve[::-1])[::-1]  # the true one falls; rounding may not
        return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(step, low, high, curve)
    direction = privacy_loss_mechanism.AdjacencyType.ADD if added else privacy_loss_mechanism.AdjacencyType.REMOVE
    loss = privacy_loss_mechanism.GaussianPrivacyLoss(noise, sampling_prob=rate, adjacency_type=direction)
    bounds = loss.connect_dots_bounds()
    low, high = math.floor(bounds.epsilon_lower / step), math.ceil(bounds.epsilon_upper / step)
    curve = loss.get_delta_for_epsilon(np.arange(low, high + 1) * step)
    return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(step, low, high, curve)


def _promise(points: tuple[PrivacyGuarantee, ...], step: float) -> Any:
    """The worst release that keeps all ``points``; it is the same in both directions."""
    from dp_accounting.pld import pld_pmf

    losses = [sign * g.epsilon / step for g in points if g.epsilon <= LARGEST_EPSILON for sign in (-1, 1)]
    rounded = np.array(sorted({int(side(loss)) for loss in losses for side in (math.floor, math.ceil)}))
    return pld_pmf.create_pmf_pessimistic_connect_dots(step, rounded, _promise_curve(points, rounded * step))


def _promise_curve(points: tuple[PrivacyGuarantee, ...], epsilons: Any) -> FloatArray:
    """Delta at ``epsilons`` of the worst release that keeps all ``points``."""
    curve = np.interp(np.exp(epsilons), *_corners(points))
    return np.asarray(np.maximum(curve, 0.0))  # interpolation may end one unit below zero


@lru_cache(maxsize=128)
def _corners(points: tuple[PrivacyGuarantee, ...]) -> FloatArray:
    """(2, N) the corners e^epsilon, and delta there."""
    return np.array(curve_corners(points), dtype=np.float64).T


# --- on grids of our own -------------------------------------------------------------------------------------------


def has_grids(dp_sgd: DpSgd, promises: Promises) -> bool:
    """Whether :func:`grid_parts` can be used: losses are finite, and e^loss is a float."""
    small = all(min(g.epsilon for g in points) <= LARGEST_EPSILON for points, _ in promises)
    return small and all(run[0] >= _LEAST_NOISE for run in dp_sgd)


def grid_parts(dp_sgd: DpSgd, promises: Promises, step: float, added: bool) -> list[tuple[LossGrid, int]]:
    """The laws of DP-SGD runs and of the worst releases that keep ``promises``, and how often each occurs."""
    runs = [run_parts(run) for run in dp_sgd]
    parts = [(sampled_gaussian(noise, rate, step, added, records), steps) for noise, rate, steps, records in runs]
    for points, count in promises:
        last = max(1, math.ceil(max(g.epsilon for g in points if g.epsilon <= LARGEST_EPSILON) / step))
        curve = _promise_curve(points, np.arange(-last, last + 1, dtype=np.float64) * step) + 4 * _UNIT
        parts.append((connect_the_dots(step, -last, curve), count))
    return parts


@lru_cache(maxsize=8)
def _tilted(dp_sgd: DpSgd, scale: int) -> tuple[Composed, ...]:
    """Both directions, such that rounding errors are small at deltas about _SCALE^-scale; empty if that is too hard."""
    step = grid_step(dp_sgd, (), most_cells=2**22, finest=_FINEST_TILTED)
    if not 0 <= scale <= _LAST_SCALE or step == _FINEST_TILTED or not has_grids(dp_sgd, ()):
        return ()
    laws = [grid_parts(dp_sgd, (), step, added) for added in (False, True)]
    composed = [compose_grids(parts, _SCALE**-scale) for parts in laws]
    return tuple(one for one in composed if one is not None) if all(composed) else ()
