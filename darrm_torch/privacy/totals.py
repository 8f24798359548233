"""The cost of many labels together: every proven bound that applies, the smallest of them, and its assumptions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from ..arguments import checked
from ..errors import InvalidArgument, check_integer, check_number
from ..reprs import wrapped
from .allocation import RandomAllocation
from .assumptions import assumptions_of
from .guarantees import PrivacyGuarantee, format_bound
from .profiles import PrivacyProfile, as_profiles
from .release import PricedMechanism, Release
from .routes import ROUTES, RouteKey, bound_of
from .units import RECORD, Neighbours, ProtectedUnit, common_unit
from .validation import PrivateValidation

__all__ = ["PricedMechanism", "PrivacyRoute", "RouteKey", "TotalPrivacy", "total_privacy"]


@dataclass(frozen=True, kw_only=True)
class PrivacyRoute:
    """One bound on the total.

    Attributes:
        key: identifies the bound: "publishing", "self-bounding", "certified", "label-curve", "own-randomness",
            "private-votes", "allocation" or "allocation-self-bounding". Compare this, never :attr:`name`.
        epsilon: the bound at the requested delta; ``math.inf`` where there is none at that delta.
        explanation: why the bound holds, or why it does not apply.
        applies: whether the argument behind the bound holds in this situation.
    """

    key: RouteKey
    epsilon: float
    explanation: str
    applies: bool = True

    @property
    def name(self) -> str:
        """The name that reports show."""
        return ROUTES[self.key][0]


@dataclass(frozen=True, kw_only=True)
class TotalPrivacy:
    """The proven guarantee of all labels together, and its proof.

    Attributes:
        epsilon: the smallest bound that applies.
        delta: the requested delta.
        labels: the number of labels that the bound covers.
        route: the bound that gives ``epsilon``.
        routes: all bounds, including those that do not apply.
        assumptions: what the guarantee assumes and the library cannot check.
        unit: what the guarantee protects.

    >>> from darrm_torch import NoiseFreeMajority
    >>> teachers = [PrivacyGuarantee(epsilon=0.5)] * 3
    >>> print(total_privacy(teachers=teachers, overlap=1, mechanism=NoiseFreeMajority(), labels=9, delta=0.0))
    9 labels together: (0.5, 0)-DP for adding or removing one record, by publishing
      the teachers.
    ...
    """

    epsilon: float
    delta: float
    labels: int
    route: PrivacyRoute
    routes: tuple[PrivacyRoute, ...]
    assumptions: tuple[str, ...]
    unit: ProtectedUnit = RECORD

    @property
    def guarantee(self) -> PrivacyGuarantee:
        """The total as a single guarantee."""
        return PrivacyGuarantee(epsilon=self.epsilon, delta=self.delta)

    def to_dict(self) -> dict[str, Any]:
        """All of it, ready for JSON.

        An infinite epsilon is written as None. A route whose epsilon is None does not apply. If no route applies, the
        ``epsilon`` and the ``route`` of the total are None.
        """

        def finite(epsilon: float) -> float | None:
            return epsilon if math.isfinite(epsilon) else None

        return {
            "epsilon": finite(self.epsilon),
            "delta": self.delta,
            "labels": self.labels,
            "protects": str(self.unit),
            "route": self.route.name if math.isfinite(self.epsilon) else None,
            "routes": [
                {
                    "key": route.key,
                    "name": route.name,
                    "epsilon": finite(route.epsilon),
                    "applies": route.applies and math.isfinite(route.epsilon),
                    "explanation": route.explanation
                    + " No finite epsilon is proven at this delta." * (route.applies and math.isinf(route.epsilon)),
                }
                for route in self.routes
            ],
            "assumptions": list(self.assumptions),
        }

    def __repr__(self) -> str:
        numbers = f"epsilon={self.epsilon!r}, delta={self.delta!r}, labels={self.labels!r}"
        return f"TotalPrivacy({numbers}, route={self.route.name!r})"

    def __str__(self) -> str:
        what = "1 label" if self.labels == 1 else f"{self.labels} labels together"
        cost = f"({format_bound(self.epsilon)}, {format_bound(self.delta, 3)})-DP for {self.unit}"
        lines = [f"{what}: {cost}, by {self.route.name}."]
        for route in self.routes:
            value = format_bound(route.epsilon) if route.applies else "does not apply"
            lines.append(f"- {route.name}: {value}. {route.explanation}")
        return "\n".join(map(wrapped, [*lines, "Assumptions:", *(f"- {one}" for one in self.assumptions)]))


@checked
def total_privacy(
    *,
    teachers: Sequence[PrivacyProfile | PrivacyGuarantee],
    overlap: int | None = None,
    mechanism: PricedMechanism,
    labels: int,
    votes: Literal["fixed", "fresh"] = "fixed",
    delta: float,
    neighbours: Neighbours = "add/remove",
    allocation: RandomAllocation | None = None,
    validation: PrivateValidation | None = None,
) -> TotalPrivacy:
    """Bound the privacy loss of ``labels`` labels together: the smallest bound that is proven for this situation.

    Args:
        teachers: one guarantee or profile for each of the K teachers. It covers everything that the teacher can
            release: a trained model (``votes="fixed"``), or one round of votes (``votes="fresh"``). Several guarantees
            that hold at once for one teacher are one profile: :meth:`PrivacyProfile.from_guarantee`.
        overlap: r, the number of teachers that one record, or unit (:meth:`PrivacyProfile.for_unit`), can affect;
            ``None``: all of them.
        mechanism: turns votes into labels. If it has a jury, the labels cost what the teachers on it do.
        labels: Q, the number of released labels. Each input may depend on the labels before.
        votes: "fixed": the same trained teachers vote on every input. "fresh": each label has its own votes, from
            retrained teachers or otherwise privatized with independent randomness.
        delta: the delta of the total.
        neighbours: the neighbouring data sets that the total is about, and for which ``overlap`` holds. In equal slices
            of a list it holds for replacing one record only; each teacher then costs more
            (:meth:`PrivacyProfile.for_replacement`). Profiles for a replacement need "replace-one".
        allocation: how records were allocated to the teachers' shards, if each drew its shards at random and in
            secret. It adds bounds; those that need no secrecy stay in the result.
        validation: what is released about units that no teacher is trained on; ``None``: that of the allocation.
            The total covers it.

    Raises:
        InvalidArgument: ``teachers`` is not a sequence of guarantees and profiles, an argument is out of range, the
            teachers protect unlike units, the mechanism's jury is larger than K, or ``allocation`` is for another
            number of teachers, another ``overlap``, another unit or other ``neighbours``; or a ``validation`` where
            the allocation holds nothing out, where records are replaced or where a unit has several records.

    >>> from darrm_torch import NoiseFreeMajority
    >>> teacher = PrivacyProfile.from_dp_sgd([(12.0, 1 / 35, 175)])
    >>> total = total_privacy(
    ...     teachers=[teacher] * 11, overlap=1, mechanism=NoiseFreeMajority(), labels=1000, delta=1e-4
    ... )
    >>> round(total.epsilon, 4), total.route.name
    (0.0751, 'publishing the teachers')
    """
    profiles = as_profiles("teachers", teachers)
    if neighbours == "replace-one":
        replaced = {(profile, profile.unit): profile.for_replacement() for profile in profiles}
        profiles = tuple(replace(replaced[one, one.unit], reading=one.reading) for one in profiles)
    unit = common_unit(profile.unit for profile in profiles)
    if unit.neighbours != neighbours:
        raise InvalidArgument("neighbours", f'"{unit.neighbours}", as the teachers promise', neighbours)
    if allocation is not None:
        if neighbours != "add/remove":
            raise InvalidArgument("neighbours", '"add/remove" with an allocation', neighbours)
        if allocation.teachers != len(profiles):
            raise InvalidArgument("allocation", f"an allocation to {len(profiles)} teachers", allocation)
        if overlap not in (None, allocation.overlap):
            raise InvalidArgument("overlap", f"{allocation.overlap}, as in the allocation", overlap)
        overlap = allocation.overlap
        if unit.name not in ("record", allocation.unit):
            raise InvalidArgument("allocation", f"one in which each {unit.name} draws", f"unit={allocation.unit!r}")
        unit = replace(unit, name=allocation.unit)
    if allocation is not None and validation is None:
        validation = allocation.validation
    elif allocation is not None:
        allocation = replace(allocation, validation=validation)
    if validation is not None and (neighbours != "add/remove" or unit.records > 1):
        cure = "Replacing a unit has another price (theory, section 17); the rows of one unit are drawn separately."
        raise InvalidArgument("validation", "None unless units of one record are added or removed", str(unit), cure)
    affected = len(profiles) if overlap is None else check_integer("overlap", overlap, low=1, high=len(profiles))
    if not hasattr(mechanism, "self_bounding_allowance"):
        raise InvalidArgument("mechanism", "a Mechanism, such as DaRRM(noise)", mechanism)
    jury = getattr(mechanism, "jury", None)
    if jury is not None:
        jury = check_integer("the mechanism's jury", jury, low=1, high=len(profiles))
    labels = check_integer("labels", labels, low=1)
    delta = check_number("delta", delta, low=0.0, high=1.0)
    release = Release(profiles, affected, mechanism, labels, votes == "fresh", delta, allocation, unit, validation)
    keys = [key for key in ROUTES if allocation is not None or not key.startswith("allocation")]
    bounds = [(key, *bound_of(key, release)) for key in keys]
    routes = tuple(
        PrivacyRoute(
            key=key, epsilon=math.inf if epsilon is None else epsilon, explanation=why, applies=epsilon is not None
        )
        for key, epsilon, why in bounds
    )
    best = min((route for route in routes if route.applies), key=lambda route: route.epsilon)
    return TotalPrivacy(
        epsilon=best.epsilon,
        delta=delta,
        labels=labels,
        route=best,
        routes=routes,
        assumptions=assumptions_of(
            profiles,
            affected=affected,
            fresh=release.fresh,
            unit=unit,
            allocation=allocation,
            secure=getattr(mechanism, "secure", True),
            jury=jury is not None,
            validation=validation,
        ),
        unit=unit,
    )
