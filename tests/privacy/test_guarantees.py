"""Guarantees as values: ranges, implication, and printed bounds that are bounds."""

from __future__ import annotations

import itertools
import math
import pickle
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from darrm_torch import InvalidArgument, PrivacyGuarantee
from darrm_torch.privacy.guarantees import (
    check_guarantee,
    curve_corners,
    drop_implied,
    format_bound,
    implied_by,
    lower_hull,
    round_up,
)

guarantees = st.builds(PrivacyGuarantee, epsilon=st.sampled_from([0.0, 0.1, 1.0, math.inf]), delta=st.floats(0, 1))


@pytest.mark.parametrize("epsilon", [-0.1, math.nan, "1", None])
def test_an_epsilon_out_of_range_is_refused(epsilon: Any) -> None:
    with pytest.raises(InvalidArgument, match="epsilon"):
        PrivacyGuarantee(epsilon=epsilon)


@pytest.mark.parametrize("delta", [-0.1, 1.1, math.nan, "1", None])
def test_a_delta_out_of_range_is_refused(delta: Any) -> None:
    with pytest.raises(InvalidArgument, match="delta"):
        PrivacyGuarantee(epsilon=1.0, delta=delta)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(points=st.lists(guarantees, max_size=5))
def test_dropped_guarantees_are_implied_by_the_remaining_ones(points: list[PrivacyGuarantee]) -> None:
    kept = drop_implied(points)
    assert all(any(implied_by(point, other) for other in kept) for point in points)
    assert not any(implied_by(one, other) for one in kept for other in kept if one is not other)


@settings(deadline=None, derandomize=True, max_examples=200)
@given(bound=st.floats(1e-300, 1e300), digits=st.integers(1, 12))
def test_a_printed_bound_is_a_bound(bound: float, digits: int) -> None:
    assert float(format_bound(bound, digits)) >= bound * (1 - 2e-12)


def test_rounding_up_reaches_infinity() -> None:
    assert Fraction(round_up(Fraction(1, 3))) > Fraction(1, 3) > Fraction(math.nextafter(round_up(Fraction(1, 3)), 0))
    assert round_up(Fraction(10) ** 400) == math.inf


def test_a_pair_of_numbers_is_refused_with_the_way_to_write_it() -> None:
    with pytest.raises(InvalidArgument, match=r"target must be .*, got \(8, 1e-05\). Write PrivacyGuarantee\(eps"):
        check_guarantee("target", (8, 1e-5))


def test_a_guarantee_is_built_by_name() -> None:
    with pytest.raises(InvalidArgument, match=r"must be given by name, got \(2, 1e-05\). Write Privacy"):
        PrivacyGuarantee(2, 1e-5)  # type: ignore[misc]
    assert PrivacyGuarantee(epsilon=2, delta=0) == PrivacyGuarantee(epsilon=2.0)
    assert pickle.loads(pickle.dumps(PrivacyGuarantee(epsilon=2))) == PrivacyGuarantee(epsilon=2)


@given(st.lists(st.tuples(st.sampled_from([0.0, 1e-17, 0.5, 1.0, 2.0, 299.0, 301.0]), st.floats(0, 1)), max_size=8))
@settings(max_examples=50)
def test_the_corners_of_a_curve_are_those_of_the_hull_in_rational_numbers(pairs: list[tuple[float, float]]) -> None:
    places = {Fraction(0): Fraction(1)}
    for epsilon, delta in pairs:
        if epsilon <= 300:
            t, height = Fraction(math.exp(epsilon)), Fraction(delta)
            for place, value in ((t, height), (1 / t, 1 - (1 - height) / t)):
                places[place] = min(value, places.get(place, value))
    falling = zip(sorted(places), itertools.accumulate((places[one] for one in sorted(places)), min), strict=True)
    points = tuple(PrivacyGuarantee(epsilon=epsilon, delta=delta) for epsilon, delta in pairs)
    assert curve_corners(points) == lower_hull(falling)
