"""Teachers that were fine-tuned from one public network, with Opacus."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import darrm_torch as dt
from tests.teachers.helpers import ensemble_of

INPUTS, LABELS = torch.randn(24, 3, 32, 32), torch.randint(0, 2, (24,))


class Network(nn.Module):
    """A trunk with normalisation by batches, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(3, 32, 3, stride=2), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten()
        )
        self.fc = nn.Linear(512, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.fc(self.trunk(inputs))


def base() -> nn.Module:
    torch.manual_seed(0)
    network = Network()
    for name, value in network.named_buffers():
        if name.endswith(("running_mean", "running_var")):
            value.add_(torch.rand_like(value))  # statistics of public data
    for name, weight in network.named_parameters():
        weight.requires_grad = name.startswith("fc.")
    return network


def fine_tuned(network: nn.Module, *, seed: int, absorb: bool = False, new_head: bool = False) -> tuple[Any, ...]:
    torch.manual_seed(seed)
    model = copy.deepcopy(network)
    if new_head:
        model.fc = nn.Linear(512, 2)
    loader = DataLoader(TensorDataset(INPUTS[seed * 8 : seed * 8 + 8], LABELS[seed * 8 : seed * 8 + 8]), batch_size=4)
    engine = PrivacyEngine()
    optimizer = torch.optim.SGD([w for w in model.parameters() if w.requires_grad], lr=0.5)
    model, optimizer, loader = engine.make_private(
        module=model.train(), optimizer=optimizer, data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0
    )
    for part in model.modules():
        if isinstance(part, nn.BatchNorm2d) and not absorb:
            part.eval()
    for inputs, labels in loader:
        optimizer.zero_grad()
        if len(labels):
            nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
    return model, engine, optimizer, loader


@pytest.mark.slow
def test_heads_on_one_frozen_trunk_are_several_teachers() -> None:
    trained = [fine_tuned(base(), seed=seed, new_head=True) for seed in range(3)]
    mine = ensemble_of(trained)
    assert mine(INPUTS[:2]).shape == (2,)
    assert any("Common part" in assumption for assumption in mine.total_privacy(labels=1).assumptions)
    storages = {weight.untyped_storage().data_ptr(): weight.numel() for weight in mine._teachers.parameters()}
    assert sum(storages.values()) == sum(w.numel() for w in base().parameters()) + 2 * (512 * 2 + 2)


def test_heads_that_started_alike_are_compared_by_their_updates() -> None:
    trained = [fine_tuned(base(), seed=seed) for seed in range(3)]
    ensemble_of(trained, initial=base())
    with pytest.raises(dt.InvalidArgument, match="initial must be the weights that the teachers started from"):
        dt.check_independent(modules=[model for model, *_ in trained], initial=nn.Linear(2, 2))


def test_equal_noise_is_still_seen_beside_a_common_trunk() -> None:
    trained = [fine_tuned(base(), seed=seed) for seed in (0, 1)]
    with torch.no_grad():
        head = trained[0][0]._module.fc.weight
        trained[1][0]._module.fc.weight.copy_(head + 1e-4 * torch.randn_like(head))
    with pytest.raises(dt.UnprovenPrivacy, match="correlate"):
        ensemble_of(trained, initial=base())


def test_statistics_that_absorbed_private_batches_are_refused() -> None:
    trained = [fine_tuned(base(), seed=seed, absorb=True) for seed in range(2)]
    for how in ({}, {"initial": base()}):
        with pytest.raises(dt.UnprovenPrivacy, match="statistics of raw training batches"):
            ensemble_of(trained, **how)


def test_one_teacher_needs_its_start_to_show_that_statistics_are_public() -> None:
    model, engine, *_ = fine_tuned(base(), seed=0)
    with pytest.raises(dt.UnprovenPrivacy, match="statistics"):
        dt.read_privacy(engine, module=model)
    dt.read_privacy(engine, module=model, initial=base())


def test_a_teacher_that_never_moved_is_named() -> None:
    trained = [fine_tuned(base(), seed=seed) for seed in range(2)]
    with torch.no_grad():
        for name, weight in trained[1][0]._module.named_parameters():
            weight.copy_(dict(base().named_parameters())[name])
    with pytest.warns(UserWarning, match="teacher 1 has the weights that training started from"):
        dt.check_independent(modules=[model for model, *_ in trained], initial=base())


@pytest.mark.parametrize("changed", ["bias", "num_batches_tracked"])
def test_a_copy_with_one_small_change_is_no_other_teacher(changed: str) -> None:
    one = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    copied = copy.deepcopy(one)
    with torch.no_grad():
        (copied[2].bias if changed == "bias" else copied[1].num_batches_tracked).add_(1 if changed != "bias" else 1e-3)
    with pytest.raises(dt.UnprovenPrivacy, match="correlate"):
        dt.check_independent(modules=[one, copied])


def test_teachers_that_trained_only_biases_with_one_noise_are_refused() -> None:
    start = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 300))
    noise, teachers = torch.randn(300), []
    for scale in (1e-3, 2e-3):
        teacher = copy.deepcopy(start)
        with torch.no_grad():
            teacher[1].bias.add_(noise + scale * torch.randn(300))
        teachers.append(teacher)
    with pytest.raises(dt.UnprovenPrivacy, match="correlate"):
        dt.check_independent(modules=teachers, initial=start)
