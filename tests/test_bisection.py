"""Bisection: the condition holds at the number returned, and no longer a tolerance further."""

from __future__ import annotations

import math

import pytest

from darrm_torch.bisection import last_true, last_within, relative_excess


@pytest.mark.parametrize("geometric", [False, True])
@pytest.mark.parametrize("tolerance", [2.0**-44, 1e-3])
def test_either_end_may_hold(tolerance: float, geometric: bool) -> None:
    largest = last_true(lambda x: x * x <= 2, 0.5, 64.0, tolerance=tolerance, geometric=geometric)
    assert largest**2 <= 2 < (largest * (1 + 1.01 * tolerance)) ** 2
    smallest = last_true(lambda x: x * x >= 2, 64.0, 0.5, tolerance=tolerance, geometric=geometric)
    assert (smallest * (1 - 1.01 * tolerance)) ** 2 < 2 <= smallest**2


def test_the_false_end_is_not_evaluated() -> None:
    assert last_true(lambda x: True, 1.0, 2.0) == pytest.approx(2.0)


@pytest.mark.parametrize("geometric", [False, True])
@pytest.mark.parametrize(("true", "false"), [(1e308, 1.7e308), (1.7e308, 1e308), (1e-320, 5e-324), (5e-324, 1e-320)])
def test_it_ends_where_numbers_end(true: float, false: float, geometric: bool) -> None:
    """A mean of the largest floats does not overflow, and between the smallest there is no other."""
    found = last_true(lambda x: x == true, true, false, tolerance=1e-9, geometric=geometric)
    assert found == pytest.approx(true, rel=1e-8)


@pytest.mark.parametrize("geometric", [False, True])
@pytest.mark.parametrize("tolerance", [2.0**-40, 2.0**-10])
@pytest.mark.parametrize(("true", "false"), [(0.01, 50.0), (50.0, 0.01)])
@pytest.mark.parametrize("power", [0.5, 2.0])
@pytest.mark.parametrize("cap", [1.5, math.inf])
def test_a_search_by_values_ends_where_bisection_does_and_evaluates_less(
    power: float, cap: float, true: float, false: float, tolerance: float, geometric: bool
) -> None:
    tried: list[float] = []

    def excess(number: float) -> float:
        tried.append(number)
        cost = (number / 3.0) ** (power if false > true else -power)
        return relative_excess(min(cost, cap) if cost > 1.2 else cost, 1.0)

    expected = last_true(lambda number: excess(number) <= 0, true, false, tolerance=tolerance, geometric=geometric)
    needed = len(tried)
    tried.clear()
    assert last_within(excess, true, false, tolerance=tolerance, geometric=geometric) == expected
    assert len(set(tried)) == len(tried) <= max(needed - 10, 15)


def test_a_search_by_values_ends_where_the_condition_holds_even_if_it_is_not_monotone() -> None:
    def excess(number: float) -> float:
        return 0.5 if 1.5 < number < 1.7 or number > 3.0 else -0.5

    assert excess(last_within(excess, 1.0, 4.0, tolerance=1e-6)) <= 0


@pytest.mark.parametrize(("cost", "limit"), [(1.0, 1.0), (math.nextafter(1.0, 2), 1.0), (0.0, 0.0), (5e-324, 0.0)])
@pytest.mark.parametrize("scale", [1e-300, 1.0, 1e300])
def test_an_excess_is_positive_exactly_where_the_limit_is_exceeded(cost: float, limit: float, scale: float) -> None:
    assert (relative_excess(cost * scale, limit * scale) > 0) == (cost * scale > limit * scale)
    assert relative_excess(math.inf, 1.0) == math.inf
    assert relative_excess(3.0, math.inf) == -1.0


def test_a_search_by_values_ends_at_the_false_end_if_nothing_is_exceeded() -> None:
    assert last_within(lambda number: -0.5, 1.0, 2.0, tolerance=1e-9) == pytest.approx(2.0)
