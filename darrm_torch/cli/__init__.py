"""The ``darrm`` command: plans, noise, readings of teachers, labels and students without a line of Python.

Exit status: 0 when it was done, 1 when it was checked and refused (a proof that fails, a budget that is spent, teachers
whose accountant is no guarantee), 2 for a mistake in the command or its files, 130 when it was stopped. What goes wrong
is one line, ``darrm: error: ...``. Files are written beside and moved into place, whole or not at all.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

from .. import __version__
from ..errors import (
    BudgetExceeded,
    DarrmError,
    InvalidArgument,
    LedgerError,
    PrivacyViolation,
    UnprovenPrivacy,
)
from . import label, ledger, noise, plan, recipe, student, teachers, verify
from .files import check_places
from .parser import Command, Parser, in_options, one_line, option_name
from .recipe import Recipe

__all__ = ["COMMANDS", "main"]

COMMANDS: dict[str, Command | Recipe] = {
    "demo": recipe.DEMO,
    "plan": plan.COMMAND,
    "noise": noise.COMMAND,
    "verify": verify.COMMAND,
    "teachers": teachers.COMMAND,
    "label": label.COMMAND,
    "ledger": ledger.COMMAND,
    "student": student.COMMAND,
    "reproduce": recipe.REPRODUCE,
}

_REFUSED = (PrivacyViolation, UnprovenPrivacy, BudgetExceeded)


def _build_parser(chosen: str | None) -> Parser:
    """The parser; only the chosen command's own is filled in."""
    parser = Parser(
        prog="darrm",
        description="Private labels from ensembles of differentially private teachers.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  darrm plan --teachers 11 --teacher 0.1,1e-5 --label-target 0.3,1e-4\n\n"
        "Exit status: 0 done, 1 refused (no proof, or over budget), 2 a mistake in the\n"
        "command or its files. Each command has --help with an example, and --json.",
        version=__version__,
    )
    commands = parser.add_subcommands(metavar="command", title="commands")
    for name, command in COMMANDS.items():
        own = Parser(
            description=command.summary,
            epilog=f"example:\n  {command.example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if isinstance(command, Command) and name == chosen:
            own.add_argument("--config", action="config", metavar="FILE", help="read options from YAML or JSON")
            command.add_arguments(own)
        commands.add_subcommand(name, own, help=command.summary)
        own.prog = f"darrm {name}"
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; the exit status is 0, 1 (refused), 2 (a mistake) or 130 (stopped).

    Args:
        arguments: without the name of the program; None: those of this process.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    chosen: Any = None
    try:
        command = COMMANDS.get(given[0]) if given else None
        if isinstance(command, Recipe):
            return command.run(given[1:])
        everything = _build_parser(given[0] if given else None).parse_args(given)
        chosen = everything[everything.subcommand]
        check_places(chosen)
        return COMMANDS[everything.subcommand].run(chosen)
    except DarrmError as error:
        message = in_options(one_line(error))
        if isinstance(error, InvalidArgument) and error.name.partition(".")[0] in (chosen or ()):
            message = option_name(error.name.partition(".")[0]) + message.removeprefix(error.name.partition(".")[0])
        if isinstance(error, LedgerError) and chosen is not None:
            message = f"{'--ledger' if 'ledger' in chosen else 'file'}: {message}"
        print(f"darrm: error: {message}", file=sys.stderr)
        return 1 if isinstance(error, _REFUSED) else 2
    except KeyboardInterrupt:
        print("darrm: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # whoever read has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (MemoryError, OverflowError) as error:
        print(f"darrm: error: a number is too large: {one_line(error) or 'out of memory'}", file=sys.stderr)
        return 2
    except Exception as error:  # a mistake that no check foresaw, or a defect of ours
        if os.environ.get("DARRM_TRACEBACK"):
            raise
        message = f"unexpected {type(error).__name__}: {one_line(error, 300)} (DARRM_TRACEBACK=1 shows where)"
        print(f"darrm: error: {message}", file=sys.stderr)
        return 2
