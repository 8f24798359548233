"""DaRRM: certificates, thresholds, and what its own randomness promises."""

from __future__ import annotations

import math

import numpy as np
import pytest

from darrm_torch import (
    DaRRM,
    InvalidArgument,
    NoiseFreeMajority,
    NoiseFunction,
    PrivacyGuarantee,
    UnprovenPrivacy,
    optimize_noise,
    self_bounding_noise,
)
from tests.processes import processor_seconds


def test_a_gamma_without_certificate_is_refused() -> None:
    noise = NoiseFunction(gamma=[1, 0.5, 0.5, 1])
    with pytest.raises(UnprovenPrivacy, match="uncertified=True"):
        DaRRM(noise)
    mechanism = DaRRM(noise, uncertified=True)
    assert mechanism.certificate is None
    assert "no certificate" in mechanism.describe()["notes"][0]
    assert mechanism.describe()["parameters"]["certified"] is False


def test_only_a_noise_function_is_one() -> None:
    with pytest.raises(InvalidArgument, match="noise must be a NoiseFunction"):
        DaRRM(np.ones(4))


def test_darrm_draws_exactly_the_certified_gamma() -> None:
    noise = optimize_noise(
        teachers=11, teacher=PrivacyGuarantee(epsilon=0.1), target=PrivacyGuarantee(epsilon=0.3), shape="free"
    )
    mechanism = DaRRM(noise)
    thresholds = mechanism._thresholds
    votes = np.arange(12)
    assert thresholds.dtype == np.int64
    assert [int(t) for t in thresholds] == [
        2**53 + int(np.sign(2 * v - 11)) * int(g * 2**53) for v, g in zip(votes, noise.gamma, strict=True)
    ]
    with pytest.raises(ValueError, match="read-only"):
        thresholds[0] = 0
    # Of the 2**54 values of 54 bits exactly `threshold` give label 1: the last that does, and the first that does not.
    for vote in (1, 4, 6, 10):
        edge = int(thresholds[vote])
        words = np.array([((edge - 1) << 10) + 1023, edge << 10], dtype=np.uint64)
        mechanism._bits.words = lambda size, words=words: words[:size]
        assert mechanism.aggregate(np.array([[11 - vote, vote]] * 2)).tolist() == [1, 0]


def test_darrm_knows_its_teachers() -> None:
    mechanism = DaRRM(self_bounding_noise(teachers=5, allowance=2.0))
    assert (mechanism.teachers, mechanism.classes) == (5, 2)
    with pytest.raises(InvalidArgument, match="teachers must be 5"):
        mechanism.self_bounding_allowance(teachers=6)


def test_a_noise_function_that_is_certain_promises_nothing_itself() -> None:
    assert DaRRM(self_bounding_noise(teachers=5, allowance=2.0)).guarantee() is None
    assert NoiseFreeMajority().guarantee() is None
    constant = DaRRM(NoiseFunction(gamma=np.full(6, 0.5)), uncertified=True)
    assert math.isclose(constant.guarantee().epsilon, math.log(3), rel_tol=1e-12)
    assert constant.guarantee().epsilon >= math.log(3)


def test_many_teachers_take_no_time() -> None:
    """All pairs of 10,001 counts took 23 seconds and gigabytes; the worst pair lies a window apart."""
    teachers = 10_000
    gamma = np.abs(2 * np.arange(teachers + 1) - teachers) / (2 * teachers)
    mechanism = DaRRM(NoiseFunction(gamma=gamma), uncertified=True)
    found: list[float] = []

    def find() -> None:
        found[:] = [mechanism.guarantee(overlap=overlap).epsilon for overlap in (1, 700, teachers, 2 * teachers)]

    assert processor_seconds(find, below=1) < 1
    chance = mechanism.noise.label_probability(np.arange(teachers + 1))
    exact = [np.log(chance[r:] / chance[: teachers + 1 - r]).max() for r in (1, 700, teachers, teachers)]
    np.testing.assert_allclose(found, exact, rtol=1e-12, atol=2.0**-45)  # what is added for rounding


def test_a_delta_above_all_chances_costs_nothing() -> None:
    fair = DaRRM(NoiseFunction(gamma=np.zeros(6)), uncertified=True)
    assert fair.guarantee(delta=0.95).epsilon <= 1e-12
