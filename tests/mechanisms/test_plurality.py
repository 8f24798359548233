"""The self-bounding plurality: brute force over vote vectors, and exact laws."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from darrm_torch import (
    InvalidArgument,
    NoiseFreeMajority,
    PluralityVotes,
    SelfBoundingPlurality,
    VotePrivatePlurality,
    self_bounding_noise,
)


def laws(mechanism) -> np.ndarray:
    """The label's law for every vector of votes: (C, ..., C, C)."""
    classes, teachers = mechanism.classes, mechanism.teachers
    votes = np.array(list(itertools.product(range(classes), repeat=teachers)))
    counts = (votes[:, :, None] == np.arange(classes)).sum(axis=1)
    return mechanism.label_probabilities(counts).reshape(*[classes] * teachers, classes)


def smallest_allowance(law: np.ndarray, overlap: int) -> float:
    """From the definition: the largest falls over single voters, over the chance."""
    falls = np.stack([law - law.min(axis=k, keepdims=True) for k in range(law.ndim - 1)])
    most = np.sort(falls, axis=0)[::-1][:overlap].sum(axis=0)
    return float(np.max(most[law > 1e-12] / law[law > 1e-12]))


@pytest.mark.parametrize(
    ("teachers", "overlap", "allowance"), [(4, None, 1.5), (5, 2, 1.2), (6, None, 2.0), (6, 3, 2.5)]
)
@pytest.mark.parametrize("less", [0, 2])
def test_self_bounding_by_definition(teachers: int, overlap: int | None, allowance: float, less: int) -> None:
    mechanism = SelfBoundingPlurality(
        teachers=teachers, classes=3, allowance=allowance, overlap=overlap, sample=teachers - less
    )
    found = smallest_allowance(laws(mechanism), overlap or teachers)
    assert found <= mechanism.self_bounding_allowance(overlap=overlap) + 1e-9 <= allowance + 2e-9
    assert math.isclose(found, mechanism.self_bounding_allowance(overlap=overlap), rel_tol=1e-9)
    if not less:
        assert math.isclose(found, mechanism.certificate.smallest, rel_tol=1e-9)


def test_a_sample_costs_what_all_votes_say() -> None:
    mechanism = SelfBoundingPlurality(teachers=8, classes=3, allowance=3.0, overlap=4, sample=4)
    assert mechanism.certificate.smallest > 2.9
    assert mechanism.self_bounding_allowance() < 2.27


def test_plurality_needs_every_teacher() -> None:
    assert math.isclose(smallest_allowance(laws(noise_free(6, 3)), 6), 6)
    noisy = SelfBoundingPlurality(teachers=6, classes=3, allowance=5.9)
    counts = np.array([[2, 2, 2], [3, 2, 1], [6, 0, 0]])
    assert not np.allclose(noisy.label_probabilities(counts), NoiseFreeMajority().label_probabilities(counts))
    plain = SelfBoundingPlurality(teachers=6, classes=3, allowance=6)
    assert np.array_equal(plain.label_probabilities(counts), NoiseFreeMajority().label_probabilities(counts))


def noise_free(teachers: int, classes: int) -> NoiseFreeMajority:
    return NoiseFreeMajority(teachers=teachers, classes=classes)


@pytest.mark.parametrize("teachers", [1, 5, 11, 21])
@pytest.mark.parametrize("allowance", [1.0, 2.5, 4.0])
def test_two_classes_are_the_closed_form(teachers: int, allowance: float) -> None:
    ones = np.arange(teachers + 1)
    counts = np.stack([teachers - ones, ones], axis=1)
    law = SelfBoundingPlurality(teachers=teachers, classes=2, allowance=allowance).label_probabilities(counts)[:, 1]
    closed = self_bounding_noise(teachers=teachers, allowance=allowance).label_probability(ones)
    np.testing.assert_allclose(law, closed, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("classes", "teachers", "accuracy", "least"),
    [
        (10, 11, 0.7, (0.69, 0.87, 0.94, 0.98)),
        (10, 11, 0.5, (0.50, 0.67, 0.78, 0.88)),
        pytest.param(3, 51, 0.7, (0.69, 0.85, 0.92, 0.98), marks=pytest.mark.slow),
    ],
)
def test_accuracy(classes: int, teachers: int, accuracy: float, least: tuple[float, ...]) -> None:
    for allowance, expected in zip((1, 2, 3, 5), least, strict=True):
        mechanism = SelfBoundingPlurality(teachers=teachers, classes=classes, allowance=allowance)
        # At m = 1 one teacher's vote is the best there is: exactly the teachers' accuracy, to rounding.
        assert mechanism.expected_accuracy(PluralityVotes(accuracy=accuracy)) >= expected - 1e-9


def test_labels_follow_the_law() -> None:
    """Seeded; false alarm rate 1e-6."""
    mechanism = SelfBoundingPlurality(teachers=9, classes=4, allowance=2, sample=6, insecure_seed=3)
    counts = np.array([[5, 2, 1, 1], [3, 3, 3, 0]])
    for row, law in zip(counts, mechanism.label_probabilities(counts), strict=True):
        labels = mechanism.aggregate(np.tile(row, (50_000, 1)))
        kept = law > 0
        assert stats.chisquare(np.bincount(labels, minlength=4)[kept], 50_000 * law[kept]).pvalue > 1e-6


@pytest.mark.parametrize("less", [0, 1])
@pytest.mark.parametrize("overlap", [1, 2])
def test_vote_private_by_definition(less: int, overlap: int) -> None:
    mechanism = VotePrivatePlurality(teachers=5, classes=3, epsilon=0.8, overlap=overlap, sample=5 - less)
    law = laws(mechanism)
    ratio = max(float(np.max(law.max(axis=k) / law.min(axis=k))) for k in range(5))
    assert math.log(ratio) * overlap <= mechanism.guarantee().epsilon + 1e-9 <= 0.8 + 2e-9


def test_bad_input() -> None:
    for wrong in ({"teachers": 10**400}, {"classes": 10**400}, {"classes": 10**7}):
        with pytest.raises(InvalidArgument, match=next(iter(wrong))):
            SelfBoundingPlurality(**{"teachers": 3, "classes": 3, "allowance": 1.0, **wrong})
    for wrong in (np.array([0.1, 0.2]), 0.0, math.nan, 501.0):
        with pytest.raises(InvalidArgument, match="epsilon"):
            VotePrivatePlurality(teachers=3, classes=3, epsilon=wrong)
    with pytest.raises(InvalidArgument, match="teachers"):
        SelfBoundingPlurality(teachers=0, classes=3, allowance=1)
    with pytest.raises(InvalidArgument, match="allowance"):
        SelfBoundingPlurality(teachers=3, classes=3, allowance=math.nan)
    with pytest.raises(InvalidArgument, match="prior"):
        SelfBoundingPlurality(teachers=3, classes=3, allowance=1, prior=0.5)
