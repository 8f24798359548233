"""LNMax: the class with the most votes after Laplace noise."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ..arrays import FloatArray, IntArray
from ..bisection import last_true
from ..errors import InvalidArgument
from ..noise.regions import check_target
from ..privacy.guarantees import PrivacyGuarantee
from .base import NoisyCounts, check_request
from .gaussian import pure_composition
from .gnmax import noisy_argmax, noisy_argmax_law
from .sampling import GeometricTail, Magnitudes

__all__ = ["LNMax"]

_SMALLEST_SCALE, _LARGEST_SCALE = 2.0**-9, 2.0**16


@dataclass(frozen=True, kw_only=True)
class LNMax(NoisyCounts):
    """LNMax (Papernot et al. 2017): argmax of the counts, each with its own Laplace noise; any number of classes.

    Guarantee, whatever the teachers promise: one changed vote takes 1 from one count and adds 1 to another, so r of
    them change the counts by at most 2 r in L1, and a label is 2 r / ``scale``-DP, delta = 0. The noise is the Laplace
    law of the integers, Pr[k] proportional to a**|k| with a = exp(-1/scale) rounded up: its values at two integers have
    a ratio of at most exp(distance / scale), which is all that the proof needs. It is drawn exactly; ties are broken by
    a fair coin.

    Args:
        scale: b, in votes.
        overlap, teachers: as in :class:`GNMax`.

    Raises:
        InvalidArgument: an argument out of range.

    >>> LNMax(scale=20).guarantee()
    PrivacyGuarantee(epsilon=0.1, delta=0.0)
    """

    scale: float

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("scale", low=_SMALLEST_SCALE, high=_LARGEST_SCALE)

    @classmethod
    def calibrated(
        cls,
        target: PrivacyGuarantee,
        *,
        labels: int = 1,
        overlap: int = 1,
        teachers: int | None = None,
        insecure_seed: int | None = None,
    ) -> LNMax:
        """The smallest noise that keeps ``target`` for ``labels`` labels together, rounded up by at most 0.1 %.

        Args:
            target: of all labels together; a positive delta helps where they are many.
            labels: Q.
            overlap, teachers, insecure_seed: as in :meth:`GNMax.calibrated`.

        Raises:
            InvalidArgument: a target that no scale keeps.

        >>> round(LNMax.calibrated(PrivacyGuarantee(epsilon=2, delta=1e-5), labels=100).scale, 1)
        39.4
        """

        check_target(target)

        def keeps(scale: float) -> bool:
            made = cls(scale=scale, overlap=overlap, teachers=teachers)
            return made.guarantee(labels=labels, delta=target.delta).epsilon <= target.epsilon

        if not keeps(_LARGEST_SCALE):
            raise InvalidArgument("target", f"one that a scale of {_LARGEST_SCALE:g} votes keeps", str(target))
        scale = last_true(keeps, _LARGEST_SCALE, _SMALLEST_SCALE, tolerance=1e-3, geometric=True)
        return cls(scale=scale, overlap=overlap, teachers=teachers, insecure_seed=insecure_seed)

    def guarantee(self, *, labels: int = 1, delta: float | None = None, overlap: int | None = None) -> PrivacyGuarantee:
        """Of ``labels`` labels together: (2 r Q / scale, 0), or better at a positive ``delta``, by concentration."""
        labels, delta, overlap = check_request(labels, delta, overlap)
        epsilon = 2 * (overlap or self.overlap) / self.scale
        return pure_composition(epsilon, epsilon**2 / 2, labels=labels, delta=delta or 0.0)

    def _parameters(self) -> dict[str, Any]:
        return {"scale": self.scale, "overlap": self.overlap}

    def _notes(self) -> list[str]:
        return ["noise: Laplace on the integers, drawn exactly"]

    def _draw(self, counts: IntArray) -> IntArray:
        return noisy_argmax(counts, _noise(self.scale), 1, self._bits)

    def _law(self, counts: IntArray) -> FloatArray:
        return noisy_argmax_law(counts, _noise(self.scale), 1)


@functools.lru_cache(maxsize=16)
def _noise(scale: float) -> Magnitudes:
    ratio = ratio_at_least(1 / scale)
    return Magnitudes(GeometricTail(ratio, 2 / (1 + ratio)))


def ratio_at_least(rate: float) -> Fraction:
    """A double just above exp(-rate), as it is; minus its logarithm is less than rate (1 - 2**-51)."""
    return Fraction(math.exp(-rate) * (1 + (1 + rate) * 2.0**-50))
