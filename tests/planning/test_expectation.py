"""Accuracy and agreement under a prior are those of enumerated and of simulated votes."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from darrm_torch import (
    BetaVotes,
    ConfidentGNMax,
    DaRRM,
    GNMax,
    IndependentVotes,
    NoiseFreeMajority,
    PermuteAndFlip,
    PluralityVotes,
    RandomizedPlurality,
    SelfBoundingPlurality,
    expected_accuracy,
    expected_agreement,
    self_bounding_noise,
)
from darrm_torch.planning import expectation
from darrm_torch.planning.expectation import label_chances


@pytest.mark.parametrize(
    "mechanism",
    [
        NoiseFreeMajority(),
        PermuteAndFlip(epsilon=0.7),
        GNMax(sigma=3.0),
        RandomizedPlurality(epsilon=1.0),
        SelfBoundingPlurality(teachers=9, classes=4, allowance=2.0),
        SelfBoundingPlurality(teachers=9, classes=4, allowance=2.0, sample=5),
    ],
    ids=lambda mechanism: type(mechanism).__name__,
)
@pytest.mark.parametrize("concentration", [math.inf, 2.0])
def test_expected_accuracy_is_that_of_simulated_votes(mechanism: Any, concentration: float) -> None:
    """20,000 votes drawn with a fixed seed, of which the exact chances are averaged; within 5 standard errors."""
    prior = PluralityVotes(accuracy=0.6, concentration=concentration)
    exact, error = expected_accuracy(mechanism, teachers=9, classes=4, prior=prior)
    assert error == 0.0
    counts = prior.sample(votes=9, classes=4, count=20_000, rng=np.random.default_rng(1))
    reported = mechanism.label_probabilities(counts)[:, 0]
    assert abs(reported.mean() - exact) <= 5 * reported.std() / math.sqrt(len(reported))


@pytest.mark.parametrize("concentration", [math.inf, 3.0])
def test_drawn_histograms_stand_for_all(concentration: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within 4 standard errors of the exact chances, and these are smaller than those of as many plain draws."""
    prior = [PluralityVotes(accuracy=accuracy, concentration=concentration) for accuracy in (0.5, 0.8)]
    mechanism = ConfidentGNMax(threshold=7.0, sigma_check=3.0, sigma=2.0)
    ask = {"teachers": 12, "classes": 5, "prior": prior}
    right, given, error = label_chances(mechanism, **ask)
    assert error == 0.0
    assert right < given < 1.0
    monkeypatch.setattr("darrm_torch.planning.expectation._LISTED", 10)
    drawn, answered, error = label_chances(mechanism, **ask)
    assert 0 < error < 0.3 / math.sqrt(1000)
    assert abs(drawn - right) <= 4 * error
    assert answered == pytest.approx(given, abs=0.01)


@pytest.mark.parametrize("teachers", [6, pytest.param(40, marks=pytest.mark.slow)])
def test_a_label_that_is_declined_is_neither_right_nor_the_plurality(teachers: int) -> None:
    ask = {"teachers": teachers, "classes": 4, "prior": PluralityVotes(accuracy=0.7)}
    plain, picky = GNMax(sigma=2.0), ConfidentGNMax(threshold=-1e6, sigma_check=1.0, sigma=2.0)
    silent = ConfidentGNMax(threshold=1e6, sigma_check=1.0, sigma=2.0)
    for expected in (expected_accuracy, expected_agreement):
        assert expected(picky, **ask) == pytest.approx(expected(plain, **ask), abs=1e-12)
        assert expected(silent, **ask)[0] == 0.0


def test_where_histograms_are_too_many_they_are_drawn() -> None:
    prior = PluralityVotes(accuracy=0.4, concentration=5.0)
    value, error = expected_accuracy(NoiseFreeMajority(), teachers=200, classes=10, prior=prior)
    assert 0 < error < 0.03
    counts = prior.sample(votes=200, classes=10, count=20_000, rng=np.random.default_rng(5))
    exact = NoiseFreeMajority().label_probabilities(counts)[:, 0].mean()
    assert abs(value - exact) <= 5 * error


@pytest.mark.parametrize(
    "mechanism",
    [
        PermuteAndFlip(epsilon=0.7),
        NoiseFreeMajority(teachers=4),
        SelfBoundingPlurality(teachers=9, classes=4, allowance=2.0),
        SelfBoundingPlurality(teachers=9, classes=4, allowance=2.0, sample=5),
    ],
    ids=["own randomness", "part", "table", "sample"],
)
def test_agreement_of_drawn_votes_is_the_exact_one(mechanism: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With no histograms listed draws say the same, within 5 standard errors: one false alarm in a million."""
    asked = {"teachers": 9, "classes": 4}
    exact, none = expected_agreement(mechanism, **asked)
    assert none == 0.0
    monkeypatch.setattr(expectation, "_LISTED", 1)
    monkeypatch.setattr(expectation, "_LISTED_PARTS", 1)
    drawn, error = expected_agreement(mechanism, **asked)
    assert 0 < error < 0.02
    assert abs(drawn - exact) <= 5 * error


@pytest.mark.parametrize("part", [1, 3, 4])
def test_agreement_of_a_part_is_that_over_all_votes(part: int) -> None:
    """All 3^5 votes: the plurality of the first few, against that of all five."""
    prior = PluralityVotes(accuracy=0.5)
    total = 0.0
    for votes in itertools.product(range(3), repeat=5):
        everyone, some = (np.bincount(counted, minlength=3) for counted in (votes, votes[:part]))
        reported = (some == some.max()) / (some == some.max()).sum()
        total += 0.5 ** votes.count(0) * 0.25 ** (5 - votes.count(0)) * reported[everyone == everyone.max()].sum()
    value, error = expected_agreement(NoiseFreeMajority(teachers=part), teachers=5, classes=3, prior=prior)
    assert (value, error) == (pytest.approx(total, abs=1e-12), 0.0)


@pytest.mark.parametrize("prior", [IndependentVotes(mean=0.7), BetaVotes(a=2.0, b=1.0)], ids=["independent", "beta"])
@pytest.mark.parametrize("teachers", [4, 7])
def test_two_classes_over_all_numbers_of_right_votes(prior: Any, teachers: int) -> None:
    mechanism = DaRRM(self_bounding_noise(teachers=teachers, allowance=1.5))
    law = prior.law(teachers)
    right = agree = 0.0
    for votes in range(teachers + 1):
        chances = mechanism.label_probabilities(np.array([[votes, teachers - votes]]))[0]
        right += law[votes] * chances[0]
        agree += law[votes] * (1.0 if 2 * votes == teachers else chances[int(2 * votes < teachers)])
    ask: dict[str, Any] = {"teachers": teachers, "classes": 2, "prior": prior}
    assert expected_accuracy(mechanism, **ask) == (pytest.approx(right, abs=1e-12), 0.0)
    assert expected_agreement(mechanism, **ask) == (pytest.approx(agree, abs=1e-12), 0.0)


def test_independent_votes_are_votes_of_one_accuracy() -> None:
    ask: dict[str, Any] = {"teachers": 9, "classes": 2}
    mechanism = GNMax(sigma=2.0)
    for expected in (expected_accuracy, expected_agreement):
        one = expected(mechanism, prior=IndependentVotes(mean=0.7), **ask)
        assert one == pytest.approx(expected(mechanism, prior=PluralityVotes(accuracy=0.7), **ask), abs=1e-12)


@pytest.mark.parametrize(
    ("mechanism", "classes", "prior"),
    [
        (GNMax(sigma=3.0), 4, PluralityVotes(accuracy=0.6, concentration=2.0)),
        (GNMax(sigma=3.0), 2, IndependentVotes(mean=0.7)),
        (NoiseFreeMajority(teachers=4), 4, PluralityVotes(accuracy=0.6)),
        (NoiseFreeMajority(teachers=3), 2, IndependentVotes(mean=0.7)),
        (SelfBoundingPlurality(teachers=9, classes=4, allowance=2.0, sample=5), 4, PluralityVotes(accuracy=0.6)),
        (ConfidentGNMax(threshold=4.0, sigma_check=1.0, sigma=2.0), 4, PluralityVotes(accuracy=0.6)),
    ],
)
def test_drawn_labels_agree_as_often_as_the_exact_law_says(mechanism: Any, classes: int, prior: Any) -> None:
    """Labels come from the operating system's bits: within 6 standard errors, a false alarm in 500 million."""
    ask: dict[str, Any] = {"teachers": 9, "classes": classes, "prior": prior}
    exact, _ = expected_agreement(mechanism, **ask)
    drawn, error = expected_agreement(mechanism, **ask, draws=20_000)
    assert 0 < error <= 0.5 / math.sqrt(20_000 - 1)
    assert abs(drawn - exact) <= 6 * error
    # A mechanism that reports another class must fail.
    assert abs(drawn - exact * 0.95) > 6 * error
