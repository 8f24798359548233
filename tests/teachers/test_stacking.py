"""Many networks in one pass: only where they are alike, and then with the same outputs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import darrm_torch as dt
from darrm_torch.teachers.stacking import LARGEST_BATCH, StackedNetworks

MANY = 40
CHECK = 1  # a copy of the architecture with constant weights runs first, to see whether it takes the inputs


class Net(nn.Module):
    """Counts how often its Python is run for a whole batch: once for all networks when they are stacked."""

    runs, batch = 0, 0

    def __init__(self, scale: Any = 1.0) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))
        self._scale = scale

    def forward(self, inputs: Tensor) -> Tensor:
        Net.runs += len(inputs) == Net.batch  # where a vote is close, a teacher also runs on one input
        return self.inner(inputs) * self._scale


def ensemble(models: list[nn.Module]) -> dt.PrivateMajorityEnsemble:
    return dt.PrivateMajorityEnsemble(models, dt.NoiseFreeMajority())


def one_by_one(models: list[nn.Module], inputs: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.stack([copy.deepcopy(model).eval()(inputs).argmax(dim=1) for model in models])


def runs(asked: dt.PrivateMajorityEnsemble, inputs: Tensor) -> int:
    before, Net.batch = Net.runs, len(inputs)
    asked.sensitive_votes(inputs)
    return Net.runs - before


def test_alike_networks_take_one_pass_and_vote_the_same() -> None:
    torch.manual_seed(0)
    models: list[nn.Module] = [Net() for _ in range(MANY)]
    asked = ensemble(models)
    inputs = torch.randn(LARGEST_BATCH, 6)
    assert runs(asked, inputs) == 1 + CHECK
    assert torch.equal(asked.sensitive_votes(inputs), one_by_one(models, inputs))
    counts = asked.sensitive_counts(inputs, teachers=range(35))
    assert torch.equal(counts, nn.functional.one_hot(one_by_one(models[:35], inputs), 3).sum(dim=0))
    # Copied, moved, converted: never the weights of before.
    assert torch.equal(copy.deepcopy(asked).sensitive_votes(inputs), one_by_one(models, inputs))
    asked.double()
    assert runs(asked, inputs) == 1 + CHECK
    assert torch.equal(asked.sensitive_votes(inputs), one_by_one(models, inputs))
    asked.half()
    asked.float()
    rounded = [copy.deepcopy(model).half().float() for model in models]
    assert torch.equal(asked.sensitive_votes(inputs), one_by_one(rounded, inputs))


@pytest.mark.parametrize("count", [MANY, 31])
@pytest.mark.parametrize("batch", [1, LARGEST_BATCH, LARGEST_BATCH + 1])
def test_numbers_decide(count: int, batch: int) -> None:
    asked = ensemble([Net() for _ in range(count)])
    passes = 1 if count == MANY and batch <= LARGEST_BATCH else count
    assert runs(asked, torch.randn(batch, 6)) == passes + CHECK


def hooked(model: Net) -> Net:
    model.inner[0].register_forward_hook(lambda module, inputs, output: output * 2)
    return model


def with_tensor(model: Net) -> Net:
    model.mean = torch.rand(3)  # neither parameter nor buffer
    return model


class Convolution(Net):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 3, 6), nn.Flatten())


@pytest.mark.parametrize(
    "odd",
    [
        lambda: Net(scale=-1.0),
        lambda: Net(scale=1),
        lambda: Net(scale=float("nan")),
        lambda: hooked(Net()),
        lambda: with_tensor(Net()),
        lambda: Net().double(),
        lambda: nn.Sequential(Net()),
        Convolution,
    ],
)
def test_networks_that_differ_in_more_than_weights_run_one_by_one(odd: Callable[[], nn.Module]) -> None:
    for models in ([*(Net() for _ in range(MANY)), odd()], [odd(), *(Net() for _ in range(MANY))]):
        assert StackedNetworks.where_quicker(models) is None


@pytest.mark.parametrize(
    "make",
    [
        Convolution,
        lambda: hooked(Net()),
        lambda: with_tensor(Net()),
        lambda: parametrizations.weight_norm(nn.Linear(6, 3)),
        lambda: nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3)),
    ],
)
def test_networks_that_are_not_known_to_be_quicker_or_the_same(make: Callable[[], nn.Module]) -> None:
    models = [make() for _ in range(MANY)]
    assert StackedNetworks.where_quicker(models) is None
    inputs = torch.randn(5, 6)
    assert torch.equal(ensemble(models).sensitive_votes(inputs), one_by_one(models, inputs))


class Branches(nn.Module):
    """Looks at its numbers, which cannot be done for many at once."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        logits = self.linear(inputs)
        return -logits if logits.sum() > 0 else logits


def test_networks_that_cannot_be_stacked_run_one_by_one() -> None:
    torch.manual_seed(0)
    models: list[nn.Module] = [Branches() for _ in range(MANY)]
    assert StackedNetworks.where_quicker(models) is not None
    inputs = torch.randn(5, 6)
    assert torch.equal(ensemble(models).sensitive_votes(inputs), one_by_one(models, inputs))


def test_errors_are_those_of_the_teachers() -> None:
    asked = ensemble([Net() for _ in range(MANY)])
    with pytest.raises(dt.InvalidArgument, match=r"inputs must be what teacher 0 takes.* shapes cannot be multiplied"):
        asked(torch.randn(5, 7))
    with pytest.raises(dt.InvalidArgument, match="inputs must be finite as float32 numbers"):
        asked(torch.full((5, 6), float("nan")))
    assert asked.ledger.count == 0
