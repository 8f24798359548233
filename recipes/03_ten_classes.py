"""Ten classes: labels by the self-bounding plurality, compared with randomized response, GNMax and permute-and-flip.

    python -m recipes.03_ten_classes                         # the first data set that this machine has
    python -m recipes.03_ten_classes --data fashion-mnist    # 60,000 private images, 11 teachers

The recipe trains teachers twice on the same disjoint shards, for two kinds of guarantee:

* with Opacus. These teachers are private, so a label may cost a few teachers' worth even if one record is in the
  training data of all of them;
* without privacy. Then only the mechanism's own randomness protects the votes, and a record affects one vote.

Prints tables and writes results.json and figure.png to the run folder. You can stop it at any time and run it again:
trained teachers are kept, and no label is paid for twice. --help lists every setting.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from darrm_torch.cli.parser import Command
from darrm_torch.cli.running import run_command

from .options import (
    data_arguments,
    label_arguments,
    print_results,
    printer,
    quieten,
    run_arguments,
    training_arguments,
    training_settings,
)

# Only light imports here: every training process imports this module again.

# DP-SGD works best with large batches and high learning rates on tightly clipped gradients, plain training with small
# batches.
PRIVATE = {"noise_multiplier": 1.5, "max_grad_norm": 0.5, "batch_size": 256, "epochs": 20, "learning_rate": 2.0}
DEFAULTS: dict[str, dict[str, Any]] = {
    "fashion-mnist": PRIVATE,
    "mnist": PRIVATE,
    "mnist-5000": {**PRIVATE, "batch_size": 64, "epochs": 40},
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this recipe's options."""
    data_arguments(parser)
    training_arguments(parser.add_argument_group("teachers"))
    labels = parser.add_argument_group("labels")
    labels.add_argument("--delta", type=float, default=1e-5, help="of one teacher, and of GNMax (default: %(default)s)")
    labels.add_argument(
        "--vote-epsilon",
        type=float,
        default=1.0,
        help="of one label that only the mechanism's own randomness protects (default: %(default)s)",
    )
    labels.add_argument("--queries", type=int, default=1000, help="labels for each student (default: %(default)s)")
    label_arguments(labels)
    labels.add_argument("--steps", type=int, default=600, help="training steps of a student (default: %(default)s)")
    run_arguments(parser, "runs/DATA-ten-classes")


def run(options: argparse.Namespace) -> int:
    """The recipe, step by step."""
    from darrm_torch.errors import check_integer
    from darrm_torch.teachers.dp_sgd import TrainingSettings

    from . import experiment, report, ten_classes
    from .data import load_all_classes

    quieten()
    say = printer(options)
    task = load_all_classes(options.data, folder=options.data_folder, limit=options.limit)
    say(report.describe_data(task))
    settings = ten_classes.Settings(
        source=task.source,
        classes=task.classes,
        records=min(task.declared_records, options.limit or task.declared_records),
        teachers=options.teachers,
        overlap=1,
        assumed_overlap=options.teachers,
        contiguous=False,
        training=TrainingSettings(**training_settings(options, DEFAULTS[task.source])),
        delta=options.delta,
        allowance=options.allowance,
        epsilon=None,
        queries=options.queries,
        total_delta=options.allowance * options.delta if options.total_delta is None else options.total_delta,
        seed=options.seed,
        limit=options.limit,
        vote_epsilon=options.vote_epsilon,
        steps=options.steps,
    )
    check_integer("queries", settings.queries, low=1, high=len(task.public_labels) - 1)
    folder = options.run or Path("runs") / f"{task.source}-ten-classes"
    experiment.claim_folder(folder, settings)
    say(f"Run       {folder}")
    private, plain = experiment.train_models(
        folder,
        settings,
        task,
        workers=options.workers,
        device=options.device,
        build=ten_classes.NETWORK,
        plain=ten_classes.PLAIN,
    )
    results = ten_classes.label_and_teach(folder, settings, task, private, plain)
    ten_classes.write(folder, results)
    print_results(options, folder, results, ten_classes.table(results))
    return 0


COMMAND = Command(
    summary=(__doc__ or "").partition("\n")[0],
    example="python -m recipes.03_ten_classes --data fashion-mnist",
    add_arguments=add_arguments,
    run=run,
    stopped="stopped; run the same command again to go on",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the recipe; the exit status is 2 for a mistake in the arguments, which one line names."""
    return run_command(COMMAND, arguments, prog="03_ten_classes")


if __name__ == "__main__":
    sys.exit(main())
