"""The shapes and errors of noise functions: the paper's simulations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import darrm_torch as dt

from . import published
from .drawing import STYLES, grid, legend
from .result import Exhibit, Result, Table

EPSILON, DELTA = 0.1, 1e-5  # of one teacher, in all simulations
UNIFORM = dt.IndependentVotes(mean=0.5)  # the paper's "Uniform([0, 1])"
NAMES = {"opt": "gamma_opt", "Sub": "gamma_Sub", "DSub": "gamma_DSub", "const": "gamma_const"}
SAMPLES = 20_000  # of Uniform([0, 1]), where the error has no closed form


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One panel: the same target for all noise functions.

    Attributes:
        panel: its heading.
        sample: how many teachers gamma_Sub samples.
        composed: the guarantee of all K votes together, for gamma_const; None: K times one vote.
    """

    panel: str
    teachers: int
    teacher: dt.PrivacyGuarantee
    target: dt.PrivacyGuarantee
    sample: int
    composed: dt.PrivacyGuarantee | None = None

    def best(self, *, shape: str) -> dt.NoiseFunction:
        """The optimum for the paper's objective."""
        return dt.optimize_noise(teachers=self.teachers, teacher=self.teacher, target=self.target, shape=shape)

    def functions(self) -> dict[str, dt.NoiseFunction]:
        """gamma_opt as the paper computes it (any shape) and its baselines; gamma_DSub only if Delta is 0."""
        every = {
            "opt": self.best(shape="free"),
            "Sub": dt.subsampling_noise(teachers=self.teachers, allowance=self.sample),
            "const": dt.constant_noise(
                teachers=self.teachers, teacher=self.teacher, target=self.target, composed=self.composed
            ),
        }
        if self.teacher.delta == 0:
            every["DSub"] = dt.double_subsampling_noise(teachers=self.teachers, allowance=self.sample)
        return every


def times(teacher: dt.PrivacyGuarantee, allowance: int) -> dt.PrivacyGuarantee:
    """(m epsilon, 1 - (1 - Delta)^m), as the paper composes it."""
    return dt.PrivacyGuarantee(epsilon=allowance * teacher.epsilon, delta=1 - (1 - teacher.delta) ** allowance)


def m_settings(teachers: int, allowances: tuple[int, ...], *, delta: float) -> list[Setting]:
    """One setting for each m."""
    teacher = dt.PrivacyGuarantee(epsilon=EPSILON, delta=delta)
    return [
        Setting(panel=f"m = {m}", teachers=teachers, teacher=teacher, target=times(teacher, m), sample=m)
        for m in allowances
    ]


def shapes(
    name: str,
    title: str,
    settings: list[Setting],
    *,
    figure: str,
    tables: tuple[Table, ...] = (),
    exhibits: tuple[Exhibit, ...] = (),
) -> Result:
    """Shapes and errors of all noise functions in all settings, and which of the paper's remarks hold."""
    functions = {setting.panel: setting.functions() for setting in settings}
    teachers = settings[0].teachers
    chances = np.linspace(0.5, 1.0, 51)
    curves = {
        panel: {
            which: {
                "gamma": noise.gamma.tolist(),
                "error_at_shared_chance": noise.error(np.repeat(chances[:, None], teachers, axis=1)).tolist(),
                "error_uniform": noise.expected_error(UNIFORM, samples=SAMPLES),
                "error_surrogate": noise.expected_error(dt.IndependentVotes(mean=0.75))[0],
            }
            for which, noise in every.items()
        }
        for panel, every in functions.items()
    }
    error_rows = tuple(
        (
            panel,
            str(setting.target),
            NAMES[which],
            *(f"{value:.2e}" if value else "0" for value in (curve["error_surrogate"], *curve["error_uniform"])),
        )
        for setting, (panel, every) in zip(settings, curves.items(), strict=True)
        for which, curve in every.items()
    )
    remarked = remarks(functions, curves)
    return Result(
        name=name,
        title=title,
        tables=(
            *tables,
            Table(
                caption="Expected error (total variation from the noise-free majority), teachers' chances independent.",
                columns=("setting", "one label", "noise function", "p uniform on [1/2, 1]: exact",
                         "p uniform on [0, 1]", "its standard error"),
                rows=error_rows,
            ),
            remarked,
        ),
        notes=(
            "Every gamma_opt here is certified. The paper prints remarks on these curves but no numbers.",
            *oddities(settings, functions),
        ),
        data={"chances": chances.tolist(), "curves": curves},
        draw=lambda file: draw_shapes(file, curves, chances),
        exhibits=(exhibit(figure, remarked), *exhibits),
    )  # fmt: skip


def remarks(functions: Mapping[str, Mapping[str, dt.NoiseFunction]], curves: Mapping[str, Any]) -> Table:
    """The paper's remarks on the curves, and whether they hold."""
    rows = []
    for panel, every in functions.items():
        half = {which: noise.gamma[noise.teachers // 2 + 1 :] for which, noise in every.items()}
        rivals = [which for which in half if which != "opt"]
        best = min(curve["error_surrogate"] for which, curve in curves[panel].items() if which != "opt")
        rows.append(
            (
                panel,
                bool(np.allclose(half["opt"], half["Sub"], atol=1e-4)),
                ", ".join(NAMES[which] for which in rivals if np.any(half["opt"] < half[which] - 1e-6)) or "none",
                bool(curves[panel]["opt"]["error_surrogate"] <= best + 1e-9),
                bool(np.all(half["opt"] == 1)),
            )
        )
    return Table(
        caption=(
            "The paper's remarks: at m = 1 gamma_opt is gamma_Sub; for m > 1 it is the highest everywhere; so it has "
            "the lowest error."
        ),
        columns=(
            "setting",
            "opt is Sub",
            "higher than opt somewhere",
            "opt's error is the lowest",
            "opt needs no noise",
        ),
        rows=tuple(rows),
    )


def exhibit(name: str, remarked: Table) -> Exhibit:
    """Which of the paper's remarks on a figure hold; it prints no numbers."""
    best = [row[0] for row in remarked.rows if row[3]]
    beaten = [f"{row[2]} at {row[0]}" for row in remarked.rows if row[2] != "none"]
    differs = ""
    if beaten:
        differs = (
            f"gamma_opt is not the highest everywhere ({'; '.join(beaten)}): the optimum trades one margin for others"
        )
    agrees = f"gamma_opt has the lowest error in {len(best)} of {len(remarked.rows)} panels"
    if any(row[0] == "m = 1" for row in remarked.rows):
        agrees += "; it is gamma_Sub at m = 1" * any(row[0] == "m = 1" and row[1] for row in remarked.rows)
    return Exhibit(name=name, agrees=agrees, differs=differs)


def oddities(settings: Sequence[Setting], functions: Mapping[str, Mapping[str, dt.NoiseFunction]]) -> list[str]:
    """Where gamma_opt adds more noise to a larger margin, and the cost of forbidding that."""
    prior = dt.IndependentVotes(mean=0.75)
    losses = {}
    for setting in settings:
        free = functions[setting.panel]["opt"]
        half = free.gamma[setting.teachers // 2 + 1 :]
        if np.any(np.diff(half) < -1e-6):
            objective = float(prior.lead_weights(setting.teachers) @ half) / 2
            lost = setting.best(shape="monotone").expected_error(prior)[0] - free.expected_error(prior)[0]
            losses[setting.panel] = f"{100 * lost / objective:.1g}%"
    if not losses:
        return []
    return [
        "gamma_opt is not monotone: a larger margin can get more noise. The library's default shape forbids that, "
        "which lowers the objective by " + ", ".join(f"{lost} ({panel})" for panel, lost in losses.items()) + ".",
    ]


def draw_shapes(file: Path, curves: Mapping[str, Mapping[str, Any]], chances: np.ndarray) -> None:
    """The shape of each setting above its error, at most four settings side by side."""
    wide = len(curves) if len(curves) <= 4 else 3
    bands = -(-len(curves) // wide)
    with grid(file, 2 * bands, wide, size=(3.1 * wide, 5.2 * bands), sharey="row") as (figure, axes):
        for number, (panel, every) in enumerate(curves.items()):
            upper, lower = axes[2 * (number // wide), number % wide], axes[2 * (number // wide) + 1, number % wide]
            for style, (which, curve) in zip(STYLES, every.items(), strict=False):
                look = style | {"markevery": max(1, len(curve["gamma"]) // 12), "markersize": 4, "label": NAMES[which]}
                upper.plot(curve["gamma"], **look)
                lower.plot(chances, curve["error_at_shared_chance"], **look | {"markevery": 10})
            upper.set(title=panel, xlabel="votes for 1", ylim=(-0.04, 1.06))
            upper.xaxis.get_major_locator().set_params(integer=True)
            lower.set(xlabel="probability that a teacher votes 1")
            if number % wide == 0:
                upper.set_ylabel("gamma: Pr[label is the majority]")
                lower.set_ylabel("error (total variation)")
        legend(figure, axes[0, 0], columns=4)


def simulation() -> Result:
    """The paper's figure for K = 11."""
    return shapes(
        "simulation",
        "Noise functions, K = 11, epsilon = 0.1, Delta = 1e-5, m = 1, 3, 5, 7 (the paper's first figure of results)",
        m_settings(11, published.ALLOWANCES, delta=DELTA),
        figure="Figure 2",
    )


def pure_11() -> Result:
    """The paper's figure for pure guarantees, K = 11."""
    return shapes(
        "pure-11",
        "Noise functions under pure privacy, K = 11, epsilon = 0.1, with double subsampling",
        m_settings(11, (1, 3, 5, 7, 9, 11), delta=0.0),
        figure="Figure 7",
    )


def pure_101() -> Result:
    """The paper's figure for pure guarantees, K = 101."""
    return shapes(
        "pure-101",
        "Noise functions under pure privacy, K = 101, epsilon = 0.1, with double subsampling",
        m_settings(101, (10, 20, 30, 40, 60, 80), delta=0.0),
        figure="Figure 8",
    )


def composition() -> Result:
    """The paper's comparison under general composition, and its table of parameters."""
    teachers, teacher = 35, dt.PrivacyGuarantee(epsilon=EPSILON, delta=DELTA)
    all_votes = dt.general_composition(teacher, teachers, slack=0.1)
    settings, rows = [], []
    for sample, printed in published.COMPOSITION.items():
        target = dt.general_composition(teacher, sample, slack=0.1)
        settings.append(
            Setting(
                panel=f"M = {sample}",
                teachers=teachers,
                teacher=teacher,
                target=target,
                sample=sample,
                composed=all_votes,
            )
        )
        found = (
            target.epsilon / EPSILON, all_votes.epsilon / EPSILON, all_votes.delta, target.epsilon, target.delta
        )  # fmt: skip
        words = ("m", "tau", "lambda", "m epsilon", "delta")
        rows += [(sample, *row, row[1] - row[2]) for row in zip(words, found, printed, strict=True)]
    return shapes(
        "composition",
        "Noise functions at the guarantee of general composition, K = 35, epsilon = 0.1, Delta = 1e-5, delta' = 0.1",
        settings,
        tables=(
            Table(
                caption="Parameters (the paper's table of all parameter values).",
                columns=("M", "parameter", "here", "paper", "difference"),
                rows=tuple(rows),
                digits=5,
            ),
        ),
        figure="Figure 6",
        exhibits=(
            Exhibit(name="Table 3", agrees=f"all {len(rows)} entries within {max(abs(row[-1]) for row in rows):.0e}"),
        ),
    )


def priors() -> Result:
    """The paper's comparison of two priors under three actual distributions."""
    teachers, teacher = 11, dt.PrivacyGuarantee(epsilon=EPSILON)
    actual: dict[str, Callable[[dt.NoiseFunction], tuple[float, float]]] = {
        "p uniform on [0, 1]": lambda noise: noise.expected_error(UNIFORM, samples=SAMPLES),
        "p = 1/2": lambda noise: (float(noise.error(np.full(teachers, 0.5))), 0.0),
        "p uniform on [0, 0.1]": lambda noise: noise.expected_error(dt.IndependentVotes(mean=0.05)),
    }
    curves: dict[str, dict[str, Any]] = {}
    for m in (3, 5):
        target = times(teacher, m)

        def best(target: dt.PrivacyGuarantee = target, **how: Any) -> dt.NoiseFunction:
            return dt.optimize_noise(teachers=teachers, teacher=teacher, target=target, shape="free", **how)

        functions = {
            "gamma_opt-U": best(prior=dt.IndependentVotes(mean=0.75)),
            "gamma_opt-P": best(prior=dt.IndependentVotes(mean=0.85)),
            "gamma_Sub": dt.subsampling_noise(teachers=teachers, allowance=m),
            "gamma_const": dt.constant_noise(teachers=teachers, teacher=teacher, target=target),
            "gamma for the error itself": best(prior=UNIFORM, objective="expected_error"),
        }
        curves[f"m = {m}"] = {
            which: {"gamma": noise.gamma.tolist(), "errors": {name: law(noise) for name, law in actual.items()}}
            for which, noise in functions.items()
        }
    rows = tuple(
        (panel, which, *(f"{error:.2e} ({spread:.0e})" if spread else f"{error:.2e}"
                         for error, spread in curve["errors"].values()))
        for panel, every in curves.items()
        for which, curve in every.items()
    )  # fmt: skip
    return Result(
        name="priors",
        title="Two priors under three actual distributions, K = 11, epsilon = 0.1, pure (the paper's figure on priors)",
        tables=(
            Table(
                caption="Error (standard error, where it is sampled).",
                columns=("setting", "noise function", *actual),
                rows=rows,
            ),
        ),
        notes=prior_notes(curves),
        data=curves,
        draw=lambda file: draw_priors(file, curves),
        exhibits=(
            Exhibit(
                name="Figure 9",
                agrees="gamma_opt-P has the lower error when p is uniform on [0, 0.1]",
                differs="at p = 1/2 every error is exactly 0, so none is higher; see the notes",
            ),
        ),
    )


def prior_notes(curves: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    """The paper's three expectations, compared with the computed errors."""
    notes = []
    for panel, every in curves.items():
        for name in every["gamma_opt-U"]["errors"]:
            uniform, peaked = (every[which]["errors"][name] for which in ("gamma_opt-U", "gamma_opt-P"))
            noise = 2 * (uniform[1] ** 2 + peaked[1] ** 2) ** 0.5
            if abs(uniform[0] - peaked[0]) <= max(noise, 1e-12):
                verdict = "cannot be distinguished from"
            else:
                verdict = "is lower than" if peaked[0] < uniform[0] else "is higher than"
            notes.append(f"{panel}, {name}: the error of gamma_opt-P {verdict} that of gamma_opt-U.")
    return (
        *notes,
        "At p = 1/2 both outcomes are equally likely with any symmetric gamma. Every error as the paper defines it is "
        "then exactly 0, so none can be higher than another, as the paper expects. (The authors' published code draws "
        "K + 1 probabilities for K teachers, which is not symmetric.)",
        "For p uniform on [0, 1] the paper's linear objective is exactly 0 for every gamma; its surrogate on [1/2, 1] "
        "drops the absolute value of the error. 'gamma for the error itself' is the optimum with the absolute value.",
    )


def draw_priors(file: Path, curves: Mapping[str, Mapping[str, Any]]) -> None:
    """Shapes on the left, errors on the right."""
    with grid(file, len(curves), 2, size=(11, 3.9 * len(curves)), width_ratios=(1, 1.3)) as (figure, axes):
        for (left, right), (panel, every) in zip(axes, curves.items(), strict=True):
            names = list(next(iter(every.values()))["errors"])
            width = 0.8 / len(every)
            for number, (style, (which, curve)) in enumerate(zip(STYLES, every.items(), strict=False)):
                left.plot(curve["gamma"], **style, markersize=4, label=which)
                places = [group + (number - (len(every) - 1) / 2) * width for group in range(len(names))]
                values = [error for error, _ in curve["errors"].values()]
                right.bar(places, values, width=width, color=style["color"], edgecolor="black", linewidth=0.4)
            left.set(title=f"{panel}: shapes", xlabel="votes for 1", ylabel="gamma: Pr[label is the majority]")
            right.set(
                title=f"{panel}: error under three actual distributions",
                ylabel="error (total variation)",
                yscale="symlog",
            )
            right.set_yscale("symlog", linthresh=1e-4)
            right.set_ylim(0, 1)
            right.set_xticks(range(len(names)), names)
            right.text(1, 2e-5, "0 for every gamma", ha="center", fontsize=8)
        legend(figure, axes[0, 0], columns=5)
