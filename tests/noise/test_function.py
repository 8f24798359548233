"""Noise functions against enumeration over subsets of teachers, the paper's numbers, and joint laws of two labels."""

from __future__ import annotations

import itertools
import json
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy import integrate, optimize

from darrm_torch import (
    BetaVotes,
    IndependentVotes,
    InvalidArgument,
    NoiseFunction,
    PrivacyGuarantee,
    PrivacyProfile,
    PrivacyViolation,
    SelfBoundingCertificate,
    SharedVotes,
    certify,
    constant_noise,
    double_subsampling_noise,
    optimize_noise,
    self_bounding_allowance,
    self_bounding_noise,
    subsampling_noise,
)
from darrm_torch.noise.grid import GRID
from darrm_torch.plots import plot_noise

MAJORITY_075_K11 = 0.9313449859619141  # Pr[Binomial(11, 3/4) >= 6] - Pr[<= 5]


def objective(noise: NoiseFunction) -> float:
    """sum_l w_l gamma(l) under the paper's prior, by the error: 1 - 2 E."""
    error, _ = noise.expected_error(IndependentVotes(mean=0.75))
    noise_free, _ = NoiseFunction(gamma=np.zeros(noise.teachers + 1)).expected_error(IndependentVotes(mean=0.75))
    return 2 * (noise_free - error)


# --- the value -------------------------------------------------------------------------------------------------------


def test_gamma_is_kept_on_the_grid_and_cannot_be_changed() -> None:
    source = np.array([0.9, 1 / 3, 1 / 3, 0.9])
    noise = NoiseFunction(gamma=source)
    source[:] = 0
    assert noise.teachers == 3
    assert np.all(noise.gamma * GRID == np.floor(noise.gamma * GRID))
    assert np.all((noise.gamma <= [0.9, 1 / 3, 1 / 3, 0.9]) & (noise.gamma > [0.899, 0.333, 0.333, 0.899]))
    with pytest.raises(ValueError, match="read-only"):
        noise.gamma[0] = 1.0
    assert noise.target is None
    assert noise.certificate is None


def test_label_probability() -> None:
    noise = NoiseFunction(gamma=[1.0, 0.5, 0.7, 0.5, 1.0])
    assert noise.label_probability([[0, 1], [2, 3]]).tolist() == [[0.0, 0.25], [0.5, 0.75]]  # a tie is a fair coin
    assert noise.label_probability(np.int32(4)) == 1.0
    for bad in ([5], [-1], [0.5], ["1"]):
        with pytest.raises(InvalidArgument, match=r"counts must be integers in \[0, 4\]"):
            noise.label_probability(bad)


def test_a_certificate_belongs_to_one_gamma() -> None:
    teacher = PrivacyGuarantee(epsilon=1.0)
    certificate = certify([0.5, 0.2, 0.2, 0.5], teachers=3, teacher=teacher, target=teacher)
    assert NoiseFunction(gamma=[0.5, 0.2, 0.2, 0.5], certificate=certificate).target == teacher
    with pytest.raises(PrivacyViolation, match="another noise function"):
        NoiseFunction(gamma=[1, 1, 1, 1], certificate=certificate)


def test_equality_is_that_of_gamma_and_certificate() -> None:
    noise = self_bounding_noise(teachers=5, allowance=2)
    assert noise == self_bounding_noise(teachers=5, allowance=2)
    assert noise != NoiseFunction(gamma=noise.gamma)
    assert noise != "noise"
    assert len({noise, self_bounding_noise(teachers=5, allowance=2)}) == 1


def test_error_is_the_enumeration() -> None:
    rng = np.random.default_rng(3)
    for teachers in (1, 4, 5):
        noise = NoiseFunction(gamma=subsampling_noise(teachers=teachers, allowance=1).gamma)
        for chances in rng.random((5, teachers)):
            label = majority = 0.0
            for votes in itertools.product((0, 1), repeat=teachers):
                weight = math.prod(p if v else 1 - p for p, v in zip(chances, votes, strict=True))
                label += weight * noise.label_probability(sum(votes))
                majority += weight * (1 + np.sign(2 * sum(votes) - teachers)) / 2
            assert noise.error(chances) == pytest.approx(abs(label - majority), abs=1e-14)
    assert noise.error(rng.random((2, 3, 5))).shape == (2, 3)
    for bad in (rng.random(4), [[2.0] * 5], 0.5, [math.nan] * 5):
        with pytest.raises(InvalidArgument, match="vote_probabilities must be"):
            noise.error(bad)


@pytest.mark.parametrize("prior", [SharedVotes(low=0.2, high=0.9), BetaVotes(a=2.0, b=3.0)])
@pytest.mark.parametrize("teachers", [4, 11])
def test_expected_error_of_shared_votes_is_the_integral(prior: SharedVotes | BetaVotes, teachers: int) -> None:
    noise = subsampling_noise(teachers=teachers, allowance=3)
    value, standard_error = noise.expected_error(prior)
    low, high = (prior.low, prior.high) if isinstance(prior, SharedVotes) else (0.0, 1.0)

    def density(p: float) -> float:
        if isinstance(prior, SharedVotes):
            return 1 / (high - low)
        return (
            p ** (prior.a - 1)
            * (1 - p) ** (prior.b - 1)
            / math.exp(math.lgamma(prior.a) + math.lgamma(prior.b) - math.lgamma(prior.a + prior.b))
        )

    integral, _ = integrate.quad(
        lambda p: density(p) * float(noise.error(np.full(teachers, p))), low, high, points=(0.5,), epsabs=1e-12
    )
    assert value == pytest.approx(integral, abs=1e-9)
    assert standard_error == 0.0


def test_expected_error_of_independent_votes() -> None:
    noise = subsampling_noise(teachers=5, allowance=1)
    exact, none = noise.expected_error(IndependentVotes(mean=0.75))
    assert none == 0.0
    # On one side of 1/2 the error is linear in the law: exact; a sample must agree within 5 standard errors (1e-6).
    sample = noise.error(IndependentVotes(mean=0.75).sample(5, 50_000, np.random.default_rng(7)))
    assert abs(sample.mean() - exact) < 5 * sample.std() / math.sqrt(50_000)
    # On both sides it is not; at K = 1 it is E |2 p - 1| (1 - gamma) / 2 = (1 - gamma) / 4 for p uniform on [0, 1].
    coin = NoiseFunction(gamma=[0.0, 0.0])
    value, standard_error = coin.expected_error(IndependentVotes(mean=0.5), samples=40_000)
    assert abs(value - 0.25) < 5 * standard_error
    assert standard_error == pytest.approx(math.sqrt(1 / 12) / 2 / math.sqrt(40_000), rel=0.05)
    assert coin.expected_error(IndependentVotes(mean=0.5), samples=40_000) == (value, standard_error)
    with pytest.raises(InvalidArgument, match="prior must be"):
        coin.expected_error(0.5)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="samples must be"):
        coin.expected_error(IndependentVotes(mean=0.5), samples=1)


# --- text ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "noise",
    [
        subsampling_noise(teachers=7, allowance=3),
        self_bounding_noise(teachers=7, allowance=1.7, overlap=3),
        optimize_noise(
            teachers=5,
            teacher=PrivacyProfile.from_dp_sgd([(12.0, 1 / 35, 175)]),
            target=PrivacyGuarantee(epsilon=0.1, delta=1e-4),
        ),
        optimize_noise(
            teachers=7,
            teacher=PrivacyProfile.from_guarantee(
                PrivacyGuarantee(epsilon=0.0, delta=0.1), PrivacyGuarantee(epsilon=0.3, delta=1e-5)
            ),
            target=PrivacyGuarantee(epsilon=0.3, delta=1e-5),
            overlap=2,
        ),
        optimize_noise(
            teachers=4, teacher=PrivacyGuarantee(epsilon=math.inf), target=PrivacyGuarantee(epsilon=0.3), shape="free"
        ),
    ],
    ids=["bare", "self-bounding", "DP-SGD", "profile", "non-private"],
)
def test_text_round_trip_bit_for_bit(noise: NoiseFunction) -> None:
    again = NoiseFunction.from_json(noise.to_json())
    assert again.gamma.tobytes() == noise.gamma.tobytes()
    assert again.certificate == noise.certificate
    assert again.to_json() == noise.to_json()


def test_text_that_overpromises_is_refused() -> None:
    for noise in (
        optimize_noise(
            teachers=5, teacher=PrivacyGuarantee(epsilon=0.3), target=PrivacyGuarantee(epsilon=0.5), overlap=3
        ),
        self_bounding_noise(teachers=5, allowance=2),
    ):
        plain = json.loads(noise.to_json())
        plain["gamma"] = [1.0] * 6
        with pytest.raises(PrivacyViolation):
            NoiseFunction.from_json(json.dumps(plain))


@pytest.mark.parametrize(
    "text", ["", "null", "[]", "{}", '{"gamma": [1, 1], "certificate": {"kind": "none"}}', '{"gamma": [1, 1]}', "\x00"]
)
def test_text_that_is_no_noise_function(text: str) -> None:
    with pytest.raises(InvalidArgument, match="text must be a noise function written by to_json"):
        NoiseFunction.from_json(text)


def test_text_of_a_newer_version_is_refused_by_name() -> None:
    plain = json.loads(self_bounding_noise(teachers=3, allowance=1).to_json())
    assert plain.pop("format") == 1
    assert NoiseFunction.from_json(json.dumps(plain)).certificate is not None  # a text without a number has format 1
    with pytest.raises(InvalidArgument, match=r"format must be 1 or older, got 2. A newer version of darrm-torch"):
        NoiseFunction.from_json(json.dumps(plain | {"format": 2}))


# --- the classical ones ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("teachers", [1, 4, 5, 7])
def test_subsampling_is_the_majority_of_a_random_subset(teachers: int) -> None:
    for allowance in range(1, teachers + 1):
        noise = subsampling_noise(teachers=teachers, allowance=allowance)
        for ones in range(teachers + 1):
            votes = [1] * ones + [0] * (teachers - ones)
            samples = list(itertools.combinations(votes, allowance))
            chance = Fraction(
                sum(2 if 2 * sum(s) > allowance else (2 * sum(s) == allowance) for s in samples), 2 * len(samples)
            )
            assert abs(Fraction(float(noise.label_probability(ones))) - chance) <= Fraction(teachers, GRID)


def test_even_subsamples_are_the_odd_ones_below() -> None:
    even, odd = subsampling_noise(teachers=11, allowance=4), subsampling_noise(teachers=11, allowance=3)
    assert np.array_equal(even.gamma, odd.gamma)


def test_double_subsampling_takes_twice_as_many() -> None:
    double = double_subsampling_noise(teachers=11, allowance=3)
    assert np.array_equal(double.gamma, subsampling_noise(teachers=11, allowance=5).gamma)
    for m in (6, 7, 11):
        assert np.all(double_subsampling_noise(teachers=11, allowance=m).gamma == 1)


def test_classical_objectives() -> None:
    assert objective(subsampling_noise(teachers=11, allowance=1)) == pytest.approx(0.5, abs=1e-12)
    assert objective(subsampling_noise(teachers=11, allowance=3)) == pytest.approx(0.6875, abs=1e-12)
    assert objective(double_subsampling_noise(teachers=11, allowance=3)) == pytest.approx(0.7930, abs=5e-5)
    assert objective(NoiseFunction(gamma=np.ones(12))) == pytest.approx(MAJORITY_075_K11, abs=1e-12)


@pytest.mark.parametrize("make", [subsampling_noise, double_subsampling_noise])
@pytest.mark.parametrize("allowance", [0, 12, 1.0, True, None])
def test_subsampling_checks_its_allowance(make: object, allowance: object) -> None:
    with pytest.raises(InvalidArgument, match=r"allowance must be an integer in \[1, 11\]"):
        make(teachers=11, allowance=allowance)  # type: ignore[operator]


def general_composition(epsilon: float, delta: float, slack: float, count: int) -> tuple[float, float]:
    """The paper's Theorem 2.3: (epsilon of the composition in units of epsilon, its delta)."""
    base = math.expm1(epsilon) / (math.exp(epsilon) + 1) * count
    root = math.sqrt(2 * count * math.log(math.e + math.sqrt(count * epsilon**2) / slack))
    other = math.sqrt(2 * count * math.log(1 / slack))
    return min(count, base + root, base + other), 1 - (1 - delta) ** count * (1 - slack)


# The paper's table of parameters for K = 35, eps = 0.1, Delta = 1e-5, delta' = 0.1 (appendix, general composition).
PAPER_GENERAL = [(10, 6.4521, 0.1001), (13, 7.5742, 0.1001), (15, 8.2708, 0.1001), (20, 9.8823, 0.1002)]


@pytest.mark.parametrize(("sample", "allowance", "delta"), PAPER_GENERAL)
def test_constant_noise_in_the_papers_general_composition(sample: int, allowance: float, delta: float) -> None:
    m, lost = general_composition(0.1, 1e-5, 0.1, sample)
    tau, composed_lost = general_composition(0.1, 1e-5, 0.1, 35)
    assert (round(m, 4), round(lost, 4)) == (allowance, delta)
    # The table prints lambda = 0.1003: the formula gives 0.100315.
    assert (round(tau, 4), round(composed_lost, 4)) == (14.0328, 0.1003)
    target = PrivacyGuarantee(epsilon=m * 0.1, delta=lost)
    noise = constant_noise(
        teachers=35,
        teacher=PrivacyGuarantee(epsilon=0.1, delta=1e-5),
        target=target,
        composed=PrivacyGuarantee(epsilon=tau * 0.1, delta=composed_lost),
    )
    e_m, e_tau = math.exp(target.epsilon), math.exp(tau * 0.1)
    lemma = (e_m - 1 + 2 * lost) / (2 * (e_tau - e_m + (1 + e_m) * composed_lost) / (e_tau + 1) + e_m - 1)
    assert np.allclose(noise.gamma, min(lemma, 1.0), rtol=1e-12)


def test_constant_noise_in_pure_privacy() -> None:
    teacher, target = PrivacyGuarantee(epsilon=0.1), PrivacyGuarantee(epsilon=0.3)
    noise = constant_noise(teachers=11, teacher=teacher, target=target)
    assert certify(noise.gamma, teachers=11, teacher=teacher, target=target).margin > 0
    assert np.all(constant_noise(teachers=3, teacher=teacher, target=PrivacyGuarantee(epsilon=0.5)).gamma == 1)
    free = constant_noise(teachers=3, teacher=PrivacyGuarantee(epsilon=math.inf), target=target)
    assert np.allclose(free.gamma, math.tanh(0.15), rtol=1e-12)  # randomized response on a bit
    with pytest.raises(InvalidArgument, match="teacher must be a PrivacyGuarantee"):
        constant_noise(teachers=3, teacher=0.1, target=target)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="composed must be a PrivacyGuarantee or None"):
        constant_noise(teachers=3, teacher=teacher, target=target, composed=0.1)  # type: ignore[arg-type]


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.floats(0.0, 3.0), st.floats(0.0, 0.3), st.floats(0.01, 3.0), st.floats(0.0, 0.3))
def test_constant_noise_keeps_its_promise(tau: float, lost: float, epsilon: float, delta: float) -> None:
    target, composed = PrivacyGuarantee(epsilon=epsilon, delta=delta), PrivacyGuarantee(epsilon=tau, delta=lost)
    noise = constant_noise(teachers=1, teacher=composed, target=target, composed=composed)
    # With K = 1 the majority is the teacher: the largest constant that can be certified is the lemma's.
    certify(noise.gamma * (1 - 1e-12), teachers=1, teacher=composed, target=target)
    if noise.gamma[0] < 1 - 1e-6:
        with pytest.raises(PrivacyViolation):
            certify(noise.gamma * (1 + 1e-9), teachers=1, teacher=composed, target=target)


# --- self-bounding ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("allowance", "gamma", "value"),
    [
        (1, [1 / 11, 3 / 11, 5 / 11, 7 / 11, 9 / 11, 1], 0.5),
        (2, [0.2, 0.52, 0.76, 0.92, 1, 1], 0.72666),
        (3, [1 / 3, 11 / 15, 14 / 15, 1, 1, 1], 0.83433),
        (4, None, 0.88801),
        (6, [1, 1, 1, 1, 1, 1], MAJORITY_075_K11),
        (7.5, [1, 1, 1, 1, 1, 1], MAJORITY_075_K11),
    ],
)
def test_self_bounding_at_eleven_teachers(allowance: float, gamma: list[float] | None, value: float) -> None:
    noise = self_bounding_noise(teachers=11, allowance=allowance)
    if gamma is not None:
        assert np.allclose(noise.gamma[6:], gamma, atol=1e-14)
    assert objective(noise) == pytest.approx(value, abs=5e-6)
    certificate = noise.certificate
    assert isinstance(certificate, SelfBoundingCertificate)
    assert (certificate.teachers, certificate.overlap, certificate.allowance) == (11, 11, allowance)
    assert certificate.margin >= 0
    assert noise.target is None


@pytest.mark.parametrize(("allowance", "value"), [(5, 0.96537), (10, 0.99841)])
def test_self_bounding_at_101_teachers(allowance: int, value: float) -> None:
    assert objective(self_bounding_noise(teachers=101, allowance=allowance)) == pytest.approx(value, abs=5e-6)


@pytest.mark.parametrize("allowance", [1.0, 1.3, 2.0, 3.7, 5.0])
def test_self_bounding_has_the_closed_form(allowance: float) -> None:
    noise, h = self_bounding_noise(teachers=11, allowance=allowance), 6
    for ones in range(h, 12):
        minority = max(h - allowance, 0) / (2 * h - allowance)
        for j in range(h, ones):
            minority *= max(1 - allowance / (11 - j), 0)
        assert noise.gamma[ones] == pytest.approx(1 - 2 * minority, abs=1e-14)


@pytest.mark.parametrize("teachers", [2, 5, 6, 9])
@pytest.mark.parametrize("allowance", [0.4, 1.0, 1.5, 2.5])
def test_self_bounding_is_the_best_by_linear_programming(teachers: int, allowance: float) -> None:
    for overlap in {1, 2, teachers}:
        noise = self_bounding_noise(teachers=teachers, allowance=allowance, overlap=overlap)
        half = (teachers + 1) // 2
        # Variables h(l), l > K/2; odd around K/2; nondecreasing; min(l, r) (h(l) - h(l-1)) <= m (1 + h(l)).
        h = np.zeros((teachers + 1, half))
        for votes in range(teachers + 1):
            if 2 * votes > teachers:
                h[votes, votes - teachers // 2 - 1] = 1
            elif 2 * votes < teachers:
                h[votes, (teachers - votes) - teachers // 2 - 1] = -1
        touched = np.minimum(np.arange(1, teachers + 1), overlap)[:, None]
        rows = np.concatenate([touched * (h[1:] - h[:-1]) - allowance * h[1:], h[:-1] - h[1:]])
        limits = np.concatenate([np.full(teachers, allowance), np.zeros(teachers)])
        for weights in (np.ones(half), np.eye(half)[0], np.eye(half)[-1]):  # the best in every direction at once
            best = optimize.linprog(-weights, A_ub=rows, b_ub=limits, bounds=(0, 1))
            assert weights @ noise.gamma[teachers // 2 + 1 :] == pytest.approx(-best.fun, abs=1e-8)


def test_self_bounding_at_ten_thousand_teachers() -> None:
    noise = self_bounding_noise(teachers=10_001, allowance=40)
    assert noise.certificate is not None
    assert objective(noise) > 0.9999999


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.integers(1, 40), st.floats(1e-6, 60), st.integers(1, 40))
def test_self_bounding_is_exactly_within_its_allowance(teachers: int, allowance: float, overlap: int) -> None:
    noise = self_bounding_noise(teachers=teachers, allowance=allowance, overlap=min(overlap, teachers))
    smallest = self_bounding_allowance(noise.gamma, teachers=teachers, overlap=min(overlap, teachers))
    assert smallest <= allowance
    if not np.all(noise.gamma[teachers // 2 + 1 :] == 1):
        assert smallest == pytest.approx(allowance, rel=1e-9)


@pytest.mark.parametrize("allowance", [0, -1, math.nan, math.inf, "2", None])
def test_self_bounding_checks_its_allowance(allowance: object) -> None:
    with pytest.raises(InvalidArgument, match="allowance must be a number"):
        self_bounding_noise(teachers=11, allowance=allowance)  # type: ignore[arg-type]


def joint_loss(noise: NoiseFunction, epsilon: float) -> float:
    """The exact loss of two labels from the same K pure teachers: all joint laws of each teacher's two votes.

    The extreme pairs of laws are "a with probability U, else b" and "a with probability V, else b" for votes a, b in
    {0,1}^2; by symmetry the worst event is that both labels are 0.
    """
    u = math.exp(epsilon) / (1 + math.exp(epsilon))
    votes = list(itertools.product((0, 1), repeat=2))
    teachers = noise.teachers
    reported = 1 - noise.label_probability(np.arange(teachers + 1))
    both = np.multiply.outer(reported, reported)
    worst = 0.0

    def grow(first: int, left: int, here: np.ndarray, there: np.ndarray) -> None:
        nonlocal worst
        if not left:
            lost, kept = (here * both).sum(), (there * both).sum()
            worst = max(worst, math.log(lost / kept) if kept > 0 else (math.inf if lost > 0 else 0.0))
            return
        for index in range(first, 16):
            a, b = votes[index // 4], votes[index % 4]
            moved = []
            for law, chance in ((here, u), (there, 1 - u)):
                new = np.zeros_like(law)
                for (i, j), p in ((a, chance), (b, 1 - chance)):
                    new[i:, j:] += p * law[: teachers + 1 - i, : teachers + 1 - j]
                moved.append(new)
            grow(index, left - 1, *moved)

    start = np.zeros((teachers + 1, teachers + 1))
    start[0, 0] = 1.0
    grow(0, teachers, start, start)
    return worst


@pytest.mark.parametrize("allowance", [0.5, 1.0, 1.5])
def test_two_self_bounding_labels_add_up(allowance: float) -> None:
    for epsilon in (0.1, 1.0, 3.0):
        noise = self_bounding_noise(teachers=3, allowance=allowance)
        assert joint_loss(noise, epsilon) <= 2 * allowance * epsilon * (1 + 1e-12)


@pytest.mark.parametrize("allowance", [1.0, 1.5, 2.2])
def test_two_self_bounding_labels_of_five_teachers_add_up(allowance: float) -> None:
    noise = self_bounding_noise(teachers=5, allowance=allowance)
    assert joint_loss(noise, 0.5) <= 2 * allowance * 0.5 * (1 + 1e-12)


def test_two_labels_of_the_optimum_for_one_do_not_add_up() -> None:
    teacher = PrivacyGuarantee(epsilon=3.0)
    noise = optimize_noise(teachers=3, teacher=teacher, target=teacher, shape="free")
    assert joint_loss(noise, 3.0) / 3.0 == pytest.approx(2.016077, abs=1e-5)


def test_a_tie_does_not_look_like_never_the_majority() -> None:
    even, odd = NoiseFunction(gamma=[1, 0.5, 0, 0.5, 1]), NoiseFunction(gamma=[1, 0.5, 0.5, 1])
    assert "2 votes are a tie, and a fair coin decides" in repr(even)
    assert "tie" not in repr(odd)
    assert "at a tie a fair coin decides" in even.to_json()
    assert "tie" not in odd.to_json()
    assert NoiseFunction.from_json(even.to_json()) == even
    axes = pytest.importorskip("matplotlib.figure").Figure().add_subplot()
    (line,) = plot_noise(even, axes=axes).get_lines()
    assert line.get_xdata().tolist() == [0, 1, 3, 4]
