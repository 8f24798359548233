"""The allowance for rounding errors, against exact curves of the Gaussian mechanism."""

from __future__ import annotations

import math

import numpy as np
import pytest

from darrm_torch import PrivacyGuarantee, PrivacyProfile
from darrm_torch.privacy.loss_distributions import (  # numerical kernels, tested on purpose
    _TAIL,
    _dp_sgd_step,
    _least_epsilon,
    _promise,
    _repeated,
    loss_distribution,
)

from .test_profiles import gaussian_delta


@pytest.mark.parametrize("history", [((30.0, 1.0, 2000),), ((12.0, 1.0, 50), (5.0, 1.0, 20))])
def test_the_allowance_covers_the_rounding(history):
    """Without it, the computed curve may lie below the exact one by rounding; the excess is far below the allowance."""
    mu = math.sqrt(sum(steps / sigma**2 for sigma, _, steps in history))
    computed = loss_distribution(history, ())
    for epsilon in np.linspace(0, 9 * mu, 40):
        raw = max(float(pmf.get_delta_for_epsilon(epsilon)) for pmf in computed.pmfs)
        assert gaussian_delta(epsilon, mu) - raw <= computed.allowance / 10


@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize(("noise", "rate"), [(1.0, 0.01), (0.5, 0.1), (12.0, 1 / 35), (3.0, 1.0)])
def test_steps_of_many_runs_are_those_of_few(noise, rate, added):
    few, many = (_dp_sgd_step(noise, rate, 1, 1e-3, added, which) for which in (False, True))
    for epsilon in (0.0, 0.01, 0.3, 1.0):
        assert many.get_delta_for_epsilon(epsilon) == pytest.approx(few.get_delta_for_epsilon(epsilon), abs=1e-14)


@pytest.mark.parametrize(
    ("history", "promises"),
    [
        (((1.0, 0.01, 100),), ()),
        (((0.3, 1.0, 5),), ()),
        (((30.0, 1.0, 1),), ()),
        (((12.0, 1 / 35, 175),), (((PrivacyGuarantee(epsilon=200.0, delta=1e-6),), 3),)),
    ],
)
def test_epsilon_is_that_of_dp_accounting(history, promises):
    for pmf in loss_distribution(history, promises).pmfs:
        for delta in (0.9, 0.3, 1e-2, 1e-5, 1e-9, 1e-14):
            assert _least_epsilon(pmf, delta) == pytest.approx(pmf.get_epsilon_for_delta(delta), rel=1e-14, abs=1e-15)


@pytest.mark.parametrize("count", [3, 37, 500])
@pytest.mark.parametrize(
    "release",
    [
        _dp_sgd_step(12.0, 1 / 35, 1, 1e-4, True),
        _dp_sgd_step(0.7, 0.5, 1, 5e-2, False),
        _promise((PrivacyGuarantee(epsilon=0.3),), 0.1),
        _promise((PrivacyGuarantee(epsilon=0.3, delta=1e-5), PrivacyGuarantee(epsilon=1e-3, delta=0.1)), 1e-2),
    ],
    ids=["a step", "a noisy step", "a promise", "two points"],
)
def test_releases_are_composed_as_dp_accounting_composes_them(release, count):
    """The same range of losses, and in it the same masses."""
    composed, expected = (pmf.to_dense_pmf() for pmf in (_repeated(release, count), release.self_compose(count, _TAIL)))
    assert (composed._lower_loss, composed.size) == (expected._lower_loss, expected.size)
    assert composed._infinity_mass == expected._infinity_mass
    np.testing.assert_allclose(composed._probs, expected._probs, rtol=1e-12, atol=1e-17)


@pytest.mark.slow
def test_a_thousand_million_steps_are_answered_at_once():
    """dp_accounting computes cells**steps first, with all its digits."""
    assert PrivacyProfile.from_dp_sgd([(12.0, 1 / 35, 10**9)]).epsilon(1e-4) > 1000
