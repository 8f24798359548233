"""The routes of a total: one function for each argument that bounds what many labels cost together.

Each function takes a :class:`Release` and returns an epsilon, or None where its argument does not apply, and says why.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from functools import reduce
from typing import Any, Literal

from .allocation_prices import allocated_epsilon, jury_epsilon, self_bounding_epsilon
from .composition import seen_through
from .guarantees import PrivacyGuarantee, format_bound, multiple, times
from .profiles import PrivacyProfile, as_profile
from .release import Release
from .unlike import worst_epsilon

__all__ = ["ROUTES", "RouteKey", "bound_of"]

RouteKey = Literal[
    "publishing",
    "self-bounding",
    "certified",
    "label-curve",
    "own-randomness",
    "private-votes",
    "allocation",
    "allocation-self-bounding",
]

_Bound = tuple[float | None, str]  # epsilon, or None where the argument does not apply; and the explanation


def _publishing(release: Release) -> _Bound:
    """Labels are computed from the teachers with randomness that does not depend on the data: post-processing."""
    profiles, affected, rounds, delta = release.profiles, release.affected, release.rounds, release.delta
    alike = (profile.compose(count) for profile, count in Counter(profiles).items())
    bounds = [reduce(PrivacyProfile.compose, alike).compose(rounds).epsilon(delta)]
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
                f"those that are read. One {release.unit.name} can affect {affected} of the {len(profiles)}."
            )
    return min(bounds), (f"The labels reveal no more than publishing {release.affected_teachers}{often}")


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
    teachers = labels * Fraction(m)
    share = float(_decimal(delta) / teachers)
    if _decimal(share) * teachers > _decimal(delta):
        share = math.nextafter(share, 0.0)
    epsilon = release.teacher_epsilon(share)
    total = times(teachers, epsilon)
    factor = format_bound(m)
    cost = "no more than one teacher" if factor == "1" else f"at most {factor} times as much as one teacher"
    how = f"the costs of labels add up: {labels} x {factor} x ({format_bound(epsilon)}, {format_bound(share, 3)})"
    if release.fresh and labels > 1:
        label = [multiple(point, Fraction(m)) for point in PrivacyProfile.weakest(release.profiles).guarantees()]
        composed = PrivacyProfile.from_guarantee(*label).compose(labels).epsilon(delta)
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
            f"The certificate assumes that one {release.unit.name} affects at most {certificate.overlap} teachers; "
            f"here it can affect {release.affected}."
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


def _label_curve(release: Release) -> _Bound:
    """The exact curve of one label against all teachers that keep their promises (theory, sections 1 to 3).

    Labels of fresh votes compose along several points of that curve (theory, composition: curves that are chained).
    """
    promise = getattr(release.mechanism, "label_promise", None)  # the planner's stand-ins have none
    if promise is None:
        return None, "No exact search for the worst teachers is known for this mechanism."
    if release.labels > 1 and not release.fresh:
        return None, "The curve of one label says nothing about several labels of the same teachers."
    one = promise(
        teacher=PrivacyProfile.weakest(release.profiles),
        teachers=len(release.profiles),
        overlap=release.affected,
        labels=release.labels,
        delta=release.delta,
    )
    if one is None:
        return None, "The worst teachers were not found: none is known, or the search would take too long."
    several = f" The {release.labels} labels come from independent votes, so they compose along that curve."
    return one.compose(release.labels).epsilon(release.delta), (
        "One label costs this against the worst of all teachers with these promises, found exactly."
        + several * (release.labels > 1)
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
        f"The mechanism's randomness masks the votes of {release.affected_teachers}, and private training masks the "
        f"{release.unit.name}."
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
ROUTES: dict[RouteKey, tuple[str, Callable[[Release], _Bound]]] = {
    "publishing": ("publishing the teachers", _publishing),
    "self-bounding": ("self-bounding noise", _self_bounding),
    "certified": ("certified label", _certified),
    "label-curve": ("the label's own curve", _label_curve),
    "own-randomness": ("the mechanism's own randomness", _own_randomness),
    "private-votes": ("private votes, private randomness", _private_votes),
    "allocation": ("random allocation", _allocated),
    "allocation-self-bounding": ("self-bounding noise, random allocation", _allocated_self_bounding),
}


def bound_of(key: RouteKey, release: Release) -> _Bound:
    """The bound of this route on the labels and, theory, section 17, on what is released about held-out units."""
    if any(profile.together for profile in release.profiles):
        return _together(key, release)
    (epsilon, explanation), validation = ROUTES[key][1](release), release.validation
    if validation is None or epsilon is None:
        return epsilon, explanation
    if validation.reads != "student" and key not in ("publishing", "allocation"):
        return None, "The validation reads the teachers, so every held-out question would count as a label."
    cost = validation.profile.epsilon(release.delta)
    if key != "allocation":
        epsilon = max(epsilon, cost)
    return epsilon, (
        f"{explanation} A {release.unit.name} is trained on or held out, not both, so the validation, which costs "
        f"{format_bound(cost)}, does not add to that."
    )


def _together(key: RouteKey, release: Release) -> _Bound:
    """Teachers that won a tuning depend on each other, and only their joint price is proven (theory, section 19)."""
    joint, *others = set(release.profiles)
    if key != "publishing":
        return (
            None,
            "The teachers won a private tuning, so they depend on each other: only their joint price is proven.",
        )
    tunings = {getattr(profile.reading, "tuning", None) for profile in release.profiles}
    if others or len(tunings) > 1 or release.validation is not None:
        return math.inf, "The total of a tuning covers the teachers of its best run together, and nothing else."
    return joint.compose(release.rounds).epsilon(release.delta), (
        "The teachers won a private tuning. The labels reveal no more than publishing them with their score. The bound "
        "does not grow with the number of labels."
    )
