"""Privacy by enumeration: exact laws on all neighbouring counts, or all neighbouring teachers, against the claims."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from darrm_torch import (
    ConfidentGNMax,
    DaRRM,
    ExponentialMechanism,
    GNMax,
    LNMax,
    NoiseFreeMajority,
    NoiseFunction,
    PermuteAndFlip,
    PrivacyGuarantee,
    optimize_noise,
    self_bounding_noise,
)
from tests.mechanisms.enumeration import all_counts

SETTINGS = 50
LAW_ERROR = 1e-12  # what label_probabilities promises


def hockey_stick(here: np.ndarray, there: np.ndarray, epsilon: float) -> float:
    return float(np.maximum(here - math.exp(epsilon) * there, 0).sum())


def worst_loss_of_own_randomness(
    mechanism, teachers: int, overlap: int, epsilon: float, classes: int = 2, labels: int = 1
) -> float:
    """Largest hockey-stick divergence of the labels over counts that differ in at most ``overlap`` votes."""
    counts = all_counts(teachers, classes)
    law = mechanism.label_probabilities(counts)
    for _ in range(labels - 1):
        law = np.einsum("ia,ib->iab", law, mechanism.label_probabilities(counts)).reshape(len(counts), -1)
    moved = np.abs(counts[:, None, :] - counts[None, :, :]).sum(axis=2) // 2
    return max(hockey_stick(law[i], law[j], epsilon) for i, j in zip(*np.nonzero(moved <= overlap), strict=True))


def random_settings() -> list[tuple[int, int, float, float, int]]:
    generator = np.random.default_rng(0)
    settings = []
    for seed in range(SETTINGS):
        teachers = int(generator.integers(1, 8))
        overlap = int(generator.integers(1, teachers + 1))
        epsilon = float(10 ** generator.uniform(-1.5, 0.7))
        delta = float(10 ** generator.uniform(-7, -1))
        settings.append((teachers, overlap, epsilon, delta, seed))
    return settings


OWN_RANDOMNESS = {
    "gnmax-analytic": lambda e, d, r, k: GNMax.calibrated(PrivacyGuarantee(epsilon=e, delta=d), overlap=r),
    "gnmax-rdp": lambda e, d, r, k: GNMax.calibrated(PrivacyGuarantee(epsilon=e, delta=d), method="rdp", overlap=r),
    "confident": lambda e, d, r, k: ConfidentGNMax(
        threshold=0.7 * k, sigma_check=4 * r / e, sigma=4 * r / e, delta=d, overlap=r
    ),
    "laplace": lambda e, d, r, k: LNMax(scale=2 * r / e, overlap=r),
    "permute-and-flip": lambda e, d, r, k: PermuteAndFlip(epsilon=e, overlap=r),
    "exponential": lambda e, d, r, k: ExponentialMechanism(epsilon=e, overlap=r),
    "best-majority": lambda e, d, r, k: DaRRM(
        optimize_noise(
            teachers=k,
            teacher=PrivacyGuarantee(epsilon=math.inf),
            target=PrivacyGuarantee(epsilon=e, delta=d),
            overlap=r,
        )
    ),
}


@pytest.mark.parametrize("make", OWN_RANDOMNESS.values(), ids=OWN_RANDOMNESS.keys())
def test_own_randomness_keeps_its_promise(make) -> None:
    for teachers, overlap, epsilon, delta, _ in random_settings():
        mechanism = make(epsilon, delta, overlap, teachers)
        claim = mechanism.guarantee(overlap=overlap)
        if not isinstance(mechanism, ConfidentGNMax):
            # The last one is found by rounding up what the certified thresholds give.
            assert claim.epsilon <= epsilon + (1e-11 if isinstance(mechanism, DaRRM) else 0)
            assert claim.delta <= delta
        assert worst_loss_of_own_randomness(mechanism, teachers, overlap, claim.epsilon) <= claim.delta + LAW_ERROR


@pytest.mark.parametrize("name", [name for name in OWN_RANDOMNESS if name != "best-majority"])
def test_own_randomness_keeps_its_promise_for_three_classes(name: str) -> None:
    for teachers, overlap, epsilon, delta, _ in random_settings()[:12]:
        mechanism = OWN_RANDOMNESS[name](epsilon, delta, overlap, teachers)
        claim = mechanism.guarantee(overlap=overlap)
        assert (
            worst_loss_of_own_randomness(mechanism, teachers, overlap, claim.epsilon, classes=3)
            <= claim.delta + LAW_ERROR
        )


@pytest.mark.parametrize("make", OWN_RANDOMNESS.values(), ids=OWN_RANDOMNESS.keys())
def test_two_labels_keep_their_promise_together(make) -> None:
    for teachers, overlap, epsilon, delta, _ in random_settings()[:12]:
        mechanism = make(epsilon, delta, overlap, teachers)
        claim = mechanism.guarantee(labels=2, delta=delta, overlap=overlap)
        assert (
            worst_loss_of_own_randomness(mechanism, teachers, overlap, claim.epsilon, labels=2)
            <= claim.delta + LAW_ERROR
        )


def test_two_gaussian_labels_are_one_gaussian() -> None:
    target = PrivacyGuarantee(epsilon=0.7, delta=1e-4)
    mechanism = GNMax.calibrated(target, labels=2)
    assert 0.699 < mechanism.guarantee(labels=2).epsilon <= 0.7
    assert worst_loss_of_own_randomness(mechanism, 5, 1, 0.7, labels=2) <= 1e-4
    assert math.isclose(mechanism.sigma, GNMax.calibrated(target).sigma * math.sqrt(2), rel_tol=1e-9)


@pytest.mark.parametrize("factor", [0.5, 0.9])
def test_too_little_noise_is_caught(factor: float) -> None:
    honest = GNMax.calibrated(PrivacyGuarantee(epsilon=1.0, delta=1e-5))
    # With 60 teachers some counts are so far apart that the label reveals nearly all that the noisy counts do.
    assert 0.8e-5 < worst_loss_of_own_randomness(honest, 60, 1, 1.0) <= 1e-5
    assert worst_loss_of_own_randomness(GNMax(sigma=factor * honest.sigma), 60, 1, 1.0) > 1e-5


def test_pure_claims_are_tight() -> None:
    """Where the winner trails after the move the ratio is exp(epsilon): less noise would break the claim."""
    for mechanism in (PermuteAndFlip(epsilon=1.0), ExponentialMechanism(epsilon=1.0)):
        counts = np.array([[8, 0], [7, 1]])
        law = mechanism.label_probabilities(counts)[:, 1]
        assert math.log(law[1] / law[0]) > 0.8
    counts = np.array([[40, 0], [39, 1]])
    law = PermuteAndFlip(epsilon=1.0).label_probabilities(counts)[:, 1]
    assert 1 - 1e-6 < math.log(law[1] / law[0]) <= 1


def vote_law(chances: np.ndarray) -> np.ndarray:
    law = np.ones(1)
    for chance in chances:
        law = np.convolve(law, [1 - chance, chance])
    return law


def corners(epsilon: float, delta: float) -> list[tuple[float, float]]:
    """The eight extreme pairs (p, p') of an (epsilon, delta)-DP vote."""
    tilt = (math.exp(epsilon) + delta) / (math.exp(epsilon) + 1)
    half = [(0.0, 0.0), (delta, 0.0), (tilt, 1 - tilt + delta - delta), (1.0, 1 - delta), (1.0, 1.0)]
    half[2] = (tilt, (1 - delta) / (math.exp(epsilon) + 1))
    return half + [(b, a) for a, b in half[1:4]]


def worst_label_loss(law_of_one: np.ndarray, teachers: int, epsilon: float, delta: float, total: float) -> float:
    """Over all multisets of the teachers' extreme pairs, r = K: hockey-stick divergence of one binary label."""
    worst = 0.0
    for pairs in itertools.combinations_with_replacement(corners(epsilon, delta), teachers):
        here, there = (vote_law(np.array(side)) @ law_of_one for side in zip(*pairs, strict=True))
        worst = max(worst, hockey_stick(np.array([here, 1 - here]), np.array([there, 1 - there]), total))
    return worst


@pytest.mark.slow
def test_labels_of_private_teachers_keep_their_promise() -> None:
    """DaRRM with certified gammas of both kinds and the noise-free majority: (m epsilon, m delta) on every setting."""
    generator = np.random.default_rng(1)
    for _ in range(SETTINGS):
        teachers = int(generator.choice([3, 4, 5]))
        epsilon, delta = float(10 ** generator.uniform(-1.5, 0)), float(10 ** generator.uniform(-6, -2))
        allowance = float(generator.uniform(1, teachers))
        counts = np.stack([teachers - np.arange(teachers + 1), np.arange(teachers + 1)], axis=1)
        target = PrivacyGuarantee(epsilon=allowance * epsilon, delta=allowance * delta)
        teacher = PrivacyGuarantee(epsilon=epsilon, delta=delta)
        optimal = DaRRM(optimize_noise(teachers=teachers, teacher=teacher, target=target))
        bounded = DaRRM(self_bounding_noise(teachers=teachers, allowance=allowance))
        plain = NoiseFreeMajority(classes=2)
        assert bounded.self_bounding_allowance() <= allowance
        for mechanism, m in (
            (optimal, allowance),
            (bounded, allowance),
            (plain, plain.self_bounding_allowance(teachers=teachers)),
        ):
            one = mechanism.label_probabilities(counts)[:, 1]
            assert worst_label_loss(one, teachers, epsilon, delta, m * epsilon) <= m * delta + LAW_ERROR


def test_a_wrong_gamma_breaks_the_promise() -> None:
    teacher = PrivacyGuarantee(epsilon=0.1, delta=1e-6)
    target = PrivacyGuarantee(epsilon=0.2, delta=2e-6)
    counts = np.stack([5 - np.arange(6), np.arange(6)], axis=1)
    noise = optimize_noise(teachers=5, teacher=teacher, target=target)
    right = DaRRM(noise).label_probabilities(counts)[:, 1]
    wrong = DaRRM(NoiseFunction(gamma=np.minimum(1.01 * noise.gamma, 1)), uncertified=True)
    assert worst_label_loss(right, 5, 0.1, 1e-6, 0.2) <= 2e-6
    assert worst_label_loss(wrong.label_probabilities(counts)[:, 1], 5, 0.1, 1e-6, 0.2) > 2e-6
