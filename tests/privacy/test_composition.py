"""Composition: the paper's tables, the exact optimum in rationals, and what must be refused."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import mpmath as mp
import pytest
from hypothesis import given, settings, strategies as st

import darrm_torch as dt
from darrm_torch import InvalidArgument, PrivacyGuarantee

TABLE = json.loads((Path(__file__).parents[1] / "reference" / "paper_totals.json").read_text())["rows"]


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"m={row['allowance']}-{row['data']}-Q={row['labels']}")
def test_the_papers_totals_to_the_printed_digits(row):
    label = PrivacyGuarantee(epsilon=row["label"][0], delta=row["label"][1])
    total = dt.as_if_redrawn(label, row["labels"], slack=1e-4)
    assert [f"{total.epsilon:.3f}", f"{total.delta:.3f}"] == row["total"]


def optimum(epsilon: float, delta: float, count: int, total_epsilon: float) -> Fraction:
    """The exact smallest delta of k (epsilon, delta) releases (Kairouz, Oh, Viswanath 2015, Theorem 3.3)."""
    e, d = Fraction(math.exp(epsilon)), Fraction(delta)
    target = Fraction(math.exp(total_epsilon))
    excess = sum(
        (
            math.comb(count, ones) * max(Fraction(0), e ** (count - ones) - target * e**ones)
            for ones in range(count + 1)
        ),
        Fraction(0),
    )
    return 1 - (1 - d) ** count * (1 - excess / (1 + e) ** count)


@pytest.mark.parametrize(
    ("epsilon", "delta", "count"), [(0.1, 0.0, 50), (0.2676, 3e-4, 20), (1.0, 1e-6, 7), (3.0, 0.0, 3)]
)
def test_optimal_composition_is_the_optimum_rounded_up(epsilon, delta, count):
    base = 1 - (1 - delta) ** count
    for total_delta in (base + 1e-6, base + 1e-4, base + 1e-2):
        total = dt.optimal_composition(PrivacyGuarantee(epsilon=epsilon, delta=delta), count, delta=total_delta)
        assert optimum(epsilon, delta, count, total.epsilon) <= Fraction(total_delta)
        assert optimum(epsilon, delta, count, total.epsilon * (1 - 1e-5) - 1e-7) > Fraction(total_delta)


@pytest.mark.parametrize(
    ("epsilon", "count", "delta"),
    [pytest.param(0.05, 5000, 1e-12, marks=pytest.mark.slow), (0.3, 400, 1e-15), (2.0, 9, 1e-30)],
)
def test_tiny_deltas_have_the_optimum_too(epsilon: float, count: int, delta: float) -> None:
    """In rationals: at the epsilon that is returned delta is kept, and slightly below it is not."""
    total = dt.optimal_composition(PrivacyGuarantee(epsilon=epsilon), count, delta=delta).epsilon
    with mp.workdps(50):
        e = mp.exp(mp.mpf(epsilon))

        def exact(bound: float) -> mp.mpf:
            terms = (
                mp.binomial(count, ones) * (e ** (count - ones) - mp.exp(mp.mpf(bound)) * e**ones)
                for ones in range(count + 1)
                if (count - 2 * ones) * epsilon > bound
            )
            return mp.fsum(terms) / (1 + e) ** count

        assert exact(total) <= delta < exact(total * (1 - 1e-7))
    if count == 5000:
        assert total == pytest.approx(30.5239, abs=1e-4)


def test_unlike_guarantees_are_enumerated():
    epsilons, total_delta = (0.3, 0.7, 1.1), 1e-3
    total = dt.optimal_composition([PrivacyGuarantee(epsilon=e) for e in epsilons], delta=total_delta).epsilon

    def delta(bound: float) -> float:
        value = 0.0
        for signs in range(8):
            loss = sum(e if signs >> i & 1 else -e for i, e in enumerate(epsilons))
            mass = math.prod(1 / (1 + math.exp(-e if signs >> i & 1 else e)) for i, e in enumerate(epsilons))
            value += mass * max(0.0, -math.expm1(bound - loss))
        return value

    assert delta(total) <= total_delta
    assert delta(total - 0.005) > total_delta


@settings(deadline=None, derandomize=True, max_examples=40)
@given(
    epsilon=st.floats(1e-3, 3.0),
    delta=st.floats(0.0, 1e-3),
    count=st.integers(1, 60),
    slack=st.floats(1e-8, 0.1),
)
def test_general_is_never_better_than_optimal_nor_worse_than_simple(epsilon, delta, count, slack):
    one = PrivacyGuarantee(epsilon=epsilon, delta=delta)
    general = dt.general_composition(one, count, slack=slack)
    assert general.epsilon <= dt.simple_composition(one, count).epsilon
    assert dt.optimal_composition(one, count, delta=general.delta).epsilon <= general.epsilon


def test_every_term_of_the_general_bound_can_be_the_smallest():
    one, tiny = PrivacyGuarantee(epsilon=0.1), PrivacyGuarantee(epsilon=1e-3)
    assert dt.general_composition(one, 2, slack=1e-4).epsilon == dt.simple_composition(one, 2).epsilon
    # sqrt(k eps^2) above 1: log(1 / delta') is smaller; below 1: log(e + sqrt(k eps^2) / delta').
    third = 1000 * math.tanh(0.05) * 0.1 + 0.1 * math.sqrt(2000 * math.log(1e4))
    assert dt.general_composition(one, 1000, slack=1e-4).epsilon == pytest.approx(third, rel=1e-12)
    spread = math.sqrt(1e5) * 1e-3
    second = 1e5 * math.tanh(5e-4) * 1e-3 + 1e-3 * math.sqrt(2e5 * math.log(math.e + spread / 1e-4))
    assert dt.general_composition(tiny, 10**5, slack=1e-4).epsilon == pytest.approx(second, rel=1e-12)


def test_simple_composition_rounds_up_and_keeps_infinity():
    for k in range(1, 200):
        total = dt.simple_composition(PrivacyGuarantee(epsilon=0.1, delta=1e-7), k)
        assert Fraction(total.epsilon) >= k * Fraction(0.1)
        assert Fraction(total.delta) >= k * Fraction(1e-7)
    assert dt.simple_composition(PrivacyGuarantee(epsilon=math.inf), 3) == PrivacyGuarantee(epsilon=math.inf)
    assert dt.simple_composition(PrivacyGuarantee(epsilon=1.0, delta=0.6), 2).delta == 1.0


@pytest.mark.parametrize("count", [0, -1, 2.0, True, math.nan])
def test_counts_must_be_positive_integers(count):
    for compose in (
        dt.simple_composition,
        lambda one, k: dt.general_composition(one, k, slack=0.1),
        lambda one, k: dt.optimal_composition(one, k, delta=0.1),
    ):
        with pytest.raises(InvalidArgument, match=r"count must be an integer in \[1, "):
            compose(PrivacyGuarantee(epsilon=1.0), count)


@pytest.mark.parametrize("slack", [0.0, -0.1, 1.1, math.nan])
def test_slack_must_be_a_probability(slack):
    with pytest.raises(InvalidArgument, match="slack"):
        dt.general_composition(PrivacyGuarantee(epsilon=1.0), 2, slack=slack)


def test_nothing_to_compose_is_refused():
    with pytest.raises(InvalidArgument, match="one or more guarantees"):
        dt.optimal_composition([], delta=0.1)


@pytest.mark.parametrize("wrong", [(8, 1e-5), 8.0, [], [PrivacyGuarantee(epsilon=1.0), 8.0]])
def test_what_is_no_guarantee_is_one_clear_error(wrong: Any) -> None:
    with pytest.raises(InvalidArgument, match="guarantee must be one or more guarantees, got"):
        dt.optimal_composition(wrong, 2, delta=1e-5)
    with pytest.raises(InvalidArgument, match="guarantee must be a PrivacyGuarantee, got"):
        dt.simple_composition(wrong, 2)
    with pytest.raises(InvalidArgument, match="guarantee must be a PrivacyGuarantee, got"):
        dt.general_composition(wrong, 2, slack=1e-5)


def test_what_is_too_large_for_a_float_is_infinite():
    huge = PrivacyGuarantee(epsilon=1e300)
    assert dt.simple_composition(huge, 10**9).epsilon == math.inf
    assert dt.PrivacyProfile.from_guarantee(huge).compose(10**9).epsilon(1e-5) == math.inf
