"""README's table: every method at the same guarantee of one label, and at the same total, on two tasks.

Teachers have the paper's sample rate, steps and noise, but are softmax regressions on fixed features, so that five
seeds take a minute (see :mod:`recipes.reproduce.linear`). `make demo DATA=fashion-mnist` trains networks by Opacus.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

import darrm_torch as dt
from darrm_torch.errors import InvalidArgument
from darrm_torch.privacy.guarantees import format_bound

from ..data import load_task
from . import linear, published
from .drawing import STYLES, grid, legend
from .gaussian import label_target
from .labels import mechanisms
from .losses import NOISE, RECORDS, TEACHERS, teacher_profile
from .result import Result, Table
from .study import (
    LEARNING_RATES,
    QUERIES,
    SAMPLE_RATE,
    STEPS,
    Design,
    Features,
    fashion,
    featured,
    label_accuracy,
    mean_probabilities,
    student_accuracy,
    trained,
)

TASKS = ("5v8", "2v4")
SEEDS = (21, 22, 23, 24, 25)
CHOOSING = 10  # the seed on which learning rates are chosen
DRAWS = 5  # students for each seed
DELTA = 3 * published.DELTA  # of all labels together
PRIVATE = Design(priced="today", teachers=TEACHERS)
PLAIN = Design(priced="plain", teachers=TEACHERS)
SECRET = Design(priced="allocation", teachers=TEACHERS)
ONE = Design(priced="one", teachers=1)
ALLOWANCES = (1, 3)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One method.

    Attributes:
        block: what is equal: the allowance m of one label, or "total".
        name: of the method.
        voters: whose votes it reads.
        mechanism: turns them into labels; None: the mean of the class probabilities.
        label, total: epsilon of one label and of all, at most; None: no finite one.
    """

    block: str
    name: str
    voters: Design
    mechanism: dt.Mechanism | None
    label: float
    total: float


def everything() -> dt.PrivacyGuarantee:
    """The total: what publishing all teachers costs, if a record is in the training data of each."""
    return dt.PrivacyGuarantee(
        epsilon=teacher_profile(RECORDS["fashion-mnist"]).compose(TEACHERS).epsilon(DELTA), delta=DELTA
    )


def noises() -> dict[Design, float]:
    """The noise multiplier of each design's models."""
    total = everything()
    secret = dt.RandomAllocation(teachers=TEACHERS)
    return {
        PRIVATE: NOISE,
        PLAIN: 0.0,
        SECRET: dt.calibrate_noise(total, sample_rate=SAMPLE_RATE, steps=STEPS, allocation=secret),
        ONE: dt.calibrate_noise(total, sample_rate=SAMPLE_RATE, steps=STEPS),
    }


def rows() -> list[Row]:
    """All methods, with the proven price of one label and of ``QUERIES`` labels together."""
    profile, bare = teacher_profile(RECORDS["fashion-mnist"]), dt.PrivacyProfile.non_private()
    total = everything()

    def priced(block: str, name: str, mechanism: dt.Mechanism, delta: float, *, plain: bool = False) -> Row:
        label, together = (
            dt.total_privacy(
                teachers=[bare if plain else profile] * TEACHERS,
                overlap=1 if plain else TEACHERS,
                mechanism=mechanism,
                labels=count,
                delta=one,
            ).epsilon
            for count, one in ((1, delta), (QUERIES, DELTA))
        )
        voters = PLAIN if plain else PRIVATE
        return Row(block=block, name=name, voters=voters, mechanism=mechanism, label=label, total=together)

    found = []
    for m in ALLOWANCES:
        target, every = label_target("fashion-mnist", m), mechanisms("fashion-mnist", m)
        noise = dt.self_bounding_noise(teachers=TEACHERS, allowance=m)
        block = f"one label at {target}, m = {m}"
        found += [
            priced(block, "GNMax, the paper's sigma", every["GNMax"], target.delta, plain=True),
            priced(block, "GNMax, exact sigma", every["GNMax, exact sigma"], target.delta, plain=True),
            priced(block, "DaRRM, subsampling", every["gamma_Sub"], target.delta),
            priced(block, "DaRRM, self-bounding", dt.DaRRM(noise), target.delta),
            priced(block, "DaRRM, optimal for one point", every["gamma_opt"], target.delta),
            priced(block, "DaRRM, optimal for the profile", every["gamma for the whole profile"], target.delta),
        ]
    free = dt.NoiseFreeMajority(classes=2)
    gnmax = dt.GNMax.calibrated(total, labels=QUERIES, teachers=TEACHERS)
    block = f"{QUERIES} labels at {total}"
    return [
        *found,
        priced(block, "GNMax, exact sigma", gnmax, DELTA, plain=True),
        priced(block, "noise-free majority, r = K", free, DELTA),
        Row(block=block, name="mean probabilities, r = K", voters=PRIVATE, mechanism=None,
            label=total.epsilon, total=total.epsilon),
        Row(block=block, name="mean probabilities, r = 1, secret", voters=SECRET, mechanism=None,
            label=total.epsilon, total=total.epsilon),
        Row(block=block, name="one DP-SGD model", voters=ONE, mechanism=free, label=total.epsilon, total=total.epsilon),
    ]  # fmt: skip


def law(mechanism: dt.Mechanism | None, weights: Tensor, inputs: Tensor) -> Tensor:
    """``(N, classes)``: the probabilities of each label; without a mechanism the mean of the class probabilities."""
    each = linear.probabilities(weights, inputs)
    if mechanism is None:
        return mean_probabilities(each)
    votes = functional.one_hot(each.argmax(dim=2), each.shape[2]).sum(dim=0)
    return torch.as_tensor(np.asarray(mechanism.label_probabilities(votes.numpy())), dtype=torch.float32)


def chosen_rates(noise: dict[Design, float], *, records: int) -> dict[Design, float]:
    """The learning rate of each design with the best labels on the public digits, noise scaled to their number."""
    digits = featured("digits, even-odd", load_task("mnist-5000"))
    inputs = torch.cat([digits.public[0], digits.heldout[0]])
    truth = torch.cat([digits.public[1], digits.heldout[1]])
    chosen = {}
    for design, sigma in noise.items():
        tried = [(sigma * digits.records / records, rate) for rate in LEARNING_RATES]
        scores = [
            label_accuracy("soft", law(None, weights, inputs), truth)
            for weights in trained(digits, design, tried, CHOOSING)
        ]
        chosen[design] = LEARNING_RATES[int(np.argmax(scores))]
    return chosen


def measured(
    task: Features, every: Sequence[Row], weights: dict[Design, Tensor], seed: int
) -> list[tuple[float, float]]:
    """Accuracy of labels on all test images and of students, for each row."""
    inputs, truth = torch.cat([task.public[0], task.heldout[0]]), torch.cat([task.public[1], task.heldout[1]])
    scores = []
    for row in every:
        kind = "soft" if row.mechanism is None else "hard"
        found = law(row.mechanism, weights[row.voters], inputs)
        public = found[: len(task.public[1])]
        scores.append((label_accuracy(kind, found, truth), student_accuracy(kind, public, task, seed, draws=DRAWS)))
    return scores


def comparison(*, seeds: Sequence[int] = SEEDS, data_folder: Path | None = None, limit: int | None = None) -> Result:
    """The table of README, and its figure."""
    title = "All methods at the same guarantee, five seeds (README's table; Fashion-MNIST, K = 11)"
    try:
        tasks = [fashion(name, data_folder=data_folder, limit=limit) for name in TASKS]
    except InvalidArgument as error:
        return Result(name="comparison", title=title, tables=(), notes=(f"Not made: {error}",))
    every, noise = rows(), noises()
    rates = chosen_rates(noise, records=tasks[0].records)
    scores = np.empty((len(tasks), len(seeds), len(every), 2))
    for across, task in enumerate(tasks):
        for down, seed in enumerate(seeds):
            weights = {design: trained(task, design, [(noise[design], rates[design])], seed)[0] for design in noise}
            scores[across, down] = measured(task, every, weights, seed)

    def cell(values: np.ndarray) -> str:
        return f"{values.mean():.3f} ({values.std(ddof=1) if len(values) > 1 else 0:.3f})"

    words = {PRIVATE: "teachers", SECRET: "teachers with the secret allocation counted", ONE: "one model"}
    shown = ", ".join(f"{noise[design]:.2f} ({name})" for design, name in words.items())
    return Result(
        name="comparison",
        title=title,
        tables=tuple(
            Table(
                caption=f"{block}: mean (standard deviation) over seeds {', '.join(map(str, seeds))}.",
                columns=("method", "one label", f"{QUERIES} labels", *(f"{name}, {what}" for name in TASKS
                                                                     for what in ("labels", "student"))),
                rows=tuple(
                    (row.name, format_bound(row.label, 3), format_bound(row.total, 3),
                     *(cell(scores[across, :, number, what]) for across in range(len(tasks)) for what in (0, 1)))
                    for number, row in enumerate(every) if row.block == block
                ),
            )
            for block in dict.fromkeys(row.block for row in every)
        ),
        notes=(
            f"Epsilon of one label at the delta of its caption, of {QUERIES} labels at {DELTA:g}. DaRRM assumes that a "
            f"record may be in the training data of all {TEACHERS} teachers (r = K); GNMax, whose teachers have no "
            "privacy of their own, that it is in that of one (r = 1). Without noise, or with little, the total is the "
            "price of publishing the teachers.",
            f"Noise multipliers: {shown}; sample rate 1/35, 175 steps. Learning rates were chosen on the 5,000 public "
            f"digits: {', '.join(f'{rates[design]:g} ({design.title})' for design in noise)}.",
            f"Labels: the exact expected share of right ones on the 2,000 test images. Student: trained on {QUERIES} "
            f"labels of public images, mean of {DRAWS} draws a seed, tested on the held-out half.",
        ),
        data={
            "rows": [[row.block, row.name, row.label, row.total] for row in every],
            "scores": scores.tolist(),
            "rates": {design.name: rate for design, rate in rates.items()},
        },
        draw=lambda file: _draw(file, every, scores),
    )  # fmt: skip


def _draw(file: Path, every: Sequence[Row], scores: np.ndarray) -> None:
    """Accuracy of labels, a panel for each task."""
    with grid(file, 1, len(TASKS), size=(13, 5.6), sharey=True) as (figure, (panels,)):
        heights = np.arange(len(every))[::-1]
        blocks: dict[str, Any] = dict(zip(dict.fromkeys(row.block for row in every), STYLES, strict=False))
        for panel, name, found in zip(panels, TASKS, scores, strict=True):
            for block, style in blocks.items():
                here = [number for number, row in enumerate(every) if row.block == block]
                values = found[:, here, 0]
                spread = values.std(axis=0, ddof=1) if len(values) > 1 else None
                panel.errorbar(
                    values.mean(axis=0),
                    heights[here],
                    xerr=spread,
                    fmt=style["marker"],
                    color=style["color"],
                    capsize=2,
                    label=block,
                )
            panel.set(xlabel="accuracy of labels (guessing: 0.5)", title=name, xlim=(0.48, 1.01))
        panels[0].set_yticks(heights, [row.name for row in every])
        legend(figure, panels[0], columns=3)
