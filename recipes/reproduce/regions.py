"""The paper's drawings: the problem, the regions of a teacher's probabilities, and randomized response as a program."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import darrm_torch as dt
from darrm_torch.noise.regions import Region

from . import published
from .drawing import STYLES, grid, legend
from .result import Exhibit, Result, Table

Points = list[tuple[float, float]]

EPSILON, DELTA, TEACHERS, ALLOWANCE = 0.1, 1e-5, 11, 3
# Large values, so that corners can be told apart in the figure.
SEEN = {"Delta = 0": dt.PrivacyGuarantee(epsilon=1.0), "Delta = 0.1": dt.PrivacyGuarantee(epsilon=1.0, delta=0.1)}


def corners(guarantee: dt.PrivacyGuarantee) -> Points:
    """All vertices (p, p') of the region of a guarantee, in order around it."""
    chain = [(float(p), float(q)) for p, q in Region(guarantees=(guarantee,)).chain]
    points = [(0.0, 0.0), *chain, (1.0, 1.0), *((q, p) for p, q in reversed(chain))]
    return list(dict.fromkeys(points))


def papers_corners(guarantee: dt.PrivacyGuarantee) -> Points:
    """The corners as the paper prints them: eight, or four if Delta is 0."""
    growth, delta = math.exp(guarantee.epsilon), guarantee.delta
    high, low = (growth + delta) / (growth + 1), (1 - delta) / (growth + 1)
    half = [(0.0, 0.0), (delta, 0.0), (high, low), (1.0, 1 - delta), (1.0, 1.0)]
    return list(dict.fromkeys([*half, *((q, p) for p, q in half)]))


def outline(panel: Any, points: Points, *, label: str, style: int, fill: bool = True) -> None:
    """Draw the polygon of ``points``."""
    across, up = zip(*points, points[0], strict=True)
    colour = STYLES[style]["color"]
    panel.plot(across, up, color=colour, linestyle=STYLES[style]["linestyle"], label=label)
    if fill:
        panel.fill(across, up, color=colour, alpha=0.15)


def problem_setting() -> Result:
    """The paper's first figure, with the regions of one vote, of the label and of all votes beside it."""
    teacher = dt.PrivacyGuarantee(epsilon=EPSILON, delta=DELTA)
    target = dt.PrivacyGuarantee(epsilon=ALLOWANCE * EPSILON, delta=ALLOWANCE * DELTA)
    everything = dt.PrivacyGuarantee(epsilon=TEACHERS * EPSILON, delta=TEACHERS * DELTA)
    regions = {"one teacher's vote": teacher, "the label": target, "the noise-free majority, at most": everything}

    def draw(file: Path) -> None:
        with grid(file, 1, 2, size=(11, 4.4), lines=False, width_ratios=(1.5, 1)) as (figure, ((left, right),)):
            boxes = {
                "dataset D": (0.1, 0.5),
                "teacher 1": (0.38, 0.82),
                "teacher 2": (0.38, 0.58),
                f"teacher {TEACHERS}": (0.38, 0.16),
                "DaRRM": (0.68, 0.5),
                "label": (0.93, 0.5),
            }
            arrow = {"arrowstyle": "->", "color": "black", "shrinkA": 30, "shrinkB": 30}
            for name, place in boxes.items():
                left.annotate(name, place, ha="center", va="center", bbox={"boxstyle": "round,pad=0.5", "fc": "white"})
                if name.startswith("teacher"):
                    left.annotate("", place, boxes["dataset D"], arrowprops=arrow)
                    left.annotate("", boxes["DaRRM"], place, arrowprops=arrow)
            left.annotate("", boxes["label"], boxes["DaRRM"], arrowprops=arrow)
            left.text(0.38, 0.38, "...", ha="center", va="center")
            left.text(0.38, 0.98, f"each vote 0 or 1: ({EPSILON:g}, {DELTA:g})-DP", ha="center", va="center")
            left.text(
                0.68, 0.3, "the majority with\nprobability gamma(votes),\nelse a fair coin", ha="center", va="top"
            )
            left.text(0.93, 0.66, f"({target.epsilon:.1f}, {target.delta:g})-DP", ha="center")
            left.set(xlim=(0, 1.05), ylim=(0, 1.05), title=f"K = {TEACHERS} teachers, m = {ALLOWANCE}")
            left.axis("off")
            for style, (name, guarantee) in enumerate(regions.items()):
                outline(right, corners(guarantee), label=f"{name}: {guarantee.epsilon:.1f}", style=style, fill=False)
            right.set(xlabel="Pr[1] on D", ylabel="Pr[1] on a neighbour D'", title="where the probabilities may lie")
            right.set_aspect("equal")
            legend(figure, right, columns=3)

    return Result(
        name="problem-setting",
        title="The problem: K private teachers, one private label (the paper's first figure)",
        tables=(),
        notes=(
            "Right: the pairs of probabilities of a 1 on two neighbouring datasets that each guarantee allows, by "
            "`darrm_torch.noise.regions`; the numbers are epsilons. The noise takes the majority's region, or what is "
            "left of it, into that of the label.",
        ),
        data={name: corners(guarantee) for name, guarantee in regions.items()},
        draw=draw,
        exhibits=(Exhibit(name="Figure 1", agrees="the same parts; a drawing without numbers"),),
    )


def feasible_regions() -> Result:
    """The paper's two figures of feasible regions, and their corners."""
    rows = []
    for panel, guarantee in SEEN.items():
        ours, printed = corners(guarantee), papers_corners(guarantee)
        for corner in sorted(printed):
            nearest = min(ours, key=lambda one: max(abs(one[0] - corner[0]), abs(one[1] - corner[1])))
            distance = max(abs(nearest[0] - corner[0]), abs(nearest[1] - corner[1]))
            rows.append((panel, *(f"({p:.4f}, {q:.4f})" for p, q in (nearest, corner)), f"{distance:.0e}"))
    counts = {panel: len(corners(guarantee)) for panel, guarantee in SEEN.items()}

    def draw(file: Path) -> None:
        with grid(file, 1, 2, size=(9, 4.6), sharey=True) as (_, (panels,)):
            for panel, (words, guarantee) in zip(panels, SEEN.items(), strict=True):
                points = corners(guarantee)
                outline(panel, points, label="region", style=0)
                for p, q in points:
                    panel.plot(p, q, "o", color=STYLES[5]["color"])
                title = f"epsilon = {guarantee.epsilon:g}, {words}: {len(points)} corners"
                panel.set(xlabel="p: Pr[1] on D", title=title)
                panel.set_aspect("equal")
            panels[0].set_ylabel("p': Pr[1] on a neighbour D'")

    return Result(
        name="feasible-regions",
        title="The regions of a teacher's probabilities (the paper's two figures of feasible regions)",
        tables=(
            Table(
                caption="Corners (p, p') of the region of a guarantee with epsilon = 1.",
                columns=("guarantee", "here", "the paper's formula", "distance"),
                rows=tuple(rows),
            ),
        ),
        notes=(
            "Here: `darrm_torch.noise.regions.Region`, which computes the corners in rational arithmetic from an upper "
            f"bound of e^epsilon. They number {counts['Delta = 0']} without Delta and {counts['Delta = 0.1']} with it, "
            "as the paper says.",
        ),
        data={panel: corners(guarantee) for panel, guarantee in SEEN.items()},
        draw=draw,
        exhibits=(
            Exhibit(name="Figure 4", agrees="four corners, as by the paper's formula"),
            Exhibit(name="Figure 5", agrees="eight corners, as by the paper's formula"),
        ),
    )


def objective(corner: tuple[float, float], target: dt.PrivacyGuarantee) -> float:
    """The paper's h(q, q'): what randomized response has to make up for."""
    growth = math.exp(target.epsilon)
    return corner[0] - growth * corner[1] + (growth - 1) / 2


def best_constant(composed: dt.PrivacyGuarantee, target: dt.PrivacyGuarantee) -> tuple[tuple[float, float], float]:
    """The worst corner of the majority's region, and the largest probability that the program then allows."""
    worst = max(corners(composed), key=lambda corner: objective(corner, target))
    allowed = (math.exp(target.epsilon) - 1) / 2 + target.delta
    return worst, min(1.0, allowed / objective(worst, target))


def randomized_response() -> Result:
    """The figure of the linear program behind gamma_const, and its optimum in the paper's settings."""
    teacher = dt.PrivacyGuarantee(epsilon=EPSILON, delta=DELTA)
    cases: list[tuple[str, int, dt.PrivacyGuarantee, dt.PrivacyGuarantee]] = []
    for m in published.ALLOWANCES:
        target = dt.PrivacyGuarantee(epsilon=m * EPSILON, delta=1 - (1 - DELTA) ** m)
        simple = dt.PrivacyGuarantee(epsilon=TEACHERS * EPSILON, delta=TEACHERS * DELTA)
        cases.append((f"K = {TEACHERS}, m = {m}", TEACHERS, simple, target))
    general = dt.general_composition(teacher, 35, slack=0.1)
    for sample in published.COMPOSITION:
        cases.append((f"K = 35, M = {sample}", 35, general, dt.general_composition(teacher, sample, slack=0.1)))
    rows, differences, elsewhere = [], [], []
    for panel, count, composed, target in cases:
        worst, probability = best_constant(composed, target)
        growth = math.exp(composed.epsilon)
        printed = (growth + composed.delta) / (growth + 1), (1 - composed.delta) / (growth + 1)
        formula = float(dt.constant_noise(teachers=count, teacher=teacher, target=target, composed=composed).gamma[0])
        differences.append(abs(probability - formula))
        if math.dist(worst, printed) > 1e-9:
            elsewhere.append(panel)
        rows.append(
            (
                panel,
                composed.epsilon,
                f"({worst[0]:.4f}, {worst[1]:.4f})",
                f"({printed[0]:.4f}, {printed[1]:.4f})",
                objective(worst, target),
                probability,
                formula,
            )
        )
    _, _, composed, target = cases[1]

    def draw(file: Path) -> None:
        with grid(file, 1, 1, size=(6.4, 5.4)) as (figure, ((panel,),)):
            outline(panel, corners(composed), label="region of the majority", style=0)
            worst, _ = best_constant(composed, target)
            across = [0.0, 1.0]
            for level in (0.0, objective(worst, target) / 2, objective(worst, target)):
                shift = level - (math.exp(target.epsilon) - 1) / 2
                up = [(q - shift) / math.exp(target.epsilon) for q in across]
                name = {"label": "objective h = 0, half of its maximum, its maximum"} if level == 0 else {}
                panel.plot(across, up, color=STYLES[1]["color"], linestyle="--", **name)
            panel.plot(*worst, "o", color=STYLES[5]["color"], markersize=8, label="optimum: the worst case")
            panel.set(xlabel="q: Pr[majority is 1] on D", ylabel="q': the same on a neighbour D'", ylim=(-0.03, 1.03))
            panel.set(
                title=f"K = {TEACHERS}, epsilon = {EPSILON:g}, m = {ALLOWANCE}: tau epsilon = {composed.epsilon:.1f}"
            )
            panel.set_aspect("equal")
            legend(figure, panel, columns=1)

    differs = f"the optimum is another corner in {', '.join(elsewhere)}" if elsewhere else ""
    return Result(
        name="randomized-response",
        title="The linear program of randomized response (the paper's figure), and gamma_const",
        tables=(
            Table(
                caption="The worst corner of the majority's region, and the probability of reporting the majority.",
                columns=("setting", "tau epsilon", "worst corner", "the paper's corner", "h there",
                         "gamma_const by the program", "by the paper's formula"),
                rows=tuple(rows),
            ),
        ),
        notes=(
            "The program: maximise h(q, q') = q - e^(m epsilon) q' + (e^(m epsilon) - 1) / 2 over the region of a "
            "(tau epsilon, lambda)-DP majority, here by trying the corners of `darrm_torch.noise.regions.Region`.",
            "The bound uses only that the majority is (tau epsilon, lambda)-DP. It is safe, not the best: a constant "
            "that is certified for the K votes themselves is larger.",
        ),
        data=[list(row) for row in rows],
        draw=draw,
        exhibits=(
            Exhibit(
                name="Figure 3",
                agrees=f"the optimum is the paper's corner; gamma_const within {max(differences):.0e} of its formula",
                differs=differs,
            ),
        ),
    )  # fmt: skip
