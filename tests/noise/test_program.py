"""The optimum against independently enumerated ones, the paper's numbers, and every edge of the input."""

from __future__ import annotations

import itertools
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import highspy
import numpy as np
import pytest
from scipy import optimize

from darrm_torch import (
    BetaVotes,
    DarrmError,
    IndependentVotes,
    InvalidArgument,
    NoiseFunction,
    PrivacyGuarantee,
    PrivacyProfile,
    PrivacyViolation,
    SharedVotes,
    certify,
    constant_noise,
    optimize_noise,
    self_bounding_noise,
    subsampling_noise,
)
from darrm_torch.noise.priors import majority_lead, vote_law
from darrm_torch.noise.regions import Region

REFERENCE = json.loads((Path(__file__).parents[1] / "reference" / "noise_optima.json").read_text())["cases"]


def guarantee(epsilon: Any, delta: float = 0.0) -> PrivacyGuarantee:
    return PrivacyGuarantee(epsilon=float(epsilon), delta=delta)


def fold(delta: float, count: float) -> float:
    return 1 - (1 - delta) ** count


def upper_half(noise: NoiseFunction) -> np.ndarray:
    return noise.gamma[noise.teachers // 2 + 1 :]


def objective(noise: NoiseFunction, mean: float = 0.75) -> float:
    return float(majority_lead(IndependentVotes(mean=mean).law(noise.teachers)) @ upper_half(noise))


@pytest.mark.parametrize(
    "case", REFERENCE, ids=lambda c: f"{c['K']}-{c['shape']}-r{c['overlap']}-{c['teacher']}-{c['target'][0]:g}"
)
def test_optima_of_the_reference(case: dict[str, Any]) -> None:
    noise = optimize_noise(
        teachers=case["K"],
        teacher=PrivacyProfile.from_guarantee(*(guarantee(*point) for point in case["teacher"])),
        target=guarantee(*case["target"]),
        overlap=case["overlap"],
        shape=case["shape"],
        prior=IndependentVotes(mean=case["prior_mean"]),
    )
    assert objective(noise, case["prior_mean"]) == pytest.approx(case["objective"], abs=1e-7)
    certificate = noise.certificate
    assert certificate is not None
    assert certificate.optimality_gap is not None
    assert objective(noise) + certificate.optimality_gap >= case["objective"] - 1e-9
    assert certificate.optimality_gap < 1e-7


# Unique optima; the paper prints the free one of its main setting, for m = 3, to four digits.
UNIQUE = [
    ("free", 1e-5, 1, [1 / 11, 3 / 11, 5 / 11, 7 / 11, 9 / 11, 1]),
    ("free", 1e-5, 3, [0.9392, 0.5423, 1, 1, 0.9777, 1]),
    ("free", 1e-5, 7, [1, 1, 1, 1, 1, 1]),
    ("monotone", 0.0, 3, [0.7078, 0.7078, 0.9266, 1, 1, 1]),
]


@pytest.mark.parametrize(("shape", "delta", "m", "gamma"), UNIQUE)
def test_the_papers_optima(shape: str, delta: float, m: int, gamma: list[float]) -> None:
    noise = optimize_noise(
        teachers=11, teacher=guarantee(0.1, delta), target=guarantee(m * 0.1, fold(delta, m)), shape=shape
    )
    assert np.allclose(upper_half(noise), gamma, atol=5e-5)


@pytest.mark.parametrize(
    ("m", "best", "papers"), [(1, 0.371, 0.100), (3, 0.872, 0.297), (5, 0.994, 0.489), (7, 1.0, 0.672)]
)
def test_the_best_constant_is_far_above_the_papers(m: int, best: float, papers: float) -> None:
    """And no larger constant is certified; the two are those of the same eleven teachers and target."""
    teacher, target = guarantee(0.1, 1e-5), guarantee(m * 0.1, m * 1e-5)
    noise = optimize_noise(teachers=11, teacher=teacher, target=target, shape="constant")
    assert np.ptp(noise.gamma) == 0
    assert noise.gamma[0] == pytest.approx(best, abs=5e-4)
    assert noise.certificate.target == target
    assert noise.certificate.optimality_gap < 1e-11
    if best < 1:
        with pytest.raises(PrivacyViolation):
            certify(noise.gamma * (1 + 1e-9), teachers=11, teacher=teacher, target=target)
    assert constant_noise(teachers=11, teacher=teacher, target=target).gamma[0] == pytest.approx(papers, abs=5e-4)
    monotone = optimize_noise(teachers=11, teacher=teacher, target=target)
    assert objective(monotone) >= objective(noise) - 1e-12


def test_the_best_constant_of_an_even_number_and_of_any_prior() -> None:
    teacher, target = guarantee(0.5), guarantee(0.7)
    noise = optimize_noise(teachers=4, teacher=teacher, target=target, shape="constant", overlap=2)
    assert noise.gamma[2] == 0
    assert len(set(noise.gamma.tolist())) == 2
    for prior in (BetaVotes(a=1.6, b=0.4), SharedVotes(low=0.5, high=1.0)):
        other = optimize_noise(teachers=4, teacher=teacher, target=target, shape="constant", overlap=2, prior=prior)
        assert np.array_equal(other.gamma, noise.gamma)


def test_at_allowance_one_subsampling_is_optimal() -> None:
    noise = optimize_noise(teachers=11, teacher=guarantee(0.1), target=guarantee(0.1), shape="free")
    assert np.allclose(noise.gamma, subsampling_noise(teachers=11, allowance=1).gamma, atol=1e-9)


@pytest.mark.parametrize("m", [10, 20, 40, 60, 80])
def test_101_teachers_in_pure_privacy(m: int) -> None:
    teacher, target = guarantee(0.1), guarantee(m * 0.1)
    free = optimize_noise(teachers=101, teacher=teacher, target=target, shape="free")
    monotone = optimize_noise(teachers=101, teacher=teacher, target=target)
    assert objective(free) >= objective(monotone) - 1e-7
    assert objective(monotone) > objective(subsampling_noise(teachers=101, allowance=m))
    assert objective(monotone) >= objective(self_bounding_noise(teachers=101, allowance=m)) - 1e-7
    if m >= 60:
        assert np.all(upper_half(monotone) == 1)


def general_composition(count: int) -> PrivacyGuarantee:
    """The paper's Theorem 2.3 for eps = 0.1, Delta = 1e-5, slack 0.1."""
    base = math.expm1(0.1) * 0.1 / (math.exp(0.1) + 1) * count
    logs = (math.log(math.e + math.sqrt(count * 0.01) / 0.1), math.log(10))
    epsilon = min([count * 0.1, *(base + 0.1 * math.sqrt(2 * count * log) for log in logs)])
    return guarantee(epsilon, 1 - (1 - 1e-5) ** count * 0.9)


@pytest.mark.parametrize("sample", [10, 13, 15, 20])
def test_35_teachers_in_the_papers_general_composition(sample: int) -> None:
    teacher, target = guarantee(0.1, 1e-5), general_composition(sample)
    optimum = optimize_noise(teachers=35, teacher=teacher, target=target)
    constant = constant_noise(teachers=35, teacher=teacher, target=target, composed=general_composition(35))
    assert objective(optimum) > objective(constant)
    assert objective(optimum) > objective(subsampling_noise(teachers=35, allowance=sample))


def test_overlap_and_profile_only_help() -> None:
    points = (guarantee(0.0, 0.0126), guarantee(0.02, 0.005), guarantee(0.05, 0.001), guarantee(0.0751, 1e-4))
    target = guarantee(0.15, 3e-4)
    profiles = [PrivacyProfile.from_guarantee(*points[-n:]) for n in (1, 2, 3, 4)]
    values = [objective(optimize_noise(teachers=11, teacher=profile, target=target)) for profile in profiles]
    assert values == sorted(values)
    assert values[-1] > values[0] + 0.1
    values = [objective(optimize_noise(teachers=11, teacher=points[-1], target=target, overlap=r)) for r in (11, 5, 2)]
    assert values == sorted(values)


def test_a_privacy_profile_is_a_teacher() -> None:
    profile = PrivacyProfile.from_guarantee(guarantee(0.1, 1e-5))
    arguments: dict[str, Any] = {"teachers": 5, "target": guarantee(0.2, 2e-5)}
    noise = optimize_noise(teacher=profile, **arguments)
    assert noise.certificate is not None
    assert noise.certificate.teacher == profile.guarantees()
    assert objective(noise) >= objective(optimize_noise(teacher=guarantee(0.1, 1e-5), **arguments)) - 1e-8


# --- objectives ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("m", "error", "surrogate"), [(3, 0.0154, 0.0377), (5, 0.00015, 0.00098)])
def test_expected_error_under_the_uniform_prior(m: int, error: float, surrogate: float) -> None:
    prior = IndependentVotes(mean=0.5)
    arguments: dict[str, Any] = {"teachers": 11, "teacher": guarantee(0.1), "target": guarantee(m * 0.1)}
    noise = optimize_noise(**arguments, shape="free", prior=prior, objective="expected_error")
    value, standard_error = noise.expected_error(prior)
    assert value == pytest.approx(error, rel=0.02)
    assert standard_error < 0.02 * error
    of_surrogate, _ = optimize_noise(**arguments, shape="free").expected_error(prior)
    assert of_surrogate == pytest.approx(surrogate, rel=0.02)
    if m == 3:
        assert np.allclose(upper_half(noise), [1, 1, 1, 0.51, 0.23, 0.28], atol=0.02)
    assert noise == optimize_noise(**arguments, shape="free", prior=prior, objective="expected_error")


@pytest.mark.parametrize("prior", [SharedVotes(low=0.0, high=1.0), BetaVotes(a=2.0, b=2.0), IndependentVotes(mean=0.8)])
def test_expected_error_is_minimal_among_rivals(prior: Any) -> None:
    arguments: dict[str, Any] = {"teachers": 11, "teacher": guarantee(0.1), "target": guarantee(0.3)}
    best, _ = optimize_noise(**arguments, shape="free", prior=prior, objective="expected_error").expected_error(prior)
    rivals = [
        optimize_noise(**arguments, shape="free"),
        optimize_noise(**arguments, prior=prior, objective="expected_error"),
        self_bounding_noise(teachers=11, allowance=3),
    ]
    assert all(best <= rival.expected_error(prior)[0] + 1e-9 for rival in rivals)


@pytest.mark.parametrize(
    ("teachers", "teacher", "target", "mean"),
    [
        (11, guarantee(0.1), guarantee(0.15, 1e-5), 0.5),
        (5, guarantee(0.1), guarantee(0.05), 0.5),
        (5, guarantee(0.1, 1e-5), guarantee(0.05), 0.45),
    ],
)
def test_expected_error_where_dual_prices_could_be_large(
    teachers: int, teacher: PrivacyGuarantee, target: PrivacyGuarantee, mean: float
) -> None:
    """HiGHS gave up on these when the price of one of 3,000 samples was the unit of cost."""
    noise = optimize_noise(
        teachers=teachers, teacher=teacher, target=target, prior=IndependentVotes(mean=mean), objective="expected_error"
    )
    assert noise.certificate.optimality_gap < 1e-8
    assert noise.certificate.loss <= target.delta


def test_the_search_reports_its_progress() -> None:
    """Each round is one violated program: too much delta, and in the end hardly any."""
    reported: list[float] = []
    noise = optimize_noise(
        teachers=101, teacher=guarantee(0.1, 1e-5), target=guarantee(0.2, 1e-5), on_progress=reported.append
    )
    assert len(reported) > 1
    assert min(reported) > 0
    assert reported[-1] < 0.01 * reported[0]
    assert noise == optimize_noise(teachers=101, teacher=guarantee(0.1, 1e-5), target=guarantee(0.2, 1e-5))


@pytest.mark.parametrize("overlap", [1, 3])
def test_teachers_without_privacy_need_no_search(overlap: int) -> None:
    """All their worst cases are in the first program; one by one they would take as many rounds as half the votes."""
    reported: list[float] = []
    optimize_noise(
        teachers=101,
        teacher=guarantee(math.inf),
        target=guarantee(0.2, 1e-5),
        overlap=overlap,
        prior=SharedVotes(low=0.6, high=0.9),
        on_progress=reported.append,
    )
    assert len(reported) <= 2


def test_a_prior_that_favours_nobody_needs_the_expected_error() -> None:
    for prior in (IndependentVotes(mean=0.5), SharedVotes(low=0.0, high=1.0), BetaVotes(a=1.0, b=1.0)):
        with pytest.raises(InvalidArgument, match='objective="expected_error"'):
            optimize_noise(teachers=11, teacher=guarantee(0.1), target=guarantee(0.3), prior=prior)


def test_a_prior_and_its_mirror_image_give_the_same() -> None:
    arguments: dict[str, Any] = {"teachers": 11, "teacher": guarantee(0.1), "target": guarantee(0.3)}
    one, other = (optimize_noise(**arguments, prior=IndependentVotes(mean=mean)) for mean in (0.8, 0.2))
    assert np.allclose(one.gamma, other.gamma, atol=1e-8)


def test_where_the_prior_says_nothing_gamma_is_still_large() -> None:
    # Under this prior the counts near a tie have weights around 1e-60: they must not be left at zero.
    noise = optimize_noise(teachers=301, teacher=guarantee(0.1), target=guarantee(0.1), overlap=1)
    assert np.all(noise.gamma == 1)
    noise = optimize_noise(teachers=301, teacher=guarantee(0.5), target=guarantee(0.1), overlap=1)
    assert upper_half(noise)[0] > 0.1
    assert upper_half(noise)[30] > 0.9


# --- side by side ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("teachers", [5, 7])
def test_the_same_by_enumerating_all_constraints(teachers: int) -> None:
    teacher, target = guarantee(0.1, 1e-5), guarantee(0.25, 2e-5)
    corners = [(0.0, 0.0), (1.0, 1.0), *((float(p), float(q)) for p, q in Region(guarantees=(teacher,)).tilted)]
    chosen = np.array(list(itertools.combinations_with_replacement(range(8), teachers)))
    here, there = (majority_lead(vote_law(np.array(corners)[:, side][chosen])) for side in (0, 1))
    weights = majority_lead(IndependentVotes(mean=0.75).law(teachers))
    limit = math.expm1(0.25) + 2 * 2e-5
    rows = (here - math.exp(0.25) * there) / limit
    best = optimize.linprog(-weights, A_ub=rows, b_ub=np.ones(len(rows)), bounds=(0, 1))
    noise = optimize_noise(teachers=teachers, teacher=teacher, target=target, shape="free")
    assert objective(noise) == pytest.approx(-best.fun, abs=1e-7)


def test_it_is_deterministic() -> None:
    arguments: dict[str, Any] = {"teachers": 21, "teacher": guarantee(0.1, 1e-5), "target": guarantee(0.5, 5e-5)}
    assert optimize_noise(**arguments) == optimize_noise(**arguments)


# --- edges -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["monotone", "free"])
@pytest.mark.parametrize(
    ("teachers", "teacher", "target", "overlap", "gamma"),
    [
        (1, (0.5, 0.0), (0.25, 0.0), None, [math.tanh(0.125) / math.tanh(0.25)]),
        (1, (math.inf, 0.0), (0.25, 0.0), None, [math.tanh(0.125)]),
        (1, (math.inf, 0.0), (0.0, 0.01), None, [0.01]),
        (1, (0.5, 1.0), (0.0, 0.01), None, [0.01]),
        (2, (0.5, 0.0), (0.5, 0.0), None, [1.0]),
        (2, (math.inf, 0.0), (0.25, 0.0), 1, [1 - math.exp(-0.25)]),
        (3, (0.0, 0.1), (0.0, 0.01), 1, [0.1, 0.3]),
        (11, (0.1, 0.0), (1.1, 0.0), None, [1.0] * 6),
        (11, (0.1, 1e-5), (0.1, 1e-5), 1, [1.0] * 6),
        (5, (0.1, 0.0), (3 * 0.1, 0.0), 3, [1.0] * 3),
        (4, (0.0, 0.0), (0.0, 0.0), None, [1.0] * 2),
        (3, (math.inf, 0.0), (0.0, 0.0), None, [0.0] * 2),
        (4, (0.3, 0.01), (0.0, 0.0), 2, [0.0] * 2),
        (5, (math.inf, 0.0), (1.0, 1.0), None, [1.0] * 3),
        (5, (50.0, 1e-9), (50.0, 1e-9), 1, [1.0] * 3),
        (5, (800.0, 0.0), (900.0, 0.0), 1, [1.0] * 3),
    ],
)
def test_edges(
    teachers: int,
    teacher: tuple[float, float],
    target: tuple[float, float],
    overlap: int | None,
    gamma: list[float],
    shape: str,
) -> None:
    noise = optimize_noise(
        teachers=teachers, teacher=guarantee(*teacher), target=guarantee(*target), overlap=overlap, shape=shape
    )
    assert np.allclose(upper_half(noise), gamma, atol=2e-9)
    if 0 < gamma[0] < 1:
        assert not np.array_equal(upper_half(noise), gamma)
    if gamma[0] == 1:
        assert np.array_equal(upper_half(noise), gamma)


@pytest.mark.parametrize("target", [(0.0, 1e-20), (0.0, 5e-324), (1e-15, 1e-30), (0.0, 2e-14)], ids=str)
def test_a_budget_too_small_for_the_solver_leaves_the_coin(target: tuple[float, float]) -> None:
    """The votes could move 1e-14 of its chances; as they are they keep it where the teachers are as private."""
    label = PrivacyGuarantee(epsilon=target[0], delta=target[1])
    found = optimize_noise(teachers=5, teacher=PrivacyGuarantee(epsilon=0.1, delta=1e-5), target=label)
    assert found.gamma.max() < 1e-12
    assert found.certificate is not None
    private = PrivacyGuarantee(epsilon=target[0] / 10, delta=target[1] / 10)
    assert optimize_noise(teachers=5, teacher=private, target=label).gamma.max() > 0.99


def test_less_than_one_teachers_budget() -> None:
    # r = 1, m < 1: a linear recursion in the odds; below the teacher's own epsilon noise is needed, and little.
    noise = optimize_noise(teachers=11, teacher=guarantee(0.1), target=guarantee(0.05), overlap=1)
    assert upper_half(noise)[0] == pytest.approx(0.5003123698, abs=1e-8)


@pytest.mark.parametrize("epsilon", [1e-6, 1e-4, 20.0, 50.0])
def test_tiny_and_huge_epsilons(epsilon: float) -> None:
    noise = optimize_noise(teachers=5, teacher=guarantee(epsilon), target=guarantee(epsilon))
    if epsilon < 1:
        assert np.allclose(upper_half(noise), [0.2, 0.6, 1.0], atol=1e-5)
    else:
        assert noise.gamma.min() > 0.99
    assert noise.certificate is not None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("teachers", 0),
        ("teachers", -3),
        ("teachers", 2.5),
        ("teachers", math.nan),
        ("teacher", None),
        ("teacher", ()),
        ("teacher", [0.1]),
        ("target", None),
        ("target", (0.1, 0.0)),
        ("overlap", 0),
        ("overlap", 6),
        ("overlap", math.nan),
        ("prior", 0.75),
        ("prior", None),
        ("shape", "convex"),
        ("shape", None),
        ("objective", "utility"),
        ("objective", None),
    ],
)
def test_one_clear_error_for_bad_input(name: str, value: Any) -> None:
    arguments = {"teachers": 5, "teacher": guarantee(0.1), "target": guarantee(0.2), name: value}
    with pytest.raises(InvalidArgument, match=f"^{name} must be .*, got"):
        optimize_noise(**arguments)


def test_an_infinite_target_promises_nothing() -> None:
    with pytest.raises(InvalidArgument, match=r"target\.epsilon must be finite"):
        optimize_noise(teachers=5, teacher=guarantee(0.1), target=guarantee(math.inf))


@pytest.mark.parametrize("bad", [math.nan, -0.1])
def test_bad_guarantees_do_not_construct(bad: float) -> None:
    for arguments in ({"epsilon": bad}, {"epsilon": 0.1, "delta": bad}, {"epsilon": 0.1, "delta": 1.1}):
        with pytest.raises(InvalidArgument):
            PrivacyGuarantee(**arguments)


def test_the_solver_is_silent_and_light() -> None:
    code = (
        "import sys; from darrm_torch import optimize_noise, PrivacyGuarantee as G;"
        "optimize_noise(teachers=5, teacher=G(epsilon=.1), target=G(epsilon=.2));"
        "assert not {'torch', 'opacus', 'lightning', 'flint'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.slow
def test_large_problems() -> None:
    for arguments in (
        {"teachers": 41, "teacher": guarantee(0.1, 1e-5), "target": guarantee(0.5, fold(1e-5, 5)), "shape": "free"},
        {"teachers": 301, "teacher": guarantee(0.1, 1e-5), "target": guarantee(1.0, fold(1e-5, 10))},
        {"teachers": 1001, "teacher": guarantee(0.1, 1e-5), "target": guarantee(0.05, 1e-5), "overlap": 1},
    ):
        certificate = optimize_noise(**arguments).certificate
        assert certificate is not None
        assert certificate.margin >= 0
        assert certificate.optimality_gap < 1e-7


def test_a_stalled_simplex_restarts() -> None:
    # HiGHS 1.16 stops with kUnknown after the third round when it goes on from its own last basis.
    noise = optimize_noise(
        teachers=101,
        teacher=PrivacyGuarantee(epsilon=0.07631981721556315, delta=8.961230984421438e-05),
        target=PrivacyGuarantee(epsilon=0.2555, delta=3e-4),
    )
    assert noise.certificate.optimality_gap < 1e-7


def test_a_solver_that_finds_nothing_is_reported_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = highspy.HighsModelStatus.kUnknown
    monkeypatch.setattr(highspy._Highs, "getModelStatus", lambda self: unknown)
    with pytest.raises(DarrmError, match="HiGHS stopped with unknown"):
        optimize_noise(teachers=11, teacher=PrivacyGuarantee(epsilon=0.1), target=PrivacyGuarantee(epsilon=0.2))


def test_a_solver_that_needs_a_larger_tolerance_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    question = {"teachers": 11, "teacher": PrivacyGuarantee(epsilon=0.1), "target": PrivacyGuarantee(epsilon=0.2)}
    expected, real = optimize_noise(**question), highspy._Highs.getModelStatus

    def status(highs: highspy._Highs) -> highspy.HighsModelStatus:
        strict = highs.getOptionValue("primal_feasibility_tolerance")[1] < 1e-8
        return highspy.HighsModelStatus.kUnknown if strict else real(highs)

    monkeypatch.setattr(highspy._Highs, "getModelStatus", status)
    assert np.allclose(optimize_noise(**question).gamma, expected.gamma, atol=1e-6)
