"""The allowance for rounding errors, against exact curves of the Gaussian mechanism."""

from __future__ import annotations

import math

import numpy as np
import pytest

from darrm_torch.privacy.loss_distributions import loss_distribution  # a numerical kernel, tested on purpose

from .test_profiles import gaussian_delta


@pytest.mark.parametrize("history", [((30.0, 1.0, 2000),), ((12.0, 1.0, 50), (5.0, 1.0, 20))])
def test_the_allowance_covers_the_rounding(history):
    """Without it, the computed curve may lie below the exact one by rounding; the excess is far below the allowance."""
    mu = math.sqrt(sum(steps / sigma**2 for sigma, _, steps in history))
    computed = loss_distribution(history, ())
    for epsilon in np.linspace(0, 9 * mu, 40):
        raw = max(float(pmf.get_delta_for_epsilon(epsilon)) for pmf in computed.pmfs)
        assert gaussian_delta(epsilon, mu) - raw <= computed.allowance / 10
