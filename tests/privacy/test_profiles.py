"""Privacy profiles: exact curves where they are known, reference values, soundness, invariants."""

from __future__ import annotations

import json
import math
import pickle
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy.integrate import quad
from scipy.optimize import linprog
from scipy.stats import norm

from darrm_torch import InvalidArgument, PrivacyGuarantee, PrivacyProfile

PAPER = PrivacyProfile.from_dp_sgd([(12.0, 1 / 35, 175)])


def gaussian_delta(epsilon: float, mu: float) -> float:
    """Exact, of the Gaussian mechanism (Balle and Wang 2018, Theorem 8); n full batches: mu = sqrt(n) / sigma."""
    return float(norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon + norm.logcdf(-mu / 2 - epsilon / mu)))


def sampled_delta(epsilon: float, sigma: float, rate: float, *, added: bool) -> float:
    """Exact delta of one Poisson-sampled Gaussian step: P against Q by the threshold test."""
    if added:  # P = N(0), Q = mixture
        if epsilon >= -math.log1p(-rate):
            return 0.0
        x = sigma**2 * math.log((math.exp(-epsilon) - 1 + rate) / rate) + 0.5
        low, high = norm.cdf(x, scale=sigma), norm.cdf(x, 1, sigma)
        return float(low - math.exp(epsilon) * ((1 - rate) * low + rate * high))
    if epsilon <= math.log1p(-rate):
        return -math.expm1(epsilon)
    x = sigma**2 * math.log((math.exp(epsilon) - 1 + rate) / rate) + 0.5
    low, high = norm.sf(x, scale=sigma), norm.sf(x, 1, sigma)
    return float((1 - rate) * low + rate * high - math.exp(epsilon) * low)


def two_steps_delta(epsilon: float, sigma: float, rate: float, *, added: bool) -> float:
    """Exact delta of two steps: the loss of the first is integrated out, the second is in closed form."""

    def mixture(x: float) -> float:
        return (1 - rate) * norm.pdf(x, scale=sigma) + rate * norm.pdf(x, 1, sigma)

    def integrand(x: float) -> float:
        loss = math.log1p(rate * math.expm1((x - 0.5) / sigma**2))
        density, loss = (norm.pdf(x, scale=sigma), -loss) if added else (mixture(x), loss)
        return density * sampled_delta(epsilon - loss, sigma, rate, added=added)

    points = np.linspace(-9 * sigma, 1 + 9 * sigma, 40)
    return sum(quad(integrand, a, b, epsabs=1e-13)[0] for a, b in pairwise(points))


# --- reference values -----------------------------------------------------------------------------------------------


def test_the_papers_teacher():
    """dp-accounting's own PLD accountant on the same history: 0.0751, 0.140 (3 teachers), 0.291 (11 teachers)."""
    assert PAPER.epsilon(1e-4) == pytest.approx(0.0751, abs=5e-4)
    assert PAPER.compose(3).epsilon(1e-4) == pytest.approx(0.140, abs=2e-3)
    assert PAPER.compose(11).epsilon(1e-4) == pytest.approx(0.291, abs=2e-3)
    assert PAPER.delta(0.0) == pytest.approx(0.0126, abs=2e-4)


@pytest.mark.parametrize(
    "history",
    [
        [(12.0, 1 / 35, 175)],
        [(1.0, 0.01, 1000)],
        pytest.param([(0.8, 0.02, 50), (1.2, 0.05, 30)], marks=pytest.mark.slow),
    ],
)
def test_agrees_with_dp_accountings_accountant(history):
    from dp_accounting import dp_event
    from dp_accounting.pld import PLDAccountant

    accountant = PLDAccountant()
    for sigma, rate, steps in history:
        accountant.compose(dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(sigma)), steps)
    ours = PrivacyProfile.from_dp_sgd(history)
    for delta in (1e-2, 1e-4, 1e-6):
        assert ours.epsilon(delta) == pytest.approx(accountant.get_epsilon(delta), rel=0.01)


# --- soundness against exact curves -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("sigma", "steps"), [(1.0, 1), (4.0, 10), (20.0, 1000), (0.5, 3)])
def test_full_batches_are_the_gaussian_mechanism(sigma, steps):
    profile, mu = PrivacyProfile.from_dp_sgd([(sigma, 1.0, steps)]), math.sqrt(steps) / sigma
    for epsilon in np.linspace(0, 5 * mu, 11):
        exact = gaussian_delta(epsilon, mu)
        assert exact <= profile.delta(epsilon) <= 1.01 * exact + 2e-9
    for delta in (0.1, 1e-3, 1e-6, 1e-10, 1e-14):
        assert gaussian_delta(profile.epsilon(delta), mu) <= delta


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sigma", "rate"),
    [
        pytest.param(12.0, 1 / 35, marks=pytest.mark.slow),
        (1.0, 0.1),
        pytest.param(0.6, 0.5, marks=pytest.mark.slow),
    ],
)
def test_one_and_two_sampled_steps_cover_both_directions(sigma, rate):
    one, two = (PrivacyProfile.from_dp_sgd([(sigma, rate, steps)]) for steps in (1, 2))
    scale = two.epsilon(1e-4)
    for epsilon in (0.0, 0.3 * scale, 0.7 * scale):
        exact = [sampled_delta(epsilon, sigma, rate, added=added) for added in (False, True)]
        assert max(exact) <= one.delta(epsilon) <= 1.01 * max(exact) + 1e-9
        exact = [two_steps_delta(epsilon, sigma, rate, added=added) for added in (False, True)]
        assert max(exact) - 1e-11 <= two.delta(epsilon) <= 1.01 * max(exact) + 1e-9


@pytest.mark.slow
def test_a_tiny_delta_is_answered_by_renyi_accounting():
    profile = PrivacyProfile.from_dp_sgd([(1.0, 0.001, 10_000)])
    assert math.isfinite(profile.epsilon(1e-12))
    assert profile.epsilon(1e-12) > profile.epsilon(1e-6) > 0


def test_rounding_in_the_renyi_accountant_is_no_claim_of_perfect_privacy():
    profile = PrivacyProfile.from_dp_sgd([(1e6, 1e-6, 10**6)])
    assert profile.epsilon(1e-12) == math.inf
    assert profile.epsilon(1e-4) == 0.0


# --- promises ---------------------------------------------------------------------------------------------------------


def polygon_delta(points, epsilon: float) -> float:
    """The largest p - e^epsilon p' of a pair that keeps all points, by linear programming."""
    rows, bounds = [], []
    for e, d in points:
        t = math.exp(e)
        rows += [[1, -t], [-t, 1], [t, -1], [-1, t]]  # the last two of the complements: 1-p' <= t (1-p) + d
        bounds += [d, d, t - 1 + d, t - 1 + d]
    best = linprog([-1, math.exp(epsilon)], A_ub=rows, b_ub=bounds, bounds=[(0, 1), (0, 1)])
    return -best.fun


@pytest.mark.parametrize(
    "points",
    [
        [(1.0, 1e-3)],
        [(0.0, 0.2), (1.0, 1e-3)],
        [(0.0, 0.1), (0.3, 0.04), (0.9, 0.01), (2.0, 0.0)],
        [(0.5, 0.3), (1.0, 0.29)],
    ],
)
def test_the_worst_pair_of_several_promises(points):
    profile = PrivacyProfile.from_guarantee(*(PrivacyGuarantee(epsilon=e, delta=d) for e, d in points))
    for epsilon in (0.0, 0.2, 0.5, 0.95, 1.5, 3.0):
        exact = polygon_delta(points, epsilon)
        assert exact - 1e-12 <= profile.delta(epsilon) <= exact + 1e-3 * (exact > 1e-9) + 1e-10


@settings(deadline=None, derandomize=True, max_examples=60)
@given(epsilon=st.floats(0.0, 800.0), delta=st.floats(0.0, 1.0, exclude_max=True))
def test_a_promise_is_read_back_as_it_was_given(epsilon, delta):
    promise = PrivacyGuarantee(epsilon=epsilon, delta=delta)
    profile = PrivacyProfile.from_guarantee(promise)
    assert profile.guarantees() == (promise,)
    assert profile.epsilon(delta) <= epsilon
    assert profile.delta(epsilon) <= delta
    assert profile.guarantees([delta])[0].epsilon <= epsilon


@pytest.mark.parametrize(("delta", "count"), [(0.5, 10**9), (1e-3, 10**6), (1 - 2.0**-53, 2)])
def test_so_many_releases_that_one_reveals_everything(delta, count):
    """No epsilon then, but no failure of a logarithm either: a ledger asks for the price of twice as many labels."""
    together = PrivacyProfile.from_guarantee(PrivacyGuarantee(epsilon=0.1, delta=delta)).compose(count)
    assert (together.epsilon(0.6), together.delta(5.0)) == (math.inf, 1.0)


def test_no_privacy():
    nothing = PrivacyProfile.non_private()
    assert not nothing.is_private
    assert nothing.delta(5.0) == 1.0
    assert nothing.epsilon(0.99) == math.inf
    assert nothing.epsilon(1.0) == 0.0
    assert nothing.guarantees() == (PrivacyGuarantee(epsilon=math.inf),)
    assert PAPER.compose(nothing).epsilon(1e-4) == math.inf
    assert PrivacyProfile.from_guarantee(PrivacyGuarantee(epsilon=1.0, delta=1.0)) == nothing
    assert PrivacyProfile.from_guarantee(PrivacyGuarantee(epsilon=1.0), PrivacyGuarantee(epsilon=math.inf)).is_private
    huge = PrivacyProfile.from_guarantee(PrivacyGuarantee(epsilon=1000.0, delta=1e-3))
    assert huge.compose(2).epsilon(2e-3) == 2000.0
    assert huge.compose(PAPER).delta(1.0) == 1.0


# --- invariants -------------------------------------------------------------------------------------------------------

histories = st.lists(
    st.tuples(st.sampled_from([0.7, 1.0, 4.0, 12.0]), st.sampled_from([1 / 35, 0.1, 1.0]), st.integers(1, 200)),
    min_size=1,
    max_size=3,
)
promises = st.builds(PrivacyGuarantee, epsilon=st.floats(0, 3), delta=st.floats(0, 0.1))


@settings(deadline=None, derandomize=True, max_examples=25)
@given(history=histories, promise=st.none() | promises, count=st.integers(1, 4))
@pytest.mark.slow
def test_profiles_are_values(history, promise, count):
    profile = PrivacyProfile.from_dp_sgd(history)
    if promise is not None:
        profile = profile.compose(PrivacyProfile.from_guarantee(promise))
    assert PrivacyProfile.from_dict(json.loads(json.dumps(profile.to_dict()))) == profile
    assert pickle.loads(pickle.dumps(profile)) == profile
    assert PrivacyProfile.from_dp_sgd(reversed(history)).dp_sgd == profile.dp_sgd
    total = profile
    for _ in range(count - 1):
        total = total.compose(profile)
    assert total == profile.compose(count)
    assert hash(total) == hash(profile.compose(count))
    curve = [profile.delta(epsilon) for epsilon in (0.0, 0.1, 1.0, 5.0)]
    assert curve == sorted(curve, reverse=True)
    assert all(0 <= delta <= 1 for delta in curve)
    for delta in (1e-2, 1e-4):
        if math.isfinite(epsilon := profile.epsilon(delta)):
            assert profile.delta(epsilon) <= delta
    assert profile.compose(2).epsilon(1e-3) >= profile.epsilon(1e-3)


@pytest.mark.slow
@settings(deadline=None, derandomize=True, max_examples=25)
@given(profiles=st.lists(histories | promises, min_size=1, max_size=4), count=st.integers(1, 3))
def test_the_weakest_holds_for_each(profiles, count):
    each = [
        PrivacyProfile.from_guarantee(p) if isinstance(p, PrivacyGuarantee) else PrivacyProfile.from_dp_sgd(p)
        for p in profiles
    ]
    weakest = PrivacyProfile.weakest(each).compose(count)
    for profile in each:
        for epsilon in (0.0, 0.5, 2.0):
            exact_or_above = profile.compose(count).delta(epsilon)
            assert (
                weakest.delta(epsilon) >= exact_or_above * (1 - 5e-3) - 1e-7
            )  # both are rounded up, on grids of their own


def test_schedules_of_the_same_length_are_compared_run_by_run():
    a, b = [(1.0, 0.02, 10), (2.0, 0.02, 10)], [(1.0, 0.01, 12), (2.0, 0.03, 9)]
    weakest = PrivacyProfile.weakest([PrivacyProfile.from_dp_sgd(a), PrivacyProfile.from_dp_sgd(b)])
    assert weakest.dp_sgd == ((1.0, 0.02, 12), (2.0, 0.03, 10))


def test_a_hundred_different_runs_are_one_profile():
    profile = PrivacyProfile.from_dp_sgd([(1.0 + 0.01 * run, 0.1, 3) for run in range(10)])
    assert 0 < profile.epsilon(1e-5) < PrivacyProfile.from_dp_sgd([(1.0, 0.1, 30)]).epsilon(1e-5)


# --- points for the optimizer ---------------------------------------------------------------------------------------


def test_the_default_points_hold_and_include_epsilon_zero():
    points = PAPER.guarantees()
    assert points[0].epsilon == 0.0
    assert len(points) <= 4
    assert all(PAPER.delta(point.epsilon) <= point.delta for point in points)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("delta", "history"),
    [
        (1e-4, (12.0, 1 / 35, 175)),
        (1e-6, (1.0, 0.02, 500)),
        pytest.param(1e-4, (1.0, 0.02, 500), marks=pytest.mark.long),
        pytest.param(1e-4, (4.0, 0.05, 400), marks=pytest.mark.long),
        pytest.param(1e-6, (12.0, 1 / 35, 175), marks=pytest.mark.long),
        pytest.param(1e-6, (4.0, 0.05, 400), marks=pytest.mark.long),
    ],
)
def test_four_points_gain_nearly_what_eight_do(history, delta):
    from darrm_torch import IndependentVotes, optimize_noise

    profile, prior = PrivacyProfile.from_dp_sgd([history]), IndependentVotes(mean=0.75)
    epsilon = profile.epsilon(delta)

    def error(points, allowance):
        target = PrivacyGuarantee(epsilon=allowance * epsilon, delta=allowance * delta)
        noise = optimize_noise(teachers=11, teacher=PrivacyProfile.from_guarantee(*points), target=target, prior=prior)
        return noise.expected_error(prior)[0]

    eight = tuple(
        PrivacyGuarantee(epsilon=share * epsilon, delta=profile.delta(share * epsilon))
        for share in (0.0, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0, 1.3)
    )
    for allowance in (1, 2):
        one = error(profile.guarantees([delta]), allowance)
        gain = one - error(eight, allowance)
        assert one - error(profile.guarantees(), allowance) >= 0.95 * gain


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "run",
    [(s, 0.1, 1) for s in (math.nan, 0.0, -1.0, math.inf, "1")]
    + [(1.0, q, 1) for q in (0.0, 1.1, -0.1, math.nan)]
    + [(1.0, 0.1, n) for n in (0, 1.5, math.nan, True)],
)
def test_a_history_out_of_range_is_refused(run):
    with pytest.raises(InvalidArgument):
        PrivacyProfile.from_dp_sgd([run])


@pytest.mark.parametrize("history", [[], [(1.0, 0.1)], [(1.0, 0.1, 2, 3)]])
def test_no_history_is_refused(history):
    with pytest.raises(InvalidArgument, match="one or more"):
        PrivacyProfile.from_dp_sgd(history)


@pytest.mark.parametrize("value", [-1.0, math.nan, "1"])
def test_arguments_out_of_range_are_refused(value):
    for ask in (PAPER.delta, PAPER.epsilon, PAPER.compose, lambda d: PAPER.guarantees([d])):
        with pytest.raises(InvalidArgument):
            ask(value)
    with pytest.raises(InvalidArgument):
        PAPER.delta(math.inf)
    with pytest.raises(InvalidArgument):
        PrivacyProfile.weakest([])


@pytest.mark.parametrize("value", [{}, {"dp_sgd": [[1.0]], "promises": []}, {"dp_sgd": [], "promises": [1]}])
def test_a_damaged_description_is_refused(value):
    with pytest.raises(InvalidArgument):
        PrivacyProfile.from_dict(value)


def test_importing_profiles_is_quick_and_needs_neither_torch_nor_dp_accounting():
    code = "import sys, darrm_torch as dt; dt.PrivacyProfile.non_private().epsilon(0.1); "
    code += "dt.total_privacy; dt.PrivacyLedger; "
    code += "print([m for m in ('torch', 'opacus', 'lightning', 'dp_accounting') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize("epsilon", [0.5766, 0.6253])
def test_a_curve_that_ends_a_unit_below_zero_is_read_as_zero(epsilon: float) -> None:
    """Interpolation at e^epsilon, the end of the curve, rounds below zero for these."""
    twice = PrivacyProfile.from_guarantee(PrivacyGuarantee(epsilon=epsilon)).compose(2)
    assert twice.epsilon(1e-12) == pytest.approx(2 * epsilon, abs=1e-9)


@pytest.mark.parametrize(
    "make", [PrivacyProfile.from_guarantee, lambda one: PrivacyProfile.weakest([PrivacyProfile.non_private(), one])]
)
def test_a_pair_of_numbers_is_no_guarantee(make: Callable[[Any], PrivacyProfile]) -> None:
    with pytest.raises(InvalidArgument, match=r"Write PrivacyGuarantee\(epsilon=8, delta=1e-05\)"):
        make((8, 1e-5))


def test_the_weakest_of_guarantees_is_that_of_their_profiles() -> None:
    several = [PrivacyGuarantee(epsilon=0.1, delta=1e-5), PrivacyGuarantee(epsilon=0.3, delta=0.0)]
    together = PrivacyProfile.weakest(several)
    assert together == PrivacyProfile.weakest(map(PrivacyProfile.from_guarantee, several))
    assert together.guarantees() == (PrivacyGuarantee(epsilon=0.3, delta=1e-5),)
