"""What every command line of ``darrm`` has in common: one error in one line, and what a command is."""

from __future__ import annotations

import argparse
import difflib
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import jsonargparse

from ..errors import DarrmError

__all__ = ["Command", "Parser", "UsageError", "in_options", "one_line", "option_name", "option_names", "typed"]


@dataclass(frozen=True, kw_only=True)
class Command:
    """One command of ``darrm``.

    Attributes:
        summary: what it does.
        example: a command line, as the help shows it.
        add_arguments: fills its parser.
        run: does it with what was read, and says the exit status.
    """

    summary: str
    example: str
    add_arguments: Callable[[Any], None]
    run: Callable[[Any], int]


class Parser(jsonargparse.ArgumentParser):
    """Says what is wrong in one line."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._negative_number_matcher = re.compile(r"-\.?\d")  # -0.1,1e-4 is a value, if a wrong one, and no option

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """To whoever called :func:`darrm_torch.cli.main`."""
        raise UsageError(_in_words(one_line(message), self)) from None


class UsageError(DarrmError):
    """A command line that cannot be read."""


def one_line(message: object, most: int = 10_000) -> str:
    """Without breaks, whatever a library says; cut between words to ``most`` characters, and seen to be."""
    return textwrap.shorten(str(message), most, placeholder=" ...")


def _in_words(message: str, parser: argparse.ArgumentParser) -> str:
    """The parser's message with options as they are typed, and a cure."""
    cure = f"see {parser.prog} --help"
    if found := re.match(r'Parser key "([\w.]+)": Expected an? <class \'(\w+)\'>. Got value: (.*)', message):
        kind = {"int": "an integer", "float": "a number"}.get(found[2], found[2])
        return f"{option_name(found[1])} must be {kind}, got {found[3]!r} ({cure})"
    if found := re.match(r"the following arguments are required: (.*)", message):
        command = f"{found[1].partition('.')[0]} " if "." in found[1] else ""
        return f"missing {', '.join(map(option_name, found[1].split(', ')))} (see darrm {command}--help)"
    if "subcommand" in message:
        return f"no command is given ({cure})"
    unknown = re.match(r"unrecognized arguments: (\S+)|.*invalid choice: '([^']*)'", message)
    if unknown:
        known = [option for action in parser._actions for option in action.option_strings]
        known += [name for action in parser._actions for name in action.choices or ()]
        near = difflib.get_close_matches((unknown[1] or unknown[2]).split("=")[0], known, n=1)
        cure = f"did you mean {near[0]}?" if near else cure
    return f"{message} ({cure})"


def in_options(message: str) -> str:
    """What the library says of its arguments, as it is typed."""
    for argument, option in ((r'accept=\["(\w+)"\]', r"--accept \1"), (r"\(overlap\)", "(--overlap)")):
        message = re.sub(argument, option, message)
    return message


def option_name(key: str) -> str:
    """As it is typed: ``label_target`` is ``--label-target``."""
    name = key.rpartition(".")[2]
    return name if name in _POSITIONAL else "--" + name.replace("_", "-")


def option_names(names: Sequence[str]) -> str:
    """All of them, as they are typed."""
    return ", ".join(map(option_name, names))


def typed(options: Mapping[str, Any]) -> str:
    """Options with their values, as they are typed."""
    values = {name: value if isinstance(value, list) else [value] for name, value in options.items()}
    return " ".join(f"{option_name(name)} {' '.join(map(str, value))}" for name, value in values.items())


_POSITIONAL = ("file", "sources")
