"""Training that does not depend on the number of records."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from darrm_torch import InvalidArgument, TrainingSettings
from darrm_torch.teachers.dp_sgd import train_teacher


def build() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 2))


def zeros() -> nn.Module:
    model = build()
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    return model


def some_data(count: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, 4, generator=generator), torch.randint(0, 2, (count,), generator=generator)


@pytest.mark.parametrize(
    "wrong",
    [
        {"noise_multiplier": 0.0},
        {"noise_multiplier": float("nan")},
        {"noise_multiplier": float("inf")},
        {"max_grad_norm": -1.0},
        {"batch_size": 0},
        {"epochs": 1.5},
        {"learning_rate": 0.0},
    ],
)
def test_wrong_settings(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(wrong))):
        TrainingSettings(**wrong)


def test_training_does_not_depend_on_the_size_of_the_shard() -> None:
    setting = TrainingSettings(batch_size=8, epochs=2)
    histories = []
    for count in (50, 51, 90):
        record = train_teacher(build, *some_data(count), shard_size=60, settings=setting, seeds=(1, 2))
        histories.append(record["privacy_accountant_state_dict"]["history"])
    assert histories == [[(12.0, 1 / 8, 16)]] * 3


def test_the_noisy_sum_is_divided_by_a_public_number() -> None:
    # From zero weights a step of size 1 moves them by (clipped sum + noise) / batch size, whatever the shard's size:
    # with gradients clipped to 1e-6 the sum vanishes, and the same noise must move both alike.
    setting = TrainingSettings(batch_size=10, epochs=1, learning_rate=1.0, max_grad_norm=1e-6, noise_multiplier=1e6)
    moved = []
    for count in (10, 1000):
        record = train_teacher(zeros, *some_data(count), shard_size=10, settings=setting, seeds=(1, 2))
        moved.append(record["module_state_dict"]["1.weight"])
    assert torch.allclose(moved[0], moved[1], atol=1e-3)
    assert moved[0].std() == pytest.approx(1 / 10, rel=0.8)


def convolutional() -> nn.Module:
    frozen = nn.Conv2d(1, 2, 1, bias=False).requires_grad_(False)
    return nn.Sequential(frozen, nn.Conv2d(2, 3, 2, bias=False), nn.GroupNorm(1, 3), nn.Flatten(), nn.Linear(27, 2))


class Branches(nn.Module):
    """Two ways from the image to the logits, and a layer that sees whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.columns = nn.Conv2d(1, 2, (1, 4)), nn.Conv2d(1, 2, (4, 1))
        self.brightness = nn.Embedding(17, 3)
        self.head = nn.Linear(19, 2)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        brightness = self.brightness(images.sum(dim=(1, 2, 3)).long())
        return self.head(torch.cat([self.rows(images).flatten(1), self.columns(images).flatten(1), brightness], 1))


@pytest.mark.parametrize(("network", "fixed"), [(convolutional, ["0.weight"]), (Branches, [])])
def test_sparing_batch_gradients_changes_nothing(network: Any, fixed: list[str], monkeypatch: Any) -> None:
    # Reference: every batch gradient computed, as `backward()` does by itself.
    inputs = torch.rand(60, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(60) % 2
    setting = TrainingSettings(batch_size=20, epochs=2, noise_multiplier=0.5)

    def weights() -> dict[str, torch.Tensor]:
        return train_teacher(network, inputs, labels, shard_size=60, settings=setting, seeds=(3, 4))[
            "module_state_dict"
        ]

    spared, backward = weights(), torch.Tensor.backward
    monkeypatch.setattr(torch.Tensor, "backward", lambda loss, inputs=None: backward(loss))
    full = weights()
    torch.manual_seed(3)
    start = network().state_dict()
    assert all(torch.equal(spared[name], full[name]) for name in full)
    assert [name for name in start if torch.equal(full[name], start[name])] == fixed


def test_a_seed_repeats_a_run() -> None:
    setting = TrainingSettings(batch_size=20, epochs=1)
    runs = [train_teacher(build, *some_data(60), shard_size=60, settings=setting, seeds=(3, 4)) for _ in range(2)]
    assert torch.equal(runs[0]["module_state_dict"]["1.weight"], runs[1]["module_state_dict"]["1.weight"])
