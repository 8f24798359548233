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

from scipy import optimize

from ..errors import InvalidArgument, check_integer, check_number
from ..noise.plurality_priors import VAGUE_VOTES, PluralityPrior, check_plurality_prior
from ..noise.priors import IndependentVotes, Prior, check_prior
from ..noise.regions import check_overlap, check_target, teacher_profile
from ..privacy.guarantees import PrivacyGuarantee, format_bound
from ..privacy.profiles import PrivacyProfile
from .candidates import SLACK
from .strategies import TRAINING, Family, Question, Strategy, families, resting_on_teachers

__all__ = ["Plan", "TeachersNeeded", "plan"]

_WIDTH = 79
_MOST_TEACHERS = 5_000  # a thousand take ten seconds, and more than nine times as long for three times as many
_POOR = 0.1  # above the agreement of a label drawn at random


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
            ways.append(f"a noise multiplier of {format_bound(self.noise_multiplier)} or more")
        if self.steps is not None:
            ways.append(f"at most {self.steps} steps")
        if self.teacher is not None:
            ways.append(f"to be {self.teacher} each, or better")
        if not ways:
            return f"For an agreement of {self.agreement:g} no change of the teachers' noise or steps is enough."
        return f"For an agreement of {self.agreement:g} the teachers would need {', or '.join(ways)}."


@dataclass(frozen=True, kw_only=True)
class Plan(Question):
    """Every strategy for a budget, best first: those that keep it, by agreement.

    Agreements that are equal to three digits count as equal; then no noise goes before noise, and coins that protect
    whatever the teachers are before noise that rests on their training.

    Attributes:
        teachers, teacher, overlap, labels, label_target, total_target, prior, classes: what was asked; of ``teacher``
            the profile that holds for each.
        rows: the strategies.
    """

    rows: tuple[Strategy, ...] = ()

    @property
    def best(self) -> Strategy | None:
        """The recommendation; None when nothing keeps the targets."""
        return self.rows[0] if self.rows and self.rows[0].meets else None

    def at(self, epsilon: float) -> Plan:
        """The same question at another ``epsilon`` of all labels (or of one); with two targets both are scaled."""
        scale = epsilon / self.targets[-1].epsilon
        return _solved(self._scaled(scale))

    def costs(
        self, agreement: float, *, on_progress: Callable[[str], None] = lambda name: None
    ) -> tuple[tuple[str, float], ...]:
        """What an agreement costs: for each strategy the least epsilon, at the deltas of the targets, cheapest first.

        Without noise as many teachers vote as the agreement needs, which may be fewer than all: the name says how many.
        Where there are targets for one label and for all, both epsilons are scaled together, and that for all is given.

        Args:
            agreement: in (0, 1].
            on_progress: called with the name of each strategy when it is done.

        Raises:
            InvalidArgument: an agreement out of range.
        """
        wanted = check_number("agreement", agreement, low=0.0, high=1.0, low_open=True)
        found: dict[str, tuple[str, float]] = {}
        for name, build in families(self.classes).items():
            most = math.inf
            if name.endswith(TRAINING):  # of interest only where it is cheaper than no noise, and than coins alone
                rivals = (f"noise-free {self.winner}", name.removesuffix(TRAINING))
                most = min(found[rival][1] if rival in found else math.inf for rival in rivals) * 0.999
            cost = self._least_epsilon(build, wanted, most)
            on_progress(name)
            if cost is not None:
                found[name] = cost
        return tuple(sorted(found.values(), key=lambda pair: pair[1]))

    def teachers_needed(self, agreement: float, *, on_progress: Callable[[], None] = lambda: None) -> TeachersNeeded:
        """What the teachers would have to be, all else as asked, for a strategy that rests on them to agree so often.

        Teachers of one DP-SGD run: the least noise multiplier, and the most steps, to about one percent, and up to 16
        times what they have. Others: the largest epsilon of each, at the delta that they have, or, where they have none
        or one that is too large, at the r-th part of the targets' smallest delta: the deltas of the r teachers whom one
        record can touch then add up to that.

        Args:
            agreement: in (0, 1].
            on_progress: called after each of the about thirty kinds of teachers that are tried.

        Raises:
            InvalidArgument: an agreement out of range.
        """
        wanted = check_number("agreement", agreement, low=0.0, high=1.0, low_open=True)

        def least(profile: Callable[[float], PrivacyProfile], low: float, high: float, within: float) -> float | None:
            """The smallest number whose teachers are good enough for one of the strategies; the quick ones first."""
            found = None
            for build in resting_on_teachers(self.classes):

                def agreement(number: float, build: Family = build) -> float:
                    on_progress()
                    return _agreement(_best(build(replace(self, teacher=profile(number)))))

                # Each only where it needs less than those before.
                less = _smallest(agreement, wanted, low, high, within) if high > low else None
                if less is not None:
                    found, high = less, less / within
            return found

        if len(self.teacher.dp_sgd) == 1 and not self.teacher.promises:
            ((noise, rate, steps),) = self.teacher.dp_sgd

            def run(noise: float, steps: float) -> PrivacyProfile:
                return PrivacyProfile.from_dp_sgd([(noise, rate, max(1, math.floor(steps)))])

            part = least(lambda part: run(noise, steps / part), 1 / 16, max(16.0, steps), 1.01)
            return TeachersNeeded(
                agreement=wanted,
                noise_multiplier=least(lambda noise: run(noise, steps), noise / 16, noise * 16, 1.01),
                steps=None if part is None else max(1, math.floor(steps / part)),
            )
        deltas = [min(target.delta for target in self.targets) / self.overlap]
        if self.teacher.is_private:
            deltas = [max(point.delta for points, _ in self.teacher.promises for point in points), *deltas]
        for delta in dict.fromkeys(deltas):

            def point(inverse: float, delta: float = delta) -> PrivacyGuarantee:
                return PrivacyGuarantee(epsilon=1 / inverse * SLACK, delta=delta)

            largest = least(lambda inverse: PrivacyProfile.from_guarantee(point(inverse)), 1e-2, 1e6, 1.001)
            if largest is not None:
                return TeachersNeeded(agreement=wanted, teacher=point(largest))
        return TeachersNeeded(agreement=wanted)

    def to_dict(self) -> dict[str, Any]:
        """All of it, ready for JSON."""
        return {
            "teachers": self.teachers,
            "classes": self.classes,
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
        marked = [row.name + " *" * row.own_randomness for row in self.rows]
        wide = max(31, *map(len, marked))
        of_one = 48 - wide
        label = f"label{'s' * many}" + f", of {self.classes} classes" * (self.classes > 2)
        lines = [
            _wrapped(
                f"{self.teachers} teachers, {self._teacher_words}; one record touches {self.overlap} of them; "
                f"{self.labels} {label}. Target: {self._target_words}. Votes: {self._prior_words}."
            ),
            "",
            f"  {'strategy':<{wide}}{'agreement':>11}{'epsilon of one':>{of_one}}{'of all' * many:>{12 * many}}  kept",
        ]
        for name, row in zip(marked, self.rows, strict=True):
            numbers = "none".rjust(11) if row.agreement is None else f"{_floor(row.agreement):>11.3f}"
            for bound, width in ((row.label, of_one), (row.total, 12))[: 1 + many]:
                numbers += ("none" if bound is None else format_bound(bound.epsilon)).rjust(width)
            lines.append(f"  {name:<{wide}}{numbers}  {'yes' if row.meets else 'no'}")
        error = max(row.standard_error for row in self.rows)
        exactness = f"to a standard error of {error:.1g}" if error else "exact"
        at = dict.fromkeys(format_bound(bound.delta, 3) for bound in (self.rows[0].label, self.rows[0].total) if bound)
        lines += [
            "",
            _wrapped(
                f"Agreement: with the {self.winner} of all teachers, expected under the prior, {exactness}. "
                + (f"Epsilons in nats, at delta {', '.join(at)}." if at else "")
            ),
            _wrapped(
                "* Rests on the mechanism's own randomness alone, another assumption: the teachers may be trained "
                "without "
                "privacy (and are then often better), but must themselves stay secret for ever."
            ),
        ]
        if any(row.name.endswith(TRAINING) for row in self.rows):
            lines.append(_wrapped(f"{TRAINING.strip()}: rests on the coins and on the teachers' training together."))
        lines.append("")
        if self.best is None:
            lines.append(_wrapped("Recommendation: none of these keeps the target. Reasons:"))
        else:
            lines.append(_wrapped(f"Recommendation: {self.best.name}. {self.best.reason}"))
            lines.append(_wrapped(f"In Python: {self.best.code}"))
            if (self.best.agreement or 0.0) < 1 / self.classes + _POOR:
                chance = "a coin" if self.classes == 2 else "guessing"
                lines.append(
                    _wrapped(
                        f"That is hardly better than {chance}: train teachers with more privacy of their own, have a "
                        "record touch fewer of them, or allow more."
                    )
                )
            lines += ["", "The others:"] if len(self.rows) > 1 else []
        others = self.rows if self.best is None else self.rows[1:]
        lines += [_wrapped(f"- {row.name}: {row.reason}") for row in others]
        return "\n".join(lines)

    @property
    def _teacher_words(self) -> str:
        if not self.teacher.is_private:
            return "without privacy of their own"
        if self.teacher.dp_sgd:
            delta = self.targets[0].delta
            return f"each ({format_bound(self.teacher.epsilon(delta))}, {format_bound(delta, 3)})-DP"
        return "each " + " and ".join(map(str, self.teacher.guarantees()))

    @property
    def _target_words(self) -> str:
        words = [] if self.label_target is None else [f"one label {self.label_target}"]
        return " and ".join(words + ([] if self.total_target is None else [f"all labels {self.total_target}"]))

    @property
    def _prior_words(self) -> str:
        if not isinstance(self.prior, tuple):
            return str(self.prior)
        parts = [
            f"{one.accuracy:g}" + f" (concentration {one.concentration:g})" * math.isfinite(one.concentration)
            for one in self.prior
        ]
        return f"teachers are right with chance {' or '.join(parts)}{', equally likely' * (len(parts) > 1)}"

    def _scaled(self, factor: float) -> Plan:
        def scaled(target: PrivacyGuarantee | None) -> PrivacyGuarantee | None:
            return target and replace(target, epsilon=target.epsilon * factor)

        return replace(self, label_target=scaled(self.label_target), total_target=scaled(self.total_target), rows=())

    def _least_epsilon(self, build: Family, agreement: float, most: float) -> tuple[str, float] | None:
        """The name of the strategy that reaches the agreement, and the epsilon."""
        epsilon, names = max(self.targets[-1].epsilon, 1e-3), {}

        def reached(allowed: float) -> float:
            kept = _best(build(self._scaled(allowed / self.targets[-1].epsilon)))
            names[allowed] = "" if kept is None else kept.name
            return _agreement(kept)

        least = _smallest(reached, agreement, min(epsilon / 1024, most), min(epsilon * 1024, most), 1.003)
        return None if least is None else (names[least], least)


def plan(
    *,
    teachers: int,
    teacher: PrivacyProfile | PrivacyGuarantee | Iterable[PrivacyProfile | PrivacyGuarantee] | None = None,
    overlap: int | None = None,
    labels: int = 1,
    label_target: PrivacyGuarantee | None = None,
    total_target: PrivacyGuarantee | None = None,
    prior: Prior | PluralityPrior | None = None,
    classes: int = 2,
    on_progress: Callable[[str], None] = lambda name: None,
) -> Plan:
    """Every strategy for a budget: what is proven of it, how often it tells the majority or the plurality, and why.

    Args:
        teachers: K.
        teacher: what each promises as a trained model: a profile, a guarantee, or one of these for each teacher (then
            ``PrivacyProfile.weakest`` of them stands for all); None: nothing.
        overlap: r, how many teachers one record can touch; None: all.
        labels: Q, how many labels will be released.
        label_target: what each label must keep by itself.
        total_target: what all labels together must keep. One of the two targets is needed.
        prior: how the teachers are believed to vote; from public knowledge. None: ``IndependentVotes(mean=0.75)``
            for two classes; for more, vaguely that a teacher is right with chance 0.5, 0.7 or 0.9, each by itself, or
            with chance 0.7 with all finding the same items hard. For more than two classes :class:`PluralityVotes`, or
            several.
        classes: C. With two, noise is DaRRM's; with more, tables of many classes take its place.
        on_progress: called with the name of each kind of strategies when it is done.

    Raises:
        InvalidArgument: bad input, or no target.

    >>> paper = PrivacyProfile.from_dp_sgd([(12.0, 1 / 35, 175)])
    >>> answer = plan(teachers=11, teacher=paper, label_target=PrivacyGuarantee(epsilon=0.2555, delta=3e-4))
    >>> answer.best.name, answer.best.agreement
    ('noise-free majority', 1.0)
    >>> answer = plan(teachers=11, teacher=paper, classes=10, label_target=PrivacyGuarantee(epsilon=0.1, delta=1e-4))
    >>> answer.best.name, round(answer.best.agreement, 2)
    ('self-bounding plurality', 0.77)
    """
    count = check_integer("teachers", teachers, low=1, high=_MOST_TEACHERS)
    if label_target is None and total_target is None:
        raise InvalidArgument(
            "label_target", "given, or total_target", None, "Say what one label, or all together, may cost."
        )
    for name, target in (("label_target", label_target), ("total_target", total_target)):
        if target is not None:
            epsilon = check_target(target, name).epsilon
            check_number(f"{name}.epsilon", epsilon, low=0.0, low_open=True, high=math.inf, high_open=True)
    many = check_integer("classes", classes, low=2) > 2
    if prior is None:
        prior = VAGUE_VOTES if many else IndependentVotes()
    return _solved(
        Plan(
            teachers=count,
            classes=classes,
            teacher=PrivacyProfile.non_private() if teacher is None else teacher_profile(teacher, count),
            overlap=check_overlap(overlap, count),
            labels=check_integer("labels", labels, low=1),
            label_target=label_target,
            total_target=total_target,
            prior=check_plurality_prior(prior) if many else check_prior(prior),
        ),
        on_progress,
    )


def _solved(asked: Plan, on_progress: Callable[[str], None] = lambda name: None) -> Plan:
    rows: list[Strategy] = []
    for kind, build in families(asked.classes).items():
        if not (kind.endswith(TRAINING) and rows[0].meets):  # where no noise is needed, nobody asks for the best
            rows += build(asked)
        on_progress(kind)
    rows = [row for row in rows if not row.name.endswith(TRAINING) or _gains(row, rows)]
    order = sorted(rows, key=lambda row: (not row.meets, row.agreement is None, -round(row.agreement or 0.0, 3)))
    best, second = order[0], next((row for row in order[1:] if row.meets), None)
    ranked = []
    for row in order:
        reason = row.reason
        if row is best and row.meets and second is not None:
            reason += f" Next best: {second.name}, {_floor(second.agreement or 0):.3f}."
            free = next((one for one in order if one.name == f"noise-free {asked.winner}" and not one.meets), None)
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


def _gains(row: Strategy, rows: Sequence[Strategy]) -> bool:
    """Whether it is worth a row that the teachers' training counts, too: the coins alone agree less often."""
    alone = row.name.removesuffix(TRAINING)
    known = [one.agreement or 0.0 for one in rows if one.own_randomness and one.name.startswith(alone)]
    return row.meets and round(row.agreement or 0.0, 3) > round(max(known), 3)


def _best(rows: Sequence[Strategy]) -> Strategy | None:
    """The one that agrees most often of those that keep the targets."""
    return max((row for row in rows if row.meets), key=_agreement, default=None)


def _agreement(row: Strategy | None) -> float:
    return 0.0 if row is None else row.agreement or 0.0


def _smallest(value: Callable[[float], float], wanted: float, low: float, high: float, within: float) -> float | None:
    """The smallest number in [low, high] whose ``value``, which rises, is ``wanted``, to a ratio of ``within``.

    None if that of ``high`` is less. What takes seconds is asked for as seldom as may be: from ``high`` down in steps
    that grow, then by Brent's method, which needs half as many as bisection.
    """
    known: dict[float, float] = {}

    def excess(log: float) -> float:
        if log not in known:
            more = value(math.exp(log)) - wanted + 1e-12
            # Brent's method ends where it is zero, also on a plateau.
            known[log] = more if more < 0 else max(more, 1e-4)
        return known[log]

    lower, bottom, step = math.log(high), math.log(low), math.log(2)
    if excess(lower) < 0:
        return None
    while excess(lower) > 0 and lower > bottom:
        lower, step = max(bottom, lower - step), 2 * step
    if excess(lower) < 0:
        upper = min(log for log, more in known.items() if more > 0)
        optimize.brentq(excess, lower, upper, xtol=math.log(within) / 2)
    return math.exp(min(log for log, more in known.items() if more > 0))


def _floor(share: float) -> float:
    """Three digits, rounded down: what is less than 1, by more than rounding, is not shown as 1."""
    return math.floor(share * 1000 + 1e-5) / 1000


def _pair(target: PrivacyGuarantee | None) -> list[float] | None:
    return None if target is None else [target.epsilon, target.delta]


def _wrapped(text: str) -> str:
    return textwrap.fill(text, _WIDTH, subsequent_indent="  ", break_on_hyphens=False)
