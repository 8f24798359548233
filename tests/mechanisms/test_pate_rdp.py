"""Data-dependent Renyi privacy: published values; bounds and smoothness by enumeration of all votes."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import integrate, special, stats

from darrm_torch import ConfidentGNMax, DataDependentLoss, GNMax, InvalidArgument
from darrm_torch.mechanisms import pate_rdp
from darrm_torch.mechanisms.gnmax import grid_step
from darrm_torch.mechanisms.pate_rdp import (  # private: _theorem_6, a numerical kernel, tested on purpose
    VoteCosts,
    _theorem_6,
    gnmax_renyi,
    log_chance_of_other,
    release_parameters,
    smooth_release_renyi,
    standard_normal,
    worst_renyi,
)
from darrm_torch.mechanisms.sampling import RandomBits

REFERENCE = json.loads((Path(__file__).parents[1] / "reference" / "gnmax_rdp.json").read_text())["cases"]


@pytest.mark.parametrize("case", REFERENCE, ids=[f"{c['counts'][:3]}-{c['sigma']}" for c in REFERENCE])
def test_agrees_with_the_published_analysis(case) -> None:
    counts = np.array([case["counts"]])
    log_q = log_chance_of_other(counts, sigma=case["sigma"])
    assert math.isclose(log_q[0], case["log_q"], rel_tol=1e-9)
    renyi = gnmax_renyi(log_q, case["orders"], sigma=case["sigma"])
    np.testing.assert_allclose(renyi[0], case["rdp"], rtol=1e-6)
    worst = gnmax_renyi(np.array([0.0]), case["orders"], sigma=case["sigma"])
    np.testing.assert_allclose(worst[0], case["rdp_data_independent"], rtol=1e-12)


def test_the_bound_on_the_chance_is_a_bound() -> None:
    """1 - Pr[plurality], exactly, for the rounded noise that is really drawn."""
    generator = np.random.default_rng(0)
    for sigma in (3.0, 20.0, 40.0):
        counts = generator.multinomial(60, [0.6, 0.2, 0.1, 0.1], size=30)
        law = GNMax(sigma=sigma).label_probabilities(counts)
        other = 1 - law[np.arange(30), counts.argmax(axis=1)]
        bound = np.exp(log_chance_of_other(counts, sigma=sigma, step=grid_step(sigma)))
        assert np.all(other <= bound + 1e-12)


def test_cost_never_exceeds_the_worst_case_and_grows_with_doubt() -> None:
    log_q = -np.geomspace(1e-3, 200, 400)
    orders = np.array([1.5, 3.0, 10.0, 40.0])
    renyi = gnmax_renyi(log_q, orders, sigma=20.0)
    assert np.all(renyi <= orders / 400)
    assert np.all(np.diff(renyi, axis=0) <= 1e-16)  # log_q falls along the rows
    np.testing.assert_allclose(gnmax_renyi(log_q, orders, sigma=60.0, overlap=3), renyi, rtol=1e-12)


@pytest.mark.parametrize(("mu_2", "width"), [(2.0, 5.0), (6.0, 10.0), (30.0, 40.0)])
def test_theorem_6_is_used_where_it_holds_and_grows_with_q_there(mu_2: float, width: float) -> None:
    mu_1 = mu_2 + 1
    eps_1, eps_2 = mu_1 / width**2, mu_2 / width**2
    limit = math.exp((mu_2 - 1) * eps_2) / (mu_1 / (mu_1 - 1) * mu_2 / (mu_2 - 1)) ** mu_2  # as printed
    order = 0.9 * mu_1

    def bound(q: float) -> float:
        return float(_theorem_6(np.log(np.array([q])), np.array([order]), np.array([mu_2]), width)[0])

    qs = np.geomspace(1e-12, limit * (1 - 1e-9), 60)
    values = [bound(q) for q in qs]
    assert np.all(np.isfinite(values))
    assert np.all(np.diff(values) >= 0)
    assert bound(limit * (1 + 1e-9)) == math.inf
    q = qs[-1]
    a = (1 - q) / (1 - (q * math.exp(eps_2)) ** ((mu_2 - 1) / mu_2))
    b = math.exp(eps_1) / q ** (1 / (mu_1 - 1))
    printed = math.log((1 - q) * a ** (order - 1) + q * b ** (order - 1)) / (order - 1)
    assert math.isclose(values[-1], printed, rel_tol=1e-9)
    beyond = _theorem_6(np.log(np.array([q])), np.array([mu_1 + 0.1]), np.array([mu_2]), width)
    assert beyond[0] == math.inf


def histograms(teachers: int, classes: int) -> list[tuple[int, ...]]:
    bars = itertools.combinations(range(teachers + classes - 1), classes - 1)
    return [tuple(int(n) for n in np.diff([-1, *bar, teachers + classes - 1]) - 1) for bar in bars]


def neighbours(votes: tuple[int, ...]) -> set[tuple[int, ...]]:
    """All histograms that one changed vote can make of ``votes``."""
    found = set()
    for i, j in itertools.permutations(range(len(votes)), 2):
        if votes[i]:
            moved = list(votes)
            moved[i] -= 1
            moved[j] += 1
            found.add(tuple(moved))
    return found


def reachable(votes: tuple[int, ...], overlap: int) -> set[tuple[int, ...]]:
    """All histograms that up to two changed votes can make of ``votes``."""
    near = neighbours(votes)
    return near if overlap == 1 else set().union(near, *map(neighbours, near))


@pytest.mark.parametrize(("sigma", "order", "overlap"), [(0.5, 1.5, 1), (1.5, 4.0, 1), (3.0, 10.0, 1), (1.0, 1.5, 2)])
@pytest.mark.parametrize("smoothness", [0.02, 0.3])
def test_the_sensitivity_bound_is_smooth_and_a_bound(
    sigma: float, order: float, overlap: int, smoothness: float
) -> None:
    """Every pair of neighbouring histograms of 10 teachers and 3 classes."""
    mechanism = GNMax(sigma=sigma, overlap=overlap)
    line = {v: VoteCosts(mechanism, np.array([v]), order) for v in histograms(10, 3)}
    loss = {v: one.loss() for v, one in line.items()}
    smooth = {v: one.smooth_sensitivity(smoothness) for v, one in line.items()}
    moved = 0
    for here in line:
        for there in reachable(here, overlap):
            change = abs(loss[here] - loss[there])
            moved += change > 0
            assert change <= smooth[here] * (1 + 1e-9) + 1e-15
            assert smooth[here] <= math.exp(smoothness) * smooth[there] * (1 + 1e-9)
    assert moved > 20 or sigma == 3.0  # the test compares something


@pytest.mark.parametrize(
    ("threshold", "sigma_check", "sigma", "overlap"), [(6.0, 1.0, 0.7, 1), (7.5, 1.5, 1.0, 1), (5.0, 2.0, 1.0, 2)]
)
def test_a_checked_label_costs_no_less_than_its_exact_divergence(threshold, sigma_check, sigma, overlap) -> None:
    """Every pair of neighbouring histograms of 9 teachers and 3 classes, by the exact law of the label."""
    mechanism = ConfidentGNMax(threshold=threshold, sigma_check=sigma_check, sigma=sigma, overlap=overlap)
    every, orders = histograms(9, 3), np.array([1.5, 2.0, 4.0])
    law = dict(zip(every, mechanism.label_probabilities(np.array(every)), strict=True))
    below, near = 0, 0.0
    worst = worst_renyi(mechanism, orders)
    for here in every:
        bound = DataDependentLoss(mechanism=mechanism, counts=np.array([here])).renyi(orders)
        assert np.all(bound <= worst)
        below += bound[1] < 0.5 * worst[1]
        for there in reachable(here, overlap):
            p, q = law[here] + 1e-30, law[there] + 1e-12
            exact = np.log(((p / q) ** (orders[:, None] - 1)) @ p) / (orders - 1)
            assert np.all(exact <= bound + 1e-9)
            near = max(near, float((exact / bound)[1]))
    assert below > 2  # items that are hardly ever answered cost little
    assert near > 0.3  # and the bound is not far from the truth


@pytest.mark.parametrize(("sigma", "order", "overlap"), [(0.5, 1.5, 1), (1.0, 4.0, 1), (0.7, 1.5, 2)])
def test_the_sensitivity_bound_of_checked_labels_is_smooth_and_a_bound(sigma, order, overlap) -> None:
    mechanism = ConfidentGNMax(threshold=6.5, sigma_check=1.2, sigma=sigma, overlap=overlap)
    costs = {v: VoteCosts(mechanism, np.array([v]), order) for v in histograms(10, 3)}
    loss, moved = {v: one.loss() for v, one in costs.items()}, 0
    for smoothness in (0.02, 0.3):
        smooth = {v: one.smooth_sensitivity(smoothness) for v, one in costs.items()}
        for here in costs:
            for there in reachable(here, overlap):
                change = abs(loss[here] - loss[there])
                moved += change > 0.1 * max(loss.values())
                assert change <= smooth[here] * (1 + 1e-9) + 1e-15
                assert smooth[here] <= math.exp(smoothness) * smooth[there] * (1 + 1e-9)
    assert moved > 20


@pytest.mark.parametrize("smoothness", [0.0047, 0.0157, 2.0])
def test_smooth_where_a_neighbour_is_a_whole_number_of_cells_away(smoothness: float) -> None:
    """Two classes: every vote moves along the line by exactly one pace, so rounding decides between two cells."""
    mechanism = GNMax(sigma=2.6403079936467213)
    counts = [np.array([[ones, 31 - ones]]) for ones in range(32)]
    smooth = np.array([VoteCosts(mechanism, one, 16.456453106590324).smooth_sensitivity(smoothness) for one in counts])
    assert np.all(np.abs(np.diff(np.log(smooth))) <= smoothness * (1 + 1e-9))


def test_the_sensitivity_covers_rounding() -> None:
    """Costs next to the worst case: the sum moves by 2.8e-14, of 182, where its true change is much less."""
    mechanism = GNMax(sigma=0.5742530519548051)
    here, there = (
        VoteCosts(mechanism, np.array(votes), 20.0)
        for votes in ([[17, 3], [15, 5], [10, 10]], [[16, 4], [15, 5], [11, 9]])
    )
    assert 0 < abs(here.loss() - there.loss()) <= here.smooth_sensitivity(0.06411661798443816)


def test_the_released_cost_is_an_upper_bound_of_the_published_one() -> None:
    """The public family of higher orders loses little against the best ones."""
    for votes in ([240, 5, 5], [200, 30, 20], [130, 120, 0]):
        mechanism = GNMax(sigma=40.0)
        counts = np.array([votes])
        ours = VoteCosts(mechanism, counts, 14.0).loss()
        best = DataDependentLoss(mechanism=mechanism, counts=counts).renyi([14.0])[0]
        assert best * (1 - 1e-9) <= ours <= best * 1.05


def exact_divergence(order: float, shift: float, here: float, there: float) -> float:
    """Renyi divergence of N(shift, here**2) from N(0, there**2), by integration."""

    def integrand(x: float) -> float:
        return math.exp(order * stats.norm.logpdf(x, shift, here) - (order - 1) * stats.norm.logpdf(x, 0, there))

    mixed = order * there**2 + (1 - order) * here**2
    centre, width = order * shift * there**2 / mixed, here * there / math.sqrt(mixed)
    value = integrate.quad(integrand, centre - 12 * width, centre + 12 * width, limit=400)[0]
    return math.log(value) / (order - 1)


@pytest.mark.slow
@pytest.mark.parametrize("offset", [0.0, 0.7, pytest.param(4.75, marks=pytest.mark.slow)])
def test_release_cost_covers_every_pair_of_scales(offset: float) -> None:
    for order, smoothness, noise in ((10.0, 0.049, 5.0), (3.0, 0.1, 2.0), (20.0, 0.005, 30.0)):
        claimed = smooth_release_renyi(order, smoothness=smoothness, noise=noise, offset=offset)
        for log_t in np.linspace(-smoothness, smoothness, 9):
            t = math.exp(log_t)
            # f and the offset's part of the mean may well move the same way.
            shift = min(1.0, t) + noise * offset * abs(1 - t)
            assert exact_divergence(order, shift, noise, noise * t) <= claimed * (1 + 1e-6)
        low = math.exp(-smoothness)
        worst = exact_divergence(order, low + noise * offset * (1 - low), noise, noise * low)
        assert math.isclose(worst, claimed, rel_tol=1e-6)


@pytest.mark.parametrize(
    ("here", "there", "sigma"),
    [([250, 0], [249, 1], 20.0), ([60, 0, 0], [59, 1, 0], 4.0), ([40, 20], [39, 21], 3.0)],
)
def test_release_of_real_votes_costs_no_more_than_claimed(here, there, sigma: float) -> None:
    """Far from any doubt S changes by all that smoothness allows, and with it how far f is raised above its value."""
    order, offset = 12.0, -special.ndtri(1e-6)
    smoothness, noise = release_parameters(order, 0.1 * order / sigma**2, offset)
    lines = [VoteCosts(GNMax(sigma=sigma), np.array([votes]), order) for votes in (here, there)]
    (f, wide), (g, narrow) = ((line.loss(), noise * line.smooth_sensitivity(smoothness)) for line in lines)
    shift = (f + offset * wide - g - offset * narrow) / wide
    claimed = smooth_release_renyi(order, smoothness=smoothness, noise=noise, offset=offset)
    assert exact_divergence(order, shift, 1.0, narrow / wide) <= claimed * (1 + 1e-6)
    assert exact_divergence(order, shift * wide / narrow, 1.0, wide / narrow) <= claimed * (1 + 1e-6)


def test_the_noise_of_the_release_is_normal() -> None:
    drawn = [float(standard_normal(RandomBits(insecure_seed=seed))) for seed in range(2000)]
    assert stats.kstest(drawn, "norm").pvalue > 1e-6  # false alarm 1e-6, fixed seeds


def test_the_published_release_bound_does_not_hold() -> None:
    """Papernot et al. 2018, Theorem 23, at order 10, beta 0.049 = 0.49/10 (their choice), noise 5: why ours differs."""
    order, beta, noise = 10.0, 0.049, 5.0
    published = order * math.exp(2 * beta) / noise**2
    published += (beta * order - math.log(1 - 2 * order * beta) / 2) / (order - 1)
    assert published < 0.72
    assert exact_divergence(order, math.exp(-beta), noise, noise * math.exp(-beta)) > 2.8


@pytest.mark.parametrize(("order", "cost"), [(2.0, 0.5), (12.0, 0.01), (60.0, 1e-4)])
def testrelease_parameters_keep_to_the_cost(order: float, cost: float) -> None:
    for offset in (0.0, 4.75):
        smoothness, noise = release_parameters(order, cost, offset)
        spent = smooth_release_renyi(order, smoothness=smoothness, noise=noise, offset=offset)
        assert math.isclose(spent, cost, rel_tol=1e-9)


def test_a_release_that_is_too_rough_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"^smoothness"):
        smooth_release_renyi(10.0, smoothness=0.06, noise=1.0)


def test_memory_does_not_grow_with_the_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels are computed in parts; a whole table of 200,000 labels by 256 orders took 2.4 GiB."""
    counts = np.random.default_rng(1).multinomial(50, [0.6, 0.3, 0.1], size=100)
    whole = VoteCosts(GNMax(sigma=20.0), counts, 14.0)
    monkeypatch.setattr(pate_rdp, "_ROWS", 7)
    parts = VoteCosts(GNMax(sigma=20.0), counts, 14.0)
    assert parts.loss() == pytest.approx(whole.loss(), rel=1e-13)
    assert parts.smooth_sensitivity(0.01) == pytest.approx(whole.smooth_sensitivity(0.01), rel=1e-13)
