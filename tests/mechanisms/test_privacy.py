"""Privacy by enumeration: exact laws on all neighbouring counts, or all neighbouring teachers, against the claims."""

from __future__ import annotations

import itertools
import math
import time

import numpy as np
import pytest

from darrm_torch import (
    ConfidentGNMax,
    DaRRM,
    ExponentialMechanism,
    GNMax,
    InvalidArgument,
    LNMax,
    NoiseFreeMajority,
    NoiseFunction,
    PermuteAndFlip,
    PrivacyGuarantee,
    UnprovenPrivacy,
    optimize_noise,
    self_bounding_noise,
)
from darrm_torch.noise.histograms import standings
from darrm_torch.noise.tables import noise_free_table

SETTINGS = 50
LAW_ERROR = 1e-12  # what label_probabilities promises


def hockey_stick(here: np.ndarray, there: np.ndarray, epsilon: float) -> float:
    return float(np.maximum(here - math.exp(epsilon) * there, 0).sum())


def all_counts(teachers: int, classes: int) -> np.ndarray:
    bars = itertools.combinations(range(teachers + classes - 1), classes - 1)
    return np.array([np.diff([-1, *bar, teachers + classes - 1]) - 1 for bar in bars])


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


@pytest.mark.parametrize("classes", [2, 3, 4])
def test_allowance_of_the_plain_plurality(classes: int) -> None:
    """The definition, term by term: sum over r teachers of (f - min f) <= m f, for all votes."""
    for teachers in (1, 2, 3, 4, 5, 6):
        counts = all_counts(teachers, classes)
        law = {
            tuple(c): p for c, p in zip(counts.tolist(), NoiseFreeMajority().label_probabilities(counts), strict=True)
        }
        for overlap in range(1, teachers + 1):
            claimed = NoiseFreeMajority(classes=classes).self_bounding_allowance(teachers=teachers, overlap=overlap)
            assert claimed <= NoiseFreeMajority().self_bounding_allowance(teachers=teachers, overlap=overlap)
            needed = max(_needed(law, votes, c, overlap) for votes in law for c in range(classes) if law[votes][c] > 0)
            assert math.isclose(needed, claimed)


@pytest.mark.parametrize(("classes", "most"), [(3, 22), (4, 14), (5, 12), (7, 10)])
def test_allowance_of_the_plain_plurality_is_that_of_its_table(classes: int, most: int) -> None:
    """In exact arithmetic, over all standings: also where K votes cannot make three classes tie."""
    for teachers in range(1, most + 1):
        table, free = noise_free_table(standings(teachers, classes)), NoiseFreeMajority(classes=classes)
        for overlap in range(1, teachers + 1):
            claimed = free.self_bounding_allowance(teachers=teachers, overlap=overlap)
            assert claimed == table.smallest_allowance(overlap)


def _needed(law, votes: tuple[int, ...], label: int, overlap: int) -> float:
    falls = []
    for k, number in enumerate(votes):
        least = law[votes][label]
        for w in range(len(votes)):
            if number and w != k:
                moved = list(votes)
                moved[k] -= 1
                moved[w] += 1
                least = min(least, law[tuple(moved)][label])
        falls += [law[votes][label] - least] * number
    return sum(sorted(falls, reverse=True)[:overlap]) / law[votes][label]


def test_a_gamma_without_certificate_is_refused() -> None:
    noise = NoiseFunction(gamma=[1, 0.5, 0.5, 1])
    with pytest.raises(UnprovenPrivacy, match="uncertified=True"):
        DaRRM(noise)
    mechanism = DaRRM(noise, uncertified=True)
    assert mechanism.certificate is None
    assert "no certificate" in mechanism.describe()["notes"][0]
    assert mechanism.describe()["parameters"]["certified"] is False


def test_only_a_noise_function_is_one() -> None:
    with pytest.raises(InvalidArgument, match="noise must be a NoiseFunction"):
        DaRRM(np.ones(4))


def test_darrm_draws_exactly_the_certified_gamma() -> None:
    noise = optimize_noise(
        teachers=11, teacher=PrivacyGuarantee(epsilon=0.1), target=PrivacyGuarantee(epsilon=0.3), shape="free"
    )
    mechanism = DaRRM(noise)
    thresholds = mechanism._thresholds
    votes = np.arange(12)
    assert thresholds.dtype == np.int64
    assert [int(t) for t in thresholds] == [
        2**53 + int(np.sign(2 * v - 11)) * int(g * 2**53) for v, g in zip(votes, noise.gamma, strict=True)
    ]
    with pytest.raises(ValueError, match="read-only"):
        thresholds[0] = 0
    # Of the 2**54 values of 54 bits exactly `threshold` give label 1: the last that does, and the first that does not.
    for vote in (1, 4, 6, 10):
        edge = int(thresholds[vote])
        words = np.array([((edge - 1) << 10) + 1023, edge << 10], dtype=np.uint64)
        mechanism._bits.words = lambda size, words=words: words[:size]
        assert mechanism.aggregate(np.array([[11 - vote, vote]] * 2)).tolist() == [1, 0]


def test_darrm_knows_its_teachers() -> None:
    mechanism = DaRRM(self_bounding_noise(teachers=5, allowance=2.0))
    assert (mechanism.teachers, mechanism.classes) == (5, 2)
    with pytest.raises(InvalidArgument, match="teachers must be 5"):
        mechanism.self_bounding_allowance(teachers=6)


def test_a_noise_function_that_is_certain_promises_nothing_itself() -> None:
    assert DaRRM(self_bounding_noise(teachers=5, allowance=2.0)).guarantee() is None
    assert NoiseFreeMajority().guarantee() is None
    constant = DaRRM(NoiseFunction(gamma=np.full(6, 0.5)), uncertified=True)
    assert math.isclose(constant.guarantee().epsilon, math.log(3), rel_tol=1e-12)
    assert constant.guarantee().epsilon >= math.log(3)


def test_many_teachers_take_no_time() -> None:
    """All pairs of 10,001 counts took 23 seconds and gigabytes; the worst pair lies a window apart."""
    teachers = 10_000
    gamma = np.abs(2 * np.arange(teachers + 1) - teachers) / (2 * teachers)
    mechanism = DaRRM(NoiseFunction(gamma=gamma), uncertified=True)
    start = time.process_time()
    found = [mechanism.guarantee(overlap=overlap).epsilon for overlap in (1, 700, teachers, 2 * teachers)]
    assert time.process_time() - start < 1
    chance = mechanism.noise.label_probability(np.arange(teachers + 1))
    exact = [np.log(chance[r:] / chance[: teachers + 1 - r]).max() for r in (1, 700, teachers, teachers)]
    np.testing.assert_allclose(found, exact, rtol=1e-12, atol=2.0**-45)  # what is added for rounding


def test_a_delta_above_all_chances_costs_nothing() -> None:
    fair = DaRRM(NoiseFunction(gamma=np.zeros(6)), uncertified=True)
    assert fair.guarantee(delta=0.95).epsilon <= 1e-12
