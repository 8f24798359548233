"""What the same total buys: one private model, ensembles of several designs, and GNMax, on Fashion-MNIST.

Every row of a part is stored as soon as it is trained, so a stopped run goes on where it was.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

import darrm_torch as dt
from darrm_torch.errors import InvalidArgument
from darrm_torch.mechanisms.noise_free import split_votes
from darrm_torch.teachers.shards import assign_shards

from ..data import Task, load_all_classes, load_task
from ..experiment import write_whole
from . import linear
from .drawing import STYLES, grid, legend
from .result import Result, Table

PAIRS = ("5v8", "0v6", "2v4", "7v9")
ALL = "ten classes"
TASKS = (*PAIRS, ALL)
TOTALS, DELTA = (0.1, 0.25, 1.0, 4.0), 1e-5
SIZES = (5, 11, 25)
SEEDS = (11, 12, 13, 14, 15)
CHOOSING = (1, 2, 3, 4, 5)  # the seeds on which learning rates are chosen; no result uses them
SAMPLE_RATE, STEPS = 1 / 35, 175  # of every model, as in the paper
LEARNING_RATES = (0.5, 2.0, 8.0, 32.0)
QUERIES, DRAWS = 100, 2  # labels of a student; students for each row

Scores = dict[str, dict[str, float]]


@dataclass(frozen=True, kw_only=True)
class Design:
    """One way of spending a total. ``priced``: "one", "allocation", "today", "overlap" (r = K) or "plain" (GNMax)."""

    priced: str
    teachers: int

    @property
    def name(self) -> str:
        """Its name in files."""
        return f"{self.priced}-{self.teachers}"

    @property
    def title(self) -> str:
        """Its name in tables."""
        return {
            "one": "one DP-SGD model",
            "allocation": f"K = {self.teachers}, r = 1, secret allocation",
            "overlap": f"K = r = {self.teachers}",
            "today": f"K = {self.teachers}, r = 1, price of one teacher",
            "plain": f"GNMax, K = {self.teachers}, r = 1, plain teachers",
        }[self.priced]

    @property
    def overlap(self) -> int:
        """r."""
        return self.teachers if self.priced == "overlap" else 1


DESIGNS = (
    Design(priced="one", teachers=1),
    *(Design(priced="allocation", teachers=count) for count in SIZES),
    Design(priced="overlap", teachers=5),
    *(Design(priced="today", teachers=count) for count in SIZES),
    *(Design(priced="plain", teachers=count) for count in SIZES),
)
ENSEMBLES = tuple(one for one in DESIGNS if one.priced in ("allocation", "overlap"))


def noise_multiplier(folder: Path, design: Design, epsilon: float) -> float:
    """The smallest noise with which all models of a design keep (epsilon, DELTA) together; kept in ``folder``."""
    if design.priced == "plain":
        return 0.0
    file = folder / "noise.json"
    known = json.loads(file.read_text()) if file.exists() else {}
    price = design.name if design.priced in ("allocation", "overlap") else "one"
    key = f"{price}, total ({epsilon:g}, {DELTA:g}), sample rate {SAMPLE_RATE:.6g}, {STEPS} steps"
    if key not in known:
        secret = design.priced == "allocation"
        known[key] = dt.calibrate_noise(
            dt.PrivacyGuarantee(epsilon=epsilon, delta=DELTA),
            sample_rate=SAMPLE_RATE,
            steps=STEPS,
            overlap=design.overlap,
            allocation=dt.RandomAllocation(teachers=design.teachers) if secret else None,
        )
        write_whole(file, json.dumps(known, indent=1))
    return float(known[key])


@dataclass(frozen=True, kw_only=True)
class Features:
    """A task as features: ``private`` and ``public`` and ``heldout`` are pairs of inputs and labels."""

    name: str
    classes: int
    private: tuple[Tensor, Tensor]
    public: tuple[Tensor, Tensor]
    heldout: tuple[Tensor, Tensor]
    records: int


def featured(name: str, task: Task, limit: int | None = None) -> Features:
    """The features of a task's images, reduced to the main directions of its public ones, without their labels."""
    public = linear.features(task.public_images)
    directions = linear.main_directions(public)

    def reduced(found: Tensor) -> Tensor:
        return functional.normalize(found @ directions, dim=1)

    return Features(
        name=name,
        classes=int(task.public_labels.max()) + 1,
        private=(reduced(linear.features(task.private_images)), task.private_labels),
        public=(reduced(public), task.public_labels),
        heldout=(reduced(linear.features(task.heldout_images)), task.heldout_labels),
        records=min(task.declared_records, limit or task.declared_records),
    )


def fashion(name: str, *, data_folder: Path | None, limit: int | None) -> Features:
    """A task of the study."""
    if name == ALL:
        return featured(name, load_all_classes("fashion-mnist", folder=data_folder, limit=limit), limit)
    return featured(name, load_task("fashion-mnist", classes=name, folder=data_folder, limit=limit), limit)


def trained(task: Features, design: Design, settings: Sequence[tuple[float, float]], seed: int) -> Tensor:
    """``(settings, K, features, classes)``: a design's models for each (noise, learning rate), on the same shards."""
    count = len(task.private[1])
    shards: Iterable[np.ndarray] = (
        [np.arange(count)] * design.teachers
        if design.teachers == design.overlap
        else assign_shards(count, teachers=design.teachers, insecure_seed=seed)
    )
    size = task.records * design.overlap // design.teachers
    models = [
        linear.LinearModel(rows=rows, noise=noise, learning_rate=rate, size=size)
        for noise, rate in settings
        for rows in shards
    ]
    weights = linear.train(
        *task.private,
        models,
        classes=task.classes,
        sample_rate=SAMPLE_RATE,
        steps=STEPS,
        seed=int.from_bytes(hashlib.sha256(f"{task.name} {design.name} {seed}".encode()).digest()[:6], "big"),
    )
    return weights.unflatten(0, (len(settings), design.teachers))


def laws(weights: Tensor, inputs: Tensor, design: Design, epsilon: float) -> dict[str, Tensor]:
    """``(N, classes)`` probabilities of each label, by kind: "hard" votes, "soft" votes (``MeanProbabilities``)."""
    each = linear.probabilities(weights, inputs)
    votes = functional.one_hot(each.argmax(dim=2), each.shape[2]).sum(dim=0)
    if design.priced == "plain":
        target = dt.PrivacyGuarantee(epsilon=epsilon, delta=DELTA)
        gnmax = dt.GNMax.calibrated(target, labels=QUERIES, teachers=design.teachers)
        return {"hard": torch.as_tensor(gnmax.label_probabilities(votes), dtype=torch.float32)}
    majority = (votes == votes.max(dim=1, keepdim=True).values).float()
    hard = {"hard": majority / majority.sum(dim=1, keepdim=True)}
    if design.teachers == 1:
        return hard
    return hard | {"soft": mean_probabilities(each)}


def mean_probabilities(each: Tensor) -> Tensor:
    """``(N, classes)``: the soft labels of the library, from the probabilities ``(K, N, classes)`` of each teacher."""
    shares = sum(split_votes(one.numpy()) for one in each)
    return torch.from_numpy(dt.MeanProbabilities().aggregate(shares))


def label_accuracy(kind: str, law: Tensor, truth: Tensor) -> float:
    """The expected share of right labels; a soft label counts as its most probable class."""
    right = law.argmax(dim=1) == truth if kind == "soft" else law[torch.arange(len(truth)), truth]
    return float(right.double().mean())


def student_accuracy(kind: str, law: Tensor, task: Features, seed: int, *, draws: int = DRAWS) -> float:
    """The mean accuracy on held-out images of students, each trained on ``QUERIES`` labels of public images."""
    scores = []
    random = torch.Generator().manual_seed(seed)
    for _ in range(draws):
        rows = torch.randperm(len(law), generator=random)[:QUERIES]
        targets = law[rows]
        if kind == "hard":
            drawn = torch.multinomial(targets, 1, generator=random)[:, 0]
            targets = functional.one_hot(drawn, task.classes).float()
        weights = linear.student(task.public[0][rows], targets)
        scores.append(float(((task.heldout[0] @ weights).argmax(dim=1) == task.heldout[1]).double().mean()))
    return float(np.mean(scores))


def scores_of(task: Features, design: Design, weights: Tensor, epsilon: float, seed: int) -> Scores:
    """Label accuracy on all test images and student accuracy, by kind of vote."""
    inputs = torch.cat([task.public[0], task.heldout[0]])
    truth = torch.cat([task.public[1], task.heldout[1]])
    found = {}
    for kind, law in laws(weights, inputs, design, epsilon).items():
        found[kind] = {
            "label": label_accuracy(kind, law, truth),
            "student": student_accuracy(kind, law[: len(task.public[1])], task, seed),
        }
    return found


def choose(
    folder: Path, task: Features, designs: Sequence[Design], *, totals: Sequence[float], scale: float
) -> dict[str, list[float]]:
    """Mean label accuracy of each design at each total with each learning rate: what settings are chosen from.

    ``scale`` multiplies the noise: with it a smaller public data set stands in for a larger private one.
    """
    file = folder / f"{task.name.replace(', ', '-').replace(' ', '-')}.json"
    found: dict[str, list[float]] = json.loads(file.read_text()) if file.exists() else {}
    truth = torch.cat([task.public[1], task.heldout[1]])
    inputs = torch.cat([task.public[0], task.heldout[0]])
    for design in designs:
        noises = {epsilon: scale * noise_multiplier(folder, design, epsilon) for epsilon in totals}
        if all(f"{design.name} {epsilon:g}" in found for epsilon in totals):
            continue
        tried = [(noise, rate) for noise in noises.values() for rate in LEARNING_RATES]
        voters = Design(priced="today", teachers=design.teachers)  # their own labels, without the noise of GNMax
        runs = [
            [
                label_accuracy(kind, law, truth)
                for weights in trained(task, design, tried, seed)
                for kind, law in list(laws(weights, inputs, voters, 1.0).items())[-1:]
            ]
            for seed in CHOOSING
        ]
        scores = np.mean(runs, axis=0).tolist()
        for number, epsilon in enumerate(totals):
            found[f"{design.name} {epsilon:g}"] = scores[number * len(LEARNING_RATES) :][: len(LEARNING_RATES)]
        write_whole(file, json.dumps(found, indent=1))
    return found


def chosen_rate(table: dict[str, list[float]], design: Design, epsilon: float) -> float:
    """The learning rate with the best accuracy on the public data."""
    return LEARNING_RATES[int(np.argmax(table[f"{design.name} {epsilon:g}"]))]


def parts(tasks: Sequence[str], seeds: Sequence[int]) -> list[tuple[str, int]]:
    """What is trained, in this order: pairs before ten classes, seed by seed."""
    pairs = [name for name in tasks if name != ALL]
    return [(name, seed) for seed in seeds for name in pairs] + [(ALL, seed) for seed in seeds if ALL in tasks]


def study(
    folder: Path,
    *,
    tasks: Sequence[str] = TASKS,
    totals: Sequence[float] = TOTALS,
    seeds: Sequence[int] = SEEDS,
    designs: Sequence[Design] = DESIGNS,
    data_folder: Path | None = None,
    limit: int | None = None,
    minutes: float = 120.0,
) -> Result:
    """The utility study; after ``minutes`` no new part is begun, and the report says which are missing."""
    folder = folder if limit is None else folder / f"limit-{limit}"
    folder.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + 60 * minutes
    load = functools.cache(functools.partial(fashion, data_folder=data_folder, limit=limit))
    try:
        load(tasks[0])
    except InvalidArgument as error:
        return Result(name="study", title=TITLE, tables=(), notes=(f"Not made: {error}",))

    @functools.cache
    def rates(name: str) -> dict[tuple[str, float], float]:
        """The learning rate of each design and total, chosen on the public digits."""
        load_digits = load_all_classes if name == ALL else load_task
        digits = featured("digits, " + ("ten classes" if name == ALL else "even-odd"), load_digits("mnist-5000"))
        table = choose(folder, digits, designs, totals=totals, scale=digits.records / load(name).records)
        return {(one.name, epsilon): chosen_rate(table, one, epsilon) for one in designs for epsilon in totals}

    found: dict[tuple[str, int], dict[str, Scores]] = {}
    missing = []
    for name, seed in parts(tasks, seeds):
        file = folder / f"{name.replace(' ', '-')}-seed-{seed}.json"
        part: dict[str, Scores] = json.loads(file.read_text()) if file.exists() else {}
        for one in designs:
            absent = [epsilon for epsilon in totals if f"{one.name} {epsilon:g}" not in part]
            if not absent or time.monotonic() > end:
                continue
            settings = [(noise_multiplier(folder, one, epsilon), rates(name)[one.name, epsilon]) for epsilon in absent]
            for epsilon, weights in zip(absent, trained(load(name), one, settings, seed), strict=True):
                part[f"{one.name} {epsilon:g}"] = scores_of(load(name), one, weights, epsilon, seed)
            write_whole(file, json.dumps(part, indent=1))
        if all(f"{one.name} {epsilon:g}" in part for one in designs for epsilon in totals):
            found[name, seed] = part
        else:
            missing.append(f"{name}, seed {seed}")
    used = {
        name: {f"{one} {epsilon:g}": rate for (one, epsilon), rate in rates(name).items()}
        for name in tasks
        if any(name == whole for whole, _ in found)
    }
    return report(found, missing, used, tasks=tasks, totals=totals, designs=designs)


TITLE = "What the same total buys: one model, ensembles of several designs, GNMax (Fashion-MNIST, delta 1e-5)"


def report(
    found: dict[tuple[str, int], dict[str, Scores]],
    missing: Sequence[str],
    used: dict[str, dict[str, float]],
    *,
    tasks: Sequence[str],
    totals: Sequence[float],
    designs: Sequence[Design],
) -> Result:
    """Tables, the two goals, and the figure."""

    def values(task: str, design: Design, epsilon: float, kind: str, what: str) -> np.ndarray:
        key = f"{design.name} {epsilon:g}"
        return np.array([part[key][kind][what] for (name, _), part in found.items() if name == task])

    whole = [task for task in tasks if any(name == task for name, _ in found)]
    seeds = {task: [seed for name, seed in found if name == task] for task in whole}
    tables = []
    for task in whole:
        for what in ("label", "student"):
            rows = []
            for one in designs:
                for kind in ("hard", "soft") if one in ENSEMBLES or one.priced == "today" else ("hard",):
                    cells = [values(task, one, epsilon, kind, what) for epsilon in totals]
                    votes = "" if one.priced == "one" else kind
                    rows.append((one.title, votes, *map(_cell, cells)))
            described = "labels on the 2,000 test images" if task != ALL else "labels on the 10,000 test images"
            if what == "student":
                described = f"students of {QUERIES} labels on held-out images, {DRAWS} draws a seed"
            tables.append(
                Table(
                    caption=f"{task}: accuracy of {described}; mean (standard deviation) over seeds "
                    f"{', '.join(map(str, seeds[task]))}.",
                    columns=("design", "votes", *(f"total {epsilon:g}" for epsilon in totals)),
                    rows=tuple(rows),
                )
            )
    goals, notes = _goals(whole, totals, designs, values)
    rate = f"sample rate 1/{1 / SAMPLE_RATE:.0f}, {STEPS} steps, clipping bound 1"
    return Result(
        name="study",
        title=TITLE,
        tables=(*goals, *tables),
        notes=(
            *(
                (f"Unfinished and in no table: {'; '.join(missing)}. Run the command again to go on.",)
                if missing
                else ()
            ),
            *notes,
            "Every model: softmax regression on histograms of oriented gradients, reduced to the "
            f"{linear.DIRECTIONS} main directions of the public images (no label is used); DP-SGD with {rate}. Its "
            "steps are those of `train_teachers`, written for this model; a test compares the two. All models of a row "
            "together keep the total: noise by `calibrate_noise`.",
            "Secret allocation: each record draws one of K shards. Price of one teacher: the same shards, with the "
            "noise that the total needs if everyone knows the draws. K = r: every teacher sees every record. GNMax: "
            f"plain teachers on the same shards, noise for {QUERIES} labels; the other rows may label any number.",
            "Learning rates, one for each design and total, were chosen from "
            f"{', '.join(f'{one:g}' for one in LEARNING_RATES)} by the mean of {len(CHOOSING)} other seeds on 5,000 "
            "public digits (even against odd for the pairs), with noise scaled to their number. The JSON lists them.",
            "Soft votes: `MeanProbabilities`; the label is its most probable class, and a student trains on the mean "
            "itself.",
        ),
        data={
            "scores": [{"task": task, "seed": seed, "scores": part} for (task, seed), part in found.items()],
            "learning rates": used,
            "missing": list(missing),
        },
        draw=(lambda file: _draw(file, whole, totals, designs, values)) if whole else None,
    )


def _cell(scores: np.ndarray) -> str:
    spread = f" ({np.std(scores, ddof=1):.3f})" if len(scores) > 1 else ""
    return f"{np.mean(scores):.3f}{spread}"


def _best(task: str, epsilon: float, designs: Sequence[Design], values: Any) -> tuple[float, str]:
    """The best of the ensembles, by the mean accuracy of its labels."""
    return max(
        (float(values(task, one, epsilon, kind, "label").mean()), f"{one.title}, {kind}")
        for one in designs
        if one in ENSEMBLES
        for kind in ("hard", "soft")
    )


def _goals(
    whole: Sequence[str], totals: Sequence[float], designs: Sequence[Design], values: Any
) -> tuple[tuple[Table, ...], list[str]]:
    """The two questions of the study, answered."""
    single = Design(priced="one", teachers=1)
    first, second = [], []
    for task in whole:
        for epsilon in totals:
            alone = float(values(task, single, epsilon, "hard", "label").mean())
            best, name = _best(task, epsilon, designs, values)
            first.append((task, f"{epsilon:g}", alone, best, name, best - alone, best >= alone - 0.01))
            for count in SIZES:
                pair = [Design(priced=priced, teachers=count) for priced in ("today", "allocation")]
                if any(one not in designs for one in pair):
                    continue
                known, secret = (float(values(task, one, epsilon, "soft", "label").mean()) for one in pair)
                second.append(
                    (task, f"{epsilon:g}", count, known, secret, secret - known,
                     ("yes" if secret >= known + 0.01 else "no") if known < 0.97 else "not asked")
                )  # fmt: skip
    notes = []
    at = [row for row in first if row[1] in ("0.25", "1")]
    if at:
        notes.append(
            f"The best ensemble is within 0.01 of one model, or better, in {sum(row[-1] for row in at)} of {len(at)} "
            "cases at totals 0.25 and 1."
        )
    asked_rows = [row for row in second if row[-1] != "not asked"]
    if asked_rows:
        by_total = {
            epsilon: [row[-1] == "yes" for row in asked_rows if row[1] == epsilon] for _, epsilon, *_ in asked_rows
        }
        notes.append(
            "Counting the secret allocation, labels of disjoint shards are better by at least 0.01 in "
            f"{sum(map(sum, by_total.values()))} of {len(asked_rows)} cases in which they are below 0.97 without it: "
            + ", ".join(f"{sum(yes)} of {len(yes)} at a total of {epsilon}" for epsilon, yes in by_total.items())
            + "."
        )
    tables = (
        Table(
            caption="One private model beside the best ensemble of at least five teachers: accuracy of labels.",
            columns=("task", "total", "one model", "best ensemble", "which", "difference", "within 0.01"),
            rows=tuple(first),
            digits=3,
        ),
        Table(
            caption="What the secret allocation is worth: disjoint shards, soft votes, the same total.",
            columns=("task", "total", "K", "price of one teacher", "secret allocation", "gain", "at least 0.01"),
            rows=tuple(second),
            digits=3,
        ),
    )
    return tables, notes


def _draw(file: Path, whole: Sequence[str], totals: Sequence[float], designs: Sequence[Design], values: Any) -> None:
    """Accuracy of labels against epsilon, a panel for each task."""
    lines = [
        (Design(priced="one", teachers=1), "hard", "one DP-SGD model"),
        (Design(priced="overlap", teachers=5), "soft", "5 teachers on all records"),
        (Design(priced="allocation", teachers=11), "soft", "11 disjoint shards, secret allocation"),
        (Design(priced="today", teachers=11), "soft", "11 disjoint shards, price of one teacher"),
        (Design(priced="plain", teachers=25), "hard", f"GNMax, 25 plain teachers, {QUERIES} labels"),
    ]
    wide = min(3, len(whole))
    high = math.ceil(len(whole) / wide)
    with grid(file, high, wide, size=(3.9 * wide, 3.2 * high + 0.5)) as (figure, axes):
        for panel, task in zip(axes.flat, whole, strict=False):
            for style, (one, kind, label) in zip(STYLES, lines, strict=False):
                if one not in designs:
                    continue
                scores = [values(task, one, epsilon, kind, "label") for epsilon in totals]
                spread = [np.std(one, ddof=1) if len(one) > 1 else 0.0 for one in scores]
                panel.errorbar(totals, [np.mean(one) for one in scores], yerr=spread, capsize=2, label=label, **style)
            panel.set(title=task, xscale="log")
            panel.set_xticks(totals, [f"{epsilon:g}" for epsilon in totals])
            panel.minorticks_off()
        for panel in list(axes.flat)[len(whole) :]:
            panel.axis("off")
        for panel in axes[:, 0]:
            panel.set_ylabel("accuracy of labels")
        for panel in axes[-1]:
            panel.set_xlabel("epsilon of everything, delta 1e-5")
        legend(figure, axes[0, 0], columns=3)
