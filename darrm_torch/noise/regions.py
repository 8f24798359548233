"""What a teacher promises: the region of its two probabilities of voting 1, on neighbouring datasets.

A teacher with the guarantees (eps_j, Delta_j), all at once, votes 1 with probability p on one dataset and p' on a
neighbour, and (p, p') lies in the polygon

    p <= e^eps_j p' + Delta_j,    1 - p' <= e^eps_j (1 - p) + Delta_j,    and both with p and p' exchanged.

The polygon is computed in exact rational arithmetic from an upper bound of each e^eps_j, so it contains the true one:
what is private for it is private for the teacher. Redundant guarantees drop out by themselves.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple, Protocol, TypeAlias

from ..errors import InvalidArgument, check_integer
from ..privacy.guarantees import PrivacyGuarantee, check_guarantee, drop_implied, implied_by
from ..privacy.profiles import PrivacyProfile

__all__ = [
    "Corner",
    "Region",
    "Teacher",
    "check_overlap",
    "check_target",
    "growth_at_least",
    "growth_at_most",
    "teacher_guarantees",
]

# Beyond this a teacher's epsilon is read as infinity (weaker: sound), and a label's epsilon as this one (stronger:
# sound). Every number in the oracle then stays far from overflow, and underflow stays below 1e-100.
_LARGEST_EPSILON = 500.0


_UNLIKE = (
    "If the teachers are unlike, give what they all keep: teacher=PrivacyProfile.weakest([...]), with the guarantee or "
    "profile of each teacher"
)


class _Profile(Protocol):
    def guarantees(self) -> tuple[PrivacyGuarantee, ...]: ...


Teacher: TypeAlias = "PrivacyGuarantee | Iterable[PrivacyGuarantee] | _Profile"


class Corner(NamedTuple):
    """A vertex of the region: the chance of voting 1 on one dataset, and on its neighbour."""

    here: Fraction
    there: Fraction


def growth_at_least(epsilon: float) -> float:
    """A float ``<= e^epsilon``, at most two units in the last place below it."""
    if epsilon == 0:
        return 1.0
    # exp of the C library is off by less than one unit in the last place.
    return max(1.0, math.nextafter(math.exp(min(epsilon, _LARGEST_EPSILON)), 0.0))


def growth_at_most(epsilon: float) -> float:
    """A float ``>= e^epsilon``, at most two units in the last place above it; infinity beyond epsilon = 500."""
    if epsilon == 0:
        return 1.0
    return math.inf if epsilon > _LARGEST_EPSILON else math.nextafter(math.exp(epsilon), math.inf)


def teacher_guarantees(teacher: Any) -> tuple[PrivacyGuarantee, ...]:
    """The guarantees that each teacher keeps, all at once: from one of them, several, or a privacy profile.

    Several of which one follows from another are refused: they are meant as one for each of unlike teachers.

    Raises:
        InvalidArgument: anything else, or no guarantee at all.

    >>> teacher_guarantees([PrivacyGuarantee(epsilon=0.1), PrivacyGuarantee(epsilon=3.0)])
    Traceback (most recent call last):
    ...
    darrm_torch.errors.InvalidArgument: teacher must be guarantees that each teacher keeps at once, ...
    """
    if isinstance(teacher, PrivacyGuarantee):
        return (teacher,)
    of_profile = getattr(teacher, "guarantees", None)
    points = of_profile() if callable(of_profile) else teacher
    several = tuple(points) if isinstance(points, Iterable) else ()
    if not several or not all(isinstance(point, PrivacyGuarantee) for point in several):
        profiles = any(isinstance(point, PrivacyProfile) for point in several)
        check_guarantee(
            "teacher",
            teacher,
            expected="a PrivacyGuarantee, a non-empty tuple of them (that hold at once), or a PrivacyProfile",
            cure=_UNLIKE if profiles else "A teacher without privacy of its own is PrivacyGuarantee(epsilon=math.inf).",
        )
    kept = drop_implied(several)
    for idle in several:
        if idle not in kept:
            strong = next(one for one in kept if implied_by(idle, one))
            raise InvalidArgument(
                "teacher",
                "guarantees that each teacher keeps at once, none of which follows from another",
                f"{idle}, which follows from {strong}",
                _UNLIKE,
            )
    return kept


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
class Region:
    """The polygon of (p, p') that some guarantees leave.

    Attributes:
        guarantees: what the teacher promises, all at once.
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
        """All vertices at which the two datasets differ: each of the chain's, and the same with p and p' exchanged."""
        upper = [corner for corner in self.chain if corner.here != corner.there]
        return tuple(corner for p, q in upper for corner in (Corner(p, q), Corner(q, p)))


def _upper_chain(guarantees: tuple[PrivacyGuarantee, ...]) -> tuple[Corner, ...]:
    """Vertices of the concave function p = F(p') that bounds the polygon from above, while it still rises."""
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
        # The next line to cut the rise is the one that is met first; of those met together, the flattest.
        there, slope = min(
            (there + (lower + flatter * there - here) / (slope - flatter), flatter)
            for flatter, lower in lines
            if flatter < slope
        )
        chain.append(Corner(min(lower + flatter * there for flatter, lower in lines), there))
    return tuple(chain)
