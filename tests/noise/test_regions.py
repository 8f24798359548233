"""Regions against their definition: half planes intersected in exact arithmetic, and sampled points."""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

import darrm_torch as dt
from darrm_torch import InvalidArgument, PrivacyGuarantee, PrivacyProfile, PrivacyViolation
from darrm_torch.noise import store
from darrm_torch.noise.grid import label_law
from darrm_torch.noise.priors import vote_law
from darrm_torch.noise.regions import (
    Corner,
    Region,
    growth_at_least,
    growth_at_most,
    teacher_profile,
    teacher_region,
)

guarantees = st.builds(
    PrivacyGuarantee,
    epsilon=st.one_of(st.floats(0, 6), st.sampled_from([0.0, 1e-6, 0.1, 50.0, math.inf])),
    delta=st.one_of(st.sampled_from([0.0, 1e-12, 0.999999, 1.0]), st.floats(0, 1)),
)


def region(*points: tuple[float, float]) -> Region:
    return Region(guarantees=tuple(PrivacyGuarantee(epsilon=e, delta=d) for e, d in points))


def exact_exp(epsilon: float, places: int = 60) -> Fraction:
    with localcontext() as context:
        context.prec = places
        return Fraction(Decimal(epsilon).exp())


def brute_vertices(points: tuple[PrivacyGuarantee, ...]) -> set[tuple[Fraction, Fraction]]:
    """Intersections of all pairs of lines that satisfy all half planes a p + b p' <= c."""
    planes = [(Fraction(s), Fraction(0), Fraction(max(s, 0))) for s in (1, -1)]
    planes += [(b, a, c) for a, b, c in planes]
    for point in points:
        growth = growth_at_most(point.epsilon)
        if math.isfinite(growth):
            e, d = Fraction(growth), Fraction(point.delta)
            planes += [(Fraction(1), -e, d), (-e, Fraction(1), d)]
            planes += [(e, Fraction(-1), d + e - 1), (Fraction(-1), e, d + e - 1)]
    found = set()
    for (a, b, c), (d, e, f) in itertools.combinations(planes, 2):
        if a * e != b * d:
            p, q = (c * e - b * f) / (a * e - b * d), (a * f - c * d) / (a * e - b * d)
            if all(x * p + y * q <= z for x, y, z in planes):
                found.add((p, q))
    # Intersections on an edge are not corners: drop those between two others.
    return {
        v
        for v in found
        if not any(
            (s[0] - v[0]) * (t[1] - v[1]) == (t[0] - v[0]) * (s[1] - v[1])
            and (s[0] - v[0]) * (t[0] - v[0]) + (s[1] - v[1]) * (t[1] - v[1]) < 0
            for s, t in itertools.combinations(found - {v}, 2)
        )
    }


@settings(deadline=None, derandomize=True, max_examples=75)
@given(st.lists(guarantees, min_size=1, max_size=3))
def test_corners_are_those_of_the_half_planes(points: list[PrivacyGuarantee]) -> None:
    ours = Region(guarantees=tuple(points))
    assert {*ours.tilted, Corner(Fraction(0), Fraction(0)), Corner(Fraction(1), Fraction(1))} == brute_vertices(
        tuple(points)
    )


@settings(deadline=None, derandomize=True, max_examples=100)
@given(st.lists(guarantees, min_size=1, max_size=4), st.floats(0, 1), st.floats(0, 1))
def test_chain_has_the_maximum_of_every_monotone_direction(
    points: list[PrivacyGuarantee], turn: float, there: float
) -> None:
    a, b, p_there = Fraction(turn), 1 - Fraction(turn), Fraction(there)
    limits = [Fraction(1)]
    for point in points:
        if point.epsilon <= 500:
            growth = exact_exp(point.epsilon) * (1 + Fraction(1, 10**58))
            limits += [
                growth * p_there + Fraction(point.delta),
                1 - (1 - p_there - Fraction(point.delta)) / growth,
            ]
    best = max(a * p - b * q for p, q in Region(guarantees=tuple(points)).chain)
    assert a * min(limits) - b * p_there <= best


def test_one_guarantee_has_the_corners_of_the_paper() -> None:
    e, d = 0.1, 1e-5
    chain = [(float(p), float(q)) for p, q in region((e, d)).chain]
    grown = math.exp(e)
    assert np.allclose(chain, [(d, 0), ((grown + d) / (grown + 1), (1 - d) / (grown + 1)), (1, 1 - d)], rtol=1e-14)
    assert len(region((e, d)).tilted) == 6
    assert len(region((e, 0.0)).tilted) == 2


@pytest.mark.parametrize(
    ("points", "chain"),
    [
        ([(math.inf, 0.0)], [(1, 0)]),
        ([(math.inf, 0.3)], [(1, 0)]),
        ([(1.0, 1.0)], [(1, 0)]),
        ([(0.0, 0.0)], [(0, 0), (1, 1)]),
        ([(0.0, 0.25)], [(0.25, 0), (1, 0.75)]),
        ([(700.0, 0.0)], [(1, 0)]),
    ],
)
def test_degenerate_regions(points: list[tuple[float, float]], chain: list[tuple[float, float]]) -> None:
    assert [(float(p), float(q)) for p, q in region(*points).chain] == chain


def test_redundant_points_drop_out() -> None:
    assert region((0.1, 1e-5), (0.2, 1e-5), (0.1, 1e-4), (math.inf, 0.0)).chain == region((0.1, 1e-5)).chain
    assert len(region((0.0, 0.0126), (0.0852, 3.78e-5)).chain) == 4


@pytest.mark.parametrize("epsilon", [0.0, 1e-12, 1e-6, 0.1, 1.0, 50.0, 499.0])
def test_growth_is_bracketed(epsilon: float) -> None:
    exact = exact_exp(epsilon)
    low, high = growth_at_least(epsilon), growth_at_most(epsilon)
    assert Fraction(low) <= exact <= Fraction(high)
    assert high - low <= 4 * math.ulp(low)


def test_huge_epsilons_are_read_on_the_safe_side() -> None:
    assert growth_at_most(800.0) == math.inf
    assert growth_at_least(math.inf) == growth_at_least(500.0) < math.inf


# --- the argument `teacher` ------------------------------------------------------------------------------------------

NOTHING = PrivacyGuarantee(epsilon=math.inf)
UNLIKE = tuple(PrivacyGuarantee(epsilon=e, delta=d) for e, d in ((0.1, 1e-5), (0.3, 0.0), (0.2, 1e-6)))
WEAKEST = PrivacyGuarantee(epsilon=0.3, delta=1e-5)
TARGET = PrivacyGuarantee(epsilon=0.35, delta=1e-5)


def plotted(teacher: Any) -> list[Any]:
    from darrm_torch import plot_label_profile

    axes = plot_label_profile(dt.NoiseFunction(gamma=np.full(4, 0.5)), teacher, points=4)
    return [np.nan_to_num(line.get_xydata()).tolist() for line in axes.get_lines()]


# Each public function with an argument `teacher`, for three teachers; what comes out can be compared.
CALLS: dict[str, Callable[[Any], Any]] = {
    "optimize_noise": lambda teacher: dt.optimize_noise(teachers=3, teacher=teacher, target=TARGET),
    "fetch_noise": lambda teacher: dt.fetch_noise(teachers=3, teacher=teacher, target=TARGET),
    "certify": lambda teacher: dt.certify(np.full(4, 0.25), teachers=3, teacher=teacher, target=TARGET),
    "label_profile": lambda teacher: dt.label_profile(np.ones(4), teachers=3, teacher=teacher)(0.35),
    "constant_noise": lambda teacher: dt.constant_noise(teachers=3, teacher=teacher, target=TARGET),
    "plan": lambda teacher: dt.plan(teachers=3, teacher=teacher, label_target=TARGET).rows,
    "strongest_mechanism": lambda teacher: dt.strongest_mechanism(
        "self-bounding", teachers=3, classes=2, teacher=teacher, label_target=TARGET
    ),
    "plot_label_profile": plotted,
}


@pytest.fixture(autouse=True)
def _own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store.platformdirs, "user_cache_dir", lambda name: str(tmp_path / name))


# Exact prices, which take one guarantee and nothing else.
ONE_GUARANTEE: dict[str, Callable[[Any], Any]] = {
    "exact_self_bounding_delta": lambda teacher: dt.exact_self_bounding_delta(teacher, 0.1, teachers=3, allowance=1.0),
    "exact_self_bounding_epsilon": lambda teacher: dt.exact_self_bounding_epsilon(
        teacher, 1e-5, teachers=3, allowance=1.0
    ),
}


def test_every_public_function_with_a_teacher_is_tried() -> None:
    functions = {name: getattr(dt, name) for name in dt.__all__ if inspect.isfunction(getattr(dt, name))}
    with_teacher = {name for name, call in functions.items() if "teacher" in inspect.signature(call).parameters}
    assert with_teacher == {*CALLS, *ONE_GUARANTEE}


@pytest.mark.parametrize("call", ONE_GUARANTEE.values(), ids=ONE_GUARANTEE.keys())
def test_where_one_guarantee_is_asked_a_sequence_is_refused(call: Callable[[Any], Any]) -> None:
    for teacher in (UNLIKE, [WEAKEST] * 3):
        with pytest.raises(InvalidArgument, match=r"^teacher must be a PrivacyGuarantee"):
            call(teacher)


@pytest.mark.parametrize(
    "call",
    [pytest.param(call, id=name, marks=[pytest.mark.slow] if name == "plan" else []) for name, call in CALLS.items()],
)
def test_a_sequence_is_one_promise_for_each_teacher_and_stands_for_the_weakest(call: Callable[[Any], Any]) -> None:
    expected = call(PrivacyProfile.from_guarantee(WEAKEST))
    if call in (CALLS["plan"], plotted):  # priced for the teachers as they are
        expected = call(UNLIKE)
    mixed = [UNLIKE[0], PrivacyProfile.from_guarantee(UNLIKE[1]), UNLIKE[2]]
    for teacher in (UNLIKE, list(UNLIKE), (one for one in UNLIKE), UNLIKE[::-1], mixed):
        assert call(teacher) == expected
    assert call([WEAKEST] * 3) == call(PrivacyProfile.from_guarantee(WEAKEST))


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
@pytest.mark.parametrize("teacher", [UNLIKE[:1], UNLIKE[:2], [*UNLIKE, WEAKEST]])
def test_a_sequence_of_another_length_is_refused(call: Callable[[Any], Any], teacher: Any) -> None:
    cure = r"(?s)^teacher must be .* each of 3 teachers, got \(.*PrivacyProfile\.from_guarantee\(g1, g2, \.\.\.\)$"
    with pytest.raises(InvalidArgument, match=cure):
        call(teacher)


def true_loss(gamma: Any) -> float:
    """The largest loss of one label of three teachers that keep one promise of ``UNLIKE`` each, by enumeration."""
    fixed = [Corner(Fraction(0), Fraction(0)), Corner(Fraction(1), Fraction(1))]
    cases = itertools.product(*([*Region(guarantees=(promise,)).tilted, *fixed] for promise in UNLIKE))
    chances = np.array([list(zip(*case, strict=True)) for case in cases], dtype=np.float64)  # (cases, 2, 3)
    return float((vote_law(chances) @ label_law(np.asarray(gamma)) @ [1, -math.exp(TARGET.epsilon)]).max())


def test_unlike_teachers_are_never_certified_without_noise() -> None:
    """Without noise the loss is .044, and the target allows 1e-5: these promises do not all hold for each teacher."""
    assert true_loss(np.ones(4)) == pytest.approx(0.044, abs=5e-4)
    for solve in (dt.optimize_noise, dt.fetch_noise):
        noise = solve(teachers=3, teacher=UNLIKE, target=TARGET)
        assert not np.all(noise.gamma == 1)
        assert true_loss(noise.gamma) <= TARGET.delta
        assert noise.certificate is not None
        assert noise.certificate.teacher == (WEAKEST,)
    assert true_loss(dt.constant_noise(teachers=3, teacher=UNLIKE, target=TARGET).gamma) <= TARGET.delta
    with pytest.raises(PrivacyViolation):
        dt.certify(np.ones(4), teachers=3, teacher=UNLIKE, target=TARGET)
    assert dt.label_profile(np.ones(4), teachers=3, teacher=UNLIKE)(TARGET.epsilon) >= true_loss(np.ones(4))
    for row in dt.plan(teachers=3, teacher=UNLIKE, label_target=TARGET).rows:
        if isinstance(row.mechanism, dt.DaRRM) and row.meets:
            assert true_loss(row.mechanism.noise.gamma) <= TARGET.delta + 1e-12


@settings(deadline=None, derandomize=True, max_examples=100)
@given(st.lists(guarantees, min_size=1, max_size=5))
def test_what_is_assumed_of_all_teachers_holds_for_each(promises: list[PrivacyGuarantee]) -> None:
    kept = teacher_profile(promises, len(promises)).guarantees()
    for promise in promises:
        own = PrivacyProfile.from_guarantee(promise)
        assert all(own.delta(point.epsilon) <= point.delta for point in kept if math.isfinite(point.epsilon))


@settings(deadline=None, derandomize=True, max_examples=100)
@given(st.lists(guarantees, min_size=1, max_size=5))
@example([PrivacyGuarantee(epsilon=2.0**-55), PrivacyGuarantee(epsilon=2.0**-55, delta=1 - 1.5e-8)])
def test_the_points_of_a_profile_hold_at_once(points: list[PrivacyGuarantee]) -> None:
    profile = PrivacyProfile.from_guarantee(*points)
    assert teacher_region(profile, 3).chain == Region(guarantees=tuple(points)).chain
    assert teacher_region(profile.compose(2), 3).guarantees == profile.compose(2).guarantees()


def test_the_error_for_a_pair_of_numbers_shows_the_guarantee() -> None:
    with pytest.raises(InvalidArgument, match=r"got \(8, 1e-05\)\. Write PrivacyGuarantee\(epsilon=8, delta=1e-05\)"):
        teacher_profile((8, 1e-5), 3)


@pytest.mark.parametrize("bad", [None, 0.1, (), (0.1,), "teacher", [None]])
def test_no_teacher(bad: object) -> None:
    with pytest.raises(InvalidArgument, match=r"teacher must be a PrivacyGuarantee, .*, got"):
        teacher_profile(bad, 3)


def test_constant_noise_is_for_one_point() -> None:
    profile = PrivacyProfile.from_guarantee(PrivacyGuarantee(epsilon=0.1, delta=1e-5), PrivacyGuarantee(epsilon=0.3))
    with pytest.raises(InvalidArgument, match="teacher must be a promise of one point"):
        dt.constant_noise(teachers=3, teacher=profile, target=TARGET)
