"""Batches of fixed size: exact laws, simulation, and the curve of one step."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

from darrm_torch import InvalidArgument, PrivacyProfile


@pytest.mark.parametrize(("noise", "size", "steps"), [(2.0, 1, 1), (3.0, 2, 3), (6.0, 5, 1)])
def test_fixed_batches_cost_at_least_the_exact_law(noise, size, steps):
    """Records of 0, one of which is 1 or -1: batches of ``size`` of 10, the two laws by quadrature or simulation.

    With probability b / n the record is in the batch. Then the sums differ by 2, otherwise not at all.
    """
    profile = PrivacyProfile.from_fixed_batches(noise_multiplier=noise, records=10, batch_size=size, steps=steps)
    x = np.linspace(-14 * noise, 14 * noise, 20_001)
    here = (1 - size / 10) * norm.pdf(x, 0, noise) + size / 10 * norm.pdf(x, 1, noise)
    there = (1 - size / 10) * norm.pdf(x, 0, noise) + size / 10 * norm.pdf(x, -1, noise)
    loss = np.log(here / there)
    width = x[1] - x[0]
    if steps == 1:
        for delta in (1e-2, 1e-4):
            epsilon = profile.epsilon(delta)
            assert (np.maximum(here - math.exp(epsilon) * there, 0) * width).sum() <= delta
        return
    rng = np.random.default_rng(1)
    drawn = rng.choice(len(x), (100_000, steps), p=here * width / (here * width).sum())
    total = loss[drawn].sum(axis=1)
    for delta in (1e-1, 1e-2):
        values = np.maximum(-np.expm1(profile.epsilon(delta) - total), 0.0)
        assert values.mean() - 4 * values.std() / math.sqrt(len(values)) <= delta


def test_fixed_batches_of_all_records_are_a_gaussian_with_twice_the_shift():
    whole = PrivacyProfile.from_fixed_batches(noise_multiplier=4.0, records=7, batch_size=7, steps=3)
    gaussian = PrivacyProfile.from_dp_sgd([(2.0, 1.0, 3)])
    assert gaussian.epsilon(1e-5) <= whole.epsilon(1e-5) <= 1.001 * gaussian.epsilon(1e-5)


@pytest.mark.slow
def test_fixed_batches_are_composed_along_the_curve_of_one_step():
    """Above the composition of one pair of the class, by quadrature; within a few per cent of Poisson sampling."""
    fixed = PrivacyProfile.from_fixed_batches(noise_multiplier=4.0, records=5000, batch_size=100, steps=500)
    sampled = PrivacyProfile.from_dp_sgd([(2.0, 0.02, 500)])  # the same mixture, for one order of the pair
    assert sampled.epsilon(1e-5) <= fixed.epsilon(1e-5) <= 1.0505
    one = PrivacyProfile.from_fixed_batches(noise_multiplier=4.0, records=5000, batch_size=100, steps=1)
    for delta in (1e-3, 1e-5):
        epsilon = one.epsilon(delta)
        above = math.log(1 + (math.exp(epsilon) - 1) / 0.02)  # delta(epsilon) = q delta_Gaussian(above)
        exact = 0.02 * (norm.cdf(0.25 - 2 * above) - math.exp(above) * norm.cdf(-0.25 - 2 * above))
        assert 0.9 * delta <= exact <= delta


@pytest.mark.parametrize(
    "wrong",
    [{"records": 0}, {"batch_size": 8}, {"steps": 0}, {"noise_multiplier": 0.0}, {"noise_multiplier": math.nan}],
)
def test_fixed_batches_are_checked(wrong):
    with pytest.raises(InvalidArgument):
        PrivacyProfile.from_fixed_batches(
            **{"noise_multiplier": 1.0, "records": 7, "batch_size": 2, "steps": 3, **wrong}
        )


def test_a_hopeless_training_promises_nothing():
    assert (
        PrivacyProfile.from_fixed_batches(noise_multiplier=1e-3, records=7, batch_size=7, steps=30).epsilon(1e-5)
        == math.inf
    )
