"""The ways of releasing labels, each as strong as a budget allows: what is proven of it, what it is worth, and why.

Everything here is exact and public: votes follow a prior, totals come from :func:`darrm_torch.total_privacy`, no vote
is looked at. Nothing in this module proves anything about privacy by itself.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np

from ..errors import DarrmError
from ..mechanisms import (
    DaRRM,
    ExponentialMechanism,
    GNMax,
    Mechanism,
    NoiseFreeMajority,
    PermuteAndFlip,
    SelfBoundingPlurality,
)
from ..noise.function import NoiseFunction, self_bounding_noise, subsampling_noise
from ..noise.histograms import votes_within
from ..noise.plurality_priors import PluralityVotes
from ..noise.priors import IndependentVotes, Prior, SharedVotes, majority_lead
from ..noise.program import optimize_noise
from ..noise.regions import Region
from ..privacy.guarantees import PrivacyGuarantee, drop_implied, format_bound
from ..privacy.profiles import PrivacyProfile
from ..privacy.totals import PricedMechanism, TotalPrivacy, total_privacy
from .candidates import SLACK, Promised, expected_agreement, strongest_mechanism

__all__ = ["TRAINING", "Family", "Question", "Strategy", "families", "resting_on_teachers"]

TRAINING = " + training"
"""Ends the names of strategies of which the coins and the teachers' training are counted together."""

_SEARCHED = 1_000_000  # compositions of corners up to which the whole profile is searched with all of its points
_SAMPLED = 350  # histograms of the votes that a table looks up
_WITHOUT = PrivacyGuarantee(epsilon=math.inf)


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked of each strategy; see :func:`darrm_torch.plan`, which checks it."""

    teachers: int
    teacher: PrivacyProfile
    overlap: int
    labels: int
    label_target: PrivacyGuarantee | None
    total_target: PrivacyGuarantee | None
    prior: Prior | tuple[PluralityVotes, ...]
    classes: int = 2

    @property
    def winner(self) -> str:
        """What a label should be: the "majority" of two classes, the "plurality" of more."""
        return "majority" if self.classes == 2 else "plurality"

    def heard(self, most: int) -> list[int]:
        """How many teachers are worth hearing: two say no more than one, and so does any even number on two classes."""
        return [count for count in range(1, most + 1) if count % 2 or (count > 2 and self.classes > 2)]

    @property
    def targets(self) -> list[PrivacyGuarantee]:
        """Those that were asked for: of one label, of all."""
        return [target for _, target in self.priced]

    @property
    def priced(self) -> list[tuple[int, PrivacyGuarantee]]:
        """How many labels must keep what."""
        asked = ((1, self.label_target), (self.labels, self.total_target))
        return [(count, target) for count, target in asked if target is not None]

    @property
    def one_label(self) -> PrivacyGuarantee:
        """What one label must keep: at most what all must."""
        epsilon = min(target.epsilon for target in self.targets)
        return PrivacyGuarantee(epsilon=epsilon, delta=min(target.delta for target in self.targets))


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """One way of releasing labels.

    Attributes:
        name: a short name.
        own_randomness: the mechanism's randomness protects by itself, whatever the teachers are; otherwise privacy
            rests on the teachers' private training, alone or together with the coins.
        mechanism: ready to use, as strong as the target allows; None where there is none.
        voters: how many of the teachers vote.
        label, total: what is proven of one label, and of all; None without a mechanism.
        agreement: the chance under the prior that a label is the majority, or the plurality, of all K teachers' votes
            (where classes tie for it, any of them is); None without a mechanism.
        meets: whether it keeps every target.
        reason: why it wins, loses or fails.
        code: how to make it, in Python (``dt`` is this package); empty without a mechanism.
        standard_error: of ``agreement``; 0 where it is exact, as always for two classes.
    """

    name: str
    own_randomness: bool
    mechanism: Mechanism | None
    voters: int
    label: TotalPrivacy | None
    total: TotalPrivacy | None
    agreement: float | None
    meets: bool
    reason: str
    code: str = ""
    standard_error: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """All of it, ready for JSON."""
        return {
            "strategy": self.name,
            "meets": self.meets,
            "agreement": self.agreement,
            "standard_error": self.standard_error,
            "own_randomness": self.own_randomness,
            "voters": self.voters,
            "mechanism": None if self.mechanism is None else self.mechanism.describe(),
            "label": None if self.label is None else self.label.to_dict(),
            "total": None if self.total is None else self.total.to_dict(),
            "reason": self.reason,
            "code": self.code,
        }


Family = Callable[[Question], "list[Strategy]"]
_Build = Callable[[], "tuple[Mechanism, str, str]"]  # with the reason, and how to make it


def _noise_free(asked: Question) -> list[Strategy]:
    """All teachers, and where they cost too much the largest number that does not; for two classes, odd."""

    def plain(count: int) -> Mechanism:
        return NoiseFreeMajority(classes=asked.classes, teachers=count)

    def released(count: int) -> Strategy:
        code = f"dt.NoiseFreeMajority(classes={asked.classes})"
        row = _judged(asked, f"noise-free {asked.winner}", plain(count), "", code)
        assert row.label is not None
        assert row.total is not None
        touched = min(asked.overlap, count)
        what = "the one teacher" if touched == 1 else f"the {touched} teachers"
        bound = row.label if asked.label_target and row.label.epsilon > asked.label_target.epsilon else row.total
        outright = bound.route.key == "publishing"
        way = f"publishing {what} that a record can touch costs"
        cost = f"{way if outright else f'by {asked.winner} alone the labels cost'} {bound.guarantee}"
        if row.meets:
            why = f"No noise is needed: {cost}, within the target" + outright * (
                ", and no more however many labels are asked"
            )
        elif asked.teacher.is_private:
            why = f"Too dear: {cost}" + " (a hair more than the target)" * (
                format_bound(bound.epsilon) in [format_bound(target.epsilon) for target in asked.targets]
            )
            if math.isinf(bound.epsilon):
                why += ": their deltas alone add up to more. Give the DP-SGD settings, or promises at a smaller delta"
        else:
            why = "The teachers promise nothing, so noise is needed"
        why += "."
        if count == asked.teachers:
            return replace(row, reason=why)
        heard = "one of the teachers votes" if count == 1 else f"{count} of the teachers vote"
        return replace(
            row,
            name=f"noise-free, {count} of {asked.teachers}",
            reason=f"Only {heard}, any, but not chosen by a look at private data. {why}",
            code=f"dt.NoiseFreeMajority(classes={asked.classes}, teachers={count})  # for models[:{count}]",
        )

    whole = released(asked.teachers)
    if whole.meets or not asked.teacher.is_private or asked.teachers == 1:
        return [whole]
    fewer = asked.heard(asked.teachers - 1)
    fitting = bisect_left(fewer, True, key=lambda count: bool(_priced(asked, plain(count))[2]))
    return [whole, released(fewer[max(fitting - 1, 0)])]


def _fixed_point(asked: Question) -> list[Strategy]:
    return _certified(asked, "DaRRM, one point", (_point(asked),))


def _whole_profile(asked: Question) -> list[Strategy]:
    points = asked.teacher.guarantees()
    if asked.teacher.dp_sgd:
        points = drop_implied((_point(asked), *points))
    points = _searchable(points, asked)
    return _certified(asked, "DaRRM, whole profile", points) if len(points) > 1 else []


def _certified(asked: Question, name: str, points: tuple[PrivacyGuarantee, ...]) -> list[Strategy]:
    """The optimum for one label."""

    def build() -> tuple[Mechanism, str, str]:
        noise = _solve(asked, asked.one_label, points)
        told = noise.gamma[asked.teachers // 2 + 1 :]
        words = (
            f"The best noise for one label, certified for teachers that are {points[0]}"
            + (f" and {len(points) - 1} more points of their profile" if len(points) > 1 else "")
            + f": the majority is told with chance {told.min():.2f} to {told.max():.2f}, else a coin."
        )
        return DaRRM(noise), words, _optimum(asked, asked.one_label, points)

    return [_attempt(asked, name, build, rests_on_teachers=True)]


def _solve(asked: Question, target: PrivacyGuarantee, points: tuple[PrivacyGuarantee, ...]) -> NoiseFunction:
    prior, objective = _goal(asked)
    return optimize_noise(
        teachers=asked.teachers,
        teacher=PrivacyProfile.from_guarantee(*points),
        target=target,
        overlap=asked.overlap,
        prior=prior,
        objective=objective,
    )


def _goal(asked: Question) -> tuple[Prior, str]:
    """The prior and the objective of the search: the paper's, but where a prior favours no class that says nothing."""
    assert not isinstance(asked.prior, tuple)
    law = asked.prior.law(asked.teachers)
    if np.abs(majority_lead(law)).max() > 1e-9 * law.max():
        return asked.prior, "surrogate"
    # What is sampled takes long; all of these treat the classes alike.
    return SharedVotes(low=0.0, high=1.0) if isinstance(
        asked.prior, IndependentVotes
    ) else asked.prior, "expected_error"


def _optimum(asked: Question, target: PrivacyGuarantee, points: Iterable[PrivacyGuarantee]) -> str:
    """:func:`_solve` as it is written."""
    goal, wanted = _goal(asked)
    prior = "" if goal == IndependentVotes() else f", prior={_written(goal)}"
    objective = "" if wanted == "surrogate" else f', objective="{wanted}"'
    first, *more = map(_written, points)
    promise = f"dt.PrivacyProfile.from_guarantee({', '.join((first, *more))})" if more else first
    return (
        f"dt.DaRRM(dt.fetch_noise(teachers={asked.teachers}, teacher={promise}, "
        f"target={_written(target)}, overlap={asked.overlap}{prior}{objective}))"
    )


def _bounded(asked: Question) -> list[Strategy]:
    def build() -> tuple[Mechanism, str, str]:
        m = _allowance(asked)
        if not m:
            raise DarrmError("the teachers promise nothing at so small a delta")
        what = "one teacher does" if m == 1 else f"m = {format_bound(m, 3)} teachers do"
        words = f"Labels add up, each costs what {what}."
        if isinstance(asked.prior, tuple):
            table = _table(asked, m, None)
            return table, words + _sample_words(table, asked), _written(table)
        noise = self_bounding_noise(teachers=asked.teachers, allowance=m, overlap=asked.overlap)
        code = f"dt.DaRRM(dt.self_bounding_noise(teachers={asked.teachers}, allowance={m!r}, overlap={asked.overlap}))"
        return DaRRM(noise), words, code

    name = "self-bounding noise" if asked.classes == 2 else "self-bounding plurality"
    return [_attempt(asked, name, build, rests_on_teachers=True)]


def _table(asked: Question, allowance: float, sample: int | None) -> SelfBoundingPlurality:
    assert isinstance(asked.prior, tuple)
    return SelfBoundingPlurality(
        teachers=asked.teachers,
        classes=asked.classes,
        allowance=allowance,
        overlap=asked.overlap,
        prior=asked.prior,
        sample=sample,
    )


def _sample_words(mechanism: Mechanism, asked: Question) -> str:
    looked = getattr(mechanism, "sample", asked.teachers)
    return f" Each looks at {looked} of the votes, drawn anew." * (looked < asked.teachers)


def _subsampling(asked: Question) -> list[Strategy]:
    """The largest sample whose labels add up to within the targets; for two classes, odd."""

    few = votes_within(_SAMPLED, votes=asked.teachers, classes=asked.classes)  # as a table can look up
    samples = asked.heard(asked.teachers if asked.classes == 2 else few)

    def mechanism(sample: int, slack: float = 1.0) -> tuple[Mechanism, str]:
        if asked.classes > 2:
            table = _table(asked, float(sample), sample)  # so many teachers' worth: without noise
            if slack < 1:
                table = _table(asked, cost(table) * slack, sample)
            return table, _written(table)
        made = f"dt.subsampling_noise(teachers={asked.teachers}, allowance={sample})"
        noise = subsampling_noise(teachers=asked.teachers, allowance=sample)
        if slack < 1:
            noise, made = NoiseFunction(gamma=noise.gamma * slack), f"dt.NoiseFunction(gamma={made}.gamma * {slack!r})"
        return DaRRM(noise, uncertified=True), f"dt.DaRRM({made}, uncertified=True)"

    def cost(made: Mechanism) -> float:
        return made.self_bounding_allowance(overlap=asked.overlap)

    def build() -> tuple[Mechanism, str, str]:
        m = _allowance(asked)
        # Three times the double 0.1 is more than the double 0.3: a hair of noise is worth two more votes.
        fitting = bisect_left(samples, True, key=lambda sample: cost(mechanism(sample)[0]) * SLACK > m)
        if not fitting:
            raise DarrmError(f"one vote costs what a teacher does, and the targets leave a label m = {m:.3g} of that")
        sample = samples[fitting - 1]
        made, code = mechanism(sample)
        if cost(made) > m:
            made, code = mechanism(sample, SLACK**2)
        return made, f"The {asked.winner} of {sample} teacher{'s' * (sample > 1)} drawn anew for each label.", code

    return [_attempt(asked, "subsampling", build, rests_on_teachers=True)]


def _optimal_coins(asked: Question) -> list[Strategy]:
    def build() -> tuple[Mechanism, str, str]:
        target = asked.one_label
        if asked.labels > 1 and asked.total_target is not None:
            target = PrivacyGuarantee(epsilon=_largest_epsilon(asked, lambda e: _PureLabel(e), target.epsilon))
        noise = _solve(asked, target, (_WITHOUT,))
        words = f"The best majority for votes without privacy: each label is {target} by coins alone."
        return DaRRM(noise), words, _optimum(asked, target, (_WITHOUT,))

    return [_attempt(asked, "optimal majority", build)]


def _selection(name: str, kind: type[PermuteAndFlip] | type[ExponentialMechanism]) -> Family:
    def family(asked: Question) -> list[Strategy]:
        def build() -> tuple[Mechanism, str, str]:
            high = min(max(target.epsilon for target in asked.targets), asked.overlap * 2.0**10)
            epsilon = _largest_epsilon(asked, lambda e: kind(epsilon=e, overlap=asked.overlap), high)
            mechanism = kind(epsilon=epsilon, overlap=asked.overlap, teachers=asked.teachers)
            words = f"Each label is ({format_bound(epsilon)}, 0)-DP by coins alone; made for any number of classes."
            return mechanism, words, f"dt.{kind.__name__}(epsilon={epsilon!r}, overlap={asked.overlap})"

        return [_attempt(asked, name, build)]

    return family


def _gaussian(name: str, method: str) -> Family:
    def family(asked: Question) -> list[Strategy]:
        def calibrated(method: str) -> GNMax:
            kept = [
                GNMax.calibrated(
                    target,
                    method=method,
                    labels=count,
                    overlap=asked.overlap,
                    teachers=asked.teachers,
                    classes=asked.classes if method == "label" else None,
                )
                for count, target in asked.priced
            ]
            return max(kept, key=lambda one: one.sigma)

        def build() -> tuple[Mechanism, str, str]:
            if method == "label" and asked.overlap > 1:
                raise DarrmError(f"it is for records that touch one teacher, and these touch {asked.overlap}")
            mechanism = calibrated(method)
            words = f"Gaussian noise of {mechanism.sigma:.3g} votes on each count"
            if method == "label":
                words += ": as much as the label asks for, which tells less than the counts."
            else:
                words += f" hides the {asked.overlap} that one record can change (by the DaRRM paper's bound it would "
                words += f"be {calibrated('rdp').sigma:.3g})."
            return mechanism, words, _written(mechanism)

        return [_attempt(asked, name, build)]

    return family


def _of_many(name: str, kind: str) -> Family:
    """For more than two classes; a name that says so counts the teachers' training, too."""
    own_randomness = not name.endswith(TRAINING)

    def family(asked: Question) -> list[Strategy]:
        def build() -> tuple[Mechanism, str, str]:
            assert isinstance(asked.prior, tuple)
            mechanism = strongest_mechanism(
                kind,
                teachers=asked.teachers,
                classes=asked.classes,
                teacher=None if own_randomness else asked.teacher,
                overlap=asked.overlap,
                labels=asked.labels,
                label_target=asked.label_target,
                total_target=asked.total_target,
                prior=asked.prior,
            )
            what = f"Gaussian noise of {mechanism.sigma:.3g} votes: each" if isinstance(mechanism, GNMax) else "Each"
            words = what + f" label is {mechanism.guarantee(labels=1, overlap=asked.overlap)} by coins"
            words += " alone." if own_randomness else ", and the teachers' own privacy adds to that."
            return mechanism, words + _sample_words(mechanism, asked), _written(mechanism)

        return [_attempt(asked, name, build, rests_on_teachers=not own_randomness)]

    return family


# In the order of preference where agreements are equal.
_OF_TWO: dict[str, Family] = {
    "noise-free majority": _noise_free,
    "optimal majority": _optimal_coins,
    "permute-and-flip": _selection("permute-and-flip", PermuteAndFlip),
    "exponential mechanism": _selection("exponential mechanism", ExponentialMechanism),
    "GNMax": _gaussian("GNMax", "analytic"),
    "DaRRM, whole profile": _whole_profile,
    "DaRRM, one point": _fixed_point,
    "self-bounding noise": _bounded,
    "subsampling": _subsampling,
}
_COINS = {
    "randomized response": "randomized-response",
    "permute-and-flip": "permute-and-flip",
    "exponential mechanism": "exponential",
    "vote-private table": "vote-private",
}
_OF_MANY: dict[str, Family] = {
    "noise-free plurality": _noise_free,
    **{name: _of_many(name, kind) for name, kind in _COINS.items()},
    "GNMax": _gaussian("GNMax", "analytic"),
    "GNMax, calibrated on the label": _gaussian("GNMax, calibrated on the label", "label"),
    "self-bounding plurality": _bounded,
    "subsampling": _subsampling,
    **{name + TRAINING: _of_many(name + TRAINING, kind) for name, kind in {**_COINS, "GNMax": "gnmax"}.items()},
}


def families(classes: int) -> dict[str, Family]:
    """By name; what has no chance to keep the targets says so in its rows."""
    return _OF_TWO if classes == 2 else _OF_MANY


def resting_on_teachers(classes: int) -> tuple[Family, ...]:
    """Those that better teachers can make good; the quick ones first."""
    if classes == 2:
        return _noise_free, _bounded, _fixed_point, _whole_profile
    return _noise_free, _bounded, _OF_MANY["vote-private table" + TRAINING]


def _attempt(asked: Question, name: str, build: _Build, *, rests_on_teachers: bool = False) -> Strategy:
    """What ``build`` makes, judged; or why it cannot."""
    reason = "The teachers promise nothing that it could build on."
    if asked.teacher.is_private or not rests_on_teachers:
        try:
            mechanism, words, code = build()
            return _judged(asked, name, mechanism, words, code, own_randomness=not rests_on_teachers)
        except DarrmError as error:
            reason = f"Not possible: {error}"
    return Strategy(
        name=name,
        own_randomness=not rests_on_teachers,
        mechanism=None,
        voters=asked.teachers,
        label=None,
        total=None,
        agreement=None,
        meets=False,
        reason=reason if reason.endswith(".") else f"{reason}.",
    )


def _judged(
    asked: Question,
    name: str,
    mechanism: Mechanism,
    words: str,
    code: str,
    *,
    own_randomness: bool = False,
) -> Strategy:
    label, total, over = _priced(asked, mechanism, own_randomness=own_randomness)
    count = mechanism.teachers or asked.teachers
    agreement, error = _agreement(asked, mechanism, count)
    return Strategy(
        name=name,
        own_randomness=own_randomness,
        mechanism=mechanism,
        voters=count,
        label=label,
        total=total,
        agreement=agreement,
        standard_error=error,
        meets=not over,
        reason=f"{words} It fails for {' And for '.join(over)}" if over else words,
        code=code,
    )


def _total(
    asked: Question, mechanism: PricedMechanism, labels: int, delta: float, *, voters: int, own_randomness: bool = False
) -> TotalPrivacy:
    """What is proven of ``labels`` labels by so many of the teachers."""
    teacher = PrivacyProfile.non_private() if own_randomness else asked.teacher
    return total_privacy(
        teachers=[teacher] * voters,
        overlap=min(asked.overlap, voters),
        mechanism=mechanism,
        labels=labels,
        delta=delta,
    )


def _priced(
    asked: Question, mechanism: Mechanism, *, own_randomness: bool = False
) -> tuple[TotalPrivacy, TotalPrivacy, list[str]]:
    """What one label costs, and all; and which targets that is over, in words."""
    count = mechanism.teachers or asked.teachers

    def priced(labels: int, delta: float) -> TotalPrivacy:
        return _total(asked, mechanism, labels, delta, voters=count, own_randomness=own_randomness)

    label, total = priced(1, asked.targets[0].delta), priced(asked.labels, asked.targets[-1].delta)
    over = []
    for what, bound, target in (("one label", label, asked.label_target), ("all labels", total, asked.total_target)):
        if target is not None and bound.epsilon > target.epsilon:
            nearly = " by rounding alone" * (format_bound(bound.epsilon) == format_bound(target.epsilon))
            over.append(f"{what}: {bound.guarantee}, over {target}{nearly}. {bound.route.explanation}")
    return label, total, over


def _agreement(asked: Question, mechanism: Mechanism, voters: int) -> tuple[float, float]:
    """Pr[label = majority, or plurality, of all K votes], any label of those that tie; with its standard error."""
    teachers, prior = asked.teachers, asked.prior
    if isinstance(prior, tuple):
        return expected_agreement(mechanism, teachers=teachers, classes=asked.classes, prior=prior)
    law = prior.law(teachers)
    # Votes of the majority, whichever it is: classes are treated alike.
    most = np.arange(teachers // 2 + 1, teachers + 1)
    chances = law[most] + law[teachers - most]
    most, chances = most[chances > 1e-20], chances[chances > 1e-20]
    if voters == teachers:
        told = np.asarray(mechanism.label_probabilities(np.stack([most, teachers - most], axis=1)))[:, 0]
    else:  # the majority of a fixed part: under a prior that treats teachers alike, of a random one
        told = subsampling_noise(teachers=teachers, allowance=voters).label_probability(most)
    tie = 0.0 if teachers % 2 else float(law[teachers // 2])
    return min(1.0, (float(chances @ told) + tie) / float(law.sum())), 0.0


def _point(asked: Question) -> PrivacyGuarantee:
    """The point of the teachers' profile that suits the target: (E / m, d / m) for the m that keeps it, or theirs."""
    if not asked.teacher.dp_sgd:
        return asked.teacher.guarantees()[0]
    target = asked.one_label
    m = _allowance(replace(asked, label_target=target, total_target=None), route="self-bounding") or 1.0
    delta = min(1.0, target.delta / m)
    return PrivacyGuarantee(epsilon=asked.teacher.epsilon(delta), delta=delta)


def _allowance(asked: Question, *, route: str = "") -> float:
    """The largest m up to r with which Q labels, at m teachers' worth each, keep the targets; 0 where there is none.

    By whatever proves most, or by one ``route`` of :func:`darrm_torch.total_privacy`.
    """

    def cost(m: float, count: int, delta: float) -> float:
        total = _total(asked, Promised(allowance=m), count, delta, voters=asked.teachers)
        return min(one.epsilon for one in total.routes if one.key == (route or total.route.key))

    def fits(m: float) -> bool:
        return all(cost(m, count, target.delta) <= target.epsilon for count, target in asked.priced)

    m = _largest(fits, 0.0, float(asked.overlap), 40)
    whole = float(round(m))  # which a search comes near without ever meeting it
    return whole if abs(m - whole) < 1e-6 and whole and fits(whole) else m


def _searchable(points: Sequence[PrivacyGuarantee], asked: Question) -> tuple[PrivacyGuarantee, ...]:
    """As many points of the profile as can be searched with in a moment; any of them are sound."""
    kept = tuple(points)
    while len(kept) > 1:
        corners = len(Region(guarantees=kept).chain)
        if math.comb(asked.overlap + corners - 1, corners - 1) * (asked.teachers - asked.overlap + 1) <= _SEARCHED:
            break
        kept = kept[:-1]
    return kept


@dataclass(frozen=True)
class _PureLabel:
    """Labels that are (epsilon, 0)-DP by coins of their own."""

    epsilon: float

    def guarantee(self, *, labels: int, delta: float, overlap: int | None = None) -> PrivacyGuarantee:
        one = PrivacyProfile.from_guarantee(PrivacyGuarantee(epsilon=self.epsilon))
        return PrivacyGuarantee(epsilon=one.compose(labels).epsilon(delta), delta=delta)


def _largest_epsilon(asked: Question, mechanism: Callable[[float], Any], high: float) -> float:
    """The largest epsilon of one label with which all targets are kept by the coins alone."""

    def fits(epsilon: float) -> bool:
        return all(
            mechanism(epsilon).guarantee(labels=count, delta=target.delta).epsilon <= target.epsilon * SLACK
            for count, target in asked.priced
        )

    least = min(target.epsilon / count for count, target in asked.priced)
    return _largest(fits, min(least * SLACK**2, high), high, 24)


def _largest(fits: Callable[[float], bool], low: float, high: float, rounds: int) -> float:
    """The largest number in [low, high] that fits, by bisection; ``low`` does."""
    if fits(high):
        return high
    for _ in range(rounds):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _written(value: Any) -> str:
    """As it is written in Python: a mechanism, or what it was made with."""
    if isinstance(value, tuple):
        return f"({''.join(f'{_written(one)}, ' for one in value).rstrip()})"
    if not is_dataclass(value):
        return "math.inf" if value == math.inf else repr(value)
    pairs = [(field, getattr(value, field.name)) for field in fields(value) if field.init]
    told = [f"{field.name}={_written(given)}" for field, given in pairs if given != field.default]
    return f"dt.{type(value).__name__}({', '.join(told)})"
