"""What private tuning costs: against exact laws of the best run, dp-accounting, and claims that are too low."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from dp_accounting import dp_event, rdp

from darrm_torch import (
    InvalidArgument,
    PrivacyGuarantee,
    PrivacyProfile,
    RandomAllocation,
    RandomRuns,
    allocated_epsilon,
    self_bounding_epsilon,
    tuning_delta,
    tuning_epsilon,
)

LAWS = [(mean, shape) for mean in (1, 4.5, 30) for shape in (0, 0.5, 1, 6, math.inf)]
GAUSSIAN = PrivacyProfile.from_dp_sgd([(4.0, 1.0, 1)])
HALF = PrivacyProfile.from_guarantee(PrivacyGuarantee(epsilon=0.5, delta=1e-6))
EPSILONS = (0.05, 0.3, 0.8, 2.0)


def chances(mean: float, shape: float) -> np.ndarray:
    """The probabilities of 0, 1, 2, ... runs, from the definition of each law."""
    numbers = np.arange(1000 if shape else 4000)
    if shape == math.inf:
        logs = numbers * math.log(mean) - np.array([math.lgamma(n + 1) for n in numbers]) - mean
        return np.exp(logs)

    def law(stop: float) -> np.ndarray:
        steps = (1 - stop) * (numbers[1:-1] + shape) / (numbers[1:-1] + 1)
        weights = np.concatenate([[0.0, 1.0], np.cumprod(steps)])
        return weights / weights.sum()

    low, high = 1e-4, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if law(middle) @ numbers > mean else (low, middle)
    return law(low)


def best_of(one: np.ndarray, law: np.ndarray) -> np.ndarray:
    """The exact law of the best of a random number of runs; outcomes stand in the order of their scores."""
    below = np.concatenate([np.zeros((*one.shape[:-1], 1)), np.cumsum(one, axis=-1)], axis=-1)
    return np.diff(np.polynomial.polynomial.polyval(np.minimum(below, 1.0), law), axis=-1)


def hockey_stick(one: np.ndarray, other: np.ndarray, epsilon: float) -> float:
    return float(np.maximum(one - math.exp(epsilon) * other, 0).sum())


def promise_of(one: np.ndarray, other: np.ndarray) -> PrivacyProfile:
    """The exact curve of a pair of laws as a promise: its corners."""
    corners = sorted({abs(math.log(a / b)) for a, b in zip(one, other, strict=True)} | {0.0})
    points = [
        PrivacyGuarantee(
            epsilon=epsilon, delta=max(hockey_stick(one, other, epsilon), hockey_stick(other, one, epsilon))
        )
        for epsilon in corners
    ]
    return PrivacyProfile.from_guarantee(*points)


@pytest.mark.parametrize(("mean", "shape"), LAWS)
def test_no_law_of_the_best_run_exceeds_its_price_in_any_order_of_the_outcomes(mean: float, shape: float) -> None:
    random = np.random.default_rng(round(100 * mean))
    law = chances(mean, shape)
    for _ in range(2):
        one = random.dirichlet(np.full(4, 0.5)) * 0.98 + 0.005
        other = 0.7 * one + 0.3 * random.dirichlet(np.full(4, 0.5)) * 0.98 + 0.0015
        one, other = one / one.sum(), other / other.sum()
        promise, runs = promise_of(one, other), RandomRuns(mean=mean, shape=shape)
        proven = {epsilon: tuning_delta(promise, epsilon, runs=runs) for epsilon in EPSILONS}
        orders = np.array([*itertools.permutations(range(4))])
        best, beside = best_of(one[orders], law), best_of(other[orders], law)
        for epsilon, delta in proven.items():
            for a, b in ((best, beside), (beside, best)):
                assert np.maximum(a - math.exp(epsilon) * b, 0).sum(axis=1).max() <= delta + 1e-12


def test_a_claim_ten_percent_too_low_is_caught() -> None:
    # A run reveals the data with probability delta and says nothing otherwise; being revealed wins. Then the best of N
    # is revealed with probability 1 - E(1 - delta)^N, which is the mean times delta to first order.
    runs, delta = RandomRuns(mean=20), 1e-5
    claim = tuning_delta(PrivacyGuarantee(epsilon=0.0, delta=delta), 0.05, runs=runs)
    truth = 1 - float(np.polynomial.polynomial.polyval(1 - delta, chances(20, 1)))
    assert 0.9 * claim < truth <= claim
    # Randomised response, and both orders of its outcomes: never above three times its epsilon (Liu and Talwar, 2019).
    low, high = 1 / (1 + math.exp(0.5)), 1 / (1 + math.exp(-0.5))
    one, other = (best_of(np.array(law), chances(20, 1)) for law in ((low, high), (high, low)))
    price = tuning_epsilon(PrivacyGuarantee(epsilon=0.5), 1e-9, runs=runs)
    assert np.abs(np.log(one / other)).max() <= price <= 3 * 0.5 + 1e-3


@pytest.mark.parametrize(("mean", "shape"), [(1, 1), (5, math.inf), (20, 0), (20, 4), (100, 1)])
def test_the_price_is_below_the_renyi_price_of_dp_accounting(mean: float, shape: float) -> None:
    accountant = rdp.RdpAccountant()
    accountant.compose(dp_event.RepeatAndSelectDpEvent(dp_event.GaussianDpEvent(4.0), mean, shape))
    ours = tuning_epsilon(GAUSSIAN, 1e-5, runs=RandomRuns(mean=mean, shape=shape))
    assert ours < accountant.get_epsilon(1e-5)
    assert mean == 1 or ours > GAUSSIAN.epsilon(1e-5)


def test_a_single_run_costs_what_it_costs_alone() -> None:
    runs, allocation = RandomRuns(mean=1), RandomAllocation(teachers=4)
    alone = GAUSSIAN.epsilon(1e-5)
    assert tuning_epsilon(GAUSSIAN, 1e-5, runs=runs) == pytest.approx(alone, rel=1e-3)
    alone = allocated_epsilon(HALF, allocation, 1e-5)
    assert tuning_epsilon(HALF, 1e-5, runs=runs, allocation=allocation) == pytest.approx(alone, rel=1e-5)


def test_fresh_draws_cost_less_than_one_shared_draw() -> None:
    runs = RandomRuns(mean=5)
    fresh = tuning_epsilon(HALF, 1e-4, runs=runs, allocation=RandomAllocation(teachers=6, overlap=2))
    shared = tuning_epsilon(HALF, 1e-4, runs=runs, overlap=2)
    assert shared == tuning_epsilon(HALF.compose(2), 1e-4, runs=runs)
    assert fresh < 0.8 * shared


def test_the_worst_candidate_and_the_score_count_and_do_not_add_up() -> None:
    runs = RandomRuns(mean=8)
    weak, strong = PrivacyGuarantee(epsilon=0.4), PrivacyGuarantee(epsilon=0.1)
    alone = tuning_delta(weak, 0.6, runs=runs)
    assert tuning_delta([strong, weak, strong], 0.6, runs=runs) == alone
    assert tuning_delta(strong, 0.6, runs=runs, validation=weak) == alone
    assert tuning_delta(strong, 0.6, runs=runs, validation=strong) < alone
    # Given a shared draw a unit is held out in all runs or in none: fresh draws can mix the two.
    gaussian, allocation = PrivacyProfile.from_dp_sgd([(8.0, 1.0, 1)]), RandomAllocation(teachers=1)
    mixed = tuning_delta(gaussian, 0.6, runs=runs, validation=weak, allocation=allocation)
    assert mixed >= tuning_delta(gaussian, 0.6, runs=runs, validation=weak)


def test_the_default_candidate_of_no_run_need_not_be_the_one_with_the_worst_price() -> None:
    # At this epsilon a run of the pure promise costs nothing, but the best of several does; the other reveals the data
    # with probability .005. If the default is the other, both costs come together.
    runs, pure = RandomRuns(mean=1, shape=math.inf), PrivacyGuarantee(epsilon=0.5)
    default = PrivacyGuarantee(epsilon=0.0, delta=0.005)
    alone = tuning_delta(pure, 0.55, runs=runs)
    assert tuning_delta(default, 0.55, runs=runs) < alone
    assert tuning_delta([default, pure], 0.55, runs=runs) >= alone + runs.zero * 0.005


@pytest.mark.parametrize(("mean", "shape"), LAWS)
def test_numbers_of_runs_have_their_law(mean: float, shape: float) -> None:
    runs, law, draws = RandomRuns(mean=mean, shape=shape), chances(mean, shape), 2000
    drawn = np.array([runs.draw() for _ in range(draws)])
    # The probability of each sum below is less than 1e-9 (Bernstein, variance as stated, largest term 20 deviations).
    for event, chance in ((drawn <= 1, law[:2].sum()), (drawn <= mean, law[: math.floor(mean) + 1].sum())):
        assert abs(event.mean() - chance) < 7 * math.sqrt(chance * (1 - chance) / draws) + 1e-2
    assert runs.zero == pytest.approx(law[0])
    share = 1 / 12
    assert runs.chance_of_missing(share) == pytest.approx(
        float(np.polynomial.polynomial.polyval(1 - share, law)), abs=1e-6
    )


def test_no_privacy_is_priced_as_none() -> None:
    assert tuning_epsilon(PrivacyProfile.non_private(), 1e-5, runs=RandomRuns(mean=3)) == math.inf
    assert tuning_delta(PrivacyProfile.non_private(), 3.0, runs=RandomRuns(mean=3)) == 1.0
    assert tuning_epsilon(PrivacyGuarantee(epsilon=0.0), 1e-9, runs=RandomRuns(mean=3)) < 1e-6


@pytest.mark.parametrize(("mean", "shape"), [(5.0, 1.0), (20.0, 1.0), (20.0, math.inf), (800.0, math.inf)])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 2.0])
def test_the_price_holds_between_the_ranks_that_are_tried(mean: float, shape: float, epsilon: float) -> None:
    """A rare outcome at the rank where theorem 20 is attained has the odds that the price is about."""
    runs, one = RandomRuns(mean=mean, shape=shape), PrivacyGuarantee(epsilon=epsilon)
    likely = 1 / (1 + math.exp(-epsilon))

    def density(better: float) -> float:
        if shape == math.inf:
            return mean * math.exp(-mean * better)
        return mean * ((1 / mean) / (1 / mean + (1 - 1 / mean) * better)) ** 2

    edge = epsilon + math.log(density(1 - likely) / density(likely))  # in the limit the odds of the rare outcome
    share = 1e-9
    for below in (1e-4, 1e-6):
        loss = edge - below
        at_least = share * likely * (density(1 - likely + share) - math.exp(loss - epsilon) * density(likely))
        assert 0 < at_least < tuning_delta(one, loss, runs=runs)


def test_promises_about_replacing_a_record_have_no_price_with_draws_or_a_validation() -> None:
    replaced, runs = HALF.for_replacement(), RandomRuns(mean=3)
    assert tuning_epsilon(replaced, 1e-4, runs=runs) > tuning_epsilon(HALF, 1e-4, runs=runs)
    allocation = RandomAllocation(teachers=3)
    for refused in (
        lambda: tuning_epsilon(replaced, 1e-4, runs=runs, allocation=allocation),
        lambda: tuning_epsilon(replaced, 1e-4, runs=runs, validation=HALF),
        lambda: tuning_delta(HALF, 1.0, runs=runs, validation=replaced),
        lambda: allocated_epsilon(replaced, allocation, 1e-4),
        lambda: self_bounding_epsilon(replaced, allocation, 1e-4, allowance=1.0),
    ):
        with pytest.raises(InvalidArgument, match="adding or removing"):
            refused()


def test_a_joint_promise_stays_one_when_it_is_composed() -> None:
    joint = PrivacyProfile(promises=HALF.promises, together=True)
    assert all(one.together for one in (joint.compose(2), joint.compose(HALF), HALF.compose(joint)))
