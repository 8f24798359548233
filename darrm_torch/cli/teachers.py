"""``darrm teachers``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import darrm_torch as dt

from ..privacy.guarantees import format_bound
from ..reprs import wrapped
from .files import given_files
from .parser import Command
from .promises import add_accept, checks, naming
from .showing import print_json, progress

__all__ = ["COMMAND"]


def _add_arguments(parser: Any) -> None:
    parser.add_argument(
        "sources", nargs="+", help="checkpoints of Opacus or Lightning, or a folder of teacher-*.pt files"
    )
    parser.add_argument("--delta", type=float, default=1e-5, help="the delta at which epsilons are compared")
    add_accept(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def _run(chosen: Any) -> int:
    paths = given_files("sources", chosen.sources)
    with naming("sources"), progress(None, "accountants"):
        profiles = dt.read_teachers(paths, **checks(chosen))
    if chosen.json:
        print_json(
            [
                {"file": str(path), "profile": profile.to_dict(), **asdict(profile.reading)}
                for path, profile in zip(paths, profiles, strict=True)
            ]
        )
        return 0
    print(f"Epsilon (nats) at delta {format_bound(chosen.delta, 3)}: ours, and that of Opacus' accountants.\n")
    width = min(40, max(len(path.name) for path in paths))
    print(f"  {'teacher':<{width}}{'epsilon':>10}{'PRV':>10}{'RDP':>10}   sampling")
    for path, profile in zip(paths, profiles, strict=True):
        reading, theirs = profile.reading, dict(profile.reading.accountant_epsilons)
        numbers = "".join(format_bound(e).rjust(10) for e in (reading.epsilon, theirs["prv"], theirs["rdp"]))
        print(f"  {path.name[-width:]:<{width}}{numbers}   {reading.sampling}")
    for note in dict.fromkeys(note for profile in profiles for note in profile.reading.notes):
        print(wrapped(f"- {note}"))
    return 0


COMMAND = Command(
    summary="Show the privacy guarantees of teachers trained with Opacus.",
    example="darrm teachers runs/demo/teachers --delta 1e-4",
    add_arguments=_add_arguments,
    run=_run,
)
