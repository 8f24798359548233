"""Types as users see them: their script passes strict checkers, and wrong calls are reported."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "typing"
SCRIPTS = ("right.py", "wrong.py")
WRONG = {
    number
    for number, line in enumerate((FOLDER / "wrong.py").read_text(encoding="utf-8").splitlines(), start=1)
    if line.endswith("# wrong")
}


@pytest.mark.slow
@pytest.mark.first
def test_mypy_passes_a_users_script_and_reports_wrong_calls(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    options = [
        "--strict",
        "--ignore-missing-imports",
        "--config-file=",
        f"--cache-dir={tmp_path}",
        "--no-error-summary",
    ]
    command = [sys.executable, "-m", "mypy", *options, *SCRIPTS]
    # mypy does not see through the import hook of an editable installation.
    environment = {**os.environ, "MYPYPATH": str(FOLDER.parents[1])}
    result = subprocess.run(command, capture_output=True, text=True, cwd=FOLDER, env=environment, check=False)
    reported = re.findall(r"^(\w+\.py):(\d+): error", result.stdout, re.MULTILINE)  # the package has its own settings
    assert {int(line) for file, line in reported if file == "wrong.py"} == WRONG, result.stdout + result.stderr
    assert not [line for file, line in reported if file == "right.py"], result.stdout


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("node"), reason="pyright needs node")
def test_pyright_passes_a_users_script_and_reports_wrong_calls() -> None:
    pytest.importorskip("pyright")
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson", *SCRIPTS]
    result = subprocess.run(command, capture_output=True, text=True, cwd=FOLDER, check=False)
    if not result.stdout.startswith("{"):
        pytest.skip("pyright could not be started: it is fetched at its first use")
    errors = [error for error in json.loads(result.stdout)["generalDiagnostics"] if error["severity"] == "error"]
    lines = {
        name: {e["range"]["start"]["line"] + 1 for e in errors if Path(e["file"]).name == name} for name in SCRIPTS
    }
    assert lines == {"right.py": set(), "wrong.py": WRONG}, errors
