"""Figures: what noise does, what a label costs, what accuracy a budget buys, what was spent when.

Each function draws on the ``axes`` it is given, or on a new figure's, and returns the axes, of which
``axes.figure.savefig(...)`` writes a file. Nothing is global: no backend is chosen and ``pyplot`` is not touched.
Colours are those of Okabe and Ito, told apart by colour-blind readers; lines differ in marker and dash too. Needs
matplotlib: the extra ``plots``.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any

import numpy as np

from .errors import InvalidArgument, check_integer
from .labels.ledger import PrivacyLedger
from .mechanisms import DaRRM, Mechanism
from .noise.certificate import Certificate, label_profile
from .noise.function import NoiseFunction
from .noise.plurality_priors import VAGUE_VOTES, PluralityPrior, check_plurality_prior
from .noise.regions import Teacher, check_overlap, teacher_profile
from .noise.self_bounding import SelfBoundingCertificate
from .planning.expectation import listed_votes, plurality_chances
from .planning.ranking import Plan
from .privacy.guarantees import PrivacyGuarantee, format_bound
from .privacy.totals import total_privacy

__all__ = ["plot_frontier", "plot_label_profile", "plot_ledger", "plot_noise", "plot_plurality"]

_COLOURS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#000000",
    "#999999",
    "#7F3C8D",
    "#8C6D31",
)
_MARKERS = "osD^vP*X<>"
_DASHES = ("-", "--", "-.", ":")
_LEAST_DELTA = 1e-9  # the bottom of the profiles' axis
_LISTED = 1000  # histograms of votes that are all drawn; of more, as many by chance


def plot_noise(noise: NoiseFunction, *, axes: Any = None, label: str = "gamma") -> Any:
    """gamma against the votes, with what its certificate proves and the margin that is left.

    To compare noise functions, draw them on the same ``axes``, each with a ``label``; what is proven is said where
    there is only one.

    Args:
        noise: the noise function.
        axes: matplotlib Axes to draw on; None: new ones.
        label: what the legend calls it.
    """
    axes = _axes(axes)
    drawn, look = len(axes.get_lines()), _next_look(axes)
    votes = np.arange(noise.teachers + 1)
    axes.vlines(votes, 0, noise.gamma, color=look["color"], alpha=0.25, linewidth=3)
    axes.plot(votes, noise.gamma, label=label, **look | ({} if noise.teachers <= 40 else {"marker": None}))
    most = max(noise.teachers, axes.get_xlim()[1] - 0.5) if drawn else noise.teachers
    axes.set(
        xlabel=f"votes for class 1, of {most:.0f}",
        ylabel="gamma: chance that the majority is told",
        xlim=(-0.5, most + 0.5),
        ylim=(0, 1.05),
    )
    _head(axes, "Noise function", _proof(noise), alone=not drawn)
    if drawn or label != "gamma":
        axes.legend(frameon=False, fontsize=8)
    _tidy(axes)
    return axes


def plot_plurality(
    mechanism: Mechanism,
    *,
    teachers: int | None = None,
    classes: int | None = None,
    prior: PluralityPrior = VAGUE_VOTES,
    axes: Any = None,
    label: str | None = None,
) -> Any:
    """How often the plurality is told, against how far it is ahead; with what is proven, and the margin that is left.

    The line is the mean under ``prior``; the band reaches from the worst to the best votes with that lead. Votes that
    tie are left out: whatever class they tie for is the plurality. To compare mechanisms, draw them on the same
    ``axes``; what is proven is said where there is only one.

    Args:
        mechanism: for any number of classes.
        teachers: K; None: what it is made for.
        classes: C; None: what it is made for.
        prior: how the teachers are believed to vote.
        axes: matplotlib Axes to draw on; None: new ones.
        label: what the legend calls it; None: its class.

    Raises:
        InvalidArgument: a mechanism that is made for other teachers or classes, or for any where none are given.
    """
    axes = _axes(axes)
    from matplotlib.patches import Patch

    count = check_integer("teachers", mechanism.teachers if teachers is None else teachers, low=1)
    kinds = check_integer("classes", mechanism.classes if classes is None else classes, low=2)
    parts = check_plurality_prior(prior)
    listed = listed_votes(parts, teachers=count, classes=kinds)
    if listed is not None:
        votes, weights = listed[0], listed[1].sum(axis=1)
    else:
        rng, size = np.random.default_rng(0), math.ceil(_LISTED / len(parts))
        votes = np.concatenate([part.sample(votes=count, classes=kinds, count=size, rng=rng) for part in parts])
        weights = np.full(len(votes), 1 / len(votes))
    told = plurality_chances(mechanism.label_probabilities(votes), votes)
    ordered = np.sort(votes, axis=1)
    lead = ordered[:, -1] - ordered[:, -2]
    leads = np.unique(lead[lead > 0])
    sides = np.array([[told[lead == one].min(), told[lead == one].max()] for one in leads])
    means = [np.average(told[lead == one], weights=weights[lead == one]) for one in leads]
    drawn, look = len(axes.get_lines()), _next_look(axes)
    axes.fill_between(leads, sides[:, 0], sides[:, 1], color=look["color"], alpha=0.15, linewidth=0)
    axes.plot(leads, means, label=label or type(mechanism).__name__, **look)
    axes.set(
        xlabel=f"lead of the plurality, in votes of {count}",
        ylabel="chance that a label is the plurality",
        xlim=(0.5, count + 0.5),
        ylim=(0, 1.05),
    )
    _head(axes, "How often the plurality is told", _proof(mechanism), alone=not drawn)
    band = Patch(color="black", alpha=0.15, linewidth=0, label="band: worst to best votes with that lead")
    axes.legend(handles=[*axes.get_lines(), band], frameon=False, fontsize=8, loc="lower right")
    _tidy(axes)
    return axes


def _proof(noise: NoiseFunction | Mechanism) -> str:
    proven = noise.certificate
    touched = "" if proven is None else f", a record touches {proven.overlap} of {proven.teachers}"
    if isinstance(proven, Certificate):
        return (
            f"Certified: one label is {proven.target}{touched}\n"
            f"worst loss {format_bound(proven.loss, 3)} of {format_bound(proven.bound, 3)}; margin {proven.margin:.1e}"
        )
    if isinstance(proven, SelfBoundingCertificate):
        return (
            f"Certified: labels add up, each costs m = {format_bound(proven.allowance)} teachers{touched}\n"
            f"smallest m {format_bound(proven.smallest)}; margin {proven.margin:.1e}"
        )
    if isinstance(noise, Mechanism):
        own = noise.guarantee(labels=1, delta=getattr(noise, "delta", None) or 1e-5)
        return "Private only through the teachers" if own is None else f"By coins alone one label is {own}"
    return "No certificate: nothing is proven"


def plot_label_profile(
    noise: NoiseFunction | Mechanism,
    teacher: Teacher,
    *,
    overlap: int | None = None,
    axes: Any = None,
    points: int = 25,
) -> Any:
    """delta against epsilon: of one label, of one teacher, and of the r teachers that a record can touch, outright.

    Args:
        noise: the noise function, or a mechanism for any number of classes that is made for K teachers.
        teacher: what each teacher promises.
        overlap: r; None: that of the certificate or of the mechanism, or all.
        axes: matplotlib Axes to draw on; None: new ones.
        points: how many epsilons are computed.

    Raises:
        InvalidArgument: teachers that promise nothing; a mechanism for any number of them.
    """
    if isinstance(noise, DaRRM):
        noise = noise.noise
    teachers = check_integer("noise.teachers", noise.teachers, low=1, cure="Make it for as many as there are.")
    profile = teacher_profile(teacher, teachers)
    if not profile.is_private:
        raise InvalidArgument("teacher", "one that promises something", teacher, "There is no profile to draw.")
    if overlap is None:
        overlap = getattr(noise.certificate or noise, "overlap", None)
    overlap = check_overlap(overlap, teachers)
    axes = _axes(axes)
    outright = profile.compose(overlap)
    reach = outright.epsilon(max(1e-6, 2 * outright.delta(50.0)))
    epsilons = np.linspace(0.0, reach if math.isfinite(reach) else 5.0, points)
    # Profiles are convex: between points the line is above the curve, and could be above what is certified there.
    kinks = [step * teacher.epsilon for step in range(1, overlap + 1)] if isinstance(teacher, PrivacyGuarantee) else []
    if (target := getattr(noise, "target", None)) is not None:
        kinks.append(target.epsilon)
    epsilons = np.unique([*epsilons, *(kink for kink in kinks if kink < epsilons[-1])])

    def profile_of(curve: Callable[[float], float]) -> tuple[Any, Any]:
        deltas = np.array([curve(float(epsilon)) for epsilon in epsilons])
        return epsilons, np.where(deltas >= _LEAST_DELTA, deltas, np.nan)

    if isinstance(noise, NoiseFunction):
        one = profile_of(label_profile(noise.gamma, teachers=teachers, teacher=profile, overlap=overlap))
    else:  # which is priced at a delta
        priced, promised = noise, [profile] * teachers
        deltas = np.geomspace(_LEAST_DELTA, max(outright.delta(0.0), 2 * _LEAST_DELTA), points)
        costs = [
            total_privacy(teachers=promised, overlap=overlap, mechanism=priced, labels=1, delta=float(d)).epsilon
            for d in deltas
        ]
        one = np.where(np.array(costs) <= epsilons[-1], costs, np.nan), deltas
    curves = {"one label": one, "one teacher": profile_of(profile.delta)}
    if overlap > 1:
        curves[f"{overlap} teachers, outright"] = profile_of(outright.delta)
    for (name, curve), look in zip(curves.items(), _looks(), strict=False):
        axes.plot(*curve, label=name, **look)
    if target is not None and target.delta > 0:
        axes.plot(target.epsilon, target.delta, "*", color="black", markersize=12, label="target of one label")
    axes.set(xlabel="epsilon (nats)", ylabel="delta", yscale="log", title="Privacy profile of one label")
    axes.set_ylim(bottom=_LEAST_DELTA)
    axes.legend(frameon=False, fontsize=8)
    _tidy(axes)
    return axes


def plot_frontier(
    plan: Plan,
    epsilons: Iterable[float] | None = None,
    *,
    axes: Any = None,
    on_progress: Callable[[float], None] = lambda epsilon: None,
) -> Any:
    """Agreement against epsilon: what each strategy is worth at each budget, at the plan's deltas.

    Args:
        plan: the question; its targets' epsilons are scaled.
        epsilons: where; None: from a quarter of the plan's to four times it.
        axes: matplotlib Axes to draw on; None: new ones.
        on_progress: called with each epsilon when it is done.
    """
    asked = plan.targets[-1]
    grid = np.geomspace(asked.epsilon / 4, asked.epsilon * 4, 13) if epsilons is None else sorted(epsilons)
    curves: dict[str, list[tuple[float, float]]] = {}
    drawn_as: dict[str, tuple[str, bool]] = {}  # a look for each kind, hollow where training is counted, too
    for epsilon in map(float, grid):
        for row in plan.at(epsilon).rows:
            if row.meets and row.agreement is not None:
                part = row.voters < plan.teachers
                name = f"noise-free, part of the {plan.teachers}" if part else row.name + " *" * row.own_randomness
                drawn_as[name] = name if part else row.kind, row.rests_on == "both"
                curves.setdefault(name, []).append((epsilon, row.agreement))
        on_progress(epsilon)
    axes = _axes(axes)
    looks = dict(zip(sorted({kind for kind, _ in drawn_as.values()}), itertools.cycle(_looks()), strict=False))
    drawn = sorted(curves.items())
    for number, (name, pairs) in enumerate(drawn):
        kind, combined = drawn_as[name]
        hollow = {"fillstyle": "none", "linestyle": ":"} if combined else {}
        (line,) = axes.plot(*zip(*pairs, strict=True), label=name, **looks[kind] | hollow)
        above = sum(_coincide(pairs, other) for _, other in drawn[number + 1 :])  # so much wider, to be seen below them
        line.set(linewidth=1.4 + 1.8 * above, markersize=5 + 3 * above)
    axes.axvline(asked.epsilon, color="black", linewidth=0.8, linestyle=":")
    what = "one label" if plan.total_target is None else f"all {plan.labels} labels"
    axes.set(
        xscale="log",
        xlabel=f"epsilon of {what} (nats), at delta {format_bound(asked.delta, 3)}",
        ylabel=f"agreement with the {plan.winner}",
        ylim=(1 / plan.classes - 0.02, 1.02),
    )
    axes.set_title(f"{plan.teachers} teachers, a record touches {plan.overlap}; * by coins alone", fontsize=10)
    ticks = asked.epsilon * 2.0 ** np.arange(-2, 3) if epsilons is None else grid[:: math.ceil(len(grid) / 8)]
    axes.set_xticks(ticks, [f"{tick:.3g}" for tick in ticks])
    axes.minorticks_off()
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    _tidy(axes)
    return axes


def _coincide(one: list[tuple[float, float]], other: list[tuple[float, float]]) -> bool:
    mine, there = dict(one), dict(other)
    both = mine.keys() & there.keys()
    return bool(both) and all(abs(mine[epsilon] - there[epsilon]) < 0.005 for epsilon in both)


def plot_ledger(
    ledger: PrivacyLedger, *, cost: Callable[[int], PrivacyGuarantee] | None = None, axes: Any = None
) -> Any:
    """What was given out when: labels over time, and what they cost together.

    Args:
        ledger: with at least one label.
        cost: what N labels cost together; None: by the rule that the ledger charges by, if it was told (that of an
            ensemble was; one that is opened by itself knows none).
        axes: matplotlib Axes to draw on; None: new ones.

    Raises:
        InvalidArgument: an empty ledger.
    """
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    charges = json.loads(ledger.export_json())["charges"]
    if not charges:
        raise InvalidArgument("ledger", "one with labels", "an empty one", "There is nothing to draw.")
    axes = _axes(axes)
    times = [datetime.fromisoformat(charge["time"]) for charge in charges]
    counts = list(itertools.accumulate(charge["labels"] for charge in charges))
    around = max((times[-1] - times[0]) / 20, timedelta(minutes=1))
    whole = [times[0] - around, *times, times[-1] + around]
    steps: dict[str, Any] = {"where": "post", "markevery": slice(1, -1)}
    axes.step(whole, [0, *counts, counts[-1]], color=_COLOURS[0], marker="o", label="labels", **steps)
    axes.set(xlabel="time (UTC)", ylabel="labels given out", title="Ledger", xlim=(whole[0], whole[-1]))
    locator = AutoDateLocator()
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
    axes.set_ylim(bottom=0)
    _tidy(axes)
    prices = [ledger.spent(count) if cost is None else cost(count) for count in counts]
    spent = [price for price in prices if price is not None]
    if not spent:
        return axes
    right = axes.twinx()
    costs = [0.0, *(price.epsilon for price in spent), spent[-1].epsilon]
    right.step(whole, costs, color=_COLOURS[1], linestyle="--", marker="s", label="spent", **steps)
    right.set_ylabel(f"epsilon of all labels (nats), at delta {format_bound(spent[-1].delta, 3)}")
    if (budget := ledger.budget) is not None:
        right.axhline(budget.epsilon, color="black", linestyle=":", label="budget")
    right.set_ylim(bottom=0)
    right.spines["top"].set_visible(False)
    lines = [*axes.get_lines(), *right.get_lines()]
    axes.legend(lines, [line.get_label() for line in lines], frameon=False, fontsize=8, loc="lower right")
    return axes


def _axes(axes: Any) -> Any:
    if axes is not None:
        return axes
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InvalidArgument(
            "plot", "used where matplotlib is installed", "no matplotlib", "pip install 'darrm-torch[plots]'"
        ) from None
    return Figure(figsize=(7.5, 4.5), layout="constrained", dpi=130).subplots()


def _looks() -> Iterable[dict[str, Any]]:
    for number, (colour, marker) in enumerate(zip(_COLOURS, _MARKERS, strict=True)):
        yield {"color": colour, "marker": marker, "linestyle": _DASHES[number % 4], "markersize": 5, "linewidth": 1.4}


def _next_look(axes: Any) -> dict[str, Any]:
    return list(_looks())[len(axes.get_lines()) % len(_COLOURS)]


def _head(axes: Any, what: str, proof: str, *, alone: bool) -> None:
    """A title, with what is proven where one thing is drawn; one of the caller's stays."""
    if not axes.get_title() or axes.get_title().startswith(what):
        axes.set_title(f"{what}\n{proof}" if alone else what, fontsize=9)


def _tidy(axes: Any) -> None:
    axes.grid(alpha=0.25)
    axes.spines["top"].set_visible(False)
