"""Pure differential privacy on the counts: permute-and-flip, the exponential mechanism, and randomized response."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np

from ..arrays import FloatArray, IntArray
from ..noise.grid import GRID
from .base import AnyVotes, NoisyCounts, PureLabels
from .laplace import geometric
from .sampling import Magnitudes, fair_argmax, fair_argmax_law, tie_quadrature

__all__ = ["ExponentialMechanism", "PermuteAndFlip", "RandomizedPlurality"]

_AT_ONCE = 256  # rows whose laws share their factors; more have more levels, and take rows times levels of memory


@dataclass(frozen=True, kw_only=True)
class _Selection(PureLabels, NoisyCounts):
    """Proposes classes at random and accepts each with probability a**gap, where gap is its distance to the plurality.

    The gap is counted in votes; a is the smallest double with log(1/a) <= epsilon / (2 r). Acceptance is drawn exactly.
    """

    epsilon: float

    def __post_init__(self) -> None:
        super().__post_init__()
        self._validate("epsilon", low=self.overlap * 2.0**-15, high=self.overlap * 2.0**10)

    def _label_epsilon(self, overlap: int | None) -> float:
        return self.epsilon * ((overlap or self.overlap) / self.overlap)

    def _parameters(self) -> dict[str, Any]:
        return {"epsilon": self.epsilon, "overlap": self.overlap}

    @property
    def _acceptance(self) -> Magnitudes:
        """The law of G with Pr[G >= gap] = a**gap."""
        return geometric(self.epsilon / (2 * self.overlap), two_sided=False)

    def _acceptance_probabilities(self, counts: IntArray) -> FloatArray:
        """a**gap, (B, C)."""
        survival = self._acceptance.survival
        return np.asarray(survival[np.minimum(_gaps(counts), survival.size - 1)])


@dataclass(frozen=True, kw_only=True)
class PermuteAndFlip(_Selection):
    """Permute-and-flip (McKenna & Sheldon 2020): goes through the classes in random order, takes the first accepted.

    A class that is ``gap`` votes behind the plurality is accepted with probability exp(-epsilon gap / (2 r)). Never
    less accurate than the exponential mechanism at the same epsilon, and often better than GNMax for few labels.

    Guarantee, whatever the teachers promise: a label is epsilon-DP, delta = 0. r changed votes change each count by at
    most r, the sensitivity that its proof asks for.

    Args:
        epsilon: of one label.
        overlap, teachers, classes: as in :class:`GNMax`.

    >>> PermuteAndFlip(epsilon=1.0).label_probabilities(np.array([[8, 8, 0]])).round(3).tolist()
    [[0.497, 0.497, 0.006]]
    """

    def _draw(self, counts: IntArray) -> IntArray:
        # The first accepted class of a random order is uniformly distributed over the accepted classes.
        accepted = self._acceptance.draw(self._bits, *counts.shape) >= _gaps(counts)
        return fair_argmax(accepted.astype(np.int64), self._bits)

    def _law(self, counts: IntArray) -> FloatArray:
        # Pr[c] = p_c E[1 / (1 + accepted rivals)], the integral over t in [0, 1] of p_c prod_j (1 - p_j + t p_j).
        # Classes with the same p share a factor: there are few of these, however many classes there are.
        nodes, weights = tie_quadrature(counts.shape[1])
        law = np.zeros(counts.shape)
        for first in range(0, len(counts), _AT_ONCE):
            part = slice(first, first + _AT_ONCE)
            levels, place = np.unique(self._acceptance_probabilities(counts[part]), return_inverse=True)
            place = place.reshape(-1, counts.shape[1])
            rows, sizes = np.arange(len(place))[:, None], np.zeros((len(place), levels.size))
            np.add.at(sizes, (rows, place), 1.0)
            factors = 1 - levels[:, None] * (1 - nodes)
            others = (np.exp(sizes @ np.log(factors)) * weights) @ (1 / factors).T
            law[part] = (levels * others)[rows, place]
        return law


@dataclass(frozen=True, kw_only=True)
class ExponentialMechanism(_Selection):
    """The exponential mechanism (McSherry & Talwar 2007): Pr[c] is proportional to exp(epsilon n_c / (2 r)).

    Guarantee, whatever the teachers promise: a label is epsilon-DP, delta = 0. Its privacy loss lies in a range of
    length epsilon, so many labels compose better than those of other epsilon-DP mechanisms: a label is
    epsilon**2 / 8-zCDP (Cesar & Rogers 2021, Lemma 3.4).

    Args:
        epsilon: of one label.
        overlap, teachers, classes: as in :class:`GNMax`.

    >>> ExponentialMechanism(epsilon=1.0).label_probabilities(np.array([[8, 8, 0]])).round(3).tolist()
    [[0.495, 0.495, 0.009]]
    """

    _zcdp: ClassVar[float] = 1 / 8

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
        accept = self._acceptance_probabilities(counts)
        return np.asarray(accept / accept.sum(axis=1, keepdims=True), dtype=np.float64)


@dataclass(frozen=True, kw_only=True)
class RandomizedPlurality(PureLabels, AnyVotes):
    """Randomized response: the plurality with probability e^epsilon / (e^epsilon + C - 1), else another class.

    Guarantee, whatever the teachers promise and however many of them a record affects: a label is epsilon-DP, delta =
    0. For any votes, no two classes have probabilities whose ratio exceeds e^epsilon. It is useful where all teachers
    may have a record in their training data and epsilon is 2 or more; below that the self-bounding plurality is better.

    Args:
        epsilon: of one label, in [1e-6, 500].
        teachers, classes: as in :class:`GNMax`.

    >>> RandomizedPlurality(epsilon=math.log(4)).label_probabilities(np.array([[3, 1, 1]])).round(3).tolist()
    [[0.667, 0.167, 0.167]]
    """

    epsilon: float

    def __post_init__(self) -> None:
        super().__post_init__()
        self._validate("epsilon", low=1e-6, high=500.0)

    def _label_epsilon(self, overlap: int | None) -> float:
        return self.epsilon

    def _parameters(self) -> dict[str, Any]:
        return {"epsilon": self.epsilon}

    def _share_of_plurality(self, classes: int) -> int:
        """The probability of reporting the plurality, rounded down, in units of 2**-53."""
        growth = Fraction(math.exp(self.epsilon) * (1 - 2.0**-50))
        return math.floor(GRID * growth / (growth + classes - 1))

    def _draw(self, counts: IntArray) -> IntArray:
        classes = counts.shape[1]
        best = fair_argmax(counts, self._bits)
        truthful = (self._bits.words(len(counts)) >> np.uint64(11)) < np.uint64(self._share_of_plurality(classes))
        other = self._bits.below(np.full(len(counts), classes - 1))
        return np.where(truthful, best, other + (other >= best))

    def _law(self, counts: IntArray) -> FloatArray:
        plain, truthful = fair_argmax_law(counts), self._share_of_plurality(counts.shape[1]) / GRID
        return np.asarray(plain * truthful + (1 - plain) * ((1 - truthful) / (counts.shape[1] - 1)))


def _gaps(counts: IntArray) -> IntArray:
    return np.asarray(counts.max(axis=1, keepdims=True) - counts)
