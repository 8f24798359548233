"""Bars on a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from tests.cli.commands import darrm


def on_a_terminal(*command: str) -> tuple[str, str]:
    """What Python prints, and what a terminal of 80 columns shows besides."""
    terminal, stderr = pty.openpty()
    fcntl.ioctl(stderr, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
    result = subprocess.run([sys.executable, *command], stdout=subprocess.PIPE, stderr=stderr, text=True, check=True)
    os.write(stderr, b"\n")  # so that there is something to read
    shown = os.read(terminal, 1 << 16).decode()
    os.close(stderr)
    os.close(terminal)
    return result.stdout, shown


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
    code = "import time; from darrm_torch.cli.showing import progress\nwith progress({}, 'proof'): time.sleep({})"
    _, shown = on_a_terminal("-c", code.format(None, 3.5))
    assert {"proof 00:01", "proof 00:02"} <= set(re.findall(r"proof 00:\d\d", shown))
    _, shown = on_a_terminal("-c", code.format(9, 3.5))
    assert "| 0/9 [00:02" in shown
    _, shown = on_a_terminal("-c", code.format(None, 0.5))
    assert "proof" not in shown
