"""Private images -> K Opacus teachers -> private labels -> a Lightning student, with GNMax as the baseline.

    python -m recipes.01_private_labels                         # the first data set that this machine has
    python -m recipes.01_private_labels --data fashion-mnist    # the paper's task: classes 5 and 8, 11 teachers

Prints a table and writes results.json and figure.png to the run folder. You can stop it at any time and run it again:
trained teachers are kept, and no label is paid for twice. --help lists every setting.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from darrm_torch.cli.parser import Command
from darrm_torch.cli.running import run_command
from darrm_torch.teachers.workers import start_workers_early

from .options import (
    common_settings,
    data_arguments,
    label_arguments,
    print_results,
    printer,
    quieten,
    run_arguments,
    training_arguments,
)

# Only light imports here: every training process imports this module again.

# Settings that suit each data set.
PAPER = {"noise_multiplier": 12.0, "max_grad_norm": 1.0, "batch_size": 32, "epochs": 5, "learning_rate": 0.05}
DEFAULTS = {
    "fashion-mnist": PAPER,
    "mnist": PAPER,
    "mnist-5000": PAPER | {"noise_multiplier": 4.0, "epochs": 10, "learning_rate": 0.1},
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this recipe's options."""
    data_arguments(parser).add_argument(
        "--classes", default="auto", help="two classes as 5v8, or even-odd (default: by data set)"
    )
    teachers = parser.add_argument_group("teachers")
    teachers.add_argument("--overlap", type=int, default=1, help="shards that hold each record (default: %(default)s)")
    teachers.add_argument(
        "--contiguous", action="store_true", help="equal slices by position, as in the paper; then all K may change"
    )
    training_arguments(teachers)
    labels = parser.add_argument_group("labels")
    labels.add_argument("--delta", type=float, default=1e-4, help="of one teacher (default: %(default)s)")
    labels.add_argument("--epsilon", type=float, help="of one label, instead of --allowance times a teacher's")
    labels.add_argument(
        "--assumed-overlap",
        type=int,
        help="how many teachers' training data may hold one record, as the noise assumes (default: all, as in the "
        "paper)",
    )
    labels.add_argument("--queries", type=int, default=100, help="labels for the student (default: %(default)s)")
    label_arguments(labels)
    run_arguments(parser, "runs/DATA-CLASSES")


def run(options: argparse.Namespace) -> int:
    """The recipe, step by step."""
    start_workers_early()
    from darrm_torch.errors import check_integer

    from . import experiment, report
    from .data import load_task

    quieten()
    say = printer(options)
    task = load_task(options.data, classes=options.classes, folder=options.data_folder, limit=options.limit)
    say(report.describe_data(task))
    settings = experiment.Settings(
        overlap=options.overlap,
        assumed_overlap=options.teachers if options.assumed_overlap is None else options.assumed_overlap,
        contiguous=options.contiguous,
        **common_settings(options, task, DEFAULTS[task.source]),
        epsilon=options.epsilon,
    )
    check_integer("queries", settings.queries, low=1, high=len(task.public_labels))
    folder = options.run or Path("runs") / f"{task.source}-{task.classes}"
    experiment.claim_folder(folder, settings)
    say(f"Run       {folder}")
    private, plain = experiment.train_both(folder, settings, task, workers=options.workers, device=options.device)
    results = experiment.label_and_teach(folder, settings, task, private, plain)
    report.write(folder, results)
    print_results(options, folder, results, report.table(results))
    return 0


COMMAND = Command(
    summary=(__doc__ or "").partition("\n")[0],
    example="python -m recipes.01_private_labels --data fashion-mnist",
    add_arguments=add_arguments,
    run=run,
    stopped="stopped; run the same command again to go on",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the recipe; the exit status is 2 for a mistake in the arguments, which one line names."""
    return run_command(COMMAND, arguments, prog="01_private_labels")


if __name__ == "__main__":
    sys.exit(main())
