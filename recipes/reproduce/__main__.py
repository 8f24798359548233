"""Figures and tables of the paper, one command each and one for all.

    python -m recipes.reproduce                   # all of them
    python -m recipes.reproduce simulation losses # some

Leaves NAME.json, NAME.md, NAME.png and NAME.svg for each in the output folder, and one report.md of all that it holds.
Teachers are trained once and kept there.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from darrm_torch.teachers.workers import start_workers_early

# Only light imports here: every training process imports this module again.

NAMES = (
    "simulation",
    "composition",
    "pure-11",
    "pure-101",
    "priors",
    "gaussian",
    "losses",
    "labels-fashion-mnist",
    "labels-mnist",
    "strategies",
    "frontier",
)


def read_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="reproduce", description="The paper's figures and tables, and beyond.")
    parser.add_argument("names", nargs="*", metavar="name", help=f"which (default: all): {', '.join(NAMES)}")
    parser.add_argument("--out", type=Path, default=Path("runs/reproduce"), help="folder (default: %(default)s)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="of teachers (default: 1 2 3)")
    parser.add_argument("--data-folder", type=Path, help="where the images are, or are downloaded to")
    parser.add_argument("--limit", type=int, help="use only the first so many private records")
    parser.add_argument("--workers", type=int, help="training processes (default: one a core)")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; the exit status is 2 for a mistake in the arguments, with one line that says which."""
    chosen = read_arguments(arguments)
    unknown = [name for name in chosen.names if name not in NAMES]
    if unknown:
        print(f"error: name must be one of {', '.join(NAMES)}, got {unknown[0]}", file=sys.stderr)
        return 2
    names = chosen.names or NAMES
    if any(name.startswith("labels") for name in names):
        start_workers_early()
    from darrm_torch.errors import DarrmError, InvalidArgument, check_integer

    from .result import write_report

    try:
        for seed in chosen.seeds:
            check_integer("--seeds", seed, low=0)
        if chosen.out.exists() and not chosen.out.is_dir():
            raise InvalidArgument("--out", "a folder", str(chosen.out), "There is a file of that name.")
        for name in names:
            start = time.perf_counter()
            experiments(chosen)[name]().write(chosen.out)
            print(f"{name}: {time.perf_counter() - start:.0f} s", flush=True)
        print(f"Written: {write_report(chosen.out, NAMES)}")
    except (DarrmError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (KeyboardInterrupt, SystemExit):  # the second is what Lightning makes of the first
        print("stopped; what is done is kept", file=sys.stderr)
        return 130
    return 0


def experiments(chosen: argparse.Namespace) -> dict[str, Callable[[], object]]:
    """What makes each result."""
    from . import curves, gaussian, labels, losses, strategies

    def accuracy(source: str) -> Callable[[], object]:
        return lambda: labels.accuracy(
            source,
            chosen.out / "teachers",
            seeds=chosen.seeds,
            data_folder=chosen.data_folder,
            limit=chosen.limit,
            workers=chosen.workers,
        )

    return {
        "simulation": curves.simulation,
        "composition": curves.composition,
        "pure-11": curves.pure_11,
        "pure-101": curves.pure_101,
        "priors": curves.priors,
        "gaussian": gaussian.gaussian,
        "losses": losses.losses,
        "labels-fashion-mnist": accuracy("fashion-mnist"),
        "labels-mnist": accuracy("mnist"),
        "strategies": strategies.strategies,
        "frontier": strategies.frontier,
    }


if __name__ == "__main__":
    sys.exit(main())
