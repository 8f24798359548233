"""The user's networks: loaded with their weights, or refused with what their own code said."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import darrm_torch as dt
from darrm_torch.cli.networks import build_network, check_outputs, competing, load_model
from tests.cli.commands import MODELS


def test_weights_go_into_the_network_of_the_user(trained: Path) -> None:
    bare, wrapped = (load_model(trained / file, "nets_of_a_user:build") for file in (f"plain-{MODELS[1]}", MODELS[1]))
    inputs = torch.rand(5, 4)
    assert torch.equal(bare(inputs), wrapped(inputs))
    assert not torch.equal(bare(inputs), load_model(trained / MODELS[2], "nets_of_a_user:build")(inputs))


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("nets_of_a_user", "MODULE:FUNCTION, got 'nets_of_a_user'. For example mymodels:build."),
        ("nets_of_a_user:", "MODULE:FUNCTION, got"),
        ("no_such_module:build", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("nets_of_a_user:nothing", "AttributeError"),
        ("nets_of_a_user:broken", "needs no arguments, got 'nets_of_a_user:broken'. RuntimeError: no"),
        ("sys:exit", "needs no arguments, got 'sys:exit'. SystemExit"),
        ("nets_of_a_user:number", "a function that returns a torch.nn.Module, got 'int'"),
    ],
)
def test_what_builds_no_network_is_refused(trained: Path, place: str, message: str) -> None:
    with pytest.raises(dt.InvalidArgument) as caught:
        build_network("--build", place)
    assert str(caught.value).startswith("--build must be ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("file", "build", "message"),
    [
        (MODELS[0], None, "TorchScript files.*Weights need --build MODULE:FUNCTION"),
        (MODELS[0], "nets_of_a_user:three", "Check that --build returns the network that was trained"),
        ("junk.pt", "nets_of_a_user:build", "^--models must be"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(trained: Path, file: str, build: str | None, message: str) -> None:
    with pytest.raises(dt.InvalidArgument, match=message):
        load_model(trained / file, build)


@pytest.mark.parametrize(
    ("network", "classes", "expected"),
    [(nn.Linear(4, 1), None, 2), (nn.Linear(4, 5), (1, 3), 2), (nn.Linear(4, 5), None, 5)],
)
def test_classes_are_the_outputs_or_the_chosen_ones(network: Any, classes: Any, expected: int) -> None:
    assert competing(network, torch.rand(3, 4), classes) == expected


def test_outputs_are_checked_and_the_mode_is_kept() -> None:
    for network in (nn.Linear(4, 2).train(), nn.Linear(4, 2).eval()):
        mode = network.training
        check_outputs(network, torch.rand(1, 4), 2)
        with pytest.raises(dt.InvalidArgument, match=r"^--classes must be a network's outputs, \(1, 3\) for one input"):
            check_outputs(network, torch.rand(1, 4), 3)
        with pytest.raises(dt.InvalidArgument, match=r"^--inputs must be inputs that the network of --build accepts"):
            check_outputs(network, torch.rand(1, 5), 2)
        assert network.training == mode


def test_the_users_function_can_import_its_own_modules(trained: Path) -> None:
    (trained / "parts_of_a_user.py").write_text("from torch import nn\n\nhead = lambda: nn.Linear(4, 2)\n")
    (trained / "late_nets_of_a_user.py").write_text(
        "def build():\n    from parts_of_a_user import head\n    return head()\n"
    )
    before = [*sys.path]
    assert isinstance(build_network("--build", "late_nets_of_a_user:build"), nn.Linear)
    assert sys.path == before
