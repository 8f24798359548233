"""The audit passes honest mechanisms and refutes dishonest ones. Seeds are fixed, so no test fails by chance."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from darrm_torch import (
    ConfidentGNMax,
    DaRRM,
    GNMax,
    InvalidArgument,
    LNMax,
    NoiseFreeMajority,
    NoiseFunction,
    PermuteAndFlip,
    PrivacyGuarantee,
    PrivacyViolation,
    RandomizedPlurality,
    SelfBoundingPlurality,
    VotePrivatePlurality,
    audit,
    certify,
    optimize_noise,
    self_bounding_noise,
)

TEACHER = PrivacyGuarantee(epsilon=0.3, delta=1e-5)
TARGET = PrivacyGuarantee(epsilon=0.6, delta=2e-5)
CONFIDENCE = 0.999  # a true claim is refuted with probability at most 0.001


def sabotaged(mechanism: DaRRM, gamma: np.ndarray) -> DaRRM:
    """The same claims with another gamma, as after a bug; it replaces a private field on purpose."""
    votes = np.arange(mechanism.teachers + 1)
    thresholds = 2**53 + np.sign(2 * votes - mechanism.teachers) * (gamma * 2**53).astype(np.int64)
    object.__setattr__(mechanism, "_thresholds", thresholds)
    return mechanism


def test_certified_noise_passes_at_its_worst_case() -> None:
    mechanism = DaRRM(optimize_noise(teachers=11, teacher=TEACHER, target=TARGET), insecure_seed=1)
    result = audit(mechanism, confidence=CONFIDENCE, samples=200_000, seed=1)
    assert result.claim == TARGET
    assert 0.85 * TARGET.epsilon < result.epsilon <= TARGET.epsilon  # the oracle names a case that is nearly tight
    assert result.worst_case == str(mechanism.certificate.worst_case)


def test_a_wrong_gamma_is_refuted() -> None:
    mechanism = DaRRM(optimize_noise(teachers=11, teacher=TEACHER, target=TARGET), insecure_seed=1)
    with pytest.raises(PrivacyViolation, match=r"not \(0.6, 2e-05\)-DP.*teachers that vote 1"):
        audit(sabotaged(mechanism, np.ones(12)), seed=1)


def test_self_bounding_noise_and_the_plain_majority_pass() -> None:
    target = PrivacyGuarantee(epsilon=0.9, delta=3e-5)
    bounded = DaRRM(self_bounding_noise(teachers=11, allowance=3.0), insecure_seed=1)
    case = certify(bounded.noise.gamma, teachers=11, teacher=TEACHER, target=target).worst_case
    assert audit(bounded, claim=target, worst_case=case, samples=200_000, seed=1).epsilon > 0.7
    plain = NoiseFreeMajority(insecure_seed=1)
    claim = PrivacyGuarantee(epsilon=6 * 0.3, delta=6e-5)
    case = certify(np.ones(12), teachers=11, teacher=TEACHER, target=claim).worst_case
    audit(plain, claim=claim, worst_case=case, samples=200_000, seed=1)
    up = 1 / (1 + math.exp(-0.3))
    tilted = [np.tile([1 - p, p], (11, 1)) for p in (up, 1 - up)]
    audit(plain, claim=claim, worst_case=tilted, samples=200_000, seed=1)
    with pytest.raises(PrivacyViolation):
        audit(plain, claim=TARGET, worst_case=tilted, seed=1)


@pytest.mark.parametrize(
    "mechanism",
    [
        GNMax.calibrated(PrivacyGuarantee(epsilon=0.5, delta=1e-3), teachers=11, insecure_seed=1),
        GNMax.calibrated(PrivacyGuarantee(epsilon=0.5, delta=1e-3), teachers=11, overlap=3, insecure_seed=1),
        ConfidentGNMax(threshold=8, sigma_check=4.0, sigma=4.0, delta=1e-3, teachers=11, insecure_seed=1),
        LNMax(scale=4.0, teachers=11, insecure_seed=1),
        PermuteAndFlip(epsilon=0.5, teachers=11, insecure_seed=1),
    ],
    ids=lambda mechanism: type(mechanism).__name__,
)
def test_private_counts_pass(mechanism) -> None:
    result = audit(mechanism, confidence=CONFIDENCE, samples=100_000)
    assert 0.05 < result.epsilon <= result.claim.epsilon
    assert "counts" in result.worst_case


@pytest.mark.parametrize(
    "mechanism",
    [
        pytest.param(GNMax(sigma=8.0, delta=1e-3, teachers=11, classes=10, insecure_seed=1), marks=pytest.mark.slow),
        RandomizedPlurality(epsilon=1.0, teachers=11, classes=10, insecure_seed=1),
        VotePrivatePlurality(teachers=11, classes=4, epsilon=1.0, insecure_seed=1),
    ],
    ids=lambda mechanism: type(mechanism).__name__,
)
def test_private_counts_of_more_than_two_classes_pass(mechanism) -> None:
    result = audit(mechanism, confidence=CONFIDENCE, samples=100_000, overlap=1)
    assert 0.05 < result.epsilon <= result.claim.epsilon
    claim = PrivacyGuarantee(epsilon=0.1 * result.claim.epsilon, delta=result.claim.delta)
    with pytest.raises((PrivacyViolation, InvalidArgument)) as refused:
        audit(mechanism, claim=claim, overlap=1)
    # The table is self-bounding too: the teachers may keep a claim that its own randomness does not.
    assert refused.type is (InvalidArgument if isinstance(mechanism, VotePrivatePlurality) else PrivacyViolation)


@pytest.mark.parametrize(
    "mechanism",
    [
        DaRRM(self_bounding_noise(teachers=11, allowance=3.0)),
        DaRRM(NoiseFunction(gamma=np.full(12, 0.5)), uncertified=True),
        SelfBoundingPlurality(teachers=11, classes=10, allowance=3.0),
        NoiseFreeMajority(teachers=11, classes=10),
    ],
    ids=lambda mechanism: type(mechanism).__name__,
)
def test_a_claim_that_rests_on_the_teachers_is_not_checked_on_fixed_votes(mechanism) -> None:
    with pytest.raises(InvalidArgument, match=r"^worst_case must be given.*rests on the teachers"):
        audit(mechanism, claim=PrivacyGuarantee(epsilon=0.9, delta=3e-5))


def test_a_wrong_sigma_is_refuted() -> None:
    target = PrivacyGuarantee(epsilon=0.5, delta=1e-5)
    honest = GNMax.calibrated(target, teachers=21, insecure_seed=1)
    audit(honest, claim=target, samples=200_000)
    with pytest.raises(PrivacyViolation, match="counts"):
        audit(GNMax(sigma=honest.sigma / 2, teachers=21, insecure_seed=1), claim=target)


# --- a fifth above the claim, and mistakes that need three classes ------------------------------------------------

CLAIMS = (0.05, 0.1, 0.5, 3.0, 14.0)


class Understated(RandomizedPlurality):
    """Labels drawn at 1.2 times the epsilon of the law and of the claim, from ``least`` classes on."""

    least = 2

    def _draw(self, counts: np.ndarray) -> np.ndarray:
        if counts.shape[1] >= self.least:
            object.__setattr__(self, "epsilon", 1.2 * self.epsilon)
        labels = super()._draw(counts)
        if counts.shape[1] >= self.least:
            object.__setattr__(self, "epsilon", self.epsilon / 1.2)
        return labels


class UnderstatedForThree(Understated):
    """The same, for three classes and more only."""

    least = 3


class NoiselessForThree(PermuteAndFlip):
    """Forgets its noise where three classes or more have votes; its law does not say so."""

    def _draw(self, counts: np.ndarray) -> np.ndarray:
        return np.where(np.count_nonzero(counts, axis=1) > 2, counts.argmax(axis=1), super()._draw(counts))


@pytest.mark.parametrize("claim", CLAIMS)
@pytest.mark.parametrize("kind", [RandomizedPlurality, PermuteAndFlip])
def test_a_claim_a_fifth_too_low_is_refuted_by_the_exact_law(kind, claim: float) -> None:
    mechanism = kind(epsilon=1.2 * claim, teachers=11, insecure_seed=1)
    with pytest.raises(PrivacyViolation, match="by the mechanism's own exact law epsilon is at least"):
        audit(mechanism, claim=PrivacyGuarantee(epsilon=claim), seed=1)


def test_missing_noise_for_three_classes_is_refuted() -> None:
    mechanism = NoiselessForThree(epsilon=0.5, teachers=11, insecure_seed=1)
    with pytest.raises(PrivacyViolation, match=r"with confidence 0.999.*counts \[\d+, \d+, \d+\] and"):
        audit(mechanism, samples=20_000, seed=1)


def best_power(draws: int, claim: float, truth: float, risk: float = 0.001) -> float:
    """The power of the best test, randomized, that sees how often the rare label came (Neyman-Pearson)."""
    rare = 1 / (1 + math.exp(truth))
    allowed, real = stats.binom(draws, math.exp(-claim) * (1 - rare)), stats.binom(draws, rare)
    hits = int(allowed.ppf(risk))  # fewer refute the claim, and so many with some probability
    return real.cdf(hits - 1) + (risk - allowed.cdf(hits - 1)) / allowed.pmf(hits) * real.pmf(hits)


def test_no_test_of_ten_million_draws_is_reliable_at_fourteen() -> None:
    assert best_power(10**7, 14.0, 16.8) == pytest.approx(0.716, abs=5e-4)
    assert best_power(14 * 10**6, 14.0, 16.8) == pytest.approx(0.969, abs=5e-4)
    assert best_power(10**7, 3.0, 3.6) > 1 - 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("claim", CLAIMS[:-1])
@pytest.mark.parametrize("kind", [Understated, UnderstatedForThree])
def test_labels_a_fifth_above_the_law_are_refuted(kind, claim: float) -> None:
    """By draws alone, at 99.9 % confidence and at most 1e7 of them.

    Not at 14: the label has a probability of e^-16.8 = 5e-8 on one dataset, and 1e7 draws in which it never comes, as
    six times in ten, are the best evidence there is; see the test above.
    """
    with pytest.raises(PrivacyViolation, match=r"with confidence 0.999"):
        audit(kind(epsilon=claim, teachers=11, insecure_seed=1), seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("claim", CLAIMS)
def test_a_tight_claim_passes(claim: float, seed: int) -> None:
    result = audit(RandomizedPlurality(epsilon=claim, teachers=11, insecure_seed=seed), samples=1_000_000, seed=seed)
    assert result.epsilon <= claim
    assert result.draws <= 2_000_010


def test_given_votes_are_used() -> None:
    plain = NoiseFreeMajority(insecure_seed=1)
    certain, moved = np.eye(2)[[0, 0, 1]], np.eye(2)[[0, 1, 1]]
    with pytest.raises(PrivacyViolation, match="epsilon is at least"):
        audit(plain, claim=PrivacyGuarantee(epsilon=5.0), worst_case=(certain, moved), samples=5000)
    same = audit(plain, claim=PrivacyGuarantee(epsilon=0.0, delta=0.01), worst_case=(certain, certain), samples=5000)
    assert same.epsilon == 0.0


def test_delta_is_allowed_for() -> None:
    """Label 1 with probability 0.1 here and never there: (0, 0.1)-DP, and (epsilon, 0)-DP for no epsilon."""
    plain, case = NoiseFreeMajority(insecure_seed=1), ([[0.9, 0.1]], [[1.0, 0.0]])
    assert audit(plain, claim=PrivacyGuarantee(epsilon=0.0, delta=0.11), worst_case=case, seed=1).epsilon == 0.0
    with pytest.raises(PrivacyViolation):
        audit(plain, claim=PrivacyGuarantee(epsilon=3.0, delta=0.05), worst_case=case, seed=1)


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"mechanism": "GNMax"}, "mechanism"),
        ({"claim": 1.0}, "claim"),
        ({"samples": 10**12}, "samples"),
        ({"seed": -1}, "seed"),
        ({"seed": "x"}, "seed"),
        ({"teachers": 10**7}, "worst_case"),
        ({"teachers": 10**400}, "worst_case"),
        ({"overlap": 10**400}, "overlap"),
        *[
            ({"worst_case": case}, "worst_case")
            for case in (
                3,
                "ab",
                [],
                (None, None),
                np.ones((3, 3, 2)) / 2,
                (np.ones((3, 2)) / 2, np.ones((3, 3)) / 3),
                (np.full((3, 2), np.nan),) * 2,
            )
        ],
    ],
)
def test_arguments_of_the_wrong_kind_are_one_clear_error(wrong, name: str) -> None:
    ask = {"mechanism": GNMax(sigma=1.0, delta=1e-5), "teachers": 3, "samples": 10} | wrong
    with pytest.raises(InvalidArgument, match=rf"^{name} must be"):
        audit(ask.pop("mechanism"), **ask)


def test_bad_arguments_are_one_clear_error() -> None:
    with pytest.raises(InvalidArgument, match=r"^claim must be given"):
        audit(NoiseFreeMajority())
    with pytest.raises(InvalidArgument, match=r"^teachers must be given"):
        audit(GNMax(sigma=1.0, delta=1e-5))
    with pytest.raises(InvalidArgument, match=r"^confidence"):
        audit(GNMax(sigma=1.0, delta=1e-5, teachers=3), confidence=math.nan)
    with pytest.raises(InvalidArgument, match=r"^worst_case"):
        audit(GNMax(sigma=1.0, delta=1e-5), worst_case=(np.ones((3, 2)), np.ones((3, 2))))


def test_pairs_of_counts_of_very_many_classes_are_not_made() -> None:
    with pytest.raises(InvalidArgument, match="worst_case must be given for more than 1000 classes"):
        audit(GNMax(sigma=4.0, classes=10**7), claim=PrivacyGuarantee(epsilon=0.5), teachers=3)
