"""LNMax: the class with the most votes after Laplace noise."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ..arguments import checked
from ..arrays import FloatArray, IntArray
from ..bisection import last_true
from ..errors import InvalidArgument
from ..noise.regions import check_target
from ..privacy.guarantees import PrivacyGuarantee
from .base import NoisyCounts, PureLabels
from .gnmax import noisy_argmax, noisy_argmax_law
from .sampling import GeometricTail, Magnitudes

__all__ = ["LNMax", "geometric"]

_SMALLEST_SCALE, _LARGEST_SCALE = 2.0**-9, 2.0**16


@checked
@dataclass(frozen=True, kw_only=True)
class LNMax(PureLabels, NoisyCounts):
    """LNMax (Papernot et al. 2017): argmax of the counts, each with its own Laplace noise; any number of classes.

    Guarantee, whatever the teachers promise: one changed vote takes 1 from one count and adds 1 to another, so r of
    them change the counts by at most 2 r in L1, and a label is 2 r / ``scale``-DP, delta = 0. The noise is the Laplace
    law of the integers, Pr[k] proportional to a**|k| with a = exp(-1/scale) rounded up: the ratio of its values at two
    integers is at most exp(distance / scale), which is all that the proof needs. It is drawn exactly; ties are broken
    uniformly at random.

    Args:
        scale: b, in votes.
        overlap, teachers, classes: as in :class:`GNMax`.

    Raises:
        InvalidArgument: an argument out of range.

    >>> LNMax(scale=20).guarantee()
    PrivacyGuarantee(epsilon=0.1, delta=0.0)
    """

    scale: float

    def __post_init__(self) -> None:
        super().__post_init__()
        self._validate("scale", low=_SMALLEST_SCALE, high=_LARGEST_SCALE)

    @classmethod
    @checked
    def calibrated(
        cls,
        target: PrivacyGuarantee,
        *,
        labels: int = 1,
        overlap: int = 1,
        teachers: int | None = None,
        classes: int | None = None,
        insecure_seed: int | None = None,
    ) -> LNMax:
        """The smallest noise that keeps ``target`` for ``labels`` labels together, rounded up by at most 0.1 %.

        Args:
            target: of all labels together; a positive delta helps where there are many.
            labels: Q.
            overlap, teachers, classes, insecure_seed: as in :meth:`GNMax.calibrated`.

        Raises:
            InvalidArgument: a target that no scale keeps.

        >>> round(LNMax.calibrated(PrivacyGuarantee(epsilon=2, delta=1e-5), labels=100).scale, 1)
        39.4
        """
        check_target(target)

        def keeps(scale: float) -> bool:
            mechanism = cls(scale=scale, overlap=overlap, teachers=teachers, classes=classes)
            return mechanism.guarantee(labels=labels, delta=target.delta).epsilon <= target.epsilon

        if not keeps(_LARGEST_SCALE):
            raise InvalidArgument("target", f"one that a scale of {_LARGEST_SCALE:g} votes keeps", str(target))
        scale = last_true(keeps, _LARGEST_SCALE, _SMALLEST_SCALE, tolerance=1e-3, geometric=True)
        return cls(scale=scale, overlap=overlap, teachers=teachers, classes=classes, insecure_seed=insecure_seed)

    def _label_epsilon(self, overlap: int | None) -> float:
        return 2 * (overlap or self.overlap) / self.scale

    @property
    def _terms(self) -> float:
        return 90 * self.scale

    def _parameters(self) -> dict[str, Any]:
        return {"scale": self.scale, "overlap": self.overlap}

    def _notes(self) -> list[str]:
        return ["noise: Laplace on the integers, drawn exactly"]

    def _draw(self, counts: IntArray) -> IntArray:
        return noisy_argmax(counts, geometric(1 / self.scale, two_sided=True), 1, self._bits)

    def _law(self, counts: IntArray) -> FloatArray:
        return noisy_argmax_law(counts, geometric(1 / self.scale, two_sided=True), 1)


@functools.lru_cache(maxsize=32)
def geometric(rate: float, *, two_sided: bool) -> Magnitudes:
    """The geometric law on 0, 1, 2, ... or on all integers: Pr[G >= g] or Pr[Z = k] proportional to a**g or a**|k|.

    a is a double just above exp(-rate), so that log(1/a) < rate (1 - 2**-51).
    """
    ratio = Fraction(math.exp(-rate) * (1 + (1 + rate) * 2.0**-50))
    return Magnitudes(GeometricTail(ratio, 2 / (1 + ratio) if two_sided else Fraction(1)))
