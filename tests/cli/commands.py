"""What the tests of the command share: running it, command lines, and the check of a mistake."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from darrm_torch import cli

PAPER = ["--noise-multiplier", "12", "--sample-rate", "1/35", "--steps", "175"]


MODELS = ("teacher-0.pt", "teacher-1.pt", "teacher-2.pt")


WIDE = ("--models", "wide-0.pt", "wide-1.pt", "wide-2.pt", "--build", "nets_of_a_user:three")


ASK = ("label", "--inputs", "x.npy", "--models", *MODELS, "--build", "nets_of_a_user:build", "--delta", "1e-4",
       "--ledger", "labels.ledger", "--out", "y.npy")  # fmt: skip


LABEL = (*ASK[:9], "--allowance", "1", *ASK[9:])


GNMAX = (*ASK, "--models", *(f"plain-{file}" for file in MODELS), "--mechanism", "gnmax")


STUDENT = ("student", "--inputs", "x.npy", "--labels", "zeros.npy", "--build", "nets_of_a_user:build", "--out", "s.pt")


def said(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> str:
    assert cli.main(arguments) == status
    captured = capsys.readouterr()
    if status:
        assert captured.out == ""
        assert captured.err.count("\n") == 1
        assert captured.err.startswith("darrm: ")
        return captured.err
    return captured.out


def darrm(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "darrm_torch", *arguments], capture_output=True, text=True, **options)


def name_of(value: object) -> str:
    """A short name of a parametrized case."""
    return " ".join(value[:4]) if isinstance(value, tuple) else ""


def check_mistake(capsys: pytest.CaptureFixture[str], folder: Path, *arguments: str, words: str) -> None:
    """One line with ``words``, status 2, and no new file in ``folder``."""
    before = sorted(folder.iterdir())
    message = said(capsys, *arguments, status=2)
    assert message.startswith("darrm: error: ")
    assert words in message
    assert [
        path
        for path in folder.iterdir()
        if path not in before and path.suffix != ".ledger" and path.name != "__pycache__"
    ] == []
