"""What labels cost on their votes: figures, their release, and labels within a budget on it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import special, stats

from darrm_torch import (
    ConfidentGNMax,
    DataDependentGuarantee,
    DataDependentLoss,
    GNMax,
    InvalidArgument,
    PrivacyGuarantee,
)
from darrm_torch.mechanisms.pate_rdp import VoteCosts, release_parameters, smooth_release_renyi


def test_unanimous_votes_cost_little_and_the_figure_is_marked() -> None:
    mechanism = GNMax(sigma=40.0, delta=1e-5)
    loss = DataDependentLoss(mechanism=mechanism, counts=np.array([[240, 5, 5]] * 500))
    found = loss.guarantee(delta=1e-5)
    assert found.sensitive
    assert "SENSITIVE" in str(found)
    assert found.epsilon < 0.5 * mechanism.guarantee(labels=500).epsilon
    assert "240" not in repr(loss)
    assert math.isclose(found.epsilon, loss.renyi([found.order])[0] + math.log(1e5) / (found.order - 1), rel_tol=1e-9)


def test_the_cost_never_exceeds_the_bound_for_all_votes() -> None:
    """The Renyi bound is looser than the exact Gaussian, and one order looser than the best."""
    counts = np.random.default_rng(0).multinomial(50, [0.7] + [0.3 / 9] * 9, size=1000)
    target = PrivacyGuarantee(epsilon=8.0, delta=1e-5)
    mechanism = GNMax.calibrated(target, labels=1000, teachers=50, insecure_seed=1)
    loss = DataDependentLoss(mechanism=mechanism, counts=counts)
    found = loss.guarantee(delta=1e-5)
    assert (found.epsilon, found.order) == (mechanism.guarantee(labels=1000).epsilon, None)
    rho = 1000 / mechanism.sigma**2
    best = rho + 2 * math.sqrt(rho * math.log(1e5))
    for order in (3.0, 16.0, 64.0):  # what the release costs is a tenth of the worst case at this order
        released_epsilon = loss.sanitised(delta=1e-5, order=order).epsilon
        assert best < released_epsilon < 1.1 * best
        assert released_epsilon < 1.1 * rho * order + math.log(1e5) / (order - 1)


def test_split_votes_cost_the_worst_case() -> None:
    loss = DataDependentLoss(mechanism=GNMax(sigma=22.46), counts=np.array([[5, 6], [0, 11]]))
    assert math.isclose(loss.renyi([10.0])[0], 2 * 10 / 22.46**2, rel_tol=1e-12)


@pytest.mark.slow
def test_sanitised_cost_bounds_the_cost_from_above() -> None:
    counts = np.array([[249, 1, 0]] * 3000 + [[170, 60, 20]] * 20)
    order, delta = 12.0, 1e-6
    rest = math.log(1 / delta) / (order - 1)
    seen = set()
    for seed in range(20):
        mechanism = GNMax(sigma=40.0, insecure_seed=seed)
        loss = DataDependentLoss(mechanism=mechanism, counts=counts)
        released = loss.sanitised(delta=delta, order=order)
        assert not released.sensitive
        assert released.failure == 1e-6
        assert "SENSITIVE" not in str(released)
        assert released.epsilon >= loss.renyi([order])[0] + rest
        assert released.epsilon <= 1.1 * len(counts) * order / 1600 + rest + 1e-5
        seen.add(released.epsilon)
    assert len(seen) == 20  # it is noisy
    assert min(seen) < 0.6 * (len(counts) * order / 1600 + rest)  # and worth having


def test_few_teachers_cost_the_worst_case_and_its_release() -> None:
    """With 11 teachers and this much noise even unanimity proves nothing, as the DaRRM paper observes."""
    loss = DataDependentLoss(mechanism=GNMax(sigma=40.0), counts=np.array([[11] + [0] * 9]))
    order = 1 + math.sqrt(1600 * math.log(1e5))  # the best one for the worst case
    released = loss.sanitised(delta=1e-5, order=order)
    worst, rest = order / 1600, math.log(1e5) / (order - 1)
    assert worst + rest < released.epsilon <= 1.1 * worst + rest + 2e-6
    assert worst + rest < loss.sanitised(delta=1e-5, order=20.0).epsilon <= 1.1 * (20 / 1600 + math.log(1e5) / 19)


@pytest.mark.slow
def test_released_figures_lie_on_no_grid_of_their_own() -> None:
    """A grid in proportion to the sensitivity would reveal the sensitivity, and so the votes."""
    counts, order, delta = np.array([[250, 0, 0]] * 500), 12.0, 1e-6
    offset = -special.ndtri(1e-6)
    smoothness, noise = release_parameters(order, 0.1 * 500 * order / 400, offset)
    spread = VoteCosts(GNMax(sigma=5.0), counts, order).smooth_sensitivity(smoothness) * noise
    figures = np.array(
        [
            DataDependentLoss(mechanism=GNMax(sigma=20.0, insecure_seed=seed), counts=counts)
            .sanitised(delta=delta, order=order)
            .epsilon
            for seed in range(40)
        ]
    )
    places = (figures - figures[0]) / (spread * 2.0**-12) % 1
    assert stats.kstest(places[1:], "uniform").pvalue > 1e-6  # false alarm 1e-6, fixed seeds


def test_bad_arguments_are_one_clear_error() -> None:
    mechanism = GNMax(sigma=4.0)
    with pytest.raises(InvalidArgument, match=r"^mechanism must be a GNMax or a ConfidentGNMax"):
        DataDependentLoss(mechanism="gnmax", counts=[[3, 4]])
    with pytest.raises(InvalidArgument, match=r"^counts must be one row or more"):
        DataDependentLoss(mechanism=mechanism, counts=np.zeros((0, 2), dtype=int))
    loss = DataDependentLoss(mechanism=mechanism, counts=np.array([[3, 4]]))
    for arguments in ({"delta": 0.0}, {"delta": math.nan}):
        with pytest.raises(InvalidArgument, match=r"^delta"):
            loss.guarantee(**arguments)
    with pytest.raises(InvalidArgument, match=r"^order"):
        loss.sanitised(delta=1e-5, order=1.0)
    for wrong in ({"share": 5e-324}, {"delta": 0.0}, {"failure": 0.0}, {"order": math.inf}):
        with pytest.raises(InvalidArgument, match=rf"^{next(iter(wrong))}"):
            loss.sanitised(**{"delta": 1e-5, "order": 4.0, **wrong})
    assert loss.sanitised(delta=5e-324, order=4.0).epsilon > 2 * math.sqrt(744 / 16)
    for orders in (math.nan, 1.0, [2.0, 0.5], -3, math.inf, "x", 10**400, {}):
        with pytest.raises(InvalidArgument, match=r"^orders must be"):
            loss.renyi(orders)


def test_the_text_is_rounded_up() -> None:
    guarantee = DataDependentGuarantee(epsilon=0.12345641, delta=1.234e-5, order=2.0, sensitive=False, failure=1.2e-6)
    assert str(guarantee) == "(0.123457, 1.24e-05)-DP on these votes, except with chance 2e-06"


TARGET = PrivacyGuarantee(epsilon=26.0, delta=1e-6)


def test_items_without_an_answer_cost_little() -> None:
    """Confident-GNMax on 250 teachers, as in the experiments of Papernot et al. 2018."""
    mechanism = ConfidentGNMax(threshold=200, sigma_check=150, sigma=40, delta=1e-6)
    sure, split = np.array([[250, 0, 0]] * 500), np.array([[84, 83, 83]] * 500)
    quiet = ConfidentGNMax(threshold=200, sigma_check=20, sigma=40, delta=1e-6)
    cost = {
        name: DataDependentLoss(mechanism=one, counts=counts).guarantee(delta=1e-6)
        for name, one, counts in (("sure", mechanism, sure), ("split", quiet, split), ("noisy check", mechanism, split))
    }
    assert all(one.sensitive for one in cost.values())
    worst = mechanism.guarantee(labels=500).epsilon
    assert cost["sure"].epsilon < 0.4 * worst
    assert cost["split"].epsilon < 0.1 * quiet.guarantee(labels=500).epsilon
    assert cost["noisy check"].epsilon > cost["split"].epsilon  # many are answered all the same


def test_a_check_that_all_items_pass_costs_what_gnmax_costs() -> None:
    counts = np.array([[240, 10, 0], [200, 40, 10]])
    confident = ConfidentGNMax(threshold=-1e6, sigma_check=40, sigma=40)
    orders = np.array([2.0, 8.0, 20.0])
    both = [DataDependentLoss(mechanism=one, counts=counts).renyi(orders) for one in (confident, GNMax(sigma=40))]
    np.testing.assert_allclose(*both, rtol=1e-9)


@pytest.mark.parametrize("kind", ["gnmax", "confident"])
def test_labels_within_a_budget_on_the_votes(kind: str) -> None:
    """Clear votes pass the test and cost less than the bound for all votes; split ones are refused."""
    shape = {"sigma": 10.0} if kind == "gnmax" else {"threshold": 40.0, "sigma_check": 30.0, "sigma": 10.0}
    build = {"gnmax": GNMax, "confident": ConfidentGNMax}[kind]
    clear, split = np.array([[62, 0, 0]] * 1000), np.array([[32, 30, 0]] * 1000)
    mechanism = build(insecure_seed=1, **shape)
    assert mechanism.guarantee(labels=1000, delta=1e-6).epsilon > TARGET.epsilon
    labels = DataDependentLoss(mechanism=mechanism, counts=clear).labels_within(TARGET, order=3.0, share=0.15)
    assert labels is not None
    assert (labels == 0).mean() > 0.5
    assert DataDependentLoss(mechanism=mechanism, counts=split).labels_within(TARGET, order=3.0, share=0.15) is None
    few = DataDependentLoss(mechanism=mechanism, counts=split[:10]).labels_within(TARGET, order=3.0)
    assert few is not None  # the bound for all votes keeps the target
    with pytest.raises(InvalidArgument, match=r"^target must be an epsilon above"):
        DataDependentLoss(mechanism=mechanism, counts=clear).labels_within(TARGET, order=1.1)
    with pytest.raises(InvalidArgument, match=r"^target must be one with a positive delta"):
        DataDependentLoss(mechanism=mechanism, counts=clear).labels_within(PrivacyGuarantee(epsilon=1.0), order=2.0)


@pytest.mark.slow
def test_labels_are_drawn_above_the_limit_with_probability_of_half_delta_at_most() -> None:
    """Votes whose cost is just above the limit of the test: the figure is too small as often as delta / 2 says."""
    counts, order, share = np.array([[44, 18]] * 400), 4.0, 0.05
    cost = VoteCosts(GNMax(sigma=5.0), counts, order).loss()
    offset = -special.ndtri(0.1)
    smoothness, noise = release_parameters(order, share * 400 * order / 25, offset)
    spread = smooth_release_renyi(order, smoothness=smoothness, noise=noise, offset=offset)
    epsilon = cost * (1 - 1e-9) + spread + math.log(1 / 0.1) / (order - 1)
    target = PrivacyGuarantee(epsilon=epsilon, delta=0.2)
    drawn = 0
    for seed in range(120):
        loss = DataDependentLoss(mechanism=GNMax(sigma=5.0, insecure_seed=seed), counts=counts)
        drawn += loss.labels_within(target, order=order, share=share) is not None
    assert stats.binom.sf(drawn - 1, 120, 0.1) > 1e-6  # false alarm 1e-6, fixed seeds
    assert drawn > 0


def test_too_many_teachers_for_a_check_are_refused() -> None:
    loss = DataDependentLoss(
        mechanism=ConfidentGNMax(threshold=9000, sigma_check=20, sigma=40), counts=np.array([[10_000, 0]])
    )
    assert loss.guarantee(delta=1e-6).epsilon > 0
    with pytest.raises(InvalidArgument, match=r"^counts must be of fewer teachers for a ConfidentGNMax"):
        loss.sanitised(delta=1e-6, order=5.0)
