"""Strategies: the Python code of each builds exactly its mechanism."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import darrm_torch as dt
from darrm_torch import PrivacyGuarantee, PrivacyProfile
from darrm_torch.planning.strategies import in_python

PAPER = PrivacyProfile.from_dp_sgd([(12.0, 1 / 35, 175)])


@pytest.mark.parametrize("labels", [pytest.param(1, marks=pytest.mark.slow), 5])
def test_the_code_of_each_strategy_builds_it(labels: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    target = PrivacyGuarantee(epsilon=0.2, delta=1e-4)
    prior = dt.SharedVotes(low=0.6, high=0.9)
    answer = dt.plan(teachers=5, teacher=PAPER, overlap=2, labels=labels, total_target=target, prior=prior)
    made = 0
    for row in answer.rows:
        if row.mechanism is not None and row.voters == 5:
            again = eval(row.code, {"dt": dt, "math": math})
            counts = np.array([[5 - ones, ones] for ones in range(6)])
            assert np.array_equal(again.label_probabilities(counts), row.mechanism.label_probabilities(counts))
            made += 1
    assert made >= 8


@pytest.mark.parametrize(
    "value",
    [
        0.1,
        math.inf,
        3,
        "text",
        PrivacyGuarantee(epsilon=0.1),
        PrivacyGuarantee(epsilon=math.inf, delta=1e-5),
        PrivacyProfile.from_guarantee(PrivacyGuarantee(epsilon=0.1, delta=1e-5)),
        PrivacyProfile.from_dp_sgd([(12.0, 1 / 35, 175), (3.0, 0.1, 20)]),
        dt.IndependentVotes(mean=0.7),
        dt.SharedVotes(low=0.6),
        dt.BetaVotes(a=2.0, b=1.5),
        dt.PluralityVotes(accuracy=0.8, concentration=4.0),
        dt.RandomAllocation(teachers=7, overlap=2),
        (PrivacyGuarantee(epsilon=0.5), dt.SharedVotes(low=0.6, high=0.7)),
        (1, (2.5,)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_code_is_evaluated_to_the_value(value: Any) -> None:
    again = eval(in_python(value), {"dt": dt, "math": math})
    if isinstance(value, PrivacyProfile) and value.promises:
        again = PrivacyProfile.from_guarantee(again)  # one promise is written as a guarantee
    assert again == value
