"""What students learn from labels, by the source of the labels and by the kind of student.

    python -m recipes.04_students                         # the first data set that this machine has
    python -m recipes.04_students --data fashion-mnist    # also takes the settings of recipe 01

The teachers are those of recipe 01, which runs first if the run folder does not hold its results. Every student sees Q
labels of the same queries and is tested on images that neither it nor any teacher saw. The table shows the mean over
several seeds, which choose the queries and the student's initial weights. The recipe prints the table and writes
students.json to the run folder.

Soft labels are the mean of the private teachers' class probabilities. They cost what publishing these teachers does,
however many there are. Where that is within the budget, they are the labels to use: they say which answers are doubtful
(`python -m recipes.reproduce students` measures how much that helps).

No source can beat the true labels. GNMax gives the same guarantee for one label with teachers that are not private.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from tqdm.auto import tqdm

import darrm_torch as dt
from darrm_torch.cli.parser import Command, UsageError, option_names
from darrm_torch.cli.running import run_command
from darrm_torch.errors import check_integer
from darrm_torch.files import make_private_folder
from darrm_torch.lightning import (
    FixMatch,
    PrivateLabelDataModule,
    StudentModule,
    VirtualAdversarialTraining,
    label_transition,
)

from . import experiment, teaching
from .data import Task, load_task
from .options import quieten

demo = importlib.import_module("recipes.01_private_labels")

SOURCES = {
    "darrm-optimal": "DaRRM, optimal",
    "gnmax-exact": "GNMax, exact",
    "mean": "soft labels",
    "true": "true labels",
}
KINDS: dict[str, dict[str, Any]] = {
    "supervised": {},
    "noise-aware": {"aware": True},
    "VAT": {"consistency": VirtualAdversarialTraining()},
    "VAT, noise-aware": {"consistency": VirtualAdversarialTraining(balance_weight=1.0), "aware": True},
    "FixMatch": {"consistency": FixMatch()},
}
PRIOR = dt.IndependentVotes(mean=0.75)  # the prior that the noise is optimal for; no vote was counted to set it


class TrueLabels(PrivateLabelDataModule):
    """The same queries with their true labels; the teachers are not asked."""

    def __init__(self, *what: Any, truth: Tensor, **how: Any) -> None:
        super().__init__(*what, **how)
        self._labels = truth[self.queries]


def student_network(classes: int = 2) -> nn.Module:
    """A small network without dropout or batch normalisation, so it computes the same in training and evaluation."""
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
    """The accuracy of the labels and of the student trained on them."""
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
    if aware and source not in ("true", "mean"):
        transition = label_transition(ensemble.mechanism, teachers=len(ensemble.profiles), prior=PRIOR)
    student = StudentModule(student_network(), transition=transition, consistency=consistency)
    labels = data.labels.argmax(dim=1) if data.labels.is_floating_point() else data.labels
    return float((labels == task.public_labels[data.queries]).float().mean()), teaching.fit_and_test(
        student, data, max_steps=steps, max_epochs=-1
    )


def study(
    folder: Path, *, seeds: int, steps: int, kinds: dict[str, dict[str, Any]] = KINDS
) -> dict[str, dict[str, dict[str, list[float]]]]:
    """The accuracies of labels and student, one per seed, for each kind of student and source of labels."""
    stored = json.loads((folder / "settings.json").read_text())
    training = {name: dt.TrainingSettings(**stored.pop(name)) for name in ("training", "one_model")}
    settings = experiment.Settings(**training, **stored)
    task = load_task(settings.source, classes=settings.classes, limit=settings.limit)
    private, plain = experiment.train_models(folder, settings, task, workers=None, device="cpu")
    home = folder / "study"  # has its own ledgers, so that the ledgers of recipe 01 stay unchanged
    make_private_folder(home / "ledgers", "run")
    ensembles = experiment.build_ensembles(home, settings, private, plain)
    ensembles["true"] = ensembles["darrm-optimal"]  # never asked
    votes = ensembles["noise-free"]
    ensembles["mean"] = dt.PrivateMajorityEnsemble(
        experiment.load_models(private),
        dt.MeanProbabilities(classes=2),
        profiles=votes.profiles,
        overlap=votes.overlap,
        delta=votes.delta,
        ledger=dt.PrivacyLedger(home / "ledgers" / "mean.ledger"),
    )
    results: dict[str, dict[str, dict[str, list[float]]]] = {}
    runs = [(kind, source, seed) for kind in kinds for source in SOURCES for seed in range(seeds)]
    for kind, source, seed in tqdm(runs, desc="students", unit="student", dynamic_ncols=True):
        accuracies = teach(
            source, ensembles[source], task, queries=settings.queries, seed=seed, steps=steps, **kinds[kind]
        )
        scores = results.setdefault(kind, {}).setdefault(source, {"labels": [], "student": []})
        for name, accuracy in zip(scores, accuracies, strict=True):
            scores[name].append(accuracy)
    return results


def table(results: dict[str, dict[str, dict[str, list[float]]]]) -> str:
    """Means, with the standard deviation of a single run in brackets."""

    def cell(accuracies: list[float]) -> str:
        return f"{np.mean(accuracies):.3f} ({np.std(accuracies, ddof=min(1, len(accuracies) - 1)):.3f})"

    first = next(iter(results.values()))
    rows = {"labels themselves": {source: first[source]["labels"] for source in SOURCES}}
    rows |= {kind: {source: row[source]["student"] for source in SOURCES} for kind, row in results.items()}
    lines = [f"{'':<19}" + "".join(f"{title:>15}" for title in SOURCES.values())]
    lines += [f"{name:<19}" + "".join(f"{cell(row[source]):>15}" for source in SOURCES) for name, row in rows.items()]
    return "\n".join(lines)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this recipe's options and those of recipe 01."""
    demo.add_arguments(parser)
    parser.set_defaults(run=Path("runs/students"))
    parser.add_argument("--seeds", type=int, default=5, help="(default: %(default)s)")
    parser.add_argument("--steps", type=int, default=300, help="training steps of a student (default: %(default)s)")


def run(options: argparse.Namespace) -> int:
    """Run recipe 01 unless the folder holds its results, then train and compare the students."""
    check_integer("seeds", options.seeds, low=1)
    check_integer("steps", options.steps, low=1)
    if not (options.run / "results.json").exists():
        demo.run(options)
    elif settings := settings_of_recipe_01(options):
        raise UsageError(f"{options.run} has its own settings; {option_names(settings)} would need a new folder")
    quieten()
    results = study(options.run, seeds=options.seeds, steps=options.steps)
    experiment.write_whole(options.run / "students.json", json.dumps(results, indent=1))
    print(
        f"\nAccuracy: mean over {options.seeds} seeds, in brackets the standard deviation of one.\n\n{table(results)}"
    )
    return 0


def settings_of_recipe_01(options: argparse.Namespace) -> list[str]:
    """Which settings of recipe 01 differ from their defaults."""
    defaults = argparse.ArgumentParser()
    add_arguments(defaults)
    own = ("run", "seeds", "steps")
    return [name for name, value in vars(options).items() if name not in own and value != defaults.get_default(name)]


COMMAND = Command(
    summary=(__doc__ or "").partition("\n")[0],
    example="python -m recipes.04_students --data fashion-mnist",
    add_arguments=add_arguments,
    run=run,
    stopped="stopped; run the same command again to go on",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the recipe; the exit status is 2 for a mistake in the arguments, which one line names."""
    return run_command(COMMAND, arguments, prog="04_students")


if __name__ == "__main__":
    sys.exit(main())
