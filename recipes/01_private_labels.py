"""Private images -> K Opacus teachers -> private labels -> a Lightning student, beside the GNMax baseline.

    python -m recipes.01_private_labels                         # the first data set that this machine has
    python -m recipes.01_private_labels --data fashion-mnist    # the paper's task: classes 5 and 8, 11 teachers

Prints a table; leaves results.json and figure.png in the run folder. Stop it at any time and run it again: trained
teachers are kept, and no label is paid for twice. See --help for every setting.
"""

from __future__ import annotations

import argparse
import logging
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from darrm_torch.teachers.workers import start_workers_early

# Only light imports here: every training process imports this module again.

# Settings under which the demonstration shows something on each data set.
DEFAULTS = {
    "fashion-mnist": {"noise_multiplier": 12.0, "learning_rate": 0.05, "epochs": 5},
    "mnist": {"noise_multiplier": 12.0, "learning_rate": 0.05, "epochs": 5},
    "mnist-5000": {"noise_multiplier": 4.0, "learning_rate": 0.1, "epochs": 10},
}


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        """Exit with status 2."""
        self.exit(2, f"error: {message} (see --help)\n")


def read_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = Parser(prog="01_private_labels", description=(__doc__ or "").split("\n\n")[0])
    data = parser.add_argument_group("data")
    data.add_argument("--data", default="auto", help="auto, fashion-mnist, mnist or mnist-5000 (default: %(default)s)")
    data.add_argument("--data-folder", type=Path, help="where the files of the data set are, or are downloaded to")
    data.add_argument("--classes", default="auto", help="two classes as 5v8, or even-odd (default: by data set)")
    data.add_argument("--limit", type=int, help="use only the first so many private records")
    teachers = parser.add_argument_group("teachers")
    teachers.add_argument("--teachers", type=int, default=11, help="K (default: %(default)s)")
    teachers.add_argument("--overlap", type=int, default=1, help="shards that each record is in (default: %(default)s)")
    teachers.add_argument(
        "--contiguous", action="store_true", help="equal slices by position, as the paper; then all K may change"
    )
    teachers.add_argument("--noise-multiplier", type=float, help="of DP-SGD (default: by data set)")
    teachers.add_argument("--max-grad-norm", type=float, default=1.0, help="clipping bound (default: %(default)s)")
    teachers.add_argument("--batch-size", type=int, default=32, help="expected (default: %(default)s)")
    teachers.add_argument("--epochs", type=int, help="(default: by data set)")
    teachers.add_argument("--learning-rate", type=float, help="(default: by data set)")
    teachers.add_argument("--workers", type=int, help="training processes (default: one a core)")
    teachers.add_argument("--device", default="cpu", help="cpu or cuda (default: %(default)s)")
    labels = parser.add_argument_group("labels")
    labels.add_argument("--delta", type=float, default=1e-4, help="of one teacher (default: %(default)s)")
    labels.add_argument(
        "--allowance", type=float, default=3.0, help="m: a label costs m times a teacher (default: %(default)s)"
    )
    labels.add_argument("--epsilon", type=float, help="of one label, instead of allowance times a teacher's")
    labels.add_argument(
        "--assumed-overlap",
        type=int,
        help="teachers that one record is assumed to touch when noise is chosen (default: all, as in the paper)",
    )
    labels.add_argument("--queries", type=int, default=100, help="labels for the student (default: %(default)s)")
    labels.add_argument("--total-delta", type=float, help="delta of all labels together (default: that of one label)")
    parser.add_argument("--run", type=Path, help="run folder (default: runs/DATA-CLASSES)")
    parser.add_argument("--seed", type=int, help="repeat a run; INSECURE, whoever knows it knows the noise")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run it; the exit status is 2 for a mistake in the arguments, with one line that says which."""
    chosen = read_arguments(arguments)
    start_workers_early()
    return status_of(run, chosen)


def status_of(run: Callable[[argparse.Namespace], None], chosen: argparse.Namespace) -> int:
    """Run a recipe; its exit status, with one line for a mistake in the arguments."""
    from darrm_torch.errors import DarrmError

    try:
        run(chosen)
    except DarrmError as error:
        name, message = getattr(error, "name", ""), str(error)
        if name.replace("-", "_") in vars(chosen):
            message = f"--{name.replace('_', '-')}{message.removeprefix(name)}"
        print(f"error: {message}", file=sys.stderr)
        return 2
    except (KeyboardInterrupt, SystemExit):  # the second is what Lightning makes of the first
        print("stopped; run the same command again to go on", file=sys.stderr)
        return 130
    return 0


def run(chosen: argparse.Namespace) -> None:
    """The recipe, step by step."""
    from darrm_torch.errors import check_integer
    from darrm_torch.teachers.dp_sgd import TrainingSettings

    from . import experiment, report
    from .data import load_task

    quieten()
    if chosen.workers is not None:
        check_integer("workers", chosen.workers, low=1)
    task = load_task(chosen.data, classes=chosen.classes, folder=chosen.data_folder, limit=chosen.limit)
    print(report.describe_data(task))
    usual = DEFAULTS[task.source]
    settings = experiment.Settings(
        source=task.source,
        classes=task.classes,
        teachers=chosen.teachers,
        overlap=chosen.overlap,
        assumed_overlap=chosen.teachers if chosen.assumed_overlap is None else chosen.assumed_overlap,
        contiguous=chosen.contiguous,
        training=TrainingSettings(
            noise_multiplier=usual["noise_multiplier"] if chosen.noise_multiplier is None else chosen.noise_multiplier,
            max_grad_norm=chosen.max_grad_norm,
            batch_size=chosen.batch_size,
            epochs=int(usual["epochs"]) if chosen.epochs is None else chosen.epochs,
            learning_rate=usual["learning_rate"] if chosen.learning_rate is None else chosen.learning_rate,
        ),
        delta=chosen.delta,
        allowance=chosen.allowance,
        epsilon=chosen.epsilon,
        queries=chosen.queries,
        total_delta=chosen.allowance * chosen.delta if chosen.total_delta is None else chosen.total_delta,
        seed=chosen.seed,
        limit=chosen.limit,
    )
    check_integer("queries", settings.queries, low=1, high=len(task.public_labels))
    folder = chosen.run or Path("runs") / f"{task.source}-{task.classes}"
    experiment.claim_folder(folder, settings)
    print(f"Run       {folder}")
    private, plain = experiment.train_both(folder, settings, task, workers=chosen.workers, device=chosen.device)
    results = experiment.label_and_teach(folder, settings, task, private, plain)
    report.write(folder, results)
    print(report.table(results))
    print(f"\nWritten: results.json and figure.png in {folder}")


def quieten() -> None:
    """Silence what Opacus, Torch and Lightning say about things that are as they should be here."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", message=".*does not have many workers")
    warnings.filterwarnings("ignore", message="You defined a `validation_step`")


if __name__ == "__main__":
    sys.exit(main())
