"""The order of a plan: near ties under stated accuracies go to what is best under typical votes."""

from __future__ import annotations

import pytest

import darrm_torch as dt

QUESTION = {
    "teachers": 7,
    "overlap": 1,
    "teacher": dt.PrivacyProfile.from_dp_sgd([(11.17, 1 / 35, 175)]),
    "labels": 2,
    "total_target": dt.PrivacyGuarantee(epsilon=1.92, delta=1e-5),
}


@pytest.mark.slow
def test_what_stated_accuracies_cannot_tell_apart_is_ordered_by_typical_votes() -> None:
    """Without noise the majority is right .9355 of the time by what is stated, and by .0018 less with noise."""
    near = dt.plan(**QUESTION, teacher_accuracy=(0.8903, 0.9355), plain_accuracy=(0.9467, 0.948))
    assert [row.name for row in near.rows[:2]] == ["optimal majority", "noise-free majority"]
    assert 0 < near.rows[1].accuracy - near.rows[0].accuracy < 0.005
    assert "within what stated votes can say" in near.rows[1].reason
    clear = dt.plan(**QUESTION, teacher_accuracy=(0.8903, 0.9455), plain_accuracy=(0.9467, 0.948))
    assert clear.best is not None
    assert clear.best.name == "noise-free majority"
