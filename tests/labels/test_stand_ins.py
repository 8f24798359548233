"""Stand-ins: nothing that a network can do shows that a part runs later than it is called."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import darrm_torch as dt

RUNS: list[str] = []


class Named(nn.Linear):
    """Records that it ran."""

    def __init__(self, name: str, inputs: int = 4, outputs: int = 4) -> None:
        super().__init__(inputs, outputs)
        self.name = name

    def forward(self, inputs: Tensor) -> Tensor:
        RUNS.append(self.name)
        return super().forward(inputs)


class Structured(Named):
    """A trunk as those of transformers: by keyword, with a mapping as its output."""

    def forward(self, inputs: Tensor, mask: Any = None, kind: str = "mean") -> Any:
        outputs = super().forward(inputs)
        return {"last": outputs, "pooled": (outputs * 2, None)}


class Network(nn.Module):
    """Two trunks and a head, put together by a function of the test."""

    def __init__(self, way: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.relu, self.drop = Named("a"), Named("b"), nn.ReLU(inplace=True), nn.Dropout(0.5)
        self.structured, self.head, self.way = Structured("s"), Named("head", 4, 3), way

    def forward(self, inputs: Tensor) -> Tensor:
        return self.way(self, inputs)


def with_size(inputs: Tensor) -> Tensor:
    return inputs + inputs.size(0)


def scripted(inputs: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        outputs: Tensor = torch.jit.script(with_size)(inputs)
    return outputs


def under_autocast(net: Any, inputs: Tensor) -> Tensor:
    hidden = net.first(inputs)
    with torch.autocast("cpu", torch.bfloat16):
        outputs: Tensor = net.head(hidden)
    return outputs.float()


def written(net: Any, inputs: Tensor) -> Tensor:
    hidden = net.first(inputs)
    later = net.second(hidden)
    hidden += 5  # after the second trunk was called with it
    outputs: Tensor = net.head(later + hidden)
    return outputs


def stashed(net: Any, inputs: Tensor) -> Tensor:
    net.stash = net.first(inputs)
    outputs: Tensor = net.head(net.second(net.stash))
    return outputs


def swallowed(net: Any, inputs: Tensor) -> Tensor:
    hidden = net.relu(first := net.first(inputs))
    try:
        first.sum()
    except BaseException:
        hidden = hidden * 0
    outputs: Tensor = net.head(hidden)
    return outputs


def changed(net: Any, inputs: Tensor) -> Tensor:
    hidden = net.second(net.first(inputs))
    net.drop.p = 0.1  # nothing that ran
    net.first.name = "renamed"
    outputs: Tensor = net.head(hidden)
    net.first.name = "a"
    return outputs


WAYS: dict[str, tuple[Callable[[Any, Tensor], Tensor], list[str]]] = {
    "trunks in a row": (lambda net, x: net.head(net.second(net.first(x))), ["a", "b"]),
    "an activation that writes": (lambda net, x: net.head(net.second(net.relu(net.first(x)))), ["a", "b"]),
    "a trunk by keyword": (lambda net, x: net.head(net.structured(inputs=x, kind="max")["pooled"][0]), ["s"]),
    "a trunk by keyword after another": (
        lambda net, x: net.head(net.structured(mask=None, inputs=net.first(x))["last"]),
        ["a", "s"],
    ),
    "a skip": (lambda net, x: net.head(net.second(h := net.first(x)) + h), ["a", "b"]),
    "a skip between parts": (lambda net, x: net.head(net.second(h := net.first(x)) + net.second(net.second(h))), []),
    "a sum before the trunk": (lambda net, x: net.head(net.first((x - 1) / 2)), ["a"]),
    "shapes and types": (lambda net, x: net.head(net.first(x).reshape(len(x), -1)[:, : x.shape[1]].to(x)), ["a"]),
    "an output as it is": (lambda net, x: net.first(x), ["a"]),
    "written afterwards": (written, ["a", "b"]),
    "kept as an attribute": (stashed, ["a", "b"]),
    "under another autocast": (under_autocast, []),
    "a skip over an activation that writes": (lambda net, x: net.head(net.relu(h := net.first(x)) + h), []),
    "a script": (lambda net, x: net.head(scripted(net.first(x))), []),
    "an error that is swallowed": (swallowed, []),
    "a part that changes later": (changed, []),
}


@pytest.mark.parametrize("name", WAYS)
def test_votes_are_those_of_each_network_alone(name: str) -> None:
    """And parts run once where the order does not matter."""
    way, parts = WAYS[name]
    torch.manual_seed(0)
    trunk = Network(way)
    models = [copy.deepcopy(trunk) for _ in range(5)]
    for model in models:
        model.head = Named("head", 4, 3)
    inputs = torch.randn(8, 4)
    with torch.no_grad():
        alone = torch.stack([copy.deepcopy(model).eval()(inputs.clone()).argmax(dim=-1) for model in models])
    ensemble = dt.PrivateMajorityEnsemble(models, dt.NoiseFreeMajority(), ledger=dt.PrivacyLedger())
    for _ in range(2):
        RUNS.clear()
        assert torch.equal(ensemble.sensitive_votes(inputs), alone)
    assert not ensemble.sensitive_events
    if parts:
        assert sorted(RUNS) == sorted([*parts, *["head"] * (5 if "head" in RUNS else 0)])


def test_a_trunk_of_many_layers_needs_no_deep_recursion() -> None:
    layers = [nn.Linear(4, 4) for _ in range(250)]
    models = [nn.Sequential(*copy.deepcopy(layers), nn.Linear(4, 3)) for _ in range(2)]
    ensemble = dt.PrivateMajorityEnsemble(models, dt.NoiseFreeMajority(teachers=2), ledger=dt.PrivacyLedger())
    ensemble.sensitive_votes(torch.randn(3, 4))
    assert not ensemble.sensitive_events
