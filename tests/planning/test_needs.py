"""What teachers would have to be: the search, and that what it finds is enough and hardly more."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

import darrm_torch as dt
from darrm_torch.planning.needs import smallest


@pytest.mark.parametrize("wanted", [0.0, 0.3, 0.5, 0.7, 1.0])
@pytest.mark.parametrize("value", [lambda x: x / 4, lambda x: float(x >= 1.7), lambda x: min(1.0, math.log(x) / 2)])
def test_the_smallest_number_is_found_in_few_steps(value: Callable[[float], float], wanted: float) -> None:
    asked: list[float] = []

    def counted(number: float) -> float:
        asked.append(number)
        return value(number)

    found = smallest(counted, wanted, 1e-3, 4.0, 1.001)
    if value(4.0) < wanted:
        assert (found, len(asked)) == (None, 1)
        return
    assert value(found) >= wanted - 1e-12
    assert found == pytest.approx(1e-3) or value(found / 1.001) < wanted
    assert found in asked
    assert len(asked) < 30
    assert len(set(asked)) == len(asked)


@pytest.mark.parametrize("wanted", [0.6, 0.9])
def test_a_cliff_takes_no_longer_than_bisection(wanted: float) -> None:
    """Where targets are missed nothing agrees at all: 0, however near they are."""
    asked: list[float] = []
    found = smallest(lambda x: asked.append(x) or 0.95 * (x >= 1.7), wanted, 1e-3, 4.0, 1.01, 1.0)
    assert 1.7 <= found < 1.7 * 1.01
    assert len(asked) <= 12


@pytest.mark.slow
@pytest.mark.parametrize("classes", [2, 3])
def test_labels_that_add_up_are_priced_not_built(classes: int) -> None:
    target = dt.PrivacyGuarantee(epsilon=1.0, delta=1e-5)
    answer = dt.plan(teachers=5, classes=classes, labels=50, total_target=target, overlap=1)
    tried: list[None] = []
    needed = answer.teachers_needed(0.8, on_progress=lambda: tried.append(None)).teacher
    assert len(tried) < 60
    assert needed is not None
    for factor, enough in ((1.0, True), (1.02, False)):
        teacher = dt.PrivacyGuarantee(epsilon=needed.epsilon * factor, delta=needed.delta)
        rows = dt.plan(teachers=5, classes=classes, labels=50, total_target=target, overlap=1, teacher=teacher).rows
        assert any(row.meets and row.rests_on == "teachers" and row.agreement >= 0.8 - 1e-9 for row in rows) == enough
