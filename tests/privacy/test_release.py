"""Labels of juries: enumeration of all outcomes of randomized response, juries and shards."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest

import darrm_torch as dt
from darrm_torch import (
    InvalidArgument,
    MeanProbabilities,
    NoiseFreeMajority,
    PrivacyGuarantee,
    RandomAllocation,
    distinct_voters,
    total_privacy,
)

PAPER = dt.PrivacyProfile.from_dp_sgd([(12.0, 1 / 35, 175)])


@pytest.mark.parametrize(("teachers", "jury", "labels"), [(5, 2, 3), (6, 3, 2), (4, 1, 5), (5, 4, 3), (3, 3, 2)])
def test_distinct_voters_of_all_sequences_of_juries(teachers: int, jury: int, labels: int) -> None:
    juries = list(itertools.combinations(range(teachers), jury))
    sizes = Counter(len(set().union(*drawn)) for drawn in itertools.product(juries, repeat=labels))
    truth = np.array([sizes[size] / len(juries) ** labels for size in range(teachers + 1)])
    law, voters = np.zeros(teachers + 1), distinct_voters(teachers, labels=labels, jury=jury)
    law[: len(voters)] = voters
    assert np.allclose(law, truth, atol=1e-11)
    assert np.all(np.cumsum(law[::-1]) >= np.cumsum(truth[::-1]) - 1e-15)


def test_many_labels_read_everyone_and_long_laws_are_bounded() -> None:
    assert distinct_voters(11, labels=10**9)[-1] == 1.0
    assert distinct_voters(11, labels=495)[-1] == pytest.approx(1.0, abs=1e-15)
    assert distinct_voters(10**6, labels=1, jury=3) == (0.0, 0.0, 0.0, 1.0)
    assert distinct_voters(10**6, labels=200, jury=3) == (0.0,) * 600 + (1.0,)
    for wrong in ({"jury": 12}, {"jury": 0}, {"labels": 0}):
        with pytest.raises(InvalidArgument):
            distinct_voters(11, **{"labels": 1, **wrong})


def pair(epsilon: float, changed: int, votes: int) -> tuple[np.ndarray, np.ndarray]:
    """All outcomes of ``votes`` teachers of which the first ``changed`` have the record, and of none."""
    high = math.exp(epsilon) / (1 + math.exp(epsilon))
    laws = np.ones(1), np.ones(1)
    for k in range(votes):
        with_it, without = np.array([high, 1 - high]), np.array([1 - high, high])
        laws = (
            np.multiply.outer(laws[0], with_it if k < changed else without).ravel(),
            np.multiply.outer(laws[1], without).ravel(),
        )
    return laws


def worst(p: np.ndarray, q: np.ndarray, epsilon: float) -> float:
    return max(np.maximum(p - math.exp(epsilon) * q, 0).sum(), np.maximum(q - math.exp(epsilon) * p, 0).sum())


def meetings(teachers: int, overlap: int, jury: int, labels: int) -> dict[int, float]:
    """How many of the first ``overlap`` teachers are read, for all sequences of juries."""
    juries = list(itertools.combinations(range(teachers), jury))
    law: Counter[int] = Counter()
    for drawn in itertools.product(juries, repeat=labels):
        law[sum(k < overlap for k in set().union(*drawn))] += 1
    return {met: count / len(juries) ** labels for met, count in law.items()}


@pytest.mark.parametrize(
    ("teachers", "overlap", "jury", "redrawn", "labels", "epsilon"),
    [
        (9, 9, 4, False, 5, 0.5),
        (9, 4, 5, False, 5, 1.0),
        (9, 1, 3, False, 1, 2.0),
        (9, 9, 1, True, 4, 0.7),
        (7, 3, 2, True, 3, 1.0),
        (6, 6, 3, True, 3, 0.3),
        (8, 2, 7, True, 2, 3.0),
    ],
)
def test_all_outcomes_of_labels_by_juries(
    teachers: int, overlap: int, jury: int, redrawn: bool, labels: int, epsilon: float
) -> None:
    """Never below the truth, and no more than 1e-6 of delta above it."""
    law = meetings(teachers, overlap, jury, labels if redrawn else 1)
    laws = {met: pair(epsilon, met, met) for met in law}

    def truth(at: float) -> float:
        return sum(chance * worst(*laws[met], at) for met, chance in law.items())

    for mechanism in (NoiseFreeMajority(jury=jury, redrawn=redrawn), MeanProbabilities(jury=jury, redrawn=redrawn)):
        for at in (0.05, 0.4 * epsilon, epsilon, 1.7 * epsilon):
            delta = truth(at)
            if delta < 1e-9:
                continue
            claim = total_privacy(
                teachers=[PrivacyGuarantee(epsilon=epsilon)] * teachers,
                overlap=overlap,
                mechanism=mechanism,
                labels=labels,
                delta=delta,
            )
            (publishing,) = (route.epsilon for route in claim.routes if route.key == "publishing")
            assert truth(publishing) <= delta + 1e-12
            assert truth(max(0.0, publishing - 1e-5)) >= delta - 1e-6


def test_allocation_and_a_new_jury_for_each_label() -> None:
    teachers, jury, labels, epsilon = 6, 2, 3, 1.0
    high = math.exp(epsilon) / (1 + math.exp(epsilon))
    law = meetings(teachers, teachers, jury, labels)  # how many are read
    allocation = RandomAllocation(teachers=teachers)

    def truth(at: float) -> float:
        with_it, without_it = [], []  # over public juries and their outcomes
        for size, chance in law.items():
            ones = np.array([sum(votes) for votes in itertools.product((0, 1), repeat=size)])
            without = high ** (size - ones) * (1 - high) ** ones
            ratio = (ones * math.exp(epsilon) + (size - ones) * math.exp(-epsilon)) / teachers + 1 - size / teachers
            with_it += (chance * without * ratio).tolist()
            without_it += (chance * without).tolist()
        return worst(np.array(with_it), np.array(without_it), at)

    for at in (0.05, 0.2, 0.5):
        claim = total_privacy(
            teachers=[PrivacyGuarantee(epsilon=epsilon)] * teachers,
            mechanism=MeanProbabilities(jury=jury, redrawn=True),
            labels=labels,
            delta=truth(at),
            allocation=allocation,
        )
        assert claim.route.key == "allocation"
        assert at - 1e-9 <= claim.epsilon <= at + 1e-5


def test_one_jury_costs_the_same_for_any_number_of_labels_and_new_ones_cost_more() -> None:
    def price(labels: int, **jury: object) -> float:
        mechanism = NoiseFreeMajority(**jury)
        return total_privacy(teachers=[PAPER] * 11, mechanism=mechanism, labels=labels, delta=3e-4).epsilon

    assert price(1, jury=3) == price(1000, jury=3) < price(2, jury=3, redrawn=True) < price(1000, jury=3, redrawn=True)
    assert price(1, jury=3, redrawn=True) == price(1, jury=3)
    assert price(10**6, jury=3, redrawn=True) == pytest.approx(price(1), rel=1e-3)
    assert price(5, jury=11) == price(5)


def test_mean_probabilities_are_priced_by_the_teachers_that_are_read_only() -> None:
    total = total_privacy(
        teachers=[PAPER] * 11,
        mechanism=MeanProbabilities(),
        labels=7,
        delta=3e-4,
        allocation=RandomAllocation(teachers=11),
    )
    assert {route.key for route in total.routes if route.applies} == {"publishing", "allocation"}
    reasons = {route.key: route.explanation for route in total.routes if not route.applies}
    assert "not self-bounding" in reasons["self-bounding"]
    assert "no certificate" in reasons["certified"]
    assert "protects nothing" in reasons["own-randomness"]
    assert reasons.keys() == {
        "self-bounding", "certified", "label-curve", "own-randomness", "private-votes", "allocation-self-bounding",
    }  # fmt: skip
    majority = total_privacy(teachers=[PAPER] * 11, overlap=1, mechanism=NoiseFreeMajority(), labels=7, delta=3e-4)
    means = total_privacy(teachers=[PAPER] * 11, overlap=1, mechanism=MeanProbabilities(), labels=7, delta=3e-4)
    assert means.epsilon == majority.epsilon
