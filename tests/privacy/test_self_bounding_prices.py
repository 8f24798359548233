"""Self-bounding labels, priced exactly and linearly: figures, and linear programs over all rules."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.sparse import lil_matrix

from darrm_torch import (
    InvalidArgument,
    PrivacyGuarantee,
    PrivacyProfile,
    RandomAllocation,
    allocated_delta,
    exact_self_bounding_delta,
    exact_self_bounding_epsilon,
    self_bounding_delta,
    self_bounding_epsilon,
)

PURE = PrivacyGuarantee(epsilon=0.1)


@pytest.mark.parametrize(
    ("allowance", "allocated", "figure"), [(35, False, 3.365), (45, False, 3.947), (25, True, 0.0217)]
)
def test_figures(allowance, allocated, figure):
    epsilon = exact_self_bounding_epsilon(PURE, 1e-5, teachers=101, allowance=allowance, allocated=allocated)
    assert 0.998 * figure < epsilon < 1.003 * figure


def best_rule(p: np.ndarray, q: np.ndarray, symbols: int, teachers: int, allowance: float) -> float:
    """The largest ``p F - q F`` over all F in [0, 1] for which F and 1 - F are self-bounding."""
    cells = symbols**teachers
    places = np.arange(cells).reshape((symbols,) * teachers)
    lines = [tuple(line) for k in range(teachers) for line in np.moveaxis(places, k, -1).reshape(-1, symbols).tolist()]
    count, rows, limits = len(lines), [], []
    for number, line in enumerate(lines):  # smallest <= F <= largest on each line
        for z in line:
            rows += [{cells + number: 1.0, z: -1.0}, {cells + count + number: -1.0, z: 1.0}]
            limits += [0.0, 0.0]
    for z in range(cells):
        around = [number for number, line in enumerate(lines) if z in line]
        rows.append({z: teachers - allowance, **{cells + number: -1.0 for number in around}})
        rows.append({z: allowance - teachers, **{cells + count + number: 1.0 for number in around}})
        limits += [0.0, allowance]
    matrix = lil_matrix((len(rows), cells + 2 * count))
    for place, entries in enumerate(rows):
        for column, value in entries.items():
            matrix[place, column] = value
    objective = np.concatenate([q - p, np.zeros(2 * count)])
    result = linprog(objective, A_ub=matrix.tocsr(), b_ub=limits, bounds=(0, 1), method="highs")
    assert result.success
    return -float(result.fun)


def pair(epsilon, delta, draws, teachers) -> tuple[np.ndarray, np.ndarray]:
    """All outcomes of randomised response (high, low, only with the record, only without it), given the draws."""
    high = math.exp(epsilon) / (1 + math.exp(epsilon))
    a = np.array([(1 - delta) * high, (1 - delta) * (1 - high), delta, 0.0])[: 4 if delta else 2]
    b = np.array([(1 - delta) * (1 - high), (1 - delta) * high, 0.0, delta])[: 4 if delta else 2]

    def joint(changed) -> np.ndarray:
        result = np.ones(1)
        for k in range(teachers):
            result = np.multiply.outer(result, a if k in changed else b).ravel()
        return result

    return np.mean([joint(draw) for draw in draws], axis=0), joint(())


def draws_of(teachers, allocated):
    return [(k,) for k in range(teachers)] if allocated else [tuple(range(teachers))]


@pytest.mark.parametrize("allocated", [False, True])
@pytest.mark.parametrize("teachers", [1, 2, 3, 4])
def test_exact_for_pure_teachers(teachers, allocated):
    p, q = pair(1.0, 0.0, draws_of(teachers, allocated), teachers)
    for allowance, epsilon in itertools.product((0.5, 1.0, 1.7, 2.5), (0.0, 0.2, 0.8)):
        scale = math.exp(epsilon)
        truth = max(best_rule(p, scale * q, 2, teachers, allowance), best_rule(q, scale * p, 2, teachers, allowance))
        claim = exact_self_bounding_delta(
            PrivacyGuarantee(epsilon=1.0), epsilon, teachers=teachers, allowance=allowance, allocated=allocated
        )
        assert truth - 1e-9 <= claim <= truth + 1e-8


@pytest.mark.parametrize("allocated", [False, True])
@pytest.mark.parametrize("teachers", [2, 3])
def test_never_below_for_teachers_with_a_delta(teachers, allocated):
    p, q = pair(0.6, 0.02, draws_of(teachers, allocated), teachers)
    for allowance, epsilon in itertools.product((0.6, 1.5), (0.0, 0.3, 0.9)):
        scale = math.exp(epsilon)
        claim = exact_self_bounding_delta(
            PrivacyGuarantee(epsilon=0.6, delta=0.02),
            epsilon,
            teachers=teachers,
            allowance=allowance,
            allocated=allocated,
        )
        assert best_rule(p, scale * q, 4, teachers, allowance) <= claim + 1e-9
        assert best_rule(q, scale * p, 4, teachers, allowance) <= claim + 1e-9


@pytest.mark.parametrize("allowance", [0.7, 2, 6, 11])
def test_no_more_than_linear_pricing_or_the_composition_of_all(allowance):
    exact = exact_self_bounding_epsilon(PURE, 1e-5, teachers=11, allowance=allowance)
    assert exact <= allowance * 0.1 * (1 + 1e-6)
    assert exact <= PrivacyProfile.from_guarantee(PURE).compose(11).epsilon(1e-5) * (1 + 1e-6)
    allocated = exact_self_bounding_epsilon(PURE, 1e-5, teachers=11, allowance=allowance, allocated=True)
    assert allocated <= self_bounding_epsilon(PURE, RandomAllocation(teachers=11), 1e-5, allowance=allowance) * (
        1 + 1e-6
    )


def test_extremes():
    assert exact_self_bounding_epsilon(PrivacyGuarantee(epsilon=math.inf), 1e-5, teachers=3, allowance=1) == math.inf
    assert exact_self_bounding_epsilon(PrivacyGuarantee(epsilon=0.0), 1e-9, teachers=3, allowance=1) < 1e-6
    assert exact_self_bounding_epsilon(PURE, 1.0, teachers=3, allowance=1) == 0.0
    with pytest.raises(InvalidArgument, match="allowance"):
        exact_self_bounding_delta(PURE, 0.0, teachers=3, allowance=0.0)


# --- theorem 15: the linear price of allocated records ---


@pytest.mark.parametrize(
    ("teachers", "delta"), [(3, 0.0), (3, 0.01), (4, 0.0), pytest.param(4, 0.01, marks=pytest.mark.slow)]
)
def test_no_self_bounding_rule_costs_more(teachers, delta):
    epsilon, allocation = 1.0, RandomAllocation(teachers=teachers)
    teacher = PrivacyGuarantee(epsilon=epsilon, delta=delta)
    p, q = pair(epsilon, delta, [(k,) for k in range(teachers)], teachers)
    symbols = 4 if delta else 2
    for allowance, at in itertools.product((0.5, 1.0, 2.0) if not delta else (1.0,), (0.0, 0.1, 0.4)):
        scaled = math.exp(at)
        truth = max(
            best_rule(p, scaled * q, symbols, teachers, allowance),
            best_rule(q, scaled * p, symbols, teachers, allowance),
        )
        assert truth - 1e-9 <= self_bounding_delta(teacher, allocation, at, allowance=allowance)
        assert truth - 1e-9 <= allocated_delta(teacher, allocation, at)
        if not delta and allowance >= 1:  # the conjunction of M teachers attains the largest ratio
            claim = self_bounding_epsilon(teacher, allocation, 0.0, allowance=allowance)
            assert best_rule(p, math.exp(0.99 * claim) * q, symbols, teachers, allowance) > 1e-6


@pytest.mark.parametrize(("sizes", "allowance"), [((2, 2), 1.0), ((2, 2), 2.0), ((2, 1), 1.5)])
def test_no_self_bounding_rule_costs_more_with_blocks(sizes, allowance):
    teachers, teacher = sum(sizes), PrivacyGuarantee(epsilon=0.5)
    draws = list(itertools.product(range(sizes[0]), range(sizes[0], teachers)))
    p, q = pair(0.5, 0.0, draws, teachers)
    allocation = RandomAllocation(teachers=teachers, overlap=2, blocks=sizes)
    at = self_bounding_epsilon(teacher, allocation, 0.0, allowance=allowance)
    scaled = math.exp(at)
    assert best_rule(p, scaled * q, 2, teachers, allowance) < 1e-9
    assert best_rule(q, scaled * p, 2, teachers, allowance) < 1e-9


def test_the_formula_for_one_shard_is_false_for_two():
    """x = Q m r / K in place of Q m / K: a rule that costs more exists (eps 1, K = 4, r = 2, M = 2)."""
    p, q = pair(1.0, 0.0, list(itertools.combinations(range(4), 2)), 4)
    assert best_rule(p, math.exp(1.0) * q, 2, 4, 2.0) > 1e-3
    allocation = RandomAllocation(teachers=4, overlap=2)
    claim = self_bounding_epsilon(PrivacyGuarantee(epsilon=1.0), allocation, 0.0, allowance=2.0)
    assert best_rule(p, math.exp(claim) * q, 2, 4, 2.0) < 1e-9
