"""LNMax: the class with the most votes after Laplace noise."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ..guarantees import PrivacyGuarantee
from .base import NoisyCounts, check_request
from .gaussian import pure_composition
from .gnmax import noisy_argmax, noisy_argmax_law
from .sampling import Floats, GeometricTail, Integers, Magnitudes

__all__ = ["LNMax"]


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
        self._check("scale", low=2.0**-9, high=2.0**16)

    def guarantee(self, *, labels: int = 1, delta: float | None = None, overlap: int | None = None) -> PrivacyGuarantee:
        """Of ``labels`` labels together: (2 r Q / scale, 0), or better at a positive ``delta``, by concentration."""
        labels, delta, overlap = check_request(labels, delta, overlap)
        epsilon = 2 * (overlap or self.overlap) / self.scale
        return pure_composition(epsilon, epsilon**2 / 2, labels=labels, delta=delta or 0.0)

    def _parameters(self) -> dict[str, Any]:
        return {"scale": self.scale, "overlap": self.overlap}

    def _notes(self) -> list[str]:
        return ["noise: Laplace on the integers, drawn exactly"]

    def _draw(self, counts: Integers) -> Integers:
        return noisy_argmax(counts, _noise(self.scale), 1, self._bits)

    def _law(self, counts: Integers) -> Floats:
        return noisy_argmax_law(counts, _noise(self.scale), 1)


@functools.lru_cache(maxsize=16)
def _noise(scale: float) -> Magnitudes:
    ratio = ratio_at_least(1 / scale)
    return Magnitudes(GeometricTail(ratio, 2 / (1 + ratio)))


def ratio_at_least(rate: float) -> Fraction:
    """A double just above exp(-rate), as it is; minus its logarithm is less than rate (1 - 2**-51)."""
    return Fraction(math.exp(-rate) * (1 + (1 + rate) * 2.0**-50))
