"""Beyond the paper: what each way of releasing labels is worth at the same guarantee, of one label and of all.

Everything is exact: votes follow a stated prior, and agreement is the chance that a label is their majority.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import darrm_torch as dt
from darrm_torch.guarantees import shown
from darrm_torch.regions import Region

from . import published
from .drawing import STYLES, grid, legend
from .gaussian import paper_sigma
from .losses import RECORDS, teacher_profile
from .result import Result, Table

SIZES = (5, 11, 25, 51, 101)
PRIOR = dt.SharedVotes(low=0.5, high=1.0)
LABELS = 100
POINT = dt.PrivacyGuarantee(epsilon=published.EPSILON["fashion-mnist"], delta=published.DELTA)
ONE_LABEL = POINT  # m = 1: a label costs what a teacher does by itself
ALL_LABELS = dt.PrivacyGuarantee(epsilon=3 * POINT.epsilon, delta=3 * POINT.delta)
NAMES = (
    "GNMax, paper's sigma",
    "GNMax, exact sigma",
    "optimum without private teachers",
    "gamma_Sub",
    "self-bounding",
    "gamma_opt, one point",
    "gamma_opt, whole profile",
    "noise-free majority",
)
_SEARCHED = 40_000  # compositions up to which the whole profile is searched; beyond it, with fewer of its points


@dataclass(frozen=True, kw_only=True)
class Case:
    """K teachers, of which a record touches r."""

    teachers: int
    overlap: int

    @property
    def shown(self) -> str:
        """r in words."""
        return "K" if self.overlap == self.teachers else str(self.overlap)


def cases() -> list[Case]:
    """Every K with r in {1, 2, K}."""
    return [
        Case(teachers=teachers, overlap=r) for r_of in (1, 2, None) for teachers in SIZES for r in [r_of or teachers]
    ]


@functools.cache
def profile() -> dt.PrivacyProfile:
    """A teacher as the paper trains it."""
    return teacher_profile(RECORDS["fashion-mnist"])


def profile_points(case: Case) -> tuple[dt.PrivacyGuarantee, ...]:
    """As many points of the teachers' profile as can be searched with: any subset is sound."""
    points = profile().guarantees()
    while True:
        corners = len(Region(guarantees=points).chain)
        if math.comb(case.overlap + corners - 1, corners - 1) * (case.teachers - case.overlap + 1) <= _SEARCHED:
            return points
        points = (points[0], *points[2:])


def largest(fits: Callable[[float], bool], high: float) -> float:
    """The largest number in (0, high] that fits, by bisection."""
    low = 0.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def for_one_label(case: Case) -> dict[str, dt.Mechanism | None]:
    """Every strategy with the least noise that keeps :data:`ONE_LABEL` for one label; None: there is none."""
    K, r = case.teachers, case.overlap
    subsampled = dt.subsampling_noise(teachers=K, allowance=1)
    proven = dt.certify(subsampled.gamma, teachers=K, teacher=POINT, target=ONE_LABEL, overlap=r)
    solve = functools.partial(dt.optimize_noise, teachers=K, target=ONE_LABEL, overlap=r, prior=PRIOR)
    without = dt.PrivacyGuarantee(epsilon=math.inf, delta=0.0)
    return {
        "GNMax, paper's sigma": dt.GNMax(sigma=r * paper_sigma(ONE_LABEL)[1], overlap=r),
        "GNMax, exact sigma": dt.GNMax.calibrated(ONE_LABEL, overlap=r),
        "optimum without private teachers": dt.DaRRM(solve(teacher=without)),
        "gamma_Sub": dt.DaRRM(dt.NoiseFunction(gamma=subsampled.gamma, certificate=proven)),
        "self-bounding": dt.DaRRM(dt.self_bounding_noise(teachers=K, allowance=1, overlap=r)),
        "gamma_opt, one point": dt.DaRRM(solve(teacher=POINT)),
        "gamma_opt, whole profile": dt.DaRRM(solve(teacher=profile_points(case))),
        "noise-free majority": dt.NoiseFreeMajority(classes=2),
    }


@functools.cache
def coins_epsilon() -> float:
    """The epsilon of one label whose own coins compose to :data:`ALL_LABELS` over all labels."""
    total = ALL_LABELS

    def fits(epsilon: float) -> bool:
        one = dt.PrivacyGuarantee(epsilon=epsilon)
        return dt.optimal_composition(one, LABELS, delta=total.delta).epsilon <= total.epsilon

    return largest(fits, total.epsilon)


@functools.cache
def allowance_for_all() -> float:
    """The m with which self-bounding noise keeps :data:`ALL_LABELS` for all labels together."""

    def fits(m: float) -> bool:
        times = LABELS * m
        return times * profile().epsilon(min(1.0, ALL_LABELS.delta / times)) <= ALL_LABELS.epsilon * (1 - 1e-9)

    return largest(fits, 1.0)


def for_all_labels(case: Case, outright: bool) -> dict[str, dt.Mechanism | None]:
    """Every strategy with the least noise that keeps :data:`ALL_LABELS` for :data:`LABELS` labels; None: there is none.

    ``outright``: the r teachers released outright keep it; then no noise is needed on private teachers' votes.
    """
    K, r = case.teachers, case.overlap
    without = dt.PrivacyGuarantee(epsilon=math.inf, delta=0.0)
    one = dt.PrivacyGuarantee(epsilon=coins_epsilon())
    free: dt.Mechanism | None = dt.NoiseFreeMajority(classes=2) if outright else None
    bounded = dt.DaRRM(dt.self_bounding_noise(teachers=K, allowance=allowance_for_all(), overlap=r))
    return {
        "GNMax, paper's sigma": dt.GNMax.calibrated(ALL_LABELS, method="rdp", labels=LABELS, overlap=r),
        "GNMax, exact sigma": dt.GNMax.calibrated(ALL_LABELS, labels=LABELS, overlap=r),
        "optimum without private teachers": dt.DaRRM(
            dt.optimize_noise(teachers=K, teacher=without, target=one, overlap=r, prior=PRIOR)
        ),
        "gamma_Sub": free,
        "self-bounding": free or bounded,
        "gamma_opt, one point": free,
        "gamma_opt, whole profile": free,
        "noise-free majority": free,
    }


def agreement(mechanism: dt.Mechanism, teachers: int) -> float:
    """Pr[label = majority of the votes] under :data:`PRIOR`, exact (K is odd: there is always a majority)."""
    ones = np.arange(teachers + 1)
    law = np.asarray(mechanism.label_probabilities(np.stack([teachers - ones, ones], axis=1)))
    told = np.where(2 * ones > teachers, law[:, 1], law[:, 0])
    return float(PRIOR.law(teachers) @ told)


def proven(case: Case, name: str, mechanism: dt.Mechanism, labels: int, delta: float) -> dt.TotalPrivacy:
    """What is proven of ``labels`` labels; teachers of GNMax and of the optimum without them promise nothing."""
    bare = name.startswith("GNMax") or "without" in name
    one = dt.PrivacyProfile.non_private() if bare else profile()
    return dt.total_privacy(
        teachers=[one] * case.teachers, overlap=case.overlap, mechanism=mechanism, labels=labels, delta=delta
    )


def strategies() -> Result:
    """All strategies, at equal guarantee of one label and of all of them."""
    records = []
    for case in cases():
        free = dt.NoiseFreeMajority(classes=2)
        outright = proven(case, "noise-free majority", free, LABELS, ALL_LABELS.delta).epsilon <= ALL_LABELS.epsilon
        for equal, target, labels, every in (
            ("one label", ONE_LABEL, 1, for_one_label(case)),
            ("all labels", ALL_LABELS, LABELS, for_all_labels(case, outright)),
        ):
            for name, mechanism in every.items():
                record: dict[str, Any] = {"K": case.teachers, "r": case.overlap, "equal": equal, "strategy": name}
                if mechanism is not None:
                    bound = proven(case, name, mechanism, labels, target.delta)
                    record |= {
                        "agreement": agreement(mechanism, case.teachers),
                        "epsilon": bound.epsilon,
                        "route": bound.route.name,
                        "keeps": bool(bound.epsilon <= target.epsilon * (1 + 1e-9)),
                    }
                records.append(record)
    return Result(
        name="strategies",
        title="Beyond the paper: every strategy at the same guarantee, K = 5 to 101, r = 1, 2, K",
        tables=tuple(_table(records, equal) for equal in ("one label", "all labels")),
        notes=(
            f"Teachers: those of the paper on Fashion-MNIST, ({POINT.epsilon:g}, {POINT.delta:g})-DP each by Opacus' "
            "accountant (sigma = 12, sample rate 1/35, 175 steps), whatever K. The optima are told this point, or "
            f"up to four points of the whole profile (fewer where there are more than {_SEARCHED:,} combinations).",
            "Prior: all teachers have the same chance of the right answer, uniform on [1/2, 1]; the same for teachers "
            "with and without privacy, though those without are better in practice.",
            "A value in brackets does not keep the guarantee: the noise-free majority costs what its r teachers cost, "
            "outright. It is shown for comparison and is 1 by definition.",
            "gamma_Sub asks one teacher: with m = 1 that is the paper's baseline, whatever r.",
            f"All labels: {LABELS} labels of the same trained teachers. Those of gamma_opt do not add up, and each of "
            "gamma_Sub costs a whole teacher: no noise of theirs keeps the total unless the r teachers do so outright, "
            "and then none is needed. Every total is proven by total_privacy; the JSON names the route.",
        ),
        data=records,
        draw=lambda file: _draw(file, records),
    )


def _table(records: list[dict[str, Any]], equal: str) -> Table:
    target = ONE_LABEL if equal == "one label" else ALL_LABELS
    rows = []
    for case in cases():
        here = {
            record["strategy"]: record
            for record in records
            if (record["K"], record["r"], record["equal"]) == (case.teachers, case.overlap, equal)
        }
        rows.append((case.teachers, case.shown, *(_cell(here[name]) for name in NAMES)))
    count = "One label" if equal == "one label" else f"{LABELS} labels together"
    return Table(
        caption=f"{count} at ({shown(target.epsilon)}, {target.delta:g})-DP: expected agreement with the majority.",
        columns=("K", "r", *NAMES),
        rows=tuple(rows),
    )


def _cell(record: dict[str, Any]) -> str:
    if "agreement" not in record:
        return "none"
    return f"{record['agreement']:.3f}" if record["keeps"] else f"[{record['agreement']:.3f}]"


def _draw(file: Path, records: list[dict[str, Any]]) -> None:
    """Agreement against K, a panel for each r, one label above and all labels below; only what keeps the guarantee."""
    # Curves that are equal stay visible: hollow markers, the later the smaller.
    styles = (*STYLES, {"color": "#999999", "marker": "*"})
    looks = {
        name: style | {"label": name, "markersize": 13 - number, "markerfacecolor": "none", "linewidth": 1.2}
        for number, (name, style) in enumerate(zip(NAMES, styles, strict=True))
    }
    with grid(file, 2, 3, size=(12, 8.2), sharey=True) as (figure, axes):
        for row, (equal, words) in enumerate((("one label", "one label"), ("all labels", f"{LABELS} labels together"))):
            for panel, r in zip(axes[row], ("1", "2", "K"), strict=True):
                for name, look in looks.items():
                    kept = [
                        record
                        for record in records
                        if record["equal"] == equal
                        and record["strategy"] == name
                        and record.get("keeps")
                        and r == ("K" if record["r"] == record["K"] else str(record["r"]))
                    ]
                    panel.plot(
                        [record["K"] for record in kept],
                        [record["agreement"] for record in kept],
                        **look,
                    )
                panel.set(xscale="log", xlabel="teachers K", title=f"{words}, r = {r}", ylim=(0.48, 1.02))
                panel.set_xticks(SIZES, map(str, SIZES))
                panel.minorticks_off()
            axes[row, 0].set_ylabel("agreement with the majority")
        legend(figure, axes[0, 0], columns=4)
