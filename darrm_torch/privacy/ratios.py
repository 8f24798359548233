"""Laws of likelihood ratios, rounded toward privacy: what random allocation is priced with.

An ordered pair (A, B) is kept as the law of ``X = dA/dB`` under B, plus the mass of A where B has none (``lost``). All
arithmetic adds and multiplies non-negative numbers, so rounding is a relative error, which every law carries with it.
Fourier transforms would be faster, but leave absolute noise that tails drown in. Proofs: `docs/theory/allocation.md`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache, reduce

import numpy as np
from scipy.special import gammaln, ndtr, ndtri

from ..arrays import FloatArray
from .guarantees import LARGEST_EPSILON, PrivacyGuarantee, curve_corners
from .loss_distributions import run_parts
from .profiles import PrivacyProfile
from .units import group_loss

__all__ = ["RatioLaw", "pair_law", "product_of"]

_UNIT = 2.0**-53
_TAIL = 1e-18  # mass that each operation may move to an infinite loss
_TWICE = 1 + 2.0**-40  # for the tails, which count twice
_CELLS = 4096  # of a product: it costs cells**2
_SUM_CELLS = 2048  # of a sum, which costs more
_MOST_CELLS = 16384
_FINEST = 1e-6  # step of a grid: a sum has log(2) / step cells
_LEAST_STEP = 2.0**-50  # neighbours on a grid are unlike numbers
_EXACT = 50_000  # values that are kept one by one rather than moved to a grid
_MOST_NOISE = 2.0**30  # more noise costs no more, and its ratios differ from 1 by less than rounding
_LARGEST = LARGEST_EPSILON  # of the logarithm of a ratio, so that the product of two is a float


@dataclass(frozen=True, eq=False)
class RatioLaw:
    """A non-negative variable that dominates a likelihood ratio in the convex order, under B.

    Attributes:
        values: the values, zero included; on a grid ``exp(step * (first + i))`` behind the zero at place 0.
        masses: their probabilities.
        lost: the mass of A, at least, that ``values`` do not account for: it counts as an infinite loss.
        gone: the mass of B, at least, that ``values`` do not account for: it counts as revealed too.
        step: distance of the logarithms of neighbouring values; 0 where values are no grid.
        first: the place on the grid of the first positive value.
        mass_error: relative rounding error of the masses.
        value_error: relative rounding error of the values.
    """

    values: FloatArray
    masses: FloatArray
    lost: float = 0.0
    gone: float = 0.0
    step: float = 0.0
    first: int = 0
    mass_error: float = 0.0
    value_error: float = 0.0

    def removal(self, epsilon: float) -> float:
        """``E (X - e^epsilon)+`` and what is lost: delta of A against B, an upper bound."""
        threshold = math.exp(min(epsilon, 2 * _LARGEST)) * (1 - self.value_error - 8 * _UNIT)
        excess = float(self.masses @ np.maximum(self.values - threshold, 0.0))
        return (excess + self.lost + self.gone) * self._slack

    def addition(self, epsilon: float) -> float:
        """``E (1 - e^epsilon X)+``: delta of B against A, an upper bound."""
        factor = math.exp(min(epsilon, 2 * _LARGEST)) * (1 - self.value_error - 8 * _UNIT)
        with np.errstate(over="ignore"):
            deficit = float(self.masses @ np.maximum(1.0 - factor * self.values, 0.0))
        return (deficit + self.gone) * self._slack

    @property
    def _reach(self) -> float:
        """The largest logarithm of a positive value, or of its inverse."""
        return float(np.abs(np.log(self.values[self.values > 0])).max(initial=0.0))

    @property
    def _slack(self) -> float:
        return 1 + self.mass_error + self.value_error + 4 * len(self.values) * _UNIT

    def product(self, other: RatioLaw) -> RatioLaw:
        """The ratio of both releases together: independent factors."""
        few = len(self.values) * len(other.values) <= _EXACT and self._reach + other._reach <= _LARGEST
        if few and not self.step and not other.step:
            return self._combined(
                other,
                values=np.multiply.outer(self.values, other.values).ravel(),
                masses=np.multiply.outer(self.masses, other.masses).ravel(),
                terms=1,
            )
        step = max(self.step, other.step) or max(self._fitting(_CELLS), other._fitting(_CELLS))
        one, two = self.on_grid(step), other.on_grid(step)
        masses = np.convolve(one.masses[1:], two.masses[1:])
        zero = one.masses[0] + (1 - one.masses[0]) * two.masses[0]
        result = one._combined(
            two,
            masses=np.concatenate([[zero], masses]),
            step=step,
            first=one.first + two.first,
            terms=min(len(one.masses), len(two.masses)),
        ).trimmed()
        if result.lost + result.gone >= 1:  # nothing is hidden: no value of B is one of A
            ends = np.array([1.0, 0.0])
            return _grid_law(ends, step=step, first=0, lost=1.0, gone=0.0, mass_error=0.0, value_error=0.0)
        return result

    def power(self, count: int) -> RatioLaw:
        """The ratio of ``count`` independent releases with this ratio each."""
        if not self.step and count * self._reach <= _LARGEST and _combinations(count, len(self.values)) <= _EXACT:
            return self._multinomial(count, sums=False)
        return self._repeated(count, lambda one, other: one.product(other).coarser())

    def total(self, count: int) -> RatioLaw:
        """The sum of ``count`` independent copies."""
        if not self.step and _combinations(count, len(self.values)) <= _EXACT:
            return self._multinomial(count, sums=True)
        return self._repeated(count, RatioLaw.sum)

    def _repeated(self, count: int, joined: Callable[[RatioLaw, RatioLaw], RatioLaw]) -> RatioLaw:
        """``count`` independent copies, joined by doubling."""
        law, result = self, None
        while count:
            if count % 2:
                result = law if result is None else joined(result, law)
            count //= 2
            law = joined(law, law) if count else law
        assert result is not None
        return result

    def sum(self, other: RatioLaw) -> RatioLaw:
        """The sum of two independent variables, on a grid."""
        step = max(self._summing, other._summing)
        one = self.on_grid(step)
        two = one if self is other else other.on_grid(step)
        a, b, ahead = one.masses[1:], two.masses[1:], one.first - two.first
        start = min(one.first, two.first)
        masses = np.zeros(max(one.first + len(a), two.first + len(b)) - start + math.ceil(math.log(2) / step) + 2)
        # a_i + b_j = exp(step (two.first + j)) (1 + exp(step (ahead + i - j))): what it adds depends on i - j only.
        shifts = np.arange(0 if one is two else 1 - len(b), len(a))
        places = np.logaddexp(0.0, step * (ahead + shifts)) / step
        cells = np.floor(places).astype(np.int64)
        upper = np.expm1(step * (places - cells)) / math.expm1(step)
        for shift, cell, part in zip(
            shifts.tolist(), (cells + two.first - start).tolist(), upper.tolist(), strict=True
        ):
            low, high = max(0, -shift), min(len(b), len(a) - shift)
            joint = a[low + shift : high + shift] * b[low:high]
            if one is two and shift:
                joint *= 2
            masses[low + cell + 1 : high + cell + 1] += part * joint
            joint *= 1 - part
            masses[low + cell : high + cell] += joint
        for law, zero in ((one, two.masses[0]), (two, one.masses[0])):
            masses[law.first - start : law.first - start + len(law.masses) - 1] += zero * law.masses[1:]
        return one._combined(
            two,
            masses=np.concatenate([[one.masses[0] * two.masses[0]], masses]),
            step=step,
            first=start,
            terms=2 * len(masses),
            adds=True,
        ).trimmed()

    def affine(self, constant: float, factor: float) -> RatioLaw:
        """``constant + factor X``."""
        return replace(
            self,
            values=constant + factor * self.values,
            lost=factor * self.lost,
            step=0.0,
            value_error=self.value_error + 4 * _UNIT,
        )

    def on_grid(self, step: float) -> RatioLaw:
        """Each mass split between its two neighbours on the grid, so that the mean stays as it is."""
        if step == self.step:
            return self
        positive = self.values > 0
        if not positive.any():  # nothing is hidden: a cell without mass keeps the grid
            ends = np.array([self.masses.sum(), 0.0])
            return replace(self, values=np.array([0.0, 1.0]), masses=ends, step=step, first=0)
        if self.step:
            places = np.arange(self.first, self.first + len(self.values) - 1) * (self.step / step)
        else:
            places = np.log(self.values[positive]) / step
        cells = np.floor(places).astype(np.int64)
        upper = np.expm1(step * (places - cells)) / math.expm1(step)
        first = int(cells.min())
        masses = np.zeros(int(cells.max()) - first + 2)
        weights = self.masses[1:] if self.step else self.masses[positive]
        masses += np.bincount(cells - first, weights * (1 - upper), len(masses))
        masses += np.bincount(cells - first + 1, weights * upper, len(masses))
        zero = float(self.masses[0] if self.step else self.masses[~positive].sum())
        largest = float(np.abs(step * places).max())
        return _grid_law(
            np.concatenate([[zero], masses]),
            step=step,
            first=first,
            lost=self.lost,
            gone=self.gone,
            mass_error=self.mass_error + (len(weights) + 4) * _UNIT,
            value_error=self.value_error + 16 * (2 + largest) * _UNIT,
        )

    def coarser(self) -> RatioLaw:
        """On a coarser grid, where it has more cells than it needs."""
        law = self
        while law.step and len(law.masses) > _CELLS:
            if 16 * law.step > law._spread and len(law.masses) <= _MOST_CELLS:
                break
            law = law.on_grid(2 * law.step)
        return law

    def trimmed(self) -> RatioLaw:
        """Without its far tails: large values count as lost beyond the last that is kept, small ones as gone."""
        values, masses = self.values[1:], self.masses[1:]
        carried = values * masses
        stop = len(masses) - int(np.searchsorted(np.cumsum(carried[::-1]), _TAIL))
        start = int(np.searchsorted(np.cumsum(masses), _TAIL))
        most = math.floor(_LARGEST / self.step)
        stop = min(max(min(stop, most - self.first + 1), 1), len(masses))
        start = min(max(start, -most - self.first), stop - 1)
        kept = masses[start:stop].copy()
        kept[-1] += masses[stop:].sum()
        return _grid_law(
            np.concatenate([self.masses[:1], kept]),
            step=self.step,
            first=self.first + start,
            lost=self.lost + float(carried[:start].sum() + carried[stop:].sum()),
            gone=self.gone + float(masses[:start].sum()),
            mass_error=self.mass_error + len(masses) * _UNIT,
            value_error=self.value_error,
        )

    def _fitting(self, cells: int) -> float:
        """The step of a grid of about ``cells`` cells, or one that refines the present grid."""
        if self.step:
            return self.step * 2.0 ** max(
                math.ceil(math.log2(len(self.values) / cells)), math.ceil(math.log2(_FINEST / self.step))
            )
        logs = np.log(self.values[self.values > 0])
        return max(float(np.ptp(logs)) / cells if len(logs) else 0.0, _FINEST)

    @property
    def _summing(self) -> float:
        """The step of the grid of a sum: finer where it would exceed a sixteenth of the spread of the logarithms."""
        cells = _SUM_CELLS
        while cells < _MOST_CELLS and 16 * self._fitting(cells) > self._spread:
            cells *= 2
        return self._fitting(cells)

    @property
    def _spread(self) -> float:
        """The standard deviation of the logarithms of the positive values, without those that are gone."""
        positive = self.values > 0
        logs, masses = np.log(self.values[positive]), self.masses[positive]
        return math.sqrt(float(masses @ (logs - masses @ logs) ** 2))

    def _multinomial(self, count: int, *, sums: bool) -> RatioLaw:
        """All sums, or products, of ``count`` independent copies: by how many take each value."""
        left, mass, value = np.array([count]), np.zeros(1), np.zeros(1) if sums else np.ones(1)
        with np.errstate(divide="ignore"):
            logs = np.log(self.masses)
        for place, one in enumerate(self.values):
            if place < len(self.values) - 1:
                choices = left + 1
                source = np.repeat(np.arange(len(left)), choices)
                taken = np.arange(len(source)) - np.repeat(np.cumsum(choices) - choices, choices)
            else:
                source, taken = np.arange(len(left)), left
            with np.errstate(invalid="ignore"):
                mass = mass[source] + np.where(taken > 0, taken * logs[place], 0.0) - gammaln(taken + 1)
            value = value[source] + taken * one if sums else value[source] * one**taken
            left = left[source] - taken
        largest = float(gammaln(count + 1) + count * np.abs(logs[np.isfinite(logs)]).max(initial=1.0))
        return RatioLaw(
            values=value,
            masses=np.exp(mass + gammaln(count + 1)),
            lost=count * self.lost if sums else -math.expm1(count * math.log1p(-min(self.lost, 1 - _UNIT))) * _TWICE,
            gone=count * self.gone,
            mass_error=count * self.mass_error + 64 * (1 + largest) * _UNIT,
            value_error=(1 if sums else count) * self.value_error + 4 * (count + len(self.values)) * _UNIT,
        )

    def _combined(
        self,
        other: RatioLaw,
        *,
        masses: FloatArray,
        terms: int,
        values: FloatArray | None = None,
        step: float = 0.0,
        first: int = 0,
        adds: bool = False,
    ) -> RatioLaw:
        errors = self.value_error, other.value_error
        gone = self.gone + other.gone
        # The tails count twice, as lost and at the last value that is kept, but they are next to nothing.
        lost = self.lost + other.lost if adds else (self.lost + (1 - self.lost) * other.lost) * _TWICE
        mass_error = self.mass_error + other.mass_error + (terms + 8) * _UNIT
        value_error = (max(errors) if adds else sum(errors)) + 16 * _UNIT
        if values is None:
            return _grid_law(
                masses, step=step, first=first, lost=lost, gone=gone, mass_error=mass_error, value_error=value_error
            )
        return RatioLaw(
            values=values, masses=masses, lost=lost, gone=gone, mass_error=mass_error, value_error=value_error
        )


def _grid_law(
    masses: FloatArray, *, step: float, first: int, lost: float, gone: float, mass_error: float, value_error: float
) -> RatioLaw:
    logs = step * np.arange(first, first + len(masses) - 1)
    return RatioLaw(
        values=np.concatenate([[0.0], np.exp(logs)]),
        masses=masses,
        lost=lost,
        gone=gone,
        step=step,
        first=first,
        mass_error=mass_error,
        value_error=value_error + 4 * (1 + max(abs(logs[0]), abs(logs[-1]))) * _UNIT,
    )


def _combinations(count: int, kinds: int) -> float:
    return math.exp(min(700.0, float(gammaln(count + kinds) - gammaln(count + 1) - gammaln(kinds))))


@lru_cache(maxsize=256)
def pair_law(profile: PrivacyProfile) -> RatioLaw:
    """The ratio of one ordered pair that dominates everything that ``profile`` describes, in both directions."""
    laws = [_promise_law(points).power(count) for points, count in profile.promises]
    laws += [_dp_sgd_law(noise, rate, records).power(n) for noise, rate, n, records in map(run_parts, profile.dp_sgd)]
    return product_of(sorted(laws, key=lambda law: -law.step))


def product_of(laws: Sequence[RatioLaw]) -> RatioLaw:
    """The ratio of all ``laws`` together; the constant 1 if there are none."""
    return reduce(RatioLaw.product, laws) if laws else RatioLaw(values=np.ones(1), masses=np.ones(1))


def _dp_sgd_law(noise: float, rate: float, records: int) -> RatioLaw:
    """One Poisson-sampled Gaussian step: ``X = 1 - q + q exp((z - 1/2) / sigma^2)`` for noise z and one record."""
    noise = min(noise, _MOST_NOISE)
    group = group_loss(noise, rate, records)
    spread = rate * math.sqrt(math.expm1(min(1 / noise**2, 100.0)))  # standard deviation of X under B, for one record

    def loss_at(z: float) -> float:
        return float(np.clip(group.at(z), -_LARGEST, _LARGEST))

    low, high = loss_at(-9.2 * noise), loss_at(group.top + 9.2 * noise)
    if (high - low) / _MOST_CELLS > spread / 64:  # a nearer end, beyond which A has next to nothing, for a finer grid
        high = min(high, loss_at(group.top - noise * float(ndtri(min(0.5, 1e-10 * spread / rate)))))
    step = max((high - low) / _MOST_CELLS, min(spread / 64, (high - low) / _CELLS), _LEAST_STEP)
    first, last = math.floor(low / step), math.ceil(high / step)
    logs = step * np.arange(first, last + 1)
    edges = group.where(logs) / noise
    several = [_normal_masses(edges - count / noise) for count in group.counts]
    under_b = several[0][0]  # no record in the batch
    under_a = np.sum([chance * masses for chance, (masses, _) in zip(group.chances, several, strict=True)], axis=0)
    values = np.exp(logs)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.where(under_b > 0, under_a / under_b, values[:-1])
    upper = np.clip((mean - values[:-1]) / np.diff(values), 0.0, 1.0)
    masses = np.zeros(len(values) + 1)
    masses[1:-1] += under_b * (1 - upper)
    masses[2:] += under_b * upper
    # Below the grid: gone, and what A has there is lost. Above it: the last value, and lost.
    outside_a = sum(
        chance * (ndtr(edges[0] - count / noise) + ndtr(count / noise - edges[-1]))
        for chance, count in zip(group.chances, group.counts, strict=True)
    )
    masses[-1] += ndtr(-edges[-1])
    error = 2 * max(error for _, error in several)
    return _grid_law(
        masses,
        step=step,
        first=first,
        lost=float(outside_a) * 1.001,
        gone=float(ndtr(edges[0])) * 1.001,
        mass_error=error,
        value_error=error,
    )


def _normal_masses(edges: FloatArray) -> tuple[FloatArray, float]:
    """Of the standard normal law between neighbouring edges, and a bound of their relative errors."""
    right = edges[:-1] > 0
    near, far = np.where(right, edges[:-1], edges[1:]), np.where(right, edges[1:], edges[:-1])
    near, far = np.where(right, -near, near), np.where(right, -far, far)
    tails = ndtr(near), ndtr(far)
    masses = tails[0] - tails[1]
    with np.errstate(divide="ignore", invalid="ignore"):
        errors = (8 + near**2) * _UNIT * tails[0] / masses
        errors += np.where(tails[1] > 0, (8 + np.minimum(far**2, 1e3)) * _UNIT * tails[1] / masses, 0.0)
    known = masses > 1e-25
    return masses, float(errors[known].max(initial=0.0))


def _promise_law(points: tuple[PrivacyGuarantee, ...]) -> RatioLaw:
    """The worst release that keeps all ``points``.

    The ratio takes the corners of its curve as values, each with the change of slope as its mass, in rational numbers.
    """
    corners = curve_corners(points)
    pieces = itertools.pairwise(corners)
    slopes = [Fraction(-1), *((low - high) / (right - left) for (left, high), (right, low) in pieces), Fraction(0)]
    masses = [after - before for before, after in itertools.pairwise(slopes)]
    kept = [(float(t), float(mass)) for (t, _), mass in zip(corners, masses, strict=True) if mass > 0]
    values, chances = np.array(kept).T
    return RatioLaw(
        values=values,
        masses=chances,
        lost=float(corners[-1][1]) * (1 + 2 * _UNIT),
        mass_error=2 * _UNIT,
        value_error=4 * _UNIT,
    )
