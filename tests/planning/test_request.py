"""A request is checked when it is constructed."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest

import darrm_torch as dt
from darrm_torch import InvalidArgument, Plan, PluralityVotes, PrivacyGuarantee, PrivacyProfile, RandomAllocation
from darrm_torch.noise.priors import IndependentVotes
from darrm_torch.planning.request import Promised, Request

TARGET = PrivacyGuarantee(epsilon=1.0, delta=1e-5)


@pytest.mark.parametrize("kind", [Request, Plan])
@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"teachers": -3, "overlap": 99}, "teachers"),
        ({"overlap": 99}, "overlap"),
        ({"overlap": 0}, "overlap"),
        ({"classes": 1}, "classes"),
        ({"classes": 2.5}, "classes"),
        ({"labels": 0}, "labels"),
        ({"teacher": 0.1}, "teacher"),
        ({"teacher": [TARGET]}, "teacher"),
        ({"label_target": (1.0, 1e-5)}, "label_target"),
        ({"total_target": PrivacyGuarantee(epsilon=math.inf)}, "total_target.epsilon"),
        ({"allowance": math.nan}, "allowance"),
        ({"prior": 0.75}, "prior"),
        ({"classes": 3, "prior": IndependentVotes()}, "prior"),
        ({"allocation": RandomAllocation(teachers=4)}, "allocation"),
        ({"allocation": "random"}, "allocation"),
        ({"allocation": RandomAllocation(teachers=5), "overlap": 2}, "overlap"),
    ],
)
def test_what_cannot_be_does_not_construct(kind: Any, wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        kind(**{"teachers": 5, "label_target": TARGET} | wrong)
    assert caught.value.name == named


def test_a_plan_needs_a_target() -> None:
    with pytest.raises(InvalidArgument, match="label_target must be given, or total_target"):
        Plan(teachers=5)
    assert Request(teachers=5).requirements == []


def test_a_request_is_frozen_and_keeps_what_it_was_given_as_checked_values() -> None:
    unlike = [PrivacyGuarantee(epsilon=e) for e in (0.1, 0.3, 0.2)]
    request = Request(teachers=3, teacher=unlike, label_target=TARGET)
    assert request.teacher == PrivacyProfile.weakest(unlike)
    assert request.teacher.guarantees() == (unlike[1],)
    assert len(request.teacher.unlike) == 3
    assert request.overlap == 3
    assert replace(request, labels=2).teacher == request.teacher
    with pytest.raises(FrozenInstanceError):
        request.teachers = 4


def test_the_target_of_one_label_is_within_all_targets() -> None:
    total = PrivacyGuarantee(epsilon=0.5, delta=1e-3)
    request = Request(teachers=3, labels=9, label_target=TARGET, total_target=total)
    assert request.requirements == [(1, TARGET), (9, total)]
    assert request.one_label == PrivacyGuarantee(epsilon=0.5, delta=1e-5)


def test_priors_of_the_wrong_kind_are_named() -> None:
    many = Request(teachers=3, classes=2, prior=PluralityVotes(accuracy=0.7))
    assert many.plurality_prior == (PluralityVotes(accuracy=0.7),)
    with pytest.raises(InvalidArgument, match="prior must be IndependentVotes"):
        _ = many.majority_prior
    with pytest.raises(InvalidArgument, match="prior must be PluralityVotes"):
        _ = Request(teachers=3, prior=IndependentVotes()).plurality_prior


def test_only_an_odd_number_of_two_class_votes_is_worth_reading() -> None:
    assert Request(teachers=9).sample_sizes(6) == [1, 3, 5]
    assert Request(teachers=9, classes=3).sample_sizes(6) == [1, 3, 4, 5, 6]


def test_the_strongest_is_found_from_below() -> None:
    """Labels that add up: the target is so many teachers' worth, exactly."""
    teacher = PrivacyGuarantee(epsilon=0.1)
    request = Request(teachers=9, teacher=teacher, label_target=PrivacyGuarantee(epsilon=0.25))
    m = request.strongest(lambda m: Promised(allowance=m), 1e-6, 9.0)
    assert 2.5 * (1 - 2e-6) <= m <= 2.5
    assert request.strongest(lambda m: Promised(allowance=m), 1e-6, 2.0) == 2.0
    with pytest.raises(InvalidArgument, match="label_target must be one that some strength"):
        request.strongest(lambda m: Promised(allowance=m), 3.0, 9.0)


def test_an_allocation_says_how_many_teachers_a_record_affects() -> None:
    """With it, noise that adds up may be counted over all teachers; an allowance that is given keeps its meaning."""
    allocation = RandomAllocation(teachers=9, overlap=2)
    request = Request(teachers=9, allocation=allocation, label_target=TARGET)
    assert request.overlap == 2
    assert request.allowance_overlaps == (9, 2)
    assert replace(request, labels=3).overlap == 2
    assert Request(teachers=9, allocation=allocation, allowance=2.0).allowance_overlaps == (2,)
    assert Request(teachers=9, overlap=2, label_target=TARGET).allowance_overlaps == (2,)


def test_promised_noise_says_nothing_about_a_larger_overlap() -> None:
    promised = Promised(allowance=0.5, overlap=2)
    assert promised.self_bounding_allowance(teachers=9, overlap=2) == 0.5
    assert promised.self_bounding_allowance(teachers=9, overlap=9) == math.inf


def test_an_allowance_stands_for_the_targets() -> None:
    request = Request(teachers=9, allowance=2.5)
    assert request.strongest(lambda m: Promised(allowance=m), 1e-6, 9.0) == pytest.approx(2.5, rel=2e-6)
    with pytest.raises(InvalidArgument, match="allowance must be one that some strength"):
        request.strongest(lambda m: Promised(allowance=m), 3.0, 9.0)


@pytest.mark.parametrize(
    ("teacher", "cure"),
    [
        (None, r"got '\(0.1, 1e-05\)-DP for 1 label'. Nothing is stated of the teachers."),
        (dt.PrivacyGuarantee(epsilon=5.0, delta=1e-5), "Raise it, or state how many teachers one record can affect"),
    ],
)
def test_a_target_that_nothing_keeps_ends_with_what_to_do(teacher: dt.PrivacyGuarantee | None, cure: str) -> None:
    target = dt.PrivacyGuarantee(epsilon=0.1, delta=1e-5)
    with pytest.raises(dt.InvalidArgument, match=f"^label_target must be one that some strength .*{cure}"):
        dt.strongest_mechanism("noise-free", teachers=3, classes=2, teacher=teacher, label_target=target)
