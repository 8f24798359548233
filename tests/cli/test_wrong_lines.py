"""Wrong command lines: each command refuses every one of them in one line, within seconds, and writes nothing.

The lines build themselves: each option of a command that takes a value gets each wrong value, in a line that is right
otherwise; and options are left out, repeated, misspelt and mixed with those of other commands.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from darrm_torch import cli
from darrm_torch.cli.parser import Parser
from tests.cli.commands import LABEL, STUDENT

SECONDS = 5

# Right lines, which end before they do anything: each takes one wrong option or value more.
RIGHT = {
    "audit": ("audit", "--mechanism", "gnmax", "--teachers", "3", "--label-target", "1,1e-5", "--overlap", "1"),
    "demo": ("demo",),
    "design": ("design", "--records", "1000", "--total", "1,1e-5", "--sample-rate", "1/20", "--steps", "10"),
    "label": LABEL,
    "ledger": ("ledger", "none.ledger"),
    "noise": ("noise", "--teachers", "3", "--teacher", "0.1,1e-5", "--target", "0.3,1e-4"),
    "plan": ("plan", "--teachers", "3", "--teacher", "0.1,1e-5", "--label-target", "0.3,1e-4"),
    "reproduce": ("reproduce", "losses"),
    "student": STUDENT,
    "teachers": ("teachers", *(f"teacher-{number}.pt" for number in range(3))),
    "verify": ("verify", "x.npy"),
}
NUMBERS = ("abc", "", "nan", "-1", "0", "-inf", "9" * 400, "1/0", "0x10", "1,2", "--", "None", "\x00", "½")
TEXTS = ("", "none", "a\nb", "x" * 5000, "../..", "/dev/null", "/proc/self/mem", ".", "\udcff", "nan,nan", "-1,1e-5")
RECIPES = ("demo", "reproduce")  # their values are checked by the recipes, after they have loaded their data


def options_of(command: str) -> dict[str, argparse.Action]:
    """The options of a command that take a value, by name."""
    parser = Parser(prog=command)
    cli.COMMANDS[command].add_arguments(parser)
    return {
        action.option_strings[0]: action for action in parser._actions if action.option_strings and action.nargs != 0
    }


def wrong_lines(command: str, count: int) -> Iterator[tuple[str, ...]]:
    """So many lines, drawn with a fixed seed, each with something that no line of this command may have."""
    draw, right, options = random.Random(command), RIGHT[command], options_of(command)
    foreign = sorted({name for other in RIGHT for name in options_of(other)} - options.keys() - {"--config"})
    for _ in range(count):
        kind = draw.randrange(4 if command in RECIPES else 5)
        place = draw.randrange(1, len(right) + 1)
        if kind == 0 or not options:
            yield (*right, draw.choice(foreign), draw.choice(NUMBERS + TEXTS))
        elif kind == 1:
            name = draw.choice(sorted(options))
            yield (*right, f"{name}x", "1")
        elif kind == 2:
            yield (*right[:place], "--no-such-option", *right[place:])
        elif kind == 3:
            yield (*right, draw.choice([name for name in sorted(options) if options[name].nargs != "*"]))  # no value
        else:
            numeric = [name for name, action in options.items() if getattr(action.type, "__name__", "") != "<lambda>"]
            numeric = [name for name in numeric if options[name].type is not None]
            name = draw.choice(sorted(numeric or options))
            value = draw.choice([text for text in NUMBERS if text not in ("0", "-1") or "overlap" in name])
            yield (*right, f"{name}={'abc' if name == '--teacher' else value}")  # an infinite epsilon is no mistake


@pytest.mark.parametrize("command", sorted(RIGHT))
def test_every_wrong_line_is_refused_in_one_line(
    trained: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    np.save("votes.npy", np.zeros((3, 4), dtype=np.int64))
    before, problems = sorted(path.name for path in trained.iterdir()), []
    for line in wrong_lines(command, 200):
        began = time.process_time()
        status = cli.main(line)
        seconds, said = time.process_time() - began, capsys.readouterr()
        one_line = said.err.startswith("darrm: error: ") and said.err.count("\n") == 1 and len(said.err) < 2000
        if status != 2 or said.out or not one_line or "unexpected" in said.err or seconds > SECONDS:
            problems.append((line, status, round(seconds, 1), said.err[:200], said.out[:80]))
    assert problems == []
    assert sorted(path.name for path in trained.iterdir() if path.name != "__pycache__") == before


def test_each_command_has_a_right_line() -> None:
    assert RIGHT.keys() == cli.COMMANDS.keys()
