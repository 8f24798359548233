"""DaRRM: data-dependent randomized response on the majority."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from scipy import ndimage

from ..arguments import checked
from ..arrays import FloatArray, IntArray
from ..errors import InvalidArgument, UnprovenPrivacy
from ..noise.function import NoiseFunction
from ..noise.grid import GRID
from ..noise.label_prices import label_promise
from ..noise.self_bounding import self_bounding_allowance
from ..privacy.composition import simple_composition
from ..privacy.guarantees import PrivacyGuarantee
from ..privacy.profiles import PrivacyProfile
from .base import Mechanism, check_request
from .gaussian import pure_composition
from .label_curves import LARGEST_LISTED, composed_epsilon, curve_of_pairs

__all__ = ["DaRRM"]

_MOST_TEACHERS = 300  # whose pairs of counts are all compared


@checked
@dataclass(frozen=True, kw_only=True)
class DaRRM(Mechanism):
    """DaRRM (Algorithm 1 of the paper): the majority with probability gamma(l), otherwise a fair coin.

    Two classes: ``counts`` is (B, 2), and l = ``counts[:, 1]`` of the K teachers vote 1. Then
    Pr[label 1] = (1 + sign(2 l - K) gamma(l)) / 2, drawn exactly: gamma is a multiple of 2**-53, the probability one of
    2**-54, and 54 fresh bits are compared with that integer.

    Guarantee: that of the noise function's certificate, for one label (``noise.target``) or, if it is self-bounding,
    for many. :func:`darrm_torch.total_privacy` computes what many labels cost.

    Args:
        noise: the noise function, with its certificate.
        uncertified: accept a noise function without a certificate. Then no guarantee is claimed.

    Raises:
        UnprovenPrivacy: no certificate and not ``uncertified``.

    >>> from darrm_torch import optimize_noise, self_bounding_noise
    >>> mechanism = DaRRM(self_bounding_noise(teachers=11, allowance=3.0))
    >>> mechanism.label_probabilities(np.array([[0, 11], [5, 6]])).round(4).tolist()
    [[0.0, 1.0], [0.3333, 0.6667]]

    The best majority for teachers without privacy, one of which has a record in its training data; the mechanism's own
    randomness keeps the promise:

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
                "the noise function has no certificate, so nothing proves its labels private. Certify it, use "
                "self_bounding_noise or optimize_noise, or accept it with DaRRM(noise, uncertified=True)"
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
        """What its own randomness promises, whatever the teachers promise, at the worst pair of counts r votes apart.

        The votes are fixed and the randomness is fresh for each label, so labels compose. Noise functions built for
        teachers without privacy (epsilon = infinity) are private this way. ``None``: some label is possible
        for some votes and impossible for others.

        Args:
            labels: Q.
            delta: of all labels; ``None``: Q times that of the noise function's target, or 0.
            overlap: r; ``None``: all K.
        """
        labels, delta, overlap = check_request(labels, delta, overlap)
        if delta is None:
            delta = 0.0 if self.noise.target is None else min(1.0, labels * self.noise.target.delta)
        reach = self.teachers if overlap is None else overlap
        one = self._label_epsilon(reach, delta / labels * (1 - 2.0**-40))
        if math.isinf(one):
            return None
        total = simple_composition(PrivacyGuarantee(epsilon=one), labels).epsilon
        if labels > 1 and delta > 0 and math.isfinite(pure := self._label_epsilon(reach, 0.0)):
            total = min(total, pure_composition(pure, pure**2 / 2, labels=labels, delta=delta).epsilon)
        if labels > 1 and delta > 0:
            rest = delta / labels / 1024
            last = self._label_epsilon(reach, rest)
            if last < math.inf:
                points = self._curve(reach, PrivacyGuarantee(epsilon=last, delta=rest))
                total = min(total, composed_epsilon(points, labels, delta))
        return PrivacyGuarantee(epsilon=total, delta=delta)

    def _label_epsilon(self, overlap: int, delta: float) -> float:
        """The smallest epsilon of one label at ``delta`` by its own randomness; infinite if there is none."""
        window = 2 * min(overlap, self.teachers) + 1
        worst = 1.0
        for chance in (self._thresholds / 2.0**54, (2**54 - self._thresholds) / 2.0**54):
            excess = ndimage.maximum_filter1d(chance, window, mode="nearest") - delta
            with np.errstate(divide="ignore"):  # infinite where a probability is 0
                ratios = np.divide(excess, chance, out=np.zeros_like(excess), where=excess > 0)
            worst = max(worst, float(ratios.max()))
        return math.log(worst) + 2.0**-46

    def _curve(self, overlap: int, beyond: PrivacyGuarantee) -> tuple[PrivacyGuarantee, ...]:
        """Guarantees of one label that hold at once, by all pairs of counts; see :func:`curve_of_pairs`."""
        if beyond.epsilon > LARGEST_LISTED or self.teachers > _MOST_TEACHERS:
            return (beyond,)
        votes = np.arange(self.teachers + 1)
        here, there = np.nonzero(np.abs(votes[:, None] - votes) <= overlap)
        law = np.stack([2**54 - self._thresholds, self._thresholds], axis=1) / 2.0**54
        return curve_of_pairs(law[here], law[there], beyond)

    def self_bounding_allowance(self, *, teachers: int | None = None, overlap: int | None = None) -> float:
        """The noise function's own allowance, see :func:`darrm_torch.self_bounding_allowance`."""
        count = self._teacher_count(teachers)
        return self_bounding_allowance(self.noise.gamma, teachers=count, overlap=overlap)

    def label_promise(
        self, *, teacher: PrivacyProfile, teachers: int, overlap: int, labels: int, delta: float
    ) -> PrivacyProfile | None:
        """The exact curve of the noise function; see :meth:`Mechanism.label_promise`."""
        self._teacher_count(teachers)
        return label_promise(self.noise.gamma, teacher=teacher, overlap=overlap, labels=labels, delta=delta)

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

    alternatives: ClassVar[str] = (
        "DaRRM is for two classes. For more use SelfBoundingPlurality, GNMax, PermuteAndFlip, LNMax or "
        "NoiseFreeMajority"
    )
