"""Beliefs: stated accuracies are those of the votes that they become, and defaults follow from each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import darrm_torch as dt
from darrm_torch import BetaVotes, InvalidArgument, NoiseFreeMajority, PluralityVotes
from darrm_torch.planning.beliefs import stated_beliefs, typical_votes


def together(prior: Any, teachers: int, classes: int = 2) -> float:
    """The accuracy of the majority or the plurality, by the library's own expectation."""
    return dt.expected_accuracy(NoiseFreeMajority(), teachers=teachers, classes=classes, prior=prior)[0]


@settings(deadline=None, derandomize=True, max_examples=40)
@given(teachers=st.integers(3, 60), one=st.floats(0.52, 0.97), gain=st.floats(0.05, 0.8))
def test_a_pair_of_accuracies_is_that_of_the_votes(teachers: int, one: float, gain: float) -> None:
    """Of one teacher, and of the majority of all; as far as votes of such teachers can be so accurate together."""
    most = together(dt.IndependentVotes(mean=one), teachers)
    least = together(BetaVotes(a=one * 0.02, b=(1 - one) * 0.02), teachers)
    wanted = least + gain * (most - least)
    belief, _ = stated_beliefs(teachers=teachers, classes=2, is_private=True, teacher_accuracy=(one, wanted))
    assert isinstance(belief, BetaVotes)
    assert belief.law(1)[1] == pytest.approx(one, abs=1e-4)
    assert together(belief, teachers) == pytest.approx(wanted, abs=2e-3)


@pytest.mark.parametrize(("pair", "unanimous"), [((0.8, 0.7), True), ((0.8, 0.9999), False)])
def test_impossible_pairs_become_the_nearest_votes(pair: tuple[float, float], unanimous: bool) -> None:
    belief, _ = stated_beliefs(teachers=5, classes=2, is_private=True, teacher_accuracy=pair)
    law = belief.law(5)
    assert (law[0] + law[5] > 0.9) == unanimous
    assert belief.law(1)[1] == pytest.approx(0.8, abs=1e-3)


def test_where_nothing_is_stated_plain_teachers_are_as_good_as_many_private_ones() -> None:
    private, plain = stated_beliefs(teachers=11, classes=2, is_private=True)
    assert (private, plain) == (typical_votes(2), typical_votes(2, plain=True))
    assert plain.law(1)[1] == pytest.approx(together(private, 2001), abs=0.006)
    assert stated_beliefs(teachers=11, classes=2, is_private=False) == (private, plain)
    stated = stated_beliefs(teachers=11, classes=2, is_private=False, teacher_accuracy=0.9)
    assert stated[0] == stated[1]
    assert stated_beliefs(teachers=11, classes=3, is_private=True) == (typical_votes(3), typical_votes(3, plain=True))


@pytest.mark.parametrize("accuracy", [0.55, 0.7, 0.9])
def test_one_stated_accuracy_is_enough(accuracy: float) -> None:
    ask: dict[str, Any] = {"teachers": 11, "classes": 2, "is_private": True}
    private, plain = stated_beliefs(teacher_accuracy=accuracy, **ask)
    assert private.law(1)[1] == pytest.approx(accuracy)
    assert plain.law(1)[1] == pytest.approx(together(private, 2001), abs=2e-3)
    private, plain = stated_beliefs(plain_accuracy=accuracy, **ask)
    assert plain.law(1)[1] == pytest.approx(accuracy)
    assert together(private, 2001) == pytest.approx(accuracy, abs=2e-3)
    assert 0.5 < private.law(1)[1] < accuracy


def test_a_prior_alone_stands_for_both() -> None:
    ask: dict[str, Any] = {"teachers": 11, "classes": 2, "is_private": True}
    one, other = dt.IndependentVotes(mean=0.6), dt.SharedVotes(low=0.6, high=0.9)
    assert stated_beliefs(prior=one, **ask) == (one, one)
    assert stated_beliefs(prior=one, plain_prior=other, **ask) == (one, other)
    assert stated_beliefs(plain_prior=other, **ask) == (typical_votes(2), other)
    many = PluralityVotes(accuracy=0.5)
    assert stated_beliefs(teachers=11, classes=3, is_private=True, prior=many) == ((many,), (many,))


def test_many_classes() -> None:
    ask: dict[str, Any] = {"teachers": 9, "classes": 4, "is_private": True}
    (part,), _ = stated_beliefs(teacher_accuracy=(0.6, 0.7), **ask)
    assert part.accuracy == 0.6
    assert together(part, 9, 4) == pytest.approx(0.7, abs=0.02)  # found with 4,000 draws
    (part,), _ = stated_beliefs(teacher_accuracy=0.6, **ask)
    assert part == PluralityVotes(accuracy=0.6, concentration=3.0)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"teacher_accuracy": 0.5}, "teacher_accuracy"),
        ({"teacher_accuracy": 1.0}, "teacher_accuracy"),
        ({"teacher_accuracy": float("nan")}, "teacher_accuracy"),
        ({"teacher_accuracy": "0.8"}, "teacher_accuracy"),
        ({"teacher_accuracy": (0.8, 0.9, 0.95)}, "teacher_accuracy"),
        ({"teacher_accuracy": ()}, "teacher_accuracy"),
        ({"teacher_accuracy": (0.8, 1.5)}, "teacher_accuracy"),
        ({"plain_accuracy": 0.4}, "plain_accuracy"),
        ({"teacher_accuracy": 0.8, "prior": dt.IndependentVotes()}, "teacher_accuracy"),
        ({"plain_accuracy": 0.8, "plain_prior": dt.IndependentVotes()}, "plain_accuracy"),
        ({"plain_prior": 0.8}, "plain_prior"),
        ({"plain_prior": PluralityVotes(accuracy=0.8)}, "plain_prior"),
    ],
)
def test_wrong_beliefs_are_named(wrong: dict[str, Any], named: str) -> None:
    target = dt.PrivacyGuarantee(epsilon=0.5, delta=1e-5)
    with pytest.raises(InvalidArgument) as caught:
        dt.plan(teachers=3, teacher=dt.PrivacyGuarantee(epsilon=0.5), label_target=target, **wrong)
    assert caught.value.name == named


def test_a_statement_says_who_wins() -> None:
    """Noise-free private teachers against nearly noise-free plain ones: the more accurate teachers are recommended."""
    ask: dict[str, Any] = {
        "teachers": 11,
        "overlap": 1,
        "teacher": dt.PrivacyGuarantee(epsilon=0.5, delta=1e-6),
        "total_target": dt.PrivacyGuarantee(epsilon=2.0, delta=1e-5),
    }
    better = dt.plan(**ask, teacher_accuracy=0.6, plain_accuracy=0.95).best
    assert better.own_randomness
    assert better.accuracy > 0.9
    assert dt.plan(**ask, teacher_accuracy=0.9, plain_accuracy=0.9).best.name == "noise-free majority"


@pytest.mark.slow
@settings(deadline=None, derandomize=True, max_examples=8)
@given(epsilon=st.floats(0.05, 1.0), labels=st.sampled_from([1, 20]), overlap=st.integers(1, 5))
def test_more_private_teachers_never_do_worse(epsilon: float, labels: int, overlap: int) -> None:
    """At the same stated accuracies: what rests on the teachers gets cheaper, and the recommendation no worse."""
    found = []
    for factor in (1.0, 0.5):
        answer = dt.plan(
            teachers=5,
            overlap=overlap,
            teacher=dt.PrivacyGuarantee(epsilon=epsilon * factor, delta=1e-7),
            labels=labels,
            total_target=dt.PrivacyGuarantee(epsilon=0.5, delta=1e-5),
            teacher_accuracy=(0.8, 0.85),
            plain_accuracy=0.85,
        )
        found.append(answer.best.accuracy)
    assert found[1] >= found[0] - 2e-3


def test_no_belief_reads_votes() -> None:
    """The same laws, whatever NumPy's global generator holds."""
    laws = []
    for seed in (0, 1):
        np.random.seed(seed)  # noqa: NPY002
        belief, _ = stated_beliefs(teachers=9, classes=3, is_private=True, teacher_accuracy=(0.6, 0.7))
        laws.append(belief)
    assert laws[0] == laws[1]


@pytest.mark.parametrize("name", ["teacher_accuracy", "plain_accuracy"])
@pytest.mark.parametrize("accuracy", [1 - 2.0**-53, (1 - 2.0**-53, 1 - 2.0**-52), 0.5 + 2.0**-52])
def test_every_accuracy_below_one_becomes_votes(name: str, accuracy: Any) -> None:
    beliefs = stated_beliefs(teachers=5, classes=2, is_private=True, **{name: accuracy})
    assert all(isinstance(belief, BetaVotes) for belief in beliefs)


@pytest.mark.parametrize("accuracy", [[], [0.7] * 3, range(10**12)])
def test_accuracies_are_one_or_two(accuracy: Any) -> None:
    with pytest.raises(InvalidArgument, match="teacher_accuracy must be a number, or two"):
        stated_beliefs(teachers=5, classes=2, is_private=True, teacher_accuracy=accuracy)
