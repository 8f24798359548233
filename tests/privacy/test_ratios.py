"""Laws of likelihood ratios: against closed forms and against dp-accounting."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy.stats import norm

from darrm_torch import PrivacyGuarantee, PrivacyProfile
from darrm_torch.privacy.ratios import RatioLaw, pair_law


def delta(law: RatioLaw, epsilon: float) -> float:
    return max(law.removal(epsilon), law.addition(epsilon))


@pytest.mark.parametrize("mu", [0.01, 0.3, 1.0, 4.0])
@pytest.mark.parametrize("steps", [1, 7, 1000])
def test_gaussian(mu, steps):
    """Full batches: the closed form of Balle and Wang (2018)."""
    law, whole = pair_law(PrivacyProfile.from_dp_sgd([(math.sqrt(steps) / mu, 1.0, steps)])), mu
    for epsilon in (0.0, 0.5 * mu, mu, 2 * mu):
        truth = norm.cdf(whole / 2 - epsilon / whole) - math.exp(epsilon) * norm.cdf(-whole / 2 - epsilon / whole)
        assert truth * (1 - 1e-9) <= law.removal(epsilon) <= truth * 1.002 + 1e-12
        assert truth * (1 - 1e-9) <= law.addition(epsilon) <= truth * 1.002 + 1e-12


@pytest.mark.parametrize(
    "history",
    [
        [(12.0, 1 / 35, 175)],
        [(2.0, 0.1, 30), (5.0, 1.0, 3)],
        [(0.4, 0.9, 5)],
        pytest.param([(1.0, 0.05, 100)], marks=pytest.mark.slow),
        pytest.param([(0.5, 0.001, 1000)], marks=pytest.mark.slow),
        pytest.param([(1.1, 0.01, 10000)], marks=pytest.mark.slow),
    ],
)
def test_dp_sgd_agrees_with_dp_accounting(history):
    from dp_accounting.pld import privacy_loss_distribution

    law = pair_law(PrivacyProfile.from_dp_sgd(history))
    whole = None
    for noise, rate, steps in history:
        fine = 1e-3 if noise < 1 else 1e-4
        run = privacy_loss_distribution.from_gaussian_mechanism(
            noise, sampling_prob=rate, value_discretization_interval=fine, use_connect_dots=True
        ).self_compose(steps)
        whole = run if whole is None else whole.compose(run)
    for at in (1e-2, 1e-4, 1e-6):
        epsilon = whole.get_epsilon_for_delta(at)
        if 0.01 < epsilon < 50:
            assert delta(law, 1.002 * epsilon) <= at
            assert delta(law, 0.995 * epsilon) > at


POINTS = [PrivacyGuarantee(epsilon=e, delta=d) for e, d in ((0.3, 1e-7), (0.1, 1e-3), (0.0, 0.05))]


def test_several_promises_at_once():
    profile = PrivacyProfile.from_guarantee(*POINTS)
    law = pair_law(profile)
    for point in POINTS:
        assert law.removal(point.epsilon) == pytest.approx(point.delta, rel=1e-9)
        assert law.addition(point.epsilon) == pytest.approx(point.delta, rel=1e-9)
    # Three of them: all outcomes, the last of which only A has.
    a, b = np.append(law.values * law.masses, law.lost), np.append(law.masses, 0.0)
    p, q = (np.multiply.outer(np.multiply.outer(x, x), x).ravel() for x in (a, b))
    thrice = pair_law(profile.compose(3))
    for epsilon in (0.0, 0.1, 0.25, 0.3, 0.6, 1.0):
        truth = np.maximum(p - math.exp(epsilon) * q, 0.0).sum()
        assert thrice.removal(epsilon) == pytest.approx(truth, rel=1e-9)
        assert thrice.removal(epsilon) <= profile.compose(3).delta(epsilon)


def test_many_promises_cost_no_more_than_by_dp_accounting():
    profile = PrivacyProfile.from_guarantee(*POINTS).compose(200)
    for epsilon in (0.0, 0.3, 1.0, 3.0):
        assert 0.9 * profile.delta(epsilon) - 1e-9 <= delta(pair_law(profile), epsilon) <= profile.delta(epsilon)


def test_one_promise_is_exact():
    law = pair_law(PrivacyProfile.from_guarantee(PrivacyGuarantee(epsilon=0.5, delta=0.01)))
    assert law.removal(0.5) == pytest.approx(0.01, rel=1e-12)
    assert law.removal(0.5) >= 0.01
    assert law.masses.sum() == pytest.approx(1.0, abs=1e-15)


@pytest.mark.slow
@settings(max_examples=5, deadline=None)
@given(
    noise=st.floats(0.3, 30),
    rate=st.floats(1e-4, 1),
    steps=st.integers(1, 500),
    count=st.integers(1, 200),
)
def test_means_and_masses_are_kept(noise, rate, steps, count):
    """E L and what is lost are 1, as are the masses and what is gone; tails count twice. Nothing gets lost unseen."""
    law = pair_law(PrivacyProfile.from_dp_sgd([(noise, rate, steps)]))
    for one in (law, law.total(count).affine(0.0, 1 / count)):
        slack = one.mass_error + one.value_error + 1e-10
        assert one.masses.min() >= 0
        assert one.masses.sum() + one.gone == pytest.approx(1.0, abs=slack)
        mean = one.masses @ one.values + one.lost
        assert 1 - one.gone - slack <= mean <= 1 + one.lost + slack


def test_a_sum_on_a_grid_is_larger_in_the_convex_order_than_the_exact_sum():
    exact = pair_law(PrivacyProfile.from_guarantee(PrivacyGuarantee(epsilon=0.7, delta=1e-4)))
    total, gridded = exact.total(6), exact.on_grid(1e-3).total(6)
    for threshold in np.linspace(0.1, 11.9, 60):
        one = total.masses @ np.maximum(total.values - threshold, 0.0)
        two = gridded.masses @ np.maximum(gridded.values - threshold, 0.0) + gridded.lost - total.lost
        assert one - 1e-12 <= two <= one + 1e-3


def test_products_keep_to_the_grid():
    law = pair_law(PrivacyProfile.from_dp_sgd([(1.0, 0.1, 3)]))
    twice = law.product(law)
    assert twice.step == law.step
    assert delta(twice, 1.0) == pytest.approx(delta(law.power(2), 1.0), rel=1e-3)


@pytest.mark.parametrize("noise", [1e6, 1e8, 1e12, 1e200])
@pytest.mark.parametrize("rate", [1.0, 1e-6, 1e-12])
def test_noise_that_hides_everything_but_rounding(noise, rate):
    law = pair_law(PrivacyProfile.from_dp_sgd([(noise, rate, 1)]))
    truth = rate / (noise * math.sqrt(2 * math.pi))
    assert truth * (1 - 1e-6) <= law.removal(0.0) < 1e-3
    assert truth * (1 - 1e-6) <= law.addition(0.0) < 1e-3
