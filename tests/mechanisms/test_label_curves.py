"""The curve of one label by the mechanism's own randomness: against laws and enumerations written again here."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution

import darrm_torch as dt
from darrm_torch.mechanisms.label_curves import worst_curve
from darrm_torch.privacy.guarantees import PrivacyGuarantee

KNOWN = {"teachers": 11, "classes": 3}


def histograms(teachers, classes):
    """All histograms, the names of the classes included."""
    return [row for row in itertools.product(range(teachers + 1), repeat=classes) if sum(row) == teachers]


def pairs(law, teachers, classes, overlap):
    """The laws of the label on all pairs of histograms between which up to ``overlap`` votes move."""
    rows = histograms(teachers, classes)
    for one, two in itertools.product(rows, repeat=2):
        if 0 < sum(abs(a - b) for a, b in zip(one, two, strict=True)) // 2 <= overlap:
            yield law(one), law(two)


def hockey_stick(epsilon, here, there):
    return sum(max(0.0, p - math.exp(epsilon) * q) for p, q in zip(here, there, strict=True))


def exponential(rate):
    def law(row):
        weights = [math.exp(rate * n) for n in row]
        return [weight / sum(weights) for weight in weights]

    return law


def laplace(scale, reach=400):
    """The argmax after integer Laplace noise, ties split evenly, by a sum over the winner's noise."""
    noise = np.exp(-np.abs(np.arange(-reach, reach + 1)) / scale)
    noise /= noise.sum()

    def law(row):
        chances = []
        for mine in range(len(row)):
            total = 0.0
            for k in range(-reach, reach + 1):
                score = row[mine] + k
                ways = {0: noise[k + reach]}  # by how many rivals tie
                for rival, votes in enumerate(row):
                    if rival != mine:
                        at = score - votes + reach
                        level = noise[at] if 0 <= at <= 2 * reach else 0.0
                        below = noise[: max(0, min(at, 2 * reach + 1))].sum()
                        ways = {
                            ties: ways.get(ties, 0.0) * below + ways.get(ties - 1, 0.0) * level
                            for ties in range(len(ways) + 1)
                        }
                total += sum(chance / (ties + 1) for ties, chance in ways.items())
            chances.append(total)
        return chances

    return law


CASES = [
    (dt.ExponentialMechanism(epsilon=0.8, overlap=1), exponential(0.4), 4, 3, 1),
    (dt.ExponentialMechanism(epsilon=0.8, overlap=2), exponential(0.2), 5, 3, 2),
    (dt.ExponentialMechanism(epsilon=0.5, overlap=3), exponential(0.5 / 6), 4, 4, 3),
    (dt.LNMax(scale=3.0, overlap=1), laplace(3.0, 120), 4, 3, 1),
    (dt.LNMax(scale=3.0, overlap=2), laplace(3.0, 120), 4, 2, 2),
]


@pytest.mark.parametrize(("mechanism", "law", "teachers", "classes", "overlap"), CASES)
def test_the_curve_is_the_largest_over_all_pairs_of_histograms(mechanism, law, teachers, classes, overlap):
    """No point lies below the truth, and none more than 1e-9 above it."""
    beyond = PrivacyGuarantee(epsilon=mechanism.guarantee().epsilon)
    points = worst_curve(mechanism._law, teachers=teachers, classes=classes, overlap=overlap, beyond=beyond)
    every = list(pairs(law, teachers, classes, overlap))
    assert points[-1] == beyond
    for point in points[:-1:16]:
        truth = max(hockey_stick(point.epsilon, *pair) for pair in every)
        assert truth <= point.delta <= truth + 1e-9
    assert max(hockey_stick(beyond.epsilon, *pair) for pair in every) < 1e-12


@pytest.mark.parametrize(
    ("mechanism", "labels", "largest"),
    [
        (dt.LNMax(scale=20, **KNOWN), 100, 1.96),
        (dt.PermuteAndFlip(epsilon=0.1, **KNOWN), 100, 2.942),
        (dt.ExponentialMechanism(epsilon=0.1, **KNOWN), 100, 1.75),
        (dt.ConfidentGNMax(threshold=6, sigma_check=8, sigma=4, teachers=9, classes=3), 20, 5.26),
        (dt.GNMax(sigma=12, teachers=11, classes=2, overlap=3), 50, 11.23),
    ],
)
def test_many_labels_cost_what_their_curve_says(mechanism, labels, largest):
    """The composition lies above that of every single pair (dp-accounting, rounded down), and reaches the figure."""
    overlap = mechanism.overlap
    claim = mechanism.guarantee(labels=labels, delta=1e-5).epsilon
    assert claim <= largest
    unknown = replace(mechanism, teachers=None, classes=None)
    assert claim < 0.87 * unknown.guarantee(labels=labels, delta=1e-5).epsilon
    rows = np.array(histograms(mechanism.teachers, mechanism.classes))
    laws = dict(zip(map(tuple, rows.tolist()), mechanism.label_probabilities(rows), strict=True))
    scores = sorted(
        (hockey_stick(claim / labels, *pair), n, pair)
        for n, pair in enumerate(pairs(lambda row: laws[row], mechanism.teachers, mechanism.classes, overlap))
    )
    largest_pair = 0.0
    for _, _, (here, there) in scores[-3:]:
        alone = privacy_loss_distribution.from_two_probability_mass_functions(
            {n: math.log(q) for n, q in enumerate(there) if q > 0},
            {n: math.log(p) for n, p in enumerate(here) if p > 0},
            pessimistic_estimate=False,
            value_discretization_interval=1e-4,
        )
        largest_pair = max(largest_pair, alone.self_compose(labels).get_epsilon_for_delta(1e-5))
    assert 0.5 * claim < largest_pair <= claim


def test_labels_of_unlike_items_cost_no_more():
    """Two labels, the pair of histograms of the second one chosen after the first label: all choices, exactly."""
    mechanism, law, teachers, classes, overlap = (
        dt.ExponentialMechanism(epsilon=1.5, teachers=3, classes=3),
        exponential(0.75),
        3,
        3,
        1,
    )
    every = list(pairs(law, teachers, classes, overlap))
    for epsilon in (0.2, 0.6, 1.2):
        # delta(P, P') of two labels, exactly: after a label of ratio x the second faces epsilon - log x
        truth = 0.0
        for here, there in every:
            total = 0.0
            for p, q in zip(here, there, strict=True):
                left = epsilon - math.log(p / q)
                total += p * max(hockey_stick(left, *pair) for pair in every)
            truth = max(truth, total)
        points = worst_curve(
            mechanism._law, teachers=3, classes=3, overlap=1, beyond=PrivacyGuarantee(epsilon=mechanism.epsilon)
        )
        claim = dt.PrivacyProfile.from_guarantee(*points).compose(2).delta(epsilon)
        assert truth <= claim <= 1.3 * truth  # the worst pair is another one at each epsilon


def test_a_binary_mechanism_is_listed_by_its_counts():
    """DaRRM for teachers without privacy: 25 labels, against the composition of every pair (dp-accounting)."""
    public = PrivacyGuarantee(epsilon=math.inf)
    noise = dt.optimize_noise(teachers=9, teacher=public, target=PrivacyGuarantee(epsilon=0.3, delta=1e-6), overlap=1)
    mechanism = dt.DaRRM(noise)
    claim = mechanism.guarantee(labels=25, delta=1e-4, overlap=1).epsilon
    chances = mechanism.label_probabilities(np.array([[9 - n, n] for n in range(10)]))
    largest = 0.0
    for n in range(9):
        for one, two in ((n, n + 1), (n + 1, n)):
            alone = privacy_loss_distribution.from_two_probability_mass_functions(
                {c: math.log(q) for c, q in enumerate(chances[two]) if q > 0},
                {c: math.log(p) for c, p in enumerate(chances[one]) if p > 0},
                pessimistic_estimate=False,
                value_discretization_interval=1e-4,
            )
            largest = max(largest, alone.self_compose(25).get_epsilon_for_delta(1e-4))
    assert largest <= claim <= 1.1 * largest


@pytest.mark.parametrize("changes", [{"classes": None}, {"teachers": None}, {"teachers": 400, "classes": 10}])
def test_what_cannot_be_listed_keeps_its_theorem(changes):
    known = dt.LNMax(scale=20, **{**KNOWN, **changes})
    assert known.guarantee(labels=100, delta=1e-5) == dt.LNMax(scale=20).guarantee(labels=100, delta=1e-5)


def test_without_delta_the_theorem_holds():
    known = dt.LNMax(scale=20, **KNOWN)
    assert known.guarantee(labels=3) == PrivacyGuarantee(epsilon=0.1 * 3)
    assert known.guarantee(labels=1, delta=1e-9).epsilon <= 0.1


def test_the_proof_is_named():
    mechanism = dt.GNMax(sigma=12, teachers=11, classes=2, overlap=3, delta=1e-5)
    assert "worst curve of the label itself, over all votes of 11 teachers for 2 classes" in mechanism.proof(labels=50)
    assert "Gaussian mechanism on the counts" in dt.GNMax(sigma=12, overlap=3, delta=1e-5).proof(labels=50)
