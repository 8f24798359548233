"""The registry: the strongest mechanism of each kind keeps its targets and leaves little of them unused."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import darrm_torch as dt
from darrm_torch import (
    InvalidArgument,
    LNMax,
    NoiseFreeMajority,
    PrivacyGuarantee,
    PrivacyProfile,
    plan,
    strongest_mechanism,
    total_privacy,
)
from darrm_torch.planning.builders import by_strength
from darrm_torch.planning.families import FAMILIES, Family
from tests.planning.helpers import check_plan_of_many_classes

POINT = PrivacyGuarantee(epsilon=0.1, delta=1e-5)
NAMES = {
    "noise-free plurality",
    "randomized response",
    "permute-and-flip",
    "exponential mechanism",
    "GNMax",
    "GNMax, calibrated on the label",
    "self-bounding plurality",
    "subsampling",
    "vote-private table",
}


@pytest.mark.parametrize(
    ("ask", "best"),
    [
        pytest.param(
            {"overlap": 1, "label_target": PrivacyGuarantee(epsilon=0.5, delta=1e-5)},
            "vote-private table",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"overlap": 1, "labels": 100, "total_target": PrivacyGuarantee(epsilon=8.0, delta=1e-5)},
            "GNMax, calibrated on the label",
            marks=pytest.mark.slow,
        ),
        ({"teacher": POINT, "label_target": PrivacyGuarantee(epsilon=0.3, delta=3e-5)}, "self-bounding plurality"),
        pytest.param(
            {
                "teacher": POINT,
                "overlap": 1,
                "labels": 1000,
                "total_target": PrivacyGuarantee(epsilon=0.1, delta=1e-5),
            },
            "noise-free plurality",
            marks=pytest.mark.slow,
        ),
        ({"label_target": PrivacyGuarantee(epsilon=6.0)}, "randomized response"),
        pytest.param(
            {"overlap": 1, "teachers": 51, "label_target": PrivacyGuarantee(epsilon=0.5, delta=1e-5)},
            "permute-and-flip",
            marks=pytest.mark.slow,
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_best_for_each_situation(ask: dict[str, Any], best: str) -> None:
    """Eleven teachers, ten classes: a table for few votes, noise for many labels, closed forms for many teachers."""
    asked = {"teachers": 11, "classes": 10} | ask
    answer = plan(**asked)
    assert answer.rows[0].name == best
    assert {row.name for row in answer.rows if row.rests_on != "both" and row.voters == asked["teachers"]} == NAMES
    meeting = [row for row in answer.rows if row.meets]
    assert answer.rows[: len(meeting)] == tuple(meeting)
    for row in meeting:
        assert row.mechanism is not None
        for count, target in ((1, ask.get("label_target")), (ask.get("labels", 1), ask.get("total_target"))):
            if target is not None:
                promise = PrivacyProfile.non_private() if row.own_randomness else ask["teacher"]
                total = total_privacy(
                    teachers=[promise] * asked["teachers"],
                    overlap=answer.overlap,
                    mechanism=row.mechanism,
                    labels=count,
                    delta=target.delta,
                )
                assert total.epsilon <= target.epsilon
                if row.kind not in ("noise-free", "subsampling") and ask.get("labels") != 1000:
                    assert total.epsilon >= 0.99 * target.epsilon  # as strong as it may be
    accuracies = [round(row.accuracy, 3) for row in meeting]
    assert accuracies == sorted(accuracies, reverse=True)
    check_plan_of_many_classes(answer)


def test_what_is_not_possible_says_why() -> None:
    answer = plan(teachers=5, classes=3, label_target=PrivacyGuarantee(epsilon=0.5))
    by_name = {row.name: row for row in answer.rows}
    for name in ("GNMax", "self-bounding plurality", "GNMax, calibrated on the label"):
        assert by_name[name].mechanism is None
        assert by_name[name].reason
        assert not by_name[name].meets
    assert by_name["noise-free plurality"].mechanism is not None
    assert not by_name["noise-free plurality"].meets


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"label_target": None}, "label_target"),
        ({"teachers": 0}, "teachers"),
        ({"classes": 1}, "classes"),
        ({"overlap": 12}, "overlap"),
        ({"labels": 0}, "labels"),
        ({"teacher": 0.5}, "teacher"),
        ({"prior": 0.5}, "prior"),
        ({"label_target": 0.5}, "target"),
    ],
)
def test_bad_input(wrong: dict[str, Any], message: str) -> None:
    ask = {"teachers": 11, "classes": 10, "label_target": POINT} | wrong
    with pytest.raises(InvalidArgument, match=message):
        strongest_mechanism("permute-and-flip", **ask)


TARGET = PrivacyGuarantee(epsilon=0.2, delta=1e-4)
BUDGET = PrivacyGuarantee(epsilon=4.0, delta=1e-4)
OWN = ["vote-private", "gnmax", "permute-and-flip", "exponential", "lnmax", "randomized-response"]


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize(
    ("kind", "teacher"),
    [*((kind, None) for kind in OWN), *((kind, POINT) for kind in ["self-bounding", "subsampling", *OWN])],
)
@pytest.mark.parametrize("targets", [{"label_target": TARGET}, {"labels": 9, "total_target": BUDGET}])
def test_the_strongest_of_a_kind_keeps_its_targets(
    kind: str, teacher: PrivacyGuarantee | None, classes: int, targets: dict[str, Any]
) -> None:
    """And leaves little of them unused, but for subsampling, which knows whole teachers only, and below the cap."""
    ask = {"teachers": 5, "classes": classes, "teacher": teacher, "overlap": 3} | targets
    mechanism = strongest_mechanism(kind, **ask)
    total = total_privacy(
        teachers=[teacher or PrivacyProfile.non_private()] * 5, overlap=3, mechanism=mechanism,
        labels=targets.get("labels", 1), delta=1e-4,
    )  # fmt: skip
    target = next(value for name, value in targets.items() if name.endswith("target"))
    assert total.epsilon <= target.epsilon
    if total.route.key == "own-randomness":
        assert total.epsilon >= 0.99 * target.epsilon


@pytest.mark.parametrize(
    ("kind", "ask", "message"),
    [
        ("darm", {"label_target": TARGET}, "kind must be one of noise-free, mean-probabilities, jury, optimal"),
        ("darrm", {"label_target": TARGET}, "teacher must be a promise that darrm can build on"),
        ("darrm", {"classes": 3, "teacher": POINT, "label_target": TARGET}, "classes must be 2 for darrm"),
        ("darrm", {"allowance": 1, "teacher": POINT}, "allowance must be given without targets, for self-bounding"),
        ("darrm", {"teacher": POINT, "labels": 9, "total_target": TARGET}, "total_target must be one that some"),
        ("noise-free", {"teacher": POINT, "label_target": TARGET}, "label_target must be one that some strength"),
        ("gnmax-label", {"overlap": 2, "label_target": TARGET}, "overlap must be 1"),
        ("gnmax", {}, "label_target must be given, or total_target"),
        ("gnmax", {"allowance": 1}, "allowance must be given without targets"),
        ("self-bounding", {"allowance": 1, "label_target": TARGET}, "allowance must be given without targets"),
        ("self-bounding", {"allowance": math.nan}, "allowance must be a number"),
        ("subsampling", {"label_target": TARGET}, "teacher must be a promise that subsampling can build on"),
        ("subsampling", {"label_target": PrivacyGuarantee(epsilon=0.2), "teacher": POINT}, "label_target must be one"),
        ("subsampling", {"teacher": POINT, "total_target": POINT, "labels": 2}, "total_target must be one that some"),
        ("subsampling", {"allowance": 0.5}, "allowance must be one that some"),
        ("gnmax", {"label_target": PrivacyGuarantee(epsilon=1.0)}, "label_target must be one that some strength"),
    ],
)
def test_what_has_no_strength_that_fits(kind: str, ask: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        strongest_mechanism(kind, **{"teachers": 11, "classes": 2} | ask)


def test_kinds_of_one_label_are_those_of_the_plan() -> None:
    asked: dict[str, Any] = {"teachers": 5, "teacher": POINT, "label_target": TARGET}
    rows = {row.kind: row for row in plan(**asked).rows}
    for kind in ("darrm-point", "optimal", "self-bounding", "subsampling", "gnmax", "permute-and-flip"):
        promise = None if rows[kind].own_randomness else POINT
        mechanism = strongest_mechanism(kind, classes=2, **asked | {"teacher": promise})
        votes = np.array([[2, 3], [5, 0]])
        strongest, planned = (one.label_probabilities(votes) for one in (mechanism, rows[kind].mechanism))
        if kind == "self-bounding":  # the label's own curve proves a little more than that labels add up
            assert planned[0, 1] < strongest[0, 1] < planned[0, 1] + 0.01
        else:
            assert np.array_equal(strongest, planned)
    assert strongest_mechanism("noise-free", teachers=5, classes=2) == NoiseFreeMajority(classes=2, teachers=5)


@pytest.mark.slow
def test_a_jury_is_as_large_as_its_price_allows() -> None:
    asked: dict[str, Any] = {"teachers": 11, "classes": 2, "teacher": POINT, "overlap": 1}
    prices = {
        size: total_privacy(
            teachers=[POINT] * 11, overlap=1, mechanism=NoiseFreeMajority(jury=size), labels=9, delta=TARGET.delta
        ).epsilon
        for size in (1, 3, 5, 7)
    }
    assert list(prices.values()) == sorted(prices.values())
    for size in (1, 3, 5):
        target = PrivacyGuarantee(epsilon=(prices[size] + prices[size + 2]) / 2, delta=TARGET.delta)
        jury = strongest_mechanism("jury", labels=9, total_target=target, **asked)
        assert jury == NoiseFreeMajority(classes=2, teachers=11, jury=size)
    with pytest.raises(InvalidArgument, match="total_target"):
        strongest_mechanism("jury", total_target=PrivacyGuarantee(epsilon=1e-9, delta=1e-12), **asked)
    row = next(row for row in plan(**asked, total_target=target).rows if row.kind == "jury")
    assert row.mechanism == jury
    assert eval(row.code, {"dt": dt}) == jury
    assert (row.name, row.voters) == ("noise-free, 5 of 11", 5)


def test_every_kind_has_one_entry_that_a_plan_or_python_can_build() -> None:
    assert list(FAMILIES) == [family.kind for family in FAMILIES.values()]
    for family in FAMILIES.values():
        assert set(family.strengths) <= {"allowance", "label_target", "total_target"}


def test_one_entry_adds_a_mechanism_to_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another kind of Laplace noise: with an entry it is planned, explained, and built by name."""

    def laplace(request: Any, strength: float) -> LNMax:
        return LNMax(scale=1 / strength, overlap=request.overlap, teachers=request.teachers)

    entry = Family(kind="laplace", two="Laplace", many="Laplace", build=by_strength(laplace, 1e-4, 50.0))
    monkeypatch.setitem(FAMILIES, "laplace", entry)
    for classes in (2, 3):
        asked: dict[str, Any] = {"teachers": 5, "classes": classes, "overlap": 1, "label_target": BUDGET}
        row = next(row for row in plan(**asked).rows if row.kind == "laplace")
        assert row.meets
        assert 0.99 * BUDGET.epsilon <= row.label.epsilon <= BUDGET.epsilon
        assert "by the mechanism's own randomness alone" in row.reason
        assert eval(row.code, {"dt": dt}) == row.mechanism
        assert strongest_mechanism("laplace", **asked) == row.mechanism


@pytest.mark.parametrize(("kind", "closed"), [("permute-and-flip", 2.7), ("exponential", 2.5), ("lnmax", 4.2)])
def test_own_randomness_is_calibrated_by_the_curve_of_a_label(kind: str, closed: float) -> None:
    """What the closed form of composition prices at 2.7 and more costs 1.96: 100 labels of eleven teachers."""
    total = PrivacyGuarantee(epsilon=1.96, delta=1e-5)
    mechanism = strongest_mechanism(kind, teachers=11, classes=3, overlap=1, labels=100, total_target=total)
    assert 1.95 < mechanism.guarantee(labels=100, delta=1e-5).epsilon <= 1.96
    assert replace(mechanism, classes=None).guarantee(labels=100, delta=1e-5).epsilon > closed
    if kind == "lnmax":
        assert mechanism.scale < 20
