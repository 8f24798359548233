"""What a teacher promises, as a region: its probabilities of voting 1 on two neighbouring datasets.

A teacher that is (eps_j, Delta_j)-DP for several j at once votes 1 with probability p on one dataset and p' on a
neighbour. The pair (p, p') lies in the polygon

    p <= e^eps_j p' + Delta_j,    1 - p' <= e^eps_j (1 - p) + Delta_j,    and both with p and p' exchanged.

The polygon is computed in exact rational arithmetic from an upper bound of each e^eps_j, so it contains the true one:
what is private for the computed polygon is private for the teacher. Redundant guarantees do not change it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple, TypeAlias

from ..errors import InvalidArgument, check_integer
from ..privacy.guarantees import PrivacyGuarantee, check_guarantee
from ..privacy.profiles import PrivacyProfile

__all__ = [
    "Corner",
    "Region",
    "Teacher",
    "check_overlap",
    "check_target",
    "growth_at_least",
    "growth_at_most",
    "teacher_profile",
    "teacher_region",
]

# A larger epsilon of a teacher is read as infinity (weaker: sound), and a larger epsilon of a label as this one
# (stronger: sound). Every number in the oracle then stays far from overflow, and underflow stays below 1e-100.
_LARGEST_EPSILON = 500.0

Teacher: TypeAlias = PrivacyGuarantee | PrivacyProfile | Iterable[PrivacyGuarantee | PrivacyProfile]


class Corner(NamedTuple):
    """A vertex of the region: the probability of voting 1 on one dataset, and on its neighbour."""

    here: Fraction
    there: Fraction


def growth_at_least(epsilon: float) -> float:
    """A float ``<= e^epsilon``, at most two units in the last place below it."""
    if epsilon == 0:
        return 1.0
    # The C library computes exp to within one unit in the last place.
    return max(1.0, math.nextafter(math.exp(min(epsilon, _LARGEST_EPSILON)), 0.0))


def growth_at_most(epsilon: float) -> float:
    """A float ``>= e^epsilon``, at most two units in the last place above it; infinity beyond epsilon = 500."""
    if epsilon == 0:
        return 1.0
    return math.inf if epsilon > _LARGEST_EPSILON else math.nextafter(math.exp(epsilon), math.inf)


def teacher_profile(teacher: Any, teachers: int) -> PrivacyProfile:
    """The promise that all teachers keep, from the argument ``teacher`` of the public functions.

    One guarantee or profile is the promise of each teacher. An iterable holds one promise for each of the ``teachers``
    teachers, in any order, and stands for the weakest of them (:meth:`PrivacyProfile.weakest`).

    Raises:
        InvalidArgument: anything else, in particular an iterable of another length.

    >>> unlike = [PrivacyGuarantee(epsilon=0.1, delta=1e-5), PrivacyGuarantee(epsilon=0.3)]
    >>> teacher_profile(unlike, 2).guarantees()
    (PrivacyGuarantee(epsilon=0.3, delta=1e-05),)
    >>> teacher_profile(unlike, 3)
    Traceback (most recent call last):
    ...
    darrm_torch.errors.InvalidArgument: teacher must be ..., or one of these for each of 3 teachers, got ...
    """
    if isinstance(teacher, PrivacyProfile):
        return teacher
    listed = isinstance(teacher, Iterable) and getattr(teacher, "ndim", None) != 0
    promises = tuple(teacher) if listed and not getattr(teacher, "is_nested", False) else ()
    if len(promises) == teachers and all(isinstance(one, PrivacyGuarantee | PrivacyProfile) for one in promises):
        return PrivacyProfile.weakest(promises)
    expected = f"a PrivacyGuarantee, a PrivacyProfile, or one of these for each of {teachers} teachers"
    cure = "A teacher without privacy of its own is PrivacyGuarantee(epsilon=math.inf)."
    if promises:
        cure = "Guarantees that each teacher keeps at the same time are PrivacyProfile.from_guarantee(g1, g2, ...)"
    return PrivacyProfile.from_guarantee(check_guarantee("teacher", promises or teacher, expected=expected, cure=cure))


def teacher_region(teacher: Any, teachers: int) -> Region:
    """The region of the promise that all teachers keep; see :func:`teacher_profile`."""
    return Region(guarantees=teacher_profile(teacher, teachers).guarantees())


def check_overlap(overlap: int | None, teachers: int) -> int:
    """The overlap r; None means all ``teachers``."""
    if overlap is None:
        return teachers
    cure = "None means that a record can be in the training data of all teachers."
    return check_integer("overlap", overlap, low=1, high=teachers, cure=cure)


def check_target(target: Any, name: str = "target") -> PrivacyGuarantee:
    """``target`` itself.

    Raises:
        InvalidArgument: not a guarantee, or one with an infinite epsilon.
    """
    checked = check_guarantee(name, target)
    if math.isinf(checked.epsilon):
        raise InvalidArgument(
            f"{name}.epsilon", "finite", checked.epsilon, "A label without privacy needs no noise function."
        )
    return checked


@dataclass(frozen=True, kw_only=True)
class Region:
    """The polygon of (p, p') that a teacher's guarantees allow.

    Attributes:
        guarantees: the guarantees of the teacher, which all hold at the same time.
        chain: the vertices on the side "p high, p' low", from (Delta, 0) to (1, 1 - Delta) (theory: upper chain). For
            any A, B >= 0 the maximum of A p - B p' over the polygon is at one of them.

    >>> [(float(p), float(q)) for p, q in Region(guarantees=(PrivacyGuarantee(epsilon=math.inf),)).chain]
    [(1.0, 0.0)]
    """

    guarantees: tuple[PrivacyGuarantee, ...]
    chain: tuple[Corner, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "chain", _upper_chain(self.guarantees))

    @property
    def tilted(self) -> tuple[Corner, ...]:
        """All vertices with p != p': those of the chain, and the same with p and p' exchanged."""
        upper = [corner for corner in self.chain if corner.here != corner.there]
        return tuple(corner for p, q in upper for corner in (Corner(p, q), Corner(q, p)))


def _upper_chain(guarantees: tuple[PrivacyGuarantee, ...]) -> tuple[Corner, ...]:
    """The vertices of the concave function p = F(p') that bounds the polygon from above, up to its maximum."""
    lines = [(Fraction(0), Fraction(1))]  # p <= slope p' + level
    for guarantee in guarantees:
        growth = growth_at_most(guarantee.epsilon)
        if math.isfinite(growth):
            up, delta = Fraction(growth), Fraction(guarantee.delta)
            lines += [(up, delta), (1 / up, 1 - (1 - delta) / up)]
    level, slope = min((level, slope) for slope, level in lines)
    chain, there = [Corner(min(level, Fraction(1)), Fraction(0))], Fraction(0)
    while chain[-1].here < 1:
        here = chain[-1].here
        # The next line to bound the function is the one that it meets first, and the flattest of several met together.
        there, slope = min(
            (there + (lower + flatter * there - here) / (slope - flatter), flatter)
            for flatter, lower in lines
            if flatter < slope
        )
        chain.append(Corner(min(lower + flatter * there for flatter, lower in lines), there))
    return tuple(chain)
