"""Figures of what labels cost: the routes to a total, a ledger, an audit. See :mod:`darrm_torch.plots`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

from .arguments import checked
from .auditing.pipelines import PipelineAudit
from .errors import InvalidArgument, check_integer
from .figures import COLOURS, axes_or_new, finished, looks
from .labels.cost import total_cost
from .labels.ledger import PrivacyLedger
from .privacy.guarantees import PrivacyGuarantee, format_bound
from .privacy.totals import TotalPrivacy

__all__ = ["plot_audit", "plot_ledger", "plot_totals"]


@checked
def plot_totals(total: Callable[[int], TotalPrivacy], labels: Sequence[int], *, axes: Any = None) -> Any:
    """Plots the epsilon of all labels together against their number: a line for each route, and the smallest of all.

    A route without a finite epsilon has no line. The title names what is protected; the assumptions are those of the
    totals.

    Args:
        total: the total of N labels, such as ``lambda n: ensemble.total_privacy(labels=n)``.
        labels: the numbers of labels to evaluate.
        axes: matplotlib Axes to draw on; None for new ones.

    Returns:
        The matplotlib Axes.

    Raises:
        InvalidArgument: ``labels`` are no positive integers, or no total of them is finite.
        DarrmError: matplotlib is not installed.

    >>> from darrm_torch import NoiseFreeMajority, total_privacy
    >>> axes = plot_totals(
    ...     lambda n: total_privacy(
    ...         teachers=[PrivacyGuarantee(epsilon=0.1)] * 5, mechanism=NoiseFreeMajority(), labels=n, delta=1e-5
    ...     ),
    ...     [1, 10, 100],
    ... )
    >>> axes.get_xlabel()
    'number of labels'
    """
    axes = axes_or_new(axes)
    counts = sorted({check_integer("labels", count, low=1) for count in labels})
    totals = [total(count) for count in counts]
    for one in totals:
        if not isinstance(one, TotalPrivacy):
            raise InvalidArgument("total", "a function that returns a TotalPrivacy", one)
    if not any(math.isfinite(one.epsilon) for one in totals):
        raise InvalidArgument("total", "one that is finite for some number of labels", math.inf, "Nothing is private.")
    look = itertools.cycle(looks())
    for routes in zip(*(one.routes for one in totals), strict=True):
        drawn = [route.epsilon if route.applies and math.isfinite(route.epsilon) else math.nan for route in routes]
        if not all(map(math.isnan, drawn)):
            axes.plot(counts, drawn, label=routes[0].name, **next(look))
    smallest = [one.epsilon if math.isfinite(one.epsilon) else math.nan for one in totals]
    axes.plot(counts, smallest, color="black", linewidth=5, alpha=0.2, zorder=1, label="proven total: the smallest")
    axes.set(
        xscale="log",
        yscale="linear" if 0.0 in smallest else "log",
        xlabel="number of labels",
        ylabel=f"epsilon of all labels (nats), at delta {format_bound(totals[-1].delta, 3)}",
    )
    axes.set_title(f"Cost of all labels together, for {totals[-1].unit}", fontsize=10)
    return finished(axes)


@checked
def plot_ledger(
    ledger: PrivacyLedger, *, cost: Callable[[int], PrivacyGuarantee] | None = None, axes: Any = None
) -> Any:
    """Plots the labels of a ledger over time, and their total cost.

    Args:
        ledger: a ledger with at least one label.
        cost: the total cost of N labels; None for the rule by which the ledger charges. The ledger of an ensemble has
            such a rule; a ledger that was opened on its own has none, and no cost is drawn.
        axes: matplotlib Axes to draw on; None for new ones.

    Returns:
        The matplotlib Axes.

    Raises:
        InvalidArgument: an empty ledger.
        DarrmError: matplotlib is not installed.

    >>> ledger = PrivacyLedger(cost=PrivacyGuarantee(epsilon=0.1))
    >>> ledger.answer([b"one input"], lambda new: [1 for _ in new])
    [1]
    >>> plot_ledger(ledger).get_title()
    'Ledger'
    """
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    charges = ledger.charges
    if not charges:
        raise InvalidArgument("ledger", "one with labels", "an empty one", "There is nothing to plot.")
    axes = axes_or_new(axes)
    times = [datetime.fromisoformat(charge.time) for charge in charges]
    counts = list(itertools.accumulate(charge.labels for charge in charges))
    around = max((times[-1] - times[0]) / 20, timedelta(minutes=1))
    whole = [times[0] - around, *times, times[-1] + around]
    steps: dict[str, Any] = {"where": "post", "markevery": slice(1, -1)}
    axes.step(whole, [0, *counts, counts[-1]], color=COLOURS[0], marker="o", label="labels", **steps)
    axes.set(xlabel="time (UTC)", ylabel="labels", title="Ledger", xlim=(whole[0], whole[-1]))
    locator = AutoDateLocator()
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
    axes.set_ylim(bottom=0)
    finished(axes, legend=False)
    prices = [ledger.spent(count) if cost is None else total_cost(cost, count) for count in counts]
    spent = [price for price in prices if price is not None]
    if not spent:
        return axes
    right = axes.twinx()
    costs = [0.0, *(price.epsilon for price in spent), spent[-1].epsilon]
    right.step(whole, costs, color=COLOURS[1], linestyle="--", marker="s", label="spent", **steps)
    right.set_ylabel(f"epsilon of all labels (nats), at delta {format_bound(spent[-1].delta, 3)}")
    if (budget := ledger.budget) is not None:
        right.axhline(budget.epsilon, color="black", linestyle=":", label="budget")
    right.set_ylim(bottom=0)
    right.spines["top"].set_visible(False)
    return finished(axes, handles=[*axes.get_lines(), *right.get_lines()], loc="lower right")


@checked
def plot_audit(result: PipelineAudit, *, axes: Any = None) -> Any:
    """Plots the epsilon that each route claims, that an audit found, and the largest that it could have found.

    Args:
        result: what :func:`~darrm_torch.audit_pipeline` returned.
        axes: matplotlib Axes to draw on; None for new ones.

    Returns:
        The matplotlib Axes.

    Raises:
        DarrmError: matplotlib is not installed.

    >>> from darrm_torch import audit_pipeline
    >>> sums = lambda inputs, labels: lambda queries: queries @ inputs.sum(axis=0)
    >>> records = [[0.0, 1.0], [1.0, 0.0]], [0, 1]
    >>> plot_audit(audit_pipeline(sums, *records, claim=PrivacyGuarantee(epsilon=1.0))).get_title()
    'Not refuted'
    """
    axes = axes_or_new(axes)
    claims = {f"claimed by {one.name}": one.epsilon for one in result.routes if math.isfinite(one.epsilon)}
    found = {f"at least, with {level:.1%}": result.lower_bound(level) for level in (0.95, 0.999)}
    bars = (claims or {"claimed": result.claim.epsilon}) | found | {"largest bound in reach": result.reach()}
    colours = [COLOURS[0]] * (len(bars) - 3) + [COLOURS[1]] * 2 + [COLOURS[7]]
    axes.barh(list(bars), [value if math.isfinite(value) else 0.0 for value in bars.values()], color=colours)
    axes.axvline(result.claim.epsilon, color="black", linewidth=0.8, linestyle=":")
    axes.invert_yaxis()
    axes.set(xlabel=f"epsilon (nats), at delta {format_bound(result.claim.delta, 3)}", ylabel="audit of the pipeline")
    axes.set_title("REFUTED" if result.refuted else "Not refuted", fontsize=10)
    return finished(axes, legend=False)
