"""The planner: recommendations in settings whose answer is known, against agreement computed independently."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import darrm_torch as dt
from darrm_torch import InvalidArgument, PrivacyGuarantee, PrivacyProfile
from darrm_torch import Plan, Strategy

PAPER = PrivacyProfile.from_dp_sgd([(12.0, 1 / 35, 175)])


def row_of(plan: Plan, name: str) -> Strategy:
    return next(row for row in plan.rows if row.name == name)


def agreement_by_enumeration(row: Strategy, teachers: int, mean: float) -> float:
    """Over all 2^K vote vectors, one at a time: what the planner sums over counts."""
    assert row.mechanism is not None
    total = 0.0
    for votes in itertools.product((0, 1), repeat=teachers):
        ones, heard = sum(votes), sum(votes[: row.voters])
        one = row.mechanism.label_probabilities(np.array([[row.voters - heard, heard]]))[0, 1]
        right = 1.0 if 2 * ones == teachers else one if 2 * ones > teachers else 1 - one
        total += mean**ones * (1 - mean) ** (teachers - ones) * right
    return total


def darrm_agreement(gamma: np.ndarray, mean: float) -> float:
    """The paper's definition: the majority with probability gamma, else a coin."""
    K = len(gamma) - 1
    law = stats.binom.pmf(np.arange(K + 1), K, mean)
    return float(law @ (gamma + (1 - gamma) / 2))


def test_paper_setting_needs_no_noise() -> None:
    """K = 11, sigma = 12, rate 1/35, 175 steps: eleven such teachers cost (0.2544, 3e-4), under three of them."""
    for overlap in (1, 11):
        target = PrivacyGuarantee(epsilon=3 * 0.0852, delta=3e-4)
        answer = dt.plan(
            teachers=11, teacher=PAPER, overlap=overlap, labels=100, label_target=target, total_target=target
        )
        assert answer.best is not None
        assert answer.best.name == "noise-free majority"
        assert answer.best.agreement == 1.0
        assert answer.best.total.epsilon <= 0.2556
        assert "No noise is needed" in answer.best.reason
    assert row_of(answer, "GNMax").agreement < 0.99


def test_one_teachers_cost_with_full_overlap_wants_darrm_with_the_profile() -> None:
    """m = 1, r = K: the teachers outright cost 0.2913 at 1e-4, more than three times as much as one label may."""
    target = PrivacyGuarantee(epsilon=0.0852, delta=1e-4)
    answer = dt.plan(teachers=11, teacher=PAPER, label_target=target)
    best = answer.best
    assert best is not None
    assert best.name == "DaRRM, whole profile"
    gamma = best.mechanism.noise.gamma
    assert best.agreement == pytest.approx(darrm_agreement(gamma, 0.75), abs=1e-12)
    assert best.agreement > row_of(answer, "DaRRM, one point").agreement + 0.1
    # Proven anew.
    assert dt.label_profile(gamma, teachers=11, teacher=best.mechanism.noise.certificate.teacher)(0.0852) <= 1e-4
    one = row_of(answer, "noise-free, 1 of 11")
    assert one.meets
    assert one.agreement == pytest.approx(agreement_by_enumeration(one, 11, 0.75), abs=1e-12)
    whole = row_of(answer, "noise-free majority")
    assert not whole.meets
    assert whole.total.epsilon > 0.28
    assert "Too dear" in whole.reason


@pytest.mark.parametrize(
    ("labels", "targets"),
    [
        (1, {"label_target": PrivacyGuarantee(epsilon=1.0, delta=1e-5)}),
        (5, {"total_target": PrivacyGuarantee(epsilon=2.0, delta=1e-5)}),
        (10, {"total_target": PrivacyGuarantee(epsilon=4.0, delta=0.0)}),
    ],
)
def test_teachers_with_large_epsilon_want_the_optimal_majority_by_coins(labels: int, targets: dict) -> None:
    teacher = PrivacyGuarantee(epsilon=8.0, delta=1e-5)
    answer = dt.plan(teachers=11, teacher=teacher, overlap=1, labels=labels, **targets)
    best = answer.best
    assert best is not None
    assert best.name == "optimal majority"
    assert best.own_coins
    assert best.agreement == pytest.approx(darrm_agreement(best.mechanism.noise.gamma, 0.75), abs=1e-12)
    assert (
        best.agreement
        > row_of(answer, "permute-and-flip").agreement
        > row_of(answer, "exponential mechanism").agreement
    )
    # Private by coins alone: neighbouring counts, enumerated.
    (target,) = targets.values()
    one = best.mechanism.noise.label_probability(np.arange(12))
    each = target if labels == 1 else best.label.guarantee
    for p in (one, 1 - one):
        assert np.all(p[1:] <= math.exp(each.epsilon) * p[:-1] + each.delta + 1e-12)
        assert np.all(p[:-1] <= math.exp(each.epsilon) * p[1:] + each.delta + 1e-12)
    assert "coins alone" in best.reason
    assert "trained without" in str(answer)


def test_without_a_word_about_the_teachers_it_says_what_they_would_need() -> None:
    target = PrivacyGuarantee(epsilon=0.1, delta=1e-4)
    answer = dt.plan(teachers=11, label_target=target)
    assert answer.best is not None
    assert answer.best.own_coins
    assert "hardly better than a coin" in str(answer)
    needed = answer.teachers_needed(0.95)
    assert needed.teacher is not None
    better = dt.plan(teachers=11, teacher=needed.teacher, label_target=target)
    assert better.best.agreement >= 0.95
    worse = PrivacyGuarantee(epsilon=needed.teacher.epsilon * 1.05, delta=needed.teacher.delta)
    assert dt.plan(teachers=11, teacher=worse, label_target=target).best.agreement < 0.95


def test_what_an_agreement_costs_is_the_least() -> None:
    teacher = PrivacyGuarantee(epsilon=0.1, delta=1e-5)
    answer = dt.plan(teachers=5, teacher=teacher, label_target=PrivacyGuarantee(epsilon=0.1, delta=1e-4))
    costs = dict(answer.costs(0.9))
    assert list(costs.values()) == sorted(costs.values())
    for name in ("DaRRM, one point", "self-bounding noise", "optimal majority"):
        assert row_of(answer.at(costs[name]), name).agreement >= 0.9
        assert row_of(answer.at(costs[name] * 0.98), name).agreement < 0.9


@pytest.mark.slow
def test_noise_and_steps_that_teachers_need() -> None:
    target = PrivacyGuarantee(epsilon=0.0852, delta=1e-4)
    answer = dt.plan(teachers=11, teacher=PAPER, label_target=target)
    needed = answer.teachers_needed(1.0)
    assert needed.noise_multiplier is not None
    assert needed.steps is not None
    for factor, kept in ((1.0, True), (0.97, False)):
        teacher = PrivacyProfile.from_dp_sgd([(needed.noise_multiplier * factor, 1 / 35, 175)])
        assert dt.plan(teachers=11, teacher=teacher, label_target=target).rows[0].name.startswith("noise-free") == kept
    assert PrivacyProfile.from_dp_sgd([(12.0, 1 / 35, 11 * needed.steps)]).epsilon(1e-4) <= 0.0852


@settings(deadline=None, derandomize=True, max_examples=15)
@given(
    teachers=st.integers(1, 9),
    overlap=st.integers(1, 9),
    labels=st.sampled_from([1, 3, 50]),
    teacher=st.floats(0.01, 5.0),
    epsilon=st.floats(0.05, 5.0),
    delta=st.sampled_from([0.0, 1e-5, 1e-3]),
    mean=st.sampled_from([0.6, 0.75, 0.9]),
)
def test_whatever_is_asked_rows_keep_what_they_say(
    teachers: int, overlap: int, labels: int, teacher: float, epsilon: float, delta: float, mean: float
) -> None:
    target = PrivacyGuarantee(epsilon=epsilon, delta=delta)
    answer = dt.plan(
        teachers=teachers,
        teacher=PrivacyGuarantee(epsilon=teacher, delta=1e-6),
        overlap=min(overlap, teachers),
        labels=labels,
        total_target=target,
        prior=dt.IndependentVotes(mean=mean),
    )
    met = [row for row in answer.rows if row.meets]
    assert list(answer.rows[: len(met)]) == met
    assert met
    agreements = [round(row.agreement, 3) for row in met]
    assert agreements == sorted(agreements, reverse=True)
    for row in answer.rows:
        assert row.reason.endswith((".", ")"))
        if row.mechanism is None:
            assert not row.meets
            continue
        assert row.meets == (row.total.epsilon <= epsilon)
        if teachers <= 5:
            assert row.agreement == pytest.approx(agreement_by_enumeration(row, teachers, mean), abs=1e-9)


@pytest.mark.parametrize("labels", [1, 5])
def test_each_strategy_is_made_as_it_says(labels: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    target = PrivacyGuarantee(epsilon=0.2, delta=1e-4)
    prior = dt.SharedVotes(low=0.6, high=0.9)
    answer = dt.plan(teachers=5, teacher=PAPER, overlap=2, labels=labels, total_target=target, prior=prior)
    made = 0
    for row in answer.rows:
        if row.mechanism is not None and row.voters == 5:
            again = eval(row.use, {"dt": dt, "math": math})
            counts = np.array([[5 - ones, ones] for ones in range(6)])
            assert np.array_equal(again.label_probabilities(counts), row.mechanism.label_probabilities(counts))
            made += 1
    assert made >= 8


def test_even_numbers_of_teachers_count_a_tie_as_agreement() -> None:
    answer = dt.plan(teachers=4, teacher=PAPER, label_target=PrivacyGuarantee(epsilon=1.0, delta=1e-4))
    assert answer.best.agreement == 1.0
    assert row_of(answer, "optimal majority").agreement == pytest.approx(
        agreement_by_enumeration(row_of(answer, "optimal majority"), 4, 0.75), abs=1e-12
    )


@pytest.mark.parametrize(
    "prior", [dt.BetaVotes(a=2.0, b=2.0), dt.SharedVotes(low=0.0, high=1.0), dt.IndependentVotes(mean=0.5)]
)
def test_a_prior_that_favours_no_class_has_optima_too(prior: dt.BetaVotes | dt.SharedVotes) -> None:
    target = PrivacyGuarantee(epsilon=0.15, delta=1e-5)
    answer = dt.plan(teachers=5, teacher=PrivacyGuarantee(epsilon=0.1), label_target=target, prior=prior)
    best = row_of(answer, "DaRRM, one point")
    assert best.meets
    assert best.agreement > 0.55
    assert row_of(answer, "optimal majority").agreement > row_of(answer, "permute-and-flip").agreement - 1e-9
    assert 'objective="expected_error"' in best.use


def test_one_profile_for_each_teacher_counts_as_the_weakest() -> None:
    profiles = [PAPER, PrivacyProfile.from_dp_sgd([(10.0, 1 / 35, 175)])]
    target = PrivacyGuarantee(epsilon=0.2, delta=1e-4)
    mixed = dt.plan(teachers=2, teacher=profiles, label_target=target)
    assert mixed.rows == dt.plan(teachers=2, teacher=profiles[1], label_target=target).rows


def test_the_text_fits_80_columns_and_the_dictionary_is_json() -> None:
    import json

    target = PrivacyGuarantee(epsilon=0.1, delta=1e-4)
    answer = dt.plan(teachers=11, teacher=PAPER, labels=20, label_target=target, total_target=target)
    assert max(map(len, str(answer).splitlines())) < 80
    plain = json.loads(json.dumps(answer.to_dict(), allow_nan=False))
    assert plain["recommendation"] == answer.best.name
    assert len(plain["strategies"]) == len(answer.rows)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"label_target": None}, "label_target"),
        ({"label_target": PrivacyGuarantee(epsilon=math.inf)}, "label_target.epsilon"),
        ({"label_target": PrivacyGuarantee(epsilon=0.0)}, "label_target.epsilon"),
        ({"teachers": 0}, "teachers"),
        ({"overlap": 12}, "overlap"),
        ({"labels": 0}, "labels"),
        ({"teacher": 0.1}, "teacher"),
        ({"teacher": [PAPER]}, "teacher"),
        ({"prior": 0.75}, "prior"),
    ],
)
def test_bad_input_is_one_clear_error(changes: dict, named: str) -> None:
    arguments = {"teachers": 11, "label_target": PrivacyGuarantee(epsilon=0.1, delta=1e-4)} | changes
    with pytest.raises(InvalidArgument) as caught:
        dt.plan(**arguments)
    assert caught.value.name == named


@pytest.mark.parametrize("wrong", [0.0, 1.1, math.nan])
def test_an_agreement_is_a_share(wrong: float) -> None:
    answer = dt.plan(teachers=3, label_target=PrivacyGuarantee(epsilon=0.1, delta=1e-4))
    with pytest.raises(InvalidArgument, match="agreement"):
        answer.costs(wrong)
    with pytest.raises(InvalidArgument, match="agreement"):
        answer.teachers_needed(wrong)
