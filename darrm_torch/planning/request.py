"""A request to the planner: number of teachers, their promises, number of labels, and the most these may cost."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from ..bisection import last_within, relative_excess
from ..errors import InvalidArgument, check_integer, check_number
from ..mechanisms.base import MOST_LABELS
from ..mechanisms.gaussian import pure_composition
from ..mechanisms.plurality import MOST_CLASSES
from ..noise.grid import MOST_TEACHERS
from ..noise.plurality_priors import VAGUE_VOTES, PluralityVotes, check_plurality_prior
from ..noise.priors import Prior, check_prior
from ..noise.regions import check_overlap, check_target, teacher_profile
from ..privacy.allocation import RandomAllocation
from ..privacy.guarantees import PrivacyGuarantee
from ..privacy.profiles import PrivacyProfile
from ..privacy.release import PricedMechanism
from ..privacy.totals import TotalPrivacy, total_privacy
from .beliefs import Belief, check_any_prior, typical_votes

__all__ = ["SLACK", "Promised", "Request", "missing_target"]

SLACK = 1 - 1e-9
"""Calibration aims at this share of a target, so that rounding in the final price does not exceed it."""

_Priced = TypeVar("_Priced", bound=PricedMechanism)


@dataclass(frozen=True, kw_only=True)
class Request:
    """A question to the planner, checked.

    Args:
        teachers: K.
        classes: C.
        teacher: what each teacher promises as a trained model: a profile, a guarantee, or one of these for each
            teacher, whose weakest (:meth:`PrivacyProfile.weakest`) noise is built for; None: nothing. Stored as a
            profile. Prices are those of the worst teachers that one record can affect.
        overlap: r, the most teachers that one record can affect; None: all. Stored as a number.
        labels: Q, how many labels the same trained teachers will release.
        label_target: what each label must keep by itself.
        total_target: what all labels together must keep.
        allowance: m: a label costs what m teachers do. Given instead of targets.
        prior: how the teachers are believed to vote; None: as is typical.
        plain_prior: how teachers trained without privacy would vote; None: as ``prior`` says, or as is typical.
        allocation: how records were allocated to the teachers' shards, if each drew its shards at random and in
            secret. ``overlap`` is then that of the allocation, and may be left out.

    Raises:
        InvalidArgument: a value out of range, or an allocation to other teachers or with another overlap.
    """

    teachers: int
    classes: int = 2
    teacher: PrivacyProfile = None  # type: ignore[assignment]  # converted below, as the overlap is
    overlap: int = None  # type: ignore[assignment]
    labels: int = 1
    label_target: PrivacyGuarantee | None = None
    total_target: PrivacyGuarantee | None = None
    allowance: float | None = None
    prior: Belief | None = None
    plain_prior: Belief | None = None
    allocation: RandomAllocation | None = None

    def __post_init__(self) -> None:
        count = check_integer("teachers", self.teachers, low=1, high=MOST_TEACHERS)
        classes = check_integer("classes", self.classes, low=2, high=MOST_CLASSES)
        for name in ("label_target", "total_target"):
            if getattr(self, name) is not None:
                delta = check_target(getattr(self, name), name).delta
                check_number(f"{name}.delta", delta, low=0.0, high=1.0, high_open=True)
        overlap = check_overlap(self.overlap, count)
        if self.allocation is not None:
            if not isinstance(self.allocation, RandomAllocation) or self.allocation.teachers != count:
                raise InvalidArgument("allocation", f"a RandomAllocation to {count} teachers", self.allocation)
            if self.overlap not in (None, self.allocation.overlap):
                raise InvalidArgument("overlap", f"{self.allocation.overlap}, as in the allocation", self.overlap)
            overlap = self.allocation.overlap
        checked = {
            "teachers": count,
            "classes": classes,
            "teacher": PrivacyProfile.non_private() if self.teacher is None else teacher_profile(self.teacher, count),
            "overlap": overlap,
            "labels": check_integer("labels", self.labels, low=1, high=MOST_LABELS),
            "allowance": None
            if self.allowance is None
            else check_number("allowance", self.allowance, low=1e-6, high=math.inf, high_open=True),
            "prior": None if self.prior is None else check_any_prior(self.prior, classes),
            "plain_prior": None
            if self.plain_prior is None
            else check_any_prior(self.plain_prior, classes, "plain_prior"),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @property
    def winner(self) -> str:
        """What a label should be: the "majority" of two classes, the "plurality" of more."""
        return "majority" if self.classes == 2 else "plurality"

    @property
    def requirements(self) -> list[tuple[int, PrivacyGuarantee]]:
        """Pairs (number of labels, what they must keep together)."""
        both = ((1, self.label_target), (self.labels, self.total_target))
        return [(count, target) for count, target in both if target is not None]

    @property
    def targets(self) -> list[PrivacyGuarantee]:
        """The targets that were given: of one label, of all."""
        return [target for _, target in self.requirements]

    @property
    def one_label(self) -> PrivacyGuarantee:
        """What one label must keep: no more than any target allows."""
        return PrivacyGuarantee(
            epsilon=min(target.epsilon for target in self.targets), delta=min(target.delta for target in self.targets)
        )

    @property
    def belief(self) -> Belief:
        """How the teachers are believed to vote."""
        return typical_votes(self.classes) if self.prior is None else self.prior

    @property
    def majority_prior(self) -> Prior:
        """The prior that noise for two classes is optimised for.

        Raises:
            InvalidArgument: the prior is one for many classes.
        """
        return check_prior(self.belief)

    @property
    def plurality_prior(self) -> tuple[PluralityVotes, ...]:
        """The prior that tables are optimised for.

        Raises:
            InvalidArgument: the prior is one for noise of two classes.
        """
        return check_plurality_prior(VAGUE_VOTES if self.prior is None else self.prior)

    def with_plain_teachers(self) -> Request:
        """The same question about teachers that are trained without privacy, and where every draw is known."""
        belief = self.plain_prior or self.prior or typical_votes(self.classes, plain=True)
        nothing = replace(PrivacyProfile.non_private(), unit=self.teacher.unit)
        return replace(self, teacher=nothing, allocation=None, prior=belief, plain_prior=None)

    @property
    def allowance_overlaps(self) -> tuple[int, ...]:
        """The overlaps for which noise whose labels add up may be built.

        Random allocation prices it by its allowance for all K teachers (theory, section 14), the other bounds by that
        for the r teachers that one record affects.
        """
        if self.allocation is None or self.allowance is not None:
            return (self.overlap,)
        return tuple({self.teachers: None, self.overlap: None})

    def sample_sizes(self, most: int) -> list[int]:
        """How many votes are worth reading: for two classes an even number says no more than one vote less."""
        return [count for count in range(1, most + 1) if count % 2 or (count > 2 and self.classes > 2)]

    def price(self, mechanism: PricedMechanism, labels: int, delta: float) -> TotalPrivacy:
        """The proven cost of ``labels`` labels, by the teachers that the mechanism reads."""
        unlike = self.teacher.unlike
        return total_privacy(
            teachers=unlike if len(unlike) == self.teachers else [self.teacher] * self.teachers,
            overlap=self.overlap,
            mechanism=mechanism,
            labels=labels,
            delta=delta,
            neighbours=self.teacher.unit.neighbours,
            allocation=self.allocation,
        )

    def keeps(self, mechanism: PricedMechanism, slack: float = 1.0) -> bool:
        """Whether the mechanism keeps every target, or the allowance, times ``slack``."""
        return self._excess(mechanism, slack) <= 0

    def _excess(self, mechanism: PricedMechanism, slack: float) -> float:
        """By which part it exceeds a target, or the allowance, times ``slack``; at most 0 if it keeps all of them."""
        if self.allowance is not None:
            cost = mechanism.self_bounding_allowance(teachers=self.teachers, overlap=self.overlap)
            return relative_excess(cost, self.allowance * slack)
        worst = -1.0
        for count, target in self.requirements:
            worst = max(
                worst, relative_excess(self.price(mechanism, count, target.delta).epsilon, target.epsilon * slack)
            )
            if worst > 0:
                break
        return worst

    def strongest(
        self,
        make: Callable[[float], _Priced],
        low: float,
        high: float,
        *,
        tolerance: float = 2.0**-20,
        slack: float = SLACK,
    ) -> float:
        """The largest strength in [low, high] at which what ``make`` builds keeps the targets, by bisection.

        Args:
            make: builds a mechanism of a given strength. A weaker one must cost less.
            low, high: both positive.
            tolerance: relative, of the strength.
            slack: the share of a target that may be used.

        Raises:
            InvalidArgument: not even ``low`` keeps the targets.
        """

        @functools.cache
        def excess(strength: float) -> float:
            return self._excess(make(strength), slack)

        if excess(high) <= 0:
            return high
        if excess(low) > 0:
            raise self.unmet()
        return last_within(excess, low, high, tolerance=tolerance, geometric=True)

    def unmet(self) -> InvalidArgument:
        """The error to raise where no strength of a mechanism keeps the targets."""
        name = "allowance" if self.allowance else "total_target" if self.label_target is None else "label_target"
        counted = [f"{target} for {count} label{'s' * (count != 1)}" for count, target in self.requirements]
        cure = "Raise it, or state how many teachers one record can affect, if that is not all of them."
        if not self.teacher.is_private:
            cure = "Nothing is stated of the teachers. If they are private, give what each of them promises."
        expected = "one that some strength of this mechanism keeps"
        return InvalidArgument(name, expected, " and ".join(counted) or self.allowance, cure)


@dataclass(frozen=True)
class Promised:
    """Noise before it is built: it adds up at ``allowance`` teachers' worth, or hides one vote at ``vote_epsilon``.

    The allowance holds for an overlap of up to ``overlap`` teachers.
    """

    allowance: float = math.inf
    vote_epsilon: float = math.inf
    overlap: float = math.inf
    certificate: None = None

    def self_bounding_allowance(self, *, teachers: int, overlap: int) -> float:
        """The m that its labels add up at; infinite where nothing is said about so large an overlap."""
        return self.allowance if overlap <= self.overlap else math.inf

    def guarantee(self, *, labels: int, delta: float, overlap: int) -> PrivacyGuarantee | None:
        """What its own randomness promises when ``overlap`` votes change; None if nothing."""
        if math.isinf(self.vote_epsilon):
            return None
        epsilon = self.vote_epsilon * overlap
        return pure_composition(epsilon, epsilon**2 / 2, labels=labels, delta=delta)


def missing_target() -> InvalidArgument:
    """The error to raise where nothing says how strong the noise must be."""
    return InvalidArgument(
        "label_target", "given, or total_target", None, "Say what one label, or all together, may cost."
    )
