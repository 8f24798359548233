"""Confident GNMax: the check, the threshold, and declined answers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from darrm_torch import ConfidentGNMax, GNMax, InvalidArgument, PrivacyGuarantee
from darrm_torch.mechanisms.gaussian import gaussian_epsilon
from darrm_torch.mechanisms.gnmax import grid_step


def test_the_share_of_the_check() -> None:
    """sigma_check is ``ratio`` times sigma; the larger, the closer sigma is to GNMax's alone."""
    target = PrivacyGuarantee(epsilon=1.0, delta=1e-5)
    alone, even, wide = (
        GNMax.calibrated(target).sigma,
        *(ConfidentGNMax.calibrated(target, threshold=8, ratio=ratio) for ratio in (1.0, 1000.0)),
    )
    assert math.isclose(even.sigma, alone * math.sqrt(3 / 2), rel_tol=1e-9)
    assert (even.sigma_check, wide.sigma_check) == (even.sigma, 1000 * wide.sigma)
    assert math.isclose(wide.sigma, alone, rel_tol=1e-6)
    for wrong in (0.0, -1.0, math.nan, math.inf, "4"):
        with pytest.raises(InvalidArgument, match=r"^ratio must be"):
            ConfidentGNMax.calibrated(target, threshold=8, ratio=wrong)


def test_confident_gnmax_is_two_gaussians() -> None:
    mechanism = ConfidentGNMax(threshold=8, sigma_check=30.0, sigma=20.0, delta=1e-5, overlap=2)
    mu = math.sqrt(10 * 4 * (1 / 900 + 2 / 400))
    assert math.isclose(mechanism.guarantee(labels=10).epsilon, gaussian_epsilon(1e-5, mu), rel_tol=1e-9)


def test_confident_gnmax_answers_at_the_threshold() -> None:
    """A noisy count that equals the threshold reaches it: Pr[answer | max = T] = Pr[Z >= -step / 2]."""
    mechanism = ConfidentGNMax(threshold=8, sigma_check=3.0, sigma=1.0)
    silent = mechanism.label_probabilities(np.array([[8, 3], [7, 4], [11, 0]]))[:, 2]
    step = grid_step(3.0)
    np.testing.assert_allclose(silent, stats.norm.cdf((np.array([0, 1, -3]) - step / 2) / 3.0), atol=1e-12)


@pytest.mark.parametrize("sigma_check", [0.015268487408117084, 0.018084829611746362, 0.5, 3.0])
def test_no_answer_has_a_chance_however_certain_the_answer(sigma_check: float) -> None:
    """One minus a sum that rounding had carried above one was negative, and no tiny chance survived it."""
    counts = np.array([[n, 250 - n] for n in range(125, 251)])
    law = ConfidentGNMax(threshold=150, sigma_check=sigma_check, sigma=3.0).label_probabilities(counts)
    assert law.min() >= 0
    np.testing.assert_allclose(law.sum(axis=1), 1.0, rtol=0, atol=1e-12)
    step = grid_step(sigma_check)
    exact = stats.norm.cdf((150 - step / 2 - counts[:, 0]) / sigma_check)
    np.testing.assert_allclose(law[:, 2], exact, rtol=1e-9, atol=2.0**-63)
