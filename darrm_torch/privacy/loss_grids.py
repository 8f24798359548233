"""Privacy losses on a grid of our own, for what rounding errors of ordinary convolutions would hide.

Two tasks need it: training so long, or a delta so small, that the errors of a Fourier transform exceed delta; and
unlike teachers, whose curves are compared point by point. The theory is in ``docs/theory/composition.md``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from scipy import fft, optimize, special

from ..arrays import FloatArray
from .units import group_loss

__all__ = ["Composed", "LossGrid", "compose_grids", "connect_the_dots", "sampled_gaussian"]

_UNIT = 2.0**-53
_FEW = 16  # units in the last place: more than any elementary step below loses
_LONGEST = 2**22  # cells of a convolution
_WIDTH = 10.0  # standard deviations of the noise on either side of its means; beyond them, the loss counts as infinite
_LONG = np.longdouble  # where it is no longer than a double, bounds are looser
_LONG_UNIT = float(np.finfo(_LONG).eps) / 2


@dataclass(frozen=True, eq=False)
class LossGrid:
    """A law of the privacy loss that is no smaller than the true one, in the sense of every delta(epsilon).

    Attributes:
        step: the distance between grid points, in nats.
        low: the first grid point is ``low * step``.
        masses: ``(n,)`` of the grid points; they may add up to slightly more than 1.
        infinite: the mass of an infinite loss.
        shift: how much the true losses may exceed the grid points; to be added to epsilon.
    """

    step: float
    low: int
    masses: FloatArray
    infinite: float = 0.0
    shift: float = 0.0

    @property
    def losses(self) -> FloatArray:
        """The grid points, in nats."""
        return np.asarray((self.low + np.arange(len(self.masses))) * self.step, dtype=np.float64)

    def without_tail(self, mass: float) -> LossGrid:
        """The largest losses, of so much mass at most, count as infinite."""
        tail = np.cumsum(self.masses[::-1])
        kept = len(self.masses) - int(np.searchsorted(tail, mass))
        lost = float(tail[len(self.masses) - kept - 1]) if kept < len(self.masses) else 0.0
        return replace(self, masses=self.masses[:kept], infinite=self.infinite + lost * (1 + _FEW * _UNIT))

    def curve(self, low: int, high: int) -> FloatArray:
        """Delta at the grid points ``low`` to ``high`` (inclusive), to a relative error of the length times a unit.

        With T(j) the mass above j, G(j - 1) = e^-step G(j) + (1 - e^-step) T(j - 1): only positive numbers are added.
        """
        from scipy import signal  # slow to import

        first, last = min(low, self.low), max(high, self.low + len(self.masses) - 1)
        masses = np.zeros(last - first + 1)
        masses[self.low - first :][: len(self.masses)] = self.masses
        above = np.append(np.cumsum(masses[:0:-1])[::-1], 0.0)  # mass beyond each point
        fall = math.exp(-self.step)
        delta = signal.lfilter([-math.expm1(-self.step)], [1.0, -fall], above[::-1])[::-1]
        return np.asarray(self.infinite + delta[low - first : high - first + 1])

    def rough(self) -> tuple[FloatArray, FloatArray]:
        """Losses and masses of a coarser law, for choices only: its cells are a per cent of the loss wide."""
        place = self.low + np.arange(len(self.masses))
        block = np.sign(place) * np.floor(100 * np.log1p(np.abs(place) / 100))
        starts = np.append(0, np.flatnonzero(np.diff(block)) + 1)
        masses = np.add.reduceat(self.masses, starts)
        return np.add.reduceat(self.masses * place, starts) / np.maximum(masses, 1e-300) * self.step, masses


@lru_cache(maxsize=16)
def sampled_gaussian(noise: float, rate: float, step: float, added: bool, records: int = 1) -> LossGrid:
    """One Poisson-sampled Gaussian release, for a unit of so many records, added or removed.

    Each cell of the grid holds a mass m' on the data set and m on its neighbour. Both are kept by two atoms at the
    ends of the cell: w at the upper one with ``w (1 - e^-step) = m' - m e^loss``. Rounding enlarges m' and w.
    """
    group, reach, sign = group_loss(noise, rate, records), _WIDTH * noise, -1 if added else 1
    top = group.top
    ends = sorted(sign * float(group.at(x)) for x in (-reach, top + reach))
    low, high = math.floor(ends[0] / step), math.ceil(ends[1] / step)
    bounds = sign * np.arange(low, high + 1) * step  # the loss of removal at the ends of the cells
    x = np.clip(group.where(bounds), -reach, top + reach)
    x[[0, -1]] = (top + reach, -reach) if added else (-reach, top + reach)
    several = np.array([_cell_masses((x - count) / noise) for count in group.counts])
    still, still_error = several[0]  # no record in the batch
    mixed, mixed_error = np.tensordot(group.chances, several, axes=1)
    here, there = (still, mixed) if added else (mixed, still)
    here_error, there_error = (still_error, mixed_error) if added else (mixed_error, still_error)
    growth = np.exp(np.arange(low, high) * step)
    error = here_error + growth * there_error + _FEW * _UNIT * (here + growth * there)
    upper = np.maximum((here - growth * there + error) / -math.expm1(-step), 0.0)
    here = here * (1 + _FEW * _UNIT) + here_error
    upper = np.minimum(upper, here)
    masses = np.append(here - upper, 0.0)
    masses[1:] += upper
    tail = 2 * float(special.ndtr(-_WIDTH))
    masses[0] += tail
    # A rounding of x by a few units moves the loss by at most that, times its slope 1 / noise^2.
    shift = _FEW * _UNIT * (2 + top * (top + reach) / noise**2 + max(map(abs, ends)))
    return LossGrid(step, low, masses * (1 + _FEW * _UNIT), infinite=tail, shift=shift)


def _cell_masses(z: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Standard normal masses between neighbouring z, and bounds on their rounding errors."""
    below, above = np.minimum(z[:-1], z[1:]), np.maximum(z[:-1], z[1:])
    mirrored = below > 0
    high, low = np.where(mirrored, -below, above), np.where(mirrored, -above, below)
    top, bottom = special.ndtr(high), special.ndtr(low)
    # ndtr is accurate to a few units, times |z| for the rounding of its argument.
    return np.maximum(top - bottom, 0.0), _FEW * _UNIT * top * (1 + high**2 + np.abs(high))


def connect_the_dots(step: float, low: int, curve: FloatArray) -> LossGrid:
    """The smallest law on the grid with at least these deltas at the grid points from ``low`` on (two or more).

    The deltas must be those of some mechanism: in e^epsilon, a convex function. Each mass is rounded up by more than
    its own error, so the law has at least these deltas also after rounding.
    """
    curve = np.maximum.accumulate(np.minimum(curve, 1.0)[::-1])[::-1]
    falls, growth = -np.diff(curve), math.expm1(step)
    masses = np.empty_like(curve)
    masses[0] = 1 - curve[0] - falls[0] / growth
    masses[1:-1] = (falls[:-1] * math.exp(step) - falls[1:]) / growth
    masses[-1] = falls[-1] / -math.expm1(-step)
    error = np.zeros_like(curve)
    error[:-1] += falls
    error[1:] += falls
    masses = np.maximum(masses, 0.0) + _FEW * _UNIT * error * (1 + 1 / growth)
    masses[0] += _FEW * _UNIT
    return LossGrid(step, low, masses, infinite=float(curve[-1]))


@dataclass(frozen=True, eq=False)
class Composed:
    """Composed releases, seen through a tilt: ``tilted[k] = mass(k) e^(tilt loss(k) - scale)`` within a window."""

    grid: LossGrid  # its masses are the tilted ones
    tilt: float
    scale: float
    error: float  # of the tilted masses, in the 2-norm
    factor: float  # for relative errors

    def delta(self, epsilon: float) -> float:
        """The smallest proven delta at ``epsilon``."""
        epsilon -= self.grid.shift
        first = max(0, math.floor(epsilon / self.grid.step) - self.grid.low)
        losses = self.grid.losses[first:]
        weights = -np.expm1(np.minimum(epsilon - losses, 0.0)) * np.exp(
            np.minimum(self.scale - self.tilt * losses, 700.0)
        )
        with np.errstate(over="ignore"):
            proven = float(weights @ self.grid.masses[first:]) + self.error * float(np.linalg.norm(weights))
        return min(1.0, (self.grid.infinite + proven) * self.factor)

    def curve(self, low: int, high: int) -> FloatArray:
        """Proven deltas at the grid points ``low`` to ``high``, without the shift of the losses; not tilted."""
        size = len(self.grid.masses)
        error = self.error * math.sqrt(size) + _FEW * _UNIT * size
        return np.asarray((self.grid.curve(low, high) + error) * self.factor)

    def epsilon(self, delta: float) -> float:
        """The smallest proven epsilon at ``delta``, to a tenth of a grid step; ``math.inf`` if there is none."""
        low, high = 0.0, float(self.grid.losses[-1]) + self.grid.shift
        if self.delta(low) <= delta:
            return low
        if high <= 0 or self.delta(high) > delta:
            return math.inf

        def excess(epsilon: float) -> float:
            return math.log(self.delta(epsilon)) - math.log(delta)

        found = float(optimize.brentq(excess, low, high, xtol=self.grid.step / 100))
        while self.delta(found) > delta:
            found += self.grid.step / 50
        return found


def compose_grids(parts: Sequence[tuple[LossGrid, int]], delta: float, *, near: float | None = None) -> Composed | None:
    """The releases ``(law, count)`` composed, such that rounding errors are small near ``delta``.

    Args:
        parts: laws on one grid step.
        delta: where accuracy is wanted; every delta and epsilon of the result is proven.
        near: the epsilon there, roughly; without it, Chernoff's bound. Zero: the whole curve, without a tilt.

    Returns:
        None where that would take too long.
    """
    step, beyond = parts[0][0].step, delta * 2.0**-12
    parts = [(law.without_tail(beyond / (count * len(parts))), count) for law, count in parts]
    rough = [(*law.rough(), count) for law, count in parts]

    def cumulant(tilt: float) -> float:
        return sum(count * _log_mean(losses, masses, tilt) for losses, masses, count in rough)

    tilts = np.geomspace(1e-2, 1e4, 121 if near != 0 else 25)
    cumulants = np.array([cumulant(tilt) for tilt in tilts])
    # Rounding errors at epsilon are about unit e^(cumulant - tilt epsilon) / sqrt(tilt step). The smallest tilt that
    # makes them small suffices, as it needs the smallest window.
    guess = float(np.min((cumulants - math.log(delta)) / tilts)) if near is None else near
    unit = _FEW * _LONG_UNIT * 32 * sum(count for _, count in parts)
    errors = math.log(unit) + cumulants - tilts * guess - np.log(2 * tilts * step) / 2
    enough = np.flatnonzero(errors < math.log(delta) - 7)
    tilt = float(tilts[enough[0] if len(enough) else int(np.argmin(errors))]) if near != 0 else 0.0
    # The window. What lies beyond it appears at its other end, which only adds to delta, or counts as infinite.
    here, steeper = cumulant(tilt), tilts > tilt
    first = math.floor(min(-2 * step, max((here - cumulant(tilt - t) - 28.0) / t for t in tilts[::4])) / step)
    highs = (cumulants - tilt * first * step - math.log(beyond))[steeper] / (tilts[steeper] - tilt)
    steepest = float(tilts[steeper][int(np.argmin(highs))])
    last = math.ceil(max(float(highs.min()), 2 * step) / step)
    exact = sum(count * _log_mean(law.losses, law.masses, steepest) for law, count in parts)
    outside = math.exp(min(exact - steepest * last * step, 0.0))
    if last - first > _LONGEST:
        return None
    length = fft.next_fast_len(last - first + 1, real=True)
    first = last - length + 1

    transform = np.ones(length // 2 + 1, dtype=np.result_type(_LONG, np.complex128))
    scale, relative, origin, releases = 0.0, 0.0, 0, sum(count for _, count in parts)
    for law, count in parts:
        level = _log_mean(law.losses, law.masses, tilt)
        exponent = tilt * law.losses - level
        masses = law.masses * np.exp(exponent)
        folded = np.zeros(length, dtype=_LONG)
        for start in range(0, len(masses), length):
            piece = masses[start : start + length]
            folded[: len(piece)] += piece
        transform *= fft.rfft(folded) ** count
        scale, origin = scale + count * level, origin + count * law.low
        live = exponent[masses > 0]
        relative += count * _FEW * _UNIT * (3 + float(np.abs(live).max(initial=0.0)))
    tilted = np.roll(fft.irfft(transform, length), (origin - first) % length).astype(np.float64)
    # Each transform has an error of a few log2(N) units of its 2-norm (Higham 2002, Theorem 24.2), and so has its
    # power, times the count: no entry exceeds the sum of the masses, which is 1.
    error = _FEW * _LONG_UNIT * math.log2(2 * length) * (releases + len(parts) + 1) * math.exp(relative)
    infinite = -math.expm1(sum(count * math.log1p(-law.infinite) for law, count in parts)) + outside * math.exp(
        relative
    )
    shift = sum(count * law.shift for law, count in parts)
    grid = LossGrid(step, first, np.maximum(tilted, 0.0), infinite=infinite, shift=shift)
    relative += _FEW * _UNIT * (abs(scale) + tilt * step * (abs(first) + length) + math.log2(2 * length))
    return Composed(grid, tilt, scale, error, math.exp(min(relative, 700.0)))


def _log_mean(losses: FloatArray, masses: FloatArray, tilt: float) -> float:
    """The logarithm of the sum of masses times e^(tilt loss)."""
    exponent = tilt * losses
    top = float(exponent[masses > 0].max())
    return top + math.log(float(masses @ np.exp(exponent - top)))
