"""DaRRM: data-dependent randomized response on the majority."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import ndimage

from ..arrays import FloatArray, IntArray
from ..errors import InvalidArgument, UnprovenPrivacy, check_integer
from ..noise.function import NoiseFunction
from ..noise.grid import GRID
from ..noise.self_bounding import self_bounding_allowance
from ..privacy.composition import simple_composition
from ..privacy.guarantees import PrivacyGuarantee
from .base import Mechanism, check_request
from .gaussian import pure_composition

__all__ = ["DaRRM"]


@dataclass(frozen=True, kw_only=True)
class DaRRM(Mechanism):
    """DaRRM (Algorithm 1 of the paper): the majority with probability gamma(l), otherwise a fair coin.

    Two classes: ``counts`` is (B, 2), and l = ``counts[:, 1]`` of the K teachers vote 1. Then
    Pr[label 1] = (1 + sign(2 l - K) gamma(l)) / 2, drawn exactly: gamma is a multiple of 2**-53, the probability one of
    2**-54, and 54 fresh bits are compared with that integer.

    Guarantee: that of the noise function's certificate, for one label (``noise.target``) or, if it is self-bounding,
    for many. :func:`darrm_torch.total_privacy` says what many labels cost.

    Args:
        noise: the noise function, with its certificate.
        uncertified: accept a noise function without a certificate. No guarantee is then claimed for it.

    Raises:
        UnprovenPrivacy: no certificate and not ``uncertified``.

    >>> from darrm_torch import optimize_noise, self_bounding_noise
    >>> mechanism = DaRRM(self_bounding_noise(teachers=11, allowance=3.0))
    >>> mechanism.label_probabilities(np.array([[0, 11], [5, 6]])).round(4).tolist()
    [[0.0, 1.0], [0.3333, 0.6667]]

    The best majority of teachers without privacy, of which a record touches one; its coins keep the promise:

    >>> public, target = PrivacyGuarantee(epsilon=math.inf), PrivacyGuarantee(epsilon=0.5, delta=1e-4)
    >>> best = DaRRM(optimize_noise(teachers=11, teacher=public, target=target, overlap=1))
    >>> str(best.guarantee(overlap=1))
    '(0.5, 0.0001)-DP'
    """

    noise: NoiseFunction = field(kw_only=False)
    uncertified: bool = False
    _thresholds: IntArray = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.noise, NoiseFunction):
            raise InvalidArgument("noise", "a NoiseFunction", self.noise, "Wrap an array: NoiseFunction(gamma=...)")
        if self.certificate is None and not self.uncertified:
            raise UnprovenPrivacy(
                "the noise function has no certificate, so nothing proves its labels private. Certify it, or use "
                "self_bounding_noise or optimize_noise, or say DaRRM(noise, uncertified=True) to go without"
            )
        votes = np.arange(self.teachers + 1)
        signs = np.sign(2 * votes - self.teachers)
        thresholds = GRID + signs * (self.noise.gamma * GRID).astype(np.int64)
        thresholds.setflags(write=False)
        object.__setattr__(self, "_thresholds", thresholds)

    @property
    def classes(self) -> int:
        """Two: DaRRM is binary."""
        return 2

    @property
    def teachers(self) -> int:
        """K, from the noise function."""
        return int(self.noise.teachers)

    @property
    def certificate(self) -> Any:
        """The noise function's certificate."""
        return self.noise.certificate

    def guarantee(
        self, *, labels: int = 1, delta: float | None = None, overlap: int | None = None
    ) -> PrivacyGuarantee | None:
        """What the coins alone promise, whatever the teachers: from all pairs of counts that differ in r votes.

        The votes are fixed, the coins fresh, so labels compose. The noise functions made for teachers without privacy
        (epsilon = infinity) are private this way. ``None``: an outcome is certain for some votes and not for others.

        Args:
            labels: Q.
            delta: in total; ``None``: Q times that of the noise function's target, or 0.
            overlap: r; ``None``: all K.
        """
        labels, delta, overlap = check_request(labels, delta, overlap)
        if delta is None:
            delta = 0.0 if self.noise.target is None else min(1.0, labels * self.noise.target.delta)
        near = self.teachers if overlap is None else overlap
        each, pure = self._coin_epsilon(near, delta / labels * (1 - 2.0**-40)), self._coin_epsilon(near, 0.0)
        if math.isinf(each):
            return None
        total = simple_composition(PrivacyGuarantee(epsilon=each), labels).epsilon
        if labels > 1 and delta > 0 and math.isfinite(pure):
            total = min(total, pure_composition(pure, pure**2 / 2, labels=labels, delta=delta).epsilon)
        return PrivacyGuarantee(epsilon=total, delta=delta)

    def _coin_epsilon(self, overlap: int, delta: float) -> float:
        """The smallest epsilon of one label at ``delta`` for the coins alone; infinite if there is none."""
        window = 2 * min(overlap, self.teachers) + 1
        worst = 1.0
        for chance in (self._thresholds / 2.0**54, (2**54 - self._thresholds) / 2.0**54):
            excess = ndimage.maximum_filter1d(chance, window, mode="nearest") - delta
            with np.errstate(divide="ignore"):  # a chance of 0: infinite
                ratios = np.divide(excess, chance, out=np.zeros_like(excess), where=excess > 0)
            worst = max(worst, float(ratios.max()))
        return math.log(worst) + 2.0**-46

    def self_bounding_allowance(self, *, teachers: int | None = None, overlap: int | None = None) -> float:
        """The noise function's own allowance, see :func:`darrm_torch.self_bounding_allowance`."""
        if teachers is not None and check_integer("teachers", teachers, low=1) != self.teachers:
            raise InvalidArgument("teachers", f"{self.teachers}, as the noise function has", teachers)
        return self_bounding_allowance(self.noise.gamma, teachers=self.teachers, overlap=overlap)

    def _parameters(self) -> dict[str, Any]:
        return {"gamma": self.noise.gamma.tolist(), "certified": self.certificate is not None}

    def _notes(self) -> list[str]:
        return [] if self.certificate is not None else ["no certificate: nothing proves the labels private"]

    def _draw(self, counts: IntArray) -> IntArray:
        words = (self._bits.words(counts.shape[0]) >> np.uint64(10)).astype(np.int64)
        return (words < self._thresholds[counts[:, 1]]).astype(np.int64)

    def _law(self, counts: IntArray) -> FloatArray:
        one = self._thresholds[counts[:, 1]] / 2.0**54
        return np.stack([1 - one, one], axis=1)

    def _classes_cure(self) -> str:
        others = "SelfBoundingPlurality, GNMax, PermuteAndFlip, LNMax or NoiseFreeMajority"
        return f"DaRRM is for two classes; for more use {others}"
