"""Every command as a user whom the system does not know and who can write to no home folder, as in containers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.commands import LABEL, STUDENT

USER = 54321
# Such a process may read what root may, as the interpreter can lie in root's home, but write only what is its own.
MAY = "+dac_read_search"
SETPRIV = f"setpriv --reuid {USER} --regid {USER} --clear-groups --inh-caps={MAY} --ambient-caps={MAY}"
RUN = """
import json, sys
from darrm_torch import cli
if __name__ == "__main__":
    print(json.dumps([cli.main(line) for line in json.loads(sys.argv[1])]), file=sys.__stderr__)
"""
LINES = [
    ("noise", "--teachers", "3", "--teacher", "0.1", "--target", "0.2", "--out", "n.json", "--plot", "n.png"),
    ("verify", "n.json"),
    ("plan", "--teachers", "3", "--teacher", "0.5", "--label-target", "1,1e-5"),
    ("design", "--records", "5000", "--total", "1,1e-5", "--sample-rate", "0.05", "--steps", "100", "--teachers", "3"),
    ("audit", "--noise", "n.json", "--samples", "2000"),
    ("teachers", "."),
    LABEL,
    ("ledger", "labels.ledger"),
    (*STUDENT[:4], "y.npy", *STUDENT[5:]),
]
RECIPES = [
    ("demo", "--data", "mnist-5000", "--limit", "300", "--teachers", "3", "--epochs", "1", "--queries", "20"),
    ("reproduce", "gaussian"),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("home", "lines"),
    [("read-only", LINES), pytest.param(None, [*LINES, *RECIPES], marks=pytest.mark.long)],
    ids=["read-only", "none"],
)
def test_every_command_works_without_a_home(trained: Path, home: str | None, lines: list[tuple[str, ...]]) -> None:
    pytest.importorskip("mlxtend")
    if not hasattr(os, "geteuid") or os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("only root can become another user")
    if subprocess.run([*SETPRIV.split(), "true"], check=False, capture_output=True).returncode:
        pytest.skip("root may not become another user here")
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(__file__).parents[2])}
    (trained / "home").mkdir(mode=0o555)
    if home is not None:
        environment["HOME"] = str(trained / "home")
    for path in (trained, *trained.rglob("*")):
        if path.name != "home":
            os.chown(path, USER, USER)
    (trained / "run.py").write_text(RUN)
    command = [*SETPRIV.split(), sys.executable, "run.py", json.dumps(lines)]
    done = subprocess.run(command, cwd=trained, env=environment, capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1:] == [json.dumps([0] * len(lines))], done.stderr[-3000:]
    assert "Traceback" not in done.stderr
    assert "the noise function is not stored" in done.stderr
    assert list((trained / "home").iterdir()) == []
