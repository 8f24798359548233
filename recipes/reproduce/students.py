"""Students of 100 labels: beside students of true labels, and with questions that they choose themselves.

The teachers are those of the study: eleven softmax regressions on disjoint shards that were drawn in secret, with noise
for one total. The ensemble, the data module and the student are the library's. Teachers and students see the features
of the study, which no label was used for. Each pair and seed is stored as soon as it is measured, so a stopped run goes
on where it was.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn

import darrm_torch as dt
from darrm_torch.errors import InvalidArgument
from darrm_torch.lightning import PrivateLabelDataModule, StudentModule, VirtualAdversarialTraining

from ..data import load_task
from ..experiment import write_whole
from ..teaching import fit
from . import linear, study
from .result import Result, Table

PAIRS = ("5v8", "2v4", "0v6", "5v7")
GAPS = PAIRS[:3]  # whose gap to true labels is averaged
SEEDS = (31, 32, 33, 34, 35)
EPSILON, QUERIES, ROUNDS, STEPS = 0.25, 100, 4, 150
RATE, RADIUS = 3e-3, 0.3  # of students; chosen on the pairs 2v6, 4v6 and 7v9 with other seeds
DESIGN = study.Design(priced="allocation", teachers=11)
TOTAL = dt.PrivacyGuarantee(epsilon=EPSILON, delta=study.DELTA)
ACQUIRE = {"random": None, "margin": "margin", "disagreement": "disagreement"}
SOURCES = ("true labels", "majority", "mean probabilities")
TITLE = f"Students: chosen questions, and the gap to true labels (Fashion-MNIST, K = 11, total {TOTAL})"
Scores = dict[str, float]


def teachers(task: study.Features, folder: Path, seed: int, rate: float) -> tuple[list[nn.Module], float]:
    """The models of one seed, features to logits, and their noise multiplier."""
    noise = study.noise_multiplier(folder, DESIGN, EPSILON)
    models: list[nn.Module] = []
    for weights in study.trained(task, DESIGN, [(noise, rate)], seed)[0]:
        models.append(nn.Linear(linear.DIRECTIONS, task.classes, bias=False))
        models[-1].load_state_dict({"weight": weights.T})
    return models, noise


def ensemble(models: Sequence[nn.Module], noise: float, mechanism: dt.Mechanism) -> dt.PrivateMajorityEnsemble:
    """The library's ensemble of these teachers, with a ledger of its own."""
    profile = dt.PrivacyProfile.from_dp_sgd([(noise, study.SAMPLE_RATE, study.STEPS)])
    return dt.PrivateMajorityEnsemble(
        models,
        mechanism,
        profiles=[profile] * len(models),
        allocation=dt.RandomAllocation(teachers=len(models)),
        delta=study.DELTA,
        ledger=dt.PrivacyLedger(),
    )


class TrueLabels(PrivateLabelDataModule):
    """The same questions with their true labels; no teacher is asked."""

    def tell(self, truth: Tensor) -> PrivateLabelDataModule:
        """Take the labels of the questions from these of all public inputs."""
        self._labels = truth[self.queries]
        return self


def measured(task: study.Features, folder: Path, seed: int, *, rate: float, steps: int, queries: int) -> Scores:
    """The accuracies of one pair and seed."""
    models, noise = teachers(task, folder, seed, rate)
    hard = ensemble(models, noise, dt.NoiseFreeMajority(classes=task.classes))
    soft = ensemble(models, noise, dt.MeanProbabilities(classes=task.classes))
    public, truth = task.public
    scores: Scores = {}

    def fitted(data: PrivateLabelDataModule) -> tuple[StudentModule, float]:
        """A new student of the labels so far, and its accuracy on held-out images."""
        torch.manual_seed(seed)
        network = nn.Sequential(nn.Linear(linear.DIRECTIONS, 64), nn.ReLU(), nn.Linear(64, task.classes))
        student = StudentModule(network, learning_rate=RATE)
        fit(student, data, max_steps=steps, max_epochs=-1)
        with torch.no_grad():
            right = student.eval()(task.heldout[0]).argmax(dim=1) == task.heldout[1]
        return student, float(right.double().mean())

    known: dict[tuple[int, ...], tuple[StudentModule, float]] = {}  # the first round is the same for all
    for name, acquire in ACQUIRE.items():
        data = PrivateLabelDataModule(hard, public, queries=queries, rounds=ROUNDS, acquire=acquire, seed=seed)
        for number in range(ROUNDS):
            asked = tuple(data.queries)
            if asked not in known:
                known[asked] = fitted(data)
            student, scores[f"{name} {len(asked)}"] = known[asked]
            if number + 1 < ROUNDS:
                student.consistency = VirtualAdversarialTraining(radius=RADIUS)  # for its views; training has none
                data.ask(student)
        scores[f"{name} labels"] = float((data.labels == truth[data.queries]).double().mean())
    scores["true labels"] = fitted(TrueLabels(hard, public, queries=queries, seed=seed).tell(truth))[1]
    scores["majority"] = scores[f"random {queries}"]
    scores["mean probabilities"] = fitted(PrivateLabelDataModule(soft, public, queries=queries, seed=seed))[1]
    return scores


def students(
    folder: Path,
    *,
    pairs: Sequence[str] = PAIRS,
    seeds: Sequence[int] = SEEDS,
    steps: int = STEPS,
    queries: int = QUERIES,
    data_folder: Path | None = None,
    limit: int | None = None,
) -> Result:
    """Both tables."""
    folder = folder if limit is None else folder / f"limit-{limit}"
    folder.mkdir(parents=True, exist_ok=True)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    try:
        tasks = {name: study.fashion(name, data_folder=data_folder, limit=limit) for name in pairs}
    except InvalidArgument as error:
        return Result(name="students", title=TITLE, tables=(), notes=(f"Not made: {error}",))
    digits = study.featured("digits, even-odd", load_task("mnist-5000"))
    scale = digits.records / tasks[pairs[0]].records
    rate = study.chosen_rate(study.choose(folder, digits, [DESIGN], totals=[EPSILON], scale=scale), DESIGN, EPSILON)
    found: dict[str, list[Scores]] = {name: [] for name in pairs}
    for seed in seeds:
        for name, task in tasks.items():
            file = folder / f"{name}-seed-{seed}.json"
            if not file.exists():
                scores = measured(task, folder, seed, rate=rate, steps=steps, queries=queries)
                write_whole(file, json.dumps(scores, indent=1))
            found[name].append(json.loads(file.read_text()))
    return report(found, rate=rate, seeds=seeds, steps=steps, queries=queries)


def interval(values: Sequence[float]) -> str:
    """The mean of values, in points, with the half width of its 95 % interval (Student's t)."""
    points = 100 * np.asarray(values)
    if len(points) < 2:
        return f"{points.mean():+.1f}"
    half = stats.t.ppf(0.975, len(points) - 1) * points.std(ddof=1) / np.sqrt(len(points))
    return f"{points.mean():+.1f} ({half:.1f})"


def report(found: dict[str, list[Scores]], *, rate: float, seeds: Sequence[int], steps: int, queries: int) -> Result:
    """Accuracies, and differences within the same pair and seed."""
    every = [scores for parts in found.values() for scores in parts]
    sizes = [queries * (number + 1) // ROUNDS for number in range(ROUNDS)]
    choosing = []
    for size in (sizes[0], sizes[1], sizes[-1]):
        for name in ACQUIRE:
            means = [float(np.mean([one[f"{name} {size}"] for one in parts])) for parts in found.values()]
            gain = interval([one[f"{name} {size}"] - one[f"random {size}"] for one in every])
            choosing.append((size, name, *means, "" if name == "random" else gain))
    gaps = []
    compared = [name for name in found if name in GAPS] or list(found)
    for source in SOURCES:
        means = [float(np.mean([one[source] for one in found[name]])) for name in compared]
        gap = [one["true labels"] - one[source] for name in compared for one in found[name]]
        gaps.append((source, *means, *(("", "") if source == SOURCES[0] else (interval(gap), f"{100 * max(gap):.1f}"))))
    right = ", ".join(f"{name} {np.mean([one['random labels'] for one in parts]):.3f}" for name, parts in found.items())
    listed = ", ".join(map(str, seeds))
    return Result(
        name="students",
        title=TITLE,
        tables=(
            Table(
                caption=f"Accuracy of students of {queries} labels on held-out images, seeds {listed}; gap to true "
                "labels in points, mean over pairs and seeds (95 %), and the largest of one seed.",
                columns=("labels", *compared, "gap", "largest"),
                rows=tuple(gaps),
                digits=3,
            ),
            Table(
                caption=f"Accuracy of students that ask in {ROUNDS} rounds, by number of labels, seeds {listed}; gain "
                "over random questions in points, mean over all pairs and seeds (95 %).",
                columns=("labels", "questions", *found, "gain"),
                rows=tuple(choosing),
                digits=3,
            ),
        ),
        notes=(
            f"Teachers: the study's, K = {DESIGN.teachers}, learning rate {rate:g}, chosen on the public digits. "
            f"All labels together cost {TOTAL}, however many and whether majorities or mean probabilities.",
            f"Students: `StudentModule`, 64 hidden units on the teachers' features, learning rate {RATE:g}, {steps} "
            "steps, trained from the start after each round. The first round is random. Views are those of "
            f"`VirtualAdversarialTraining(radius={RADIUS:g})`.",
            f"Share of right labels among the random ones: {right}.",
        ),
        data={"scores": found},
    )
