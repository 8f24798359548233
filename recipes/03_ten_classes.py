"""Ten classes: labels by the self-bounding plurality, beside randomized response, GNMax and permute-and-flip.

    python -m recipes.03_ten_classes                         # the first data set that this machine has
    python -m recipes.03_ten_classes --data fashion-mnist    # 60,000 private images, 11 teachers

Teachers are trained twice on the same disjoint shards, for two kinds of promise:

* with Opacus, private themselves. Then a label may cost a few teachers' worth although a record may touch them all;
* without privacy. Then coins alone protect the votes, and only of the one teacher that a record touches.

Prints tables; leaves results.json and figure.png in the run folder. Stop it at any time and run it again: trained
teachers are kept, and no label is paid for twice. See --help for every setting.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from typing import Any

demo = importlib.import_module("recipes.01_private_labels")

# Only light imports here: every training process imports this module again.

# DP-SGD wants large batches and long steps of short gradients; plain training small ones.
PRIVATE = {"noise_multiplier": 1.5, "max_grad_norm": 0.5, "batch_size": 256, "epochs": 20, "learning_rate": 2.0}
DEFAULTS: dict[str, dict[str, Any]] = {
    "fashion-mnist": PRIVATE,
    "mnist": PRIVATE,
    "mnist-5000": {**PRIVATE, "batch_size": 64, "epochs": 40},
}


def read_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = demo.Parser(prog="03_ten_classes", description=(__doc__ or "").split("\n\n")[0])
    data = parser.add_argument_group("data")
    data.add_argument("--data", default="auto", help="auto, fashion-mnist, mnist or mnist-5000 (default: %(default)s)")
    data.add_argument("--data-folder", type=Path, help="where the files of the data set are, or are downloaded to")
    data.add_argument("--limit", type=int, help="use only the first so many private records")
    teachers = parser.add_argument_group("teachers")
    teachers.add_argument("--teachers", type=int, default=11, help="K (default: %(default)s)")
    teachers.add_argument("--noise-multiplier", type=float, help="of DP-SGD (default: by data set)")
    teachers.add_argument("--max-grad-norm", type=float, help="clipping bound (default: by data set)")
    teachers.add_argument("--batch-size", type=int, help="expected (default: by data set)")
    teachers.add_argument("--epochs", type=int, help="(default: by data set)")
    teachers.add_argument("--learning-rate", type=float, help="(default: by data set)")
    teachers.add_argument("--workers", type=int, help="training processes (default: one a core)")
    teachers.add_argument("--device", default="cpu", help="cpu or cuda (default: %(default)s)")
    labels = parser.add_argument_group("labels")
    labels.add_argument("--delta", type=float, default=1e-5, help="of one teacher, and of GNMax (default: %(default)s)")
    labels.add_argument(
        "--allowance", type=float, default=3.0, help="m: a label costs m times a teacher (default: %(default)s)"
    )
    labels.add_argument(
        "--vote-epsilon", type=float, default=1.0, help="of one label that coins alone protect (default: %(default)s)"
    )
    labels.add_argument("--queries", type=int, default=1000, help="labels for each student (default: %(default)s)")
    labels.add_argument("--total-delta", type=float, help="delta of all labels together (default: that of one label)")
    labels.add_argument("--steps", type=int, default=600, help="of each student (default: %(default)s)")
    parser.add_argument("--run", type=Path, help="run folder (default: runs/DATA-ten-classes)")
    parser.add_argument("--seed", type=int, help="repeat a run; INSECURE, whoever knows it knows the noise")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run it; the exit status is 2 for a mistake in the arguments, with one line that says which."""
    chosen = read_arguments(arguments)
    return demo.status_of(run, chosen)


def run(chosen: argparse.Namespace) -> None:
    """The recipe, step by step."""
    from darrm_torch.errors import check_integer
    from darrm_torch.teachers.dp_sgd import TrainingSettings

    from . import experiment, report, ten_classes
    from .data import load_all_classes

    demo.quieten()
    if chosen.workers is not None:
        check_integer("workers", chosen.workers, low=1)
    task = load_all_classes(chosen.data, folder=chosen.data_folder, limit=chosen.limit)
    print(report.describe_data(task))
    usual = DEFAULTS[task.source]
    training = {name: usual[name] if getattr(chosen, name) is None else getattr(chosen, name) for name in usual}
    settings = ten_classes.Settings(
        source=task.source,
        classes=task.classes,
        teachers=chosen.teachers,
        overlap=1,
        assumed_overlap=chosen.teachers,
        contiguous=False,
        training=TrainingSettings(**training),
        delta=chosen.delta,
        allowance=chosen.allowance,
        epsilon=None,
        queries=chosen.queries,
        total_delta=chosen.allowance * chosen.delta if chosen.total_delta is None else chosen.total_delta,
        seed=chosen.seed,
        limit=chosen.limit,
        vote_epsilon=chosen.vote_epsilon,
        steps=chosen.steps,
    )
    check_integer("queries", settings.queries, low=1, high=len(task.public_labels) - 1)
    folder = chosen.run or Path("runs") / f"{task.source}-ten-classes"
    experiment.claim_folder(folder, settings)
    print(f"Run       {folder}")
    private, plain = experiment.train_both(
        folder,
        settings,
        task,
        workers=chosen.workers,
        device=chosen.device,
        build=ten_classes.NETWORK,
        plain=ten_classes.PLAIN,
    )
    results = ten_classes.label_and_teach(folder, settings, task, private, plain)
    ten_classes.write(folder, results)
    print(ten_classes.table(results))
    print(f"\nWritten: results.json and figure.png in {folder}")


if __name__ == "__main__":
    sys.exit(main())
