"""The cost of N labels: exact in decimals, and never more than the budget."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given, strategies as st

from darrm_torch import PrivacyGuarantee
from darrm_torch.labels.cost import exact_multiple, fits, guarantee_of, plain_guarantee, total_cost


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.integers(0, 12))
def test_as_many_labels_fit_as_the_decimals_say(labels: int, digits: int, places: int) -> None:
    """0.1 fits ten times into 1, although the doubles 0.1 add up to another number."""
    one = float(f"{digits}e-{places}")
    budget = float(labels * Fraction(f"{digits}e-{places}"))
    label = PrivacyGuarantee(epsilon=one)
    fitting = exact_multiple(labels, one) <= exact_multiple(1, budget)  # unless the sum has more digits than a double
    assert fits(label, labels, PrivacyGuarantee(epsilon=budget)) == fitting
    assert not fits(label, labels + 1, PrivacyGuarantee(epsilon=budget))
    assert total_cost(label, labels).epsilon == budget


def test_a_budget_bounds_epsilon_and_delta() -> None:
    label = PrivacyGuarantee(epsilon=0.1, delta=1e-6)
    assert fits(label, 10, PrivacyGuarantee(epsilon=1.0, delta=1e-5))
    assert not fits(label, 11, PrivacyGuarantee(epsilon=2.0, delta=1e-5))
    assert not fits(label, 11, PrivacyGuarantee(epsilon=1.0, delta=1e-4))


def test_a_price_is_asked_for_the_labels_together() -> None:
    def cost(labels: int) -> PrivacyGuarantee:
        return PrivacyGuarantee(epsilon=math.sqrt(labels), delta=1e-5)

    assert total_cost(cost, 9) == PrivacyGuarantee(epsilon=3.0, delta=1e-5)
    assert fits(cost, 9, PrivacyGuarantee(epsilon=3.0, delta=1e-5))
    assert not fits(cost, 10, PrivacyGuarantee(epsilon=3.0, delta=1e-5))
    assert not fits(cost, 9, PrivacyGuarantee(epsilon=3.0))


@pytest.mark.parametrize("cost", [PrivacyGuarantee(epsilon=math.inf, delta=0.5), lambda labels: 1 / 0])
def test_no_labels_cost_nothing(cost) -> None:
    assert total_cost(cost, 0) == PrivacyGuarantee(epsilon=0.0)


def test_a_delta_never_exceeds_one_and_infinity_stays() -> None:
    assert total_cost(PrivacyGuarantee(epsilon=0.1, delta=0.4), 3).delta == 1.0
    assert total_cost(PrivacyGuarantee(epsilon=math.inf), 3).epsilon == math.inf


@pytest.mark.parametrize("epsilon", [0.1, math.inf])
def test_json_has_no_infinity(epsilon: float) -> None:
    guarantee = PrivacyGuarantee(epsilon=epsilon, delta=1e-5)
    assert plain_guarantee(guarantee) == {"epsilon": None if epsilon == math.inf else epsilon, "delta": 1e-5}
    assert guarantee_of([epsilon, 1e-5]) == guarantee
    assert plain_guarantee(None) is guarantee_of(None) is None
