"""What every command line of ``darrm`` shares: what a command is, and a parser that reports a mistake in one line."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from ..errors import DarrmError

__all__ = [
    "Command",
    "Parser",
    "UsageError",
    "complete",
    "one_line",
    "one_of",
    "option_name",
    "option_names",
    "require",
    "typed",
]


@dataclass(frozen=True, kw_only=True)
class Command:
    """One command of ``darrm``.

    Attributes:
        summary: one sentence for the help.
        example: a command line for the help.
        add_arguments: adds the command's options to a parser.
        run: carries out the options that were read and returns the exit status.
        stopped: the line that Ctrl-C prints.
    """

    summary: str
    example: str
    add_arguments: Callable[[Any], None]
    run: Callable[[Any], int]
    stopped: str = "stopped"


class UsageError(DarrmError):
    """A command line that cannot be read."""


class Parser(argparse.ArgumentParser):
    """Reports every mistake as a :class:`UsageError` of one line, and suggests the option that was probably meant."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(
            formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, exit_on_error=False, **settings
        )
        self._negative_number_matcher = re.compile(r"-\.?\d")  # -0.1,1e-4 is a (wrong) value, not an option
        self.register("type", int, _read_as(int, "an integer"))
        self.register("type", float, _read_as(float, "a number"))

    def read(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Read a command line; anything that cannot be read is a :class:`UsageError`."""
        for word in arguments:
            try:
                os.fsencode(word)
            except UnicodeEncodeError:  # half a character, from a file of options
                raise UsageError(one_line(f"argument {word[:100]}: expected text, got half of a character")) from None
            if word.startswith("--") and word.endswith("=--"):  # argparse would make a list of it
                raise UsageError(f"argument {word.partition('=')[0]}: expected a value, got '--'")
        try:
            chosen, unknown = self.parse_known_args(arguments)
        except argparse.ArgumentError as error:
            raise UsageError(one_line(f"{error.argument_name} {error.message}")) from None
        if unknown:
            hint = _nearest(unknown[0].partition("=")[0], self._option_string_actions) or f"See {self.prog} --help."
            raise UsageError(one_line(f"unrecognized arguments: {' '.join(unknown)}. {hint}"))
        return chosen

    def error(self, message: str) -> NoReturn:
        """Raise instead of leaving the process."""
        raise UsageError(one_line(f"{message} (see {self.prog} --help)")) from None


def _read_as(kind: type[int] | type[float], expected: str) -> Callable[[str], float]:
    def read(text: str) -> float:
        try:
            return kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be {expected}, got {text!r}") from None

    return read


def one_of(*names: str) -> Callable[[str], str]:
    """A type of arguments: one of these names."""

    def read(text: str) -> str:
        if text not in names:
            message = f"must be one of {', '.join(names)}, got {text!r}. {_nearest(text, names)}"
            raise argparse.ArgumentTypeError(message.rstrip())
        return text

    read.names = names  # type: ignore[attr-defined]  # for completion
    return read


def complete(commands: Mapping[str, Command]) -> None:
    """Answer a shell that asks argcomplete for completions, and leave the process; return without argcomplete."""
    parser, words = Parser(prog="darrm"), os.environ.get("COMP_LINE", "").split()
    places = parser.add_subparsers()
    for name, command in commands.items():
        part = places.add_parser(name)
        if name in words[1:2]:
            command.add_arguments(part)
            for action in part._actions:
                action.choices = action.choices or getattr(action.type, "names", None)
    with contextlib.suppress(ImportError):
        import argcomplete

        argcomplete.autocomplete(parser, always_complete_options="long")


def _nearest(text: str, names: Iterable[str]) -> str:
    """A question that names the most similar of ``names``; empty if none is similar."""
    similar = difflib.get_close_matches(text, list(names), n=1)
    return f"Did you mean {similar[0]}?" if similar else ""


def one_line(message: object, limit: int = 1500) -> str:
    """A message without line breaks; one longer than ``limit`` characters is cut between words and marked."""
    text = " ".join(str(message).encode("utf-8", "backslashreplace").decode().split())
    cut = text[: limit - 4]
    return text if len(text) <= limit else f"{cut[: cut.rfind(' ')] if ' ' in cut else cut} ..."


def require(command: str, given: Mapping[str, Sequence[object]]) -> None:
    """Refuse a command line that lacks options, and name all that are missing.

    Args:
        command: its name.
        given: what the user has to give, as it is typed, with the values of the options that count as giving it.
    """
    missing = [name for name, values in given.items() if all(value is None for value in values)]
    if missing:
        raise UsageError(f"the following arguments are required: {'; '.join(missing)} (see darrm {command} --help)")


def option_name(key: str) -> str:
    """The option as it is typed: ``label_target`` is ``--label-target``."""
    return key if key in _POSITIONAL else "--" + key.replace("_", "-")


def option_names(keys: Sequence[str]) -> str:
    """Several options as they are typed."""
    return ", ".join(map(option_name, keys))


def typed(options: Mapping[str, Any]) -> str:
    """Options with their values as they are typed."""
    values = {key: value if isinstance(value, list) else [value] for key, value in options.items()}
    return " ".join(f"{option_name(key)} {' '.join(map(str, value))}" for key, value in values.items())


_POSITIONAL = ("file", "names", "sources")
