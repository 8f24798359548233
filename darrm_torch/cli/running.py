"""Running a command: its options are read once, and whatever goes wrong is one line and an exit status."""

from __future__ import annotations

import argparse
import atexit
import gc
import logging
import os
import sys
import warnings
from collections.abc import Sequence

from ..errors import (
    BudgetExceeded,
    DarrmError,
    InvalidArgument,
    LabelWarning,
    LedgerError,
    PrivacyViolation,
    UnprovenPrivacy,
)
from ..files import owner_unmasked
from ..interrupts import persistent_interrupts
from .files import check_places, options_in_file
from .parser import Command, Parser, one_line, option_name

__all__ = ["run_command"]

_REFUSED = (PrivacyViolation, UnprovenPrivacy, BudgetExceeded)


@owner_unmasked()
def run_command(command: Command, arguments: Sequence[str] | None = None, *, prog: str) -> int:
    """Run a command.

    Args:
        command: what to run.
        arguments: its command line, without the name of the program; None: that of this process.
        prog: the name of the program; its first word begins every message.

    Returns:
        0 (done), 1 (refused), 2 (a mistake in the command line or its files) or 130 (stopped).
    """
    name, options = prog.partition(" ")[0], argparse.Namespace()
    atexit.register(gc.freeze)  # otherwise Python searches all that Torch has loaded for garbage: a second or two
    logging.getLogger("absl").setLevel(logging.ERROR)  # dp_accounting warns of the orders that it leaves out
    parser = Parser(prog=prog, description=command.summary, epilog=f"example:\n  {command.example}")
    parser.add_argument("--config", metavar="FILE", help="read options from a YAML or JSON file")
    try:
        command.add_arguments(parser)
        given = sys.argv[1:] if arguments is None else arguments
        options = parser.read(_with_file_of_options(given))
        check_places(vars(options))
        with persistent_interrupts(), warnings.catch_warnings():
            warnings.showwarning = lambda text, *_: print(f"{name}: warning: {one_line(text)}", file=sys.stderr)
            for reported in ("cannot be paid", "are hardly"):  # by an error, and by `darrm label`
                warnings.filterwarnings("ignore", message=f"the labels {reported}", category=LabelWarning)
            try:
                status = command.run(options)
                sys.stdout.flush()  # here, where a reader that has gone is expected
                return status
            except SystemExit:  # Lightning turns Ctrl-C into it
                raise KeyboardInterrupt from None
    except DarrmError as error:
        print(f"{name}: error: {one_line(_message(error, options))}", file=sys.stderr)
        return 1 if isinstance(error, _REFUSED) else 2
    except KeyboardInterrupt:
        print(f"{name}: {command.stopped}", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of the output has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141  # as a shell reports it: 0 would say that a claim holds
    except (MemoryError, OverflowError) as error:
        print(f"{name}: error: a number is too large: {one_line(error) or 'out of memory'}", file=sys.stderr)
        return 2
    except Exception as error:  # a mistake that no check expects, or a defect of this package
        if os.environ.get("DARRM_TRACEBACK"):
            raise
        message = f"unexpected {type(error).__name__}: {one_line(error, 300)} (DARRM_TRACEBACK=1 shows where)"
        print(f"{name}: error: {message}", file=sys.stderr)
        return 2


def _with_file_of_options(arguments: Sequence[str]) -> list[str]:
    """The options in the file that ``--config`` names, before those of the command line, which override them."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config", nargs="?")
    file = parser.parse_known_args(arguments)[0].config
    return [*([] if file is None else options_in_file("--config", file)), *arguments]


def _message(error: DarrmError, options: argparse.Namespace) -> str:
    """What an error says, with the library's arguments named as the options that the user typed."""
    if isinstance(error, InvalidArgument):
        argument, dot, field = error.name.partition(".")
        key = argument.replace("-", "_")
        if key == "target" and key not in options:  # the library's name of what may cost so much
            key = next((name for name in ("label_target", "total_target") if getattr(options, name, None)), key)
        if key in options:
            return str(InvalidArgument(option_name(key) + dot + field, error.expected, error.got, error.cure))
    if isinstance(error, UnprovenPrivacy) and error.finding is not None and "accept" in options:
        return f"{error} (--accept {error.finding})"
    if isinstance(error, LedgerError):
        return f"{'--ledger' if 'ledger' in options else 'file'}: {error}"
    return str(error)
