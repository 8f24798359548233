"""Options that several recipes share, and what they do alike before and after their steps."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from darrm_torch.errors import check_integer

# Only light imports here: every training process imports this module again.


def data_arguments(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Add the options that choose the images."""
    data = parser.add_argument_group("data")
    data.add_argument("--data", default="auto", help="auto, fashion-mnist, mnist or mnist-5000 (default: %(default)s)")
    data.add_argument("--data-folder", type=Path, help="where the data set's files are, or are downloaded to")
    data.add_argument("--limit", type=int, help="use only the first N private records", metavar="N")
    return data


def training_arguments(teachers: argparse._ArgumentGroup, *, count: int | None = 11) -> None:
    """Add the options that say how teachers are trained; ``count`` is the default of K, ``None``: by data set."""
    words = "by data set" if count is None else str(count)
    teachers.add_argument("--teachers", type=int, default=count, help=f"K (default: {words})")
    teachers.add_argument("--noise-multiplier", type=float, help="of DP-SGD (default: by data set)")
    teachers.add_argument("--max-grad-norm", type=float, help="clipping bound (default: by data set)")
    teachers.add_argument("--batch-size", type=int, help="expected batch size (default: by data set)")
    teachers.add_argument("--epochs", type=int, help="(default: by data set)")
    teachers.add_argument("--learning-rate", type=float, help="(default: by data set)")
    teachers.add_argument("--workers", type=int, help="training processes (default: one per core)")
    teachers.add_argument("--device", default="cpu", help="cpu or cuda (default: %(default)s)")


def label_arguments(labels: argparse._ArgumentGroup, *, allowance: float | None = 3.0) -> None:
    """Add the options that say what labels may cost; ``allowance`` is the default of m, ``None``: by data set."""
    words = "by data set" if allowance is None else str(allowance)
    labels.add_argument(
        "--allowance", type=float, default=allowance, help=f"m: a label costs m times a teacher (default: {words})"
    )
    labels.add_argument("--total-delta", type=float, help="delta of all labels together (default: that of one label)")


def run_arguments(parser: argparse.ArgumentParser, folder: str) -> None:
    """Add the options of every run."""
    parser.add_argument("--run", type=Path, help=f"run folder (default: {folder})")
    parser.add_argument("--seed", type=int, help="repeat a run; INSECURE: anyone who knows the seed knows the noise")
    parser.add_argument("--json", action="store_true", help="print the results as JSON instead of the table")


def training_settings(options: argparse.Namespace, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The options of :func:`training_arguments` that train, with ``defaults`` for those that were not given."""
    if options.workers is not None:
        check_integer("workers", options.workers, low=1)
    given = {name: getattr(options, name) for name in defaults}
    return {name: defaults[name] if value is None else value for name, value in given.items()}


def printer(options: argparse.Namespace) -> Callable[[str], None]:
    """Prints progress: to stderr with ``--json``, where stdout holds the results alone."""
    return lambda text: print(text, file=sys.stderr if options.json else sys.stdout)


def print_results(options: argparse.Namespace, folder: Path, results: Mapping[str, Any], table: str) -> None:
    """Print the table, or with ``--json`` the results, and say where both are."""
    if options.json:
        print(json.dumps({"results": results}, indent=1))
    else:
        print(table)
    printer(options)(f"\nWritten: results.json and figure.png in {folder}")


def quieten() -> None:
    """Silence messages of Opacus, Torch and Lightning about things that are intended here."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", message=".*does not have many workers")
    warnings.filterwarnings("ignore", message="You defined a `validation_step`")
    warnings.filterwarnings("ignore", message=".*gradient_checkpointing", category=FutureWarning)  # peft's
    warnings.filterwarnings("ignore", message=".*LeafSpec", category=FutureWarning)  # Lightning's
    warnings.filterwarnings("ignore", message="the labels carry noise")  # methods with and without are compared
