"""Estimates: what noisy counts say, for all records and for parts of them."""

from __future__ import annotations

import json
import math
from dataclasses import asdict

import pytest

from darrm_torch import AccuracyEstimate, InvalidArgument, PrivacyGuarantee, PrivacyLedger, plan
from darrm_torch.labels.accuracy import keep_estimate, kept_estimates
from darrm_torch.planning.beliefs import stated_beliefs

FOUND = AccuracyEstimate(of="labels", right=(4650, 4650), wrong=(350, 350), epsilon=0.05)


def test_the_text_has_accuracy_interval_and_cost() -> None:
    assert repr(FOUND) == "label accuracy 0.930, 95 % interval 0.919 to 0.941, for (0.05, 0)-DP"
    assert json.loads(json.dumps(FOUND.to_dict()))["text"] == repr(FOUND)


def test_parts_are_less_certain_than_the_whole() -> None:
    low, high = FOUND.interval
    for accuracy, least, most in FOUND.parts:
        assert accuracy == pytest.approx(FOUND.accuracy)
        assert least < low < high < most


def test_counts_that_noise_made_impossible_still_say_something() -> None:
    for right, wrong in (((-9,), (-9,)), ((-9,), (40,)), ((40,), (-9,)), ((0,), (0,))):
        one = AccuracyEstimate(of="student", right=right, wrong=wrong, epsilon=0.5)
        assert 0 <= one.interval[0] <= one.accuracy <= one.interval[1] <= 1


def test_a_plan_takes_an_estimate_as_a_belief() -> None:
    one = AccuracyEstimate(of="teachers", right=(800,), wrong=(200,), epsilon=0.5)
    for estimated, stated in ((one, 0.8), ((one, FOUND), (0.8, 0.93))):
        beliefs = [
            stated_beliefs(teachers=5, classes=2, is_private=True, teacher_accuracy=accuracy)
            for accuracy in (estimated, stated)
        ]
        assert beliefs[0] == beliefs[1]
    settings = {"teachers": 1, "labels": 1, "total_target": PrivacyGuarantee(epsilon=1.0)}
    assert plan(**settings, teacher_accuracy=one) == plan(**settings, teacher_accuracy=0.8)


def test_a_ledger_keeps_so_many_of_different_names() -> None:
    ledger = PrivacyLedger()
    assert kept_estimates(ledger) == []
    assert keep_estimate(ledger, "labels", lambda: FOUND, releases=2) == FOUND
    other = AccuracyEstimate(**asdict(FOUND) | {"right": (1, 2)})
    assert keep_estimate(ledger, "labels", lambda: other, releases=2) == FOUND
    assert keep_estimate(ledger, "student", lambda: other, releases=2) == other
    assert keep_estimate(ledger, "another student", lambda: other, releases=2) is None
    assert kept_estimates(ledger) == [FOUND, other]


@pytest.mark.parametrize(
    "wrong",
    [
        {"of": "votes"},
        {"by": "row"},
        {"right": (1,)},
        {"right": (), "wrong": ()},
        {"epsilon": 0.0},
        {"epsilon": math.nan},
        {"confidence": 1.0},
        {"right": (0.5, 1)},
    ],
)
def test_impossible_estimates_are_refused(wrong: dict) -> None:
    with pytest.raises(InvalidArgument):
        AccuracyEstimate(**asdict(FOUND) | wrong)
