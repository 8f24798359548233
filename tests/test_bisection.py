"""Bisection: the condition holds at the number returned, and no longer a tolerance further."""

from __future__ import annotations

import pytest

from darrm_torch.bisection import last_true


@pytest.mark.parametrize("geometric", [False, True])
@pytest.mark.parametrize("tolerance", [2.0**-44, 1e-3])
def test_either_end_may_hold(tolerance: float, geometric: bool) -> None:
    largest = last_true(lambda x: x * x <= 2, 0.5, 64.0, tolerance=tolerance, geometric=geometric)
    assert largest**2 <= 2 < (largest * (1 + 1.01 * tolerance)) ** 2
    smallest = last_true(lambda x: x * x >= 2, 64.0, 0.5, tolerance=tolerance, geometric=geometric)
    assert (smallest * (1 - 1.01 * tolerance)) ** 2 < 2 <= smallest**2


def test_the_false_end_is_not_evaluated() -> None:
    assert last_true(lambda x: True, 1.0, 2.0) == pytest.approx(2.0)
