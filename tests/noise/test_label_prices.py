"""What one label costs by its exact curve: the figures, and enumerations that are written again here."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

import darrm_torch as dt
from darrm_torch import PrivacyGuarantee, PrivacyProfile
from darrm_torch.noise.label_prices import label_promise

PAPER = PrivacyProfile.from_dp_sgd([(12.0, 1 / 35, 175)])


def priced(mechanism, teacher=PAPER, teachers=11, labels=1, delta=3e-4, **more):
    total = dt.total_privacy(teachers=[teacher] * teachers, mechanism=mechanism, labels=labels, delta=delta, **more)
    return {route.key: route.epsilon for route in total.routes}


@pytest.mark.parametrize(("allowance", "largest"), [(None, 0.2185), (2, 0.0995), (3, 0.1405)])
def test_one_label_costs_less_than_all_teachers(allowance, largest):
    mechanism = dt.NoiseFreeMajority(classes=2)
    if allowance:
        mechanism = dt.DaRRM(dt.self_bounding_noise(teachers=11, allowance=allowance))
    routes = priced(mechanism)
    assert routes["label-curve"] <= largest < routes["publishing"]
    assert routes["label-curve"] < routes["self-bounding"]


@pytest.mark.parametrize(("labels", "largest", "publishing"), [(10, 0.568, 0.746), (100, 1.596, 2.155)])
def test_fresh_votes_compose_along_the_curve(labels, largest, publishing):
    noise = dt.optimize_noise(teachers=11, teacher=PAPER, target=PrivacyGuarantee(epsilon=0.15, delta=1e-4))
    routes = priced(dt.DaRRM(noise), labels=labels, delta=2e-4 * labels, votes="fresh")
    assert routes["label-curve"] <= largest
    assert routes["publishing"] == pytest.approx(publishing, abs=1e-3)


def extreme_pairs(epsilon, delta):
    """Chances of voting 1 on two data sets, at the corners of what (epsilon, delta)-DP allows; written again."""
    grown = math.exp(epsilon)
    high = (grown + delta) / (1 + grown)
    corners = [(delta, 0.0), (high, 1 - high), (1.0, 1 - delta), (0.0, 0.0), (1.0, 1.0)]
    return corners + [(q, p) for p, q in corners]


def label_law(gamma, chances):
    """The chance of label 1, by all votes of the teachers."""
    total, teachers = 0.0, len(chances)
    for votes in itertools.product((0, 1), repeat=teachers):
        weight = math.prod(p if vote else 1 - p for p, vote in zip(chances, votes, strict=True))
        ones = sum(votes)
        total += weight * (1 + float(np.sign(2 * ones - teachers)) * gamma[ones]) / 2
    return total


def pairs_of_labels(gamma, teachers, overlap, epsilon, delta):
    for affected in itertools.combinations_with_replacement(extreme_pairs(epsilon, delta), overlap):
        for rest in itertools.combinations_with_replacement((0.0, 1.0), teachers - overlap):
            here = label_law(gamma, [p for p, _ in affected] + list(rest))
            there = label_law(gamma, [q for _, q in affected] + list(rest))
            yield (here, 1 - here), (there, 1 - there)


def excess(epsilon, here, there):
    return sum(max(0.0, p - math.exp(epsilon) * q) for p, q in zip(here, there, strict=True))


@pytest.mark.parametrize("gamma", [[1, 1, 1, 1, 1, 1], [1, 0.8, 0.3, 0.3, 0.8, 1], [0.5, 0.9, 0.2, 0.2, 0.9, 0.5]])
@pytest.mark.parametrize("overlap", [1, 2, 3])
def test_one_label_against_all_votes(gamma, overlap):
    """K = 5: the claim is the largest epsilon at the corners, to a millionth."""
    teacher, delta = PrivacyGuarantee(epsilon=0.4, delta=1e-3), 4e-3
    mechanism = dt.DaRRM(dt.NoiseFunction(gamma=gamma), uncertified=True)
    claim = priced(mechanism, teacher, 5, delta=delta, overlap=overlap)["label-curve"]
    every = list(pairs_of_labels(gamma, 5, overlap, teacher.epsilon, teacher.delta))
    assert max(excess(claim, *pair) for pair in every) <= delta * (1 + 1e-9)
    assert claim == 0 or max(excess(claim * (1 - 1e-5), *pair) for pair in every) > delta


def test_two_labels_of_fresh_votes_against_all_pairs():
    """K = 3, the second pair chosen after the first label: the claim is never below the truth, and close to it."""
    gamma, teacher = [0.9, 0.4, 0.4, 0.9], PrivacyGuarantee(epsilon=0.7, delta=1e-3)
    mechanism = dt.DaRRM(dt.NoiseFunction(gamma=gamma), uncertified=True)
    every = list(pairs_of_labels(gamma, 3, 2, teacher.epsilon, teacher.delta))
    delta = 0.01
    claim = priced(mechanism, teacher, 3, labels=2, delta=delta, overlap=2, votes="fresh")["label-curve"]

    def truth(epsilon):
        return max(
            sum(
                p * max(excess(epsilon - math.log(p / q), *pair) for pair in every) if q > 0 else p
                for p, q in zip(here, there, strict=True)
                if p > 0
            )
            for here, there in every
        )

    assert truth(claim) <= delta
    assert truth(0.93 * claim) > delta


def test_the_curve_says_nothing_about_several_labels_of_fixed_teachers():
    routes = priced(dt.NoiseFreeMajority(classes=2), labels=2)
    assert routes["label-curve"] == math.inf
    assert priced(dt.NoiseFreeMajority(), labels=1)["label-curve"] == math.inf  # for any number of classes
    assert priced(dt.NoiseFreeMajority(classes=3), labels=1)["label-curve"] == math.inf


@pytest.mark.parametrize(
    "teacher",
    [
        PrivacyProfile.non_private(),
        PrivacyProfile(),
        PrivacyProfile.from_guarantee(PrivacyGuarantee(epsilon=0.1)).compose(40),
        PrivacyProfile.from_guarantee(PrivacyGuarantee(epsilon=200.0, delta=0.3)),
        PAPER.for_replacement(),
    ],
)
@pytest.mark.parametrize("delta", [0.0, 1e-12, 0.9])
def test_any_teachers(teacher, delta):
    for votes in ("fixed", "fresh"):
        for labels in (1, 3):
            how = {"labels": labels, "delta": delta, "votes": votes, "neighbours": teacher.unit.neighbours}
            routes = priced(dt.NoiseFreeMajority(classes=2), teacher, 4, **how)
            assert routes["label-curve"] >= 0


def test_many_teachers_are_searched_with_fewer_points_or_not_at_all():
    gamma = np.ones(202)
    assert label_promise(gamma, teacher=PAPER, overlap=201, labels=1, delta=1e-5) is None or (
        label_promise(gamma, teacher=PAPER, overlap=201, labels=1, delta=1e-5).epsilon(1e-5) > 0
    )
    few = label_promise(gamma, teacher=PAPER, overlap=3, labels=1, delta=1e-5)
    assert 0 < few.epsilon(1e-5) <= 1.1 * PAPER.compose(3).epsilon(1e-5)


def test_unlike_teachers_count_as_the_weakest_of_them():
    unlike = [PrivacyGuarantee(epsilon=e, delta=d) for e, d in ((0.1, 1e-5), (0.3, 0.0), (0.2, 1e-6))]
    total = dt.total_privacy(teachers=unlike, mechanism=dt.NoiseFreeMajority(classes=2), labels=1, delta=1e-4)
    same = priced(dt.NoiseFreeMajority(classes=2), PrivacyGuarantee(epsilon=0.3, delta=1e-5), 3, delta=1e-4)
    assert next(r.epsilon for r in total.routes if r.key == "label-curve") >= same["label-curve"] * (1 - 1e-6)
