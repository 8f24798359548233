"""GNMax: calibration against published and recomputed values, accounting, and its noise."""

from __future__ import annotations

import functools
import itertools
import math
import re

import mpmath
import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st
from scipy import integrate, stats

from darrm_torch import ConfidentGNMax, GNMax, InvalidArgument, LNMax, PrivacyGuarantee
from darrm_torch.mechanisms.gaussian import gaussian_epsilon, gaussian_mu, zcdp_epsilon
from darrm_torch.mechanisms.gnmax import (
    _ORDERS,
    gaussian_noise,
    gaussian_stride,
    grid_step,
    label_renyi,
    noisy_argmax_law,
)
from darrm_torch.mechanisms.sampling import RandomBits

numbers = {"allow_nan": False, "allow_infinity": False}


@pytest.mark.parametrize(
    ("epsilon", "sigma"),
    # The DaRRM paper, table of GNMax parameters: MNIST and Fashion-MNIST at delta 3e-4. (The orders printed beside
    # them, 34.31 and 35.74, do not give these sigmas; the minimising orders are 62.1 and 65.0.)
    [(0.2676, 21.46), (0.2556, 22.46)],
)
def test_renyi_calibration_gives_the_published_noise(epsilon: float, sigma: float) -> None:
    mechanism = GNMax.calibrated(PrivacyGuarantee(epsilon=epsilon, delta=3e-4), method="rdp")
    assert round(mechanism.sigma, 2) == sigma
    orders = np.arange(1.05, 500, 0.05)
    grid = np.sqrt(orders / np.maximum(epsilon - math.log(1 / 3e-4) / (orders - 1), 1e-12))
    assert math.isclose(grid.min(), mechanism.sigma, rel_tol=1e-6)  # the paper's grid search, finer
    assert round(orders[grid.argmin()], 1) == {0.2676: 62.1, 0.2556: 65.0}[epsilon]


@pytest.mark.parametrize(("m", "sigma"), [(1, 39.87), (3, 13.43), (5, 8.14), (7, 5.87)])
def test_analytic_calibration(m: int, sigma: float) -> None:
    """(0.0852 m, 1e-4 m)-DP for r = 1; the values come from the exact condition with sensitivity sqrt(2)."""
    target = PrivacyGuarantee(epsilon=0.0852 * m, delta=1e-4 * m)
    mechanism = GNMax.calibrated(target)
    assert round(mechanism.sigma, 2) == sigma
    assert mechanism.sigma < GNMax.calibrated(target, method="rdp").sigma
    assert math.isclose(GNMax.calibrated(target, overlap=3).sigma, 3 * mechanism.sigma, rel_tol=1e-9)


def test_extreme_targets_have_an_answer() -> None:
    assert math.isfinite(gaussian_mu(1e300, 0.5))
    assert 3 < gaussian_epsilon(5e-324, 0.1) < 4
    assert math.isfinite(zcdp_epsilon(0.1, 5e-324))


def confident(target: PrivacyGuarantee, **options) -> ConfidentGNMax:
    return ConfidentGNMax.calibrated(target, threshold=8.0, ratio=2.0, **options)


@pytest.mark.parametrize("calibrated", [GNMax.calibrated, confident, LNMax.calibrated])
@settings(deadline=None, derandomize=True, max_examples=25)
@given(st.floats(0.01, 20, **numbers), st.floats(1e-10, 0.4, **numbers), st.integers(1, 1000), st.integers(1, 5))
def test_a_calibrated_mechanism_keeps_its_target(
    calibrated, epsilon: float, delta: float, labels: int, overlap: int
) -> None:
    target = PrivacyGuarantee(epsilon=epsilon, delta=delta)
    assume(overlap * math.sqrt(labels) / gaussian_mu(epsilon, delta) < 2**14)
    mechanism = calibrated(target, labels=labels, overlap=overlap)
    kept = mechanism.guarantee(labels=labels, delta=delta)
    assert kept.epsilon <= epsilon
    assert kept.delta == delta
    assert kept.epsilon > 0.997 * epsilon
    assert mechanism.guarantee(labels=labels, delta=delta, overlap=overlap + 1).epsilon > epsilon


def test_labels_compose_as_one_gaussian() -> None:
    mechanism = GNMax(sigma=20.0, delta=1e-5)
    twenty = mechanism.guarantee(labels=20)
    assert math.isclose(twenty.epsilon, gaussian_epsilon(1e-5, math.sqrt(2 * 20) / 20), rel_tol=1e-9)
    assert twenty.epsilon < 20 * mechanism.guarantee().epsilon / 3  # the sum, at 20 times the delta
    assert mechanism.guarantee(delta=1e-7).epsilon > mechanism.guarantee().epsilon


def test_law_is_close_to_the_continuous_one() -> None:
    """Rounding changes the law by the order of (step / sigma)**2, and the agreement with the majority hardly at all."""
    counts = np.array([[11 - n, n] for n in range(12)])
    for sigma in (0.5, 3.0, 13.43, 40.0):
        law = GNMax(sigma=sigma).label_probabilities(counts)[:, 1]
        smooth = stats.norm.cdf((counts[:, 1] - counts[:, 0]) / (sigma * math.sqrt(2)))
        assert np.abs(law - smooth).max() < 2e-3


@pytest.mark.slow
def test_noise_is_that_of_opendp_up_to_rounding() -> None:
    """OpenDP draws the discrete Gaussian; the rounded normal differs by about 1/(24 sigma**2): unseen here."""
    opendp = pytest.importorskip("opendp.prelude")
    opendp.enable_features("contrib")
    space = opendp.vector_domain(opendp.atom_domain(T=int)), opendp.l2_distance(T=float)
    theirs = np.array(opendp.m.make_gaussian(*space, scale=13.43)([0] * 20_000))
    noise, unit = gaussian_noise(13.43)
    ours = noise.signed(RandomBits(), 20_000) / unit
    assert stats.ks_2samp(ours, theirs).pvalue > 1e-9  # both from fresh bits: false alarm 1e-9


def test_law_of_three_classes_against_integration() -> None:
    counts = np.array([7, 3, 1])
    sigma = 4.0  # grid 1/4

    def density(x: float) -> float:
        others = np.prod([stats.norm.cdf(x, n, sigma) for n in counts[1:]])
        return float(stats.norm.pdf(x, counts[0], sigma) * others)

    smooth = integrate.quad(density, -60, 70, limit=300)[0]
    assert abs(GNMax(sigma=sigma).label_probabilities(counts[None])[0, 0] - smooth) < 2e-4


def test_law_by_brute_force_over_the_noise() -> None:
    """All noise vectors of three classes, ties shared equally: the finite sum is the definition."""
    mechanism = LNMax(scale=0.4)
    counts = np.array([2, 1, 1])
    ratio = math.exp(-1 / 0.4)
    values = np.arange(-12, 13)
    law = (1 - ratio) / (1 + ratio) * ratio ** np.abs(values)
    scores = np.stack(np.meshgrid(*[values + n for n in counts], indexing="ij"), axis=-1)
    chance = law[:, None, None] * law[None, :, None] * law[None, None, :]
    best = scores == scores.max(axis=-1, keepdims=True)
    expected = (chance[..., None] * best / best.sum(axis=-1, keepdims=True)).sum(axis=(0, 1, 2))
    np.testing.assert_allclose(mechanism.label_probabilities(counts[None])[0], expected, atol=1e-10)


@pytest.mark.parametrize(("sigma", "votes"), [(0.2, [0, 1]), (40.0, [9, 2]), (300.0, [7, 3, 1]), (20.0, [3] * 10)])
def test_few_values_of_gaussian_noise_give_the_whole_sum(sigma: float, votes: list[int]) -> None:
    """Every h-th value; of two or three classes every 2 h-th would not do."""
    counts, (noise, unit) = np.array([votes, votes[::-1]]), gaussian_noise(sigma)
    stride = gaussian_stride(sigma, len(votes))
    assert noise.survival.size < 50 * stride
    whole = noisy_argmax_law(counts, noise, unit)
    np.testing.assert_allclose(GNMax(sigma=sigma).label_probabilities(counts), whole, atol=1e-13, rtol=0)
    if len(votes) < 4:
        assert np.abs(noisy_argmax_law(counts, noise, unit, 2 * stride) - whole).max() > 1e-9


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"sigma": 0.0}, "sigma"),
        ({"sigma": 1e-9}, "sigma"),
        ({"sigma": math.nan}, "sigma"),
        ({"sigma": math.inf}, "sigma"),
        ({"sigma": "wide"}, "sigma"),
        ({"sigma": 1.0, "delta": 0.0}, "delta"),
        ({"sigma": 1.0, "delta": 1.0}, "delta"),
        ({"sigma": 1.0, "overlap": 0}, "overlap"),
        ({"sigma": 1.0, "teachers": 2.5}, "teachers"),
    ],
)
def test_bad_arguments_are_one_clear_error(arguments, name: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"^{re.escape(name)} must be"):
        GNMax(**arguments)


@pytest.mark.parametrize(
    ("target", "options", "name"),
    [
        (PrivacyGuarantee(epsilon=1.0), {}, "target.delta"),
        (PrivacyGuarantee(epsilon=math.inf, delta=1e-5), {}, "target.epsilon"),
        (PrivacyGuarantee(epsilon=0.0, delta=1e-5), {}, "target.epsilon"),
        (PrivacyGuarantee(epsilon=1.0, delta=1.0), {}, "target.delta"),
        (PrivacyGuarantee(epsilon=1.0, delta=1e-5), {"method": "guess"}, "method"),
        (PrivacyGuarantee(epsilon=1.0, delta=1e-5), {"labels": 0}, "labels"),
        (PrivacyGuarantee(epsilon=1.0, delta=1e-5), {"overlap": 0}, "overlap"),
        (PrivacyGuarantee(epsilon=1e-7, delta=1e-12), {}, "target.epsilon"),
    ],
)
def test_targets_that_cannot_be_met_are_refused(target, options, name: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"^{re.escape(name)} must be"):
        GNMax.calibrated(target, **options)


def test_a_guarantee_needs_a_delta() -> None:
    with pytest.raises(InvalidArgument, match=r"^delta must be given"):
        GNMax(sigma=1.0).guarantee()
    assert GNMax(sigma=1.0).guarantee(delta=0.0).epsilon == math.inf


def test_describes_its_noise() -> None:
    described = GNMax.calibrated(PrivacyGuarantee(epsilon=1.0, delta=1e-5), labels=20, overlap=2).describe()
    assert described["parameters"]["overlap"] == 2
    assert any("rounded" in note for note in described["notes"])


# --- the privacy of the label itself (_ORDERS: the orders of the kernel label_renyi, on purpose) ---


def neighbours(teachers: int, classes: int) -> tuple[np.ndarray, list[tuple[int, int]]]:
    """All counts, and all pairs of them that differ in one vote."""
    bars = itertools.combinations(range(teachers + classes - 1), classes - 1)
    counts = np.array([np.diff([-1, *bar, teachers + classes - 1]) - 1 for bar in bars])
    apart = np.abs(counts[:, None] - counts[None, :]).sum(axis=2)
    return counts, [(int(i), int(j)) for i, j in zip(*np.nonzero(apart == 2), strict=True)]


@pytest.mark.parametrize(("teachers", "classes", "sigma"), [(3, 3, 1.7), (6, 3, 5.0), (4, 4, 20.0), (1, 5, 2.0)])
def test_renyi_bound_of_the_label_is_that_of_the_worst_pair(teachers: int, classes: int, sigma: float) -> None:
    counts, pairs = neighbours(teachers, classes)
    law = GNMax(sigma=sigma).label_probabilities(counts)
    bound = label_renyi(sigma, teachers, classes)
    for index in (0, 10, 40):
        order = float(_ORDERS[index])
        exact = max(math.log(float(np.sum(law[i] ** order * law[j] ** (1 - order)))) for i, j in pairs) / (order - 1)
        assert exact - 1e-9 <= bound[index] <= exact * (1 + 1e-6) + 1e-7
        assert bound[index] < order / sigma**2 * (1 + 1e-9)  # the Gaussian's


def test_renyi_bound_where_chances_are_next_to_nothing() -> None:
    """Eleven votes against none at sigma = 1: a chance of about 1e-14, and orders up to 1000; to 60 digits."""
    bound = label_renyi(1.0, 11, 2)
    step = grid_step(1.0)
    with mpmath.workdps(60):

        def loses(gap: int) -> mpmath.mpf:
            """Pr[noise of one class >= noise of the other + gap], ties by a fair coin."""
            cells = [
                mpmath.ncdf((k + mpmath.mpf(1) / 2) * step) - mpmath.ncdf((k - mpmath.mpf(1) / 2) * step)
                for k in range(-12 * 16, 12 * 16 + 1)
            ]
            unit, total = round(gap / step), mpmath.mpf(0)
            above = [mpmath.mpf(0)] * (len(cells) + 1)
            for k in range(len(cells) - 1, -1, -1):
                above[k] = above[k + 1] + cells[k]
            for k, cell in enumerate(cells):
                if k + unit < len(cells):
                    total += cell * (above[k + unit + 1] + cells[k + unit] / 2)
            return total

        p, q = loses(9), loses(11)
        for index in (4, 30, 74):
            order = mpmath.mpf(float(_ORDERS[index]))
            exact = mpmath.log(p**order * q ** (1 - order) + (1 - p) ** order * (1 - q) ** (1 - order)) / (order - 1)
            assert bound[index] >= exact * (1 - mpmath.mpf(10) ** -12)
            if index == 74:
                assert bound[index] <= exact * (1 + mpmath.mpf(10) ** -6)  # the pair that is worst at large orders


@pytest.mark.parametrize("labels", [1, 2])
def test_noise_calibrated_on_the_label_keeps_the_target(labels: int) -> None:
    target = PrivacyGuarantee(epsilon=0.8, delta=1e-3)
    mechanism = GNMax.calibrated(target, method="label", labels=labels, teachers=5, classes=3)
    assert mechanism.guarantee(labels=labels).epsilon <= 0.8
    counts, pairs = neighbours(5, 3)

    def worst(mechanism: GNMax) -> float:
        one = mechanism.label_probabilities(counts)
        two = one if labels == 1 else np.einsum("ia,ib->iab", one, one).reshape(len(counts), -1)
        # Both labels of one pair: that is where they add up.
        return max(float(np.maximum(two[i] - math.exp(0.8) * two[j], 0).sum()) for i, j in pairs)

    assert worst(mechanism) <= 1e-3
    assert worst(GNMax(sigma=0.5 * mechanism.sigma)) > 1e-3
    assert mechanism.sigma < 0.8 * GNMax.calibrated(target, labels=labels).sigma


@pytest.mark.slow
def test_noise_calibrated_on_the_label_for_ten_classes() -> None:
    """Eleven teachers, one label at (0.5, 1e-5): about half the noise; 100 labels at (8, 1e-5): three quarters."""
    for labels, epsilon, sigma in ((1, 0.5, 5.35), (100, 8.0, 6.39)):
        target = PrivacyGuarantee(epsilon=epsilon, delta=1e-5)
        mechanism = GNMax.calibrated(target, method="label", labels=labels, teachers=11, classes=10)
        assert sigma * 0.99 < mechanism.sigma < sigma
        assert 0.99 * epsilon < mechanism.guarantee(labels=labels).epsilon <= epsilon
        other = mechanism.guarantee(labels=labels, overlap=2)  # by the worst curve of a label
        assert (
            epsilon
            < other.epsilon
            < GNMax(sigma=mechanism.sigma, delta=1e-5).guarantee(labels=labels, overlap=2).epsilon
        )


@pytest.mark.parametrize(
    "wrong", [{"teachers": None}, {"classes": None}, {"overlap": 2}, {"teachers": 101, "classes": 10}], ids=str
)
def test_the_label_needs_all_histograms(wrong: dict[str, int | None]) -> None:
    ask = {"method": "label", "teachers": 5, "classes": 3} | wrong
    with pytest.raises(InvalidArgument, match=r"^method must be \"analytic\" or \"rdp\", got .*1000 histograms"):
        GNMax.calibrated(PrivacyGuarantee(epsilon=1.0, delta=1e-5), **ask)


def test_classes_are_checked() -> None:
    with pytest.raises(InvalidArgument, match="classes"):
        GNMax(sigma=1.0, classes=1)
    with pytest.raises(InvalidArgument, match="counts"):
        GNMax(sigma=1.0, classes=3).aggregate(np.array([[1, 2]]))


@pytest.mark.parametrize("mechanism", [GNMax, LNMax, functools.partial(ConfidentGNMax.calibrated, threshold=3)])
def test_a_target_is_a_guarantee(mechanism) -> None:
    calibrated = getattr(mechanism, "calibrated", mechanism)
    for target in (1.0, None, (1.0, 1e-5), "x"):
        with pytest.raises(InvalidArgument, match=r"^target must be a PrivacyGuarantee"):
            calibrated(target)
    with pytest.raises(InvalidArgument, match=r"^method"):
        GNMax.calibrated(PrivacyGuarantee(epsilon=1.0, delta=1e-5), method=np.array(["rdp", "label"]))


def test_numbers_may_come_as_tensors() -> None:
    torch = pytest.importorskip("torch")
    mechanism = GNMax(sigma=3.0, delta=1e-5, teachers=4, classes=3)
    assert mechanism.guarantee(labels=torch.tensor(2)) == mechanism.guarantee(labels=2)


def test_a_label_that_may_cost_almost_anything_needs_hardly_any_noise() -> None:
    """The label's own bound is infinite at so little noise; the noise on the counts is then enough."""
    target = PrivacyGuarantee(epsilon=1024.0, delta=1e-5)
    mechanism = GNMax.calibrated(target, method="label", labels=4, teachers=11, classes=3)
    assert mechanism.sigma <= GNMax.calibrated(target, labels=4, teachers=11).sigma
    assert mechanism.guarantee(labels=4).epsilon <= target.epsilon


@pytest.mark.parametrize("epsilon", [1e-9, 1e-6, 1e14])
def test_a_target_out_of_reach_is_refused_by_its_own_name(epsilon: float) -> None:
    target = PrivacyGuarantee(epsilon=epsilon, delta=1e-12)
    for calibrate in (GNMax.calibrated, lambda target: ConfidentGNMax.calibrated(target, threshold=10)):
        with pytest.raises(InvalidArgument, match=r"^target\.epsilon must be one that noise of .* votes keeps, got"):
            calibrate(target)


@pytest.mark.parametrize("mechanism", [GNMax(sigma=0.7), GNMax(sigma=9.0), LNMax(scale=3.0)])
def test_many_votes_of_two_classes_at_once_have_the_law_of_a_few(mechanism: GNMax | LNMax) -> None:
    ones = np.arange(400)
    counts = np.stack([399 - ones, ones], axis=1)
    few = np.concatenate([mechanism.label_probabilities(part) for part in np.split(counts, 4)])
    np.testing.assert_allclose(mechanism.label_probabilities(counts), few, atol=1e-13, rtol=0)
