"""Regions against their definition: half planes intersected in exact arithmetic, and sampled points."""

from __future__ import annotations

import itertools
import math
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from darrm_torch import InvalidArgument, PrivacyGuarantee, PrivacyProfile, certify, fetch_noise, optimize_noise
from darrm_torch.noise.regions import Corner, Region, growth_at_least, growth_at_most, teacher_guarantees

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


@settings(deadline=None, derandomize=True, max_examples=150)
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


class _Profile:
    def guarantees(self) -> tuple[PrivacyGuarantee, ...]:
        return (PrivacyGuarantee(epsilon=0.0, delta=0.01), PrivacyGuarantee(epsilon=0.1, delta=1e-5))


def test_teacher_forms() -> None:
    one = PrivacyGuarantee(epsilon=0.1)
    assert teacher_guarantees(one) == teacher_guarantees([one]) == teacher_guarantees([one, one]) == (one,)
    assert len(teacher_guarantees(_Profile())) == 2


NOTHING = PrivacyGuarantee(epsilon=math.inf)


@pytest.mark.parametrize(
    "unlike",
    [
        [PrivacyGuarantee(epsilon=e) for e in (0.1, 0.2, 3.0)],
        [PrivacyGuarantee(epsilon=3.0, delta=0.1), PrivacyGuarantee(epsilon=0.1, delta=0.1)],
        [PrivacyGuarantee(epsilon=0.1, delta=1e-5), NOTHING],
        [PrivacyGuarantee(epsilon=0.1, delta=1e-5), PrivacyGuarantee(epsilon=0.0, delta=1.0)],
        [PrivacyProfile.from_dp_sgd([(noise, 0.01, 100)]) for noise in (1.0, 2.0)],
    ],
)
def test_a_list_of_unlike_teachers_is_not_read_as_what_each_keeps(unlike: list[Any]) -> None:
    teachers, target = 3, PrivacyGuarantee(epsilon=0.3)
    calls = [
        lambda teacher: optimize_noise(teachers=teachers, teacher=teacher, target=target),
        lambda teacher: fetch_noise(teachers=teachers, teacher=teacher, target=target),
        lambda teacher: certify([0.0] * (teachers + 1), teachers=teachers, teacher=teacher, target=target),
    ]
    for call in calls:
        with pytest.raises(InvalidArgument, match=r"(?s)at once.*teacher=PrivacyProfile.weakest\(\[\.\.\.\]\)"):
            call(unlike)
    weakest = PrivacyProfile.weakest(unlike)
    proven = certify([0.0] * (teachers + 1), teachers=teachers, teacher=weakest, target=target)
    for one in unlike:  # what is assumed of the teachers holds for each
        own = PrivacyProfile.from_guarantee(one) if isinstance(one, PrivacyGuarantee) else one
        assert all(own.delta(point.epsilon) <= point.delta for point in proven.teacher if math.isfinite(point.epsilon))


@settings(deadline=None, derandomize=True, max_examples=100)
@given(st.lists(guarantees, min_size=1, max_size=5))
def test_points_of_a_profile_are_never_taken_for_unlike_teachers(points: list[PrivacyGuarantee]) -> None:
    profile = PrivacyProfile.from_guarantee(*points)
    kept = teacher_guarantees(profile.guarantees())
    assert Region(guarantees=kept).chain == Region(guarantees=tuple(points)).chain
    assert teacher_guarantees(profile.compose(2)) == profile.compose(2).guarantees()


def test_a_pair_of_numbers_is_told_how_it_becomes_a_guarantee() -> None:
    with pytest.raises(InvalidArgument, match=r"got \(8, 1e-05\)\. Write PrivacyGuarantee\(epsilon=8, delta=1e-05\)"):
        teacher_guarantees((8, 1e-5))


@pytest.mark.parametrize("bad", [None, 0.1, (), (0.1,), "teacher", [None]])
def test_no_teacher(bad: object) -> None:
    with pytest.raises(InvalidArgument, match=r"teacher must be a PrivacyGuarantee, .*, got"):
        teacher_guarantees(bad)
