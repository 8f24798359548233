"""Closed forms for Gaussian noise and for pure composition."""

from __future__ import annotations

import math
import sys
import threading
import time

import mpmath
import pytest
from hypothesis import given, settings, strategies as st
from scipy import integrate, stats

from darrm_torch.mechanisms.gaussian import gaussian_delta, gaussian_epsilon, gaussian_mu, rdp_mu, zcdp_epsilon

numbers = {"allow_nan": False, "allow_infinity": False}
EPSILONS = st.floats(1e-3, 20, **numbers)
DELTAS = st.floats(1e-12, 0.5, **numbers)


@pytest.mark.slow
def test_threads_do_not_share_a_precision() -> None:
    """With mpmath's shared context some 50 of these a second were wrong, by up to 1e-7 in either direction."""
    epsilon, mu = 1e-9, 2**0.5 / 40000
    right, precision, seen = gaussian_delta(epsilon, mu), mpmath.mp.prec, set()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        end = time.monotonic() + 1
        while time.monotonic() < end:
            threads = [threading.Thread(target=lambda: seen.add(gaussian_delta(epsilon, mu))) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            seen.add(gaussian_delta(epsilon, mu))
    finally:
        sys.setswitchinterval(interval)
    assert seen == {right}
    assert mpmath.mp.prec == precision


@pytest.mark.parametrize("mu", [0.01, 0.3, 1.0, 5.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 2.0])
def test_delta_is_the_divergence_of_two_gaussians(mu: float, epsilon: float) -> None:
    def excess(x: float) -> float:
        return max(stats.norm.pdf(x, mu) - math.exp(epsilon) * stats.norm.pdf(x), 0.0)

    kink = epsilon / mu + mu / 2
    direct = integrate.quad(excess, kink, max(kink, mu) + 40, points=[max(kink, mu) + 1], epsabs=1e-16, limit=500)[0]
    assert math.isclose(gaussian_delta(epsilon, mu), direct, rel_tol=1e-6, abs_tol=1e-15)


@settings(deadline=None, derandomize=True, max_examples=40)
@given(EPSILONS, DELTAS)
def test_the_noise_suffices_and_little_less_does_not(epsilon: float, delta: float) -> None:
    mu = gaussian_mu(epsilon, delta)
    assert gaussian_delta(epsilon, mu) <= delta < gaussian_delta(epsilon, mu * (1 + 1e-9))
    assert rdp_mu(epsilon, delta) <= mu
    assert zcdp_epsilon(rdp_mu(epsilon, delta) ** 2 / 2, delta) <= epsilon * (1 + 1e-12)


@settings(deadline=None, derandomize=True, max_examples=40)
@given(st.floats(1e-3, 20, **numbers), DELTAS)
def test_epsilon_suffices_and_little_less_does_not(mu: float, delta: float) -> None:
    epsilon = gaussian_epsilon(delta, mu)
    assert gaussian_delta(epsilon, mu) <= delta
    if epsilon > 0:
        assert gaussian_delta(epsilon * (1 - 1e-9), mu) > delta
    assert epsilon <= zcdp_epsilon(mu**2 / 2, delta)
