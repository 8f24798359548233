"""Training that does not depend on the number of records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from darrm_torch import InvalidArgument, TrainingSettings, UnprovenPrivacy, read_privacy
from darrm_torch.teachers.dp_sgd import train_teacher
from tests.teachers.helpers import build, some_data, zeros


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


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 3e38, "label 2", "label -1", "label -100"])
@pytest.mark.parametrize("noise", [0.5, None])
def test_records_that_are_not_finite_contribute_zero(bad: float | str, noise: float | None) -> None:
    # Record 3 is replaced by one whose gradient is zero: weights that are not trained, and inputs of zero.
    inputs, labels = some_data(40)
    right = int(labels[3])
    if isinstance(bad, str):
        labels[3] = int(bad.removeprefix("label "))
    else:
        inputs[3] = bad
    setting = TrainingSettings(batch_size=10, epochs=2, noise_multiplier=noise)

    def weights() -> torch.Tensor:
        record = train_teacher(bias_free, inputs, labels, shard_size=40, settings=setting, seeds=(1, 2))
        return record["module_state_dict"]["1.weight"]

    spoiled = weights()
    assert spoiled.isfinite().all()
    if noise is not None:
        inputs[3], labels[3] = 0.0, right  # without a bias, its gradient is zero
        assert torch.equal(spoiled, weights())


def bias_free() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 2, bias=False))


class Centred(nn.Module):
    """Subtracts the mean of the raw batches that it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 2)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and len(x):
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0).detach()
        return self.head(x - self.mean)


def test_a_model_that_keeps_statistics_of_raw_batches_is_refused() -> None:
    setting = TrainingSettings(batch_size=10, epochs=1)
    with pytest.raises(UnprovenPrivacy, match="training changed the buffer mean"):
        train_teacher(Centred, *some_data(40), shard_size=40, settings=setting, seeds=(1, 2))


def test_secure_training_repeats_nothing_and_says_what_it_drew_from(tmp_path: Path) -> None:
    setting = TrainingSettings(batch_size=10, epochs=2)
    runs = [
        train_teacher(build, *some_data(40), shard_size=40, settings=setting, seeds=(1, 2), secure=secure)
        for secure in (True, True, False)
    ]
    assert not torch.equal(*(run["module_state_dict"]["1.weight"] for run in runs[:2]))
    histories = [run["privacy_accountant_state_dict"]["history"] for run in runs]
    assert histories[0] == histories[2]
    for number, run in enumerate(runs):
        torch.save(run, tmp_path / f"teacher-{number}.pt")
    readings = [profile.reading for profile in read_privacy(tmp_path, accept=["seeds"])]
    assert [reading.randomness[:7] for reading in readings] == ["AES-256", "AES-256", "Torch's"]
