"""Beyond the paper: what each way of releasing labels is worth at the same guarantee, of one label and of all.

The strategies, what is proven of them and how often they tell the majority come from :func:`darrm_torch.plan`; GNMax
with the paper's noise is put beside them.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import darrm_torch as dt
from darrm_torch.privacy.guarantees import format_bound

from . import published
from .drawing import grid
from .losses import RECORDS, teacher_profile
from .result import Result, Table

SIZES = (5, 11, 25, 51, 101)
PRIOR = dt.SharedVotes(low=0.5, high=1.0)
POINT = dt.PrivacyGuarantee(epsilon=published.EPSILON["fashion-mnist"], delta=published.DELTA)
LABELS = 100
# What is equal: how many labels keep what. m = 1: a label costs what a teacher does by itself.
EQUAL = {
    "one label": (1, POINT),
    f"{LABELS} labels together": (LABELS, dt.PrivacyGuarantee(epsilon=3 * POINT.epsilon, delta=3 * POINT.delta)),
}
AGREEMENTS = (0.9, 0.99)  # whose costs are looked for
PAPERS_GNMAX = "GNMax, paper's sigma"
PART = "noise-free, a part"
FREE = "noise-free majority"
# Name in the planner -> name here.
NAMES = {
    PAPERS_GNMAX: PAPERS_GNMAX,
    "GNMax": "GNMax, exact sigma",
    "optimal majority": "optimum without private teachers",
    "subsampling": "gamma_Sub",
    "self-bounding noise": "self-bounding",
    "DaRRM, one point": "gamma_opt, one point",
    "DaRRM, whole profile": "gamma_opt, whole profile",
    PART: PART,
    FREE: FREE,
}


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


def answers(case: Case, equal: str) -> list[dt.Strategy]:
    """Every strategy as strong as the guarantee that is ``equal`` allows, with what is proven of it."""
    return [papers_gnmax(case, equal), *plan(case, equal).rows]


def plan(case: Case, equal: str) -> dt.Plan:
    """The planner's answer."""
    labels, target = EQUAL[equal]
    return dt.plan(
        teachers=case.teachers,
        teacher=profile(),
        overlap=case.overlap,
        labels=labels,
        prior=PRIOR,
        **{"label_target" if labels == 1 else "total_target": target},
    )


def papers_gnmax(case: Case, equal: str) -> dt.Strategy:
    """GNMax with as much noise as its Renyi bound asks for."""
    labels, target = EQUAL[equal]
    mechanism = dt.GNMax.calibrated(target, method="rdp", labels=labels, overlap=case.overlap)
    label, total = (
        dt.total_privacy(
            teachers=[dt.PrivacyProfile.non_private()] * case.teachers,
            overlap=case.overlap,
            mechanism=mechanism,
            labels=count,
            delta=target.delta,
        )
        for count in (1, labels)
    )
    return dt.Strategy(
        kind="gnmax",
        name=PAPERS_GNMAX,
        rests_on="randomness",
        mechanism=mechanism,
        voters=case.teachers,
        label=label,
        total=total,
        accuracy=dt.expected_accuracy(mechanism, teachers=case.teachers, classes=2, prior=PRIOR)[0],
        agreement=agreement(mechanism, case.teachers),
        meets=total.epsilon <= target.epsilon,
        reason="The paper's noise.",
    )


def agreement(mechanism: dt.Mechanism, teachers: int) -> float:
    """Pr[label = majority of the votes] under :data:`PRIOR`, exact (K is odd: there is always a majority)."""
    return dt.expected_agreement(mechanism, teachers=teachers, classes=2, prior=PRIOR)[0]


def record(case: Case, equal: str, row: dt.Strategy) -> dict[str, Any]:
    """One strategy in one case, in numbers."""
    bound = row.label if EQUAL[equal][0] == 1 else row.total
    return {
        "K": case.teachers,
        "r": case.overlap,
        "equal": equal,
        "strategy": PART if row.kind == "jury" else row.name,
        "voters": row.voters,
        "agreement": row.agreement,
        "keeps": row.meets,
        "epsilon": bound and bound.epsilon,
        "route": bound and bound.route.name,
    }


def strategies() -> Result:
    """All strategies, at equal guarantee of one label and of all of them."""
    records = [record(case, equal, row) for case in cases() for equal in EQUAL for row in answers(case, equal)]
    return Result(
        name="strategies",
        title="Beyond the paper: every strategy at the same guarantee, K = 5 to 101, r = 1, 2, K",
        tables=tuple(_table(records, equal) for equal in EQUAL),
        notes=(
            "A record is in the training data of r of the K teachers. Agreement: how often a label is the majority of "
            "the K votes, exact, when all teachers have the same chance of the right answer, uniform on [1/2, 1]; the "
            "same for teachers with and without privacy, though those without are better in practice.",
            "Teachers, for every K: those of the paper on Fashion-MNIST (sigma = 12, sample rate 1/35, 175 steps), "
            f"{POINT} each by Opacus' accountant, "
            f"({format_bound(profile().epsilon(POINT.delta))}, {POINT.delta:g})-DP by a tighter one. "
            "'One point' uses the point of their profile that suits the target, 'whole profile' as many points as "
            "the search can use. The first three strategies need no private training.",
            "In brackets: does not keep the guarantee, shown for comparison. 'None': no strategy of the kind keeps it. "
            f"'{PART}': the majority of only as many teachers as could be published within the guarantee; none where "
            "all could.",
            "Everything comes from `dt.plan`: the noise is the least that keeps the guarantee, epsilon is proven by "
            "`dt.total_privacy`, and the JSON names the route of each.",
            f"{LABELS} labels come from the same trained teachers. The prices of labels with gamma_opt do not add up: "
            "they keep the total only where publishing the r teachers does. Those with gamma_Sub and self-bounding "
            f"noise add up: where publishing costs too much, each label costs a {LABELS}th of the total.",
        ),
        data=records,
        draw=lambda file: _draw(file, records),
    )


def _found(records: list[dict[str, Any]], case: Case, equal: str) -> dict[str, dict[str, Any]]:
    return {
        one["strategy"]: one
        for one in records
        if (one["K"], one["r"], one["equal"]) == (case.teachers, case.overlap, equal)
    }


def _table(records: list[dict[str, Any]], equal: str) -> Table:
    _, target = EQUAL[equal]
    return Table(
        caption=f"{equal[0].upper() + equal[1:]} at ({format_bound(target.epsilon)}, {target.delta:g})-DP: expected "
        "agreement with the majority.",
        columns=("K", "r", *NAMES.values()),
        rows=tuple(
            (case.teachers, case.shown, *(_cell(_found(records, case, equal).get(name)) for name in NAMES))
            for case in cases()
        ),
    )


def _cell(found: dict[str, Any] | None) -> str:
    if found is None or found["agreement"] is None:
        return "none"
    value = f"{found['agreement']:.3f}"
    return value if found["keeps"] else f"[{value}]"


def _draw(file: Path, records: list[dict[str, Any]]) -> None:
    """A panel for each r and guarantee: strategies down, K across; the agreement as colour and as number."""
    with grid(file, 2, 3, size=(13, 7.6), sharex=True, sharey=True, lines=False) as (figure, axes):
        for across, equal in zip(axes, EQUAL, strict=True):
            for panel, r in zip(across, ("1", "2", "K"), strict=True):
                here = [case for case in cases() if case.shown == r]
                found = [[_found(records, case, equal).get(name) for case in here] for name in NAMES]
                values = np.array(
                    [
                        [one["agreement"] if one and one["keeps"] and one["agreement"] else np.nan for one in row]
                        for row in found
                    ]
                )
                image = panel.imshow(values, cmap="cividis", vmin=0.5, vmax=1.0, aspect="auto")
                for (down, right), value in np.ndenumerate(values):
                    dark = np.isfinite(value) and value < 0.75
                    words = _cell(found[down][right])
                    panel.text(right, down, words, ha="center", va="center", fontsize=8, color="w" if dark else "k")
                panel.set_title(f"{equal}, r = {r}")
                panel.set_xticks(range(len(SIZES)), map(str, SIZES))
                panel.set_yticks(range(len(NAMES)), NAMES.values())
        for panel in axes[-1]:
            panel.set_xlabel("teachers K")
        figure.colorbar(
            image, ax=axes, label="agreement with the majority; white: the guarantee is not kept", shrink=0.6
        )


def frontier() -> Result:
    """What a budget buys, and what an agreement costs, for the paper's 11 teachers with every record in all of them."""
    plans = {equal: plan(Case(teachers=11, overlap=11), equal) for equal in EQUAL}
    costs = {
        equal: {
            # Without noise by as many of the teachers as it takes, of whom the name says how many.
            share: {FREE if name.startswith("noise-free") else name: epsilon for name, epsilon in one.costs(share)}
            for share in AGREEMENTS
        }
        for equal, one in plans.items()
    }

    def draw(file: Path) -> None:
        with grid(file, 1, 2, size=(15, 5)) as (_, (panels,)):
            for panel, (equal, one) in zip(panels, plans.items(), strict=True):
                dt.plot_frontier(one, axes=panel)
                panel.set_title(f"{equal}, K = r = 11")

    return Result(
        name="frontier",
        title="Beyond the paper: agreement against epsilon, and what an agreement costs, K = r = 11",
        tables=tuple(
            Table(
                caption=f"Least epsilon of {equal}, at delta {EQUAL[equal][1].delta:g}, for an agreement of so much.",
                columns=("strategy", *(f"{share:g}" for share in AGREEMENTS)),
                rows=tuple(
                    (
                        "noise-free, fewer teachers if enough" if name == FREE else NAMES.get(name, name),
                        *(format_bound(found[name], 3) if name in found else "none" for found in by_share.values()),
                    )
                    for name in dict.fromkeys(name for found in by_share.values() for name in found)
                ),
            )
            for equal, by_share in costs.items()
        ),
        notes=(
            "Teachers, prior and agreement as in the strategies above; every epsilon is proven by `dt.total_privacy`. "
            "'None': no epsilon up to 1,024 times the guarantee is enough. In the figure an asterisk marks what rests "
            "on the mechanism's own randomness alone, and the dotted line the guarantee of the strategies above.",
        ),
        data=costs,
        draw=draw,
    )
