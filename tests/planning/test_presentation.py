"""A plan as text and as JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

import darrm_torch as dt
from darrm_torch import PrivacyGuarantee, PrivacyProfile
from darrm_torch.planning.presentation import round_down

PAPER = PrivacyProfile.from_dp_sgd([(12.0, 1 / 35, 175)])


@pytest.mark.slow
def test_the_text_fits_80_columns_and_the_dictionary_is_json() -> None:
    target = PrivacyGuarantee(epsilon=0.1, delta=1e-4)
    answer = dt.plan(teachers=11, teacher=PAPER, labels=20, label_target=target, total_target=target)
    assert max(map(len, str(answer).splitlines())) < 80
    plain = json.loads(json.dumps(answer.to_dict(), allow_nan=False))
    assert plain["recommendation"] == answer.best.name
    assert len(plain["strategies"]) == len(answer.rows)


def test_without_an_allocation_nothing_is_said_of_it() -> None:
    answer = dt.plan(teachers=3, teacher=PrivacyGuarantee(epsilon=0.1), label_target=PrivacyGuarantee(epsilon=0.2))
    assert "allocation" not in str(answer)
    assert (answer.allocation, answer.juries_win_from) == (None, None)
    assert all("allocation" not in route.key for row in answer.rows if row.total for route in row.total.routes)


TWO_POINTS = (PrivacyGuarantee(epsilon=0.1, delta=1e-5), PrivacyGuarantee(epsilon=0.3))


@pytest.mark.parametrize(
    "request_",
    [
        {"teachers": 1, "label_target": PrivacyGuarantee(epsilon=1e-9, delta=1e-12)},
        {"teachers": 3, "teacher": PrivacyGuarantee(epsilon=2.0), "label_target": PrivacyGuarantee(epsilon=3.0)},
        pytest.param(
            {
                "teachers": 3,
                "classes": 4,
                "labels": 10**6,
                "total_target": PrivacyGuarantee(epsilon=123.456, delta=1e-9),
            },
            marks=pytest.mark.slow,
        ),
        {
            "teachers": 3,
            "teacher": PrivacyProfile.from_guarantee(*TWO_POINTS),
            "label_target": PrivacyGuarantee(epsilon=0.2, delta=1e-4),
            "prior": dt.BetaVotes(a=1.5, b=0.75),
        },
    ],
    ids=["next to nothing", "one pure promise", "many classes", "two points"],
)  # fmt: skip
def test_any_plan_fits_a_screen_and_names_every_strategy(request_: dict[str, Any]) -> None:
    answer = dt.plan(**request_)
    lines = str(answer).splitlines()
    assert max(map(len, lines)) < 80
    text = " ".join(" ".join(lines).split())
    for row in answer.rows:
        assert row.name in text
        assert row.reason
    assert "nan" not in text
    plain = json.loads(json.dumps(answer.to_dict(), allow_nan=False))
    assert [row["strategy"] for row in plain["strategies"]] == [row.name for row in answer.rows]


@given(st.floats(0, 1))
def test_a_share_is_never_shown_larger_than_it_is(share: float) -> None:
    shown = round_down(share)
    assert share - 1e-3 <= shown <= share + 1e-5 + 1e-9
    assert shown == round(shown, 3)
    assert round_down(1 - 1e-4) < 1


@pytest.mark.parametrize(("epsilon", "alarming"), [(9.0, False), (12.0, True)])
def test_an_alarming_total_is_called_one(epsilon: float, alarming: bool) -> None:
    text = " ".join(str(dt.plan(teachers=3, label_target=PrivacyGuarantee(epsilon=epsilon))).split())
    assert ("promises next to nothing" in text) == alarming
