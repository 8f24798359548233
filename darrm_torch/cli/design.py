"""``darrm design``."""

from __future__ import annotations

from typing import Any

import darrm_torch as dt

from .parser import Command, one_of
from .promises import add_unit, stated_unit
from .showing import print_json, progress
from .values import guarantee, read_guarantee, read_rate

__all__ = ["COMMAND"]


def _add_arguments(parser: Any) -> None:
    parser.add_argument(
        "--records", type=int, required=True, metavar="N", help="number of records, as declared in public"
    )
    parser.add_argument(
        "--total", type=guarantee, required=True, metavar="EPS,DELTA", help="the most that everything released may cost"
    )
    parser.add_argument(
        "--sample-rate", type=read_rate, required=True, metavar="Q", help="sample rate of one model, such as 1/35"
    )
    parser.add_argument("--steps", type=int, required=True, metavar="N", help="training steps of one model")
    parser.add_argument(
        "--data",
        type=one_of("pooled", "silos"),
        default="pooled",
        metavar="WHERE",
        help="pooled (default): every record may go to any model; silos: each record stays in its silo",
    )
    parser.add_argument(
        "--teachers",
        type=int,
        nargs="+",
        default=[12],
        metavar="K",
        help="numbers of teachers to compare (default: 12)",
    )
    parser.add_argument(
        "--overlaps", type=int, nargs="+", metavar="R", help="numbers of shards of each record (default: 1 2 3 4 K/2 K)"
    )
    parser.add_argument(
        "--model-cost", type=float, default=1.0, metavar="COST", help="cost of training one model, in any unit"
    )
    add_unit(parser, replaced=False)
    parser.add_argument("--json", action="store_true", help="print JSON")


def _run(options: Any) -> int:
    with progress(None, "designs") as bar:
        answer = dt.design(
            records=options.records,
            total=read_guarantee(options.total),
            sample_rate=options.sample_rate,
            steps=options.steps,
            data=options.data,
            teachers=options.teachers,
            overlaps=options.overlaps,
            model_cost=options.model_cost,
            **stated_unit(options),
            on_progress=lambda name: bar.update(),
        )
    if options.json:
        print_json(answer.to_dict())
    else:
        print(answer)
    return 0


COMMAND = Command(
    summary="What a total buys: one private model, or how many teachers.",
    example="darrm design --records 60000 --total 1,1e-5 --sample-rate 1/35 --steps 175",
    add_arguments=_add_arguments,
    run=_run,
)
