"""The command as a whole: help, version, interruption, pipes, and what no check foresaw."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import darrm_torch as dt
from darrm_torch import cli
from darrm_torch.planning.beliefs import typical_votes
from tests.cli.commands import PAPER, check_mistake, name_of, said
from tests.processes import HANGS, running


def test_what_no_check_foresaw_is_one_line_too(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for raised, words in ((MemoryError(), "a number is too large: out of memory"), (KeyError("x"), "KeyError: 'x'")):

        def fails(text: str, raised: Exception = raised) -> None:
            raise raised

        monkeypatch.setattr(dt.NoiseFunction, "from_json", fails)
        (folder / "n.json").write_text("{}")
        assert words in said(capsys, "verify", "n.json", status=2)
    monkeypatch.setenv("DARRM_TRACEBACK", "1")
    with pytest.raises(KeyError):
        cli.main(["verify", "n.json"])


def test_the_version_is_shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        cli.main(["--version"])
    assert capsys.readouterr().out == f"darrm {dt.__version__}\n"


@pytest.mark.parametrize("command", [(), *((name,) for name in cli.COMMANDS)])
def test_help_has_an_example_in_80_columns(
    folder: Path, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    with contextlib.suppress(SystemExit):
        cli.main([*command, "--help"])
    text = capsys.readouterr().out
    assert f"example:\n  darrm {' '.join(command)}" in text
    assert "--json" in text
    assert max(map(len, text.splitlines())) <= 80
    assert f"usage: {' '.join(['darrm', *command])} [-h]" in text or command[:1] in (("demo",), ("reproduce",))


def test_help_shows_the_defaults(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    belief = typical_votes(2)
    assert isinstance(belief, dt.BetaVotes)
    defaults = {
        "plan": f"of private teachers beta:{belief.a},{belief.b}: right",
        "noise": "default: independent:0.75: each",
    }
    for command, default in defaults.items():
        with contextlib.suppress(SystemExit):
            cli.main([command, "--help"])
        assert default in " ".join(capsys.readouterr().out.split())


def test_it_can_be_stopped_while_it_starts() -> None:
    code = """
import sys
class Stop:
    def find_spec(self, name, *more):
        if name == "argparse":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Stop())
from darrm_torch.__main__ import main
sys.exit(main())
"""
    result = subprocess.run([sys.executable, "-c", code, "noise"], capture_output=True, text=True)
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "darrm: stopped\n")


SOLVES_FOR_EVER = """
import os, sys
import darrm_torch.planning.builders as builders
from darrm_torch.__main__ import main

solve = builders.optimize_noise

def again(*arguments, **options):
    os.write(2, b"solving\\n")
    while True:
        solve(*arguments, **options)

builders.optimize_noise = again
sys.exit(main())
"""


@pytest.mark.slow
def test_ctrl_c_from_a_terminal(folder: Path) -> None:
    """While the solver works, in its own code or in ours."""
    command = [sys.executable, "-c", SOLVES_FOR_EVER, "plan", "--teachers", "31", *PAPER, "--overlap", "3",
               "--label-target", "0.1,1e-4", "--agreement", "0.95", "--plot", "plan.png"]  # fmt: skip
    with running(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder) as process:
        assert process.stderr.readline() == "solving\n"
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=HANGS)
    assert (process.returncode, out, error) == (130, "", "darrm: stopped\n")
    assert list(folder.iterdir()) == []


@pytest.mark.slow
def test_a_reader_that_has_enough_is_no_error(folder: Path) -> None:
    command = f"{sys.executable} -m darrm_torch plan --teachers 3 --teacher 0.1 --label-target 0.1"
    pipe = f"{command} --json | head -c 1; echo; echo ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", pipe], capture_output=True, text=True, check=True)
    start, status = result.stdout.split()
    assert start == "{"
    assert status in ("0", "141")  # 0 where all of the output was written before it was closed
    assert result.stderr == ""


def test_the_command_is_installed(folder: Path) -> None:
    result = subprocess.run([Path(sys.executable).parent / "darrm", "verify", "x"], capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("darrm: error: file must be")


MISTAKES = [
    ((), "--help"),
    (("pln",), "Did you mean plan?"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "words"), MISTAKES, ids=name_of)
def test_a_mistake_is_one_line_that_names_it(
    trained: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    check_mistake(capsys, trained, *arguments, words=words)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("darrm au", {"audit"}),
        ("darrm verify --j", {"--json"}),
        ("darrm audit --mechanism gn", {"gnmax", "gnmax-label"}),
    ],
)
def test_completion_in_the_shell(line: str, expected: set[str], tmp_path: Path) -> None:
    pytest.importorskip("argcomplete")
    shell = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\n", "_ARGCOMPLETE_SUPPRESS_SPACE": "1"}
    asked = {**os.environ, **shell, "COMP_LINE": line, "COMP_POINT": str(len(line))}
    command = f"exec {shlex.quote(sys.executable)} -m darrm_torch 8>answer 9>/dev/null"
    subprocess.run(["bash", "-c", command], env=asked, cwd=tmp_path, check=True)
    assert set((tmp_path / "answer").read_text().split()) == expected
