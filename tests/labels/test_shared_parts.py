"""Teachers with a common trunk: the votes of each alone, one trunk in memory, one pass through it."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn
from torchvision.models import resnet18

import darrm_torch as dt
from darrm_torch.labels.shared_parts import SharedParts, copies_that_share
from darrm_torch.labels.voting import VotingTeachers


class Counted(nn.Linear):
    """Counts how often it runs, over all copies."""

    calls: list[int] = []  # noqa: RUF012

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        Counted.calls.append(len(inputs))
        return super().forward(inputs)


class Scaled(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs * self.factor


def heads(trunk: nn.Module, count: int, width: int, *before: nn.Module) -> list[nn.Module]:
    return [nn.Sequential(copy.deepcopy(trunk), *before, nn.Linear(width, 3)) for _ in range(count)]


def ensemble(models: list[nn.Module]) -> dt.PrivateMajorityEnsemble:
    return dt.PrivateMajorityEnsemble(models, dt.NoiseFreeMajority(), ledger=dt.PrivacyLedger())


def alone(models: list[nn.Module], inputs: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return torch.stack([copy.deepcopy(model).eval()(inputs.clone()).argmax(dim=-1) for model in models])


TRUNKS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "layers": (lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8)), ()),
    "a head that writes into its input": (lambda: nn.Linear(6, 8), (nn.ReLU(inplace=True),)),
    "a trunk that writes into its input": (lambda: nn.Sequential(nn.ReLU(inplace=True), nn.Linear(6, 8)), ()),
    "dropout": (lambda: nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5)), (nn.Tanh(),)),
    "statistics": (lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8)), ()),
}


@pytest.mark.parametrize("name", TRUNKS)
def test_votes_are_those_of_each_teacher_alone(name: str) -> None:
    torch.manual_seed(0)
    build, before = TRUNKS[name]
    models = heads(build(), 5, 8, *before)
    inputs = torch.randn(64, 6)
    mine = ensemble(models)
    for _ in range(2):
        assert torch.equal(mine.sensitive_votes(inputs), alone(models, inputs))
    with torch.inference_mode():
        assert torch.equal(mine.sensitive_votes(inputs), alone(models, inputs))
    assert torch.equal(copy.deepcopy(mine).sensitive_votes(inputs), alone(models, inputs))
    assert torch.equal(pickle.loads(pickle.dumps(mine._teachers)).votes(inputs, range(5)), alone(models, inputs))


def test_the_trunk_is_kept_once_and_runs_once() -> None:
    models = heads(Counted(6, 8), 20, 8)
    mine, inputs = ensemble(models), torch.randn(10, 6)
    mine.sensitive_votes(inputs)
    Counted.calls.clear()
    mine.sensitive_votes(inputs)
    assert Counted.calls == [10]
    storages = {weight.untyped_storage().data_ptr(): weight.numel() for weight in mine._teachers.parameters()}
    assert sum(storages.values()) == 6 * 8 + 8 + 20 * (8 * 3 + 3)


class Block(nn.Module):
    """Calls its trunk by keyword."""

    def __init__(self, trunk: nn.Module) -> None:
        super().__init__()
        self.trunk, self.head = copy.deepcopy(trunk), nn.Sequential(Counted(8, 8), nn.ReLU(), Counted(8, 3))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.head(self.trunk(input=inputs))
        return outputs


def test_heads_of_several_layers_run_once_each() -> None:
    trunk = nn.Sequential(nn.Linear(6, 8), nn.ReLU(inplace=True))
    mine, inputs = ensemble([Block(trunk) for _ in range(20)]), torch.randn(10, 6)
    mine.sensitive_votes(inputs)
    Counted.calls.clear()
    mine.sensitive_votes(inputs)
    assert Counted.calls == [10] * 40


@pytest.mark.slow
def test_twenty_heads_on_one_resnet_take_the_memory_of_one_model() -> None:
    """The weights and buffers: 20 heads and 19 copies of the statistics are below 5 % of the model."""
    with torch.device("meta"):
        base = resnet18(num_classes=10)
    base = base.to_empty(device="cpu")
    for weight in (*base.parameters(), *base.buffers()):
        nn.init.zeros_(weight)
    models = [copy.copy(base) for _ in range(20)]
    for model in models:
        model._modules = dict(base._modules) | {"fc": nn.Linear(512, 10)}
    mine = VotingTeachers(models, classes=None, mechanism=dt.NoiseFreeMajority())
    storages = {
        one.untyped_storage().data_ptr(): one.untyped_storage().nbytes()
        for one in (*mine.parameters(), *mine.buffers())
    }
    of_one = sum(one.untyped_storage().nbytes() for one in (*base.parameters(), *base.buffers()))
    assert sum(storages.values()) < 1.05 * of_one


@pytest.mark.slow
def test_a_module_of_the_user_that_reuses_and_rewrites() -> None:
    """ResNet's own forward: in-place activations, sums and flattening between the parts."""
    torch.manual_seed(0)
    base = resnet18(num_classes=3)
    models = []
    for _ in range(3):
        model = copy.deepcopy(base)
        model.fc = nn.Linear(512, 3)
        models.append(model)
    inputs, mine = torch.randn(4, 3, 32, 32), ensemble(models)
    runs: list[int] = []
    forward = nn.Conv2d.forward
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nn.Conv2d, "forward", lambda self, x: runs.append(1) or forward(self, x))
        votes = mine.sensitive_votes(inputs)
        first = len(runs)
        mine.sensitive_votes(inputs)
    assert torch.equal(votes, alone(models, inputs))
    assert (first, len(runs) - first) == (40, 20)  # 20 convolutions; the first call also checks the inputs


@pytest.mark.parametrize(
    "others",
    [
        lambda trunk: nn.Sequential(trunk, Scaled(2.0)),
        lambda trunk: nn.Sequential(trunk, Scaled(1.0 + 1e-12)),
        lambda trunk: nn.Sequential(trunk, nn.Dropout(0.1)),
    ],
)
def test_parts_that_differ_are_not_shared(others: Any) -> None:
    """Equal weights are not enough: attributes count as well."""
    trunk = nn.Linear(4, 4)
    networks = copies_that_share([nn.Sequential(copy.deepcopy(trunk), Scaled(1.0)), others(copy.deepcopy(trunk))])
    shared = SharedParts(networks)
    inputs = torch.randn(3, 4)
    expected = [nn.Sequential(trunk, network[1]).eval()(inputs) for network in networks]
    with torch.no_grad():
        shared.learn(lambda: copy.deepcopy(networks[0]).eval()(inputs))
        mine = shared.run(lambda: [network.eval()(inputs) for network in networks])
    assert all(map(torch.equal, mine, expected))


def test_hooks_and_other_weights_keep_parts_apart() -> None:
    trunk, seen = nn.Linear(4, 4), []
    hooked = copy.deepcopy(trunk)
    hooked.register_forward_hook(lambda *_: seen.append(1))
    models = [nn.Sequential(one, nn.Linear(4, 2)) for one in (trunk, hooked, copy.deepcopy(trunk))]
    mine = ensemble(models)
    mine.sensitive_votes(torch.randn(2, 4))
    assert len(seen) >= 1
    with torch.no_grad():
        models[2][0].weight[0, 0] += 1e-7
    assert torch.equal(ensemble(models).sensitive_votes(torch.ones(3, 4)), alone(models, torch.ones(3, 4)))


class Stash(nn.Linear):
    """Leaves something for the head, as U-Nets do."""

    skip: torch.Tensor

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.skip = inputs * 2
        return super().forward(inputs)


class ReadsStash(nn.Module):
    def __init__(self, trunk: Stash) -> None:
        super().__init__()
        self.trunk, self.head = copy.deepcopy(trunk), nn.Linear(4, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.head(self.trunk(inputs) + self.trunk.skip)
        return outputs


class SetsTrunk(nn.Module):
    """Sets an attribute of the trunk that depends on the teacher, before it runs."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(4, 3), Scaled(1.0))
        nn.init.eye_(self.trunk[0].weight)
        nn.init.zeros_(self.trunk[0].bias)
        self.factor = nn.Parameter(torch.tensor(factor))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.trunk[1].factor = float(self.factor)
        outputs: torch.Tensor = self.trunk(inputs)
        return outputs


class Writes(nn.Module):
    """Writes past the version counter of the trunk's output, with weights of its own."""

    def __init__(self, trunk: nn.Module, factor: float) -> None:
        super().__init__()
        self.trunk, self.factor = copy.deepcopy(trunk), nn.Parameter(torch.tensor(factor))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.trunk(inputs).data.mul_(self.factor)


class Memory(nn.Module):
    """A buffer that begins alike in all teachers, and that a vote writes into."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(factor))
        self.register_buffer("last", torch.zeros(1))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = inputs * self.factor + 100 * self.last
        self.last += self.factor
        return outputs


def _of_their_own(trunk: nn.Linear) -> list[nn.Module]:
    models = heads(trunk, 3, 4)
    for model in models:
        model[0].forward = torch.tanh  # type: ignore[index,union-attr]
    return models


STATEFUL: dict[str, Any] = {
    "a trunk that leaves something for the head": lambda: [*map(ReadsStash, [Stash(4, 4)] * 3)],
    "a network that sets its trunk": lambda: [*map(SetsTrunk, (1.0, -1.0, 0.0))],
    "a head that writes unseen": lambda: [*map(Writes, [nn.Linear(4, 3)] * 3, (1.0, -1.0, 2.0))],
    "a buffer": lambda: [nn.Sequential(nn.Linear(4, 3), Memory(factor)) for factor in (3.0, -1.0, -2.0)],
    "a forward of its own": lambda: _of_their_own(nn.Linear(4, 4)),
}


@pytest.mark.parametrize("name", STATEFUL)
def test_no_teacher_reaches_another_through_what_they_share(name: str) -> None:
    torch.manual_seed(0)
    models, inputs = STATEFUL[name](), torch.randn(64, 4)
    mine = ensemble(models)
    assert torch.equal(mine.sensitive_votes(inputs), alone(models, inputs))
    assert not mine.sensitive_events
