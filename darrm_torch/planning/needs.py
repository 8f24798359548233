"""What the teachers would have to be for an agreement: the least noise, the most steps, or the largest epsilon.

Most of the search is about prices. How much noise an agreement allows does not depend on the teachers where labels add
up, nor does the size of a jury; so these are found once, and each kind of teachers takes one price.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from scipy import optimize

from ..errors import DarrmError
from ..mechanisms.noise_free import NoiseFreeMajority
from ..privacy.guarantees import PrivacyGuarantee, format_bound
from ..privacy.profiles import PrivacyProfile
from . import builders
from .families import Family, families
from .request import SLACK, Promised, Request

__all__ = ["TeachersNeeded", "smallest", "teachers_needed"]


_ROUNDING = 1e-12  # of an agreement


@dataclass(frozen=True, kw_only=True)
class TeachersNeeded:
    """What the teachers would have to be for some agreement; None: this alone is not enough, or was not asked for.

    Attributes:
        agreement: the agreement that is reached.
        noise_multiplier: the least, with the teachers' sample rate and steps.
        steps: the most, with the teachers' noise multiplier and sample rate.
        teacher: the most that each may cost by itself.
    """

    agreement: float
    noise_multiplier: float | None = None
    steps: int | None = None
    teacher: PrivacyGuarantee | None = None

    def to_dict(self) -> dict[str, Any]:
        """All of it, ready for JSON."""
        return {
            "agreement": self.agreement,
            "noise_multiplier": self.noise_multiplier,
            "steps": self.steps,
            "teacher": None if self.teacher is None else [self.teacher.epsilon, self.teacher.delta],
        }

    def __str__(self) -> str:
        ways = []
        if self.noise_multiplier is not None:
            ways.append(f"a noise multiplier of {format_bound(self.noise_multiplier)} or more")
        if self.steps is not None:
            ways.append(f"at most {self.steps} steps")
        if self.teacher is not None:
            ways.append(f"to be {self.teacher} each, or better")
        if not ways:
            return f"For an agreement of {self.agreement:g} no change of the teachers' noise or steps is enough."
        return f"For an agreement of {self.agreement:g} the teachers would need {', or '.join(ways)}."


def teachers_needed(request: Request, wanted: float, on_progress: Callable[[], None]) -> TeachersNeeded:
    """See :meth:`darrm_torch.Plan.teachers_needed`."""
    # What better teachers can make good enough; the quick ones first.
    known = {family.kind: family for family in families(request.classes) if family.rests_on != "randomness"}
    reached = [_by_votes(request, wanted), _by_labels_that_add_up(request, wanted)]
    reached += [_by_noise(known[kind]) for kind in ("darrm-point", "darrm", "vote-private") if kind in known]

    def least(
        profile: Callable[[float], PrivacyProfile], low: float, high: float, within: float, step: float
    ) -> float | None:
        """The smallest number whose teachers are good enough for one of the strategies."""
        found = None
        for agreement in reached:

            def value(number: float, agreement: _Agreement = agreement) -> float:
                on_progress()
                return agreement(replace(request, teacher=profile(number)))

            # Each only where it needs less than those before.
            less = smallest(value, wanted, low, high, within, step) if high > low else None
            if less is not None:
                found, high = less, less / within
        return found

    if len(request.teacher.dp_sgd) == 1 and not request.teacher.promises:
        ((noise, rate, steps, *records),) = request.teacher.dp_sgd

        def run(noise: float, steps: float) -> PrivacyProfile:
            other = PrivacyProfile(dp_sgd=((noise, rate, max(1, math.floor(steps)), *records),))  # type: ignore[arg-type]
            return replace(other, unit=request.teacher.unit)

        part = least(lambda part: run(noise, steps / part), 1 / 16, max(16.0, steps), 1.01, 1.0)
        return TeachersNeeded(
            agreement=wanted,
            noise_multiplier=least(lambda noise: run(noise, steps), noise / 16, noise * 16, 1.01, 1.0),
            steps=None if part is None else max(1, math.floor(steps / part)),
        )
    deltas = [min(target.delta for target in request.targets) / request.overlap]
    if request.teacher.is_private:
        deltas = [max(point.delta for points, _ in request.teacher.promises for point in points), *deltas]
    for delta in dict.fromkeys(deltas):

        def point(inverse: float, delta: float = delta) -> PrivacyGuarantee:
            return PrivacyGuarantee(epsilon=1 / inverse * SLACK, delta=delta)

        largest = least(lambda inverse: PrivacyProfile.from_guarantee(point(inverse)), 1e-2, 1e6, 1.001, 2.0)
        if largest is not None:
            return TeachersNeeded(agreement=wanted, teacher=point(largest))
    return TeachersNeeded(agreement=wanted)


_Agreement = Callable[[Request], float]  # for a kind of teachers: how often labels agree; 0 where none keep the targets


def _by_votes(request: Request, wanted: float) -> _Agreement:
    """Without noise, of all teachers or of as many as ``wanted`` needs."""

    def part(count: int) -> NoiseFreeMajority:
        jury = None if count == request.teachers else count
        return NoiseFreeMajority(classes=request.classes, teachers=request.teachers, jury=jury)

    sizes = [*request.sample_sizes(request.teachers - 1), request.teachers]
    fewest = sizes[bisect_left(sizes, wanted - _ROUNDING, key=lambda n: builders.agreement(request, part(n))[0])]
    voters = dict.fromkeys((request.teachers, fewest))
    return lambda request: float(any(request.keeps(part(count)) for count in voters))


def _by_labels_that_add_up(request: Request, wanted: float) -> _Agreement:
    """With the noise that ``wanted`` allows: its allowance is the same for all teachers."""

    def agreement(overlap: int, allowance: float) -> float:
        try:
            return builders.agreement(request, builders.adding_up(request, allowance, overlap))[0]
        except DarrmError:
            return 0.0

    promised = []
    for overlap in request.allowance_overlaps:
        m = smallest(partial(agreement, overlap), wanted, 1e-6, float(overlap), 1.0001)
        if m is not None:
            promised.append(Promised(allowance=m, overlap=overlap))
    return lambda request: float(any(request.keeps(noise) for noise in promised))


def _by_noise(family: Family) -> _Agreement:
    """With noise that is optimised for the teachers."""

    def agreement(request: Request) -> float:
        free = NoiseFreeMajority(classes=request.classes, teachers=request.teachers)
        if family.rests_on == "teachers":  # many labels of such noise cost what publishing the teachers does
            for count, target in request.requirements:
                if count > 1 and request.price(free, count, target.delta).epsilon > target.epsilon:
                    return 0.0
        return max((row.agreement or 0.0 for row in family.rows(request) if row.meets), default=0.0)

    return agreement


def smallest(
    value: Callable[[float], float], wanted: float, low: float, high: float, within: float, grows: float = 2.0
) -> float | None:
    """The smallest number in [low, high] whose ``value``, which rises, is ``wanted``, to a ratio of ``within``.

    None if that of ``high`` is less. Values take seconds, so few are computed: from ``high`` down in steps that grow by
    a factor of ``grows``, then by Brent's method, which needs half as many as bisection. A value of 0 says nothing
    about how far away the number is; there it bisects.
    """
    known: dict[float, float] = {}

    def excess(log: float) -> float:
        if log not in known:
            number = value(math.exp(log))
            more = number - wanted + _ROUNDING
            if number == 0 and more < 0 and known:
                more = -min(abs(one) for one in known.values())
            # Brent's method ends where it is zero, also on a plateau.
            known[log] = more if more < 0 else max(more, 1e-4)
        return known[log]

    lower, bottom, step = math.log(high), math.log(low), math.log(2)
    if excess(lower) < 0:
        return None
    while excess(lower) > 0 and lower > bottom:
        lower, step = max(bottom, lower - step), grows * step
    if excess(lower) < 0:
        upper = min(log for log, more in known.items() if more > 0)
        optimize.brentq(excess, lower, upper, xtol=math.log(within) / 2)
    return math.exp(min(log for log, more in known.items() if more > 0))
