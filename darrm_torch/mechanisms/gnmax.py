"""GNMax: the class with the most votes after Gaussian noise.

The noise is a normal number rounded to a grid, not the discrete Gaussian of Canonne, Kamath and Steinke (2020):
rounding is post-processing, so the exact figures of the Gaussian hold for every overlap, number of classes and number
of labels, where the discrete Gaussian has figures of its own that depend on which votes move. Both can be drawn
exactly.
"""

from __future__ import annotations

import functools
import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..errors import InvalidArgument, check_integer, check_number
from ..guarantees import PrivacyGuarantee
from .base import NoisyCounts, check_request
from .gaussian import gaussian_epsilon, gaussian_mu, rdp_mu
from .sampling import Floats, GaussianTail, Integers, Magnitudes, RandomBits, fair_argmax

__all__ = ["GNMax"]

SMALLEST_SIGMA = 2.0**-20  # the grid of the noise stays coarse enough for 64-bit sums
LARGEST_SIGMA = 2.0**17  # the table of noise has about 9 sigma entries


@dataclass(frozen=True, kw_only=True)
class GaussianCounts(NoisyCounts):
    """What GNMax and ConfidentGNMax share: all their noise is Gaussian, so any number of labels is one Gaussian.

    Args:
        delta: where :meth:`guarantee` is stated unless asked otherwise.
    """

    delta: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.delta is not None:
            self._check("delta", low=0.0, high=1.0, low_open=True, high_open=True)

    def guarantee(self, *, labels: int = 1, delta: float | None = None, overlap: int | None = None) -> PrivacyGuarantee:
        """The exact (epsilon, ``delta``) of ``labels`` rounds of noisy counts, an upper bound for the labels.

        Args:
            labels: Q.
            delta: ``None``: the one it was built with.
            overlap: r; ``None``: the one it was built with.

        Raises:
            InvalidArgument: no delta here or there.
        """
        labels, delta, overlap = check_request(labels, delta, overlap)
        spent = self.delta if delta is None else delta
        if spent is None:
            raise InvalidArgument("delta", "given", None, "No delta was given when it was built: guarantee(delta=...)")
        mu = (overlap or self.overlap) * math.sqrt(labels * self._squared_mu()) * (1 + 2.0**-48)
        return PrivacyGuarantee(epsilon=gaussian_epsilon(spent, mu), delta=spent)

    @abstractmethod
    def _squared_mu(self) -> float:
        """mu**2 of one label when r = 1."""


@dataclass(frozen=True, kw_only=True)
class GNMax(GaussianCounts):
    """GNMax (Papernot et al. 2018): argmax of the counts, each with its own Gaussian noise; any number of classes.

    Guarantee, whatever the teachers promise: one record that touches at most r teachers changes the counts by at most
    r sqrt(2) in L2. Proof: one vote that moves from class a to b changes the counts by e_b - e_a, of norm sqrt(2);
    r votes by a sum of r such vectors, and all r moving alike attain r sqrt(2). So the noisy counts are a Gaussian
    mechanism with mu = r sqrt(2) / sigma, the label is a function of them, and Q labels, asked adaptively, are one
    Gaussian mechanism with mu = r sqrt(2 Q) / sigma (Dong, Roth, Su 2022, Cor. 3.3). Its epsilon and delta are exact:
    Balle & Wang 2018, Theorem 8.

    Noise: normal, rounded to a grid on which the integer counts lie (step 1, finer below sigma = 16). Rounding the
    noise is rounding the noisy counts, a post-processing, so the guarantee of the continuous Gaussian holds as it
    stands; and unlike floating-point noise the rounded noise is drawn exactly, from the operating system's bits. Ties
    are broken by a fair coin.

    Args:
        sigma: standard deviation of the noise, in votes.
        overlap: r, how many teachers one record can touch: 1 for disjoint shards.
        delta: where :meth:`guarantee` is stated unless asked otherwise.
        teachers: K, ``None`` for any.

    Raises:
        InvalidArgument: an argument out of range.

    >>> mechanism = GNMax.calibrated(PrivacyGuarantee(epsilon=0.2556, delta=3e-4))
    >>> round(mechanism.sigma, 2), str(mechanism.guarantee(labels=1))
    (13.43, '(0.2556, 0.0003)-DP')
    """

    sigma: float
    calibration: str | None = None

    _methods: ClassVar = {"analytic": gaussian_mu, "rdp": rdp_mu}

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("sigma", low=SMALLEST_SIGMA, high=LARGEST_SIGMA)

    @classmethod
    def calibrated(
        cls,
        target: PrivacyGuarantee,
        *,
        method: str = "analytic",
        labels: int = 1,
        overlap: int = 1,
        teachers: int | None = None,
        insecure_seed: int | None = None,
    ) -> GNMax:
        """The smallest noise that keeps ``target`` for ``labels`` labels together, rounded up.

        Args:
            target: of all labels together; epsilon and delta positive.
            method: ``"analytic"``, the exact condition, or ``"rdp"``, the Renyi bound at its best order: what the DaRRM
                paper uses for GNMax, with up to 1.8 times the noise.
            labels: Q.
            overlap: r.
            teachers: K, ``None`` for any.
            insecure_seed: see :class:`Mechanism`.

        Raises:
            InvalidArgument: a target that no Gaussian noise keeps, or that needs none.
        """
        if method not in cls._methods:
            raise InvalidArgument("method", f"one of {sorted(cls._methods)}", method)
        epsilon = check_number("target.epsilon", target.epsilon, low=0.0, low_open=True, high_open=True)
        delta = check_number("target.delta", target.delta, low=0.0, high=1.0, low_open=True, high_open=True)
        labels = check_integer("labels", labels, low=1)
        overlap = check_integer("overlap", overlap, low=1)
        return cls(
            sigma=overlap * math.sqrt(2 * labels) / cls._methods[method](epsilon, delta) * (1 + 2.0**-40),
            overlap=overlap,
            delta=delta,
            teachers=teachers,
            calibration=f"{method}: {target} for {labels} label(s), overlap {overlap}",
            insecure_seed=insecure_seed,
        )

    def _parameters(self) -> dict[str, Any]:
        return {"sigma": self.sigma, "overlap": self.overlap, "delta": self.delta}

    def _notes(self) -> list[str]:
        calibration = [] if self.calibration is None else [f"calibrated by {self.calibration}"]
        return [*calibration, f"noise: normal rounded to multiples of {grid_step(self.sigma)}, drawn exactly"]

    def _squared_mu(self) -> float:
        return 2 / self.sigma**2

    def _draw(self, counts: Integers) -> Integers:
        return noisy_argmax(counts, *gaussian_noise(self.sigma), self._bits)

    def _law(self, counts: Integers) -> Floats:
        return noisy_argmax_law(counts, *gaussian_noise(self.sigma))


def grid_step(sigma: float) -> float:
    """The grid of the noise: 1, or the largest 2**-k that is at most sigma / 16."""
    return min(1.0, 2.0 ** math.floor(math.log2(sigma / 16)))


@functools.lru_cache(maxsize=16)
def gaussian_noise(sigma: float) -> tuple[Magnitudes, int]:
    """Noise in units of the grid, and how many of these units a vote is."""
    step = grid_step(sigma)
    return Magnitudes(GaussianTail(sigma, step)), round(1 / step)


def noisy_argmax(counts: Integers, noise: Magnitudes, unit: int, bits: RandomBits) -> Integers:
    """argmax of ``unit * counts`` plus independent signed noise, fair at ties: (B, C) -> (B,)."""
    return fair_argmax(unit * counts + noise.signed(bits, *counts.shape), bits)


def noisy_argmax_law(counts: Integers, noise: Magnitudes, unit: int) -> Floats:
    """The law of :func:`noisy_argmax`, (B, C) -> (B, C): a finite sum, no sampling; the error is below 1e-12.

    Class c draws noise k with probability p(k) and then wins with probability E[1/(1 + ties)]: each rival j is below
    with probability F_j and level with p_j, so that is the integral over t in [0, 1] of prod_j (F_j + t p_j), a
    polynomial in t that Gauss-Legendre integrates exactly. Left out is what lies beyond the tabulated noise, below
    2**-63 for each class.
    """
    rows, inverse = np.unique(counts, axis=0, return_inverse=True)
    law = np.append(noise.symmetric_law(), 0.0)  # index -1: no such value
    below = np.concatenate([[0.0], np.cumsum(law[:-1])])  # below[i]: Pr[noise < its value number i]
    nodes, weights = np.polynomial.legendre.leggauss((counts.shape[1] + 1) // 2)
    index = np.arange(law.size - 1)
    result = np.empty(rows.shape)
    for row, votes in enumerate(rows):
        levels, which, sizes = np.unique(votes, return_inverse=True, return_counts=True)
        for own, level in enumerate(levels):
            product = np.ones((nodes.size, index.size))
            for rival, size in enumerate(sizes - (np.arange(sizes.size) == own)):
                at = index + unit * (level - levels[rival])
                tie = law[np.where((at >= 0) & (at < index.size), at, -1)]
                product *= (below[np.clip(at, 0, index.size)] + (nodes[:, None] + 1) / 2 * tie) ** size
            result[row, which == own] = weights / 2 @ product @ law[:-1]
    return result[inverse.reshape(-1)]
