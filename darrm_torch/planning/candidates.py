"""Any number of classes: every mechanism as strong as a budget allows, what is proven of it, and what it is worth.

Everything here is public: votes follow a prior, totals come from :func:`darrm_torch.total_privacy`, and no vote is
looked at. Nothing in this module proves anything about privacy by itself.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from ..arrays import FloatArray, IntArray
from ..errors import DarrmError, InvalidArgument, check_integer, check_number
from ..mechanisms import (
    DaRRM,
    ExponentialMechanism,
    GNMax,
    Mechanism,
    NoiseFreeMajority,
    PermuteAndFlip,
    RandomizedPlurality,
    SelfBoundingPlurality,
    VotePrivatePlurality,
)
from ..mechanisms.gaussian import pure_composition
from ..noise.function import NoiseFunction, self_bounding_noise, subsampling_noise
from ..noise.grid import on_grid
from ..noise.histograms import standings, votes_within
from ..noise.plurality_priors import VAGUE_VOTES, PluralityPrior, PluralityVotes, check_plurality_prior
from ..noise.regions import check_overlap, check_target, teacher_profile
from ..noise.self_bounding import certify_self_bounding, self_bounding_allowance
from ..privacy.guarantees import PrivacyGuarantee
from ..privacy.profiles import PrivacyProfile
from ..privacy.totals import PricedMechanism, TotalPrivacy, total_privacy

__all__ = [
    "SLACK",
    "PluralityCandidate",
    "Promised",
    "expected_accuracy",
    "expected_agreement",
    "label_chances",
    "plurality_candidates",
    "strongest_mechanism",
]

SLACK = 1 - 1e-9
"""What is left under a target, for the rounding of what is then proven. What is found must keep the target itself."""

_LISTED = 1000  # histograms that are gone through one by one
_LISTED_PARTS = 100  # where of each histogram all samples are gone through
_SAMPLES = 1000  # where they are more


@dataclass(frozen=True, kw_only=True)
class PluralityCandidate:
    """One way of releasing labels of many classes.

    Attributes:
        name: a short name.
        mechanism: ready to use, as strong as the targets allow; None where there is none.
        label, total: what is proven of one label, and of all, at the deltas of their targets; None without a mechanism.
        accuracy: the chance under the prior that a label is the true class.
        standard_error: of ``accuracy``; 0 where it is exact.
        meets: whether it keeps every target.
        reason: why there is no mechanism; otherwise empty.
    """

    name: str
    mechanism: Mechanism | None
    label: TotalPrivacy | None = None
    total: TotalPrivacy | None = None
    accuracy: float = 0.0
    standard_error: float = 0.0
    meets: bool = False
    reason: str = ""


def plurality_candidates(
    *,
    teachers: int,
    classes: int,
    teacher: PrivacyProfile | PrivacyGuarantee | Iterable[PrivacyProfile | PrivacyGuarantee] | None = None,
    overlap: int | None = None,
    labels: int = 1,
    label_target: PrivacyGuarantee | None = None,
    total_target: PrivacyGuarantee | None = None,
    prior: PluralityPrior = VAGUE_VOTES,
) -> tuple[PluralityCandidate, ...]:
    """What there is for a budget: those that keep it first, and of these the most accurate.

    Accuracies that are equal to three digits count as equal; then the simpler one goes first: no noise, closed forms,
    tables.

    Args:
        teachers: K.
        classes: C.
        teacher: what each promises as a trained model, or one for each teacher; None: nothing.
        overlap: r, how many teachers one record can touch; None: all.
        labels: Q, how many labels will be released, all of the same trained teachers.
        label_target: what each label must keep by itself.
        total_target: what all labels together must keep. One of the two targets is needed.
        prior: how the teachers are believed to vote; from public knowledge.

    Raises:
        InvalidArgument: bad input, or no target.

    >>> best, *_ = plurality_candidates(
    ...     teachers=11, classes=3, overlap=1, label_target=PrivacyGuarantee(epsilon=0.5, delta=1e-5)
    ... )
    >>> best.name, round(best.accuracy, 2)
    ('vote-private table', 0.74)
    """
    asked = _Asked.read(teachers, classes, teacher, overlap, labels, label_target, total_target, prior)
    found = [_judged(asked, name, build) for name, build in _FAMILIES.items()]
    return tuple(sorted(found, key=lambda one: (not one.meets, one.mechanism is None, -round(one.accuracy, 3))))


def expected_accuracy(
    mechanism: Mechanism, *, teachers: int, classes: int, prior: PluralityPrior = VAGUE_VOTES
) -> tuple[float, float]:
    """The chance that a label is the true class when the votes follow ``prior``, and its standard error.

    No label is not the true class. Exact, with error 0, for tables and wherever the histograms of the votes are few.
    Otherwise the mean over some 1000 histograms drawn with a fixed seed, of the exact chance given each.

    >>> from darrm_torch import PluralityVotes
    >>> expected_accuracy(NoiseFreeMajority(), teachers=1, classes=10, prior=PluralityVotes(accuracy=0.7))
    (0.7, 0.0)
    """
    right, _, error = label_chances(mechanism, teachers=teachers, classes=classes, prior=prior)
    return right, error


def label_chances(
    mechanism: Mechanism, *, teachers: int, classes: int, prior: PluralityPrior
) -> tuple[float, float, float]:
    """The chances that a label is the true class, and that there is one; and the standard error of the first.

    Exact, with error 0, for tables and wherever the histograms of the votes are few. Otherwise 1000 are drawn with a
    fixed seed, so many for each number of right votes as that is likely, two at least, and of each the exact law taken.
    """
    parts = check_plurality_prior(prior)
    if isinstance(mechanism, SelfBoundingPlurality | VotePrivatePlurality):
        return mechanism.expected_accuracy(parts), 1.0, 0.0
    if votes_within(_LISTED, votes=teachers, classes=classes) == teachers:
        space = standings(teachers, classes)
        law = _law(mechanism, space.counts)
        weights = np.mean([part.weights(space) for part in parts], axis=0)
        right, given = weights @ space.per_standing(law), weights @ law.sum(axis=1)[space.histogram]
        return min(1.0, float(right)), min(1.0, float(given)), 0.0
    rng, count = np.random.default_rng(0), math.ceil(_SAMPLES / len(parts))
    right, given, variance = 0.0, 0.0, 0.0
    for part in parts:
        counts, of, chances = _drawn(part, votes=teachers, classes=classes, count=count, rng=rng)
        law, each = _law(mechanism, counts), np.bincount(of)
        told = np.bincount(of, law[:, 0]) / each
        spread = np.bincount(of, (law[:, 0] - told[of]) ** 2) / (each - 1)
        right += float(chances @ told) / len(parts)
        given += float(chances @ (np.bincount(of, law.sum(axis=1)) / each)) / len(parts)
        variance += float(chances**2 @ (spread / each)) / len(parts) ** 2
    return min(1.0, right), min(1.0, given), math.sqrt(variance)


def _drawn(
    part: PluralityVotes, *, votes: int, classes: int, count: int, rng: np.random.Generator
) -> tuple[IntArray, IntArray, FloatArray]:
    """Histograms, the true class first; for each, which number of right votes it has; and the chances of these."""
    own, wrong = np.arange(votes + 1), classes - 1
    if math.isinf(part.concentration):
        law = stats.binom.pmf(own, votes, part.accuracy)
    else:
        law = stats.betabinom.pmf(own, votes, *(part.concentration * np.array([part.accuracy, 1 - part.accuracy])))
    own = np.flatnonzero(law > 1e-12)
    each = np.maximum(np.ceil(count * law[own]), 2).astype(np.int64)
    right = np.repeat(own, each)
    means = np.full((len(right), wrong), 1 / wrong)
    if math.isfinite(part.concentration):
        means = rng.dirichlet(np.full(wrong, part.concentration * (1 - part.accuracy) / wrong), size=len(right))
    others = rng.multinomial(votes - right, means)
    return np.column_stack([right, others]), np.repeat(np.arange(len(own)), each), np.asarray(law[own])


def _law(mechanism: Mechanism, counts: IntArray) -> FloatArray:
    """(B, C): the law of the label; where the mechanism may decline its rows sum to less than 1."""
    return np.asarray(mechanism.label_probabilities(counts)[:, : counts.shape[1]])


def expected_agreement(
    mechanism: Mechanism, *, teachers: int, classes: int, prior: PluralityPrior = VAGUE_VOTES
) -> tuple[float, float]:
    """The chance that a label is the plurality of all teachers' votes when these follow ``prior``; the standard error.

    Where classes tie for the plurality, any of them is it; no label is not. A mechanism that is made for fewer
    teachers, or looks at a sample of the votes, sees votes drawn at random. Exact, with error 0, wherever the
    histograms of the votes are few; otherwise a mean over histograms drawn with a fixed seed.

    >>> expected_agreement(NoiseFreeMajority(), teachers=11, classes=10)
    (1.0, 0.0)
    >>> from darrm_torch import PluralityVotes
    >>> guessing = PluralityVotes(accuracy=1 / 3)  # of 27 votes alike 18 are two to one
    >>> value, error = expected_agreement(NoiseFreeMajority(teachers=1), teachers=3, classes=3, prior=guessing)
    >>> round(value, 6), error  # (9 + 18 * 2 / 3) / 27
    (0.777778, 0.0)
    """
    parts = check_plurality_prior(prior)
    table = mechanism.table if isinstance(mechanism, SelfBoundingPlurality | VotePrivatePlurality) else None
    looked = table.space.votes if table else mechanism.teachers or teachers
    law = table.label_probabilities if table else mechanism.label_probabilities
    few = votes_within(_LISTED if looked == teachers else _LISTED_PARTS, votes=teachers, classes=classes) == teachers
    if few and looked < teachers and isinstance(mechanism, NoiseFreeMajority):  # the same rule, with the exact law
        mechanism = SelfBoundingPlurality(teachers=teachers, classes=classes, allowance=looked, sample=looked)
    if few and mechanism.teachers in (None, teachers):
        space = standings(teachers, classes)
        told = _told(mechanism.label_probabilities(space.counts), space.counts)[space.histogram]
        return min(1.0, float(np.mean([part.weights(space) @ told for part in parts]))), 0.0
    rng, count = np.random.default_rng(0), math.ceil(_SAMPLES * (1 if looked == teachers else 10) / len(parts))
    shares = []
    for part in parts:
        votes = seen = part.sample(votes=teachers, classes=classes, count=count, rng=rng)
        if looked < teachers:
            seen = np.array([rng.multivariate_hypergeometric(row, looked) for row in votes])
        shares.append(_told(law(seen), votes))
    return _mean(shares)


def _told(law: FloatArray, counts: IntArray) -> FloatArray:
    """(B,): of a law of the label, the chance that it is the plurality of ``counts`` (B, C), or one of them."""
    return np.asarray((law[:, : counts.shape[1]] * (counts == counts.max(axis=1, keepdims=True))).sum(axis=1))


def _mean(draws: list[FloatArray]) -> tuple[float, float]:
    """Of equally likely kinds of draws, as many of each; with its standard error."""
    error = math.sqrt(sum(float(part.var(ddof=1)) / len(part) for part in draws)) / len(draws)
    return float(np.mean(draws)), error


def strongest_mechanism(
    kind: str,
    *,
    teachers: int,
    classes: int,
    teacher: PrivacyProfile | PrivacyGuarantee | Iterable[PrivacyProfile | PrivacyGuarantee] | None = None,
    overlap: int | None = None,
    labels: int = 1,
    allowance: float | None = None,
    label_target: PrivacyGuarantee | None = None,
    total_target: PrivacyGuarantee | None = None,
    prior: PluralityPrior = VAGUE_VOTES,
) -> Mechanism:
    """The mechanism of one kind with the least noise that keeps the targets.

    Formal guarantee: for K teachers that are ``teacher``, of which one record touches at most ``overlap``, what
    :func:`total_privacy` proves of one label is within ``label_target``, and of ``labels`` within ``total_target``.

    Args:
        kind: "self-bounding" or, for two classes, "subsampling", which rest on the teachers' own privacy;
            "vote-private", "gnmax", "permute-and-flip", "exponential" or "randomized-response", whose coins protect by
            themselves.
        teachers: K.
        classes: C.
        teacher: what each promises as a trained model, or one for each teacher; None: nothing.
        overlap: r, how many teachers one record can touch; None: all.
        labels: Q, how many labels ``total_target`` is for, all of the same trained teachers.
        allowance: m, for the first two instead of a target: a label costs what m teachers do.
        label_target: what each label must keep by itself.
        total_target: what all labels together must keep.
        prior: where tables should be good, from public knowledge; without effect on privacy.

    Raises:
        InvalidArgument: bad input, or targets that no noise of this kind keeps.

    >>> target = PrivacyGuarantee(epsilon=8.0, delta=1e-5)
    >>> gnmax = strongest_mechanism("gnmax", teachers=11, classes=10, overlap=1, labels=100, total_target=target)
    >>> round(gnmax.sigma, 2), round(gnmax.guarantee(labels=100).epsilon, 2)
    (6.38, 8.0)
    """
    if kind not in _KINDS:
        raise InvalidArgument("kind", f"one of {', '.join(_KINDS)}", kind)
    if allowance is not None and (kind not in _ADDITIVE or label_target is not None or total_target is not None):
        raise InvalidArgument("allowance", f"given without targets, for {' or '.join(_ADDITIVE)}", allowance)
    asked = _Asked.read(
        teachers, classes, teacher, overlap, labels, label_target, total_target, prior, allowance=allowance
    )
    return _KINDS[kind](asked)


@dataclass(frozen=True, kw_only=True)
class _Asked:
    teachers: int
    classes: int
    teacher: PrivacyProfile
    overlap: int
    labels: int
    label_target: PrivacyGuarantee | None
    total_target: PrivacyGuarantee | None
    prior: PluralityPrior
    allowance: float | None = None

    @classmethod
    def read(
        cls,
        teachers: Any,
        classes: Any,
        teacher: Any,
        overlap: Any,
        labels: Any,
        label: Any,
        total: Any,
        prior: Any,
        *,
        allowance: Any = None,
    ) -> _Asked:
        count = check_integer("teachers", teachers, low=1)
        if label is None and total is None and allowance is None:
            raise InvalidArgument(
                "label_target", "given, or total_target", None, "Say what one label, or all together, may cost."
            )
        for name, target in (("label_target", label), ("total_target", total)):
            if target is not None:
                check_target(target, name)
        return cls(
            teachers=count,
            classes=check_integer("classes", classes, low=2),
            teacher=PrivacyProfile.non_private() if teacher is None else teacher_profile(teacher, count),
            overlap=check_overlap(overlap, count),
            labels=check_integer("labels", labels, low=1),
            label_target=label,
            total_target=total,
            prior=check_plurality_prior(prior),
            allowance=None
            if allowance is None
            else check_number("allowance", allowance, low=1e-6, high=math.inf, high_open=True),
        )

    @property
    def priced(self) -> list[tuple[int, PrivacyGuarantee]]:
        """How many labels must keep what."""
        both = ((1, self.label_target), (self.labels, self.total_target))
        return [(count, target) for count, target in both if target is not None]

    def total(self, mechanism: PricedMechanism, labels: int, delta: float) -> TotalPrivacy:
        return total_privacy(
            teachers=[self.teacher] * self.teachers,
            overlap=self.overlap,
            mechanism=mechanism,
            labels=labels,
            delta=delta,
        )

    def keeps(self, mechanism: PricedMechanism, slack: float = 1.0) -> bool:
        return all(
            self.total(mechanism, count, target.delta).epsilon <= target.epsilon * slack
            for count, target in self.priced
        )

    def strongest(self, make: Callable[[float], PricedMechanism], low: float, high: float) -> float:
        """The largest number for which what it makes keeps the targets, to one part in a thousand, by bisection."""
        if self.keeps(make(high), SLACK):
            return high
        if not self.keeps(make(low), SLACK):
            raise self.unmet()
        while high > low * 1.001:
            middle = math.sqrt(low * high)
            low, high = (middle, high) if self.keeps(make(middle), SLACK) else (low, middle)
        return low

    def unmet(self) -> InvalidArgument:
        """What to raise where no strength will do."""
        name = "allowance" if self.allowance else "total_target" if self.label_target is None else "label_target"
        wanted = " and ".join(f"{target} for {count}" for count, target in self.priced)
        return InvalidArgument(name, "one that some strength of this mechanism keeps", wanted or self.allowance)


@dataclass(frozen=True)
class Promised:
    """What noise will promise, before it is made: to add up at ``allowance`` teachers' worth, or by its own coins."""

    allowance: float = math.inf
    vote_epsilon: float = math.inf
    certificate: None = None

    def self_bounding_allowance(self, *, teachers: int, overlap: int) -> float:
        """The m that it adds up at."""
        return self.allowance

    def guarantee(self, *, labels: int, delta: float, overlap: int) -> PrivacyGuarantee | None:
        """By its coins; None if they protect nothing."""
        if math.isinf(self.vote_epsilon):
            return None
        epsilon = self.vote_epsilon * overlap
        return pure_composition(epsilon, epsilon**2 / 2, labels=labels, delta=delta)


def _noise_free(asked: _Asked) -> Mechanism:
    return NoiseFreeMajority(classes=asked.classes, teachers=asked.teachers)


def _randomized(asked: _Asked) -> Mechanism:
    def make(epsilon: float) -> RandomizedPlurality:
        return RandomizedPlurality(epsilon=epsilon, classes=asked.classes, teachers=asked.teachers)

    return make(asked.strongest(make, 1e-5, 50.0))


def _permute_and_flip(asked: _Asked) -> Mechanism:
    def make(epsilon: float) -> PermuteAndFlip:
        return PermuteAndFlip(epsilon=epsilon, overlap=asked.overlap, teachers=asked.teachers)

    return make(asked.strongest(make, asked.overlap * 2.0**-14, asked.overlap * 50.0))


def _exponential(asked: _Asked) -> Mechanism:
    def make(epsilon: float) -> ExponentialMechanism:
        return ExponentialMechanism(epsilon=epsilon, overlap=asked.overlap, teachers=asked.teachers)

    return make(asked.strongest(make, asked.overlap * 2.0**-14, asked.overlap * 50.0))


def _gaussian(asked: _Asked, classes: int | None = None) -> Mechanism:
    delta = asked.priced[-1][1].delta

    def make(strength: float) -> GNMax:
        return GNMax(
            sigma=1 / strength, delta=delta or None, overlap=asked.overlap, teachers=asked.teachers, classes=classes
        )

    return make(asked.strongest(make, 2.0**-16, 16.0))


def _label_is_seen(asked: _Asked) -> bool:
    """Whether GNMax can be calibrated on the label itself."""
    return asked.overlap == 1 and votes_within(_LISTED, votes=asked.teachers, classes=asked.classes) == asked.teachers


def _gaussian_label(asked: _Asked) -> Mechanism:
    if not _label_is_seen(asked):
        raise InvalidArgument("overlap", "1, and few histograms of votes, to look at the label", asked.overlap)
    return _gaussian(asked, asked.classes)


def _subsampling(asked: _Asked) -> Mechanism:
    """The majority of the largest odd sample that the targets, or the allowance, admit."""
    if asked.classes > 2:
        raise InvalidArgument("classes", "two for subsampling", asked.classes, "Take self-bounding noise.")

    def made(sample: int, slack: float = 1.0) -> DaRRM:
        gamma = on_grid(subsampling_noise(teachers=asked.teachers, allowance=sample).gamma * slack)
        cost = self_bounding_allowance(gamma, teachers=asked.teachers, overlap=asked.overlap)
        proof = certify_self_bounding(gamma, overlap=asked.overlap, allowance=cost)
        return DaRRM(NoiseFunction(gamma=gamma, certificate=proof))

    def too_dear(mechanism: DaRRM) -> bool:
        if asked.allowance is None:
            return not asked.keeps(mechanism)
        return bool(mechanism.certificate.allowance > asked.allowance)

    samples = range(1, asked.teachers + 1, 2)
    fitting = bisect.bisect_left(samples, True, key=lambda sample: too_dear(made(sample, SLACK)))
    if not fitting:
        raise asked.unmet()
    plain = made(samples[fitting - 1])
    # Three times the double 0.1 is more than the double 0.3: a hair of noise is worth two more votes.
    return made(samples[fitting - 1], SLACK) if too_dear(plain) else plain


def _self_bounding(asked: _Asked) -> Mechanism:
    allowance = asked.allowance
    if asked.classes == 2:

        def make(m: float) -> DaRRM:
            return DaRRM(self_bounding_noise(teachers=asked.teachers, allowance=m, overlap=asked.overlap))

        return make(asked.strongest(make, 1e-3, float(asked.overlap)) if allowance is None else allowance)
    if allowance is None:  # a table takes long to make: priced by its allowance alone
        allowance = asked.strongest(lambda m: Promised(allowance=m), 1e-3, float(asked.overlap))
    return SelfBoundingPlurality(
        teachers=asked.teachers,
        classes=asked.classes,
        allowance=allowance,
        overlap=asked.overlap,
        prior=asked.prior,
    )


def _vote_private(asked: _Asked) -> Mechanism:
    # Without the target's delta: at 1e-5 it gains a ten-thousandth, see VotePrivatePlurality.
    each = asked.strongest(lambda epsilon: Promised(vote_epsilon=epsilon), 1e-4, 50.0)
    return VotePrivatePlurality(
        teachers=asked.teachers,
        classes=asked.classes,
        epsilon=each * asked.overlap,
        overlap=asked.overlap,
        prior=asked.prior,
    )


# In the order of preference where accuracies are equal.
_FAMILIES: dict[str, Callable[[_Asked], Mechanism]] = {
    "noise-free plurality": _noise_free,
    "randomized response": _randomized,
    "permute-and-flip": _permute_and_flip,
    "exponential mechanism": _exponential,
    "GNMax": _gaussian,
    "GNMax, calibrated on the label": _gaussian_label,
    "self-bounding plurality": _self_bounding,
    "vote-private table": _vote_private,
}

_KINDS: dict[str, Callable[[_Asked], Mechanism]] = {
    "self-bounding": _self_bounding,
    "subsampling": _subsampling,
    "vote-private": _vote_private,
    "gnmax": lambda asked: _gaussian(asked, asked.classes if _label_is_seen(asked) else None),
    "permute-and-flip": _permute_and_flip,
    "exponential": _exponential,
    "randomized-response": _randomized,
}
_ADDITIVE = ("self-bounding", "subsampling")


def _judged(asked: _Asked, name: str, build: Callable[[_Asked], Mechanism]) -> PluralityCandidate:
    try:
        mechanism = build(asked)
    except DarrmError as error:
        return PluralityCandidate(name=name, mechanism=None, reason=f"Not possible: {error}.")
    accuracy, error_of_it = expected_accuracy(
        mechanism, teachers=asked.teachers, classes=asked.classes, prior=asked.prior
    )
    priced = asked.priced
    return PluralityCandidate(
        name=name,
        mechanism=mechanism,
        label=asked.total(mechanism, 1, priced[0][1].delta),
        total=asked.total(mechanism, asked.labels, priced[-1][1].delta),
        accuracy=accuracy,
        standard_error=error_of_it,
        meets=asked.keeps(mechanism),
    )
