"""GNMax: the class with the most votes after Gaussian noise."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..errors import InvalidArgument, check_integer, check_number
from ..guarantees import PrivacyGuarantee
from .base import Mechanism, check_request
from .gaussian import gaussian_epsilon, gaussian_mu, rdp_mu
from .sampling import Floats, GaussianTail, Integers, Magnitudes, RandomBits, fair_argmax

__all__ = ["GNMax"]

_LARGEST_SIGMA = 2.0**20  # a table of noise has about 10 sigma entries; 10 million are still drawn from quickly
_UP = 1 + 2.0**-40


@dataclass(frozen=True, kw_only=True)
class GNMax(Mechanism):
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
    overlap: int = 1
    delta: float | None = None
    teachers: int | None = None
    calibration: str | None = None

    _methods: ClassVar = {"analytic": gaussian_mu, "rdp": rdp_mu}

    def __post_init__(self) -> None:
        super().__post_init__()
        sigma = check_number("sigma", self.sigma, low=0.0, low_open=True, high=_LARGEST_SIGMA)
        object.__setattr__(self, "sigma", sigma)
        object.__setattr__(self, "overlap", check_integer("overlap", self.overlap, low=1))
        if self.delta is not None:
            delta = check_number("delta", self.delta, low=0.0, high=1.0, low_open=True, high_open=True)
            object.__setattr__(self, "delta", delta)
        if self.teachers is not None:
            object.__setattr__(self, "teachers", check_integer("teachers", self.teachers, low=1))

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
            sigma=_sensitivity(labels, overlap) / cls._methods[method](epsilon, delta) * _UP,
            overlap=overlap,
            delta=delta,
            teachers=teachers,
            calibration=f"{method}: {target} for {labels} label(s), overlap {overlap}",
            insecure_seed=insecure_seed,
        )

    def guarantee(self, *, labels: int = 1, delta: float | None = None, overlap: int | None = None) -> PrivacyGuarantee:
        """The exact (epsilon, ``delta``) of ``labels`` rounds of noisy counts, an upper bound for the labels.

        Args:
            labels: Q.
            delta: ``None``: the one it was built with.
            overlap: r; ``None``: the one it was built with.

        Raises:
            InvalidArgument: no delta here or there; at delta = 0 Gaussian noise promises nothing.
        """
        labels, delta, overlap = check_request(labels, delta, overlap)
        spent = self.delta if delta is None else delta
        if spent is None:
            raise InvalidArgument("delta", "given", None, "GNMax(sigma=...) knows none: say guarantee(delta=...)")
        mu = _sensitivity(labels, overlap or self.overlap) / self.sigma
        return PrivacyGuarantee(epsilon=gaussian_epsilon(spent, mu), delta=spent)

    def _parameters(self) -> dict[str, Any]:
        return {
            "sigma": self.sigma,
            "overlap": self.overlap,
            "delta": self.delta,
            "calibration": self.calibration,
            "noise": f"normal rounded to multiples of {_step(self.sigma)}, drawn exactly",
        }

    def _draw(self, counts: Integers) -> Integers:
        return noisy_argmax(counts, *_noise(self.sigma), self._bits)

    def _law(self, counts: Integers) -> Floats:
        return noisy_argmax_law(counts, *_noise(self.sigma))


def _sensitivity(labels: int, overlap: int) -> float:
    """L2 distance of Q neighbouring rows of counts, rounded up."""
    return overlap * math.sqrt(2 * labels) * (1 + 2.0**-50)


def _step(sigma: float) -> float:
    """The grid of the noise: 1, or the largest 2**-k that is at most sigma / 16."""
    return min(1.0, 2.0 ** math.floor(math.log2(sigma / 16)))


@functools.lru_cache(maxsize=16)
def _noise(sigma: float) -> tuple[Magnitudes, int]:
    """Noise in units of the grid, and how many of these units a vote is."""
    step = _step(sigma)
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
