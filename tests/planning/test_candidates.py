"""Many classes: what is offered keeps the budget, the best comes first, and accuracies are what they are said to be."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from darrm_torch import (
    ConfidentGNMax,
    GNMax,
    InvalidArgument,
    NoiseFreeMajority,
    PermuteAndFlip,
    PluralityVotes,
    PrivacyGuarantee,
    PrivacyProfile,
    RandomizedPlurality,
    SelfBoundingPlurality,
    expected_accuracy,
    expected_agreement,
    plurality_candidates,
    strongest_mechanism,
    subsampling_noise,
    total_privacy,
)
from darrm_torch.planning import candidates
from darrm_torch.planning.candidates import label_chances

POINT = PrivacyGuarantee(epsilon=0.1, delta=1e-5)
NAMES = {
    "noise-free plurality",
    "randomized response",
    "permute-and-flip",
    "exponential mechanism",
    "GNMax",
    "GNMax, calibrated on the label",
    "self-bounding plurality",
    "vote-private table",
}


@pytest.mark.parametrize(
    ("ask", "best"),
    [
        ({"overlap": 1, "label_target": PrivacyGuarantee(epsilon=0.5, delta=1e-5)}, "vote-private table"),
        (
            {"overlap": 1, "labels": 100, "total_target": PrivacyGuarantee(epsilon=8.0, delta=1e-5)},
            "GNMax, calibrated on the label",
        ),
        ({"teacher": POINT, "label_target": PrivacyGuarantee(epsilon=0.3, delta=3e-5)}, "self-bounding plurality"),
        (
            {
                "teacher": POINT,
                "overlap": 1,
                "labels": 1000,
                "total_target": PrivacyGuarantee(epsilon=0.1, delta=1e-5),
            },
            "noise-free plurality",
        ),
        ({"label_target": PrivacyGuarantee(epsilon=6.0)}, "randomized response"),
        pytest.param(
            {"overlap": 1, "teachers": 51, "label_target": PrivacyGuarantee(epsilon=0.5, delta=1e-5)},
            "permute-and-flip",
            marks=pytest.mark.slow,
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_best_for_each_situation(ask: dict[str, Any], best: str) -> None:
    """Eleven teachers, ten classes: a table for few votes, noise for many labels, closed forms for many teachers."""
    asked = {"teachers": 11, "classes": 10} | ask
    found = plurality_candidates(**asked)
    assert found[0].name == best
    assert {one.name for one in found} == NAMES
    meeting = [one for one in found if one.meets]
    assert found[: len(meeting)] == tuple(meeting)
    for one in meeting:
        assert one.mechanism is not None
        for count, target in ((1, ask.get("label_target")), (ask.get("labels", 1), ask.get("total_target"))):
            if target is not None:
                total = total_privacy(
                    teachers=[ask.get("teacher", PrivacyProfile.non_private())] * asked["teachers"],
                    overlap=ask.get("overlap"),
                    mechanism=one.mechanism,
                    labels=count,
                    delta=target.delta,
                )
                assert total.epsilon <= target.epsilon
                if one.name != "noise-free plurality" and ask.get("labels") != 1000:
                    assert total.epsilon >= 0.99 * target.epsilon  # as strong as it may be
    accuracies = [round(one.accuracy, 3) for one in meeting]
    assert accuracies == sorted(accuracies, reverse=True)


def test_what_is_not_possible_says_why() -> None:
    found = plurality_candidates(teachers=5, classes=3, label_target=PrivacyGuarantee(epsilon=0.5))
    by_name = {one.name: one for one in found}
    for name in ("GNMax", "self-bounding plurality", "GNMax, calibrated on the label"):
        assert by_name[name].mechanism is None
        assert by_name[name].reason
        assert not by_name[name].meets
    assert by_name["noise-free plurality"].mechanism is not None
    assert not by_name["noise-free plurality"].meets


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
    told = mechanism.label_probabilities(counts)[:, 0]
    assert abs(told.mean() - exact) <= 5 * told.std() / math.sqrt(len(told))


@pytest.mark.parametrize("concentration", [math.inf, 3.0])
def test_drawn_histograms_stand_for_all(concentration: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within 4 standard errors of the exact chances, and these are smaller than those of as many plain draws."""
    prior = [PluralityVotes(accuracy=accuracy, concentration=concentration) for accuracy in (0.5, 0.8)]
    mechanism = ConfidentGNMax(threshold=7.0, sigma_check=3.0, sigma=2.0)
    ask = {"teachers": 12, "classes": 5, "prior": prior}
    right, given, error = label_chances(mechanism, **ask)
    assert error == 0.0
    assert right < given < 1.0
    monkeypatch.setattr("darrm_torch.planning.candidates._LISTED", 10)
    drawn, answered, error = label_chances(mechanism, **ask)
    assert 0 < error < 0.3 / math.sqrt(1000)
    assert abs(drawn - right) <= 4 * error
    assert answered == pytest.approx(given, abs=0.01)


@pytest.mark.parametrize("teachers", [6, 40])
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
    ("wrong", "message"),
    [
        ({"label_target": None}, "label_target"),
        ({"teachers": 0}, "teachers"),
        ({"classes": 1}, "classes"),
        ({"overlap": 12}, "overlap"),
        ({"labels": 0}, "labels"),
        ({"teacher": 0.5}, "teacher"),
        ({"prior": 0.5}, "prior"),
        ({"label_target": 0.5}, "target"),
    ],
)
def test_bad_input(wrong: dict[str, Any], message: str) -> None:
    ask = {"teachers": 11, "classes": 10, "label_target": POINT} | wrong
    with pytest.raises(InvalidArgument, match=message):
        plurality_candidates(**ask)


TARGET = PrivacyGuarantee(epsilon=0.2, delta=1e-4)
BUDGET = PrivacyGuarantee(epsilon=4.0, delta=1e-4)
COINS = ["vote-private", "gnmax", "permute-and-flip", "exponential", "randomized-response"]


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize(
    ("kind", "teacher"),
    [*((kind, None) for kind in COINS), *((kind, POINT) for kind in ["self-bounding", "subsampling", *COINS])],
)
@pytest.mark.parametrize("targets", [{"label_target": TARGET}, {"labels": 9, "total_target": BUDGET}])
def test_the_strongest_of_a_kind_keeps_its_targets(
    kind: str, teacher: PrivacyGuarantee | None, classes: int, targets: dict[str, Any]
) -> None:
    """And leaves little of them unused, but for subsampling, which knows whole teachers only, and below the cap."""
    ask = {"teachers": 5, "classes": classes, "teacher": teacher, "overlap": 3} | targets
    if kind == "subsampling" and classes > 2:
        with pytest.raises(InvalidArgument, match=r"classes .* self-bounding"):
            strongest_mechanism(kind, **ask)
        return
    mechanism = strongest_mechanism(kind, **ask)
    total = total_privacy(
        teachers=[teacher or PrivacyProfile.non_private()] * 5, overlap=3, mechanism=mechanism,
        labels=targets.get("labels", 1), delta=1e-4,
    )  # fmt: skip
    target = next(value for name, value in targets.items() if name.endswith("target"))
    assert total.epsilon <= target.epsilon
    if total.route.key == "own-randomness":
        assert total.epsilon >= 0.99 * target.epsilon


def test_every_route_counts_for_self_bounding_noise() -> None:
    """For many labels its coins, seen through the teachers' training, prove more than its allowance."""
    teacher = PrivacyProfile.from_dp_sgd([(4.0, 0.1, 40)])
    target = PrivacyGuarantee(epsilon=0.2, delta=1e-4)
    mechanism = strongest_mechanism(
        "self-bounding", teachers=11, classes=2, teacher=teacher, overlap=1, labels=200, total_target=target
    )
    total = total_privacy(teachers=[teacher] * 11, overlap=1, mechanism=mechanism, labels=200, delta=target.delta)
    assert 0.99 * target.epsilon <= total.epsilon <= target.epsilon
    assert total.route.key != "self-bounding"


def test_subsampling_asks_the_largest_sample_that_fits() -> None:
    for allowance, sample in ((1, 1), (1.99, 1), (2, 3), (2.5, 3), (3, 5), (6, 11), (20, 11)):
        mechanism = strongest_mechanism("subsampling", teachers=11, classes=2, allowance=allowance)
        assert np.array_equal(mechanism.noise.gamma, subsampling_noise(teachers=11, allowance=sample).gamma)
        assert (sample + 1) // 2 - 1e-12 < mechanism.certificate.allowance <= (sample + 1) // 2
    doubled = PrivacyGuarantee(epsilon=0.2, delta=2e-5)
    mechanism = strongest_mechanism("subsampling", teachers=11, classes=2, teacher=POINT, label_target=doubled)
    assert round(mechanism.certificate.allowance) == 2  # exactly what the target is


@pytest.mark.parametrize(
    ("kind", "ask", "message"),
    [
        ("darrm", {"label_target": TARGET}, "kind must be one of self-bounding"),
        ("gnmax", {}, "label_target must be given, or total_target"),
        ("gnmax", {"allowance": 1}, "allowance must be given without targets"),
        ("self-bounding", {"allowance": 1, "label_target": TARGET}, "allowance must be given without targets"),
        ("self-bounding", {"allowance": math.nan}, "allowance must be a number"),
        ("subsampling", {"label_target": TARGET}, "label_target must be one that some strength"),
        ("subsampling", {"teacher": POINT, "total_target": POINT, "labels": 2}, "total_target must be one that some"),
        ("subsampling", {"allowance": 0.5}, "allowance must be one that some"),
        ("gnmax", {"label_target": PrivacyGuarantee(epsilon=1.0)}, "label_target must be one that some strength"),
    ],
)
def test_what_has_no_strength_that_fits(kind: str, ask: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        strongest_mechanism(kind, teachers=11, classes=2, **ask)


@pytest.mark.parametrize(
    "mechanism",
    [
        PermuteAndFlip(epsilon=0.7),
        NoiseFreeMajority(teachers=4),
        SelfBoundingPlurality(teachers=9, classes=4, allowance=2.0),
        SelfBoundingPlurality(teachers=9, classes=4, allowance=2.0, sample=5),
    ],
    ids=["coins", "part", "table", "sample"],
)
def test_agreement_of_drawn_votes_is_the_exact_one(mechanism: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With no histograms listed draws say the same, within 5 standard errors: one false alarm in a million."""
    asked = {"teachers": 9, "classes": 4}
    exact, none = expected_agreement(mechanism, **asked)
    assert none == 0.0
    monkeypatch.setattr(candidates, "_LISTED", 1)
    monkeypatch.setattr(candidates, "_LISTED_PARTS", 1)
    drawn, error = expected_agreement(mechanism, **asked)
    assert 0 < error < 0.02
    assert abs(drawn - exact) <= 5 * error


@pytest.mark.parametrize("part", [1, 3, 4])
def test_agreement_of_a_part_is_that_over_all_votes(part: int) -> None:
    """All 3^5 votes: the plurality of the first few, against that of all five."""
    prior = PluralityVotes(accuracy=0.5)
    total = 0.0
    for votes in itertools.product(range(3), repeat=5):
        everyone, some = (np.bincount(heard, minlength=3) for heard in (votes, votes[:part]))
        told = (some == some.max()) / (some == some.max()).sum()
        total += 0.5 ** votes.count(0) * 0.25 ** (5 - votes.count(0)) * told[everyone == everyone.max()].sum()
    value, error = expected_agreement(NoiseFreeMajority(teachers=part), teachers=5, classes=3, prior=prior)
    assert (value, error) == (pytest.approx(total, abs=1e-12), 0.0)


def test_tables_follow_the_prior_that_is_given() -> None:
    target = PrivacyGuarantee(epsilon=0.5, delta=1e-5)
    asked: dict[str, Any] = {"teachers": 7, "classes": 3, "overlap": 1, "label_target": target}
    for accuracy in (0.4, 0.9):
        prior = PluralityVotes(accuracy=accuracy)
        own = strongest_mechanism("vote-private", **asked, prior=prior)
        assert own.expected_accuracy(prior) >= strongest_mechanism("vote-private", **asked).expected_accuracy(prior)
        assert own.prior == (prior,)
