"""The self-bounding property: the costs of labels add up. Its certificate and its exact check."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from fractions import Fraction
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ..arguments import checked
from ..arrays import FloatArray
from ..errors import PrivacyViolation
from ..privacy.guarantees import format_bound, round_up
from .grid import GRID, gamma_digest, on_grid
from .regions import check_overlap

__all__ = [
    "SelfBoundingCertificate",
    "certify_self_bounding",
    "check_seal",
    "largest_falls",
    "largest_ratio",
    "sealed",
    "self_bounding_allowance",
    "smallest_allowance",
]


@dataclass(frozen=True, kw_only=True)
class SelfBoundingCertificate:
    """Proof that the labels of a noise function cost a fixed share of the teachers' privacy each.

    The check runs in exact rational arithmetic. ``str`` states the result.

    Formal guarantee: let the teachers be trained independently, each one (eps, Delta)-DP as a trained model, and let a
    record be in the training data of at most ``overlap`` of them. Then Q labels, asked adaptively of the same teachers,
    are together (Q m eps, Q m Delta)-DP with m = ``allowance``. This holds at every (eps, Delta) that the teachers keep
    (theory, section 9).

    Attributes:
        teachers, overlap: what it was checked for.
        digest: identifies the noise function, see :func:`gamma_digest`.
        allowance: m, as it was asked for.
        smallest: the smallest m of this noise function, rounded up; at most ``allowance``.
        optimality_gap: 0 where no other noise function is better at any count of votes; None when unknown. Not checked
            here.
    """

    teachers: int
    overlap: int
    digest: str
    allowance: float
    smallest: float
    optimality_gap: float | None = None
    seal: str = field(default="", repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.smallest <= self.allowance:
            raise PrivacyViolation(f"a certificate cannot say smallest {self.smallest!r} > {self.allowance!r}")
        check_seal(self)

    def for_votes_of(self, teachers: int, overlap: int) -> SelfBoundingCertificate:
        """The certificate of a rule that looks at as many votes as this one was checked for, drawn from more.

        A mixture of m-self-bounding rules is m-self-bounding, and a record that changes r of K votes changes at most r
        of those that are drawn.
        """
        changed = {"teachers": teachers, "overlap": overlap}
        stated = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "seal"}
        return sealed(SelfBoundingCertificate, **stated | changed)

    def __str__(self) -> str:
        text = (
            f"Proven: Q labels of {self.teachers} (eps, delta)-DP teachers are together (Q m eps, Q m delta)-DP with "
            f"m = {format_bound(self.allowance)}, if each record is in the training data of at most {self.overlap}."
        )
        if format_bound(self.smallest) != format_bound(self.allowance):
            text += f" Proven with m = {format_bound(self.smallest)} as well, the smallest for this noise."
        return text

    @property
    def margin(self) -> float:
        """``allowance - smallest``, never negative."""
        return self.allowance - self.smallest


@checked
def self_bounding_allowance(gamma: npt.ArrayLike, *, teachers: int, overlap: int | None = None) -> float:
    """The smallest m for which ``gamma`` is m-self-bounding, rounded up; at most the overlap, which always suffices.

    With q(l) = Pr[label 1 | l votes for 1]: the sum of q(l) - min(q(l), q with one vote changed), over any r teachers,
    is at most m q(l). Exact rational arithmetic on ``gamma`` rounded down to multiples of 2^-53.

    Args:
        gamma: ``(K + 1,)``, as for :func:`certify`.
        teachers: K.
        overlap: r, the largest number of teachers whose training data one record is in; None for all.

    Raises:
        InvalidArgument: bad input.

    >>> self_bounding_allowance([1] * 12, teachers=11)  # the majority without noise
    6.0
    """
    return round_up(smallest_allowance(on_grid(gamma, teachers), check_overlap(overlap, teachers)))


def certify_self_bounding(gamma: FloatArray, *, overlap: int, allowance: float) -> SelfBoundingCertificate | None:
    """The certificate that ``gamma`` (on the grid) is m-self-bounding, or None."""
    smallest = smallest_allowance(gamma, overlap)
    if smallest > Fraction(allowance):
        return None
    return sealed(
        SelfBoundingCertificate,
        teachers=len(gamma) - 1,
        overlap=overlap,
        digest=gamma_digest(gamma),
        allowance=allowance,
        smallest=round_up(smallest),
    )


def smallest_allowance(gamma: FloatArray, overlap: int) -> Fraction:
    """The smallest m for which ``gamma`` (on the grid) is m-self-bounding, exact."""
    teachers = len(gamma) - 1
    signs = np.sign(2 * np.arange(teachers + 1) - teachers)
    law = [GRID + int(sign) * int(value) for sign, value in zip(signs, gamma * GRID, strict=True)]  # q(l), times 2^54

    def falls() -> Iterator[tuple[int, int]]:
        for ones, chance in enumerate(law):
            # At the ends one of the two groups of voters is empty, so its fall does not count.
            fewer, more = chance - law[ones - 1], chance - law[min(ones + 1, teachers)]
            yield largest_falls([(fewer, ones), (more, teachers - ones)], overlap), chance

    return largest_ratio(falls())


Proof = TypeVar("Proof")


def sealed(kind: Callable[..., Proof], **stated: Any) -> Proof:
    """A certificate with a seal of what it states: only the code that proves something seals it."""
    return kind(**stated, seal=_seal(stated))


def check_seal(certificate: Any) -> None:
    """Refuse a certificate that was written by hand or changed, such as by ``dataclasses.replace``.

    Raises:
        PrivacyViolation: it does not state what was sealed.
    """
    stated = {one.name: getattr(certificate, one.name) for one in fields(certificate)}
    if stated["seal"] != _seal(stated):
        raise PrivacyViolation("a certificate states what was proven and cannot be changed: certify the noise again")


def _seal(stated: Mapping[str, Any]) -> str:
    proven = sorted((name, repr(value)) for name, value in stated.items() if name not in ("optimality_gap", "seal"))
    return hashlib.sha256(repr(proven).encode()).hexdigest()[:16]


def largest_falls(groups: Iterable[tuple[int, int]], voters: int) -> int:
    """The sum of the largest falls that ``voters`` voters can cause, each on their own.

    Args:
        groups: ``(fall, how many voters can cause it)``; negative falls count as 0.
    """
    total = 0
    for fall, size in sorted(groups, reverse=True):
        total += max(fall, 0) * min(size, voters)
        voters -= min(size, voters)
    return total


def largest_ratio(pairs: Iterable[tuple[int, int]]) -> Fraction:
    """The largest quotient of the pairs ``(a, b)``, exact; 0 if there is no pair with a > 0."""
    most, over = 0, 1
    for numerator, denominator in pairs:
        if numerator * over > most * denominator:
            most, over = numerator, denominator
    return Fraction(most, over)
