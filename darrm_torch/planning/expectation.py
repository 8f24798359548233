"""How often a label is right, or is what most teachers say, when the votes follow a prior.

The law of a label given the votes is exact. It is averaged over all histograms of the votes where these are few, and
over histograms drawn with a fixed seed where they are too many. No vote is looked at.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import stats

from ..arguments import checked
from ..arrays import FloatArray, IntArray
from ..errors import InvalidArgument, check_integer
from ..mechanisms.base import Mechanism
from ..mechanisms.darrm import DaRRM
from ..mechanisms.noise_free import NoiseFreeMajority
from ..mechanisms.plurality import MOST_CLASSES, SelfBoundingPlurality, VotePrivatePlurality
from ..noise.function import subsampling_noise
from ..noise.grid import MOST_TEACHERS
from ..noise.histograms import standings, votes_within
from ..noise.plurality_priors import VAGUE_VOTES, PluralityPrior, PluralityVotes
from ..noise.priors import Prior
from .beliefs import check_any_prior

__all__ = ["expected_accuracy", "expected_agreement", "label_chances", "listed_votes", "plurality_chances"]

_LISTED = 1000  # the most histograms that are listed
_LISTED_PARTS = 100  # the most where the law of each is a sum over all samples of its votes
_DRAWN = 1000  # how many are drawn where they are more


@checked
def expected_accuracy(
    mechanism: Mechanism, *, teachers: int, classes: int, prior: Prior | PluralityPrior = VAGUE_VOTES
) -> tuple[float, float]:
    """The chance that a label is the true class when the votes follow ``prior``, and its standard error.

    An item without a label counts as wrong. The result is exact, with error 0, for tables and wherever the votes have
    few histograms. Otherwise it averages the exact chance over about 1000 histograms, drawn with a fixed seed.

    Args:
        mechanism: turns votes into labels.
        teachers: K.
        classes: C.
        prior: how the teachers vote. A prior for two classes says how many of them are right.

    >>> from darrm_torch import PluralityVotes
    >>> expected_accuracy(NoiseFreeMajority(), teachers=1, classes=10, prior=PluralityVotes(accuracy=0.7))
    (0.7, 0.0)
    """
    right, _, error = label_chances(mechanism, teachers=teachers, classes=classes, prior=prior)
    return right, error


@checked
def expected_agreement(
    mechanism: Mechanism,
    *,
    teachers: int,
    classes: int,
    prior: Prior | PluralityPrior = VAGUE_VOTES,
    draws: int | None = None,
) -> tuple[float, float]:
    """The chance that a label is the plurality of all teachers' votes when these follow ``prior``; its standard error.

    Where classes tie for the plurality, each of them counts; an item without a label does not. A mechanism built for
    fewer teachers, or one that looks at a sample of the votes, sees votes drawn at random. Exact, with error 0,
    wherever the histograms of the votes are few; otherwise a mean over histograms drawn with a fixed seed.

    Args:
        mechanism: turns votes into labels.
        teachers: K.
        classes: C.
        prior: how the teachers vote.
        draws: draw so many votes, and one label for each, instead of using the exact law, which takes up to a minute
            where noise is wide and classes are many. The standard error is at most 0.5 / sqrt(draws).

    >>> expected_agreement(NoiseFreeMajority(), teachers=11, classes=10)
    (1.0, 0.0)
    >>> from darrm_torch import PluralityVotes
    >>> guessing = PluralityVotes(accuracy=1 / 3)  # 18 of the 27 possible votes are two to one
    >>> value, error = expected_agreement(NoiseFreeMajority(teachers=1), teachers=3, classes=3, prior=guessing)
    >>> round(value, 6), error  # (9 + 18 * 2 / 3) / 27
    (0.777778, 0.0)
    """
    beliefs = _check_request(mechanism, teachers, classes, prior)
    if draws is not None:
        check_integer("draws", draws, low=1, high=10**7)
    table = mechanism.table if isinstance(mechanism, SelfBoundingPlurality | VotePrivatePlurality) else None
    voters = mechanism.jury or mechanism.teachers or teachers
    read = table.space.votes if table else voters  # votes that a label depends on
    most = _LISTED if read == teachers else _LISTED_PARTS
    if draws is None and (listed := listed_votes(beliefs, teachers=teachers, classes=classes, most=most)) is not None:
        counts, chances = listed
        if read < teachers and isinstance(mechanism, NoiseFreeMajority):  # the same rule, built for all the votes
            mechanism = (
                DaRRM(subsampling_noise(teachers=teachers, allowance=read), uncertified=True)
                if classes == 2
                else SelfBoundingPlurality(teachers=teachers, classes=classes, allowance=read, sample=read)
            )
        if mechanism.teachers in (None, teachers):
            counts = np.sort(counts, axis=1)  # classes are treated alike: equal histograms are looked up once
            agreements = plurality_chances(mechanism.label_probabilities(counts), counts)
            return min(1.0, float(chances.sum(axis=1) @ agreements)), 0.0
    rng, parts = np.random.default_rng(0), beliefs if isinstance(beliefs, tuple) else (beliefs,)
    if draws is not None:
        read = voters
    count = math.ceil((draws or _DRAWN * (1 if read == teachers else 10)) / len(parts))
    shares = []
    for part in parts:
        votes = seen = _drawn_votes(part, teachers=teachers, classes=classes, count=count, rng=rng)
        if read < teachers:
            seen = np.array([rng.multivariate_hypergeometric(row, read) for row in votes])
        if draws is not None:
            labels = mechanism.aggregate(seen)
            law = (labels[:, None] == np.arange(classes)).astype(float)
        else:
            law = table.label_probabilities(seen) if table else mechanism.label_probabilities(seen)
        shares.append(plurality_chances(law, votes))
    error = math.sqrt(sum(float(part.var(ddof=1)) / count for part in shares)) / len(parts)
    return float(np.mean(shares)), error


def label_chances(
    mechanism: Mechanism, *, teachers: int, classes: int, prior: Prior | PluralityPrior
) -> tuple[float, float, float]:
    """The chances that a label is the true class, and that there is a label; the standard error of the first.

    Exact, with error 0, for tables and wherever the histograms of the votes are few. Otherwise about 1000 histograms
    are drawn with a fixed seed: for each number of right votes as many as it is likely, and two at least.
    """
    beliefs = _check_request(mechanism, teachers, classes, prior)
    teachers = mechanism.jury or teachers  # the votes of a random jury have the prior's law for so many teachers
    if isinstance(mechanism, SelfBoundingPlurality | VotePrivatePlurality) and isinstance(beliefs, tuple):
        return mechanism.expected_accuracy(beliefs), 1.0, 0.0
    listed = listed_votes(beliefs, teachers=teachers, classes=classes)
    if listed is not None:
        law = _label_law(mechanism, listed[0])
        right, given = (listed[1] * law).sum(), listed[1].sum(axis=1) @ law.sum(axis=1)
        return min(1.0, float(right)), min(1.0, float(given)), 0.0
    assert isinstance(beliefs, tuple)
    rng, count = np.random.default_rng(0), math.ceil(_DRAWN / len(beliefs))
    right, given, variance = 0.0, 0.0, 0.0
    for part in beliefs:
        counts, stratum, chances = _stratified(part, votes=teachers, classes=classes, count=count, rng=rng)
        law, sizes = _label_law(mechanism, counts), np.bincount(stratum)
        means = np.bincount(stratum, law[:, 0]) / sizes
        spread = np.bincount(stratum, (law[:, 0] - means[stratum]) ** 2) / (sizes - 1)
        right += float(chances @ means) / len(beliefs)
        given += float(chances @ (np.bincount(stratum, law.sum(axis=1)) / sizes)) / len(beliefs)
        variance += float(chances**2 @ (spread / sizes)) / len(beliefs) ** 2
    return min(1.0, right), min(1.0, given), math.sqrt(variance)


def _check_request(
    mechanism: Mechanism, teachers: int, classes: int, prior: object
) -> Prior | tuple[PluralityVotes, ...]:
    """The prior, checked after the other arguments."""
    if mechanism.shares > 1:
        raise InvalidArgument("mechanism", "one that releases labels", type(mechanism).__name__)
    check_integer("teachers", teachers, low=1, high=MOST_TEACHERS)
    check_integer("classes", classes, low=2, high=MOST_CLASSES)
    return check_any_prior(prior, classes)


def listed_votes(
    prior: Prior | tuple[PluralityVotes, ...], *, teachers: int, classes: int, most: int | None = None
) -> tuple[IntArray, FloatArray] | None:
    """All histograms of the votes, and how likely they are; None where there are more than ``most`` (1000).

    Returns:
        counts (N, C) int64, and chances (N, C): of each histogram when the class of that column is the true one. For
        many classes histograms are listed up to the names of the classes. For two classes the first is the true one,
        and histograms of chances below 1e-20 are left out.
    """
    if not isinstance(prior, tuple):
        law = prior.law(check_integer("teachers", teachers, low=1))
        right = np.flatnonzero(law > 1e-20)
        chances = law[right] / law.sum()
        return np.stack([right, teachers - right], axis=1), np.stack([chances, np.zeros_like(chances)], axis=1)
    if votes_within(_LISTED if most is None else most, votes=teachers, classes=classes) != teachers:
        return None
    space = standings(teachers, classes)
    each = np.mean([part.weights(space) for part in prior], axis=0) / space.ties
    return space.counts, each[space.lookup[np.arange(space.histograms)[:, None], space.counts]]


def plurality_chances(law: FloatArray, counts: IntArray) -> FloatArray:
    """(B,): the chance that a label of this ``law`` is the plurality of ``counts`` (B, C), or one of several."""
    return np.asarray((law[:, : counts.shape[1]] * (counts == counts.max(axis=1, keepdims=True))).sum(axis=1))


def _drawn_votes(
    prior: Prior | PluralityVotes, *, teachers: int, classes: int, count: int, rng: np.random.Generator
) -> IntArray:
    """(count, C): histograms of the votes, the true class first."""
    if isinstance(prior, PluralityVotes):
        return prior.sample(votes=teachers, classes=classes, count=count, rng=rng)
    law = prior.law(teachers)
    right = rng.choice(teachers + 1, size=count, p=law / law.sum())
    return np.stack([right, teachers - right], axis=1)


def _label_law(mechanism: Mechanism, counts: IntArray) -> FloatArray:
    """(B, C): the law of the label; where the mechanism may decline its rows sum to less than 1."""
    return np.asarray(mechanism.label_probabilities(counts)[:, : counts.shape[1]])


def _stratified(
    part: PluralityVotes, *, votes: int, classes: int, count: int, rng: np.random.Generator
) -> tuple[IntArray, IntArray, FloatArray]:
    """Histograms, the true class first; the stratum of each, by its right votes; and the chances of the strata."""
    own, wrong = np.arange(votes + 1), classes - 1
    if math.isinf(part.concentration):
        law = stats.binom.pmf(own, votes, part.accuracy)
    else:
        law = stats.betabinom.pmf(own, votes, *(part.concentration * np.array([part.accuracy, 1 - part.accuracy])))
    own = np.flatnonzero(law > 1e-12)
    sizes = np.maximum(np.ceil(count * law[own]), 2).astype(np.int64)
    right = np.repeat(own, sizes)
    means = np.full((len(right), wrong), 1 / wrong)
    if math.isfinite(part.concentration):
        means = rng.dirichlet(np.full(wrong, part.concentration * (1 - part.accuracy) / wrong), size=len(right))
    others = rng.multinomial(votes - right, means)
    return np.column_stack([right, others]), np.repeat(np.arange(len(own)), sizes), np.asarray(law[own])
