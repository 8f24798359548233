"""Checks that one label of a noise function is private. The solver is not imported here.

:class:`Certificate` is about one label under a target. The certificate about any number of labels is
:class:`SelfBoundingCertificate` (theory, section 9).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction

import numpy.typing as npt

from ..arguments import checked
from ..arrays import FloatArray
from ..errors import PrivacyViolation, check_number
from ..privacy.guarantees import PrivacyGuarantee, format_bound
from ..reprs import short_repr
from .grid import gamma_digest, is_monotone, label_law, on_grid
from .priors import vote_law
from .regions import Region, Teacher, check_overlap, check_target, growth_at_least, teacher_region
from .self_bounding import check_seal, sealed, smallest_allowance
from .worst_case import worst_losses

__all__ = ["Certificate", "LabelProfile", "WorstCase", "certify", "certify_region", "certify_scaled", "label_profile"]


@dataclass(frozen=True, kw_only=True)
class WorstCase:
    """The pair of neighbouring datasets with the largest privacy loss of one label.

    Attributes:
        corners: ``((p, p', how many teachers), ..)``: affected teachers who vote 1 with probability p, and p' on the
            neighbouring dataset.
        ones, zeros: unaffected teachers who vote 1, and who vote 0.
        here, there: Pr[label 1] on the dataset, and on its neighbour.
    """

    corners: tuple[tuple[float, float, int], ...]
    ones: int
    zeros: int
    here: float
    there: float

    def __str__(self) -> str:
        affected = "".join(
            f"{n} teachers that vote 1 with probability {p:.6g} and {q:.6g}, " for p, q, n in self.corners
        )
        return (
            f"{affected}{self.ones} that always vote 1 and {self.zeros} that never do: "
            f"Pr[label 1] = {self.here:.12g} and {self.there:.12g} on the neighbouring dataset"
        )


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """Proof that one label of a noise function is private. ``str`` states the result.

    Formal guarantee: let the teachers be independent, let each keep all guarantees in ``teacher``, and let a record be
    in the training data of at most ``overlap`` of them. Then one label is ``target``-DP. The guarantees of several
    labels of the same teachers do not compose (see ``total_privacy``).

    Attributes:
        teachers, overlap, teacher, target: what was checked; each teacher keeps all guarantees in ``teacher``.
        digest: identifies the noise function, see :func:`gamma_digest`.
        shape: "monotone" if more votes for 1 never make label 1 less likely, else "free".
        loss: proven upper bound of Pr[label 1] - e^epsilon Pr'[label 1] over all neighbouring datasets.
        rounding_error: the part of ``loss`` that is an allowance for rounding.
        worst_case: where the loss is largest.
        method: "corners" when ``loss`` was bounded over all corners of the teachers' regions. "composition" when that
            bound exceeds the target's delta, possibly by its allowance for rounding only, and a theorem applies in
            exact arithmetic: r teachers compose to within the target, or the noise function is m-self-bounding with
            (m epsilon, m delta) within the target.
        rigorous: True when the corners were evaluated in ball arithmetic, False when in doubles with a proven allowance
            for rounding in ``loss``. Both are proofs.
        optimality_gap: an upper bound on the improvement that is left in the solver's objective, sum_l w_l gamma(l)
            over l > K/2 with the prior's weights w (twice the reduction of the error). None without a solver. Not
            checked here.
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
    seal: str = field(default="", repr=False, compare=False)

    __repr__ = short_repr

    def __post_init__(self) -> None:
        if not self.loss <= self.bound:
            raise PrivacyViolation(f"a certificate cannot say loss {self.loss!r} > bound {self.bound!r}")
        check_seal(self)

    def __str__(self) -> str:
        # What is proven is rounded up; what it rests on is exact, because a weaker premise would be another theorem.
        premise = " and ".join(f"({_exact(point.epsilon)}, {_exact(point.delta)})-DP" for point in self.teacher)
        return (
            f"Proven: one label of {self.teachers} teachers that are {premise} is "
            f"{self.target}, if each record is in the training data of at most {self.overlap}. "
            f"Worst loss {format_bound(self.loss, 6)}, margin {self.margin:.2g}; worst case: {self.worst_case}."
        )

    @property
    def bound(self) -> float:
        """The largest ``loss`` allowed: the target's delta."""
        return self.target.delta

    @property
    def margin(self) -> float:
        """``bound - loss``, never negative."""
        return self.bound - self.loss


def _exact(number: float) -> str:
    return repr(number).removesuffix(".0")


@checked
def certify(
    gamma: npt.ArrayLike,
    *,
    teachers: int,
    teacher: Teacher,
    target: PrivacyGuarantee,
    overlap: int | None = None,
    rigorous: bool = False,
) -> Certificate:
    """Proves that one label of the noise function ``gamma`` is private.

    Args:
        gamma: ``(K + 1,)``, the probability of reporting the majority at each number of votes for 1. It is rounded down
            to multiples of 2^-53 first, as :class:`NoiseFunction` does; labels are drawn from the rounded values.
        teachers: K.
        teacher: what each teacher promises as a trained model: a guarantee, a profile, or a sequence with one of these
            for each of the K teachers, which stands for the weakest. Several guarantees that each teacher keeps at the
            same time are one profile, ``PrivacyProfile.from_guarantee(g1, g2, ...)``.
        target: the guarantee of one label.
        overlap: r, the largest number of teachers whose training data one record is in; None for all.
        rigorous: evaluate in ball arithmetic (needs python-flint; a second for K = 1,001 and a monotone gamma): the
            same bound with an allowance for rounding near 1e-15 for any K.

    Raises:
        PrivacyViolation: the label is not private, or its loss exceeds the bound by less than the allowance for
            rounding. The message names the worst case.
        InvalidArgument: bad input.

    >>> teacher = PrivacyGuarantee(epsilon=0.1)
    >>> certify([0.9, 0.3, 0.3, 0.9], teachers=3, teacher=teacher, target=teacher).shape
    'monotone'
    >>> certify([1, 1, 1, 1], teachers=3, teacher=teacher, target=teacher)
    Traceback (most recent call last):
    ...
    darrm_torch.errors.PrivacyViolation: ...
    """
    return certify_region(
        on_grid(gamma, teachers),
        region=teacher_region(teacher, teachers),
        overlap=check_overlap(overlap, teachers),
        target=check_target(target),
        rigorous=rigorous,
    )


def certify_region(
    gamma: FloatArray, *, region: Region, overlap: int, target: PrivacyGuarantee, rigorous: bool = False
) -> Certificate:
    """:func:`certify` for checked arguments: ``gamma`` on the grid, and the region of the teachers' promise.

    Raises:
        PrivacyViolation: as :func:`certify`.
    """
    certificate = _examine(gamma, region=region, overlap=overlap, target=target, rigorous=rigorous)
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
    """Scales ``gamma`` (on the grid) down as far as the target requires, and proves the result.

    Scaling mixes the label with a fair coin. The loss is affine in gamma, and that of the coin alone (gamma = 0) is
    (1 - e^E) / 2 <= 0, so the factor is known. Rounding can make a further step necessary. The coin always has a proof.
    """
    coin = (1 - growth_at_least(target.epsilon)) / 2
    for attempt in range(20):
        result = _examine(gamma, region=region, overlap=overlap, target=target)
        if isinstance(result, Certificate):
            return gamma, result
        share = (target.delta - coin) / (result[0] - coin) * (1 - 2.0 ** (2 * attempt - 50))
        # For a target below the allowance for rounding only gamma = 0 has a proof.
        gamma = on_grid(gamma * (max(share, 0.0) if attempt < 10 else 0.0))
    raise AssertionError("gamma = 0 is private")


def _examine(
    gamma: FloatArray, *, region: Region, overlap: int, target: PrivacyGuarantee, rigorous: bool = False
) -> Certificate | tuple[float, WorstCase]:
    """The certificate of one label; without one, the loss that is too large, and its worst case."""
    teachers, monotone, law = len(gamma) - 1, is_monotone(gamma), label_law(gamma)
    growth = growth_at_least(target.epsilon)
    worst = worst_losses(law, region=region, overlap=overlap, growth=growth, monotone=monotone, rigorous=rigorous)
    here, there = (float(vote_law(votes[0]) @ law) for votes in worst.votes(teachers))
    counts, ones = worst.counts[0], int(worst.ones[0])
    case = WorstCase(
        corners=tuple((float(c.here), float(c.there), int(n)) for c, n in zip(worst.corners, counts, strict=True) if n),
        ones=ones,
        zeros=teachers - int(counts.sum()) - ones,
        here=here,
        there=there,
    )
    loss, method = min(float(worst.losses[0]), 1.0), "corners"
    rounding = loss - (here - growth * there)
    if loss > target.delta:
        if not _composes(gamma, region=region, overlap=overlap, target=target):
            return loss, case
        loss, method, rounding = target.delta, "composition", 0.0
    return sealed(
        Certificate,
        teachers=teachers,
        overlap=overlap,
        teacher=region.guarantees,
        target=target,
        digest=gamma_digest(gamma),
        shape="monotone" if monotone else "free",
        loss=loss,
        rounding_error=max(rounding, 0.0),
        worst_case=case,
        method=method,
        rigorous=rigorous,
    )


def _composes(gamma: FloatArray, *, region: Region, overlap: int, target: PrivacyGuarantee) -> bool:
    """Whether a composition theorem proves the target, in exact arithmetic."""
    smallest = smallest_allowance(gamma, overlap)
    epsilon, delta = Fraction(target.epsilon), Fraction(target.delta)
    for guarantee in region.guarantees:
        if math.isfinite(guarantee.epsilon):
            one, lost = Fraction(guarantee.epsilon), Fraction(guarantee.delta)
            if smallest * one <= epsilon and smallest * lost <= delta:
                return True
            if overlap * one <= epsilon and 1 - (1 - lost) ** overlap <= delta:
                return True
    return smallest == 0


@checked
def label_profile(gamma: npt.ArrayLike, *, teachers: int, teacher: Teacher, overlap: int | None = None) -> LabelProfile:
    """The privacy profile of one label of ``gamma``: its exact cost, up to rounding.

    Args:
        gamma, teachers, teacher, overlap: as for :func:`certify`.

    Returns:
        A function of epsilon (nats, >= 0): the smallest delta for which one label is (epsilon, delta)-DP, rounded up.
        Its method ``epsilon`` is the inverse.

    >>> profile = label_profile([0.9, 0.3, 0.3, 0.9], teachers=3, teacher=PrivacyGuarantee(epsilon=0.1))
    >>> round(profile(0.0), 4), profile(0.1), round(profile.epsilon(0.0), 4)
    (0.045, 0.0, 0.09)
    """
    return LabelProfile(
        gamma=on_grid(gamma, teachers),
        region=teacher_region(teacher, teachers),
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
        result = _examine(self.gamma, region=self.region, overlap=self.overlap, target=target)
        return 0.0 if isinstance(result, Certificate) else min(result[0], 1.0)

    def epsilon(self, delta: float) -> float:
        """The smallest epsilon for which one label is (epsilon, ``delta``)-DP, to one part in a million, rounded up.

        ``math.inf`` where there is none up to 500 nats.
        """
        delta, epsilon, least = check_number("delta", delta, low=0.0, high=1.0), 0.0, 2.0**-22
        while epsilon <= 500.0:
            target = PrivacyGuarantee(epsilon=epsilon, delta=delta)
            result = _examine(self.gamma, region=self.region, overlap=self.overlap, target=target)
            if isinstance(result, Certificate):
                return epsilon
            # In e^epsilon the loss is convex, and that of the worst case is a tangent: its root is no larger than ours.
            here, there = result[1].here, result[1].there
            if there == 0:
                return math.inf
            root = math.log((here - delta) / there) if here - delta > there else 0.0
            smallest = epsilon + max(epsilon, 2.0**-10) * least
            if root < smallest:  # rounding hides the root, once at the end, or always where delta is next to one
                least *= 2
            epsilon = max(root, smallest)
        return math.inf
