"""The ``darrm`` command: plan, compute noise, read teachers, label and train a student without writing Python.

Exit status: 0 done; 1 checked and refused (a proof that fails, a spent budget, teachers whose accountant is no
guarantee); 2 a mistake in the command line or its files; 130 stopped. A failure prints one line, ``darrm: error: ...``.
Files are written to a temporary name and then moved, so each is there whole or not at all.

Commands take public names from ``darrm_torch`` itself, as users do: each is loaded when it is first used. Other slow
modules are imported where a command needs them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from .. import __version__
from . import audit, design, label, ledger, noise, plan, recipe, student, teachers, verify
from .parser import Command, complete, one_of
from .running import run_command

__all__ = ["COMMANDS", "main"]

COMMANDS: dict[str, Command] = {
    "demo": recipe.DEMO,
    "plan": plan.COMMAND,
    "design": design.COMMAND,
    "noise": noise.COMMAND,
    "verify": verify.COMMAND,
    "audit": audit.COMMAND,
    "teachers": teachers.COMMAND,
    "label": label.COMMAND,
    "ledger": ledger.COMMAND,
    "student": student.COMMAND,
    "reproduce": recipe.REPRODUCE,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; the exit status is 0, 1 (refused), 2 (a mistake) or 130 (stopped).

    Args:
        arguments: the command line without the name of the program; None: that of this process.
    """
    if "_ARGCOMPLETE" in os.environ and arguments is None:
        complete(COMMANDS)
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given and given[0] in COMMANDS:
        return run_command(COMMANDS[given[0]], given[1:], prog=f"darrm {given[0]}")
    return run_command(_OVERVIEW, given, prog="darrm")


def _add_arguments(parser: Any) -> None:
    lines = [f"  {name:<11}{command.summary}" for name, command in COMMANDS.items()]
    parser.epilog = "\n".join(
        [
            "commands:",
            *lines,
            f"\n{parser.epilog}\n",
            "Exit status: 0 done, 1 refused (no proof, or over budget), 2 a mistake in the",
            "command line or its files. Each command has --help with an example, and --json.",
        ]
    )
    parser.add_argument("--version", action="version", version=f"darrm {__version__}")
    parser.add_argument("command", type=one_of(*COMMANDS), help="one of those below")


_OVERVIEW = Command(
    summary="Private labels from ensembles of differentially private teachers.",
    example="darrm plan --teachers 11 --teacher 0.1,1e-5 --label-target 0.3,1e-4",
    add_arguments=_add_arguments,
    run=lambda options: main([options.command]),
)
