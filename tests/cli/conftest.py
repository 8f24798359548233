"""Folders with the files that a user of the command has."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.register_assert_rewrite("tests.cli.commands")

NETS = """
import torch

def build():
    return torch.nn.Linear(4, 2)

def three():
    return torch.nn.Linear(4, 3)

def number():
    return 3

class Stopped(torch.nn.Linear):
    def forward(self, inputs):
        if self.training:
            raise KeyboardInterrupt
        return super().forward(inputs)

def stopped():
    return Stopped(4, 2)

def broken():
    raise RuntimeError("no")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    # Help and bars take the width of the terminal, which must not depend on where the tests run.
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


@pytest.fixture
def trained(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three teachers' files as Opacus writes them, for two classes and for three, inputs, and a module of networks."""
    import torch

    (folder / "nets_of_a_user.py").write_text(NETS)
    monkeypatch.delitem(sys.modules, "nets_of_a_user", raising=False)
    for number in range(3):
        torch.manual_seed(number)
        history = {"history": [(4.0, 0.1, 10)], "mechanism": "prv"}
        for name, outputs in (("teacher", 2), ("wide", 3)):
            weights = torch.nn.Linear(4, outputs).state_dict()
            state = {f"_module.{key}": value for key, value in weights.items()}
            torch.save({"module_state_dict": state, "privacy_accountant_state_dict": history}, f"{name}-{number}.pt")
            torch.save(weights, f"plain-{name}-{number}.pt")
    np.save("x.npy", np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32))
    np.save("three.npy", np.zeros((5, 3), dtype=np.float32))
    np.save("zeros.npy", np.zeros(30, dtype=np.int64))
    np.save("ones.npy", np.ones(5, dtype=np.int64))
    np.savez("one.npz", np.load("x.npy"))
    np.savez("two.npz", a=np.zeros(3), b=np.zeros(3))
    (folder / "junk.pt").write_text("hello\n")
    (folder / "empty").mkdir()
    (folder / "run" / "teachers").mkdir(parents=True)
    (folder / "run" / "teachers" / "teacher-000.pt").touch()
    return folder
