"""The designer's question: the noise of every design keeps the total, and the figures of the design table hold."""

from __future__ import annotations

import json
import math
from dataclasses import FrozenInstanceError

import pytest

from darrm_torch import (
    Design,
    DesignRow,
    InvalidArgument,
    PrivacyGuarantee,
    PrivacyProfile,
    RandomAllocation,
    allocated_epsilon,
    design,
)

RUN = {"records": 60_000, "sample_rate": 1 / 35, "steps": 175}
TOTAL = PrivacyGuarantee(epsilon=1.0, delta=1e-5)

# total: one model; then noise multiplier and effective noise of K = 12 for r = 1, 2, 3, 4, 6, 12
TABLE = {
    0.25: (5.204, ((1.672, 5.79), (3.033, 5.25), (4.466, 5.16), (5.902, 5.11), (8.827, 5.10), (17.883, 5.16))),
    1.0: (1.691, ((0.921, 3.19), (1.148, 1.99), (1.467, 1.69), (1.829, 1.58), (2.598, 1.50), (4.997, 1.44))),
    4.0: (0.823, ((0.683, 2.37), (0.746, 1.29), (0.807, 0.93), (0.871, 0.75), (1.024, 0.59), (1.609, 0.46))),
}


@pytest.fixture(scope="module")
def pooled() -> Design:
    return design(**RUN, total=TOTAL, overlaps=(1, 4), teachers=12)


def check_price(row: DesignRow, total: PrivacyGuarantee) -> None:
    """What the row claims is proven by the prices themselves, and no noise is wasted."""
    profile = PrivacyProfile.from_dp_sgd([(row.noise_multiplier, row.sample_rate, row.steps)])
    known = profile.compose(row.overlap).epsilon(total.delta)
    epsilon = known if row.allocation is None else allocated_epsilon(profile, row.allocation, total.delta)
    assert row.epsilon_if_leaked == known
    assert 0.99 * total.epsilon < row.epsilon <= total.epsilon
    assert row.epsilon == pytest.approx(epsilon, rel=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", TABLE)
def test_the_table_of_the_theory(epsilon: float) -> None:
    """About ten seconds of one core each."""
    total = PrivacyGuarantee(epsilon=epsilon, delta=1e-5)
    answer = design(**RUN, total=total)
    one, ensembles = TABLE[epsilon]
    assert answer.one_model.noise_multiplier == pytest.approx(one, rel=0.03)
    rows = [row for row in answer.rows if row.kind == "ensemble"]
    assert [row.overlap for row in rows] == [1, 2, 3, 4, 6, 12]
    for row, (noise, effective) in zip(rows, ensembles, strict=True):
        assert row.noise_multiplier == pytest.approx(noise, rel=0.03)
        assert row.effective_noise == pytest.approx(effective, rel=0.03)
        assert row.computing == row.overlap
        check_price(row, total)
    assert max(answer.rows, key=lambda row: row.relative_noise) is rows[0]  # disjoint shards are the worst
    assert rows[3].has_no_more_noise  # four of twelve, at every total
    assert rows[5].has_no_more_noise
    assert answer.balanced is (rows[3] if epsilon == 4 else rows[2])  # three of twelve are enough up to a total of 1
    wide = answer.rows[-1]  # one model, at the computing of that ensemble
    assert (wide.kind, wide.computing) == ("one-model", answer.balanced.computing)
    assert wide.relative_noise <= answer.balanced.relative_noise
    check_price(wide, total)


@pytest.mark.slow
@pytest.mark.slow
def test_rows_keep_the_total_and_say_what_they_rest_on(pooled: Design) -> None:
    one, disjoint, four, wide = pooled.rows
    for row in pooled.rows:
        check_price(row, TOTAL)
    assert (one.allocation, wide.allocation) == (None, None)
    assert disjoint.allocation == RandomAllocation(teachers=12)
    assert four.allocation == RandomAllocation(teachers=12, overlap=4)
    assert four.epsilon_if_leaked > 1.5 * TOTAL.epsilon
    assert four.effective_noise == pytest.approx(four.noise_multiplier * math.sqrt(12) / 4)
    assert four.relative_noise == four.effective_noise / one.noise_multiplier
    assert (one.computing, disjoint.computing, four.computing, wide.computing) == (1, 1, 4, 4)
    assert wide.sample_rate == 4 / 35
    assert wide.effective_noise == wide.noise_multiplier / 4
    assert [round(row.expected_batch) for row in pooled.rows] == [1714, 143, 571, 6857]


@pytest.mark.slow
def test_the_text_is_honest_about_one_model(pooled: Design) -> None:
    text = " ".join(str(pooled).split())
    assert pooled.best is pooled.one_model
    assert "Recommendation: one DP-SGD model. Where records can be pooled it is the simpler choice." in text
    assert "Disjoint shards are the worst design here: 1.89 times its noise at equal computing." in text
    assert "Disjoint shards: equal computing, 1.89 times the noise of one model." in text
    assert "Each record in 4 of 12 shards: no more noise than one model (0.93 times), 4 times the computing." in text
    assert "silos that cannot be pooled, teachers that exist already, unlike models" in text
    assert "disagreement of teachers as a signal" in text
    assert max(map(len, str(pooled).splitlines())) < 80


@pytest.mark.slow
def test_every_teacher_sees_every_record() -> None:
    answer = design(**RUN, total=TOTAL, teachers=5, overlaps=(5,))
    row = answer.rows[1]
    assert row.allocation is None  # nothing is secret
    assert row.epsilon == row.epsilon_if_leaked
    assert row.verdict.startswith("Every teacher sees every record: no more noise than one model")
    assert row.verdict.endswith("5 times the computing.")
    assert "The prices for 1 <= r < K" not in str(answer)
    assert "Disjoint shards are the worst" not in str(answer)


def test_silos_gain_nothing_from_secrecy() -> None:
    names: list[str] = []
    answer = design(**RUN, total=TOTAL, data="silos", teachers=[3, 5], model_cost=2.0, on_progress=names.append)
    one, three, five = answer.rows
    assert answer.best is three
    assert answer.balanced is None
    for row in (three, five):
        assert row.allocation is None
        assert row.noise_multiplier == one.noise_multiplier
        assert row.relative_noise == pytest.approx(math.sqrt(row.teachers))
        assert (row.overlap, row.computing, row.cost) == (1, 1, 2.0)
        check_price(row, TOTAL)
    assert names == ["one model", "3 silos", "5 silos"]
    assert "one teacher for each silo" in str(answer)
    assert max(map(len, str(answer).splitlines())) < 80


@pytest.mark.slow
@pytest.mark.slow
def test_as_json(pooled: Design) -> None:
    plain = json.loads(json.dumps(pooled.to_dict()))
    assert plain["total"] == [1.0, 1e-5]
    assert plain["recommendation"] == "one model"
    assert plain["balanced"] == "12 teachers, r = 4"
    row = plain["designs"][2]
    assert row["noise_multiplier"] == pooled.rows[2].noise_multiplier
    assert RandomAllocation.from_dict(row["allocation"]) == pooled.rows[2].allocation
    assert plain["designs"][0]["allocation"] is None
    assert all(isinstance(paragraph, str) for paragraph in plain["advice"])


@pytest.mark.slow
def test_a_design_is_frozen(pooled: Design) -> None:
    with pytest.raises(FrozenInstanceError):
        pooled.records = 3
    with pytest.raises(FrozenInstanceError):
        pooled.rows[0].noise_multiplier = 0.1


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"records": 0}, "records"),
        ({"records": 10}, "teachers"),  # fewer records than teachers
        ({"total": (1.0, 1e-5)}, "total"),
        ({"total": PrivacyGuarantee(epsilon=0.0, delta=1e-5)}, "total.epsilon"),
        ({"total": PrivacyGuarantee(epsilon=math.inf, delta=1e-5)}, "total.epsilon"),
        ({"total": PrivacyGuarantee(epsilon=1.0)}, "total.delta"),
        ({"sample_rate": 1.5}, "sample_rate"),
        ({"steps": 0}, "steps"),
        ({"data": "lake"}, "data"),
        ({"teachers": 1}, "teachers"),
        ({"teachers": []}, "teachers"),
        ({"teachers": 5001}, "teachers"),  # random shards: minutes
        ({"overlaps": [13]}, "overlaps"),
        ({"overlaps": [1], "data": "silos"}, "overlaps"),
        ({"model_cost": math.nan}, "model_cost"),
    ],
)
def test_what_cannot_be_is_refused_before_any_work(wrong: dict[str, object], named: str) -> None:
    def never(name: str) -> None:
        raise AssertionError(name)

    with pytest.raises(InvalidArgument) as caught:
        design(**RUN | {"total": TOTAL} | wrong, on_progress=never)
    assert caught.value.name == named
