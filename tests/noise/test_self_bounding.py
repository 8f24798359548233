"""The smallest allowance against its definition, and its certificate."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from darrm_torch import (
    PrivacyViolation,
    double_subsampling_noise,
    self_bounding_allowance,
    subsampling_noise,
)
from darrm_torch.noise.grid import on_grid
from darrm_torch.noise.self_bounding import SelfBoundingCertificate


def brute_allowance(gamma: np.ndarray, overlap: int) -> Fraction:
    """By the definition: all votes, all sets of teachers, both labels."""
    teachers = len(gamma) - 1
    best = Fraction(0)
    for votes in itertools.product((0, 1), repeat=teachers):
        for label in (0, 1):

            def chance(ones: int, label: int = label) -> Fraction:
                q = (1 + ((2 * ones > teachers) - (2 * ones < teachers)) * Fraction(float(gamma[ones]))) / 2
                return q if label else 1 - q

            here = chance(sum(votes))
            drops = [here - min(here, chance(sum(votes) + (-1 if vote else 1))) for vote in votes]
            total = sum(sorted(drops, reverse=True)[:overlap], start=Fraction(0))
            if here:
                best = max(best, total / here)
    return best


@settings(deadline=None, derandomize=True, max_examples=80)
@given(
    st.integers(1, 6),
    st.lists(st.one_of(st.floats(0, 1), st.sampled_from([0.0, 0.5, 1.0])), min_size=3, max_size=3),
    st.integers(1, 6),
    st.booleans(),
)
def test_allowance_is_the_definition(teachers: int, values: list[float], overlap: int, monotone: bool) -> None:
    half = (sorted(values) if monotone else values)[: (teachers + 1) // 2]
    gamma = on_grid([*half[::-1], *([0.0] * (1 - teachers % 2)), *half])
    exact = brute_allowance(gamma, min(overlap, teachers))
    ours = self_bounding_allowance(gamma, teachers=teachers, overlap=min(overlap, teachers))
    assert exact <= Fraction(ours) <= exact * (1 + Fraction(1, 2**51)) <= Fraction(overlap) * 2


def test_allowance_of_the_classical_functions() -> None:
    assert self_bounding_allowance(np.ones(12), teachers=11) == 6.0
    assert self_bounding_allowance(np.zeros(12), teachers=11) == 0.0
    assert self_bounding_allowance(np.ones(12), teachers=11, overlap=2) == 2.0
    assert self_bounding_allowance([1.0, 0.0, 0.0, 1.0], teachers=3) == 1.5
    for m in range(1, 7):
        double = double_subsampling_noise(teachers=11, allowance=m)
        assert m * (1 - 1e-12) <= self_bounding_allowance(double.gamma, teachers=11) <= m
        single = subsampling_noise(teachers=11, allowance=m)
        assert self_bounding_allowance(single.gamma, teachers=11) <= (m + 1) // 2 <= m


def test_a_self_bounding_certificate_cannot_overpromise() -> None:
    with pytest.raises(PrivacyViolation, match="cannot say smallest"):
        SelfBoundingCertificate(teachers=3, overlap=3, digest="", allowance=1.0, smallest=1.0000000001)
