"""``darrm plan``."""

from __future__ import annotations

import math
from typing import Any

import darrm_torch as dt

from ..errors import InvalidArgument, check_integer, check_number
from ..privacy.guarantees import format_bound
from ..reprs import wrapped
from .files import teacher_files
from .label import options_for
from .parser import Command, UsageError, require
from .promises import add_allocation, add_common, add_teacher, add_unit, protected, read_teacher, stated_allocation
from .showing import check_figure, print_json, progress, save_figure
from .values import OF_MANY, OF_TWO, guarantee, read_guarantee, read_prior, shares

__all__ = ["COMMAND"]

_QUICK = 50  # for so many teachers and two classes, the teachers that an agreement needs are found in about a second


def _add_arguments(parser: Any) -> None:
    parser.add_argument(
        "--teachers", type=int, metavar="K", help="number of teachers (default: those in --teachers-folder)"
    )
    add_teacher(parser, "the guarantee of each teacher (default: none, teachers without privacy)")
    parser.add_argument(
        "--teachers-folder", metavar="FOLDER", help="or: read the guarantees from teacher-*.pt files of Opacus"
    )
    add_unit(parser)
    default = "typical votes, of private teachers beta:1.6,0.4: right with probability 0.8, often on the same inputs"
    add_common(parser, prior=None, default=default)
    parser.add_argument(
        "--classes",
        type=int,
        default=2,
        metavar="C",
        help=f"number of classes (default: 2); with more than two the prior is {OF_MANY} (default: several of them)",
    )
    beliefs = parser.add_argument_group("how often teachers are right, from public data (default: typical votes)")
    for option, whose in (("--teacher-accuracy", "these teachers"), ("--plain-accuracy", "teachers without privacy")):
        beliefs.add_argument(
            option,
            type=shares,
            metavar="A[,ALL]",
            help=f"accuracy of one of {whose}, and of the majority of all, such as 0.8,0.9",
        )
    add_allocation(parser, "--teachers-folder")
    parser.add_argument("--labels", type=int, default=1, metavar="Q", help="number of labels (default: 1)")
    parser.add_argument("--label-target", type=guarantee, metavar="EPS,DELTA", help="the most that one label may cost")
    parser.add_argument(
        "--total-target", type=guarantee, metavar="EPS,DELTA", help="the most that all labels may cost together"
    )
    parser.add_argument(
        "--agreement", type=float, metavar="A", help="also show what this agreement costs and which teachers it needs"
    )
    parser.add_argument(
        "--tuning",
        type=int,
        nargs="*",
        metavar="RUNS",
        help="also show what choosing the best of so many expected trainings costs (default: 1 5 20 100)",
    )
    parser.add_argument("--plot", metavar="FILE", help="draw agreement against epsilon into this file")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _run(chosen: Any) -> int:
    from ..noise.regions import check_overlap
    from ..planning.beliefs import typical_votes
    from ..planning.families import families
    from ..plots import frontier_epsilons

    require(
        "plan",
        {
            "--teachers or --teachers-folder": (chosen.teachers, chosen.teachers_folder),
            "--label-target or --total-target": (chosen.label_target, chosen.total_target),
        },
    )
    if chosen.teachers_folder is not None:
        count = len(teacher_files("--teachers-folder", chosen.teachers_folder))
        if chosen.teachers not in (None, count):
            raise InvalidArgument("--teachers", f"left out, or {count}, as many as are in the folder", chosen.teachers)
        chosen.teachers = count
    check_integer("--teachers", chosen.teachers, low=1)  # here and below: before the long computations
    check_overlap(chosen.overlap, chosen.teachers)
    teacher = read_teacher(chosen)
    allocation = stated_allocation(chosen, chosen.teachers)
    if allocation is None and isinstance(teacher, tuple):  # of a folder
        from ..teachers.allocations import recorded_allocation

        allocation = recorded_allocation(teacher, overlap=chosen.overlap)
    check_integer("--labels", chosen.labels, low=1)
    if chosen.agreement is not None:
        check_number("--agreement", chosen.agreement, low=0.0, high=1.0, low_open=True)
    for runs in chosen.tuning or ():
        check_integer("--tuning", runs, low=1, high=1000)
    check_figure(chosen.plot)
    prior, many = None if chosen.prior is None else read_prior(chosen.prior), chosen.classes > 2
    if prior is not None and isinstance(prior, dt.PluralityVotes) != many:
        raise InvalidArgument("--prior", f"{OF_MANY if many else OF_TWO} with {chosen.classes} classes", chosen.prior)
    if prior is not None and chosen.teacher_accuracy is not None:
        raise UsageError("give --prior or --teacher-accuracy, not both")
    plain_prior = None
    if chosen.teachers_folder is not None and chosen.plain_accuracy is None:  # these teachers, whatever protects them
        chosen.plain_accuracy = chosen.teacher_accuracy
        plain_prior = typical_votes(chosen.classes) if prior is None and chosen.teacher_accuracy is None else None
    kinds = len(families(chosen.classes))
    with progress(kinds, "strategies") as bar:
        answer = dt.plan(
            teachers=chosen.teachers,
            classes=chosen.classes,
            teacher=protected(chosen, teacher),
            overlap=chosen.overlap,
            labels=chosen.labels,
            label_target=None if chosen.label_target is None else read_guarantee(chosen.label_target),
            total_target=None if chosen.total_target is None else read_guarantee(chosen.total_target),
            prior=prior,
            teacher_accuracy=chosen.teacher_accuracy,
            plain_prior=plain_prior,
            plain_accuracy=chosen.plain_accuracy,
            allocation=allocation,
            on_progress=lambda name: bar.update(),
        )
    costs, needed = None, None
    if chosen.agreement is not None:
        with progress(kinds, "costs") as bar:
            costs = answer.costs(chosen.agreement, on_progress=lambda name: bar.update())
    missing = chosen.agreement is None and not answer.teacher.is_private
    if chosen.agreement is not None or (missing and not many and chosen.teachers <= _QUICK):
        with progress(30, "teachers") as bar:
            needed = answer.teachers_needed(0.95 if missing else chosen.agreement, on_progress=bar.update)
    label_options = options_for(answer)
    tuning = None if chosen.tuning is None else _tuning(answer, chosen.tuning or (1, 5, 20, 100))
    if not chosen.json:
        _show(answer, label_options, costs, chosen.agreement, tuning, needed)
        if missing and needed is None:
            print("\nAdd --agreement 0.95 to see which teachers an agreement of 0.95 needs.")
    else:
        plain = answer.to_dict()
        plain["costs"] = None if costs is None else dict(costs)
        plain["label_options"] = label_options
        plain["teachers_needed"] = None if needed is None else needed.to_dict()
        if tuning is not None:
            plain["tuning"] = [{k: v if math.isfinite(v) else None for k, v in row.items()} for row in tuning]
        print_json(plain)
    if chosen.plot is not None:  # last: the plan is there when there is nothing to draw
        epsilons = frontier_epsilons(answer)
        with progress(len(epsilons), "figure") as bar:
            axes = dt.plot_frontier(answer, on_progress=lambda epsilon: bar.update())
        save_figure(axes, chosen.plot)
    return 0


def _show(answer: Any, options: str | None, costs: Any, agreement: float | None, tuning: Any, needed: Any) -> None:
    """Print a plan for a person."""
    print(answer)
    if options is not None:
        print(f"\n{wrapped(f'The recommendation on the command line: darrm label {options} ...')}")
    if costs is not None:
        print(f"\nWhat an agreement of {agreement:g} costs, in epsilon:")
        for name, epsilon in costs:
            print(f"  {name:<32}{format_bound(epsilon):>10}")
    if tuning is not None:
        print(f"\nWhat choosing the best of several trainings costs, in epsilon at {tuning[0]['delta']:g}:")
        print(wrapped(_TUNING))
        columns = [name for name in tuning[0] if name != "delta"]
        print("".join(name.replace("_", " ").rjust(15) for name in columns))
        for row in tuning:
            print("".join(format_bound(row[name]).rjust(15) for name in columns))
    if needed is not None:
        print(f"\n{wrapped(str(needed))}")


_TUNING = (
    "Only the best run is released. The number of runs is drawn from the named law and stays secret, and scores read "
    "private data through the teachers only. The last column releases every run."
)


def _tuning(answer: Any, expected: Any) -> list[dict[str, float]]:
    """The price of tuning for each expected number of runs, beside that of publishing all runs."""
    teacher, overlap, delta = answer.teacher, answer.overlap, answer.targets[-1].delta
    rows = []
    for mean in expected:
        row = {"delta": delta, "expected_runs": mean}
        for name, shape in (("geometric", 1.0), ("poisson", math.inf)):
            row[name] = dt.tuning_epsilon(teacher, delta, runs=dt.RandomRuns(mean=mean, shape=shape), overlap=overlap)
        if answer.allocation is not None:
            runs = dt.RandomRuns(mean=mean)
            row["fresh_draws"] = dt.tuning_epsilon(teacher, delta, runs=runs, allocation=answer.allocation)
        rows.append(row | {"all_published": teacher.compose(overlap * mean).epsilon(delta)})
    return rows


COMMAND = Command(
    summary="Compare ways of releasing labels, and recommend one for a budget.",
    example="darrm plan --teachers 11 --noise-multiplier 12 --sample-rate 1/35 \\\n"
    "      --steps 175 --label-target 0.1,1e-4",
    add_arguments=_add_arguments,
    run=_run,
)
