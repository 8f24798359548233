"""Losses on grids of our own: against exact curves in 40 digits, the Gaussian mechanism, and Opacus' PRV accountant."""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest

from darrm_torch import PrivacyProfile
from darrm_torch.privacy.loss_grids import compose_grids, connect_the_dots, sampled_gaussian

from .test_profiles import gaussian_delta


def exact_delta(noise: float, rate: float, epsilon: float, *, added: bool) -> mp.mpf:
    """Delta of one Poisson-sampled Gaussian release, by the threshold test, to 40 digits."""
    with mp.workdps(40):
        s, q, e = mp.mpf(noise), mp.mpf(rate), mp.mpf(epsilon)

        def above(z: mp.mpf) -> mp.mpf:
            return mp.erfc(z / mp.sqrt(2)) / 2

        sign = -1 if added else 1
        x = s * s * mp.log(mp.expm1(sign * e) / q + 1) + mp.mpf(1) / 2
        still, moved = above(sign * x / s), above(sign * (x - 1) / s)
        mixed = (1 - q) * still + q * moved
        return still - mp.exp(e) * mixed if added else mixed - mp.exp(e) * still


@pytest.mark.parametrize(("noise", "rate", "step"), [(0.6, 1e-5, 2e-5), (4.0, 0.1, 1e-3), (1.0, 1.0, 1e-3)])
@pytest.mark.parametrize("added", [False, True])
def test_one_release_lies_just_above_the_exact_curve(noise: float, rate: float, step: float, added: bool) -> None:
    law = sampled_gaussian(noise, rate, step, added)
    losses = law.losses
    lowest, highest = (
        (-math.inf, -math.log1p(-rate)) if added and rate < 1 else (math.log1p(-min(rate, 0.999)), math.inf)
    )
    for place in np.linspace(0, 0.9 * len(losses), 12, dtype=int):
        if lowest < losses[place] < highest:
            exact = exact_delta(noise, rate, losses[place], added=added)
            proven = law.infinite + law.masses[place:] @ -np.expm1(losses[place] - losses[place:])
            assert exact <= proven <= exact * (1 + 1e-3) + 1e-18 + 1e-9 * (losses[place] < 0)


@pytest.mark.parametrize(("noise", "steps", "delta"), [(4.0, 10, 1e-12), (30.0, 2000, 1e-9), (100.0, 10**6, 1e-5)])
@pytest.mark.parametrize("added", [False, True])
def test_full_batches_are_the_gaussian_mechanism(noise: float, steps: int, delta: float, added: bool) -> None:
    law = sampled_gaussian(noise, 1.0, 1 / noise / 16, added)
    composed, mu = compose_grids([(law, steps)], delta), math.sqrt(steps) / noise
    assert composed is not None
    epsilon = composed.epsilon(delta)
    assert gaussian_delta(epsilon, mu) <= delta <= gaussian_delta(epsilon * 0.998, mu)
    for other in np.linspace(0, 1.2 * epsilon, 7):
        assert gaussian_delta(other, mu) <= composed.delta(other) * (1 + 1e-9)


def test_two_runs_are_one() -> None:
    law = sampled_gaussian(2.0, 0.05, 1e-3, False)
    one, two = (compose_grids(parts, 1e-6) for parts in ([(law, 70)], [(law, 30), (law, 40)]))
    assert one is not None
    assert two is not None
    assert one.epsilon(1e-6) == pytest.approx(two.epsilon(1e-6), rel=1e-6)


def test_the_dots_are_connected_above() -> None:
    step, places = 0.01, np.arange(-300, 301)
    curve = np.array([gaussian_delta(place * step, 0.5) for place in places])
    law = connect_the_dots(step, -300, curve)
    assert np.all(law.curve(-300, 300) >= curve * (1 - 1e-13))
    assert np.all(law.curve(-300, 300) <= curve + 1e-11)


@pytest.mark.slow
def test_delta_is_the_inverse_where_rounding_hides_it() -> None:
    profile = PrivacyProfile.from_dp_sgd([(1.0, 0.001, 10_000)])
    for delta in (1e-9, 1e-12, 1e-15):
        assert 0.9 * delta <= profile.delta(profile.epsilon(delta)) <= delta


@pytest.mark.parametrize(
    ("run", "delta", "most"),
    [pytest.param((0.6, 1e-5, 10**6), 1e-6, 0.181, marks=pytest.mark.long), ((0.8, 1e-4, 10**5), 1e-6, 0.2445)],
)
@pytest.mark.slow
def test_long_training_lies_within_5_per_cent_above_a_lower_bound(
    run: tuple[float, float, int], delta: float, most: float
) -> None:
    """The lower bound is that of another analysis (Gopi, Lee, Wutschitz 2021), as Opacus computes it."""
    from opacus.accountants import PRVAccountant

    noise, rate, steps = run
    other = PRVAccountant()
    other.history = [(noise, rate, steps)]
    low, _, _ = other._get_dprv(eps_error=0.003, delta_error=delta / 1000).compute_epsilon(delta, delta / 1000, 0.003)
    proven = PrivacyProfile.from_dp_sgd([run]).epsilon(delta)
    assert low <= proven <= min(most, 1.05 * low)
