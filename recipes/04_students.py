"""What labels teach: by where they come from, and by how the student learns.

    python -m recipes.04_students                         # the first data set that this machine has
    python -m recipes.04_students --data fashion-mnist    # takes recipe 01's settings too, see its --help

The teachers are recipe 01's, which is run first if its folder is not there. Each student sees Q labels, of the same
queries whatever their source, and is tested on images that neither it nor any teacher saw: mean of several seeds, which
choose the queries and the student's first weights. Prints a table; leaves students.json in the run folder.

True labels are what no source can beat. GNMax has the same guarantee of one label, its teachers none of their own.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from tqdm.auto import tqdm

import darrm_torch as dt
from darrm_torch.lightning import (
    FixMatch,
    PrivateLabelDataModule,
    StudentModule,
    VirtualAdversarialTraining,
    label_transition,
)

from . import experiment
from .data import Task, load_task

demo = importlib.import_module("recipes.01_private_labels")

SOURCES = {"darrm-optimal": "DaRRM, optimal", "gnmax-exact": "GNMax, exact", "true": "true labels"}
KINDS: dict[str, dict[str, Any]] = {
    "supervised": {},
    "noise-aware": {"aware": True},
    "VAT": {"consistency": VirtualAdversarialTraining()},
    "VAT, noise-aware": {"consistency": VirtualAdversarialTraining(balance_weight=1.0), "aware": True},
    "FixMatch": {"consistency": FixMatch()},
}
PRIOR = dt.IndependentVotes(mean=0.75)  # what the noise was chosen for; no vote was counted for it


class TrueLabels(PrivateLabelDataModule):
    """The same queries with their true labels; nobody is asked."""

    def __init__(self, *what: Any, truth: Tensor, **how: Any) -> None:
        super().__init__(*what, **how)
        self._labels = truth[self.queries]


def student_network(classes: int = 2) -> nn.Module:
    """Small, without dropout or batch normalisation: the same function in training and in use."""
    return nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=5, stride=2, padding=2),
        nn.ReLU(),
        nn.Conv2d(16, 32, kernel_size=5, stride=2, padding=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 7 * 7, classes),
    )


def teach(
    source: str,
    ensemble: dt.PrivateMajorityEnsemble,
    task: Task,
    *,
    queries: int,
    seed: int,
    steps: int,
    consistency: Any = None,
    aware: bool = False,
) -> tuple[float, float]:
    """Accuracy of the labels and of the student that they teach."""
    torch.manual_seed(seed)
    how = {
        "queries": queries,
        "test": TensorDataset(task.heldout_images, task.heldout_labels),
        "unlabelled_batch_size": None if consistency is None else 64,
        "seed": seed,
    }
    if source == "true":
        data: PrivateLabelDataModule = TrueLabels(ensemble, task.public_images, truth=task.public_labels, **how)
    else:
        data = PrivateLabelDataModule(ensemble, task.public_images, **how)
    transition = None
    if aware and source != "true":
        transition = label_transition(ensemble.mechanism, teachers=len(ensemble.profiles), prior=PRIOR)
    student = StudentModule(student_network(), transition=transition, consistency=consistency)
    return float((data.labels == task.public_labels[data.queries]).float().mean()), experiment.fit_and_test(
        student, data, max_steps=steps, max_epochs=-1
    )


def study(
    folder: Path, *, seeds: int, steps: int, kinds: dict[str, dict[str, Any]] = KINDS
) -> dict[str, dict[str, dict[str, list[float]]]]:
    """For each kind of student and source of labels, the accuracies of the labels and of the student, seed by seed."""
    stored = json.loads((folder / "settings.json").read_text())
    settings = experiment.Settings(training=dt.TrainingSettings(**stored.pop("training")), **stored)
    task = load_task(settings.source, classes=settings.classes, limit=settings.limit)
    private, plain = experiment.train_both(folder, settings, task, workers=None, device="cpu")
    home = folder / "study"  # with ledgers of its own: the demonstration's charges stay what they are
    (home / "ledgers").mkdir(parents=True, exist_ok=True)
    ensembles = experiment.build_ensembles(home, settings, private, plain)
    ensembles["true"] = ensembles["darrm-optimal"]  # it is not asked
    results: dict[str, dict[str, dict[str, list[float]]]] = {}
    runs = [(kind, source, seed) for kind in kinds for source in SOURCES for seed in range(seeds)]
    for kind, source, seed in tqdm(runs, desc="students", unit="student", dynamic_ncols=True):
        found = teach(source, ensembles[source], task, queries=settings.queries, seed=seed, steps=steps, **kinds[kind])
        scores = results.setdefault(kind, {}).setdefault(source, {"labels": [], "student": []})
        for name, accuracy in zip(scores, found, strict=True):
            scores[name].append(accuracy)
    return results


def table(results: dict[str, dict[str, dict[str, list[float]]]]) -> str:
    """Means, and standard deviations of single runs."""

    def cell(accuracies: list[float]) -> str:
        return f"{np.mean(accuracies):.3f} ({np.std(accuracies, ddof=min(1, len(accuracies) - 1)):.3f})"

    first = next(iter(results.values()))
    rows = {"labels themselves": {source: first[source]["labels"] for source in SOURCES}}
    rows |= {kind: {source: row[source]["student"] for source in SOURCES} for kind, row in results.items()}
    lines = [f"{'':<19}" + "".join(f"{name:>18}" for name in SOURCES.values())]
    lines += [f"{name:<19}" + "".join(f"{cell(row[source]):>18}" for source in SOURCES) for name, row in rows.items()]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Run it; the exit status is 2 for a mistake in the arguments."""
    parser = demo.Parser(prog="04_students", description=(__doc__ or "").split("\n\n")[0], allow_abbrev=False)
    parser.add_argument("--seeds", type=int, default=5, help="(default: %(default)s)")
    parser.add_argument("--steps", type=int, default=300, help="of each student (default: %(default)s)")
    parser.add_argument("--run", type=Path, default=Path("runs/students"), help="folder of recipe 01 (%(default)s)")
    chosen, others = parser.parse_known_args(arguments)
    if min(chosen.seeds, chosen.steps) < 1:
        parser.error(f"seeds and steps must be at least 1, got {chosen.seeds} and {chosen.steps}")
    if not (chosen.run / "results.json").exists():
        if status := demo.main([*others, "--run", str(chosen.run)]):
            return int(status)
    elif others:
        parser.error(f"{chosen.run} has settings of its own; {' '.join(others)} is for a new folder")
    demo.quieten()
    results = study(chosen.run, seeds=chosen.seeds, steps=chosen.steps)
    experiment.write_whole(chosen.run / "students.json", json.dumps(results, indent=1))
    print(f"\nAccuracy: mean of {chosen.seeds} seeds, in brackets the standard deviation of one.\n\n{table(results)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
