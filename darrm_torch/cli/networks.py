"""The user's networks: TorchScript files, or weights for a network that a function builds."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import darrm_torch as dt

from ..errors import InvalidArgument
from ..limits import check_file, check_unpacked
from .parser import one_line

__all__ = ["build_network", "check_outputs", "competing", "find_function", "load_model", "modules_here", "result_of"]


def load_model(path: Path, build: str | None) -> Any:
    """Load a TorchScript file, or the weights of a file into the network that ``build`` returns."""
    import torch

    from ..teachers.checkpoints import load_weights

    if build is None:
        expected = "TorchScript files"
        check_unpacked("--models", check_file("--models", path, expected=expected), expected=expected)
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=".*torch.jit.load.* is deprecated")
                script = torch.jit.load(path, map_location="cpu")  # type: ignore[no-untyped-call]
            for weight in script.parameters():
                weight.requires_grad_(False)  # otherwise its copies are not leaves, and cannot be frozen
            return script
        except (RuntimeError, ValueError) as error:
            cure = f"Weights need --build MODULE:FUNCTION. {one_line(error, 80)}"
            raise InvalidArgument("--models", "TorchScript files", str(path), cure) from None
    network = build_network("--build", build)
    cure = (
        "Check that --build returns the network that was trained; unlike networks come as TorchScript, or as --votes."
    )
    try:
        load_weights(path, network, cure=cure)
    except InvalidArgument as error:
        name = "--models" if error.name == "file" else error.name
        raise InvalidArgument(name, error.expected, error.got, error.cure) from None
    except Exception as error:  # the user's network may override how weights are loaded
        cure = f"{type(error).__name__}: {one_line(error, 160)}"
        raise InvalidArgument("--models", f"weights of the network that {build} returns", str(path), cure) from None
    return network


@contextlib.contextmanager
def modules_here() -> Iterator[None]:
    """While the user's code runs, it can import modules of the working directory, as a script there can."""
    sys.path.insert(0, os.getcwd())
    try:
        yield
    finally:
        sys.path.pop(0)


def find_function(name: str, place: str) -> Any:
    """The user's ``MODULE:FUNCTION``."""
    module, _, function = place.partition(":")
    if not module or not function:
        raise InvalidArgument(name, "MODULE:FUNCTION", place, "For example mymodels:build.")
    try:
        with modules_here():
            return getattr(importlib.import_module(module), function)
    except (Exception, SystemExit) as error:  # the user's own code
        cure = f"{type(error).__name__}: {one_line(error)}. Modules are searched for here and among installed packages."
        raise InvalidArgument(name, "MODULE:FUNCTION", place, cure) from None


def result_of(name: str, place: str, what: str) -> Any:
    """What the user's ``MODULE:FUNCTION`` returns."""
    function = find_function(name, place)
    try:
        with modules_here():
            return function()
    except (Exception, SystemExit) as error:  # the user's own code
        cure = f"{type(error).__name__}: {one_line(error)}"
        raise InvalidArgument(
            name, f"MODULE:FUNCTION that returns {what} and needs no arguments", place, cure
        ) from None


def build_network(name: str, place: str) -> Any:
    """The network that the user's ``MODULE:FUNCTION`` returns."""
    from torch import nn

    network = result_of(name, place, "a network")
    if not isinstance(network, nn.Module):
        raise InvalidArgument(name, "a function that returns a torch.nn.Module", type(network).__name__)
    return network


def competing(model: Any, inputs: Any, classes: Sequence[int] | None, findings: Sequence[str] | None = None) -> int:
    """The number of classes that teachers vote between, from one teacher's output for one input."""
    from ..teachers.structures import rows_of

    how: dict[str, Any] = {"classes": classes, "findings": findings, "ledger": dt.PrivacyLedger()}
    alone = dt.PrivateMajorityEnsemble([model], dt.NoiseFreeMajority(), **how)
    return int(alone.sensitive_counts(rows_of(inputs, [0])).shape[-1])


def check_outputs(network: Any, inputs: Any, classes: int | None) -> int:
    """Check that a network accepts the input and has one output for each class; returns the number of classes."""
    import torch

    from ..teachers.structures import call, logits_of, tensors_of

    training = network.training
    try:
        with torch.no_grad():
            outputs = tuple(logits_of(call(network.eval(), inputs)).shape)
    except Exception as error:  # the user's network, or inputs that do not fit it
        expected, cure = "inputs that the network of --build accepts", one_line(error, 160)
        got = ", ".join(f"{tuple(part.shape[1:])}" for _, part in tensors_of(inputs))
        raise InvalidArgument("--inputs", expected, got, cure) from None
    finally:
        network.train(training)
    if classes is None and (len(outputs) != 2 or outputs[1] < 2):
        raise InvalidArgument("--build", "a network with outputs (1, C) for one input, one for each class", outputs)
    if classes is not None and outputs != (1, classes):
        cure = "Set --classes to the number of outputs of the network."
        raise InvalidArgument("--classes", f"a network's outputs, (1, {classes}) for one input", outputs, cure)
    return int(outputs[1])
