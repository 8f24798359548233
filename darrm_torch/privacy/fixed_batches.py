"""DP-SGD on batches of fixed size, drawn without replacement, for neighbours that replace one record."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from .guarantees import LARGEST_EPSILON
from .loss_distributions import DpSgd, grid_step, has_grids
from .loss_grids import compose_grids, connect_the_dots
from .units import group_loss

__all__ = ["fixed_batches_curve"]

_NO_NOISE = 2.0**-100  # less proves nothing, and its square is no number
_MOST_CELLS = 2**20  # of the grid of one step
_ROUNDING = 2.0**-49  # of a point of the curve of one step


@lru_cache(maxsize=128)
def fixed_batches_curve(noise: float, rate: float, steps: int) -> tuple[tuple[float, float], ...]:
    """Pairs (delta, epsilon) for DP-SGD on a share ``rate`` of the records in each step, where one is replaced."""
    from dp_accounting import NeighboringRelation, dp_event, rdp

    if noise < _NO_NOISE:
        return ()

    # At these orders the moments are sums, not approximations.
    orders = sorted({*range(2, 25), *(round(2 ** (power / 4)) for power in range(18, 33))})
    accountant = rdp.RdpAccountant(orders, NeighboringRelation.REPLACE_ONE)
    whole = 2**60
    event = dp_event.SampledWithoutReplacementDpEvent(
        whole, math.ceil(rate * whole), dp_event.GaussianDpEvent(noise / 2)
    )
    accountant.compose(event, steps)
    rounding = 1e-12 * steps  # as for Poisson sampling
    deltas = [10.0 ** (-power / 2) for power in range(1, 61)]
    epsilons = [float(accountant.get_epsilon(delta)) for delta in deltas]
    renyi = [(d, e + rounding) for d, e in zip(deltas, epsilons, strict=True) if rounding < e < LARGEST_EPSILON]
    return (*renyi, *_fixed_batches_points(noise / 2, rate, steps))


def _fixed_batches_points(noise: float, rate: float, steps: int) -> list[tuple[float, float]]:
    """Pairs (delta, epsilon) by the exact composition of the curve that bounds each step (theory: units)."""
    runs: DpSgd = ((noise, rate, steps),)
    step = grid_step(runs, ())
    loss = group_loss(noise, rate, 1)
    last = math.ceil(float(loss.at(1 + 10 * noise)) / step)
    if last > _MOST_CELLS or not has_grids(runs, ()):
        return []
    epsilons = np.arange(-last, last + 1, dtype=np.float64) * step
    curve = np.where(epsilons < 0, loss.curve(epsilons, added=True), loss.curve(epsilons, added=False))
    law = connect_the_dots(step, -last, curve + _ROUNDING)
    points = []
    for delta in (10.0**-power for power in range(1, 13)):
        composed = compose_grids([(law, steps)], delta)
        epsilon = math.inf if composed is None else composed.epsilon(delta)
        if epsilon < LARGEST_EPSILON:
            points.append((delta, epsilon))
    return points
