"""A SuperLink and SuperNodes as processes on the loopback interface, killed at random points."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import darrm_torch as dt
from darrm_torch.labels.identity import input_digests
from tests.federated.process_apps import FOLDER, key_of, labeler, truth
from tests.processes import HANGS, free_port

pytest.importorskip("flwr")
pytest.importorskip("cryptography")
ROOT, BIN = Path(__file__).parents[2], Path(sys.executable).parent
PROJECT = """
[project]
name = "hospitals"
version = "1.0.0"
description = "Private labels from hospitals"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "consortium"
[tool.flwr.app.components]
serverapp = "hospitals.server:app"
clientapp = "hospitals.client:app"
[tool.flwr.app.config]
"""


class Federation:
    """The processes of a federation; each of them has the folder in its environment, by which it is found again."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder, self.sites, self.light = folder, settings["sites"], settings["light"]
        (folder / "settings.json").write_text(json.dumps(settings))
        (folder / "app" / "hospitals").mkdir(parents=True)
        (folder / "app" / "pyproject.toml").write_text(PROJECT)
        for side in ("client", "server"):
            text = f"from tests.federated import process_apps\n\napp = process_apps.{side}()\n"
            (folder / "app" / "hospitals" / f"{side}.py").write_text(text)
        (folder / "app" / "hospitals" / "__init__.py").touch()
        self.port = free_port()
        (folder / "flower").mkdir()
        connection = f'[superlink]\ndefault = "local"\n[superlink.local]\naddress = "127.0.0.1:{self.port}"\n'
        (folder / "flower" / "config.toml").write_text(connection + "insecure = true\n")
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.endswith("_proxy")},
            FOLDER: str(folder),
            "FLWR_HOME": str(folder / "flower"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "2",
            "OMP_NUM_THREADS": "1",
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
        }
        self.children: list[subprocess.Popen[bytes]] = []
        self.nodes: dict[int, int] = {}
        self.forking: subprocess.Popen[str] | None = None
        for number in range(self.sites):
            key_of(folder, number)

    def start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        with open(self.folder / f"{name}.log", "ab") as log:
            self.children.append(
                subprocess.Popen(command, env=self.environment, stdout=log, stderr=log, start_new_session=True)
            )
        return self.children[-1]

    def start_link(self) -> subprocess.Popen[bytes]:
        return self.start(
            "link", "flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(self.port),
            "--database", str(self.folder / "link.db"), "--disable-runtime-dependency-installation",
        )  # fmt: skip

    def start_site(self, number: int) -> None:
        """A SuperNode, the first of its process group."""
        how = ("--insecure", "--superlink", f"127.0.0.1:{self.port}", "--host", "127.0.0.1")
        if not self.light:
            where = ("--port", str(free_port()), "--node-config", f"site={number}")
            self.nodes[number] = self.start(f"site-{number}", "flower-supernode", *how, *where).pid
            return
        if self.forking is None:
            program = [sys.executable, "-m", "tests.federated.light_nodes", "--isolation", "process", *how]
            self.forking = subprocess.Popen(
                program, env=self.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
            )
        assert self.forking.stdin
        assert self.forking.stdout
        self.forking.stdin.write(f"{number} {free_port()}\n")
        self.forking.stdin.flush()
        self.nodes[number] = int(self.forking.stdout.readline())

    def dead_sites(self) -> list[int]:
        """The sites whose SuperNode has ended."""
        for child in self.children:
            child.poll()  # else it stays in the table of processes
        return [number for number, process in self.nodes.items() if not Path(f"/proc/{process}").exists()]

    def flower(self, *command: str) -> dict[str, Any]:
        """What a command of Flower's prints as JSON; empty where the SuperLink is not there yet."""
        words = ["flwr", *command, "--format", "json"]
        with contextlib.suppress(subprocess.TimeoutExpired, json.JSONDecodeError):
            output = subprocess.run(words, env=self.environment, capture_output=True, timeout=120, check=False).stdout
            return dict(json.loads(output))
        return {}

    def processes(self, *words: str) -> list[int]:
        """The federation's processes whose command has one of these words; of all, without words."""
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if not entry.name.isdigit() or entry.stat().st_uid != os.getuid():
                    continue
                command = (entry / "cmdline").read_bytes().decode(errors="replace")
                named = command and (not words or any(word in command for word in words))
                if named and f"{FOLDER}={self.folder}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
        return found

    def close(self) -> None:
        for _ in range(3):  # one may have been starting another
            for process in self.processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
        for child in self.children:
            child.wait(timeout=HANGS)
        if self.forking is not None:
            with self.forking:  # closes its pipes
                self.forking.kill()


@contextlib.contextmanager
def federation(folder: Path, **settings: Any) -> Iterator[Federation]:
    running = Federation(folder, **settings)
    try:
        yield running
    finally:
        running.close()


def run_with_kills(running: Federation, *, kills: int, pause: float, seconds: float, seed: int) -> dict[str, int]:
    """Label all inputs while processes are killed and started again; returns how many of each kind were killed.

    After the last kill all inputs are asked about once more, so that the labels of before are compared.
    """
    chance, killed = random.Random(seed), dict.fromkeys(("site", "SuperLink", "ServerApp"), 0)
    link = running.start_link()
    for number in range(running.sites):
        running.start_site(number)
    done, published = running.folder / "done", running.folder / "published.jsonl"
    end, next_kill, alive = time.monotonic() + seconds, 0.0, 0.0
    while not done.exists() or sum(killed.values()) < kills:
        now = time.monotonic()
        assert now < end, killed
        for number in running.dead_sites():  # a SuperNode ends where the SuperLink fails to answer it
            running.start_site(number)
        if running.processes("flwr-serverapp"):
            alive = now
        elif now > alive + 3 and not done.exists():
            started = running.flower("run", str(running.folder / "app"), "local")
            alive = time.monotonic() + (120 if started else 0)  # until its ServerApp is there
        if now > next_kill and published.exists() and sum(killed.values()) < kills:
            next_kill = now + chance.expovariate(1 / pause)
            kind = chance.choices(list(killed), [8, 0.5, 1])[0]
            killed[kind] += 1
            if kind == "site":
                number = chance.randrange(running.sites)
                with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
                    os.killpg(running.nodes[number], signal.SIGKILL)
                running.start_site(number)
            elif kind == "SuperLink":
                link.kill()
                link.wait()
                link = running.start_link()
            else:
                for process in running.processes("flwr-serverapp"):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process, signal.SIGKILL)
                alive = min(alive, now)
            if sum(killed.values()) == kills:
                done.unlink(missing_ok=True)
        time.sleep(1.0)
    return killed


def check(folder: Path, *, sites: int, inputs: int) -> float:
    """Ledger and published labels agree, each input has one label and is paid for once; returns their accuracy."""
    mine = labeler(folder, sites, inputs)
    text = io.StringIO()
    mine.ledger.export_json(text)
    stored: dict[str, int] = {}
    for charge in json.loads(text.getvalue())["charges"]:
        assert not set(charge["labels"]) & set(stored)
        stored |= charge["labels"]
    assert len(stored) == mine.ledger.count == inputs
    spent, budget = mine.ledger.spent(), mine.ledger.budget
    assert spent is not None
    assert budget is not None
    assert spent.epsilon <= budget.epsilon
    with pytest.raises(dt.BudgetExceeded):
        mine.check_budget([b"one more"])
    published: dict[int, int] = {}
    for line in (folder / "published.jsonl").read_text().splitlines():
        start, labels = json.loads(line)
        for place, label in enumerate(labels, start):
            assert published.setdefault(place, label) == label, "an input has two labels"
    keys = [key.hex() for key in input_digests(torch.arange(inputs))]
    assert [stored[key] for key in keys] == [published[place] for place in range(inputs)]
    return float(np.mean(np.array(list(dict(sorted(published.items())).values())) == truth(inputs)))


@pytest.mark.slow
@pytest.mark.first
def test_three_sites_two_kills(tmp_path: Path) -> None:
    with federation(tmp_path, light=False, sites=3, inputs=20, batch=5, patience=120) as running:
        run_with_kills(running, kills=2, pause=8.0, seconds=900, seed=0)
    check(tmp_path, sites=3, inputs=20)


@pytest.mark.slow
@pytest.mark.long
def test_thirty_one_sites_fifty_kills(tmp_path: Path) -> None:
    """A site is a SuperNode whose ClientApp runs in the same process; all are forked from one."""
    with federation(tmp_path, light=True, sites=31, inputs=1000, batch=100, patience=300) as running:
        killed = run_with_kills(running, kills=50, pause=float(os.environ.get("PAUSE", "10")), seconds=7200, seed=1)
    print(killed, check(tmp_path, sites=31, inputs=1000))
