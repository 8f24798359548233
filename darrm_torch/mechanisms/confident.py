"""ConfidentGNMax: answers only when the teachers agree."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..arguments import checked
from ..arrays import FloatArray, IntArray
from ..errors import check_number
from ..privacy.guarantees import PrivacyGuarantee
from .gnmax import (
    LARGEST_SIGMA,
    SMALLEST_SIGMA,
    GaussianCounts,
    gaussian_argmax_law,
    gaussian_noise,
    grid_step,
    noisy_argmax,
)

if TYPE_CHECKING:
    from typing_extensions import Self  # of typing from Python 3.11

__all__ = ["ConfidentGNMax"]


@checked
@dataclass(frozen=True, kw_only=True)
class ConfidentGNMax(GaussianCounts):
    """Confident-GNMax (Papernot et al. 2018, Algorithm 1): GNMax where the noisy highest count reaches a threshold.

    Otherwise there is no answer: label -1, and the last column of ``label_probabilities``, which is (B, C + 1).

    Guarantee, whatever the teachers promise: r changed votes change the highest count by at most r, and the counts by
    at most r sqrt(2) in L2 (see :class:`GNMax`). So a label is two Gaussian mechanisms, with mu = r / ``sigma_check``
    and r sqrt(2) / ``sigma``, and Q labels are one with mu**2 = Q r**2 (1/sigma_check**2 + 2/sigma**2). An item without
    an answer counts as a label. Noise is drawn exactly, as in :class:`GNMax`.

    Args:
        threshold: T, in votes.
        sigma_check: standard deviation of the noise on the highest count.
        sigma: standard deviation of the noise on each count.
        overlap, teachers, classes, delta: as in :class:`GNMax`.

    Raises:
        InvalidArgument: an argument out of range.

    >>> mechanism = ConfidentGNMax(threshold=200, sigma_check=10, sigma=4, delta=1e-5)
    >>> mechanism.aggregate(np.array([[250, 0, 0], [84, 83, 83]])).tolist()
    [0, -1]
    """

    threshold: float
    sigma_check: float
    sigma: float

    def __post_init__(self) -> None:
        super().__post_init__()
        self._validate("threshold", low=-(2.0**31), high=2.0**31)
        for name in ("sigma_check", "sigma"):
            self._validate(name, low=SMALLEST_SIGMA, high=LARGEST_SIGMA)

    @classmethod
    @checked
    def calibrated(
        cls,
        target: PrivacyGuarantee,
        *,
        threshold: float,
        ratio: float = 4.0,
        labels: int = 1,
        overlap: int = 1,
        teachers: int | None = None,
        classes: int | None = None,
        insecure_seed: int | None = None,
    ) -> Self:
        """The smallest noise, rounded up, that keeps ``target`` for ``labels`` items together, answered or not.

        Args:
            target: of all items together; epsilon and delta positive.
            threshold: T, in votes; chosen without looking at the votes.
            ratio: ``sigma_check / sigma``. At 4 the check takes 3 % of the budget (of mu**2), at 1 a third.
            labels: Q, the number of items, answered or not.
            overlap, teachers, classes, insecure_seed: as in :meth:`GNMax.calibrated`.

        Raises:
            InvalidArgument: a target that no Gaussian noise keeps, or that needs none.

        >>> target = PrivacyGuarantee(epsilon=2, delta=1e-5)
        >>> mechanism = ConfidentGNMax.calibrated(target, threshold=150, labels=100)
        >>> round(mechanism.sigma, 1), round(mechanism.sigma_check, 1), str(mechanism.guarantee(labels=100))
        (28.6, 114.5, '(2, 1e-05)-DP')
        """
        ratio = check_number("ratio", ratio, low=2.0**-10, high=2.0**10)
        mu = cls._largest_mu(target, labels=labels, overlap=overlap)
        sigma = cls._checked_sigma(target, math.sqrt(2 + 1 / ratio**2), mu, ratio=ratio)
        return cls(
            threshold=threshold,
            sigma_check=ratio * sigma,
            sigma=sigma,
            overlap=overlap,
            delta=target.delta,
            teachers=teachers,
            classes=classes,
            insecure_seed=insecure_seed,
        )

    def _squared_mu(self) -> float:
        return 1 / self.sigma_check**2 + 2 / self.sigma**2

    @property
    def _terms(self) -> float:
        return 20 * (self.sigma / grid_step(self.sigma) + self.sigma_check / grid_step(self.sigma_check))

    def _parameters(self) -> dict[str, Any]:
        return {
            "threshold": self.threshold,
            "sigma_check": self.sigma_check,
            "sigma": self.sigma,
            "overlap": self.overlap,
            "delta": self.delta,
        }

    def _notes(self) -> list[str]:
        return ["label -1: no answer, because too few teachers agree; it costs as much as an answer"]

    def _draw(self, counts: IntArray) -> IntArray:
        noise, unit = gaussian_noise(self.sigma_check)
        answered = noise.signed(self._bits, len(counts)) >= self._missing(counts, unit)
        labels = np.full(len(counts), -1, dtype=np.int64)
        labels[answered] = noisy_argmax(counts[answered], *gaussian_noise(self.sigma), self._bits)
        return labels

    def _law(self, counts: IntArray) -> FloatArray:
        noise, unit = gaussian_noise(self.sigma_check)
        below = np.append(0.0, np.cumsum(noise.symmetric_law()))  # Pr[noise < k] for k = -R, ..., R + 1
        needed = np.clip(self._missing(counts, unit) + noise.reach, 0, below.size - 1)[:, None]
        answered, silent = below[below.size - 1 - needed], below[needed]  # the noise is symmetric
        return np.concatenate([answered * gaussian_argmax_law(counts, self.sigma), silent], axis=1)

    def _missing(self, counts: IntArray, unit: int) -> IntArray:
        """The smallest noise, in units of its grid, that lifts what is checked to the threshold."""
        return np.asarray(math.ceil(self.threshold * unit) - unit * self._checked_votes(counts))

    def _checked_votes(self, counts: IntArray) -> IntArray:
        """What is compared with the threshold, (B,) integers in 0..K: the highest count. r votes move it by r."""
        return np.asarray(counts.max(axis=1))
