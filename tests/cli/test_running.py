"""Running a command: what goes wrong is one line on stderr and an exit status, never a traceback."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import darrm_torch as dt
from darrm_torch.cli.parser import Command
from darrm_torch.cli.running import run_command


def add_arguments(parser: Any) -> None:
    parser.add_argument("--label-target", type=float)
    parser.add_argument("--accept", nargs="+", default=[])
    parser.add_argument("--ledger")


def outcome(capsys: pytest.CaptureFixture[str], run: Callable[[Any], int], *arguments: str) -> tuple[int, str]:
    command = Command(summary="A test.", example="tool x", add_arguments=add_arguments, run=run, stopped="gave up")
    status = run_command(command, arguments, prog="tool x")
    captured = capsys.readouterr()
    assert captured.out == ""
    return status, captured.err


def raising(error: BaseException) -> Callable[[Any], int]:
    def run(options: Any) -> int:
        raise error

    return run


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (dt.InvalidArgument("label_target", "small", 3), 2, "tool: error: --label-target must be small, got 3\n"),
        (dt.InvalidArgument("label_target.delta", "0", 1), 2, "tool: error: --label-target.delta must be 0, got 1\n"),
        (dt.InvalidArgument("other", "small", 3), 2, "tool: error: other must be small, got 3\n"),
        (dt.UnprovenPrivacy("no proof", finding="gdp"), 1, "tool: error: no proof (--accept gdp)\n"),
        (dt.UnprovenPrivacy("no proof"), 1, "tool: error: no proof\n"),
        (dt.BudgetExceeded("too much"), 1, "tool: error: too much\n"),
        (dt.PrivacyViolation("not private"), 1, "tool: error: not private\n"),
        (dt.LedgerError("damaged"), 2, "tool: error: --ledger: damaged\n"),
        (KeyboardInterrupt(), 130, "tool: gave up\n"),
        (SystemExit(1), 130, "tool: gave up\n"),
        (MemoryError(), 2, "tool: error: a number is too large: out of memory\n"),
        (KeyError("a\nb"), 2, "tool: error: unexpected KeyError: 'a\\nb' (DARRM_TRACEBACK=1 shows where)\n"),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_an_error_is_one_line_and_a_status(
    capsys: pytest.CaptureFixture[str], error: BaseException, status: int, message: str
) -> None:
    assert outcome(capsys, raising(error)) == (status, message)


def test_a_traceback_is_shown_on_request(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("DARRM_TRACEBACK", "1")
    with pytest.raises(KeyError):
        outcome(capsys, raising(KeyError("x")))


def test_the_command_line_overrides_the_file_of_options(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "options.yaml").write_text("label_target: 1.5\nledger: kept\n")
    seen: list[Any] = []
    arguments = ("--config", str(tmp_path / "options.yaml"), "--label-target", "2")
    assert outcome(capsys, lambda options: seen.append(options) or 0, *arguments) == (0, "")
    assert (seen[0].label_target, seen[0].ledger) == (2.0, "kept")


def test_a_reader_that_has_gone_is_noticed_where_it_is_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the end of the interpreter the same error would be status 120."""
    read, write = os.pipe()
    os.close(read)
    with open(write, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        command = Command(
            summary="A test.", example="tool x", add_arguments=add_arguments, run=lambda _: print("x") or 0
        )
        assert run_command(command, (), prog="tool x") == 141


def test_half_a_character_in_a_file_of_options_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "options.json").write_text('{"ledger": "\\ud800"}')
    status, message = outcome(capsys, lambda options: 0, "--config", str(tmp_path / "options.json"))
    assert (status, message) == (2, "tool: error: argument --ledger=\\ud800: expected text, got half of a character\n")


def test_what_an_accountant_logs_is_not_shown() -> None:
    logged: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = logged.append  # type: ignore[method-assign]
    logger = logging.getLogger("absl")
    logger.addHandler(handler)
    command = Command(
        summary="", example="", add_arguments=add_arguments, run=lambda options: logger.warning("an order") or 0
    )
    try:
        assert run_command(command, [], prog="tool x") == 0
    finally:
        logger.removeHandler(handler)
    assert logged == []


CYCLE = """
from darrm_torch.cli.parser import Command
from darrm_torch.cli.running import run_command

class Found:
    def __del__(self):
        print("garbage was searched for")

cycle = [Found()]
cycle.append(cycle)
nothing = Command(summary="", example="", add_arguments=lambda parser: None, run=lambda options: 0, stopped="")
run_command(nothing, [], prog="tool") if "run" in __import__("sys").argv else None
"""


@pytest.mark.parametrize(("arguments", "found"), [((), "garbage was searched for\n"), (("run",), "")])
def test_the_process_of_a_command_ends_without_a_search_for_garbage(arguments: tuple[str, ...], found: str) -> None:
    """It takes Python more than a second where Torch and Lightning were imported."""
    ended = subprocess.run([sys.executable, "-c", CYCLE, *arguments], capture_output=True, text=True, check=True)
    assert ended.stdout == found
