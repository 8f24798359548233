"""Which way of releasing labels for which budget: every strategy that keeps it, what it is worth, and why.

Everything here is exact and public: votes follow a prior, totals come from :func:`darrm_torch.total_privacy`, no vote
is looked at. Nothing in this module proves anything about privacy by itself.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .certificate import check_overlap, check_target
from .errors import DarrmError, InvalidArgument, check_integer, check_number
from .guarantees import PrivacyGuarantee, PrivacyProfile, shown
from .mechanisms import DaRRM, ExponentialMechanism, GNMax, Mechanism, NoiseFreeMajority, PermuteAndFlip
from .noise import NoiseFunction, self_bounding_noise, subsampling_noise
from .priors import IndependentVotes, Prior, SharedVotes, check_prior, majority_lead
from .program import optimize_noise
from .regions import Region
from .totals import TotalPrivacy, total_privacy

__all__ = ["Plan", "Strategy", "TeachersNeeded", "plan"]

_SEARCHED = 40_000  # compositions of corners up to which the whole profile is searched with all of its points
_SLACK = 1 - 1e-9  # left under a target, for the rounding of what is then proven
_WIDTH = 79
_POOR = 0.6
_WITHOUT = PrivacyGuarantee(epsilon=math.inf)


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """One way of releasing labels.

    Attributes:
        name: a short name.
        own_coins: the coins of the mechanism protect by themselves, whatever the teachers are; otherwise all privacy
            rests on the teachers' private training.
        mechanism: ready to use, as strong as the target allows; None where there is none.
        voters: how many of the teachers vote.
        label, total: what is proven of one label, and of all; None without a mechanism.
        agreement: the chance, exact under the prior, that a label is the majority of all K teachers' votes (where they
            tie, any label is); None without a mechanism.
        meets: whether it keeps every target.
        reason: why it wins, loses or fails.
        use: how to make it, in Python (``dt`` is this package); empty without a mechanism.
    """

    name: str
    own_coins: bool
    mechanism: Mechanism | None
    voters: int
    label: TotalPrivacy | None
    total: TotalPrivacy | None
    agreement: float | None
    meets: bool
    reason: str
    use: str = ""

    def to_dict(self) -> dict[str, Any]:
        """All of it, ready for JSON."""
        return {
            "strategy": self.name,
            "meets": self.meets,
            "agreement": self.agreement,
            "own_coins": self.own_coins,
            "voters": self.voters,
            "mechanism": None if self.mechanism is None else self.mechanism.describe(),
            "label": None if self.label is None else self.label.to_dict(),
            "total": None if self.total is None else self.total.to_dict(),
            "reason": self.reason,
            "use": self.use,
        }


@dataclass(frozen=True, kw_only=True)
class TeachersNeeded:
    """What the teachers would have to be for some agreement; None: not by this alone, or not asked.

    Attributes:
        agreement: that is reached.
        noise_multiplier: the least, with their sample rate and steps.
        steps: the most, with their noise multiplier and sample rate.
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
            ways.append(f"a noise multiplier of {shown(self.noise_multiplier)} or more")
        if self.steps is not None:
            ways.append(f"at most {self.steps} steps")
        if self.teacher is not None:
            ways.append(f"to be {self.teacher} each, or better")
        if not ways:
            return f"For an agreement of {self.agreement:g} no change of the teachers' noise or steps is enough."
        return f"For an agreement of {self.agreement:g} the teachers would need {', or '.join(ways)}."


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Every strategy for a budget, best first: those that keep it, by agreement.

    Agreements that are equal to three digits count as equal; then no noise goes before noise, and coins that protect
    whatever the teachers are before noise that rests on their training.

    Attributes:
        teachers, teacher, overlap, labels, label_target, total_target, prior: what was asked; of ``teacher`` the
            profile that holds for each.
        rows: the strategies.
    """

    teachers: int
    teacher: PrivacyProfile
    overlap: int
    labels: int
    label_target: PrivacyGuarantee | None
    total_target: PrivacyGuarantee | None
    prior: Prior
    rows: tuple[Strategy, ...] = ()

    @property
    def best(self) -> Strategy | None:
        """The recommendation; None when nothing keeps the targets."""
        return self.rows[0] if self.rows and self.rows[0].meets else None

    def at(self, epsilon: float) -> Plan:
        """The same question at another ``epsilon`` of all labels (or of one); with two targets both are scaled."""
        scale = epsilon / self._outermost.epsilon
        return _solved(self._scaled(scale))

    def costs(
        self, agreement: float, *, each: Callable[[str], None] = lambda name: None
    ) -> tuple[tuple[str, float], ...]:
        """What an agreement costs: for each strategy the least epsilon, at the deltas of the targets, cheapest first.

        Where there are targets for one label and for all, both epsilons are scaled together, and that for all is given.

        Args:
            agreement: in (0, 1].
            each: told the name of each strategy when it is done.

        Raises:
            InvalidArgument: an agreement out of range.
        """
        wanted = check_number("agreement", agreement, low=0.0, high=1.0, low_open=True)
        found = []
        for name, build in _FAMILIES.items():
            cost = self._least_epsilon(build, wanted)
            each(name)
            if math.isfinite(cost):
                found.append((name, cost))
        return tuple(sorted(found, key=lambda pair: pair[1]))

    def teachers_needed(self, agreement: float, *, each: Callable[[], None] = lambda: None) -> TeachersNeeded:
        """What the teachers would have to be, all else as asked, for a strategy that rests on them to agree so often.

        Teachers of one DP-SGD run: the least noise multiplier, and the most steps, to about one percent, and up to 16
        times what they have. Others: the largest epsilon of each,
        at the delta that they have, or, for teachers without privacy, at the K-th part of the targets' smallest delta.

        Args:
            agreement: in (0, 1].
            each: told when one kind of teachers was tried, of about twenty.

        Raises:
            InvalidArgument: an agreement out of range.
        """
        wanted = check_number("agreement", agreement, low=0.0, high=1.0, low_open=True)

        def enough(profile: PrivacyProfile) -> bool:
            each()
            asked = replace(self, teacher=profile)
            families = (_noise_free, _bounded, _fixed_point, _whole_profile)  # the quick ones first
            return any(_agrees(row, wanted) for build in families for row in build(asked))

        if len(self.teacher.dp_sgd) == 1 and not self.teacher.promises:
            ((noise, rate, steps),) = self.teacher.dp_sgd

            def runs(noise: float, steps: float) -> bool:
                return enough(PrivacyProfile.from_dp_sgd([(noise, rate, max(1, math.floor(steps)))]))

            least = _smallest(lambda s: runs(s, steps), noise / 16, noise * 16, 9)
            fewer = _smallest(lambda part: runs(noise, steps / part), 1 / 16, max(16.0, steps), 9)
            return TeachersNeeded(
                agreement=wanted,
                noise_multiplier=least,
                steps=None if fewer is None else max(1, math.floor(steps / fewer)),
            )
        if self.teacher.is_private:
            delta = max(point.delta for points, _ in self.teacher.promises for point in points)
        else:
            delta = min(target.delta for target in self.targets) / self.teachers

        def small(inverse: float) -> bool:
            return enough(PrivacyProfile.from_guarantee(PrivacyGuarantee(epsilon=1 / inverse, delta=delta)))

        largest = _smallest(small, 1e-2, 1e6, 16)
        point = None if largest is None else PrivacyGuarantee(epsilon=1 / largest * _SLACK, delta=delta)
        return TeachersNeeded(agreement=wanted, teacher=point)

    def to_dict(self) -> dict[str, Any]:
        """All of it, ready for JSON."""
        return {
            "teachers": self.teachers,
            "teacher": self.teacher.to_dict(),
            "overlap": self.overlap,
            "labels": self.labels,
            "label_target": _pair(self.label_target),
            "total_target": _pair(self.total_target),
            "prior": repr(self.prior),
            "recommendation": None if self.best is None else self.best.name,
            "strategies": [row.to_dict() for row in self.rows],
        }

    def __str__(self) -> str:
        """For 80 columns."""
        many = self.labels > 1
        lines = [
            _wrapped(
                f"{self.teachers} teachers, {self._teacher_words}; one record touches {self.overlap} of them; "
                f"{self.labels} label{'s' * many}. Target: {self._target_words}. Votes: {self.prior}."
            ),
            "",
            f"  {'strategy':<31}{'agreement':>11}{'epsilon of one':>17}" + f"{'of all':>12}" * many + "  kept",
        ]
        for row in self.rows:
            numbers = "none".rjust(11) if row.agreement is None else f"{_floor(row.agreement):>11.3f}"
            for bound, width in ((row.label, 17), (row.total, 12))[: 1 + many]:
                numbers += ("none" if bound is None else shown(bound.epsilon)).rjust(width)
            mark = " *" if row.own_coins else "  "
            lines.append(f"  {row.name + mark:<31}{numbers}  {'yes' if row.meets else 'no'}")
        at = dict.fromkeys(shown(bound.delta, 3) for bound in (self.rows[0].label, self.rows[0].total) if bound)
        lines += [
            "",
            _wrapped(
                "Agreement: with the majority of all teachers, expected under the prior, exact. "
                + (f"Epsilons in nats, at delta {', '.join(at)}." if at else "")
            ),
            _wrapped(
                "* Rests on the mechanism's own coins alone, another assumption: the teachers may be trained without "
                "privacy (and are then often better), but must themselves stay secret for ever."
            ),
            "",
        ]
        if self.best is None:
            lines.append(_wrapped("Recommendation: none of these keeps the target. Reasons:"))
        else:
            lines.append(_wrapped(f"Recommendation: {self.best.name}. {self.best.reason}"))
            lines.append(_wrapped(f"In Python: {self.best.use}"))
            if (self.best.agreement or 0.0) < _POOR:
                lines.append(
                    _wrapped(
                        "That is hardly better than a coin: train teachers with more privacy of their own, have a "
                        "record touch fewer of them, or allow more."
                    )
                )
            lines += ["", "The others:"] if len(self.rows) > 1 else []
        others = self.rows if self.best is None else self.rows[1:]
        lines += [_wrapped(f"- {row.name}: {row.reason}") for row in others]
        return "\n".join(lines)

    @property
    def targets(self) -> list[PrivacyGuarantee]:
        """Those that were asked for: of one label, of all."""
        return [target for target in (self.label_target, self.total_target) if target is not None]

    @property
    def _outermost(self) -> PrivacyGuarantee:
        return self.targets[-1]

    @property
    def _label_delta(self) -> float:
        return self.targets[0].delta

    @property
    def _priced(self) -> list[tuple[int, PrivacyGuarantee]]:
        """How many labels must keep what."""
        asked = ((1, self.label_target), (self.labels, self.total_target))
        return [(count, target) for count, target in asked if target is not None]

    @property
    def _one_label(self) -> PrivacyGuarantee:
        """What one label must keep: at most what all must."""
        epsilon = min(target.epsilon for target in self.targets)
        return PrivacyGuarantee(epsilon=epsilon, delta=min(target.delta for target in self.targets))

    @property
    def _teacher_words(self) -> str:
        if not self.teacher.is_private:
            return "without privacy of their own"
        if self.teacher.dp_sgd:
            delta = self._label_delta
            return f"each ({shown(self.teacher.epsilon(delta))}, {shown(delta, 3)})-DP"
        return "each " + " and ".join(map(str, self.teacher.guarantees()))

    @property
    def _target_words(self) -> str:
        words = [] if self.label_target is None else [f"one label {self.label_target}"]
        return " and ".join(words + ([] if self.total_target is None else [f"all labels {self.total_target}"]))

    def _scaled(self, factor: float) -> Plan:
        def scaled(target: PrivacyGuarantee | None) -> PrivacyGuarantee | None:
            return target and replace(target, epsilon=target.epsilon * factor)

        return replace(self, label_target=scaled(self.label_target), total_target=scaled(self.total_target), rows=())

    def _least_epsilon(self, build: _Family, agreement: float) -> float:
        epsilon = max(self._outermost.epsilon, 1e-3)

        def enough(wanted: float) -> bool:
            return any(_agrees(row, agreement) for row in build(self._scaled(wanted / self._outermost.epsilon)))

        least = _smallest(enough, epsilon / 1024, epsilon * 1024, 12)
        return math.inf if least is None else least


def plan(
    *,
    teachers: int,
    teacher: PrivacyProfile | PrivacyGuarantee | Iterable[PrivacyProfile] | None = None,
    overlap: int | None = None,
    labels: int = 1,
    label_target: PrivacyGuarantee | None = None,
    total_target: PrivacyGuarantee | None = None,
    prior: Prior = IndependentVotes(mean=0.75),  # noqa: B008 (frozen)
    each: Callable[[str], None] = lambda name: None,
) -> Plan:
    """Every strategy for a budget, for two classes: what is proven of it, how often it tells the majority, and why.

    Args:
        teachers: K.
        teacher: what each promises as a trained model: a profile, a guarantee, or one profile for each teacher (the
            weakest then stands for all); None: nothing.
        overlap: r, how many teachers one record can touch; None: all.
        labels: Q, how many labels will be released.
        label_target: what each label must keep by itself.
        total_target: what all labels together must keep. One of the two targets is needed.
        prior: how the teachers are believed to vote; from public knowledge.
        each: told the name of each of the nine kinds of strategies when it is done.

    Raises:
        InvalidArgument: bad input, or no target.

    >>> paper = PrivacyProfile.from_dp_sgd([(12.0, 1 / 35, 175)])
    >>> answer = plan(teachers=11, teacher=paper, label_target=PrivacyGuarantee(epsilon=0.2555, delta=3e-4))
    >>> answer.best.name, answer.best.agreement
    ('noise-free majority', 1.0)
    """
    count = check_integer("teachers", teachers, low=1)
    if label_target is None and total_target is None:
        raise InvalidArgument(
            "label_target", "given, or total_target", None, "Say what one label, or all together, may cost."
        )
    for name, target in (("label_target", label_target), ("total_target", total_target)):
        if target is not None:
            epsilon = getattr(target, "epsilon", target)
            check_number(f"{name}.epsilon", epsilon, low=0.0, low_open=True, high=math.inf, high_open=True)
            check_target(target)
    return _solved(
        Plan(
            teachers=count,
            teacher=_profile(teacher, count),
            overlap=check_overlap(overlap, count),
            labels=check_integer("labels", labels, low=1),
            label_target=label_target,
            total_target=total_target,
            prior=check_prior(prior),
        ),
        each,
    )


def _profile(teacher: Any, count: int) -> PrivacyProfile:
    if teacher is None:
        return PrivacyProfile.non_private()
    if isinstance(teacher, PrivacyGuarantee):
        return PrivacyProfile.from_guarantee(teacher)
    if isinstance(teacher, PrivacyProfile):
        return teacher
    profiles = tuple(teacher) if isinstance(teacher, Iterable) else ()
    if len(profiles) != count or not all(isinstance(one, PrivacyProfile) for one in profiles):
        raise InvalidArgument("teacher", f"a profile, a guarantee, or a profile for each of {count} teachers", teacher)
    return PrivacyProfile.weakest(profiles)


def _solved(asked: Plan, each: Callable[[str], None] = lambda name: None) -> Plan:
    rows = []
    for kind, build in _FAMILIES.items():
        rows += build(asked)
        each(kind)
    order = sorted(rows, key=lambda row: (not row.meets, row.agreement is None, -round(row.agreement or 0.0, 3)))
    best, second = order[0], next((row for row in order[1:] if row.meets), None)
    ranked = []
    for row in order:
        reason = row.reason
        if row is best and row.meets and second is not None:
            reason += f" Next best: {second.name}, {_floor(second.agreement or 0):.3f}."
            free = next((one for one in order if one.name == "noise-free majority" and not one.meets), None)
            if free is not None and free.total is not None and math.isfinite(free.total.epsilon):
                reason += f" Without noise all teachers would cost {free.total.guarantee}."
        elif row.meets and row is not best and row.agreement is not None and best.agreement is not None:
            less = best.agreement - row.agreement
            reason += (
                f" It keeps the target but agrees less often than {best.name}, by {less:.3f}."
                if round(best.agreement, 3) > round(row.agreement, 3)
                else f" It agrees as often as {best.name}, which asks for less."
            )
        ranked.append(replace(row, reason=reason))
    return replace(asked, rows=tuple(ranked))


# --- the strategies: each as strong as the targets allow ------------------------------------------------------------

_Family = Callable[[Plan], "list[Strategy]"]
_Build = Callable[[], "tuple[Mechanism, str, str]"]  # with the reason, and how to make it


def _noise_free(asked: Plan) -> list[Strategy]:
    """All teachers, and where they cost too much the largest odd number that does not."""

    def released(count: int) -> Strategy:
        voters = NoiseFreeMajority(classes=2, teachers=count)
        row = _judged(asked, "noise-free majority", voters, "", "dt.NoiseFreeMajority(classes=2)", voters=count)
        assert row.label is not None
        assert row.total is not None
        touched = min(asked.overlap, count)
        what = "the one teacher" if touched == 1 else f"the {touched} teachers"
        bound = row.label if asked.label_target and row.label.epsilon > asked.label_target.epsilon else row.total
        outright = bound.route.name.startswith("teachers")
        way = f"publishing {what} that a record can touch costs" if outright else "by majority alone the labels cost"
        cost = f"{way} {bound.guarantee}"
        if row.meets:
            why = f"No noise is needed: {cost}, within the target" + outright * (
                ", and no more however many labels are asked"
            )
        elif asked.teacher.is_private:
            why = f"Too dear: {cost}"
        else:
            why = "The teachers promise nothing, so noise is needed"
        why += "."
        if count == asked.teachers:
            return replace(row, reason=why)
        return replace(
            row, name=f"noise-free, {count} of {asked.teachers}", reason=f"Only {count} of the teachers vote. {why}"
        )

    whole = released(asked.teachers)
    if whole.meets or not asked.teacher.is_private or asked.teachers == 1:
        return [whole]
    odd = (asked.teachers - 2) // 2  # 2 n + 1 < K
    fitting = _most(lambda n: released(2 * n - 1).meets, odd + 1)
    return [whole, released(max(2 * fitting - 1, 1))]


def _fixed_point(asked: Plan) -> list[Strategy]:
    return _certified(asked, "DaRRM, one point", (_point(asked),))


def _whole_profile(asked: Plan) -> list[Strategy]:
    points = asked.teacher.guarantees()
    if asked.teacher.dp_sgd:
        points = (_point(asked), *points)
    points = _searchable(points, asked)
    return _certified(asked, "DaRRM, whole profile", points) if len(points) > 1 else []


def _certified(asked: Plan, name: str, points: tuple[PrivacyGuarantee, ...]) -> list[Strategy]:
    """The optimum for one label."""

    def build() -> tuple[Mechanism, str, str]:
        noise = _solve(asked, asked._one_label, points)
        told = noise.gamma[asked.teachers // 2 + 1 :]
        words = (
            f"The best noise for one label, certified for teachers that are {points[0]}"
            + (f" and {len(points) - 1} more points of their profile" if len(points) > 1 else "")
            + f": the majority is told with chance {told.min():.2f} to {told.max():.2f}, else a coin."
        )
        return DaRRM(noise), words, _optimum(asked, asked._one_label, points)

    return [_attempt(asked, name, build, rests_on_teachers=True)]


def _solve(asked: Plan, target: PrivacyGuarantee, points: tuple[PrivacyGuarantee, ...]) -> NoiseFunction:
    prior, objective = _goal(asked)
    return optimize_noise(
        teachers=asked.teachers,
        teacher=points,
        target=target,
        overlap=asked.overlap,
        prior=prior,
        objective=objective,
    )


def _goal(asked: Plan) -> tuple[Prior, str]:
    """The prior and the objective of the search: the paper's, but where a prior favours no class that says nothing."""
    law = asked.prior.law(asked.teachers)
    if np.abs(majority_lead(law)).max() > 1e-9 * law.max():
        return asked.prior, "surrogate"
    # What is sampled takes long; all of these treat the classes alike.
    return SharedVotes(low=0.0, high=1.0) if isinstance(
        asked.prior, IndependentVotes
    ) else asked.prior, "expected_error"


def _optimum(asked: Plan, target: PrivacyGuarantee, points: Iterable[PrivacyGuarantee]) -> str:
    """:func:`_solve` as it is written."""

    def written(one: PrivacyGuarantee) -> str:
        epsilon = repr(one.epsilon) if math.isfinite(one.epsilon) else "math.inf"
        return f"dt.PrivacyGuarantee(epsilon={epsilon}, delta={one.delta!r})"

    teacher = "".join(f"{written(point)}, " for point in points)
    goal, wanted = _goal(asked)
    prior = "" if goal == IndependentVotes() else f", prior=dt.{goal!r}"
    objective = "" if wanted == "surrogate" else f', objective="{wanted}"'
    return (
        f"dt.DaRRM(dt.fetch_noise(teachers={asked.teachers}, teacher=({teacher.rstrip()}), target={written(target)}, "
        f"overlap={asked.overlap}{prior}{objective}))"
    )


def _bounded(asked: Plan) -> list[Strategy]:
    def build() -> tuple[Mechanism, str, str]:
        m = _allowance(asked)
        if not m:
            raise InvalidArgument("m", "positive", m, _NO_DELTA)
        noise = self_bounding_noise(teachers=asked.teachers, allowance=m, overlap=asked.overlap)
        use = f"dt.DaRRM(dt.self_bounding_noise(teachers={asked.teachers}, allowance={m!r}, overlap={asked.overlap}))"
        return DaRRM(noise), f"Labels add up, each costs m = {m:.3g} teachers.", use

    return [_attempt(asked, "self-bounding noise", build, rests_on_teachers=True)]


def _subsampling(asked: Plan) -> list[Strategy]:
    """The largest odd sample whose labels add up to within the targets."""

    def build() -> tuple[Mechanism, str, str]:
        m = _allowance(asked)

        def mechanism(sample: int) -> DaRRM:
            return DaRRM(subsampling_noise(teachers=asked.teachers, allowance=sample), uncertified=True)

        def fits(n: int) -> bool:
            return mechanism(2 * n - 1).self_bounding_allowance(overlap=asked.overlap) <= m

        largest = _most(fits, (asked.teachers + 1) // 2)
        if not largest:
            raise InvalidArgument("sample", "one teacher or more", 0, f"One vote already costs more than m = {m:.3g}.")
        sample = 2 * largest - 1
        made = f"dt.subsampling_noise(teachers={asked.teachers}, allowance={sample})"
        words = f"The majority of {sample} teacher{'s' * (sample > 1)} drawn anew for each label."
        return mechanism(sample), words, f"dt.DaRRM({made}, uncertified=True)"

    return [_attempt(asked, "subsampling", build, rests_on_teachers=True)]


def _optimal_coins(asked: Plan) -> list[Strategy]:
    def build() -> tuple[Mechanism, str, str]:
        target = asked._one_label
        if asked.labels > 1 and asked.total_target is not None:
            target = PrivacyGuarantee(epsilon=_largest_epsilon(asked, lambda e: _PureLabel(e), target.epsilon))
        noise = _solve(asked, target, (_WITHOUT,))
        words = f"The best majority for votes without privacy: each label is {target} by coins alone."
        return DaRRM(noise), words, _optimum(asked, target, (_WITHOUT,))

    return [_attempt(asked, "optimal majority", build)]


def _selection(name: str, kind: type[PermuteAndFlip] | type[ExponentialMechanism]) -> _Family:
    def family(asked: Plan) -> list[Strategy]:
        def build() -> tuple[Mechanism, str, str]:
            high = min(max(target.epsilon for target in asked.targets), asked.overlap * 2.0**10)
            epsilon = _largest_epsilon(asked, lambda e: kind(epsilon=e, overlap=asked.overlap), high)
            mechanism = kind(epsilon=epsilon, overlap=asked.overlap, teachers=asked.teachers)
            words = f"Each label is ({shown(epsilon)}, 0)-DP by coins alone; made for any number of classes."
            return mechanism, words, f"dt.{kind.__name__}(epsilon={epsilon!r}, overlap={asked.overlap})"

        return [_attempt(asked, name, build)]

    return family


def _gaussian(asked: Plan) -> list[Strategy]:
    def build() -> tuple[Mechanism, str, str]:
        calibrated = [
            GNMax.calibrated(target, labels=count, overlap=asked.overlap, teachers=asked.teachers)
            for count, target in asked._priced
        ]
        mechanism = max(calibrated, key=lambda one: one.sigma)
        words = (
            f"Gaussian noise of {mechanism.sigma:.3g} votes on each count hides the {asked.overlap} that one record "
            "can change."
        )
        return mechanism, words, f"dt.GNMax(sigma={mechanism.sigma!r}, overlap={asked.overlap})"

    return [_attempt(asked, "GNMax", build)]


# In the order of preference where agreements are equal.
_FAMILIES: dict[str, _Family] = {
    "noise-free majority": _noise_free,
    "optimal majority": _optimal_coins,
    "permute-and-flip": _selection("permute-and-flip", PermuteAndFlip),
    "exponential mechanism": _selection("exponential mechanism", ExponentialMechanism),
    "GNMax": _gaussian,
    "DaRRM, whole profile": _whole_profile,
    "DaRRM, one point": _fixed_point,
    "self-bounding noise": _bounded,
    "subsampling": _subsampling,
}

_NO_DELTA = "The teachers promise nothing at so small a delta."


def _attempt(asked: Plan, name: str, build: _Build, *, rests_on_teachers: bool = False) -> Strategy:
    """What ``build`` makes, judged; or why it cannot."""
    reason = "The teachers promise nothing that it could build on."
    if asked.teacher.is_private or not rests_on_teachers:
        try:
            mechanism, words, use = build()
            return _judged(asked, name, mechanism, words, use, own_coins=not rests_on_teachers)
        except DarrmError as error:
            reason = f"Not possible: {error}"
    return Strategy(
        name=name,
        own_coins=not rests_on_teachers,
        mechanism=None,
        voters=asked.teachers,
        label=None,
        total=None,
        agreement=None,
        meets=False,
        reason=reason if reason.endswith(".") else f"{reason}.",
    )


def _judged(
    asked: Plan,
    name: str,
    mechanism: Mechanism,
    words: str,
    use: str,
    *,
    voters: int | None = None,
    own_coins: bool = False,
) -> Strategy:
    count = asked.teachers if voters is None else voters
    teacher = PrivacyProfile.non_private() if own_coins else asked.teacher

    def priced(labels: int, delta: float) -> TotalPrivacy:
        return total_privacy(
            teachers=[teacher] * count,
            overlap=min(asked.overlap, count),
            mechanism=mechanism,
            labels=labels,
            delta=delta,
        )

    label, total = priced(1, asked._label_delta), priced(asked.labels, asked._outermost.delta)
    over = []
    for what, bound, target in (("one label", label, asked.label_target), ("all labels", total, asked.total_target)):
        if target is not None and bound.epsilon > target.epsilon:
            over.append(f"{what}: {bound.guarantee}, over {target}. {bound.route.words}")
    return Strategy(
        name=name,
        own_coins=own_coins,
        mechanism=mechanism,
        voters=count,
        label=label,
        total=total,
        agreement=_agreement(mechanism, asked.teachers, count, asked.prior),
        meets=not over,
        reason=f"{words} It fails for {' And for '.join(over)}" if over else words,
        use=use,
    )


def _agreement(mechanism: Mechanism, teachers: int, voters: int, prior: Prior) -> float:
    """Pr[label = majority of all K votes], exact; any label is where all K tie."""
    ones = np.arange(teachers + 1)
    if voters == teachers:
        one = np.asarray(mechanism.label_probabilities(np.stack([teachers - ones, ones], axis=1)))[:, 1]
    else:  # the majority of a fixed part: under a prior that treats teachers alike, of a random one
        one = subsampling_noise(teachers=teachers, allowance=voters).label_probability(ones)
    told = np.where(2 * ones > teachers, one, np.where(2 * ones < teachers, 1 - one, 1.0))
    law = prior.law(teachers)
    return min(1.0, float(law @ told) / float(law.sum()))


def _agrees(row: Strategy, agreement: float) -> bool:
    return row.meets and row.agreement is not None and row.agreement >= agreement - 1e-12


def _point(asked: Plan) -> PrivacyGuarantee:
    """The point of the teachers' profile that suits the target: (E / m, d / m) for the m that keeps it, or theirs."""
    if not asked.teacher.dp_sgd:
        return asked.teacher.guarantees()[0]
    target = asked._one_label
    m = _allowance(replace(asked, label_target=target, total_target=None)) or 1.0
    delta = min(1.0, target.delta / m)
    return PrivacyGuarantee(epsilon=asked.teacher.epsilon(delta), delta=delta)


def _allowance(asked: Plan) -> float:
    """The largest m up to r for which Q labels at (m eps, m Delta) keep the targets; 0 where there is none."""

    def fits(m: float) -> bool:
        return all(
            count * m * asked.teacher.epsilon(min(1.0, target.delta / (count * m) * _SLACK)) <= target.epsilon * _SLACK
            for count, target in asked._priced
        )

    if fits(asked.overlap):
        return float(asked.overlap)
    low, high = 0.0, float(asked.overlap)
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _searchable(points: Sequence[PrivacyGuarantee], asked: Plan) -> tuple[PrivacyGuarantee, ...]:
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


def _largest_epsilon(asked: Plan, mechanism: Callable[[float], Any], high: float) -> float:
    """The largest epsilon of one label with which all targets are kept by the coins alone."""

    def fits(epsilon: float) -> bool:
        priced = asked._priced
        return all(
            mechanism(epsilon).guarantee(labels=count, delta=target.delta).epsilon <= target.epsilon * _SLACK
            for count, target in priced
        )

    least = min(target.epsilon / count for count, target in asked._priced)
    low = min(least * _SLACK**2, high)
    if fits(high):
        return high
    for _ in range(24):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _most(fits: Callable[[int], bool], high: int) -> int:
    """The largest number in [1, high] that fits, 0 if none does; what is smaller fits too."""
    low, too_many = 0, high + 1
    while too_many - low > 1:
        middle = (low + too_many) // 2
        low, too_many = (middle, too_many) if fits(middle) else (low, middle)
    return low


def _smallest(enough: Callable[[float], bool], low: float, high: float, rounds: int) -> float | None:
    """The smallest number in [low, high] that is enough, to a ratio of (high / low)**(2**-rounds); None if none is."""
    if not enough(high):
        return None
    if enough(low):
        return low
    for _ in range(rounds):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _floor(share: float) -> float:
    """Three digits, rounded down: what is less than 1 is not shown as 1."""
    return math.floor(share * 1000 + 1e-9) / 1000


def _pair(target: PrivacyGuarantee | None) -> list[float] | None:
    return None if target is None else [target.epsilon, target.delta]


def _wrapped(text: str) -> str:
    return textwrap.fill(text, _WIDTH, subsequent_indent="  ", break_on_hyphens=False)
