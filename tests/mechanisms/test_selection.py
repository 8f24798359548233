"""Permute-and-flip, the exponential mechanism, and randomized response."""

from __future__ import annotations

import itertools
import math

import numpy as np

from darrm_torch import ExponentialMechanism, LNMax, PermuteAndFlip, RandomizedPlurality
from tests.mechanisms.enumeration import all_counts


def test_law_of_permute_and_flip_by_brute_force_over_orders() -> None:
    counts = np.array([5, 4, 2, 2])
    accept = np.exp(-0.5 * 1.3 * (counts.max() - counts))
    expected = np.zeros(4)
    for order in itertools.permutations(range(4)):
        left = 1.0 / 24
        for c in order:
            expected[c] += left * accept[c]
            left *= 1 - accept[c]
    np.testing.assert_allclose(PermuteAndFlip(epsilon=1.3).label_probabilities(counts[None])[0], expected, atol=1e-12)


def test_law_of_permute_and_flip_for_thousands_of_classes() -> None:
    """Equal counts have equal chances, however many classes there are; the sum for one class, computed by hand."""
    counts = np.zeros((1, 2000), dtype=np.int64)
    counts[0, :2] = 3, 2
    law = PermuteAndFlip(epsilon=8.0).label_probabilities(counts)[0]
    far, near = math.exp(-12.0), math.exp(-4.0)
    nodes, weights = np.polynomial.legendre.leggauss(60)  # the integrand is smooth: far * 2000 is small
    u = (1 - nodes) / 2
    first = float((1 - near * u) * (1 - far * u) ** 1998 @ weights) / 2
    np.testing.assert_allclose(law[0], first, rtol=1e-9)
    assert np.ptp(law[2:]) == 0.0
    assert math.isclose(law.sum(), 1.0, rel_tol=1e-9)


def test_many_pure_labels_compose_better_than_the_sum() -> None:
    for mechanism in (LNMax(scale=20.0), PermuteAndFlip(epsilon=0.1)):
        assert math.isclose(mechanism.guarantee(labels=100).epsilon, 10.0)
        assert mechanism.guarantee(labels=100).epsilon >= 10.0
        assert mechanism.guarantee(labels=100, delta=1e-5).epsilon < 5.0
        assert mechanism.guarantee(labels=100).delta == 0.0


def test_permute_and_flip_is_never_less_accurate_than_the_exponential_mechanism() -> None:
    """McKenna & Sheldon 2020, Theorem 2, for every histogram of votes."""
    counts = all_counts(9, 3)
    plurality = counts == counts.max(axis=1, keepdims=True)
    for epsilon in (0.1, 1.0, 5.0):
        flip, exponential = (
            (kind(epsilon=epsilon).label_probabilities(counts) * plurality).sum(axis=1)
            for kind in (PermuteAndFlip, ExponentialMechanism)
        )
        assert np.all(flip >= exponential - 1e-12)


def test_randomized_response_depends_on_the_winner_alone() -> None:
    law = RandomizedPlurality(epsilon=1.5).label_probabilities([[9, 0, 0], [4, 3, 2], [3, 3, 3]])
    assert np.array_equal(law[0], law[1])
    np.testing.assert_allclose(law[2], 1 / 3)
    np.testing.assert_allclose(law[0] / law[0, 2], [math.exp(1.5), 1.0, 1.0])
