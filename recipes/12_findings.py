"""Several findings per image: five attributes of Fashion-MNIST, eleven teachers, labels and a student by finding.

    python -m recipes.12_findings                         # five runs, two minutes of one core
    python -m recipes.12_findings --seeds 1 --limit 2000  # a quick look

The attributes are sets of classes, see FINDINGS. Each record draws one of eleven shards in secret, and the noise of the
training is the smallest with which all teachers together cost (1, 1e-5). The majority of their votes on each finding is
released without further noise, so neither the number of images nor that of findings changes the total.

The rivals keep the same total: one private model of all records with five outputs, which can be published as it is, and
the more frequent answer for each finding, without a model. A student of as many true labels shows what labels can
do at best. You can stop the recipe at any time and run it again: teachers and labels that are there are kept.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import darrm_torch as dt
from darrm_torch.cli.parser import Command
from darrm_torch.cli.running import run_command
from darrm_torch.errors import check_integer
from darrm_torch.files import make_private_folder
from darrm_torch.lightning import PrivateLabelDataModule, StudentModule

from .data import PUBLISHED, Task, load_all_classes
from .experiment import load_models, with_noise_for, write_whole
from .options import quieten
from .teaching import fit

FINDINGS = {
    "footwear": (5, 7, 9),  # sandal, sneaker, ankle boot
    "long sleeves": (2, 4, 6),  # pullover, coat, shirt
    "opens in front": (4, 6),  # coat, shirt
    "covers the legs": (1, 3),  # trouser, dress
    "for cold days": (2, 4, 9),  # pullover, coat, ankle boot
}
TEACHERS, TOTAL = 11, dt.PrivacyGuarantee(epsilon=1.0, delta=1e-5)
CHOICE = "The learning rates were chosen in a run on the same private records; the total does not cover that choice."
COLUMNS = ("labels", "student", "true labels", "one model", "majority")


def network() -> nn.Module:
    """An untrained network with one logit for each finding: teacher, student and the one model alike."""
    return nn.Sequential(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(196, 64), nn.Tanh(), nn.Linear(64, len(FINDINGS)))


def mean_loss(outputs: Tensor, findings: Tensor) -> Tensor:
    """The mean of the binary cross-entropies of a record's findings, ``(B,)``."""
    losses = nn.functional.binary_cross_entropy_with_logits(outputs, findings.float(), reduction="none")
    return losses.mean(dim=1)


# The noise comes from the total. Each learning rate is the best of 1, 2, 4 and 8 in a run that the table does not
# include, by accuracy on the public images, whose classes are known here. That run read the same private records.
TEACHER = dt.TrainingSettings(batch_size=256, epochs=5, learning_rate=8.0, loss=mean_loss, grad_sample_mode="ghost")
ONE_MODEL = replace(TEACHER, batch_size=2048, learning_rate=2.0)


def findings_of(classes: Tensor) -> Tensor:
    """Which findings images of these classes have, ``(N, 5)`` int64."""
    return torch.stack([torch.isin(classes, torch.tensor(some)) for some in FINDINGS.values()], dim=1).long()


def train(folder: Path, task: Task, shards: Sequence[Any], size: int, settings: dt.TrainingSettings, **how: Any) -> Any:
    """The files of one model for each shard, and the models."""
    files = dt.train_teachers(
        folder,
        build_model=network,
        dataset=TensorDataset(task.private_images, findings_of(task.private_labels)),
        shards=shards,
        shard_size=size,
        settings=settings,
        workers=1,
        progress=False,
        **how,
    )
    return files, load_models(files, network)


def label(folder: Path, task: Task, records: int) -> dt.PrivateMajorityEnsemble:
    """The teachers of one run and their ledger, whose budget is the total."""
    shards = dt.assign_shards(len(task.private_labels), teachers=TEACHERS, private_folder=folder / "private")
    files, models = train(folder / "teachers", task, shards, records // TEACHERS, TEACHER, total=TOTAL)
    return dt.PrivateMajorityEnsemble.from_opacus(
        models,
        files,
        delta=TOTAL.delta,
        mechanism=dt.NoiseFreeMajority(classes=2),
        findings=[*FINDINGS],
        ledger=dt.PrivacyLedger(folder / "labels.ledger", TOTAL),
    )


def one_model(folder: Path, task: Task, records: int) -> nn.Module:
    """The rival: one model of all records, with the noise that the same total needs."""
    shards, settings = [np.arange(len(task.private_labels))], with_noise_for(TOTAL, ONE_MODEL, records)
    where = {"private_folder": folder / "private", "name": "one-model"}
    _, (model,) = train(folder / "one-model", task, shards, records, settings, **where)
    return model


def student_of(inputs: Tensor, labels: Tensor, *, seed: int, steps: int) -> StudentModule:
    """A student of these labels."""
    torch.manual_seed(seed)
    student = StudentModule(network(), findings=[*FINDINGS], learning_rate=5e-3)
    fit(student, DataLoader(TensorDataset(inputs, labels), batch_size=50, shuffle=True), max_steps=steps, max_epochs=-1)
    return student.eval()


@torch.no_grad()
def right(model: nn.Module, task: Task) -> list[float]:
    """How often a model is right about each finding of the images that nobody saw."""
    outputs = model(task.heldout_images)
    there = outputs.argmax(dim=-1) if outputs.dim() == 3 else outputs > 0
    return _means(there == findings_of(task.heldout_labels))


def _means(right: Tensor) -> list[float]:
    return right.float().mean(dim=0).tolist()


def compare(folder: Path, task: Task, *, seed: int, queries: int, steps: int) -> tuple[dict[str, list[float]], Any]:
    """Accuracies by finding, and the ensemble."""
    records = PUBLISHED[task.source]
    ensemble = label(folder, task, records)
    data = PrivateLabelDataModule(ensemble, task.public_images, queries=queries, batch_size=100, seed=seed)
    labels, truth = data.label(), findings_of(task.public_labels[data.queries])
    images, share = task.public_images[data.queries], findings_of(task.heldout_labels).float().mean(dim=0)
    return {
        "labels": _means(labels == truth),
        "student": right(student_of(images, labels, seed=seed, steps=steps), task),
        "true labels": right(student_of(images, truth, seed=seed, steps=steps), task),
        "one model": right(one_model(folder, task, records), task),
        "majority": torch.maximum(share, 1 - share).tolist(),
    }, ensemble


def table(results: Sequence[dict[str, list[float]]]) -> str:
    """Means over the runs, and the standard deviation over runs of the mean of all findings."""
    lines = ["| finding | " + " | ".join(COLUMNS) + " |", "|---|" + "---|" * len(COLUMNS)]
    numbers = np.array([[one[column] for column in COLUMNS] for one in results])  # (runs, columns, findings)
    for place, name in enumerate(FINDINGS):
        lines.append(f"| {name} | " + " | ".join(f"{share:.3f}" for share in numbers[:, :, place].mean(axis=0)) + " |")
    means = numbers.mean(axis=2)
    spread = means.std(axis=0, ddof=1) if len(results) > 1 else np.zeros(len(COLUMNS))
    cells = [f"{mean:.3f} ± {deviation:.3f}" for mean, deviation in zip(means.mean(axis=0), spread, strict=True)]
    return "\n".join([*lines, "| mean | " + " | ".join(cells) + " |"])


def study(folder: Path, task: Task, *, seeds: int, queries: int, steps: int = 600) -> list[dict[str, list[float]]]:
    """One run for each seed; returns the accuracies of each."""
    results = []
    for number in range(seeds):
        place = folder / f"run-{number}"
        make_private_folder(place, "run")
        found, ensemble = compare(place, task, seed=number, queries=queries, steps=steps)
        results.append(found)
        print(f"run {number}: " + ", ".join(f"{name} {np.mean(found[name]):.3f}" for name in COLUMNS), flush=True)
    write_whole(folder / "results.json", json.dumps(results, indent=1))
    print(f"\n{table(results)}\n\n{ensemble.privacy_report()}\n\n{CHOICE}")
    return results


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this recipe's options."""
    parser.add_argument("--run", type=Path, default=Path("runs/findings"), help="run folder (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=5, help="number of runs (default: %(default)s)")
    parser.add_argument("--queries", type=int, default=1000, help="images to label (default: %(default)s)")
    parser.add_argument("--limit", type=int, help="use only the first N private records", metavar="N")


def run(options: argparse.Namespace) -> int:
    """The recipe for each seed."""
    check_integer("seeds", options.seeds, low=1)
    quieten()
    task = load_all_classes("fashion-mnist", limit=options.limit)
    study(options.run, task, seeds=options.seeds, queries=options.queries)
    return 0


COMMAND = Command(
    summary=(__doc__ or "").partition("\n")[0],
    example="python -m recipes.12_findings --seeds 1 --limit 2000",
    add_arguments=add_arguments,
    run=run,
    stopped="stopped; run the same command again to go on",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the recipe; the exit status is 2 where the images are missing, which one line says."""
    return run_command(COMMAND, arguments, prog="12_findings")


if __name__ == "__main__":
    sys.exit(main())
