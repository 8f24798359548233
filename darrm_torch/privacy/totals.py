"""The cost of many labels together: every proven bound that applies, the smallest of them, and its assumptions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import reduce
from typing import Any, Literal

from ..errors import InvalidArgument, check_integer, check_number
from .allocation import RandomAllocation
from .allocation_prices import allocated_epsilon, jury_epsilon, self_bounding_epsilon
from .assumptions import Neighbours, assumptions_of
from .composition import seen_through
from .guarantees import PrivacyGuarantee, format_bound, round_up
from .profiles import PrivacyProfile, as_profile, as_profiles
from .release import PricedMechanism, Release
from .unlike import worst_epsilon

__all__ = ["PrivacyRoute", "RouteKey", "TotalPrivacy", "total_privacy"]

RouteKey = Literal[
    "publishing",
    "self-bounding",
    "certified",
    "own-randomness",
    "private-votes",
    "allocation",
    "allocation-self-bounding",
]


@dataclass(frozen=True, kw_only=True)
class PrivacyRoute:
    """One bound on the total.

    Attributes:
        key: identifies the bound: "publishing", "self-bounding", "certified", "own-randomness", "private-votes",
            "allocation" or "allocation-self-bounding". Compare this, never :attr:`name`.
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
        return _ROUTES[self.key][0]


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
    """

    epsilon: float
    delta: float
    labels: int
    route: PrivacyRoute
    routes: tuple[PrivacyRoute, ...]
    assumptions: tuple[str, ...]

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
        lines = [f"{what}: ({format_bound(self.epsilon)}, {format_bound(self.delta, 3)})-DP, by {self.route.name}."]
        for route in self.routes:
            value = format_bound(route.epsilon) if route.applies else "does not apply"
            lines.append(f"  {route.name}: {value}. {route.explanation}")
        return "\n".join([*lines, "Assumptions:", *(f"  - {assumption}" for assumption in self.assumptions)])


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
) -> TotalPrivacy:
    """Bound the privacy loss of ``labels`` labels together: the smallest bound that is proven for this situation.

    Args:
        teachers: one guarantee or profile for each of the K teachers. It covers everything that the teacher can
            release: a trained model (``votes="fixed"``), or one round of votes (``votes="fresh"``). Several guarantees
            that hold at once for one teacher are one profile: :meth:`PrivacyProfile.from_guarantee`.
        overlap: r, the number of teachers that one record can affect; ``None``: all of them.
        mechanism: turns votes into labels. If it has a jury, the labels cost what the teachers on it do.
        labels: Q, the number of released labels. Each input may depend on the labels before.
        votes: "fixed": the same trained teachers vote on every input. "fresh": each label has its own votes, from
            retrained teachers or otherwise privatized with independent randomness.
        delta: the delta of the total.
        neighbours: the neighbouring data sets that the total is about, and for which ``overlap`` holds. In equal slices
            of a list it holds for replacing one record only; each teacher then costs more
            (:meth:`PrivacyProfile.for_replacement`).
        allocation: how records were allocated to the teachers' shards, if each drew its shards at random and in
            secret. It adds bounds; those that need no secrecy stay in the result.

    Raises:
        InvalidArgument: ``teachers`` is not a sequence of guarantees and profiles, an argument is out of range, the
            mechanism's jury is larger than K, or ``allocation`` is for another number of teachers, another ``overlap``
            or other ``neighbours``.

    >>> from darrm_torch import NoiseFreeMajority
    >>> teacher = PrivacyProfile.from_dp_sgd([(12.0, 1 / 35, 175)])
    >>> total = total_privacy(
    ...     teachers=[teacher] * 11, overlap=1, mechanism=NoiseFreeMajority(), labels=1000, delta=1e-4
    ... )
    >>> round(total.epsilon, 4), total.route.name
    (0.0751, 'publishing the teachers')
    """
    profiles = as_profiles("teachers", teachers)
    if not isinstance(neighbours, str) or neighbours not in ("add/remove", "replace-one"):
        raise InvalidArgument("neighbours", '"add/remove" or "replace-one"', neighbours)
    if neighbours == "replace-one":
        replaced = {profile: profile.for_replacement() for profile in profiles}
        profiles = tuple(replace(replaced[profile], reading=profile.reading) for profile in profiles)
    if allocation is not None and not isinstance(allocation, RandomAllocation):
        raise InvalidArgument("allocation", "a RandomAllocation or None", allocation)
    if allocation is not None:
        if neighbours != "add/remove":
            raise InvalidArgument("neighbours", '"add/remove" with an allocation', neighbours)
        if allocation.teachers != len(profiles):
            raise InvalidArgument("allocation", f"an allocation to {len(profiles)} teachers", allocation)
        if overlap not in (None, allocation.overlap):
            raise InvalidArgument("overlap", f"{allocation.overlap}, as in the allocation", overlap)
        overlap = allocation.overlap
    affected = len(profiles) if overlap is None else check_integer("overlap", overlap, low=1, high=len(profiles))
    if not hasattr(mechanism, "self_bounding_allowance"):
        raise InvalidArgument("mechanism", "a Mechanism, such as DaRRM(noise)", mechanism)
    jury = getattr(mechanism, "jury", None)
    if jury is not None:
        jury = check_integer("the mechanism's jury", jury, low=1, high=len(profiles))
    labels = check_integer("labels", labels, low=1)
    delta = check_number("delta", delta, low=0.0, high=1.0)
    if not isinstance(votes, str) or votes not in ("fixed", "fresh"):
        raise InvalidArgument("votes", '"fixed" or "fresh"', votes)
    release = Release(profiles, affected, mechanism, labels, votes == "fresh", delta, allocation)
    keys = [key for key in _ROUTES if allocation is not None or not key.startswith("allocation")]
    routes = tuple(_route(key, *_ROUTES[key][1](release)) for key in keys)
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
            neighbours=neighbours,
            allocation=allocation,
            secure=getattr(mechanism, "secure", True),
            jury=jury is not None,
        ),
    )


# --- the routes ---------------------------------------------------------------------------------------------------


_Bound = tuple[float | None, str]  # epsilon, or None where the argument does not apply; and the explanation


def _route(key: RouteKey, epsilon: float | None, explanation: str) -> PrivacyRoute:
    return PrivacyRoute(
        key=key, epsilon=math.inf if epsilon is None else epsilon, explanation=explanation, applies=epsilon is not None
    )


def _publishing(release: Release) -> _Bound:
    """Labels are computed from the teachers with randomness that does not depend on the data: post-processing."""
    profiles, affected, rounds, delta = release.profiles, release.affected, release.rounds, release.delta
    bounds = [reduce(PrivacyProfile.compose, profiles).compose(rounds).epsilon(delta)]
    if affected < len(profiles):
        bounds.append(worst_epsilon(profiles, affected, rounds, delta))
    often = f", in each of {rounds} rounds." if rounds > 1 else ". The bound does not grow with the number of labels."
    voters = release.voters
    if voters is not None:
        weakest = PrivacyProfile.weakest(profiles).compose(rounds)
        read = jury_epsilon(weakest, delta, teachers=len(profiles), overlap=affected, voters=voters)
        if read < min(bounds):
            return read, (
                f"The labels read {release.readers}, of {len(profiles)} teachers, and reveal no more than publishing "
                f"those that are read. One record can affect {affected} of the {len(profiles)}."
            )
    return min(bounds), (
        f"The labels reveal no more than publishing {release.affected_teachers} that one record can affect{often}"
    )


def _self_bounding(release: Release) -> _Bound:
    """Theory, section 9: (Q m epsilon, Q m Delta), at the point of the teachers' profile that suits ``delta``.

    Labels of fresh votes compose better than that: one label is (m epsilon, m Delta)-DP for every point at once.
    """
    labels, delta = release.labels, release.delta
    m = release.mechanism.self_bounding_allowance(teachers=len(release.profiles), overlap=release.affected)
    if not math.isfinite(m):
        return None, "The noise is not self-bounding, so the costs of labels from the same teachers do not add up."
    if m == 0:
        return 0.0, "The labels do not depend on the votes."
    times = labels * Fraction(m)
    share = float(_decimal(delta) / times)
    if _decimal(share) * times > _decimal(delta):
        share = math.nextafter(share, 0.0)
    epsilon = release.teacher_epsilon(share)
    total = round_up(times * Fraction(epsilon)) if math.isfinite(epsilon) else math.inf
    factor = format_bound(m)
    cost = "no more than one teacher" if factor == "1" else f"at most {factor} times as much as one teacher"
    how = f"the costs of labels add up: {labels} x {factor} x ({format_bound(epsilon)}, {format_bound(share, 3)})"
    if release.fresh and labels > 1:
        points = [point for point in PrivacyProfile.weakest(release.profiles).guarantees() if point.epsilon < math.inf]
        label = [
            PrivacyGuarantee(
                epsilon=round_up(Fraction(m) * Fraction(point.epsilon)),
                delta=min(1.0, round_up(Fraction(m) * Fraction(point.delta))),
            )
            for point in points
        ]
        composed = PrivacyProfile.from_guarantee(*label).compose(labels).epsilon(delta) if label else math.inf
        if composed < total:
            total, how = composed, f"the {labels} labels come from independent votes, so they compose"
    return total, f"A label costs {cost}, and {how}."


def _decimal(number: float) -> Fraction:
    """The number as it is written, so that six times 0.000001 is 0.000006."""
    return Fraction(repr(number))


def _certified(release: Release) -> _Bound:
    certificate = release.mechanism.certificate
    target = getattr(certificate, "target", None)
    if target is None:
        return None, "The mechanism has no certificate for a single label."
    if certificate.teachers != len(release.profiles):
        return None, f"The certificate is for {certificate.teachers} teachers, not {len(release.profiles)}."
    if certificate.overlap < release.affected:
        return None, (
            f"The certificate assumes that one record affects at most {certificate.overlap} teachers; here it can "
            f"affect {release.affected}."
        )
    for point in certificate.teacher:
        if math.isfinite(point.epsilon) and release.teacher_delta(point.epsilon) > point.delta:
            return None, f"The certificate assumes that every teacher is {point}; that is not proven for all of them."
    if release.labels > 1 and not release.fresh:
        return None, (
            f"One label is {target}, but labels of the same teachers share the randomness of their training, so these "
            "guarantees do not compose."
        )
    several = f" One label is {target}, and the {release.labels} labels come from independent votes, so they compose."
    return PrivacyProfile.from_guarantee(target).compose(release.labels).epsilon(release.delta), (
        "The noise is certified against all teachers with these guarantees." + several * (release.labels > 1)
    )


def _own_randomness(release: Release) -> _Bound:
    mechanism = release.mechanism
    asked: dict[str, Any] = {"labels": release.labels, "delta": release.delta, "overlap": release.affected}
    promise = mechanism.guarantee(**asked)
    if promise is None:
        return None, "The mechanism's randomness alone protects nothing."
    what = "one label" if release.labels == 1 else f"{release.labels} labels"
    proof = getattr(mechanism, "proof", None)  # the planner's stand-ins for noise not yet computed have none
    return as_profile("guarantee", promise).epsilon(release.delta), (
        f"However the teachers were trained, the mechanism's randomness protects {what}"
        + (f" {proof(**asked)}." if proof else ".")
    )


def _private_votes(release: Release) -> _Bound:
    """Private teachers seen through a mechanism with randomness of its own: less than either reveals.

    Theorem. Let the chance G(z) of any set of transcripts be (eta, d)-DP in each teacher's model z_k alone: G(z) <=
    e^eta G(z') + d where only z_k differs (the mechanism's randomness over Q labels, fixed votes). Let r teachers
    change, each (eps, Delta)-DP. With tanh(T / 2) = tanh(eps / 2) tanh(eta / 2) and f = (e^eta - 1 + 2 d) / (e^eta + 1)
    the labels are (r T, r Delta f)-DP together if d = 0, and (T, d + Delta f)-DP if r = 1.

    Proof. An (eps, Delta)-DP pair is P = (1 - Delta) M + Delta A and P' = (1 - Delta) M' + Delta B, with M, M' a pair
    that is eps-DP (Kairouz, Oh, Viswanath 2015). First put B for A in every changed teacher. For a set S and its
    complement, x = G(z) and y = G(z') obey x <= e^eta y + d and 1 - y <= e^eta (1 - x) + d; adding them,
    (x - y)(e^eta + 1) <= e^eta - 1 + 2 d. So the chance of S falls by at most Delta f for each teacher. What is left,
    (1 - Delta) M + Delta B against (1 - Delta) M' + Delta B, is an eps-DP pair. Change these one teacher after the
    other, the rest fixed. E_P G - e^T E_P' G is linear in the pair, hence largest at an extreme one: two models of
    chances U = e^eps / (1 + e^eps) and V = 1 - U under P, exchanged under P', where it is

        (U - e^T V) x - (e^T U - V) y  <=  (U - e^T V) (e^eta y + d) - (e^T U - V) y  <=  d,

    as (U - e^T V) e^eta = e^T U - V is what T is defined by, T <= eps, and U <= 1. So each change costs (T, d). QED
    """
    affected, rounds, delta = release.affected, release.rounds, release.delta
    if not all(profile.is_private for profile in release.profiles):
        return None, "At least one teacher has no privacy guarantee."
    total = math.inf
    for spent in (0.0, delta / 2) if affected == 1 and rounds == 1 and delta else (0.0,):
        promise = release.mechanism.guarantee(labels=1 if release.fresh else release.labels, delta=spent, overlap=1)
        eta = math.inf if promise is None else as_profile("guarantee", promise).epsilon(spent)
        if math.isinf(eta):
            continue
        falls = (math.tanh(eta / 2) + 2 * spent / (math.exp(min(eta, 700.0)) + 1)) * (1 + 2.0**-46)
        if rounds > 1:
            label = [
                PrivacyGuarantee(
                    epsilon=affected * seen_through(point.epsilon, eta) * (1 + 2.0**-50),
                    delta=min(1.0, affected * point.delta * falls * (1 + 2.0**-50)),
                )
                for point in PrivacyProfile.weakest(release.profiles).guarantees()
            ]
            total = min(total, PrivacyProfile.from_guarantee(*label).compose(rounds).epsilon(delta))
        else:
            epsilon = release.teacher_epsilon((delta - spent) / max(affected * falls, 5e-324) * (1 - 2.0**-46))
            total = min(total, affected * seen_through(epsilon, eta) * (1 + 2.0**-50))
    if math.isinf(total):
        return None, "The mechanism's randomness does not protect a single vote at a delta that this bound can use."
    return total, (
        f"The mechanism's randomness masks the votes of {release.affected_teachers} that one record can affect, and "
        "private training masks the record."
    )


def _allocated(release: Release) -> _Bound:
    """Theory, section 12; section 13 if not all teachers are read."""
    allocation, voters = release.allocation, release.voters
    assert allocation is not None
    profile = PrivacyProfile.weakest(release.profiles).compose(release.rounds)
    return allocated_epsilon(profile, allocation, release.delta, voters=voters), (
        f"Each {allocation.unit} drew {allocation.overlap} of {allocation.teachers} shards in secret, so nobody knows "
        "which teachers it affects. The bound does not depend on how labels are made"
        + ("." if voters is None else f", only on the teachers that are read: {release.readers}.")
    )


def _allocated_self_bounding(release: Release) -> _Bound:
    """Theory, section 14: the allowance is the one for an overlap of all teachers that are read."""
    allocation, read, voters = release.allocation, len(release.profiles), release.voters
    most = None if voters is None else len(voters) - 1
    assert allocation is not None
    total = release.labels * release.mechanism.self_bounding_allowance(teachers=read, overlap=read) * (1 + 2.0**-50)
    if math.isinf(total) or allocation.weights:
        return None, "The noise is not self-bounding, or the shards were drawn with unequal probabilities."
    if total == 0:
        return 0.0, "The labels do not depend on the votes."
    profile = PrivacyProfile.weakest(release.profiles).compose(release.rounds)
    return self_bounding_epsilon(profile, allocation, release.delta, allowance=total, voters=most), (
        f"Self-bounding labels that cost {format_bound(total)} teachers in all reveal a {allocation.unit} that drew "
        "its shards in secret no more than teachers trained on it with a small probability."
    )


# In the order in which reports list them; of equal bounds the first one counts.
_ROUTES: dict[RouteKey, tuple[str, Callable[[Release], _Bound]]] = {
    "publishing": ("publishing the teachers", _publishing),
    "self-bounding": ("self-bounding noise", _self_bounding),
    "certified": ("certified label", _certified),
    "own-randomness": ("the mechanism's own randomness", _own_randomness),
    "private-votes": ("private votes, private randomness", _private_votes),
    "allocation": ("random allocation", _allocated),
    "allocation-self-bounding": ("self-bounding noise, random allocation", _allocated_self_bounding),
}
