"""Which way of releasing labels for which budget: every strategy that keeps it, what it is worth, and why.

Everything here is public: votes follow a prior, totals come from :func:`darrm_torch.total_privacy`, and no vote is
looked at. Nothing in this wing proves anything about privacy by itself.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

from ..arguments import checked
from ..errors import DarrmError, check_integer, check_number
from ..mechanisms.noise_free import NoiseFreeMajority
from ..mechanisms.plurality import MOST_CLASSES
from ..noise.plurality_priors import PluralityPrior
from ..noise.priors import Prior
from ..privacy.allocation import RandomAllocation
from ..privacy.guarantees import PrivacyGuarantee
from ..privacy.profiles import PrivacyProfile
from ..reprs import fenced
from . import builders
from .beliefs import Accuracy, stated_beliefs
from .families import Family, families
from .needs import TeachersNeeded, smallest, teachers_needed
from .one_model import OneModel, one_model
from .order import compared, ordered
from .presentation import plan_text, plan_values
from .request import Request, missing_target
from .strategies import Strategy

__all__ = ["Plan", "TeachersNeeded", "plan"]

_JURIES = 15  # sizes of juries among which the first that wins is searched
_MOST_TEACHERS = 5_000  # a thousand take ten seconds, and three times as many take more than nine times as long


@dataclass(frozen=True, kw_only=True)
class Plan(Request):
    """Every strategy for a budget, best first: those that keep it, by expected accuracy.

    Accuracies that are equal to three digits count as equal. Then no noise comes before noise, and randomness that
    protects whatever the teachers are comes before noise that rests on their training. Where votes or accuracies are
    stated, of two classes, the first is the best under typical votes of those within half a percent of the best:
    accuracies on other data are not known any better.

    Attributes:
        teachers, classes, teacher, overlap, labels, label_target, total_target, allocation: the question, checked;
            ``teacher`` is the profile that holds for each.
        prior: how the teachers are believed to vote.
        plain_prior: how teachers that are trained without privacy are believed to vote.
        rows: the strategies.
        juries_win_from: with random allocation, the epsilon of all labels (or of one) from which a noise-free jury
            agrees more often than self-bounding noise of the same price; None if it nowhere does.
        one_model: one private model that keeps the target, for discussion; None unless the teachers' DP-SGD is known.

    Raises:
        InvalidArgument: a value out of range, or no target.
    """

    rows: tuple[Strategy, ...] = ()
    juries_win_from: float | None = None
    one_model: OneModel | None = None

    def __post_init__(self) -> None:
        check_integer("teachers", self.teachers, low=1, high=_MOST_TEACHERS)
        if not self.requirements:
            raise missing_target()
        super().__post_init__()
        for name in ("label_target", "total_target"):
            if (target := getattr(self, name)) is not None:
                check_number(f"{name}.epsilon", target.epsilon, low=0.0, low_open=True, high=math.inf, high_open=True)
        private, plain = stated_beliefs(
            teachers=self.teachers,
            classes=self.classes,
            is_private=self.teacher.is_private,
            prior=self.prior,
            plain_prior=self.plain_prior,
        )
        object.__setattr__(self, "prior", private)
        object.__setattr__(self, "plain_prior", plain)

    @property
    def best(self) -> Strategy | None:
        """The recommendation; None when nothing keeps the targets."""
        return self.rows[0] if self.rows and self.rows[0].meets else None

    @checked
    def at(self, epsilon: float) -> Plan:
        """The same question at another ``epsilon`` of all labels (or of one); with two targets both are scaled."""
        factor = check_number("epsilon", epsilon, low=0.0) / self.targets[-1].epsilon
        return self if self.rows and math.isclose(factor, 1.0, rel_tol=1e-12) else _solved(self._scaled(factor))

    @checked
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
        cheapest: dict[tuple[str, str], tuple[str, float]] = {}
        for family in families(self.classes):
            most = math.inf
            if (
                family.rests_on == "both"
            ):  # of interest only where it is cheaper than no noise, and than randomness alone
                rivals = (("noise-free", "teachers"), (family.kind, "randomness"))
                most = min(cheapest[rival][1] if rival in cheapest else math.inf for rival in rivals) * 0.999
            cost = self._least_epsilon(family, wanted, most)
            on_progress(family.kind)
            if cost is not None:
                cheapest[family.kind, family.rests_on] = cost
        return tuple(sorted(cheapest.values(), key=lambda pair: pair[1]))

    @checked
    def teachers_needed(self, agreement: float, *, on_progress: Callable[[], None] = lambda: None) -> TeachersNeeded:
        """What the teachers would have to be for a strategy that rests on them to agree so often, all else unchanged.

        Teachers of one DP-SGD run: the least noise multiplier, and the most steps, to about one percent, and up to 16
        times what they have. Others: the largest epsilon of each, at the delta that they have. Where they have none, or
        one that is too large, at the r-th part of the targets' smallest delta: the deltas of the r teachers that one
        record can affect then add up to that.

        Args:
            agreement: in (0, 1].
            on_progress: called before each of the about thirty kinds of teachers that are tried.

        Raises:
            InvalidArgument: an agreement out of range.
        """
        wanted = check_number("agreement", agreement, low=0.0, high=1.0, low_open=True)
        return teachers_needed(replace(self, rows=()), wanted, on_progress)

    def to_dict(self) -> dict[str, Any]:
        """All of it, ready for JSON."""
        values = plan_values(self, self.rows, self.best) | {"juries_win_from": self.juries_win_from}
        return values | {"one_model": None if self.one_model is None else self.one_model.to_dict()}

    def __repr__(self) -> str:
        best = "nothing keeps the target" if self.best is None else f"best {self.best.name}"
        asked = f"{self.teachers} teachers, {self.classes} classes, overlap {self.overlap}, {self.labels} labels"
        return f"<Plan: {asked}; {len(self.rows)} strategies, {best}>"

    def _repr_markdown_(self) -> str:
        return fenced(self)

    def __str__(self) -> str:
        """For 80 columns."""
        return plan_text(self, self.rows, self.best, self.juries_win_from, self.one_model)

    def _scaled(self, factor: float) -> Plan:
        def scaled(target: PrivacyGuarantee | None) -> PrivacyGuarantee | None:
            return target and replace(target, epsilon=target.epsilon * factor)

        return replace(self, label_target=scaled(self.label_target), total_target=scaled(self.total_target), rows=())

    def _least_epsilon(self, family: Family, agreement: float, most: float) -> tuple[str, float] | None:
        """The name of the strategy that reaches the agreement, and the epsilon."""
        epsilon, names = max(self.targets[-1].epsilon, 1e-3), {}

        def reached(allowed: float) -> float:
            rows = family.rows(self._scaled(allowed / self.targets[-1].epsilon))
            kept = ((row.agreement or 0.0, row.name) for row in rows if row.meets)
            best, names[allowed] = max(kept, key=itemgetter(0), default=(0.0, ""))
            return best

        least = smallest(reached, agreement, min(epsilon / 1024, most), min(epsilon * 1024, most), 1.003)
        return None if least is None else (names[least], least)


@checked
def plan(
    *,
    teachers: int,
    teacher: PrivacyProfile | PrivacyGuarantee | Iterable[PrivacyProfile | PrivacyGuarantee] | None = None,
    overlap: int | None = None,
    labels: int = 1,
    label_target: PrivacyGuarantee | None = None,
    total_target: PrivacyGuarantee | None = None,
    prior: Prior | PluralityPrior | None = None,
    plain_prior: Prior | PluralityPrior | None = None,
    teacher_accuracy: Accuracy | None = None,
    plain_accuracy: Accuracy | None = None,
    classes: int = 2,
    allocation: RandomAllocation | None = None,
    on_progress: Callable[[str], None] = lambda kind: None,
) -> Plan:
    """Compare the strategies for a budget: the proven cost of each, how often its labels are right, and why.

    Strategies that rest on the teachers' training need private teachers. The mechanism's own randomness also protects
    teachers that are trained without privacy, which are often better. So their accuracies are two beliefs, and the plan
    compares labels by their expected accuracy under the belief that applies. Beliefs must come from public knowledge:
    for instance the accuracies of teachers that are trained, with and without noise, on a public data set of the same
    kind. They never affect privacy.

    Args:
        teachers: K.
        teacher: what each promises as a trained model: a profile, a guarantee, or one of these for each teacher (then
            noise is built for ``PrivacyProfile.weakest`` of them, and priced for the worst r); None: nothing.
        overlap: r, the most teachers that one record can affect; None: all.
        labels: Q, how many labels will be released.
        label_target: what each label must keep by itself.
        total_target: what all labels together must keep. One of the two targets is needed.
        prior: how the teachers are believed to vote, the true class being 1. None: as ``teacher_accuracy`` says; where
            nothing is stated, ``BetaVotes(a=1.6, b=0.4)`` for two classes (a teacher is right with chance 0.8, and
            items are easy or hard for all of them); for more, a vague prior: a teacher is right with chance 0.5, 0.7
            or 0.9, independently of the others, or with chance 0.7 where the same items are hard for all. For more
            than two classes :class:`PluralityVotes`, or several.
        plain_prior: how teachers trained without privacy are believed to vote. None: as ``plain_accuracy`` says, or
            else as ``prior``; where nothing is stated, one is as accurate as the majority of many private ones.
        teacher_accuracy: instead of ``prior``: the accuracy of one teacher, in (1 / C, 1), or a pair: of one teacher
            and of the majority of all. The pair says how far the teachers err on the same items. An estimate of
            :func:`validate` may stand for a number: it is public.
        plain_accuracy: instead of ``plain_prior``: that of teachers trained without privacy.
        classes: C. With two, noise is DaRRM's; with more, tables of many classes take its place.
        allocation: how records were allocated to the teachers' shards, if each drew its shards at random and in
            secret. All strategies that rest on the teachers are then priced with it; ``overlap`` is that of the
            allocation.
        on_progress: called with each kind of strategies when it is done.

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
    if teacher_accuracy is not None or plain_accuracy is not None:
        prior, plain_prior = stated_beliefs(
            teachers=check_integer("teachers", teachers, low=1, high=_MOST_TEACHERS),
            classes=check_integer("classes", classes, low=2, high=MOST_CLASSES),
            is_private=teacher is not None,
            prior=prior,
            plain_prior=plain_prior,
            teacher_accuracy=teacher_accuracy,
            plain_accuracy=plain_accuracy,
        )
    question = Plan(
        teachers=teachers,
        classes=classes,
        teacher=teacher,  # type: ignore[arg-type]  # checked and converted there
        overlap=overlap,  # type: ignore[arg-type]
        labels=labels,
        label_target=label_target,
        total_target=total_target,
        prior=prior,  # type: ignore[arg-type]
        plain_prior=plain_prior,  # type: ignore[arg-type]
        allocation=allocation,
    )
    if allocation is not None and question.teacher.is_private:
        question = replace(question, juries_win_from=_juries_win_from(question))
    return _solved(replace(question, one_model=one_model(question)), on_progress)


def _juries_win_from(question: Plan) -> float | None:
    """The price of the smallest jury that agrees more often than self-bounding noise of the same price."""
    labels, target = question.requirements[-1]
    sizes = question.sample_sizes(question.teachers - 1)
    sizes = sizes[:: math.ceil(len(sizes) / _JURIES) or 1]

    def price(size: int) -> float:
        jury = NoiseFreeMajority(classes=question.classes, teachers=question.teachers, jury=size)
        return question.price(jury, labels, target.delta).epsilon

    def wins(size: int) -> bool:
        epsilon = price(size)
        if not 0 < epsilon < math.inf:
            return epsilon == 0
        allowed = replace(target, epsilon=epsilon)
        rival = replace(question, label_target=None, labels=labels, total_target=allowed)
        try:
            noise = builders.self_bounding(rival, tolerance=2.0**-10)
        except DarrmError:
            return True
        jury = NoiseFreeMajority(classes=question.classes, teachers=question.teachers, jury=size)
        errors = [1 - builders.agreement(question, one)[0] for one in (jury, noise)]
        return errors[0] < 0.99 * errors[1]  # not by rounding alone

    first = bisect_left(sizes, True, key=wins)
    return price(sizes[first]) if first < len(sizes) else None


def _solved(question: Plan, on_progress: Callable[[str], None] = lambda kind: None) -> Plan:
    rows: list[Strategy] = []
    for family in families(question.classes):
        if not (family.rests_on == "both" and rows[0].meets):  # no noise is needed: the best is known
            rows += family.rows(question)
        on_progress(family.kind)
    rows = ordered(question, rows)
    return replace(question, rows=tuple(replace(row, reason=row.reason + compared(row, rows)) for row in rows))
