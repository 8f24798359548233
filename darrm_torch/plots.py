"""Figures of noise functions, privacy profiles, and the accuracy at each budget.

Each function draws on the given ``axes``, or on those of a new figure, and returns the axes; write a file with
``axes.figure.savefig(...)``. There is no global state: no backend is chosen and ``pyplot`` is not used. The colours are
those of Okabe and Ito, which colour-blind readers can distinguish; lines also differ in marker and dash. The figures
need matplotlib (the extra ``plots``).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from .arguments import checked
from .errors import DarrmError, InvalidArgument, check_integer, check_number
from .figures import axes_or_new, finished, looks, next_look, set_title
from .mechanisms.base import Mechanism
from .mechanisms.darrm import DaRRM
from .mechanisms.plurality import MOST_CLASSES
from .noise.certificate import Certificate, label_profile
from .noise.function import NoiseFunction
from .noise.grid import MOST_TEACHERS
from .noise.plurality_priors import VAGUE_VOTES, PluralityPrior, check_plurality_prior
from .noise.regions import Teacher, check_overlap, teacher_profile
from .noise.self_bounding import SelfBoundingCertificate
from .planning.expectation import listed_votes, plurality_chances
from .planning.ranking import Plan
from .privacy.guarantees import PrivacyGuarantee, format_bound
from .privacy.totals import total_privacy

__all__ = ["plot_frontier", "plot_label_profile", "plot_noise", "plot_plurality"]

_LEAST_DELTA = 1e-9  # the bottom of the profiles' axis
_QUICK = 100  # teachers times classes up to which a plan takes about a second
_LISTED = 1000  # up to this number of histograms all are evaluated; otherwise this number is sampled


@checked
def plot_noise(noise: NoiseFunction, *, axes: Any = None, label: str = "gamma") -> Any:
    """Plots gamma against the votes, without the tie; the title states the certificate and its margin.

    To compare noise functions, draw them on the same ``axes``, each with a ``label``. The title then states no
    certificate.

    Args:
        noise: the noise function.
        axes: matplotlib Axes to draw on; None for new ones.
        label: its name in the legend.

    Returns:
        The matplotlib Axes.

    Raises:
        DarrmError: matplotlib is not installed.

    >>> from darrm_torch import self_bounding_noise
    >>> axes = plot_noise(self_bounding_noise(teachers=11, allowance=3))
    >>> axes.get_xlabel()
    'votes for class 1, of 11'
    """
    axes = axes_or_new(axes)
    drawn, look = len(axes.get_lines()), next_look(axes)
    votes = np.arange(noise.teachers + 1)
    votes = votes[2 * votes != noise.teachers]  # at a tie a fair coin decides, whatever gamma is
    axes.vlines(votes, 0, noise.gamma[votes], color=look["color"], alpha=0.25, linewidth=3)
    axes.plot(votes, noise.gamma[votes], label=label, **look | ({} if noise.teachers <= 40 else {"marker": None}))
    most = max(noise.teachers, axes.get_xlim()[1] - 0.5) if drawn else noise.teachers
    axes.set(
        xlabel=f"votes for class 1, of {most:.0f}",
        ylabel="gamma: probability of reporting the majority",
        xlim=(-0.5, most + 0.5),
        ylim=(0, 1.05),
    )
    set_title(axes, "Noise function", _proof(noise), alone=not drawn)
    return finished(axes, legend=bool(drawn) or label != "gamma")


@checked
def plot_plurality(
    mechanism: Mechanism,
    *,
    teachers: int | None = None,
    classes: int | None = None,
    prior: PluralityPrior = VAGUE_VOTES,
    axes: Any = None,
    label: str | None = None,
) -> Any:
    """Plots the probability of reporting the plurality against its lead; the title states the certificate.

    The line is the mean under ``prior``. The band reaches from the worst to the best votes with that lead. Votes that
    tie for the plurality are left out, since each of the tied classes is the plurality. To compare mechanisms, draw
    them on the same ``axes``; the title then states no certificate.

    Args:
        mechanism: a mechanism for any number of classes.
        teachers: K; None for the number that the mechanism is built for.
        classes: C; None for the number that the mechanism is built for.
        prior: the expected votes.
        axes: matplotlib Axes to draw on; None for new ones.
        label: its name in the legend; None for the name of its class.

    Returns:
        The matplotlib Axes.

    Raises:
        InvalidArgument: the mechanism is built for other numbers of teachers or classes, or for any numbers and none
            are given.
        DarrmError: matplotlib is not installed.

    >>> from darrm_torch import PermuteAndFlip
    >>> plot_plurality(PermuteAndFlip(epsilon=1.0), teachers=5, classes=3).get_xlabel()
    'lead of the plurality, in votes of 5'
    """
    axes = axes_or_new(axes)
    from matplotlib.patches import Patch

    count = check_integer("teachers", mechanism.teachers if teachers is None else teachers, low=1, high=MOST_TEACHERS)
    kinds = check_integer("classes", mechanism.classes if classes is None else classes, low=2, high=MOST_CLASSES)
    parts = check_plurality_prior(prior)
    listed = listed_votes(parts, teachers=count, classes=kinds)
    if listed is not None:
        votes, weights = listed[0], listed[1].sum(axis=1)
    else:
        rng, size = np.random.default_rng(0), math.ceil(_LISTED / len(parts))
        votes = np.concatenate([part.sample(votes=count, classes=kinds, count=size, rng=rng) for part in parts])
        weights = np.full(len(votes), 1 / len(votes))
    reported = plurality_chances(mechanism.label_probabilities(votes), votes)
    ordered = np.sort(votes, axis=1)
    lead = ordered[:, -1] - ordered[:, -2]
    leads = np.unique(lead[lead > 0])
    sides = np.array([[reported[lead == one].min(), reported[lead == one].max()] for one in leads])
    means = [np.average(reported[lead == one], weights=weights[lead == one]) for one in leads]
    drawn, look = len(axes.get_lines()), next_look(axes)
    axes.fill_between(leads, sides[:, 0], sides[:, 1], color=look["color"], alpha=0.15, linewidth=0)
    axes.plot(leads, means, label=label or type(mechanism).__name__, **look)
    axes.set(
        xlabel=f"lead of the plurality, in votes of {count}",
        ylabel="probability of reporting the plurality",
        xlim=(0.5, count + 0.5),
        ylim=(0, 1.05),
    )
    set_title(axes, "Probability of reporting the plurality", _proof(mechanism), alone=not drawn)
    band = Patch(color="black", alpha=0.15, linewidth=0, label="band: worst to best votes with that lead")
    return finished(axes, handles=[*axes.get_lines(), band], loc="lower right")


def _proof(noise: NoiseFunction | Mechanism) -> str:
    """The proven guarantee as text."""
    proven = noise.certificate
    overlap = "" if proven is None else f", overlap {proven.overlap} of {proven.teachers}"
    if isinstance(proven, Certificate):
        return (
            f"Certified: one label is {proven.target}{overlap}\n"
            f"worst loss {format_bound(proven.loss, 3)} of {format_bound(proven.bound, 3)}; margin {proven.margin:.1e}"
        )
    if isinstance(proven, SelfBoundingCertificate):
        return (
            f"Certified: labels add up, each costs m = {format_bound(proven.allowance)} teachers{overlap}\n"
            f"smallest m {format_bound(proven.smallest)}; margin {proven.margin:.1e}"
        )
    if isinstance(noise, Mechanism):
        own = noise.guarantee(labels=1, delta=getattr(noise, "delta", None) or 1e-5)
        return "Private only through the teachers" if own is None else f"By its own randomness one label is {own}"
    return "No certificate: nothing is proven"


@checked
def plot_label_profile(
    noise: NoiseFunction | Mechanism,
    teacher: Teacher,
    *,
    overlap: int | None = None,
    axes: Any = None,
    points: int = 25,
) -> Any:
    """Plots delta against epsilon for one label, for one teacher, and for publishing r teachers.

    Args:
        noise: a noise function, or a mechanism for any number of classes that is built for K teachers.
        teacher: what each teacher promises: a guarantee, a profile, or a sequence with one of these for each of the K
            teachers, which stands for the weakest.
        overlap: r, the largest number of teachers whose training data one record is in; None for that of the
            certificate or of the mechanism, or else all.
        axes: matplotlib Axes to draw on; None for new ones.
        points: the number of epsilons to evaluate.

    Returns:
        The matplotlib Axes.

    Raises:
        InvalidArgument: the teachers promise nothing, or the mechanism is built for any number of teachers.
        DarrmError: matplotlib is not installed.

    >>> from darrm_torch import self_bounding_noise
    >>> axes = plot_label_profile(
    ...     self_bounding_noise(teachers=3, allowance=1), PrivacyGuarantee(epsilon=0.5), points=3
    ... )
    >>> axes.get_ylabel()
    'delta'
    """
    if isinstance(noise, DaRRM):
        noise = noise.noise
    teachers = check_integer("noise.teachers", noise.teachers, low=1, cure="Build the mechanism with teachers=K.")
    profile = teacher_profile(teacher, teachers)
    if not profile.is_private:
        raise InvalidArgument("teacher", "a promise with a finite epsilon", teacher, "There is no profile to plot.")
    if overlap is None:
        overlap = getattr(noise.certificate or noise, "overlap", None)
    overlap = check_overlap(overlap, teachers)
    check_integer("points", points, low=2, high=10_000)
    axes = axes_or_new(axes)
    published = profile.compose(overlap)
    reach = published.epsilon(min(1.0, max(1e-6, 2 * published.delta(50.0))))
    epsilons = np.linspace(0.0, reach if math.isfinite(reach) else 5.0, points)
    # Profiles are convex, so between points the line is above the curve; it must not be above the certified points.
    kinks = [step * teacher.epsilon for step in range(1, overlap + 1)] if isinstance(teacher, PrivacyGuarantee) else []
    if (target := getattr(noise, "target", None)) is not None:
        kinks.append(target.epsilon)
    epsilons = np.unique([*epsilons, *(kink for kink in kinks if kink < epsilons[-1])])

    def profile_of(curve: Callable[[float], float]) -> tuple[Any, Any]:
        deltas = np.array([curve(float(epsilon)) for epsilon in epsilons])
        return epsilons, np.where(deltas >= _LEAST_DELTA, deltas, np.nan)

    if isinstance(noise, NoiseFunction):
        one = profile_of(label_profile(noise.gamma, teachers=teachers, teacher=profile, overlap=overlap))
    else:  # a mechanism has an epsilon at each delta
        priced, promised = noise, [profile] * teachers
        deltas = np.geomspace(_LEAST_DELTA, max(published.delta(0.0), 2 * _LEAST_DELTA), points)
        costs = [
            total_privacy(teachers=promised, overlap=overlap, mechanism=priced, labels=1, delta=float(d)).epsilon
            for d in deltas
        ]
        one = np.where(np.array(costs) <= epsilons[-1], costs, np.nan), deltas
    curves = {"one label": one, "one teacher": profile_of(profile.delta)}
    if overlap > 1:
        curves[f"publishing {overlap} teachers"] = profile_of(published.delta)
    for (name, curve), look in zip(curves.items(), looks(), strict=False):
        axes.plot(*curve, label=name, **look)
    if target is not None and target.delta > 0:
        axes.plot(target.epsilon, target.delta, "*", color="black", markersize=12, label="target of one label")
    axes.set(xlabel="epsilon (nats)", ylabel="delta", yscale="log", title="Privacy profile of one label")
    axes.set_ylim(bottom=_LEAST_DELTA)
    return finished(axes)


@checked
def plot_frontier(
    plan: Plan,
    epsilons: Iterable[float] | None = None,
    *,
    axes: Any = None,
    on_progress: Callable[[float], None] = lambda epsilon: None,
) -> Any:
    """Plots the agreement of each strategy against epsilon, at the plan's deltas.

    Strategies that count whole teachers are drawn in steps, each up to the next epsilon of the figure. A line has a gap
    where its price stops growing with the number of labels: from there on publishing the teachers bounds it, and
    their votes need no noise.

    Args:
        plan: the plan; the epsilons of its targets are scaled.
        epsilons: the epsilons to plan for; None for nine from a quarter of the plan's to four times it, or for five
            where teachers and classes are many and each plan takes seconds.
        axes: matplotlib Axes to draw on; None for new ones.
        on_progress: called with each epsilon when it is done.

    Returns:
        The matplotlib Axes.

    Raises:
        DarrmError: matplotlib is not installed, or no strategy keeps its target at any of the epsilons.

    >>> from darrm_torch import plan
    >>> answer = plan(teachers=3, teacher=PrivacyGuarantee(epsilon=0.5), label_target=PrivacyGuarantee(epsilon=1.0))
    >>> plot_frontier(answer, [0.5, 1.0]).get_ylabel()
    'agreement with the majority'
    """
    axes = axes_or_new(axes)
    target = plan.targets[-1]
    grid = (
        frontier_epsilons(plan)
        if epsilons is None
        else sorted(check_number("epsilons", one, low=0.0) for one in epsilons)
    )
    if not grid:
        raise InvalidArgument("epsilons", "one number or more", "none")
    curves: dict[str, list[tuple[float, float]]] = {}
    capped: dict[str, bool] = {}
    drawn_as: dict[str, tuple[str, bool]] = {}  # a look for each kind, hollow where training is counted, too
    for epsilon in map(float, grid):
        for row in plan.at(epsilon).rows:
            if row.meets and row.agreement is not None:
                part = row.voters < plan.teachers
                name = f"noise-free, part of the {plan.teachers}" if part else row.name + " *" * row.own_randomness
                drawn_as[name] = name if part else row.kind, row.rests_on == "both"
                points, cap = curves.setdefault(name, []), row.total is not None and row.total.route.key in _CAPS
                if plan.labels > 1 and points and cap != capped[name]:
                    points.append((math.sqrt(points[-1][0] * epsilon), math.nan))
                points.append((epsilon, row.agreement))
                capped[name] = cap
        on_progress(epsilon)
    if not curves:
        least, most = (format_bound(float(one), 3) for one in (grid[0], grid[-1]))
        raise DarrmError(
            f"There is nothing to draw: no strategy keeps the target at an epsilon from {least} to {most}. Raise the "
            "target, or ask for fewer labels."
        )
    look_of = dict(zip(sorted({kind for kind, _ in drawn_as.values()}), itertools.cycle(looks()), strict=False))
    drawn = sorted(curves.items())
    hidden = [sum(_coincide(pairs, other) for _, other in drawn[place + 1 :]) for place, (_, pairs) in enumerate(drawn)]
    wider = 1 / max(3, *hidden)
    for (name, pairs), below in zip(drawn, hidden, strict=True):
        kind, combined = drawn_as[name]
        hollow = {"fillstyle": "none", "linestyle": ":"} if combined else {}
        (line,) = axes.plot(*zip(*pairs, strict=True), label=name, **look_of[kind] | hollow)
        if kind == "subsampling" or kind.startswith("noise-free"):  # whole teachers: a step, nothing in between
            line.set_drawstyle("steps-post")
        line.set(linewidth=1.4 + 5 * below * wider, markersize=5 + 9 * below * wider)  # so that it shows below others
    axes.axvline(target.epsilon, color="black", linewidth=0.8, linestyle=":")
    what = "one label" if plan.total_target is None else f"all {plan.labels} labels"
    axes.set(
        xscale="log",
        xlabel=f"epsilon of {what} (nats), at delta {format_bound(target.delta, 3)}",
        ylabel=f"agreement with the {plan.winner}",
        ylim=(1 / plan.classes - 0.02, 1.02),
    )
    teachers = f"{plan.teachers} teacher{'s' * (plan.teachers > 1)}, overlap {plan.overlap}"
    axes.set_title(f"{teachers}; * by the mechanism's own randomness", fontsize=10)
    ticks = target.epsilon * 2.0 ** np.arange(-2, 3) if epsilons is None else grid[:: math.ceil(len(grid) / 8)]
    axes.set_xticks(ticks, [f"{tick:.3g}" for tick in ticks])
    axes.minorticks_off()
    finished(axes, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    for handle in axes.get_legend().get_lines():
        handle.set(linewidth=1.4, markersize=5)
    return axes


def frontier_epsilons(plan: Plan) -> list[float]:
    """The epsilons of a frontier where none are given."""
    count = 9 if plan.teachers * plan.classes <= _QUICK else 5
    return [plan.targets[-1].epsilon * 4.0 ** (2 * place / (count - 1) - 1) for place in range(count)]


_CAPS = ("publishing", "allocation")  # routes whose price does not grow with the number of labels


def _coincide(one: list[tuple[float, float]], other: list[tuple[float, float]]) -> bool:
    """Whether two curves are too close to distinguish wherever both are defined."""
    mine, there = dict(one), dict(other)
    both = {epsilon for epsilon in mine.keys() & there.keys() if not math.isnan(mine[epsilon] + there[epsilon])}
    return bool(both) and all(abs(mine[epsilon] - there[epsilon]) < 0.005 for epsilon in both)
