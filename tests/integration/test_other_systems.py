"""What other systems lack is taken away before the import: what works there, and what is refused plainly."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import multiprocessing, os, pathlib, signal, sys
import opacus, torch  # they look for what this system has

GONE = {
    os: "O_DIRECTORY O_NOFOLLOW O_NONBLOCK chown fchmod fdatasync fork forkpty getegid geteuid killpg mkfifo pread "
    "register_at_fork sched_getaffinity sched_setaffinity uname",
    signal: "ITIMER_REAL SIGALRM SIGHUP SIGKILL SIGPIPE setitimer",
}
for module, names in GONE.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
sys.modules |= dict.fromkeys(("fcntl", "resource", "termios"))
multiprocessing.get_all_start_methods = lambda: ["spawn"]

import darrm_torch as dt
from darrm_torch import cli
from tests.teachers.helpers import some_data, zeros

if __name__ == "__main__":
    inputs, labels = some_data(40)
    files = dt.train_teachers(
        pathlib.Path("teachers"),
        build_model=zeros,
        dataset=torch.utils.data.TensorDataset(inputs, labels),
        shards=dt.contiguous_shards(40, teachers=2),
        shard_size=20,
        settings=dt.TrainingSettings(batch_size=10, epochs=1),
        workers=1,
        progress=False,
    )
    assert [file.name for file in files] == ["teacher-000.pt", "teacher-001.pt"]
    assert len(dt.read_teachers(pathlib.Path("teachers"))) == 2
    assert cli.main(["noise", "--config", "options.yaml", "--out", "n.json"]) == 0
    with open("n.json", newline="") as file:
        text = file.read()
    with open("n.json", "w", newline="") as file:
        file.write(text.replace("\\n", "\\r\\n"))
    assert cli.main(["verify", "n.json"]) == 0
    label = ["label", "--inputs", "x.csv", "--models", "teachers", "--build", "tests.teachers.helpers:zeros"]
    label += ["--delta", "1e-4", "--mechanism", "noise-free", "--out", "y.csv", "--ledger", "labels"]
    assert cli.main(label) == 2
    ledger = dt.PrivacyLedger(cost=dt.PrivacyGuarantee(epsilon=0.1))
    assert ledger.answer([b"one"], lambda new: [1 for _ in new]) == [1]
"""


@pytest.mark.slow
def test_without_posix(tmp_path: Path) -> None:
    """Training starts each process anew, files may have CRLF, and a ledger file, which cannot be locked, is refused."""
    (tmp_path / "without_posix.py").write_text(SCRIPT)
    (tmp_path / "options.yaml").write_bytes(b"teachers: 3\r\nallowance: 1\r\n")
    (tmp_path / "x.csv").write_bytes(b"a,b,c,d\r\n" + b"0.5,1,0,2\r\n" * 5)
    environment = {"HOME": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "without_posix.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "a ledger file needs file locks, which this platform lacks. Use a ledger in memory" in done.stderr
