"""Figures and tables of the paper: one command reproduces all of them or those that it names.

    python -m recipes.reproduce                   # all of them
    python -m recipes.reproduce simulation losses # some

Writes NAME.json, NAME.md, NAME.png and NAME.svg for each to the output folder, and report.md, one report of all results
in that folder. It begins with a list of the paper's figures and tables: made, agrees, differs because. Teachers are
trained once and kept there.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from darrm_torch.cli.parser import Command, one_of
from darrm_torch.cli.running import run_command
from darrm_torch.teachers.workers import start_workers_early

# Only light imports here: every training process imports this module again.

NAMES = (
    "problem-setting",
    "simulation",
    "randomized-response",
    "feasible-regions",
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
    "comparison",
    "study",
    "students",
    "tuning",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "names", nargs="*", type=one_of(*NAMES), metavar="name", help=f"which (default: all): {', '.join(NAMES)}"
    )
    parser.add_argument(
        "--out", dest="folder", type=Path, default=Path("runs/reproduce"), help="folder (default: %(default)s)"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="of teachers (default: 1 2 3)")
    parser.add_argument("--data-folder", type=Path, help="where the images are, or are downloaded to")
    parser.add_argument("--limit", type=int, help="use only the first N private records", metavar="N")
    parser.add_argument("--workers", type=int, help="training processes (default: one per core)")
    parser.add_argument(
        "--minutes", type=float, default=120.0, help="the study begins no new part after this time; run again to go on"
    )
    parser.add_argument("--json", action="store_true", help="print the results as JSON")


def run(options: argparse.Namespace) -> int:
    """Compute and write the results."""
    names, folder, screen = options.names or NAMES, options.folder, sys.stderr if options.json else sys.stdout
    if any(name.startswith("labels") for name in names):
        start_workers_early()
    from darrm_torch.errors import check_integer
    from darrm_torch.files import make_private_folder

    from .listing import listing
    from .result import write_report

    for seed in options.seeds:
        check_integer("seeds", seed, low=0)
    make_private_folder(folder, "--out")
    for name in names:
        start = time.perf_counter()
        experiments(options)[name]().write(folder)
        print(f"{name}: {time.perf_counter() - start:.0f} s", flush=True, file=screen)
    table = listing(folder)
    made = {row[0] for row in table.rows if row[3] == "yes"}
    print(f"Made: {len(made)} of the paper's {len({row[0] for row in table.rows})} figures and tables", file=screen)
    print(f"Written: {write_report(folder, NAMES, table)}", file=screen)
    if options.json:
        print(json.dumps({name: json.loads((folder / f"{name}.json").read_text()) for name in names}, indent=1))
    return 0


COMMAND = Command(
    summary=(__doc__ or "").partition("\n")[0],
    example="python -m recipes.reproduce losses --out runs/reproduce",
    add_arguments=add_arguments,
    run=run,
    stopped="stopped; finished results are kept",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the recipe; the exit status is 2 for a mistake in the arguments, which one line names."""
    return run_command(COMMAND, arguments, prog="reproduce")


def experiments(options: argparse.Namespace) -> dict[str, Callable[[], object]]:
    """The function that computes each result."""
    from . import comparison, curves, gaussian, labels, losses, regions, strategies, students, study, tuning

    def accuracy(source: str) -> Callable[[], object]:
        return lambda: labels.accuracy(
            source,
            options.folder / "teachers",
            seeds=options.seeds,
            data_folder=options.data_folder,
            limit=options.limit,
            workers=options.workers,
        )

    return {
        "problem-setting": regions.problem_setting,
        "simulation": curves.simulation,
        "randomized-response": regions.randomized_response,
        "feasible-regions": regions.feasible_regions,
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
        "comparison": lambda: comparison.comparison(data_folder=options.data_folder, limit=options.limit),
        "study": lambda: study.study(
            options.folder / "study",
            data_folder=options.data_folder,
            limit=options.limit,
            minutes=options.minutes,
        ),
        "students": lambda: students.students(
            options.folder / "students", data_folder=options.data_folder, limit=options.limit
        ),
        "tuning": lambda: tuning.tuning(data_folder=options.data_folder, limit=options.limit),
    }


if __name__ == "__main__":
    sys.exit(main())
