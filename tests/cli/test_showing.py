"""Bars on a terminal."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path

import pytest

from darrm_torch.cli.showing import progress
from tests.cli.commands import darrm
from tests.processes import running


def on_a_terminal(*command: str, enough: Callable[[str], bool] = lambda shown: False) -> tuple[str, str]:
    """What Python prints, and what a terminal of 80 columns shows besides; its input ends when that is ``enough``."""
    terminal, stderr = pty.openpty()
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": stderr, "text": True}
    with open(terminal, "rb", buffering=0) as screen:
        fcntl.ioctl(stderr, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
        with running([sys.executable, *command], **pipes) as process:
            os.close(stderr)
            shown = ""
            while part := read(screen.fileno()):  # also so that the process never waits for room
                shown += part
                if enough(shown):
                    process.stdin.close()
            out = process.stdout.read()
            assert process.wait() == 0
    return out, shown


def read(terminal: int) -> str:
    """What is shown next; nothing when the process that shows it has ended."""
    try:
        return os.read(terminal, 1 << 16).decode()
    except OSError:
        return ""


@pytest.mark.slow
def test_a_long_search_has_a_bar_on_a_terminal_only(folder: Path) -> None:
    """501 teachers take about 35 rounds and more than the second after which the bar comes."""
    command = ["noise", "--teachers", "501", "--teacher", "0.075,1e-4", "--target", "0.1,1e-4", "--out", "n.json"]
    out, shown = on_a_terminal("-m", "darrm_torch", *command)
    assert re.search(r"noise 00:0\d, delta over by \d\.\de-\d\d", shown)
    piped = darrm(*command)
    assert piped.stdout == out
    assert piped.stderr == ""


@pytest.mark.slow
def test_the_time_is_shown_also_while_nothing_moves(folder: Path) -> None:
    """A long proof is one piece, and so are a batch of slow models and the best strategy of many teachers."""
    code = "import sys; from darrm_torch.cli.showing import progress\nwith progress({}, 'proof'): sys.stdin.read()"
    for total, time in ((None, r"proof (\d\d:\d\d)"), (9, r"\| 0/9 \[(\d\d:\d\d)")):

        def moved_on(shown: str, time: str = time) -> bool:
            return len(set(re.findall(time, shown)) - {"00:00"}) >= 2

        _, shown = on_a_terminal("-c", code.format(total), enough=moved_on)
        assert moved_on(shown)


def test_what_takes_less_than_a_second_has_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock of the test's own: on a busy machine anything may take a second."""
    shown, now = Terminal(), [0.0]
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setattr("tqdm.std.time", lambda: now[0])
    with progress(None, "proof") as bar:
        for now[0] in (0.0, 0.9):
            bar.update()
            assert "proof" not in shown.getvalue()
        now[0] = 1.1
        bar.update()
        assert "proof 00:01" in shown.getvalue()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True
