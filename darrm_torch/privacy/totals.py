"""What many labels cost together, by every route that is proven, and under which assumptions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from typing import Any, Literal, Protocol

from ..errors import InvalidArgument, check_integer, check_number
from .composition import general_composition
from .guarantees import PrivacyGuarantee, format_bound, round_up
from .profiles import PrivacyProfile

__all__ = ["PrivacyRoute", "TotalPrivacy", "as_if_redrawn", "total_privacy"]


class PricedMechanism(Protocol):
    """What :func:`total_privacy` asks of a mechanism (see :mod:`darrm_torch.mechanisms`)."""

    @property
    def certificate(self) -> Any:
        """The certificate of its noise function, or None."""

    def self_bounding_allowance(self, *, teachers: int, overlap: int) -> float:
        """The m of theory section 9, ``math.inf`` when there is none."""

    def guarantee(self, *, labels: int, delta: float, overlap: int) -> PrivacyGuarantee | PrivacyProfile | None:
        """What its own coins promise for fixed votes, None if nothing."""


RouteKey = Literal["publishing", "self-bounding", "certified", "own-randomness", "private-votes"]
_NAMES: dict[RouteKey, str] = {
    "publishing": "publishing the teachers",
    "self-bounding": "self-bounding noise",
    "certified": "certified label",
    "own-randomness": "the mechanism's own randomness",
    "private-votes": "private votes, private randomness",
}


@dataclass(frozen=True, kw_only=True)
class PrivacyRoute:
    """One way of bounding a total.

    Attributes:
        key: which argument it is, for programs: see :attr:`name` for people.
        epsilon: the bound at the delta asked for; ``math.inf`` where it proves nothing at that delta.
        explanation: what the bound says, or why it does not apply.
        applies: whether it holds in this situation; with an infinite ``epsilon`` it holds and says nothing.
    """

    key: RouteKey
    epsilon: float
    explanation: str
    applies: bool = True

    @property
    def name(self) -> str:
        """What reports call it."""
        return _NAMES[self.key]


@dataclass(frozen=True, kw_only=True)
class TotalPrivacy:
    """The proven guarantee of all labels together, and how it is proven.

    Attributes:
        epsilon: the smallest of the routes that apply.
        delta: the delta that was asked for.
        labels: how many labels are covered.
        route: the route that gives ``epsilon``.
        routes: all of them, the ones that do not apply too.
        assumptions: what has to be true outside the library, in words.
    """

    epsilon: float
    delta: float
    labels: int
    route: PrivacyRoute
    routes: tuple[PrivacyRoute, ...]
    assumptions: tuple[str, ...]

    @property
    def guarantee(self) -> PrivacyGuarantee:
        """The total as one guarantee."""
        return PrivacyGuarantee(epsilon=self.epsilon, delta=self.delta)

    def to_dict(self) -> dict[str, Any]:
        """All of it, ready for JSON.

        An epsilon is None where nothing is proven at this delta: of a route that does not apply, of one that would be
        infinite, which counts as one that does not apply here, and of the whole, whose route is then None too.
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
                    "key": r.key,
                    "name": r.name,
                    "epsilon": finite(r.epsilon),
                    "applies": r.applies and math.isfinite(r.epsilon),
                    "explanation": r.explanation
                    + (" That is no bound at this delta." if r.applies and r.epsilon == math.inf else ""),
                }
                for r in self.routes
            ],
            "assumptions": list(self.assumptions),
        }

    def __str__(self) -> str:
        what = "1 label" if self.labels == 1 else f"{self.labels} labels together"
        lines = [f"{what}: ({format_bound(self.epsilon)}, {format_bound(self.delta, 3)})-DP, by {self.route.name}."]
        for r in self.routes:
            value = format_bound(r.epsilon) if r.applies else "does not apply"
            lines.append(f"  {r.name}: {value}. {r.explanation}")
        lines.append("Assumptions:")
        lines += [f"  - {assumption}" for assumption in self.assumptions]
        return "\n".join(lines)


def total_privacy(
    *,
    teachers: Sequence[PrivacyProfile | PrivacyGuarantee],
    overlap: int | None = None,
    mechanism: PricedMechanism,
    labels: int,
    votes: Literal["fixed", "fresh"] = "fixed",
    delta: float,
) -> TotalPrivacy:
    """What ``labels`` labels cost together: the best of the bounds that are proven for this situation.

    Args:
        teachers: what each of the K teachers promises for everything it can release: a trained model
            (``votes="fixed"``), or one round of votes (``votes="fresh"``).
        overlap: r, how many teachers one record can touch; ``None``: all.
        mechanism: how labels are made of votes.
        labels: Q, how many labels are released, each asked for in the light of the ones before.
        votes: "fixed": the same trained teachers answer everything. "fresh": each label has votes of its own, from
            teachers re-trained, or otherwise private anew, with independent randomness.
        delta: the delta at which the total is wanted.

    Raises:
        InvalidArgument: an argument out of range, or of the wrong kind.
    """
    profiles = [_profile(teacher) for teacher in teachers]
    if not profiles:
        raise InvalidArgument("teachers", "one or more privacy profiles", teachers)
    count = len(profiles)
    touched = count if overlap is None else check_integer("overlap", overlap, low=1, high=count)
    labels = check_integer("labels", labels, low=1)
    delta = check_number("delta", delta, low=0.0, high=1.0)
    if votes not in ("fixed", "fresh"):
        raise InvalidArgument("votes", '"fixed" or "fresh"', votes)
    rounds = labels if votes == "fresh" else 1
    routes = (
        _publishing(profiles, touched, rounds, delta),
        _self_bounding(profiles, touched, mechanism, labels, votes, delta),
        _certified(profiles, touched, mechanism, labels, votes, delta),
        _own_randomness(touched, mechanism, labels, delta),
        _private_votes(profiles, touched, mechanism, labels, votes, delta),
    )
    best = min((route for route in routes if route.applies), key=lambda route: route.epsilon)
    predictable = () if getattr(mechanism, "secure", True) else (_PREDICTABLE,)
    return TotalPrivacy(
        epsilon=best.epsilon,
        delta=delta,
        labels=labels,
        route=best,
        routes=routes,
        assumptions=assumptions(
            teachers=count,
            overlap=touched,
            votes=votes,
            private=any(profile.is_private for profile in profiles),
            unseen=sum(getattr(profile.reading, "digest", "") is None for profile in profiles),
        )
        + predictable,
    )


def _profile(teacher: PrivacyProfile | PrivacyGuarantee) -> PrivacyProfile:
    if isinstance(teacher, PrivacyGuarantee):
        return PrivacyProfile.from_guarantee(teacher)
    if not isinstance(teacher, PrivacyProfile):
        raise InvalidArgument("teachers", "privacy profiles or guarantees", teacher)
    return teacher


def _publishing(profiles: list[PrivacyProfile], touched: int, rounds: int, delta: float) -> PrivacyRoute:
    """All labels are computed from the teachers by coins that do not depend on the data: post-processing."""
    bounds = [reduce(PrivacyProfile.compose, profiles).compose(rounds).epsilon(delta)]
    if touched < len(profiles):
        bounds.append(PrivacyProfile.weakest(profiles).compose(touched * rounds).epsilon(delta))
    if touched == 1:
        bounds.append(max(profile.compose(rounds).epsilon(delta) for profile in set(profiles)))
    which = "the one teacher" if touched == 1 else f"the {touched} teachers"
    grows = "it does not grow with the number of labels" if rounds == 1 else f"in each of {rounds} rounds"
    return PrivacyRoute(
        key="publishing",
        epsilon=min(bounds),
        explanation=f"No more is revealed than by publishing {which} that one record can touch; {grows}.",
    )


def _self_bounding(
    profiles: list[PrivacyProfile], touched: int, mechanism: PricedMechanism, labels: int, votes: str, delta: float
) -> PrivacyRoute:
    """Theory, section 9: (Q m epsilon, Q m Delta), at the point of the teachers' profile that suits ``delta``.

    Labels of fresh votes compose better than that: one label is (m epsilon, m Delta)-DP for every point at once.
    """
    key: RouteKey = "self-bounding"
    allowance = mechanism.self_bounding_allowance(teachers=len(profiles), overlap=touched)
    if not math.isfinite(allowance):
        return _excluded(key, "The noise is not self-bounding: labels of the same teachers do not add up.")
    times = labels * Fraction(allowance)
    share = float(_decimal(delta) / times)
    if _decimal(share) * times > _decimal(delta):
        share = math.nextafter(share, 0.0)
    epsilon = max(profile.epsilon(min(share, 1.0)) for profile in set(profiles))
    total = round_up(times * Fraction(epsilon)) if math.isfinite(epsilon) else math.inf
    if votes == "fresh" and labels > 1:
        points = PrivacyProfile.weakest(profiles).guarantees()
        label = [
            PrivacyGuarantee(
                epsilon=round_up(Fraction(allowance) * Fraction(point.epsilon)),
                delta=min(1.0, round_up(Fraction(allowance) * Fraction(point.delta))),
            )
            for point in points
            if math.isfinite(point.epsilon)
        ]
        if label:
            total = min(total, PrivacyProfile.from_guarantee(*label).compose(labels).epsilon(delta))
    many = format_bound(allowance)
    whose = "one teacher does" if many == "1" else f"{many} teachers do"
    return PrivacyRoute(
        key=key,
        epsilon=total,
        explanation=f"A label reveals at most what {whose}, and labels add up: "
        f"{labels} x {many} times ({format_bound(epsilon)}, {format_bound(share, 3)}).",
    )


def _decimal(number: float) -> Fraction:
    """The number as it is written, so that six times 0.000001 is 0.000006."""
    return Fraction(repr(number))


def _certified(
    profiles: list[PrivacyProfile], touched: int, mechanism: PricedMechanism, labels: int, votes: str, delta: float
) -> PrivacyRoute:
    key: RouteKey = "certified"
    certificate = mechanism.certificate
    target = getattr(certificate, "target", None)
    if target is None:
        return _excluded(key, "The mechanism has no certificate for a single label.")
    if certificate.teachers != len(profiles):
        return _excluded(key, f"The certificate is for {certificate.teachers} teachers, not {len(profiles)}.")
    if certificate.overlap < touched:
        return _excluded(
            key, f"The certificate is for records that touch {certificate.overlap} teachers, not {touched}."
        )
    weakest = PrivacyProfile.weakest(profiles)
    for point in certificate.teacher:
        if math.isfinite(point.epsilon) and weakest.delta(point.epsilon) > point.delta < max(
            profile.delta(point.epsilon) for profile in set(profiles)
        ):
            return _excluded(key, f"The certificate assumes teachers that are {point}; not all of these are.")
    if votes == "fixed" and labels > 1:
        return _excluded(
            key,
            f"One label is {target}, but labels of the same teachers share their training and do not add up.",
        )
    return PrivacyRoute(
        key=key,
        epsilon=PrivacyProfile.from_guarantee(target).compose(labels).epsilon(delta),
        explanation="The noise was checked against all teachers with these promises"
        + (f": one label is {target}, and {labels} labels of independent votes compose." if labels > 1 else "."),
    )


def _own_randomness(touched: int, mechanism: PricedMechanism, labels: int, delta: float) -> PrivacyRoute:
    key: RouteKey = "own-randomness"
    promise = mechanism.guarantee(labels=labels, delta=delta, overlap=touched)
    if promise is None:
        return _excluded(key, "Its coins protect nothing by themselves.")
    what = "a label" if labels == 1 else f"{labels} labels"
    proof = getattr(mechanism, "proof", None)  # what stands in for noise before it is made has none
    return PrivacyRoute(
        key=key,
        epsilon=_profile(promise).epsilon(delta),
        explanation=f"The noise on the votes protects {what} whatever the teachers are"
        + (f", {proof(labels=labels, delta=delta, overlap=touched)}." if proof else "."),
    )


def _private_votes(
    profiles: list[PrivacyProfile], touched: int, mechanism: PricedMechanism, labels: int, votes: str, delta: float
) -> PrivacyRoute:
    """Private teachers seen through private coins: less than either reveals.

    Theorem. Let the chance G(z) of any set of transcripts be (eta, d)-DP in each teacher's model z_k alone: G(z) <=
    e^eta G(z') + d where only z_k differs (the coins of Q labels, fixed votes). Let r teachers change, each (eps,
    Delta)-DP. With tanh(T / 2) = tanh(eps / 2) tanh(eta / 2) and f = (e^eta - 1 + 2 d) / (e^eta + 1) the labels are
    (r T, r Delta f)-DP together if d = 0, and (T, d + Delta f)-DP if r = 1.

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
    key: RouteKey = "private-votes"
    if not all(profile.is_private for profile in profiles):
        return _excluded(key, "The teachers promise nothing that the coins could add to.")
    rounds, asked = (labels, 1) if votes == "fresh" else (1, labels)
    total = math.inf
    for spent in (0.0, delta / 2) if touched == 1 and rounds == 1 and delta else (0.0,):
        promise = mechanism.guarantee(labels=asked, delta=spent, overlap=1)
        eta = math.inf if promise is None else _profile(promise).epsilon(spent)
        if math.isinf(eta):
            continue
        falls = (math.tanh(eta / 2) + 2 * spent / (math.exp(min(eta, 700.0)) + 1)) * (1 + 2.0**-46)
        if rounds > 1:
            label = [
                PrivacyGuarantee(
                    epsilon=touched * _seen_through(point.epsilon, eta) * (1 + 2.0**-50),
                    delta=min(1.0, touched * point.delta * falls * (1 + 2.0**-50)),
                )
                for point in PrivacyProfile.weakest(profiles).guarantees()
            ]
            total = min(total, PrivacyProfile.from_guarantee(*label).compose(rounds).epsilon(delta))
        else:
            share = (delta - spent) / max(touched * falls, 5e-324) * (1 - 2.0**-46)
            epsilon = max(profile.epsilon(min(share, 1.0)) for profile in set(profiles))
            total = min(total, touched * _seen_through(epsilon, eta) * (1 + 2.0**-50))
    if math.isinf(total):
        return _excluded(key, "Its coins protect nothing by themselves.")
    what = "the one teacher" if touched == 1 else f"each of the {touched} teachers"
    return PrivacyRoute(
        key=key,
        epsilon=total,
        explanation=f"The noise on the votes hides {what} that one record can touch, and their training hides the "
        "record.",
    )


def _seen_through(epsilon: float, eta: float) -> float:
    """T with tanh(T / 2) = tanh(epsilon / 2) tanh(eta / 2), rounded up; at most the smaller of the two."""
    low, high = sorted((epsilon, eta))
    product = math.nextafter(math.tanh(low / 2) * math.tanh(high / 2), 1.0)  # it may be too little for a float
    if product < 0.9:
        exact = 2 * math.atanh(product)
    else:  # e^T = (e^low + e^-high) / (1 + e^(low - high))
        exact = low + math.log1p(math.exp(-low - high)) - math.log1p(math.exp(low - high)) if low < math.inf else low
    return min(low, exact * (1 + 2.0**-46))


def _excluded(key: RouteKey, why: str) -> PrivacyRoute:
    return PrivacyRoute(key=key, epsilon=math.inf, explanation=why, applies=False)


def as_if_redrawn(label: PrivacyGuarantee, labels: int, *, slack: float) -> PrivacyGuarantee:
    """The paper's total: general composition of the per-label guarantee, as if teachers were re-drawn for every label.

    No guarantee when the same trained teachers answer: for K = 3 and K = 11 the true loss of two labels exceeds
    it. :func:`total_privacy` never uses it; it is here to reproduce the paper's tables.

    Args:
        label: (epsilon, delta) of one label.
        labels: Q.
        slack: the paper's delta'.

    >>> total = as_if_redrawn(PrivacyGuarantee(epsilon=0.2676, delta=3e-4), 100, slack=1e-4)
    >>> round(total.epsilon, 3), round(total.delta, 2)
    (15.044, 0.03)
    """
    return general_composition(label, labels, slack=slack)


_PREDICTABLE = "Coins: nobody knows the insecure_seed that labels are drawn with; whoever does can predict the coins."
_OF_TRAINING = (
    "Training: each teacher was trained as its accountant recorded it, on batches drawn by Poisson sampling.",
    "Independence: no two teachers share noise or batches: no random seed, generator or data loader.",
)


def assumptions(
    *,
    teachers: int,
    overlap: int,
    votes: Literal["fixed", "fresh"] = "fixed",
    private: bool = True,
    unseen: int = 0,
) -> tuple[str, ...]:
    """What a guarantee about labels rests on, outside the library, in words for whoever answers for the data.

    Without ``private`` teachers it does not rest on how they were trained.
    """
    touched = (
        f"all {teachers} teachers (nothing is assumed)"
        if overlap == teachers
        else (f"at most {overlap} of the {teachers} teachers; this is a promise of whoever split the data")
    )
    return (
        "Neighbours: two data sets of which one has one record more. Whoever has several records is protected less.",
        f"Overlap: one record influences {touched}.",
        *(_OF_TRAINING if private else ()),
        *((f"Weights: {unseen} teachers, read without their weights, were not trained further.",) if unseen else ()),
        "Votes: the same trained teachers answer every question."
        if votes == "fixed"
        else "Votes: every label has votes of its own, made private anew.",
        "Secrecy: only labels are given out; no votes, counts or teachers, and no accuracy measured on secret data.",
    )
