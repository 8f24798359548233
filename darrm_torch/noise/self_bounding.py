"""Self-bounding noise functions: the certificate that any number of labels add up, and its exact check."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from ..arrays import FloatArray
from ..errors import PrivacyViolation
from ..privacy.guarantees import format_bound, round_up
from .grid import GRID, gamma_digest, on_grid
from .regions import check_overlap

__all__ = ["SelfBoundingCertificate", "certify_self_bounding", "self_bounding_allowance", "smallest_allowance"]


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


def self_bounding_allowance(gamma: npt.ArrayLike, *, teachers: int, overlap: int | None = None) -> float:
    """The smallest m for which ``gamma`` is m-self-bounding, rounded up: at most the overlap, which is always enough.

    With q(l) = Pr[label 1 | l votes for 1]: the sum of q(l) - min(q(l), q with one vote changed), over any r teachers,
    is at most m q(l). Exact rational arithmetic on ``gamma`` rounded down to multiples of 2^-53.

    Raises:
        InvalidArgument: bad input.

    >>> self_bounding_allowance([1] * 12, teachers=11)  # the majority, told without noise
    6.0
    """
    smallest = smallest_allowance(on_grid(gamma, teachers), check_overlap(overlap, teachers))
    return round_up(smallest)


def certify_self_bounding(gamma: FloatArray, *, overlap: int, allowance: float) -> SelfBoundingCertificate | None:
    """The certificate that ``gamma`` (on the grid) is m-self-bounding, or None."""
    smallest = smallest_allowance(gamma, overlap)
    if smallest > Fraction(allowance):
        return None
    return SelfBoundingCertificate(
        teachers=len(gamma) - 1,
        overlap=overlap,
        digest=gamma_digest(gamma),
        allowance=allowance,
        smallest=round_up(smallest),
    )


def smallest_allowance(gamma: FloatArray, overlap: int) -> Fraction:
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
