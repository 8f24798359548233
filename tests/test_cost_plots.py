"""Figures of costs: what is drawn is what was computed."""

from __future__ import annotations

import math

import numpy as np
import pytest

import darrm_torch as dt
from darrm_torch import InvalidArgument, PrivacyGuarantee, TotalPrivacy
from darrm_torch.cost_plots import plot_audit, plot_ledger, plot_totals
from tests.test_plots import rendered

pytest.importorskip("matplotlib")

TEACHER = PrivacyGuarantee(epsilon=0.1, delta=1e-7)


def total(labels: int) -> TotalPrivacy:
    mechanism = dt.PermuteAndFlip(epsilon=0.05)
    return dt.total_privacy(teachers=[TEACHER] * 5, mechanism=mechanism, labels=labels, delta=1e-5)


def test_each_route_and_the_smallest_are_drawn() -> None:
    axes = plot_totals(total, [100, 1, 10])
    rendered(axes)
    lines = {line.get_label(): line for line in axes.get_lines()}
    smallest = lines.pop("proven total: the smallest")
    assert list(smallest.get_xdata()) == [1, 10, 100]
    assert list(smallest.get_ydata()) == [total(labels).epsilon for labels in (1, 10, 100)]
    assert np.array_equal(np.nanmin([line.get_ydata() for line in lines.values()], axis=0), smallest.get_ydata())
    routes = {route.name: route.epsilon for route in total(100).routes if route.applies and route.epsilon < math.inf}
    assert {name: line.get_ydata()[2] for name, line in lines.items()} == routes
    assert len(routes) >= 2
    assert "at delta 1e-05" in axes.get_ylabel()
    assert str(total(1).unit) in axes.get_title()


def test_totals_without_a_guarantee_are_refused() -> None:
    def nothing(labels: int) -> TotalPrivacy:
        teachers = [dt.PrivacyProfile.non_private()] * 3
        return dt.total_privacy(teachers=teachers, mechanism=dt.NoiseFreeMajority(), labels=labels, delta=1e-5)

    with pytest.raises(InvalidArgument, match="finite"):
        plot_totals(nothing, [1, 2])
    with pytest.raises(InvalidArgument, match="labels"):
        plot_totals(total, [0])
    with pytest.raises(InvalidArgument, match="finite"):
        plot_totals(total, [])


def test_ledger_over_time() -> None:
    ledger = dt.PrivacyLedger(budget=PrivacyGuarantee(epsilon=1.0), cost=PrivacyGuarantee(epsilon=0.1))
    with pytest.raises(InvalidArgument, match="empty"):
        plot_ledger(ledger)
    for batch in ([b"a"], [b"b", b"c"], [b"c", b"d"]):
        ledger.answer(batch, lambda new: [0] * len(new))
    axes = plot_ledger(ledger, cost=lambda n: PrivacyGuarantee(epsilon=n / 10))
    rendered(axes)
    assert list(axes.get_lines()[0].get_ydata()) == [0, 1, 3, 4, 4]
    right = axes.figure.axes[1]
    assert list(right.get_lines()[0].get_ydata()) == pytest.approx([0, 0.1, 0.3, 0.4, 0.4])
    assert "nats" in right.get_ylabel()


def test_a_ledger_of_one_batch_is_priced_by_its_own_rule() -> None:
    """What another rule says of the same labels may cross the budget; and one batch is no four years."""
    budget = PrivacyGuarantee(epsilon=1.0, delta=1e-5)
    ledger = dt.PrivacyLedger(budget=budget, cost=lambda n: PrivacyGuarantee(epsilon=n / 10, delta=1e-5))
    ledger.answer([b"a", b"b"], lambda new: [0] * len(new))
    axes = plot_ledger(ledger)
    rendered(axes)
    right = axes.figure.axes[1]
    spent = ledger.spent()
    assert spent is not None
    assert ledger.spent(5) == PrivacyGuarantee(epsilon=0.5, delta=1e-5)
    assert list(right.get_lines()[0].get_ydata()) == [0, spent.epsilon, spent.epsilon]
    assert axes.get_xlim()[1] - axes.get_xlim()[0] < 1 / 24  # days
    unknown = dt.PrivacyLedger()
    unknown.answer([b"a"], lambda new: [0])
    assert len(plot_ledger(unknown).figure.axes) == 1


def test_an_audit_of_a_pipeline() -> None:
    """Claims of all routes, the bounds found, and the largest in reach."""
    inputs, labels = np.random.default_rng(1).normal(size=(40, 60)), np.arange(40) % 2
    total = dt.total_privacy(teachers=[TEACHER] * 3, mechanism=dt.NoiseFreeMajority(), labels=1, delta=1e-4)
    result = dt.audit_pipeline(
        lambda x, y: lambda queries: queries @ ((2 * y[:, None] - 1) * x).sum(axis=0),
        inputs,
        labels,
        claim=total,
        runs=3,
    )
    axes = plot_audit(result)
    rendered(axes)
    widths = [bar.get_width() for bar in axes.patches]
    assert widths[-3:] == [result.lower_bound(), result.lower_bound(0.999), result.reach()]
    assert widths[0] == total.routes[0].epsilon
    assert axes.get_title() == "REFUTED"
