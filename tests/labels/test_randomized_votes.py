"""Votes that a site randomizes: what its answers reveal, and what labels reveal that are computed from them."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import darrm_torch as dt

INPUTS = torch.arange(6.0)[:, None]


class Teacher:
    def __init__(self, votes: Any, digest: str = "teacher") -> None:
        self.digest, self.votes, self.asked = digest, votes, 0

    def vote(self, inputs: torch.Tensor) -> Any:
        self.asked += len(inputs)
        if isinstance(self.votes, Exception):
            raise self.votes
        return np.full(len(inputs), self.votes)


def site(
    votes: Any = 1, *, ledger: dt.PrivacyLedger | None = None, epsilon: float = 1.0, classes: int = 3, **how: Any
) -> dt.RandomizedVotes:
    budget = dt.PrivacyGuarantee(epsilon=4.0)
    teacher = how.pop("teacher", None) or Teacher(votes)
    ledger = ledger or dt.PrivacyLedger(budget=budget)
    return dt.RandomizedVotes(teacher, classes=classes, epsilon=epsilon, ledger=ledger, **how)


# --- by enumeration -------------------------------------------------------------------------------------------------


def answers(law: dict[tuple[int, ...], float], mechanism: dt.Mechanism, classes: int) -> np.ndarray[Any, Any]:
    """The law of the answers of a site, (C,) * Q, whose teacher has each vector of Q votes with the given chance."""
    randomized = mechanism.label_probabilities(np.eye(classes, dtype=np.int64))  # row: the vote
    total = 0.0
    for votes, chance in law.items():
        product = np.array(chance)
        for vote in votes:
            product = np.multiply.outer(product, randomized[vote])
        total = total + product
    return np.asarray(total)


def exceeds(law: np.ndarray[Any, Any], other: np.ndarray[Any, Any], epsilon: float, delta: float) -> bool:
    """Whether a pair of laws violates (epsilon, delta)-DP."""
    return max(np.maximum(a - math.exp(epsilon) * b, 0).sum() for a, b in ((law, other), (other, law))) > delta + 1e-12


def worst_teachers(epsilon: float, delta: float, queries: int, classes: int) -> list[Any]:
    """Pairs of laws of Q votes, each extreme among those that are (epsilon, delta)-DP."""
    likely = 1 / (1 + math.exp(-epsilon))
    pairs = []
    for a, b in itertools.product(itertools.product(range(classes), repeat=queries), repeat=2):
        first = {a: (1 - delta) * likely + delta, b: (1 - delta) * (1 - likely)}
        second = {a: (1 - delta) * (1 - likely), b: (1 - delta) * likely + delta}
        pairs.append((first, second) if a != b else ({a: 1.0}, {a: 1.0}))
    return pairs


@pytest.mark.parametrize(("classes", "queries"), [(2, 1), (2, 2), (3, 2), (2, 3)])
@pytest.mark.parametrize("teacher", [(1.0, 0.0), (1.0, 0.01), (math.inf, 0.0)])
def test_what_the_answers_of_a_site_reveal(classes: int, queries: int, teacher: tuple[float, float]) -> None:
    """No teacher that keeps its promise violates the price; half the price is violated, so the test can fail."""
    profile = dt.PrivacyProfile.from_guarantee(dt.PrivacyGuarantee(epsilon=teacher[0], delta=teacher[1]))
    priced = site(
        classes=classes, profile=profile, ledger=dt.PrivacyLedger(budget=dt.PrivacyGuarantee(epsilon=9.0, delta=0.02))
    )
    mechanism, violated = priced.labeler.mechanism, False
    for delta in (0.0, 0.005, 0.02):
        price = priced.labeler.total_privacy(labels=queries, delta=delta).epsilon
        pairs = worst_teachers(min(teacher[0], 50.0), teacher[1], queries, classes)
        for first, second in pairs:
            laws = [answers(law, mechanism, classes) for law in (first, second)]
            if math.isfinite(price):
                assert not exceeds(laws[0], laws[1], price, delta)
                violated |= exceeds(laws[0], laws[1], price / 2, delta)
    assert violated


@pytest.mark.parametrize("mechanism", [dt.NoiseFreeMajority(classes=2), dt.PermuteAndFlip(epsilon=1.0, overlap=2)])
def test_what_all_answers_and_labels_of_them_reveal(mechanism: dt.Mechanism) -> None:
    """Two levels, three sites, a record in two of them, two inputs: the aggregator, and those who see labels."""
    queries, promise = 2, dt.PrivacyGuarantee(epsilon=1.0)
    profile = dt.PrivacyProfile.from_guarantee(promise)
    probe = site(classes=2, profile=profile)
    budget = probe.labeler.total_privacy(labels=queries, delta=0.0).guarantee
    assert budget.epsilon < promise.epsilon
    sites = [site(classes=2, profile=profile, ledger=dt.PrivacyLedger(budget=budget)) for _ in range(3)]
    labeler = dt.PrivateLabeler(
        mechanism, teachers=sites, profiles=[one.profile for one in sites], overlap=2, classes=2,
        ledger=dt.PrivacyLedger(),
    )  # fmt: skip
    total = labeler.total_privacy(labels=queries, delta=0.0)
    seen = next(route.epsilon for route in total.routes if route.key == "publishing")
    assert seen == pytest.approx(2 * budget.epsilon)
    one = sites[0].labeler.mechanism
    third, close = answers({(0, 1): 1.0}, one, 2), False
    vectors, kernel = list(itertools.product(range(2), repeat=queries)), []
    for answered in itertools.product(vectors, repeat=3):  # the law of the labels, given all answers
        counts = np.array([np.bincount([votes[q] for votes in answered], minlength=2) for q in range(queries)])
        law = mechanism.label_probabilities(counts)
        kernel.append(np.multiply.outer(law[0], law[1]).ravel())
    for pairs in itertools.product(worst_teachers(1.0, 0.0, queries, 2), repeat=2):
        tables = [[answers(law, one, 2) for law in pair] for pair in pairs]
        worlds = [np.multiply.outer(np.multiply.outer(tables[0][w], tables[1][w]), third).ravel() for w in (0, 1)]
        assert not exceeds(worlds[0], worlds[1], seen, 0.0)
        close |= exceeds(worlds[0], worlds[1], 0.9 * seen, 0.0)
        labels = [world @ np.array(kernel) for world in worlds]
        assert not exceeds(labels[0], labels[1], total.epsilon, 0.0)
    assert close


# --- the site --------------------------------------------------------------------------------------------------------


def test_an_answer_is_given_once_and_survives_a_restart(tmp_path: Path) -> None:
    path, budget, teacher = tmp_path / "site.ledger", dt.PrivacyGuarantee(epsilon=4.0), Teacher(1)
    first = site(teacher=teacher, ledger=dt.PrivacyLedger(path, budget))
    given = first.vote(INPUTS[:3])
    assert first.vote(INPUTS[[2, 0]].numpy()).tolist() == given[[2, 0]].tolist()
    again = site(teacher=teacher, ledger=dt.PrivacyLedger(path))
    assert again.vote(INPUTS[:3]).tolist() == given.tolist()
    assert teacher.asked == 3
    assert again.digest == first.digest != site(teacher=teacher).digest  # random: a digest of weights reveals them
    with pytest.raises(dt.LedgerError, match="belongs to another ensemble"):
        site(ledger=dt.PrivacyLedger(path), teacher=Teacher(1, "retrained"))
    with pytest.raises(dt.LedgerError, match="belongs to another ensemble"):
        site(ledger=dt.PrivacyLedger(path), epsilon=2.0)


def test_the_budget_is_the_promise() -> None:
    asked = site()
    assert asked.profile.epsilon(0.0) == 4.0
    asked.vote(INPUTS[:4])
    teacher: Any = asked.labeler.teachers[0]
    with pytest.raises(dt.BudgetExceeded):
        asked.vote(INPUTS)
    assert (teacher.asked, asked.labeler.ledger.count) == (4, 4)
    assert asked.vote(INPUTS[:4]).shape == (4,)
    with pytest.raises(dt.InvalidArgument, match="ledger must be one with a budget"):
        site(ledger=dt.PrivacyLedger())
    with pytest.raises(dt.InvalidArgument, match="teacher must be an object with a digest"):
        site(teacher="north")


def test_the_unit_of_the_teacher_is_that_of_its_answers() -> None:
    """A teacher that protects patients has answers that protect patients."""
    profile = dt.PrivacyProfile.from_dp_sgd([(12.0, 1 / 35, 175)]).for_unit("patient", records=3)
    assert site(profile=profile).profile.unit == profile.unit
    assert site(profile=replace(profile, reading=None)).profile != profile


def test_answers_are_randomized_and_a_failed_teacher_answers_too() -> None:
    """False alarm below 1e-6: e / (e + 2) of 5,000 answers, five standard deviations."""
    large = dt.PrivacyLedger(budget=dt.PrivacyGuarantee(epsilon=9_000.0))
    many = torch.arange(5_000.0)[:, None]
    kept = (site(2, ledger=large).vote(many) == 2).mean()
    expected = math.e / (math.e + 2)
    assert abs(kept - expected) < 5 * math.sqrt(expected * (1 - expected) / 5_000)
    failed = site(ValueError("down"))
    assert set(failed.vote(INPUTS[:3]).tolist()) <= {0, 1, 2}
    assert "down" in failed.labeler.sensitive_events[0]


def test_a_labeler_goes_on_without_a_site_whose_budget_is_spent() -> None:
    sites = [
        site(1, epsilon=20.0, ledger=dt.PrivacyLedger(budget=dt.PrivacyGuarantee(epsilon=20.0 * n))) for n in (1, 9, 9)
    ]
    labeler = dt.PrivateLabeler(
        dt.NoiseFreeMajority(), teachers=sites, profiles=[one.profile for one in sites], overlap=1, classes=3,
        ledger=dt.PrivacyLedger(),
    )  # fmt: skip
    assert labeler(INPUTS[:1]).tolist() == [1]
    assert labeler(INPUTS[1:3]).tolist() == [1, 1]
    (event,) = labeler.sensitive_events
    assert "teacher 0 failed: BudgetExceeded" in event
    assert any("unless each site randomized its own" in one for one in labeler.total_privacy(labels=1).assumptions)
