"""Privacy loss distributions of composed releases: pessimistic discretisation by dp-accounting, plus an allowance."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any

import numpy as np

from .guarantees import PrivacyGuarantee

__all__ = ["LARGEST_EPSILON", "DpSgd", "LossDistribution", "Promises", "loss_distribution"]

# The fields of a PrivacyProfile: runs (noise_multiplier, sample_rate, steps); (guarantees that hold at once, count).
DpSgd = tuple[tuple[float, float, int], ...]
Promises = tuple[tuple[tuple[PrivacyGuarantee, ...], int], ...]

_CELLS = 16  # grid cells per standard deviation of one release: the variance grows by less than 1 / (4 * 16**2)
_MOST_CELLS = 2**17
_FINEST = 1e-6  # on a finer grid the rounding errors of the curve would show
_TAIL = 1e-15  # probability mass that dp_accounting may move to an infinite loss, per composition
LARGEST_EPSILON = 300.0  # e^(2 epsilon) is finite; larger epsilons are only added up
_UNIT = 2.0**-53


@dataclass(frozen=True)
class LossDistribution:
    """The privacy loss of all releases together, one probability mass function for each direction."""

    pmfs: tuple[Any, ...]
    allowance: float
    dp_sgd: DpSgd | None  # for Renyi accounting; None if it does not apply

    def delta(self, epsilon: float) -> float:
        """The smallest proven delta at ``epsilon``."""
        return min(1.0, max(float(pmf.get_delta_for_epsilon(epsilon)) for pmf in self.pmfs) + self.allowance)

    def epsilon(self, delta: float) -> float:
        """The smallest proven epsilon at ``delta``; ``math.inf`` if there is none."""
        epsilon, slack = math.inf, 1e-12
        if delta > self.allowance:
            with np.errstate(over="ignore"):  # it divides by the mass of the far tail, which may be tiny
                epsilon = max(float(pmf.get_epsilon_for_delta(delta - self.allowance)) for pmf in self.pmfs)
            while math.isfinite(epsilon) and self.delta(epsilon) > delta:  # its sums are rounded
                epsilon, slack = epsilon + slack * max(1.0, epsilon), 2 * slack
        if self.dp_sgd and delta < 16 * self.allowance:
            epsilon = min(epsilon, _renyi_epsilon(self.dp_sgd, delta))
        return epsilon


@lru_cache(maxsize=128)
def loss_distribution(dp_sgd: DpSgd, promises: Promises) -> LossDistribution:
    """The loss distribution of DP-SGD runs and of the worst releases that keep ``promises``, all composed."""
    from dp_accounting.pld import pld_pmf

    step = _grid_step(dp_sgd, promises)
    pmfs, widest = [], 1
    for added in (False, True):
        parts = [(_dp_sgd_step(noise, rate, step, added), count) for noise, rate, count in dp_sgd]
        parts += [(_promise(points, step), count) for points, count in promises]
        widest = max(widest, *(pmf.size for pmf, _ in parts))
        composed = [pmf.self_compose(count, _TAIL) if count > 1 else pmf for pmf, count in parts]
        pmfs.append(reduce(lambda a, b: pld_pmf.compose_pmfs(a, b, _TAIL), composed))
    # The allowance bounds the rounding error of delta at any epsilon, in units of 2^-53. One release: its curve
    # has an error of a few units, and so has each of its at most `widest` masses; n releases, replaced one after the
    # other, have n times that. The n-th power of a discrete Fourier transform of length N has an error of a few
    # n log2(N) units in the 2-norm (Higham 2002, Theorem 24.2), and a sum over its N entries sqrt(N) times that.
    # Evaluating delta adds N units. "A few" is at most 16.
    releases = sum(count for *_, count in dp_sgd) + sum(count for _, count in promises) + len(dp_sgd) + len(promises)
    cells = max(pmf.size for pmf in pmfs)
    units = 16 * (releases * (widest + math.log2(2 * cells) * math.sqrt(cells)) + cells)
    return LossDistribution(tuple(pmfs), units * _UNIT, dp_sgd if not promises else None)


def _renyi_epsilon(dp_sgd: DpSgd, delta: float) -> float:
    """Epsilon by the Renyi accountant of `dp_accounting`: looser, but rounding errors do not hide a tiny delta."""
    epsilon = float(_renyi_accountant(dp_sgd).get_epsilon(delta))
    # The divergence of a step is the logarithm of a number near 1 with an error of about 1e-15. If it is smaller than
    # that, the accountant returns 0, which proves nothing.
    rounding = 1e-12 * sum(steps for *_, steps in dp_sgd)
    return epsilon + rounding if epsilon > rounding else math.inf


@lru_cache(maxsize=128)
def _renyi_accountant(dp_sgd: DpSgd) -> Any:
    from dp_accounting import dp_event, rdp

    accountant = rdp.RdpAccountant()
    for noise, rate, steps in dp_sgd:
        accountant.compose(dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(noise)), steps)
    return accountant


def _grid_step(dp_sgd: DpSgd, promises: Promises) -> float:
    """The distance between grid points. Any distance is sound; a smaller one is tighter."""
    epsilons = {g.epsilon for points, _ in promises for g in points if 0 < g.epsilon <= LARGEST_EPSILON}
    if not dp_sgd and len(epsilons) < 2:
        return max(epsilons, default=1.0)  # the losses lie exactly on the grid
    variance, widest, releases = 0.0, 0.0, 0
    for noise, rate, count in dp_sgd:
        # Quadrature of the loss of one step over its noise.
        x = np.linspace(-12 * noise, 1 + 12 * noise, 20001)
        stay = math.log1p(-rate) if rate < 1 else -math.inf
        loss = np.logaddexp(stay, math.log(rate) + (x - 0.5) / noise**2)
        weight = np.exp(-0.5 * (x / noise) ** 2)
        weight /= weight.sum()
        variance += count * float(weight @ (loss - weight @ loss) ** 2)
        widest, releases = max(widest, float(np.ptp(loss))), releases + count
    for points, count in promises:
        largest = max(g.epsilon for g in points if g.epsilon <= LARGEST_EPSILON)
        variance += count * largest**2
        widest, releases = max(widest, 2 * largest), releases + count
    return max(math.sqrt(variance / releases) / _CELLS, 2 * widest / _MOST_CELLS, _FINEST)


@lru_cache(maxsize=128)
def _dp_sgd_step(noise: float, rate: float, step: float, added: bool) -> Any:
    """One Poisson-sampled Gaussian release, for a record added or removed, as `dp_accounting` discretises it."""
    from dp_accounting.pld import pld_pmf, privacy_loss_mechanism

    direction = privacy_loss_mechanism.AdjacencyType.ADD if added else privacy_loss_mechanism.AdjacencyType.REMOVE
    loss = privacy_loss_mechanism.GaussianPrivacyLoss(noise, sampling_prob=rate, adjacency_type=direction)
    bounds = loss.connect_dots_bounds()
    low, high = math.floor(bounds.epsilon_lower / step), math.ceil(bounds.epsilon_upper / step)
    curve = loss.get_delta_for_epsilon(np.arange(low, high + 1) * step)
    return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(step, low, high, curve)


def _promise(points: tuple[PrivacyGuarantee, ...], step: float) -> Any:
    """The worst release that keeps all ``points``; it is the same in both directions.

    As a function of ``t = e^epsilon`` its curve is convex, falls from 1 at t = 0 and respects the points and their
    mirror images ``(e^-epsilon, 1 - (1 - delta) e^-epsilon)``: it is their lower convex hull. For one point this is
    randomized response that reveals everything with probability delta (Kairouz, Oh, Viswanath 2015).
    """
    from dp_accounting.pld import pld_pmf

    finite = [(g.epsilon, g.delta) for g in points if g.epsilon <= LARGEST_EPSILON]
    corners = {math.exp(e): d for e, d in sorted(finite, reverse=True)}
    corners |= {math.exp(-e): 1 - (1 - d) * math.exp(-e) for e, d in finite if e > 0}
    hull = [(0.0, 1.0)]
    for t, y in sorted(corners.items()):
        if y >= hull[-1][1]:
            continue
        while len(hull) > 1:
            (t0, y0), (t1, y1) = hull[-2:]
            if (y1 - y0) / (t1 - t0) < (y - y1) / (t - t1):
                break
            hull.pop()
        hull.append((t, y))
    losses = [sign * e / step for e, _ in finite for sign in (-1, 1)]
    rounded = np.array(sorted({int(side(loss)) for loss in losses for side in (math.floor, math.ceil)}))
    curve = np.interp(np.exp(rounded * step), [t for t, _ in hull], [y for _, y in hull])
    curve = np.maximum(curve, 0.0)  # interpolation may end one unit below zero
    return pld_pmf.create_pmf_pessimistic_connect_dots(step, rounded, curve)
