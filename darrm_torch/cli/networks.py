"""The user's networks: TorchScript, or weights for what a function makes."""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import InvalidArgument
from .parser import one_line

__all__ = ["build_network", "check_outputs", "competing", "load_model"]


def load_model(path: Path, build: str | None) -> Any:
    """A network: TorchScript, or what ``build`` makes with the weights of a file."""
    import torch

    from ..teachers.checkpoints import load_weights

    if build is None:
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=".*torch.jit.load.* is deprecated")
                script = torch.jit.load(path, map_location="cpu")  # type: ignore[no-untyped-call]
            for weight in script.parameters():
                weight.requires_grad_(False)  # else its copies are not leaves, and nobody could freeze them
            return script
        except (RuntimeError, ValueError) as error:
            cure = f"Weights need --build MODULE:FUNCTION. {one_line(error, 80)}"
            raise InvalidArgument("--models", "TorchScript files", str(path), cure) from None
    network = build_network("--build", build)
    try:
        load_weights(path, network, cure="Does --build make the network that was trained?")
    except InvalidArgument as error:
        name = "--models" if error.name == "file" else error.name
        raise InvalidArgument(name, error.expected, error.got, error.cure) from None
    except Exception as error:  # the user's own network may have a way of its own with what is loaded
        cure = f"{type(error).__name__}: {one_line(error, 160)}"
        raise InvalidArgument("--models", f"weights of what {build} makes", str(path), cure) from None
    return network


def build_network(name: str, place: str) -> Any:
    """What the user's ``MODULE:FUNCTION`` makes: a network."""
    from torch import nn

    module, _, function = place.partition(":")
    if not module or not function:
        raise InvalidArgument(name, "MODULE:FUNCTION", place, "For example mymodels:build.")
    sys.path.insert(0, os.getcwd())
    try:
        network = getattr(importlib.import_module(module), function)()
    except Exception as error:  # the user's own code
        cure = f"{type(error).__name__}: {one_line(error)}. It is looked for in this folder and in what is installed."
        raise InvalidArgument(name, "MODULE:FUNCTION that makes a network without arguments", place, cure) from None
    finally:
        sys.path.pop(0)
    if not isinstance(network, nn.Module):
        raise InvalidArgument(name, "a function that returns a torch.nn.Module", type(network).__name__)
    return network


def competing(model: Any, inputs: Any, classes: Sequence[int] | None) -> int:
    """How many classes can be voted for, by what one teacher says of one input."""
    from ..labels.ensemble import PrivateMajorityEnsemble
    from ..mechanisms import NoiseFreeMajority

    alone = PrivateMajorityEnsemble([model], NoiseFreeMajority(), classes=classes)
    return int(alone.sensitive_counts(inputs[:1]).shape[1])


def check_outputs(network: Any, inputs: Any, classes: int) -> None:
    """That a network takes the inputs and has one output for each class."""
    import torch

    training = network.training
    try:
        with torch.no_grad():
            outputs = tuple(network.eval()(inputs).shape)
    except Exception as error:  # the user's own network, or inputs that are not for it
        expected, cure = "inputs that the network of --build takes", one_line(error, 160)
        raise InvalidArgument("--inputs", expected, tuple(inputs.shape[1:]), cure) from None
    finally:
        network.train(training)
    if outputs != (1, classes):
        cure = "Give the number of the network's outputs."
        raise InvalidArgument("--classes", f"a network's outputs, (1, {classes}) for one input", outputs, cure)
