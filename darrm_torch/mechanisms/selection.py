"""Pure differential privacy on the counts: permute-and-flip, the exponential mechanism, and randomized response."""

from __future__ import annotations

import functools
import math
from abc import abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from ..arrays import FloatArray, IntArray
from ..errors import check_integer
from ..noise.grid import GRID
from ..privacy.guarantees import PrivacyGuarantee
from .base import MOST_VOTES, NoisyCounts, check_request
from .gaussian import pure_composition
from .laplace import ratio_at_least
from .sampling import GeometricTail, Magnitudes, fair_argmax

__all__ = ["ExponentialMechanism", "PermuteAndFlip", "RandomizedPlurality"]


@dataclass(frozen=True, kw_only=True)
class _Selection(NoisyCounts):
    """Classes are drawn at random and accepted with probability a**gap, gap = votes behind the plurality.

    The least a with log(1/a) <= epsilon / (2 r) that a double can hold; acceptance is drawn exactly.
    """

    epsilon: float

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("epsilon", low=self.overlap * 2.0**-15, high=self.overlap * 2.0**10)

    def guarantee(self, *, labels: int = 1, delta: float | None = None, overlap: int | None = None) -> PrivacyGuarantee:
        """Of ``labels`` labels together: (Q epsilon, 0), or better at a positive ``delta``, by concentration."""
        labels, delta, overlap = check_request(labels, delta, overlap)
        epsilon = self.epsilon * ((overlap or self.overlap) / self.overlap)
        return pure_composition(epsilon, self._concentration(epsilon), labels=labels, delta=delta or 0.0)

    @abstractmethod
    def _concentration(self, epsilon: float) -> float:
        """rho for which an epsilon-DP label is rho-zCDP."""

    def _parameters(self) -> dict[str, Any]:
        return {"epsilon": self.epsilon, "overlap": self.overlap}

    @property
    def _acceptance(self) -> Magnitudes:
        """The law of G with Pr[G >= gap] = a**gap."""
        return _geometric(self.epsilon / (2 * self.overlap))

    def _chances(self, counts: IntArray) -> FloatArray:
        """a**gap, (B, C)."""
        survival = self._acceptance.survival
        return np.asarray(survival[np.minimum(_gaps(counts), survival.size - 1)])


@dataclass(frozen=True, kw_only=True)
class PermuteAndFlip(_Selection):
    """Permute-and-flip (McKenna & Sheldon 2020): goes through the classes in random order, takes the first accepted.

    A class that is ``gap`` votes behind the plurality is accepted with probability exp(-epsilon gap / (2 r)). Never
    less accurate than the exponential mechanism at the same epsilon, and often better than GNMax for few labels.

    Guarantee, whatever the teachers promise: a label is epsilon-DP, delta = 0: r changed votes change each count by at
    most r, the sensitivity that its proof asks for.

    Args:
        epsilon: of one label.
        overlap, teachers: as in :class:`GNMax`.

    >>> PermuteAndFlip(epsilon=1.0).label_probabilities(np.array([[8, 8, 0]])).round(3).tolist()
    [[0.497, 0.497, 0.006]]
    """

    def _concentration(self, epsilon: float) -> float:
        return epsilon**2 / 2

    def _draw(self, counts: IntArray) -> IntArray:
        # The first accepted class of a random order is a uniformly drawn one of the accepted classes.
        accepted = self._acceptance.draw(self._bits, *counts.shape) >= _gaps(counts)
        return fair_argmax(accepted.astype(np.int64), self._bits)

    def _law(self, counts: IntArray) -> FloatArray:
        # Pr[c] = p_c E[1 / (1 + accepted rivals)], the integral over t in [0, 1] of p_c prod_j (1 - p_j + t p_j).
        chances = self._chances(counts)
        nodes, weights = np.polynomial.legendre.leggauss((counts.shape[1] + 1) // 2)
        factors = 1 - chances[:, :, None] * (1 - nodes) / 2
        others = [np.prod(np.delete(factors, c, axis=1), axis=1) @ weights / 2 for c in range(counts.shape[1])]
        return np.asarray(chances * np.stack(others, axis=1))


@dataclass(frozen=True, kw_only=True)
class ExponentialMechanism(_Selection):
    """The exponential mechanism (McSherry & Talwar 2007): Pr[c] is proportional to exp(epsilon n_c / (2 r)).

    Guarantee, whatever the teachers promise: a label is epsilon-DP, delta = 0; and its privacy loss keeps to a range of
    epsilon, so many labels compose better than those of other epsilon-DP mechanisms: it is epsilon**2 / 8-zCDP (Cesar &
    Rogers 2021, Lemma 3.4).

    Args:
        epsilon: of one label.
        overlap, teachers: as in :class:`GNMax`.

    >>> ExponentialMechanism(epsilon=1.0).label_probabilities(np.array([[8, 8, 0]])).round(3).tolist()
    [[0.495, 0.495, 0.009]]
    """

    def _concentration(self, epsilon: float) -> float:
        return epsilon**2 / 8

    def _draw(self, counts: IntArray) -> IntArray:
        gaps = _gaps(counts)
        labels = np.zeros(len(counts), dtype=np.int64)
        open_rows = np.arange(len(counts))
        while open_rows.size:
            proposed = self._bits.below(np.full(open_rows.size, counts.shape[1]))
            accepted = self._acceptance.draw(self._bits, open_rows.size) >= gaps[open_rows, proposed]
            labels[open_rows[accepted]] = proposed[accepted]
            open_rows = open_rows[~accepted]
        return labels

    def _law(self, counts: IntArray) -> FloatArray:
        chances = self._chances(counts)
        return np.asarray(chances / chances.sum(axis=1, keepdims=True), dtype=np.float64)


@dataclass(frozen=True, kw_only=True)
class RandomizedPlurality(NoisyCounts):
    """Randomized response on the plurality: tells it with chance e^epsilon / (e^epsilon + C - 1), else another class.

    Guarantee, whatever the teachers promise and however many of them a record touches: a label is epsilon-DP, delta =
    0: no two classes have chances of a ratio above e^epsilon, for any votes. Of use where a record can touch all
    teachers and epsilon is 2 or more; below that the self-bounding plurality is better.

    Args:
        epsilon: of one label, in [1e-6, 500].
        classes: C, ``None`` for any.
        overlap: without effect on the guarantee.
        teachers: K, ``None`` for any.

    >>> RandomizedPlurality(epsilon=math.log(4)).label_probabilities(np.array([[3, 1, 1]])).round(3).tolist()
    [[0.667, 0.167, 0.167]]
    """

    epsilon: float
    classes: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("epsilon", low=1e-6, high=500.0)
        if self.classes is not None:
            object.__setattr__(self, "classes", check_integer("classes", self.classes, low=2, high=MOST_VOTES))

    def guarantee(self, *, labels: int = 1, delta: float | None = None, overlap: int | None = None) -> PrivacyGuarantee:
        """Of ``labels`` labels together: (Q epsilon, 0), or better at a positive ``delta``; for any overlap."""
        labels, delta, _ = check_request(labels, delta, overlap)
        return pure_composition(self.epsilon, self.epsilon**2 / 2, labels=labels, delta=delta or 0.0)

    def _parameters(self) -> dict[str, Any]:
        return {"epsilon": self.epsilon}

    def _told(self, classes: int) -> int:
        """The chance that the plurality is told, rounded down, in units of 2**-53."""
        growth = Fraction(math.exp(self.epsilon) * (1 - 2.0**-50))
        return math.floor(GRID * growth / (growth + classes - 1))

    def _draw(self, counts: IntArray) -> IntArray:
        classes = counts.shape[1]
        best = fair_argmax(counts, self._bits)
        told = (self._bits.words(len(counts)) >> np.uint64(11)) < np.uint64(self._told(classes))
        other = self._bits.below(np.full(len(counts), classes - 1))
        return np.where(told, best, other + (other >= best))

    def _law(self, counts: IntArray) -> FloatArray:
        best = counts == counts.max(axis=1, keepdims=True)
        plain, told = best / best.sum(axis=1, keepdims=True), self._told(counts.shape[1]) / GRID
        return np.asarray(plain * told + (1 - plain) * ((1 - told) / (counts.shape[1] - 1)))


def _gaps(counts: IntArray) -> IntArray:
    return np.asarray(counts.max(axis=1, keepdims=True) - counts)


@functools.lru_cache(maxsize=16)
def _geometric(rate: float) -> Magnitudes:
    ratio = ratio_at_least(rate)
    return Magnitudes(GeometricTail(ratio, ratio / ratio))
