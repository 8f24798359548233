"""Figures: what is drawn is what was computed; every axis says what it is."""

from __future__ import annotations

import io
import itertools

import numpy as np
import pytest

import darrm_torch as dt
from darrm_torch import InvalidArgument, PrivacyGuarantee
from darrm_torch.planning.ranking import Plan
from darrm_torch.plots import frontier_epsilons, plot_frontier, plot_label_profile, plot_noise, plot_plurality

pytest.importorskip("matplotlib")

TEACHER = PrivacyGuarantee(epsilon=0.1, delta=1e-5)
TARGET = PrivacyGuarantee(epsilon=0.2, delta=1e-4)


def rendered(axes: object) -> None:
    picture = io.BytesIO()
    axes.figure.savefig(picture, format="png")
    assert picture.getvalue().startswith(b"\x89PNG")
    assert axes.get_xlabel()
    assert axes.get_ylabel()


def test_noise_is_drawn_with_its_proof() -> None:
    noise = dt.optimize_noise(teachers=5, teacher=TEACHER, target=TARGET)
    axes = plot_noise(noise)
    rendered(axes)
    (line,) = axes.get_lines()
    assert np.array_equal(line.get_ydata(), noise.gamma)
    assert f"one label is {TARGET}" in axes.get_title()
    assert f"margin {noise.certificate.margin:.1e}" in axes.get_title()
    assert "m = 2" in plot_noise(dt.self_bounding_noise(teachers=5, allowance=2)).get_title()
    assert "nothing is proven" in plot_noise(dt.subsampling_noise(teachers=5, allowance=1)).get_title()


def test_two_noise_functions_can_be_distinguished() -> None:
    noise, other = (dt.self_bounding_noise(teachers=5, allowance=m) for m in (2, 3))
    axes = plot_noise(noise, label="m = 2")
    assert "each costs m = 2" in axes.get_title()
    plot_noise(other, axes=axes, label="m = 3")
    rendered(axes)
    one, two = axes.get_lines()
    for look in ("color", "marker", "linestyle"):
        assert getattr(one, f"get_{look}")() != getattr(two, f"get_{look}")()
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["m = 2", "m = 3"]
    assert axes.get_title() == "Noise function"  # what the certificate of one proves is not said of both
    axes.set_title("mine")
    plot_noise(dt.self_bounding_noise(teachers=3, allowance=1), axes=axes, label="three teachers")
    assert axes.get_title() == "mine"
    assert axes.get_xlim() == (-0.5, 5.5)


def test_the_line_of_a_label_does_not_pass_above_what_is_certified() -> None:
    target = PrivacyGuarantee(epsilon=0.23, delta=2e-5)
    noise = dt.optimize_noise(teachers=7, teacher=TEACHER, target=target)
    lines = {line.get_label(): line.get_xydata() for line in plot_label_profile(noise, TEACHER, points=6).get_lines()}
    at = dict(lines["one label"])
    assert at[target.epsilon] <= target.delta
    assert dict(lines["one teacher"])[TEACHER.epsilon] == TEACHER.delta
    assert {float(step * TEACHER.epsilon) for step in range(1, 5)} <= at.keys()


def test_profile_of_a_label_lies_below_that_of_all_teachers() -> None:
    noise = dt.optimize_noise(teachers=5, teacher=TEACHER, target=TARGET)
    axes = plot_label_profile(noise, TEACHER, points=9)
    rendered(axes)
    lines = {line.get_label(): line.get_ydata() for line in axes.get_lines()}
    assert set(lines) == {"one label", "one teacher", "publishing 5 teachers", "target of one label"}
    one, published = np.nan_to_num(lines["one label"]), np.nan_to_num(lines["publishing 5 teachers"])
    assert np.all(one <= published + 1e-9)
    assert lines["one label"][0] == dt.label_profile(noise.gamma, teachers=5, teacher=TEACHER)(0.0)
    with pytest.raises(InvalidArgument, match="teacher"):
        plot_label_profile(noise, dt.PrivacyProfile.non_private())


@pytest.mark.slow
def test_frontier_rises_with_epsilon() -> None:
    plan = dt.plan(teachers=5, teacher=TEACHER, label_target=TARGET)
    seen: list[float] = []
    axes = plot_frontier(plan, [0.1, 0.2, 0.4], on_progress=seen.append)
    rendered(axes)
    assert seen == pytest.approx([0.1, 0.2, 0.4])
    lines = {line.get_label(): line.get_ydata() for line in axes.get_lines()}
    for name in ("DaRRM, one point", "optimal majority *", "self-bounding noise"):
        assert np.all(np.diff(lines[name]) > 0)
    best = next(row for row in plan.rows if row.name == "DaRRM, one point")
    assert lines["DaRRM, one point"][1] == pytest.approx(best.agreement, abs=1e-9)


def test_a_frontier_has_a_gap_where_publishing_the_teachers_takes_over() -> None:
    """Self-bounding noise of nine labels: most of it is needed below the price of one teacher, none above."""
    target = dt.PrivacyGuarantee(epsilon=0.3)
    teacher = dt.PrivacyGuarantee(epsilon=0.2)
    axes = plot_frontier(dt.plan(teachers=3, teacher=teacher, overlap=1, labels=9, total_target=target), [0.1, 0.3])
    (noisy,) = (line for line in axes.get_lines() if line.get_label() == "self-bounding noise")
    first, between, last = noisy.get_ydata()
    assert first < 0.75
    assert np.isnan(between)
    assert last == pytest.approx(1.0)


def test_a_frontier_of_nothing_is_refused() -> None:
    plan = dt.plan(teachers=3, labels=1000, total_target=dt.PrivacyGuarantee(epsilon=1e-6))
    with pytest.raises(dt.DarrmError, match="nothing to draw: no strategy keeps the target at an epsilon from 1e-06"):
        plot_frontier(plan, [1e-6])


def test_plurality_is_drawn_with_its_proof() -> None:
    """Each point against the votes that have this lead, enumerated; the certificate is in the title."""
    table = dt.SelfBoundingPlurality(teachers=4, classes=3, allowance=2)
    prior = dt.PluralityVotes(accuracy=0.5)
    axes = plot_plurality(table, prior=prior, label="m = 2")
    rendered(axes)
    assert "each costs m = 2 teachers, overlap 4 of 4" in axes.get_title()
    assert f"margin {table.certificate.margin:.1e}" in axes.get_title()
    (line,) = axes.get_lines()
    chances: dict[int, list[float]] = {}
    for votes in itertools.product(range(3), repeat=4):
        counts = np.bincount(votes, minlength=3)
        second, first = np.sort(counts)[1:]
        weight = 0.5 ** counts[0] * 0.25 ** (4 - counts[0])
        reported = table.label_probabilities(counts[None])[0, counts.argmax()]
        both = chances.setdefault(int(first - second), [0.0, 0.0])
        both[0] += weight * reported
        both[1] += weight
    assert list(line.get_xdata()) == [1, 2, 4]  # no four votes are three ahead; where two tie, either is right
    assert line.get_ydata() == pytest.approx([chances[lead][0] / chances[lead][1] for lead in (1, 2, 4)])
    plot_plurality(dt.PermuteAndFlip(epsilon=1.0), teachers=4, classes=3, axes=axes)
    assert [one.get_text() for one in axes.get_legend().get_texts()] == [
        "m = 2",
        "PermuteAndFlip",
        "band: worst to best votes with that lead",
    ]
    assert axes.get_title() == "Probability of reporting the plurality"
    for mechanism, words in ((dt.VotePrivatePlurality(teachers=3, classes=3, epsilon=0.5), "By its own randomness"),
                             (dt.NoiseFreeMajority(teachers=3, classes=3), "only through the teachers")):  # fmt: skip
        assert words in plot_plurality(mechanism).get_title()
    with pytest.raises(InvalidArgument, match="classes"):
        plot_plurality(dt.PermuteAndFlip(epsilon=1.0), teachers=4)


def test_profile_of_a_label_of_many_classes() -> None:
    profile = dt.PrivacyProfile.from_guarantee(TEACHER, PrivacyGuarantee(epsilon=0.0, delta=0.03))
    table = dt.SelfBoundingPlurality(teachers=5, classes=3, allowance=2)
    axes = plot_label_profile(table, profile, points=9)
    rendered(axes)
    lines = {line.get_label(): line for line in axes.get_lines()}
    assert set(lines) == {"one label", "one teacher", "publishing 5 teachers"}
    drawn = lines["one label"].get_xydata()
    drawn = drawn[~np.isnan(drawn[:, 0])]
    assert len(drawn) > 2
    for epsilon, delta in drawn:
        total = dt.total_privacy(teachers=[profile] * 5, mechanism=table, labels=1, delta=delta)
        assert epsilon == total.epsilon
    with pytest.raises(InvalidArgument, match="teachers"):
        plot_label_profile(dt.PermuteAndFlip(epsilon=1.0), TEACHER)


@pytest.mark.slow
def test_frontier_of_three_classes() -> None:
    target = PrivacyGuarantee(epsilon=0.08, delta=1e-4)
    plan = dt.plan(teachers=4, classes=3, teacher=TEACHER, overlap=1, label_target=target)
    axes = plot_frontier(plan, [0.04, 0.08])
    rendered(axes)
    assert axes.get_ylabel() == "agreement with the plurality"
    lines = {line.get_label(): line for line in axes.get_lines()}
    alone, both = lines["permute-and-flip *"], lines["permute-and-flip + training"]
    assert np.all(both.get_ydata() > alone.get_ydata())
    assert both.get_color() == alone.get_color()
    assert len({line.get_color() for name, line in lines.items() if name.endswith("*")}) >= 4


@pytest.mark.slow
def test_curves_that_coincide_are_both_seen() -> None:
    plan = dt.plan(teachers=11, teacher=TEACHER, label_target=PrivacyGuarantee(epsilon=0.3, delta=3e-5))
    lines = {line.get_label(): line for line in plot_frontier(plan, [0.35]).get_lines()}
    below, above = lines["noise-free, part of the 11"], lines["subsampling"]
    assert below.get_ydata() == pytest.approx(above.get_ydata(), abs=1e-6)
    assert below.get_drawstyle() == above.get_drawstyle() == "steps-post"  # a slope would show what nothing reaches
    assert lines["self-bounding noise"].get_drawstyle() == "default"
    assert below.get_linewidth() > above.get_linewidth() + 1
    assert below.get_markersize() > above.get_markersize() + 1


@pytest.mark.parametrize(("teachers", "classes", "count"), [(11, 2, 9), (50, 2, 9), (51, 2, 5), (11, 10, 5)])
def test_a_frontier_has_fewer_points_where_plans_take_seconds(teachers: int, classes: int, count: int) -> None:
    target = PrivacyGuarantee(epsilon=0.5)
    epsilons = frontier_epsilons(Plan(teachers=teachers, classes=classes, label_target=target))
    assert len(epsilons) == count
    assert (epsilons[0], epsilons[count // 2], epsilons[-1]) == (0.125, 0.5, 2.0)
