"""One private model beside a plan: its noise keeps the target, and that of the ensemble is to first order."""

from __future__ import annotations

import math
from typing import Any

import pytest

import darrm_torch as dt

RUN = (4.0, 1 / 35, 175)


@pytest.mark.slow
@pytest.mark.parametrize("overlap", [1, 11])
def test_the_noise_of_one_model_keeps_the_target(overlap: int) -> None:
    target = dt.PrivacyGuarantee(epsilon=0.5, delta=1e-5)
    teacher = dt.PrivacyProfile.from_dp_sgd([RUN])
    answer = dt.plan(teachers=11, teacher=teacher, overlap=overlap, labels=20, total_target=target)
    one = answer.one_model
    assert one is not None
    for noise, kept in ((one.noise_multiplier, True), (0.995 * one.noise_multiplier, False)):
        profile = dt.PrivacyProfile.from_dp_sgd([(noise, *RUN[1:])])
        assert (profile.epsilon(target.delta) <= target.epsilon) == kept
    assert one.ensemble_noise == pytest.approx(4.0 * math.sqrt(11) / overlap)
    assert one.relative_noise == one.ensemble_noise / one.noise_multiplier
    assert answer.to_dict()["one_model"]["relative_noise"] == one.relative_noise
    assert "One private model instead" in str(answer)
    for purpose in ("records that cannot be pooled", "teachers that exist", "unlike models", "disagreement"):
        assert purpose in str(one)
    assert "no more noise" in str(one) if overlap == 11 else "less noise" in str(one)


UNLIKE = [dt.PrivacyProfile.from_dp_sgd([(noise, rate, 50)]) for noise, rate in ((1.2, 1 / 30), (2.0, 0.1), (2.5, 0.1))]


@pytest.mark.parametrize("teacher", [None, dt.PrivacyGuarantee(epsilon=0.5, delta=1e-6), UNLIKE])
def test_nothing_is_said_where_the_training_is_unknown_or_unlike(teacher: Any) -> None:
    target = dt.PrivacyGuarantee(epsilon=0.5, delta=1e-5)
    answer = dt.plan(teachers=3, teacher=teacher, label_target=target)
    assert answer.one_model is None
    assert answer.to_dict()["one_model"] is None
    assert "One private model" not in str(answer)
