"""The planner: recommendations in settings whose answer is known, against agreement computed independently."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy import stats

import darrm_torch as dt
from darrm_torch import InvalidArgument, Plan, PrivacyGuarantee, PrivacyProfile, Strategy
from tests.planning.helpers import check_plan_of_many_classes

PAPER = PrivacyProfile.from_dp_sgd([(12.0, 1 / 35, 175)])
PAPERS_VOTES = dt.IndependentVotes(mean=0.75)


def row_of(plan: Plan, name: str) -> Strategy:
    return next(row for row in plan.rows if row.name == name)


def agreement_by_enumeration(row: Strategy, teachers: int, mean: float) -> float:
    """Over all 2^K vote vectors, one at a time: what the planner sums over counts."""
    assert row.mechanism is not None
    total = 0.0
    for votes in itertools.product((0, 1), repeat=teachers):
        ones, counted = sum(votes), sum(votes[: row.voters])
        one = row.mechanism.label_probabilities(np.array([[row.voters - counted, counted]]))[0, 1]
        right = 1.0 if 2 * ones == teachers else one if 2 * ones > teachers else 1 - one
        total += mean**ones * (1 - mean) ** (teachers - ones) * right
    return total


def accuracy_by_enumeration(row: Strategy, mean: float) -> float:
    """The chance of label 1 over all vote vectors of the teachers that vote, each of which is right independently."""
    assert row.mechanism is not None
    total = 0.0
    for votes in itertools.product((0, 1), repeat=row.voters):
        ones = sum(votes)
        label = row.mechanism.label_probabilities(np.array([[row.voters - ones, ones]]))[0, 1]
        total += mean**ones * (1 - mean) ** (row.voters - ones) * label
    return total


def darrm_agreement(gamma: np.ndarray, mean: float) -> float:
    """The paper's definition: the majority with probability gamma, else a coin."""
    K = len(gamma) - 1
    law = stats.binom.pmf(np.arange(K + 1), K, mean)
    return float(law @ (gamma + (1 - gamma) / 2))


@pytest.mark.parametrize("overlap", [pytest.param(1, marks=pytest.mark.slow), 11])
def test_paper_setting_needs_no_noise(overlap: int) -> None:
    """K = 11, sigma = 12, rate 1/35, 175 steps: eleven such teachers cost (0.2544, 3e-4), under three of them."""
    target = PrivacyGuarantee(epsilon=3 * 0.0852, delta=3e-4)
    answer = dt.plan(teachers=11, teacher=PAPER, overlap=overlap, labels=100, label_target=target, total_target=target)
    assert answer.best is not None
    assert answer.best.name == "noise-free majority"
    assert answer.best.agreement == 1.0
    assert answer.best.total.epsilon <= 0.2556
    assert "No noise is needed" in answer.best.reason
    assert "MeanProbabilities" in str(answer)  # soft labels cost the same
    assert row_of(answer, "GNMax").agreement < 0.99


@pytest.mark.slow
def test_one_teachers_cost_with_full_overlap_wants_darrm_with_the_profile() -> None:
    """m = 1, r = K: publishing the teachers costs 0.2913 at 1e-4, more than three times as much as one label may."""
    target = PrivacyGuarantee(epsilon=0.0852, delta=1e-4)
    answer = dt.plan(teachers=11, teacher=PAPER, label_target=target, prior=PAPERS_VOTES)
    best = answer.best
    assert best is not None
    assert best.name == "DaRRM, whole profile"
    gamma = best.mechanism.noise.gamma
    assert best.agreement == pytest.approx(darrm_agreement(gamma, 0.75), abs=1e-12)
    assert best.agreement > row_of(answer, "DaRRM, one point").agreement + 0.1
    # Proven again.
    kept = PrivacyProfile.from_guarantee(*best.mechanism.noise.certificate.teacher)
    assert dt.label_profile(gamma, teachers=11, teacher=kept)(0.0852) <= 1e-4
    one = row_of(answer, "noise-free, 1 of 11")
    assert one.meets
    assert one.agreement == pytest.approx(agreement_by_enumeration(one, 11, 0.75), abs=1e-12)
    whole = row_of(answer, "noise-free majority")
    assert not whole.meets
    assert whole.total.epsilon == pytest.approx(0.24575, abs=1e-4)  # one label, by its own curve
    assert "Too expensive" in whole.reason


@pytest.mark.parametrize(
    ("labels", "targets"),
    [
        pytest.param(1, {"label_target": PrivacyGuarantee(epsilon=1.0, delta=1e-5)}, marks=pytest.mark.slow),
        pytest.param(5, {"total_target": PrivacyGuarantee(epsilon=2.0, delta=1e-5)}, marks=pytest.mark.slow),
        (10, {"total_target": PrivacyGuarantee(epsilon=4.0, delta=0.0)}),
    ],
)
def test_teachers_with_large_epsilon_need_the_optimal_majority(labels: int, targets: dict) -> None:
    teacher = PrivacyGuarantee(epsilon=8.0, delta=1e-5)
    prior = PAPERS_VOTES
    answer = dt.plan(teachers=11, teacher=teacher, overlap=1, labels=labels, prior=prior, **targets)
    best = answer.best
    assert best is not None
    assert best.name == "optimal majority"
    assert best.own_randomness
    assert best.agreement == pytest.approx(darrm_agreement(best.mechanism.noise.gamma, 0.75), abs=1e-12)
    assert (
        best.agreement
        > row_of(answer, "permute-and-flip").agreement
        > row_of(answer, "exponential mechanism").agreement
    )
    # Private by its own randomness: neighbouring counts, enumerated.
    (target,) = targets.values()
    one = best.mechanism.noise.label_probability(np.arange(12))
    each = target if labels == 1 else best.label.guarantee
    for p in (one, 1 - one):
        assert np.all(p[1:] <= math.exp(each.epsilon) * p[:-1] + each.delta + 1e-12)
        assert np.all(p[:-1] <= math.exp(each.epsilon) * p[1:] + each.delta + 1e-12)
    assert "by the mechanism's own randomness alone" in best.reason
    assert "trained without" in str(answer)


@pytest.mark.slow
def test_without_a_word_about_the_teachers_it_says_what_they_would_need() -> None:
    target = PrivacyGuarantee(epsilon=0.1, delta=1e-4)
    answer = dt.plan(teachers=11, label_target=target)
    assert answer.best is not None
    assert answer.best.own_randomness
    assert "hardly better than a coin" in str(answer)
    needed = answer.teachers_needed(0.95)
    assert needed.teacher is not None
    better = dt.plan(teachers=11, teacher=needed.teacher, label_target=target)
    assert better.best.agreement >= 0.95
    worse = PrivacyGuarantee(epsilon=needed.teacher.epsilon * 1.05, delta=needed.teacher.delta)
    assert dt.plan(teachers=11, teacher=worse, label_target=target).best.agreement < 0.95


@pytest.mark.slow
@pytest.mark.parametrize(("overlap", "epsilon"), [(1, 8.0), (2, 4.0)])
def test_deltas_of_the_teachers_that_a_record_affects_add_up_to_the_target(overlap: int, epsilon: float) -> None:
    ask = {"teachers": 5, "overlap": overlap, "labels": 1000}
    target = PrivacyGuarantee(epsilon=8.0, delta=1e-5)
    for teacher in (None, PrivacyGuarantee(epsilon=0.1, delta=1e-3)):  # nothing, or a delta that is too large
        needed = dt.plan(total_target=target, teacher=teacher, **ask).teachers_needed(0.95).teacher
        assert needed.delta == 1e-5 / overlap
        assert epsilon * 0.999 < needed.epsilon <= epsilon * 1.001
        assert dt.plan(total_target=target, teacher=needed, **ask).best.name == "noise-free majority"


@pytest.mark.slow
def test_what_an_agreement_costs_is_the_least() -> None:
    teacher = PrivacyGuarantee(epsilon=0.1, delta=1e-5)
    answer = dt.plan(teachers=5, teacher=teacher, label_target=PrivacyGuarantee(epsilon=0.1, delta=1e-4))
    costs = dict(answer.costs(0.9))
    assert list(costs.values()) == sorted(costs.values())
    for name in ("DaRRM, one point", "self-bounding noise", "optimal majority"):
        assert row_of(answer.at(costs[name]), name).agreement >= 0.9
        assert row_of(answer.at(costs[name] * 0.98), name).agreement < 0.9


@pytest.mark.slow
def test_what_fewer_teachers_cost_is_not_said_of_all() -> None:
    """Five of eleven agree to 0.907 and cost three teachers; all eleven cost six."""
    teacher = PrivacyGuarantee(epsilon=0.1, delta=1e-5)
    target, prior = PrivacyGuarantee(epsilon=0.5, delta=1e-4), PAPERS_VOTES
    answer = dt.plan(teachers=11, teacher=teacher, label_target=target, prior=prior)
    costs = dict(answer.costs(0.9))
    assert "noise-free majority" not in costs
    assert row_of(answer.at(costs["noise-free, 5 of 11"]), "noise-free, 5 of 11").agreement >= 0.9
    # Six teachers' cost is 0.6; the label's own curve is slightly less.
    assert dict(answer.costs(1.0))["noise-free majority"] == pytest.approx(0.596, rel=0.003)


@pytest.mark.slow
def test_noise_and_steps_that_teachers_need() -> None:
    target = PrivacyGuarantee(epsilon=0.0852, delta=1e-4)
    answer = dt.plan(teachers=11, teacher=PAPER, label_target=target)
    needed = answer.teachers_needed(1.0)
    assert needed.noise_multiplier is not None
    assert needed.steps is not None
    for noise, steps, kept in (
        (needed.noise_multiplier, 175, True),
        (needed.noise_multiplier * 0.97, 175, False),
        (12.0, needed.steps, True),
        (12.0, needed.steps + 2, False),
    ):
        teacher = PrivacyProfile.from_dp_sgd([(noise, 1 / 35, steps)])
        best = dt.plan(teachers=11, teacher=teacher, label_target=target).best
        assert (best.agreement >= 1 - 1e-12) == kept


@pytest.mark.slow
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
def test_for_any_request_rows_keep_their_claims(
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
    accuracies = [round(row.accuracy, 3) for row in met]
    assert accuracies == sorted(accuracies, reverse=True)
    for row in answer.rows:
        assert row.reason.endswith((".", ")"))
        if row.mechanism is None:
            assert not row.meets
            continue
        assert row.meets == (row.total.epsilon <= epsilon)
        if teachers <= 5:
            assert row.agreement == pytest.approx(agreement_by_enumeration(row, teachers, mean), abs=1e-9)
            assert row.accuracy == pytest.approx(accuracy_by_enumeration(row, mean), abs=1e-9)


@pytest.mark.parametrize("sample", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, 7, 9)), 5])
def test_a_target_of_so_many_teachers_is_met_to_the_last_digit(sample: int) -> None:
    """Three times the double 0.1 is more than the double 0.3, which must nevertheless be kept, and by five votes."""
    m, teacher = (sample + 1) // 2, PrivacyGuarantee(epsilon=0.1, delta=1e-5)
    target = PrivacyGuarantee(epsilon=m / 10, delta=m / 100_000)
    row = row_of(dt.plan(teachers=11, teacher=teacher, label_target=target), "subsampling")
    alone = dt.strongest_mechanism("subsampling", teachers=11, classes=2, teacher=teacher, label_target=target)
    again = eval(row.code, {"dt": dt})
    gamma = dt.subsampling_noise(teachers=11, allowance=sample).gamma
    for made in (row.mechanism, alone, again):
        assert np.abs(made.noise.gamma / gamma - 1).max() < 1e-8
        proven = dt.total_privacy(teachers=[teacher] * 11, mechanism=made, labels=1, delta=target.delta)
        assert proven.epsilon <= target.epsilon
    assert row.meets


def test_a_target_of_so_many_teachers_is_met_by_a_table_of_three_classes() -> None:
    teacher, target = PrivacyGuarantee(epsilon=0.1, delta=1e-5), PrivacyGuarantee(epsilon=0.3, delta=3e-5)
    row = row_of(dt.plan(teachers=11, classes=3, teacher=teacher, label_target=target), "subsampling")
    assert row.meets
    five = dt.SelfBoundingPlurality(teachers=11, classes=3, allowance=5.0, sample=5)
    counts = np.array([[6, 3, 2], [4, 4, 3], [11, 0, 0]])
    assert np.abs(row.mechanism.label_probabilities(counts) - five.label_probabilities(counts)).max() < 1e-7


def test_a_cost_above_the_target_by_rounding_alone_is_explained() -> None:
    target = PrivacyGuarantee(epsilon=0.3, delta=3e-5)
    ask = {"teachers": 5, "teacher": PrivacyGuarantee(epsilon=0.1, delta=1e-5)}
    cost = row_of(dt.plan(label_target=target, **ask), "noise-free majority").total.epsilon
    less = PrivacyGuarantee(epsilon=math.nextafter(cost, 0.0), delta=3e-5)
    answer = dt.plan(label_target=less, **ask)
    assert "3e-05)-DP (slightly more than the target)." in row_of(answer, "noise-free majority").reason
    assert answer.best.agreement > 1 - 1e-6


def test_even_numbers_of_teachers_count_a_tie_as_agreement() -> None:
    target, prior = PrivacyGuarantee(epsilon=1.0, delta=1e-4), PAPERS_VOTES
    answer = dt.plan(teachers=4, teacher=PAPER, label_target=target, prior=prior)
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
    again = eval(best.code, {"dt": dt})
    assert np.array_equal(again.noise.gamma, best.mechanism.noise.gamma)


@pytest.mark.slow
def test_unlike_profiles_are_priced_as_they_are() -> None:
    """Two teachers that one record can affect cost their sum, and any one of them at most what the weaker one costs."""
    profiles = [PAPER, PrivacyProfile.from_dp_sgd([(10.0, 1 / 35, 175)])]
    target = PrivacyGuarantee(epsilon=0.2, delta=1e-4)
    mixed, weakest = (dt.plan(teachers=2, teacher=teacher, label_target=target) for teacher in (profiles, profiles[1]))
    published, weaker = (row_of(answer, "noise-free majority").total.routes[0] for answer in (mixed, weakest))
    assert published.epsilon == profiles[0].compose(profiles[1]).epsilon(1e-4)
    assert published.epsilon < weaker.epsilon
    for overlap in (1, 2):
        ask = {"teachers": 2, "label_target": target, "overlap": overlap}
        assert dt.plan(teacher=profiles, **ask).best.agreement >= dt.plan(teacher=profiles[1], **ask).best.agreement


def test_unlike_guarantees_are_priced_as_they_are() -> None:
    unlike = [PrivacyGuarantee(epsilon=e, delta=d) for e, d in ((0.1, 1e-5), (0.2, 0.0), (0.05, 1e-6))]
    target, weakest = PrivacyGuarantee(epsilon=0.5, delta=1e-4), PrivacyGuarantee(epsilon=0.2, delta=1e-5)
    answer = dt.plan(teachers=3, teacher=unlike, label_target=target, overlap=2)
    assert "the weakest set the price" in " ".join(str(answer).split())
    assert "-DP or better; one record affects at most 2 of them" in " ".join(str(answer).split())
    free = row_of(dt.plan(teachers=3, teacher=unlike, label_target=target), "noise-free majority")
    assert free.total.epsilon <= 0.35 * (1 + 1e-9)  # the sum
    ask = {"teachers": 3, "classes": 3, "label_target": target}
    assert dt.strongest_mechanism("self-bounding", teacher=unlike, **ask).allowance >= (
        dt.strongest_mechanism("self-bounding", teacher=weakest, **ask).allowance
    )


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
        ({"teacher": [PrivacyGuarantee(epsilon=0.1)]}, "teacher"),
        ({"teacher": (0.1, 1e-5)}, "teacher"),
        ({"label_target": (8, 1e-5)}, "label_target"),
        ({"total_target": (8, 1e-5)}, "total_target"),
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


# --- more than two classes --------------------------------------------------------------------------------------------

BELIEFS = (dt.PluralityVotes(accuracy=0.6), dt.PluralityVotes(accuracy=0.5, concentration=2.0))


def chance_of_votes(votes: tuple[int, ...], classes: int, belief: dt.PluralityVotes) -> float:
    """Drawn one after the other from Polya's urn; class 0 is the true one."""
    chance, seen = 1.0, [0] * classes
    for number, vote in enumerate(votes):
        mean = belief.accuracy if vote == 0 else (1 - belief.accuracy) / (classes - 1)
        if math.isinf(belief.concentration):
            chance *= mean
        else:
            chance *= (belief.concentration * mean + seen[vote]) / (belief.concentration + number)
        seen[vote] += 1
    return chance


def agreement_over_all_votes(
    row: Strategy, teachers: int, classes: int, beliefs: tuple[dt.PluralityVotes, ...]
) -> float:
    """Over all C^K votes; of a part of the teachers, the first."""
    assert row.mechanism is not None
    everything = list(itertools.product(range(classes), repeat=teachers))
    counts = np.array([np.bincount(votes, minlength=classes) for votes in everything])
    counted = np.array([np.bincount(votes[: row.voters], minlength=classes) for votes in everything])
    law = row.mechanism.label_probabilities(counted)
    reported = [sum(p[c] for c in range(classes) if n[c] == max(n)) for p, n in zip(law, counts, strict=True)]
    chances = np.mean([[chance_of_votes(votes, classes, one) for votes in everything] for one in beliefs], axis=0)
    assert chances.sum() == pytest.approx(1.0)
    return float(chances @ reported)


@pytest.mark.parametrize(
    "ask",
    [
        {"teacher": PrivacyGuarantee(epsilon=0.3), "label_target": PrivacyGuarantee(epsilon=0.8, delta=1e-5)},
        pytest.param(
            {"teacher": PAPER, "labels": 3, "total_target": PrivacyGuarantee(epsilon=0.12, delta=1e-4)},
            marks=pytest.mark.slow,
        ),
        pytest.param({"overlap": 1, "label_target": PrivacyGuarantee(epsilon=1.0, delta=1e-3)}, marks=pytest.mark.slow),
        pytest.param(
            {
                "teacher": PrivacyGuarantee(epsilon=1.0, delta=1e-7),
                "overlap": 1,
                "labels": 4,
                "label_target": PrivacyGuarantee(epsilon=0.7, delta=1e-5),
                "total_target": PrivacyGuarantee(epsilon=0.9, delta=1e-5),
            },
            marks=pytest.mark.slow,
        ),
    ],
    ids=["all overlap", "whole profile", "no privacy", "disjoint"],
)
@pytest.mark.parametrize("teachers", [4, pytest.param(5, marks=pytest.mark.slow)])
def test_agreement_of_many_classes_is_that_over_all_votes(teachers: int, ask: dict) -> None:
    answer = dt.plan(teachers=teachers, classes=3, prior=BELIEFS, **ask)
    checked = 0
    for row in answer.rows:
        if row.mechanism is None:
            assert row.agreement is None
            continue
        assert row.agreement == pytest.approx(agreement_over_all_votes(row, teachers, 3, BELIEFS), abs=1e-9)
        assert row.standard_error == 0.0
        assert row.meets == all(
            bound.epsilon <= target.epsilon
            for bound, target in ((row.label, answer.label_target), (row.total, answer.total_target))
            if target is not None
        )
        checked += 1
    assert checked >= 7
    met = [round(row.accuracy, 3) for row in answer.rows if row.meets]
    assert met == sorted(met, reverse=True)


@pytest.mark.parametrize(
    ("ask", "best"),
    [
        # One record affects one teacher, which keeps the target by itself: the paper's own experiment.
        pytest.param(
            {"teacher": PAPER, "overlap": 1, "label_target": PrivacyGuarantee(epsilon=0.2, delta=3e-4)},
            "noise-free",
            marks=pytest.mark.slow,
        ),
        (
            {"teacher": PrivacyGuarantee(epsilon=0.1), "label_target": PrivacyGuarantee(epsilon=0.3)},
            "self-bounding plurality",
        ),
        pytest.param(
            {
                "teacher": PrivacyGuarantee(epsilon=1.0, delta=1e-7),
                "overlap": 1,
                "label_target": PrivacyGuarantee(epsilon=0.7, delta=1e-5),
            },
            "vote-private table + training",
            marks=pytest.mark.slow,
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_best_of_ten_classes(ask: dict, best: str) -> None:
    """More of them: tests/planning/test_families.py."""
    answer = dt.plan(teachers=11, classes=10, **ask)
    assert answer.best is not None
    assert answer.best.name.startswith(best)
    check_plan_of_many_classes(answer)


@pytest.mark.slow
def test_every_guarantee_of_three_classes_holds_for_the_worst_teacher() -> None:
    """One of K = 4 teachers changes, the others' votes any: a pure epsilon-DP teacher's extreme pairs, enumerated.

    Such a pair is two classes with chances e^eps : 1, exchanged; without privacy any vote becomes any other.
    """
    eps, target = 1.0, PrivacyGuarantee(epsilon=0.6, delta=1e-3)
    answer = dt.plan(
        teachers=4, classes=3, teacher=PrivacyGuarantee(epsilon=eps), overlap=1, label_target=target, prior=BELIEFS
    )
    names = {row.name for row in answer.rows if row.meets}
    assert {"self-bounding plurality", "vote-private table", "vote-private table + training"} <= names
    assert {
        "permute-and-flip + training",
        "GNMax + training",
        "GNMax, calibrated on the label",
        "randomized response",
    } <= names
    others = [np.bincount(votes, minlength=3) for votes in itertools.product(range(3), repeat=3)]
    for row in answer.rows:
        if not row.meets:
            continue
        worst = 0.0
        for rest in others:
            law = row.mechanism.label_probabilities(rest + np.eye(3, dtype=np.int64))
            high = 1.0 if row.own_randomness else math.exp(eps) / (1 + math.exp(eps))
            for i, j in itertools.permutations(range(3), 2):
                here, there = high * law[i] + (1 - high) * law[j], high * law[j] + (1 - high) * law[i]
                worst = max(worst, float(np.maximum(here - math.exp(row.label.epsilon) * there, 0).sum()))
        assert worst <= row.label.delta + 1e-12, row.name
    # A label that is reported without noise is caught by the same enumeration.
    plain = dt.NoiseFreeMajority().label_probabilities(np.array([[2, 2, 0], [1, 3, 0]]))
    high = math.exp(eps) / (1 + math.exp(eps))
    here, there = high * plain[0] + (1 - high) * plain[1], high * plain[1] + (1 - high) * plain[0]
    assert np.maximum(there - math.exp(0.3) * here, 0).sum() > 1e-3


@pytest.mark.slow
@settings(deadline=None, derandomize=True, max_examples=6)
@given(
    teachers=st.integers(1, 6),
    classes=st.integers(3, 5),
    overlap=st.integers(1, 6),
    labels=st.sampled_from([1, 3, 50]),
    teacher=st.floats(0.01, 5.0),
    epsilon=st.floats(0.05, 5.0),
    delta=st.sampled_from([0.0, 1e-5, 1e-3]),
)
def test_for_any_request_of_many_classes_rows_keep_their_claims(
    teachers: int, classes: int, overlap: int, labels: int, teacher: float, epsilon: float, delta: float
) -> None:
    answer = dt.plan(
        teachers=teachers,
        classes=classes,
        teacher=PrivacyGuarantee(epsilon=teacher, delta=1e-6),
        overlap=min(overlap, teachers),
        labels=labels,
        total_target=PrivacyGuarantee(epsilon=epsilon, delta=delta),
    )
    met = [row for row in answer.rows if row.meets]
    assert met
    assert list(answer.rows[: len(met)]) == met
    assert len({row.name for row in answer.rows}) == len(answer.rows)
    for row in answer.rows:
        assert row.reason.endswith((".", ")"))
        assert (row.mechanism is None) == (row.agreement is None)
        if row.mechanism is not None:
            assert row.meets == (row.total.epsilon <= epsilon)
            assert 0.0 <= row.agreement <= 1.0
            again = eval(row.code, {"dt": dt, "math": math})
            votes = np.zeros((1, classes), dtype=np.int64)
            votes[0, :2] = row.voters - row.voters // 2, row.voters // 2
            assert np.array_equal(again.label_probabilities(votes), row.mechanism.label_probabilities(votes))


@pytest.mark.parametrize("teachers", [5, 11, pytest.param(21, marks=pytest.mark.slow)])
def test_self_bounding_noise_of_two_classes_is_the_table_of_two(teachers: int) -> None:
    answer = dt.plan(
        teachers=teachers,
        teacher=PrivacyGuarantee(epsilon=0.1, delta=1e-6),
        label_target=PrivacyGuarantee(epsilon=0.25, delta=1e-4),
        prior=PAPERS_VOTES,
    )
    row = row_of(answer, "self-bounding noise")
    allowance = row.mechanism.noise.certificate.allowance
    table = dt.SelfBoundingPlurality(
        teachers=teachers, classes=2, allowance=allowance, prior=dt.PluralityVotes(accuracy=0.75)
    )
    ones = np.arange(teachers + 1)
    reported = table.label_probabilities(np.stack([teachers - ones, ones], axis=1)).max(axis=1)
    assert float(stats.binom.pmf(ones, teachers, 0.75) @ reported) == pytest.approx(row.agreement, abs=1e-9)


@pytest.mark.slow
def test_what_an_agreement_of_three_classes_costs_is_the_least() -> None:
    answer = dt.plan(
        teachers=5,
        classes=3,
        teacher=PrivacyGuarantee(epsilon=0.5, delta=1e-6),
        overlap=1,
        label_target=PrivacyGuarantee(epsilon=0.3, delta=1e-4),
    )
    costs = dict(answer.costs(0.8))
    assert list(costs.values()) == sorted(costs.values())
    assert "GNMax, calibrated on the label" in costs
    for name in ("vote-private table", "vote-private table + training", "self-bounding plurality"):
        assert row_of(answer.at(costs[name]), name).agreement >= 0.8
        assert row_of(answer.at(costs[name] * 0.98), name).agreement < 0.8
    # Above what no noise costs, noise is of no interest.
    assert all(cost < costs["noise-free, 3 of 5"] for name, cost in costs.items() if name.endswith("training"))


@pytest.mark.slow
def test_teachers_needed_for_three_classes() -> None:
    target = PrivacyGuarantee(epsilon=0.5, delta=1e-5)
    asked = {"teachers": 5, "classes": 3, "label_target": target}
    needed = dt.plan(**asked).teachers_needed(0.8)
    assert needed.teacher is not None
    assert dt.plan(**asked, teacher=needed.teacher).best.agreement >= 0.8
    worse = PrivacyGuarantee(epsilon=needed.teacher.epsilon * 1.05, delta=needed.teacher.delta)
    assert dt.plan(**asked, teacher=worse).best.agreement < 0.8


@pytest.mark.slow
def test_where_histograms_are_too_many_agreement_has_an_error() -> None:
    answer = dt.plan(
        teachers=60,
        classes=4,
        teacher=PrivacyGuarantee(epsilon=0.1),
        label_target=PrivacyGuarantee(epsilon=0.4),
        prior=dt.PluralityVotes(accuracy=0.4),
    )
    assert "to a standard error of" in " ".join(str(answer).split())
    best = answer.best
    assert best.name == "self-bounding plurality"
    assert "Each label looks at" in best.reason
    assert 0 < best.standard_error < 0.01
    rng = np.random.default_rng(7)
    counts = rng.multinomial(60, [0.4, 0.2, 0.2, 0.2], size=600)
    reported = (best.mechanism.label_probabilities(counts) * (counts == counts.max(axis=1, keepdims=True))).sum(axis=1)
    # Two independent estimates; 5 standard errors: a false alarm in a million.
    assert abs(reported.mean() - best.agreement) <= 5 * math.hypot(reported.std() / math.sqrt(600), best.standard_error)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"classes": 1}, "classes"),
        ({"classes": 2.5}, "classes"),
        ({"classes": 3, "prior": dt.IndependentVotes(mean=0.75)}, "prior"),
        ({"classes": 2, "prior": dt.PluralityVotes(accuracy=0.75)}, "prior"),
        ({"classes": 10, "prior": dt.PluralityVotes(accuracy=0.05)}, "accuracy"),
        ({"classes": 3, "prior": ()}, "prior"),
    ],
)
def test_bad_classes_are_one_clear_error(changes: dict, named: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        dt.plan(**{"teachers": 5, "label_target": PrivacyGuarantee(epsilon=0.1, delta=1e-4)} | changes)
    assert caught.value.name == named


@pytest.mark.slow
def test_noise_whose_teachers_may_be_released_is_as_little_as_can_be() -> None:
    # Publishing one teacher is (0.1, 1e-6)-DP for any number of labels; 100 labels that add up would be 10.
    point = PrivacyGuarantee(epsilon=0.1, delta=1e-6)
    target = PrivacyGuarantee(epsilon=0.2, delta=1e-4)
    answer = dt.plan(teachers=11, teacher=point, overlap=1, labels=100, total_target=target)
    rows = {row.name: row for row in answer.rows}
    assert rows["self-bounding noise"].agreement == 1.0
    assert rows["self-bounding noise"].total.epsilon == rows["noise-free majority"].total.epsilon


def test_a_target_at_the_teachers_own_delta_leaves_one_whole_teacher() -> None:
    point = PrivacyGuarantee(epsilon=0.0852, delta=1e-4)
    answer = dt.plan(teachers=11, teacher=point, label_target=PrivacyGuarantee(epsilon=0.1, delta=1e-4))
    rows = {row.name: row for row in answer.rows}
    for name in ("subsampling", "self-bounding noise", "noise-free, 1 of 11"):
        assert rows[name].meets
        assert rows[name].label.guarantee == point
    assert eval(rows["noise-free, 1 of 11"].code, {"dt": dt}) == dt.NoiseFreeMajority(classes=2, teachers=11, jury=1)
    assert "their deltas alone add up to more" in rows["noise-free majority"].reason


@pytest.fixture(scope="module")
def allocated() -> Plan:
    """Too little for all teachers, enough for a jury or for noise."""
    total = PrivacyGuarantee(epsilon=0.01, delta=3e-4)
    allocation = dt.RandomAllocation(teachers=11)
    return dt.plan(teachers=11, teacher=PAPER, labels=3, total_target=total, allocation=allocation, prior=PAPERS_VOTES)


@pytest.mark.slow
def test_every_row_is_priced_with_the_allocation(allocated: Plan) -> None:
    for row in allocated.rows:
        if row.mechanism is None:
            continue
        assert row.total is not None
        assert row.without_allocation is not None
        keys = [route.key for route in row.total.routes]
        if row.rests_on == "randomness":  # protects whatever the teachers are, so it does not need the allocation
            assert "allocation" not in keys
            assert row.without_allocation == row.total.epsilon
            continue
        again = dt.total_privacy(
            teachers=[PAPER] * 11, mechanism=row.mechanism, labels=3, delta=3e-4, allocation=allocated.allocation
        )
        assert again == row.total
        plain = dt.total_privacy(teachers=[PAPER] * 11, overlap=1, mechanism=row.mechanism, labels=3, delta=3e-4)
        assert row.without_allocation == plain.epsilon >= row.total.epsilon
        assert row.meets == (row.total.epsilon <= 0.01)
    free = row_of(allocated, "noise-free majority")
    assert free.total is not None
    assert free.total.epsilon == pytest.approx(0.014, abs=2e-4)
    assert free.without_allocation == pytest.approx(0.0626, abs=1e-4)


@pytest.mark.slow
def test_juries_allocation_and_noise_stand_side_by_side(allocated: Plan) -> None:
    jury, noise = row_of(allocated, "noise-free, 5 of 11"), row_of(allocated, "self-bounding noise")
    assert allocated.best is jury
    assert jury.meets
    assert noise.meets
    assert (jury.agreement or 0) > (noise.agreement or 1)
    proof = noise.mechanism.certificate
    assert (proof.overlap, noise.total.route.key) == (11, "allocation-self-bounding")  # never the allowance of r = 1
    assert allocated.juries_win_from == pytest.approx(0.00258, abs=1e-5)
    lines = str(allocated).splitlines()
    assert max(map(len, lines)) < 80
    text = " ".join(" ".join(lines).split())
    assert "each record drew 1 of them at random and in secret, as stated by the user" in text
    assert "epsilon of all 3 labels with without" in text
    assert "noise-free, 5 of 11 0.00835 0.05256" in text
    assert "Where which wins: from epsilon 0.01403 on, all 11 teachers vote without noise" in text
    assert "a jury (fewer teachers, no noise) agrees more often than self-bounding noise from about 0.002584 on" in text
    assert "Price of all 3 labels with random allocation: (0.00834902, 0.0003)-DP. Without it, or if the draws" in text
    plain = allocated.to_dict()
    assert dt.RandomAllocation.from_dict(plain["allocation"]) == allocated.allocation
    assert plain["juries_win_from"] == allocated.juries_win_from


@pytest.mark.slow
def test_noise_wins_for_one_label_of_a_small_total() -> None:
    """One label: a random voter costs as much either way, and with more to spend noise gains on a jury first."""
    total = PrivacyGuarantee(epsilon=0.005, delta=3e-4)
    answer = dt.plan(
        teachers=11,
        teacher=PAPER,
        total_target=total,
        allocation=dt.RandomAllocation(teachers=11),
        prior=PAPERS_VOTES,
    )
    assert answer.juries_win_from is not None
    assert total.epsilon < answer.juries_win_from < 0.014
    noise, jury = row_of(answer, "self-bounding noise"), row_of(answer, "noise-free, 1 of 11")
    assert (noise.agreement or 0) > (jury.agreement or 1)


@pytest.mark.slow
def test_a_price_that_needs_no_secret_says_so() -> None:
    strict = PrivacyGuarantee(epsilon=0.01, delta=1e-4)
    answer = dt.plan(teachers=11, teacher=PAPER, label_target=strict, allocation=dt.RandomAllocation(teachers=11))
    assert answer.best is not None
    assert answer.best.name == "DaRRM, whole profile"
    assert "This price does not need the random allocation" in str(answer)


@pytest.mark.slow
def test_many_classes_with_an_allocation() -> None:
    """About ten seconds."""
    total = PrivacyGuarantee(epsilon=0.01, delta=3e-4)
    answer = dt.plan(
        teachers=11, teacher=PAPER, classes=10, labels=3, total_target=total,
        allocation=dt.RandomAllocation(teachers=11),
    )  # fmt: skip
    assert answer.best is not None
    assert answer.best.name == "noise-free, 6 of 11"
    for row in answer.rows:
        assert not row.meets or (row.total is not None and row.total.epsilon <= total.epsilon)
    combined = row_of(answer, "permute-and-flip + training")
    assert "allocation=dt.RandomAllocation(teachers=11)" in combined.code
    assert eval(combined.code, {"dt": dt}) == combined.mechanism
    noise = row_of(answer, "self-bounding plurality")
    assert eval(noise.code, {"dt": dt}) == noise.mechanism
    assert max(map(len, str(answer).splitlines())) < 80
