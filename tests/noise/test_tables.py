"""Tables for more than two classes: their guarantees against every vector of votes of the worst teachers."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from darrm_torch import (
    GNMax,
    NoiseFreeMajority,
    PermuteAndFlip,
    PluralityVotes,
    PrivacyGuarantee,
    SelfBoundingPlurality,
    VotePrivatePlurality,
    self_bounding_noise,
    total_privacy,
)
from darrm_torch.noise.histograms import standings
from darrm_torch.noise.table_program import self_bounding_table, vote_private_table
from darrm_torch.noise.tables import VoteTable, noise_free_table

Floats = npt.NDArray[np.float64]
CLASSES = 3


# --- the oracle: nothing of the package but the law of a label given the counts ------------------------------------


def every_law(mechanism: Any, teachers: int) -> Floats:
    """(C**K, C): the label's law for each vector of votes."""
    votes = np.array(list(itertools.product(range(CLASSES), repeat=teachers)))
    counts = (votes[:, :, None] == np.arange(CLASSES)).sum(axis=1)
    return np.asarray(mechanism.label_probabilities(counts))


class Adversary:
    """Teachers that are (epsilon, leak)-DP, of which ``changed`` differ between two neighbours; the worst it can find.

    Each has four outcomes: under P they have the probabilities (1 - leak) U, (1 - leak) V, leak and 0, under P' (1 -
    leak) V, (1 - leak) U, 0 and leak, with U/V = e**epsilon: every (epsilon, leak)-DP pair is one of these whose
    outcomes are forgotten in part (Kairouz, Oh, Viswanath 2015). An outcome is a trained model: its vote on the first
    item and, for two labels, its vote on the second, which may be another item for each first label.
    """

    def __init__(self, table: Floats, teachers: int, guarantee: PrivacyGuarantee, changed: int, labels: int) -> None:
        large = 1 / (1 + math.exp(-guarantee.epsilon))
        part, leak = 1 - guarantee.delta, guarantee.delta
        here = np.array([part * large, part * (1 - large), leak, 0.0])
        there = np.array([part * (1 - large), part * large, 0.0, leak])
        kept = here + there > 0
        self.table, self.teachers, self.labels = table, teachers, labels
        self.outcomes = int(kept.sum())
        model = np.array(list(itertools.product(range(self.outcomes), repeat=teachers)))
        self.model, self.who = model, np.arange(teachers)
        self.power = CLASSES ** np.arange(teachers - 1, -1, -1)
        first = np.tile(here[kept], (teachers, 1))
        second = np.where((self.who < changed)[:, None], there[kept], here[kept])
        self.weights = np.stack([law[self.who, model].prod(axis=1) for law in (first, second)])

    def transcripts(self, answers: npt.NDArray[np.int64]) -> Floats:
        """(2, C**labels): the law of all labels under both; ``answers`` (K, outcomes, 1 or 1 + C)."""
        voted = answers[self.who, self.model]
        laws = self.table[np.einsum("zkq,k->qz", voted, self.power)]
        if self.labels == 1:
            return np.asarray(self.weights @ laws[0])
        both = [(self.weights * laws[0][:, label]) @ laws[1 + label] for label in range(CLASSES)]
        return np.concatenate(both, axis=1)

    def worst(self, score: Any, rng: np.random.Generator, *, starts: int) -> float:
        """The largest ``score`` over random teachers, each improved one vote at a time."""
        best = -math.inf
        for _ in range(starts):
            answers = rng.integers(CLASSES, size=(self.teachers, self.outcomes, 1 if self.labels == 1 else 1 + CLASSES))
            found = score(self.transcripts(answers))
            for place in np.ndindex(*answers.shape):
                tried = []
                for vote in range(CLASSES):
                    answers[place] = vote
                    tried.append(score(self.transcripts(answers)))
                answers[place] = int(np.argmax(tried))
                found = max(found, *tried)
            best = max(best, found)
        return best


def divergence(epsilon: float) -> Any:
    """Hockey-stick divergence of two laws, the worse of both ways."""

    def score(laws: Floats) -> float:
        return max(float(np.maximum(p - math.exp(epsilon) * q, 0).sum()) for p, q in (laws, laws[::-1]))

    return score


def log_ratio(laws: Floats) -> float:
    """The largest loss of one outcome."""
    p, q = laws[:, laws.max(axis=0) > 0]
    with np.errstate(divide="ignore"):
        return float(np.abs(np.log(p) - np.log(q)).max())


def leaked(
    mechanism: Any, teachers: int, teacher: PrivacyGuarantee, *, overlap: int, labels: int, delta: float
) -> float:
    """How far the worst teachers get beyond what is claimed of all labels, at ``delta``: at most 0."""
    claim = total_privacy(
        teachers=[teacher] * teachers, overlap=overlap, mechanism=mechanism, labels=labels, delta=delta
    )
    if math.isinf(claim.epsilon):
        return -1.0
    adversary = Adversary(every_law(mechanism, teachers), teachers, teacher, overlap, labels)
    found = adversary.worst(divergence(claim.epsilon), np.random.default_rng(teachers), starts=3)
    return found - delta


# --- guarantees ------------------------------------------------------------------------------------------------------


PURE, LEAKY = PrivacyGuarantee(epsilon=0.4), PrivacyGuarantee(epsilon=0.2, delta=0.01)
MECHANISMS = {
    "self-bounding 1": lambda teachers, overlap: SelfBoundingPlurality(
        teachers=teachers, classes=CLASSES, allowance=1.0, overlap=overlap
    ),
    "self-bounding 1.7": lambda teachers, overlap: SelfBoundingPlurality(
        teachers=teachers, classes=CLASSES, allowance=1.7, overlap=overlap
    ),
    "self-bounding 3, sampled": lambda teachers, overlap: SelfBoundingPlurality(
        teachers=teachers, classes=CLASSES, allowance=3.0, overlap=overlap, sample=teachers - 1
    ),
    "vote-private": lambda teachers, overlap: VotePrivatePlurality(
        teachers=teachers, classes=CLASSES, epsilon=0.5 * overlap, overlap=overlap
    ),
    "vote-private, sampled": lambda teachers, overlap: VotePrivatePlurality(
        teachers=teachers, classes=CLASSES, epsilon=0.5 * overlap, overlap=overlap, sample=teachers - 1
    ),
    "permute-and-flip": lambda teachers, overlap: PermuteAndFlip(epsilon=0.6 * overlap, overlap=overlap),
    "GNMax": lambda teachers, overlap: GNMax(sigma=4.0, overlap=overlap),
    "GNMax, its label": lambda teachers, overlap: GNMax(sigma=4.0, overlap=overlap, teachers=teachers, classes=CLASSES),
}


@pytest.mark.parametrize("make", MECHANISMS.values(), ids=MECHANISMS.keys())
@pytest.mark.parametrize(
    ("teachers", "overlap"),
    [(3, 3), (4, 2), *(pytest.param(*one, marks=pytest.mark.slow) for one in ((4, 4), (5, 1), (5, 3), (6, 6)))],
)
def test_claimed_totals_hold_for_the_worst_teachers(make: Any, teachers: int, overlap: int) -> None:
    mechanism = make(teachers, overlap)
    for teacher, labels in itertools.product((PURE, LEAKY), (1, 2)):
        for delta in (0.0, 0.015, 0.05) if teacher.delta == 0 else (0.015, 0.1):
            assert leaked(mechanism, teachers, teacher, overlap=overlap, labels=labels, delta=delta) <= 1e-11


@pytest.mark.parametrize("overlap", [1, 2, 4])
@pytest.mark.parametrize("allowance", [1.0, 2.0])
def test_self_bounding_labels_cost_their_allowance_and_no_less(allowance: float, overlap: int) -> None:
    """One label at (m epsilon, m Delta), two at twice that, and no less where all teachers may change: it is tight."""
    mechanism = SelfBoundingPlurality(teachers=4, classes=CLASSES, allowance=allowance, overlap=overlap)
    table, rng = every_law(mechanism, 4), np.random.default_rng(0)
    for labels in (1, 2):
        cost = labels * allowance
        for epsilon, leak in ((0.1, 0.02), (1.0, 0.001)):
            teacher = PrivacyGuarantee(epsilon=epsilon, delta=leak)
            found = Adversary(table, 4, teacher, overlap, labels).worst(divergence(cost * epsilon), rng, starts=1)
            assert found <= cost * leak + 1e-12
        found = Adversary(table, 4, PURE, overlap, labels).worst(log_ratio, rng, starts=3)
        assert found <= cost * PURE.epsilon + 1e-9
        if overlap == 4:
            assert found >= cost * PURE.epsilon - 1e-6


def test_private_teachers_and_private_votes_combine() -> None:
    """One changed teacher: tanh(T / 2) = tanh(epsilon / 2) tanh(labels eta / 2) is what the worst teachers reach."""
    mechanism = VotePrivatePlurality(teachers=4, classes=CLASSES, epsilon=0.7)
    for labels in (1, 2):
        claim = total_privacy(teachers=[PURE] * 4, overlap=1, mechanism=mechanism, labels=labels, delta=0.0)
        assert claim.route.key == "private-votes"
        assert claim.epsilon == pytest.approx(2 * math.atanh(math.tanh(0.2) * math.tanh(0.35 * labels)), rel=1e-9)
        adversary = Adversary(every_law(mechanism, 4), 4, PURE, 1, labels)
        # Unchanged teachers who are certain of their votes show the changed one best.
        adversary.weights[:] = np.where((adversary.model[:, 1:] == 0).all(axis=1), [[1], [1]], 0)
        large = 1 / (1 + math.exp(-PURE.epsilon))
        adversary.weights *= np.where(adversary.model[:, 0] == [[0], [1]], large, 1 - large)
        found = adversary.worst(log_ratio, np.random.default_rng(0), starts=20)
        assert found <= claim.epsilon + 1e-9
        if labels == 1:
            assert found >= claim.epsilon - 1e-6


def test_plurality_without_noise_leaks_more_than_three_teachers() -> None:
    """Six teachers, three classes: a tie of all classes falls by any vote, so m must be 6; and m = 3 leaks."""
    plain = noise_free_table(standings(6, CLASSES))
    assert plain.smallest_allowance(6) == 6
    assert plain.lacking_allowance(5.999, 6) > 0
    adversary = Adversary(every_law(NoiseFreeMajority(), 6), 6, PURE, 6, 1)
    found = adversary.worst(log_ratio, np.random.default_rng(0), starts=4)
    assert 3 * PURE.epsilon + 0.1 < found <= 6 * PURE.epsilon
    bounded = every_law(SelfBoundingPlurality(teachers=6, classes=CLASSES, allowance=3), 6)
    assert Adversary(bounded, 6, PURE, 6, 1).worst(log_ratio, np.random.default_rng(0), starts=4) <= 1.2 + 1e-9
    claim = total_privacy(teachers=[PURE] * 6, mechanism=NoiseFreeMajority(), labels=1, delta=0.0)
    assert claim.epsilon >= found


# --- tables ----------------------------------------------------------------------------------------------------------


def spoiled(table: VoteTable, standing: int, units: int) -> VoteTable:
    """``units`` of 2**-53 more for one standing, taken from another of the same histogram."""
    space, shares = table.space, table.shares.copy()
    others = np.flatnonzero((space.histogram == space.histogram[standing]) & (np.arange(len(shares)) != standing))
    giver = others[np.argmax(shares[others])]
    shares[standing] += units
    shares[giver] -= units
    return replace(table, shares=shares, certificate=None)


@pytest.mark.parametrize("units", [2**20, 2**43])
def test_a_wrong_entry_is_caught(units: int) -> None:
    """Where the optimum uses all it may, a little more of one entry, 1e-10 or 1e-3, is too much."""
    space = standings(6, CLASSES)
    table = self_bounding_table(space, allowance=2, overlap=6)
    assert table.lacking_allowance(2, 6) <= 0
    private = vote_private_table(space, epsilon=0.5)
    assert private.vote_epsilon <= 0.5 + 1e-12
    several = [i for i, one in enumerate(space.histogram) if np.sum(space.histogram == one) > 1]
    bounded = [spoiled(table, i, units).lacking_allowance(2, 6) > 0 for i in several if table.shares[i]]
    randomized = [spoiled(private, i, units).vote_epsilon > 0.5 + 1e-12 for i in several]
    assert np.mean(bounded) > 0.6
    assert np.mean(randomized) > 0.6


@pytest.mark.parametrize("teachers", [5, 11, 21])
@pytest.mark.parametrize("allowance", [1.0, 1.5, 3.0])
@pytest.mark.parametrize("overlap", [None, 2])
def test_two_classes_are_self_bounding_noise(teachers: int, allowance: float, overlap: int | None) -> None:
    law = SelfBoundingPlurality(teachers=teachers, classes=2, allowance=allowance, overlap=overlap)
    noise = self_bounding_noise(teachers=teachers, allowance=allowance, overlap=overlap)
    ones = np.arange(teachers + 1)
    counts = np.stack([teachers - ones, ones], axis=1)
    if overlap is None:  # one best at every count
        np.testing.assert_allclose(law.label_probabilities(counts)[:, 1], noise.label_probability(ones), atol=1e-9)
    prior = PluralityVotes(accuracy=0.75)
    reported = noise.label_probability(ones) @ prior_of_two(teachers, 0.75)
    best = self_bounding_table(standings(teachers, 2), allowance=allowance, overlap=overlap, prior=prior)
    assert best.accuracy(prior) >= reported - 1e-9


def prior_of_two(teachers: int, accuracy: float) -> Floats:
    """Binomial chances of the number of right votes."""
    return np.array(
        [math.comb(teachers, n) * accuracy**n * (1 - accuracy) ** (teachers - n) for n in range(teachers + 1)]
    )


@pytest.mark.parametrize("teachers", [1, 2, 5])
@pytest.mark.parametrize("classes", [6, 10])
def test_fewer_teachers_than_classes(teachers: int, classes: int) -> None:
    mechanism = SelfBoundingPlurality(teachers=teachers, classes=classes, allowance=1.0)
    counts = np.zeros((2, classes), dtype=np.int64)
    counts[0, 3] = teachers
    counts[1, :teachers] = 1
    law = mechanism.label_probabilities(counts)
    assert law[0, 3] == pytest.approx(1.0, abs=1e-9)  # all votes on one class
    np.testing.assert_allclose(law[1, :teachers], 1 / teachers, atol=1e-9)
    assert mechanism.self_bounding_allowance() <= 1.0


@pytest.mark.parametrize(("classes", "teachers", "needed"), [(2, 11, 6.0), (3, 6, 6.0), (10, 11, 11.0)])
def test_noise_free_plurality_where_the_allowance_suffices(classes: int, teachers: int, needed: float) -> None:
    space = standings(teachers, classes)
    assert noise_free_table(space).smallest_allowance(teachers) == needed
    for allowance, plain in ((needed, True), (needed - 0.01, False)):
        table = self_bounding_table(space, allowance=allowance)
        assert (table.digest == noise_free_table(space).digest) is plain
