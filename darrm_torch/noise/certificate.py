"""Checks noise functions. Knows nothing of how they were found: the solver is not imported here.

Two kinds of promise, two kinds of certificate: :class:`Certificate` for one label under a target, and
:class:`SelfBoundingCertificate` for any number of labels (theory, section 9).
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arrays import FloatArray
from ..errors import InvalidArgument, PrivacyViolation, check_integer, check_number
from ..privacy.guarantees import PrivacyGuarantee, check_guarantee, format_bound
from .priors import vote_law
from .regions import Region, Teacher, growth_at_least, teacher_guarantees
from .worst_case import is_monotone, label_law, worst_losses

__all__ = [
    "GRID",
    "Certificate",
    "LabelProfile",
    "SelfBoundingCertificate",
    "WorstCase",
    "certify",
    "certify_scaled",
    "certify_self_bounding",
    "check_overlap",
    "check_target",
    "gamma_digest",
    "label_profile",
    "on_grid",
    "self_bounding_allowance",
]

GRID = 2**53
"""Noise functions are multiples of 1/GRID, so that 54 random bits draw a label exactly."""


def on_grid(gamma: npt.ArrayLike, teachers: int | None = None) -> FloatArray:
    """A noise function, checked, rounded down to multiples of 2^-53, read-only: float64 ``(K + 1,)``.

    Raises:
        InvalidArgument: not ``K + 1`` numbers in [0, 1] (K >= 1), or not ``gamma(l) == gamma(K - l)``.
    """
    expected = "K + 1 numbers" if teachers is None else f"{check_integer('teachers', teachers, low=1) + 1} numbers"
    try:
        values = np.array(gamma, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidArgument("gamma", f"{expected} in [0, 1], gamma(0), .., gamma(K)", gamma) from None
    if values.ndim != 1 or len(values) < 2 or (teachers is not None and len(values) != teachers + 1):
        raise InvalidArgument("gamma", f"{expected}, gamma(0), .., gamma(K)", f"an array of shape {values.shape}")
    if not np.all((values >= 0) & (values <= 1)):
        raise InvalidArgument("gamma", "in [0, 1] everywhere", values)
    rounded = np.floor(values * GRID) / GRID
    if not np.array_equal(rounded, rounded[::-1]):
        raise InvalidArgument("gamma", "symmetric: gamma(l) == gamma(K - l)", values)
    rounded.setflags(write=False)
    return rounded


def gamma_digest(gamma: FloatArray) -> str:
    """A name for a noise function on the grid: SHA-256 of its values."""
    return hashlib.sha256(gamma.astype("<f8").tobytes()).hexdigest()


def check_overlap(overlap: int | None, teachers: int) -> int:
    """The overlap r, all ``teachers`` when it is None."""
    if overlap is None:
        return teachers
    return check_integer("overlap", overlap, low=1, high=teachers, cure="None means that one record can touch all.")


def check_target(target: Any, name: str = "target") -> PrivacyGuarantee:
    """``target`` itself, when it is a guarantee that promises something."""
    checked = check_guarantee(name, target)
    if math.isinf(checked.epsilon):
        raise InvalidArgument(
            f"{name}.epsilon", "finite", checked.epsilon, "A label without privacy needs no noise function."
        )
    return checked


@dataclass(frozen=True, kw_only=True)
class WorstCase:
    """The pair of neighbouring datasets on which a noise function loses most.

    Attributes:
        corners: ``((p, p', how many teachers), ..)``: affected teachers who vote 1 with probability p, and p' on the
            neighbouring dataset.
        ones, zeros: unaffected teachers who vote 1, and who vote 0.
        here, there: the label's probability of being 1, and on the neighbouring dataset.
    """

    corners: tuple[tuple[float, float, int], ...]
    ones: int
    zeros: int
    here: float
    there: float

    def __str__(self) -> str:
        affected = "".join(
            f"{n} teachers who vote 1 with probability {p:.6g} and {q:.6g}, " for p, q, n in self.corners
        )
        return (
            f"{affected}{self.ones} who always vote 1 and {self.zeros} who never do: "
            f"Pr[label 1] = {self.here:.12g} and {self.there:.12g} on the neighbouring dataset"
        )


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """One label of a noise function is private; what was checked, and what was found. ``str`` says it in words.

    Formal guarantee: for all independent teachers that keep ``teacher``, of which one record touches at most
    ``overlap``, the label is ``target``-DP. This holds for one label; labels of the same teachers do not compose (see
    ``total_privacy``).

    Attributes:
        teachers, overlap, teacher, target: what it was checked for (``teacher``: guarantees that hold at once).
        digest: names the noise function, see :func:`gamma_digest`.
        shape: "monotone" if more votes for 1 never make label 1 less likely, else "free".
        loss: proven upper bound of Pr[label 1] - e^epsilon Pr'[label 1] over all neighbouring datasets.
        rounding_error: the part of ``loss`` that is allowance for rounding.
        worst_case: where the loss is largest.
        method: "corners" when ``loss`` was bounded over all corners of the teachers' regions; "composition" when that
            missed the bound, by its allowance for rounding, and a theorem applies, in exact arithmetic: r teachers
            compose to within the target, or the noise function is m-self-bounding with (m epsilon, m delta) within
            the target.
        rigorous: whether the corners were walked in ball arithmetic; else in doubles, with a proven allowance for
            rounding in ``loss``. Both are proofs.
        optimality_gap: at most how much larger the solver's goal could be: sum_l w_l gamma(l) over l > K/2, with the
            prior's weights w (twice the error that could be saved). None without a solver. Not checked here.
    """

    teachers: int
    overlap: int
    teacher: tuple[PrivacyGuarantee, ...]
    target: PrivacyGuarantee
    digest: str
    shape: str
    loss: float
    rounding_error: float
    worst_case: WorstCase
    method: str = "corners"
    rigorous: bool = False
    optimality_gap: float | None = None

    def __post_init__(self) -> None:
        if not self.loss <= self.bound:
            raise PrivacyViolation(f"a certificate cannot say loss {self.loss!r} > bound {self.bound!r}")

    def __str__(self) -> str:
        return (
            f"Proven: one label of {self.teachers} teachers that are {' and '.join(map(str, self.teacher))} is "
            f"{self.target}, if a record touches at most {self.overlap} of them. "
            f"Worst loss {format_bound(self.loss, 6)}, margin {self.margin:.2g}; worst case: {self.worst_case}."
        )

    @property
    def bound(self) -> float:
        """What ``loss`` must not exceed: the target's delta."""
        return self.target.delta

    @property
    def margin(self) -> float:
        """``bound - loss``, never negative."""
        return self.bound - self.loss


@dataclass(frozen=True, kw_only=True)
class SelfBoundingCertificate:
    """Any number of labels of a noise function is private; checked in exact rational arithmetic. ``str`` says it.

    Formal guarantee: for all independent teachers, each (eps, Delta)-DP as a trained model, of which one record touches
    at most ``overlap``, Q labels, asked adaptively of the same teachers, are together (Q m eps, Q m Delta)-DP, m =
    ``allowance``; at every (eps, Delta) that the teachers keep (theory, section 9).

    Attributes:
        teachers, overlap: what it was checked for.
        digest: names the noise function, see :func:`gamma_digest`.
        allowance: m, promised.
        smallest: the smallest m of this noise function, rounded up; at most ``allowance``.
        optimality_gap: 0 where it is the best at every count of votes; None when unknown. Not checked here.
    """

    teachers: int
    overlap: int
    digest: str
    allowance: float
    smallest: float
    optimality_gap: float | None = None

    def __post_init__(self) -> None:
        if not self.smallest <= self.allowance:
            raise PrivacyViolation(f"a certificate cannot say smallest {self.smallest!r} > {self.allowance!r}")

    def __str__(self) -> str:
        words = (
            f"Proven: Q labels of {self.teachers} (eps, delta)-DP teachers are together (Q m eps, Q m delta)-DP with "
            f"m = {format_bound(self.allowance)}, if a record touches at most {self.overlap} of them."
        )
        if format_bound(self.smallest) != format_bound(self.allowance):
            words += f" Proven with m = {format_bound(self.smallest)} as well, the smallest for this noise."
        return words

    @property
    def margin(self) -> float:
        """``allowance - smallest``, never negative."""
        return self.allowance - self.smallest


def certify(
    gamma: npt.ArrayLike,
    *,
    teachers: int,
    teacher: Teacher,
    target: PrivacyGuarantee,
    overlap: int | None = None,
    rigorous: bool = False,
) -> Certificate:
    """Proves that one label of ``gamma`` is private.

    Args:
        gamma: ``(K + 1,)``, how often the majority is told at each count of votes; read as rounded down to multiples of
            2^-53, which is what :class:`NoiseFunction` keeps and what is drawn.
        teachers: K.
        teacher: what each teacher promises: one guarantee, several that hold at once, or a privacy profile. A sequence
            is never one for each teacher; what unlike teachers all keep is ``PrivacyProfile.weakest([...])``.
        target: what one label must keep.
        overlap: r, how many teachers one record can touch; None for all.
        rigorous: walk the corners in ball arithmetic (needs python-flint; a second for K = 1,001 where gamma is
            monotone): the same bound with an allowance for rounding near 1e-15 for any K.

    Raises:
        PrivacyViolation: the label is not private, or too close to the bound to be told from it; names the worst case.
        InvalidArgument: bad input.

    >>> teacher = PrivacyGuarantee(epsilon=0.1)
    >>> certify([0.9, 0.3, 0.3, 0.9], teachers=3, teacher=teacher, target=teacher).shape
    'monotone'
    >>> certify([1, 1, 1, 1], teachers=3, teacher=teacher, target=teacher)
    Traceback (most recent call last):
    ...
    darrm_torch.errors.PrivacyViolation: ...
    """
    values = on_grid(gamma, teachers)
    certificate = _examine(
        values,
        region=Region(guarantees=teacher_guarantees(teacher)),
        overlap=check_overlap(overlap, teachers),
        target=check_target(target),
        rigorous=rigorous,
    )
    if isinstance(certificate, Certificate):
        return certificate
    loss, worst = certificate
    raise PrivacyViolation(
        f"one label is not {target}: {worst}. Pr[label 1] - e^epsilon Pr'[label 1] can be {loss:.9g} there and must "
        f"not exceed delta = {target.delta:.9g}"
    )


def certify_scaled(
    gamma: FloatArray, *, region: Region, overlap: int, target: PrivacyGuarantee
) -> tuple[FloatArray, Certificate]:
    """Mixes ``gamma`` (on the grid) with as much of the fair coin as it takes, and proves the result.

    The loss is affine in gamma and that of the coin is (1 - e^E) / 2 <= 0, so the share is known; rounding may ask for
    a second helping. The coin itself (gamma = 0) can always be proven.
    """
    coin = (1 - growth_at_least(target.epsilon)) / 2
    for attempt in range(20):
        found = _examine(gamma, region=region, overlap=overlap, target=target)
        if isinstance(found, Certificate):
            return gamma, found
        share = (target.delta - coin) / (found[0] - coin) * (1 - 2.0 ** (2 * attempt - 50))
        # Below the allowance for rounding no share of gamma can be proven, and only the coin is left.
        gamma = on_grid(gamma * (max(share, 0.0) if attempt < 10 else 0.0))
    raise AssertionError("gamma = 0 is private")


def _examine(
    gamma: FloatArray, *, region: Region, overlap: int, target: PrivacyGuarantee, rigorous: bool = False
) -> Certificate | tuple[float, WorstCase]:
    """The certificate of one label, or the loss that is too large and where it is."""
    teachers, monotone, law = len(gamma) - 1, is_monotone(gamma), label_law(gamma)
    growth = growth_at_least(target.epsilon)
    found = worst_losses(law, region=region, overlap=overlap, growth=growth, monotone=monotone, rigorous=rigorous)
    here, there = (float(vote_law(votes[0]) @ law) for votes in found.votes(teachers))
    counts, ones = found.counts[0], int(found.ones[0])
    worst = WorstCase(
        corners=tuple((float(c.here), float(c.there), int(n)) for c, n in zip(found.corners, counts, strict=True) if n),
        ones=ones,
        zeros=teachers - int(counts.sum()) - ones,
        here=here,
        there=there,
    )
    loss, method = min(float(found.losses[0]), 1.0), "corners"
    rounding = loss - (here - growth * there)
    if loss > target.delta:
        if not _composes(gamma, region=region, overlap=overlap, target=target):
            return loss, worst
        loss, method, rounding = target.delta, "composition", 0.0
    return Certificate(
        teachers=teachers,
        overlap=overlap,
        teacher=region.guarantees,
        target=target,
        digest=gamma_digest(gamma),
        shape="monotone" if monotone else "free",
        loss=loss,
        rounding_error=max(rounding, 0.0),
        worst_case=worst,
        method=method,
        rigorous=rigorous,
    )


def _composes(gamma: FloatArray, *, region: Region, overlap: int, target: PrivacyGuarantee) -> bool:
    """Whether a composition theorem alone keeps the target, in exact arithmetic."""
    smallest = _smallest_allowance(gamma, overlap)
    epsilon, delta = Fraction(target.epsilon), Fraction(target.delta)
    for guarantee in region.guarantees:
        if math.isfinite(guarantee.epsilon):
            one, lost = Fraction(guarantee.epsilon), Fraction(guarantee.delta)
            if smallest * one <= epsilon and smallest * lost <= delta:
                return True
            if overlap * one <= epsilon and 1 - (1 - lost) ** overlap <= delta:
                return True
    return smallest == 0


def label_profile(gamma: npt.ArrayLike, *, teachers: int, teacher: Teacher, overlap: int | None = None) -> LabelProfile:
    """The privacy profile of one label of ``gamma``: what it really costs.

    Args:
        gamma, teachers, teacher, overlap: as for :func:`certify`.

    Returns:
        A function of epsilon (nats, >= 0): the smallest delta for which one label is (epsilon, delta)-DP, rounded up.
        Its method ``epsilon`` is the other way round.

    >>> profile = label_profile([0.9, 0.3, 0.3, 0.9], teachers=3, teacher=PrivacyGuarantee(epsilon=0.1))
    >>> round(profile(0.0), 4), profile(0.1), round(profile.epsilon(0.0), 4)
    (0.045, 0.0, 0.09)
    """
    return LabelProfile(
        gamma=on_grid(gamma, teachers),
        region=Region(guarantees=teacher_guarantees(teacher)),
        overlap=check_overlap(overlap, teachers),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelProfile:
    """See :func:`label_profile`."""

    gamma: FloatArray
    region: Region
    overlap: int

    def __call__(self, epsilon: float) -> float:
        """The smallest delta, rounded up."""
        target = PrivacyGuarantee(epsilon=check_number("epsilon", epsilon, low=0.0, high=math.inf))
        if math.isinf(target.epsilon):
            return 0.0
        found = _examine(self.gamma, region=self.region, overlap=self.overlap, target=target)
        return 0.0 if isinstance(found, Certificate) else min(found[0], 1.0)

    def epsilon(self, delta: float) -> float:
        """The smallest epsilon for which one label is (epsilon, ``delta``)-DP, to one part in a million, rounded up.

        ``math.inf`` where there is none up to 500 nats.
        """
        delta = check_number("delta", delta, low=0.0, high=1.0)

        def keeps(epsilon: float) -> bool:
            target = PrivacyGuarantee(epsilon=epsilon, delta=delta)
            return isinstance(
                _examine(self.gamma, region=self.region, overlap=self.overlap, target=target), Certificate
            )

        low, high = 0.0, 2.0**-20
        if keeps(low):
            return low
        while not keeps(high):
            low, high = high, 2 * high
            if low > 500:
                return math.inf
        while high - low > 1e-6 * high:
            middle = (low + high) / 2
            low, high = (low, middle) if keeps(middle) else (middle, high)
        return high


def self_bounding_allowance(gamma: npt.ArrayLike, *, teachers: int, overlap: int | None = None) -> float:
    """The smallest m for which ``gamma`` is m-self-bounding, rounded up: at most the overlap, which is always enough.

    With q(l) = Pr[label 1 | l votes for 1]: the sum of q(l) - min(q(l), q with one vote changed), over any r teachers,
    is at most m q(l). Exact rational arithmetic on ``gamma`` rounded down to multiples of 2^-53.

    Raises:
        InvalidArgument: bad input.

    >>> self_bounding_allowance([1] * 12, teachers=11)  # the majority, told without noise
    6.0
    """
    smallest = _smallest_allowance(on_grid(gamma, teachers), check_overlap(overlap, teachers))
    return _round_up(smallest)


def certify_self_bounding(gamma: FloatArray, *, overlap: int, allowance: float) -> SelfBoundingCertificate | None:
    """The certificate that ``gamma`` (on the grid) is m-self-bounding, or None."""
    smallest = _smallest_allowance(gamma, overlap)
    if smallest > Fraction(allowance):
        return None
    return SelfBoundingCertificate(
        teachers=len(gamma) - 1,
        overlap=overlap,
        digest=gamma_digest(gamma),
        allowance=allowance,
        smallest=_round_up(smallest),
    )


def _smallest_allowance(gamma: FloatArray, overlap: int) -> Fraction:
    """The smallest m, exact."""
    teachers = len(gamma) - 1
    signs = np.sign(2 * np.arange(teachers + 1) - teachers)
    law = [GRID + int(sign) * int(value) for sign, value in zip(signs, gamma * GRID, strict=True)]  # q(l), times 2^54
    best, over = 0, 1
    for ones in range(teachers + 1):
        fewer = max(law[ones] - law[ones - 1], 0) if ones else 0
        more = max(law[ones] - law[ones + 1], 0) if ones < teachers else 0
        most = _heaviest((ones, fewer), (teachers - ones, more), overlap)
        if most * over > best * law[ones]:
            best, over = most, law[ones]
    return Fraction(best, over)


def _heaviest(one: tuple[int, int], other: tuple[int, int], most: int) -> int:
    """The largest total of at most ``most`` things, of two kinds of (how many, each worth)."""
    (many, worth), (rest, less) = sorted((one, other), key=lambda kind: kind[1], reverse=True)
    return min(many, most) * worth + min(rest, max(most - many, 0)) * less


def _round_up(number: Fraction) -> float:
    nearest = float(number)
    return nearest if Fraction(nearest) >= number else math.nextafter(nearest, math.inf)
