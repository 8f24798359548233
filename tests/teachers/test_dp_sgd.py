"""Training that does not depend on the number of records."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from darrm_torch import InvalidArgument, TrainingSettings, UnprovenPrivacy, read_privacy
from darrm_torch.teachers import dp_sgd
from darrm_torch.teachers.dp_sgd import train_teacher
from darrm_torch.teachers.records import batch_of
from tests.teachers.helpers import Centred, build, some_data, zeros


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
        record = train_teacher(build, TensorDataset(*some_data(count)), shard_size=60, settings=setting, seeds=(1, 2))
        histories.append(record["privacy_accountant_state_dict"]["history"])
    assert histories == [[(12.0, 1 / 8, 16)]] * 3


def test_the_noisy_sum_is_divided_by_a_public_number() -> None:
    # From zero weights a step of size 1 moves them by (clipped sum + noise) / batch size, whatever the shard's size:
    # with gradients clipped to 1e-6 the sum vanishes, and the same noise must move both alike.
    setting = TrainingSettings(batch_size=10, epochs=1, learning_rate=1.0, max_grad_norm=1e-6, noise_multiplier=1e6)
    moved = []
    for count in (10, 1000):
        record = train_teacher(zeros, TensorDataset(*some_data(count)), shard_size=10, settings=setting, seeds=(1, 2))
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
        return train_teacher(network, TensorDataset(inputs, labels), shard_size=60, settings=setting, seeds=(3, 4))[
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
    runs = [
        train_teacher(build, TensorDataset(*some_data(60)), shard_size=60, settings=setting, seeds=(3, 4))
        for _ in range(2)
    ]
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
        record = train_teacher(bias_free, TensorDataset(inputs, labels), shard_size=40, settings=setting, seeds=(1, 2))
        return record["module_state_dict"]["1.weight"]

    spoiled = weights()
    assert spoiled.isfinite().all()
    if noise is not None:
        inputs[3], labels[3] = 0.0, right  # without a bias, its gradient is zero
        assert torch.equal(spoiled, weights())


def bias_free() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 2, bias=False))


def test_a_model_that_keeps_statistics_of_raw_batches_is_refused() -> None:
    setting = TrainingSettings(batch_size=10, epochs=1)
    with pytest.raises(UnprovenPrivacy, match="training changed the buffer mean"):
        train_teacher(Centred, TensorDataset(*some_data(40)), shard_size=40, settings=setting, seeds=(1, 2))


def test_secure_training_repeats_nothing_and_says_what_it_drew_from(tmp_path: Path) -> None:
    setting = TrainingSettings(batch_size=10, epochs=2)
    runs = [
        train_teacher(
            build, TensorDataset(*some_data(40)), shard_size=40, settings=setting, seeds=(1, 2), secure=secure
        )
        for secure in (True, True, False)
    ]
    assert not torch.equal(*(run["module_state_dict"]["1.weight"] for run in runs[:2]))
    histories = [run["privacy_accountant_state_dict"]["history"] for run in runs]
    assert histories[0] == histories[2]
    for number, run in enumerate(runs):
        torch.save(run, tmp_path / f"teacher-{number}.pt")
    readings = [profile.reading for profile in read_privacy(tmp_path, accept=["seeds"])]
    assert [reading.randomness[:7] for reading in readings] == ["AES-256", "AES-256", "Torch's"]


def trained(dataset: Any, settings: TrainingSettings, network: Any = bias_free) -> dict[str, torch.Tensor]:
    record = train_teacher(network, dataset, shard_size=40, settings=settings, seeds=(1, 2))
    state: dict[str, torch.Tensor] = record["module_state_dict"]
    return state


SMALL = TrainingSettings(batch_size=20, epochs=3, noise_multiplier=1.0)


@pytest.mark.parametrize("noise", [1.0, None])
def test_data_sets_of_any_kind_train_alike(noise: float | None) -> None:
    inputs, labels = some_data(40)
    tensors = TensorDataset(inputs, labels)
    settings = replace(SMALL, noise_multiplier=noise)
    whole = trained(tensors, settings)
    for other in (list(tensors), Items()):
        assert torch.equal(whole["1.weight"], trained(other, settings)["1.weight"])


class Items(Dataset[Any]):
    """Mappings, as Hugging Face has them; the network takes them by name."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, row: int) -> dict[str, Any]:
        inputs, labels = some_data(40)
        return {"input": inputs[row], "labels": labels[row]}


def test_an_optimizer_and_a_schedule_see_the_noisy_gradients_alone() -> None:
    """Records that contribute nothing leave the noise, which a loop of Torch repeats."""
    settings = replace(
        SMALL,
        learning_rate=0.1,
        optimizer=partial(torch.optim.Adam, betas=(0.5, 0.9)),
        schedule=partial(torch.optim.lr_scheduler.StepLR, step_size=2, gamma=0.1),
    )
    empty = TensorDataset(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64))
    torch.manual_seed(1)
    model = bias_free()
    weight, noise = model[1].weight, torch.Generator().manual_seed(2)  # type: ignore[index]
    optimizer = torch.optim.Adam([weight], lr=0.1, betas=(0.5, 0.9))
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.1)
    for _ in range(6):
        weight.grad = torch.normal(0.0, 1.0, weight.shape, generator=noise) / 20
        optimizer.step()
        schedule.step()
    assert torch.allclose(trained(empty, settings)["1.weight"], weight)


def test_a_loss_of_ones_own() -> None:
    inputs, labels = some_data(40)
    settings = replace(SMALL, noise_multiplier=1e-6, loss=squared)
    values = labels[:, None] * torch.tensor([[1.0, -1.0]])
    state = trained(TensorDataset(inputs, values), replace(settings, epochs=60, learning_rate=0.5))
    assert float((inputs @ state["1.weight"].T - values).square().mean()) < float(values.square().mean())
    with pytest.raises(InvalidArgument, match=r'loss must be a function .* reduction="none"'):
        trained(TensorDataset(inputs, labels), replace(settings, loss=nn.CrossEntropyLoss()))


def squared(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs - targets).square().mean(dim=1)


calls: list[int] = []


class Trunk(nn.Sequential):
    """Frozen, with statistics of its own."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.BatchNorm1d(4), nn.Linear(4, 8), nn.Dropout(0.5), nn.Tanh())
        self.requires_grad_(False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        calls.append(len(inputs))
        features: torch.Tensor = super().forward(inputs)
        return features


class Whole(nn.Module):
    """The same network, whose beginning the library cannot see."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.head = Trunk(), nn.Linear(8, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.trunk(inputs))
        return logits


def on_trunk() -> nn.Module:
    return nn.Sequential(Trunk(), nn.Linear(8, 2))


def test_a_frozen_trunk_runs_once_for_each_record_and_stays_as_it_is() -> None:
    settings = replace(SMALL, epochs=4)
    states = []
    for data in (TensorDataset(*some_data(40)), list(TensorDataset(*some_data(40)))):
        calls.clear()
        states.append(trained(data, settings, on_trunk))
        assert calls == [20, 20]
        calls.clear()
        states.append(trained(data, replace(settings, keep_features=False), on_trunk))
        assert sum(calls) > 80
    whole = trained(data, settings, Whole)
    states.append({name.replace("trunk", "0").replace("head", "1"): part for name, part in whole.items()})
    torch.manual_seed(1)
    start = on_trunk().state_dict()
    for name, weight in states[0].items():
        assert torch.equal(weight, start[name]) is name.startswith("0.")
        assert all(torch.allclose(state[name], weight, atol=1e-6) for state in states)


def test_settings_as_plain_values() -> None:
    settings = replace(SMALL, optimizer=partial(torch.optim.SGD, momentum=0.9), loss=nn.MSELoss(reduction="none"))
    plain = settings.to_dict()
    assert plain["optimizer"] == "torch.optim.sgd.SGD(momentum=0.9)"
    assert plain["loss"] == "MSELoss()"
    assert TrainingSettings(**TrainingSettings().to_dict()) == TrainingSettings()


def seeded() -> nn.Module:
    torch.manual_seed(0)
    return bias_free()


class Reseeding(Dataset[Any]):
    """Items that seed Torch's generator, as deterministic transforms do."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, row: int) -> Any:
        torch.manual_seed(row)
        return torch.rand(4), row % 2


@pytest.mark.parametrize(
    ("network", "data"), [(seeded, TensorDataset(*some_data(40))), (bias_free, Reseeding())], ids=["network", "data"]
)
def test_who_seeds_torch_knows_no_batches(network: Any, data: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With equal batches, sampling would amplify nothing. By chance, 15 draws of 40 records never agree."""
    drawn: list[list[int]] = []
    monkeypatch.setattr(
        dp_sgd, "batch_of", lambda data, rows, device: drawn.append(rows) or batch_of(data, rows, device)
    )
    runs = []
    for seeds in ((1, 2), (3, 2), (1, 2)):
        drawn.clear()
        train_teacher(network, data, shard_size=40, settings=replace(SMALL, batch_size=8), seeds=seeds)
        runs.append([*drawn])
    assert runs[0] == runs[2]
    assert all(one != other for one, other in zip(runs[0][1:], runs[1][1:], strict=False))


class Saves(nn.Module):
    """Saves what it has read in a way of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.seen = nn.Linear(4, 2), [0.0]

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.seen.append(float(inputs.sum()))
        outputs: torch.Tensor = self.linear(inputs)
        return outputs

    def get_extra_state(self) -> torch.Tensor:
        return torch.tensor(self.seen[-1])

    def set_extra_state(self, state: torch.Tensor) -> None:
        self.seen.append(float(state))


def test_a_file_holds_nothing_of_the_records_but_weights() -> None:
    with pytest.raises(UnprovenPrivacy, match="training changed the buffer _extra_state"):
        trained(TensorDataset(*some_data(40)), SMALL, Saves)
    many = torch.rand(1000, 4)

    def centred() -> nn.Module:
        beside = nn.Identity()
        beside.register_buffer("centre", many[:1])  # a view of many numbers
        return nn.Sequential(beside, nn.Linear(4, 2))

    state = trained(TensorDataset(*some_data(40)), SMALL, centred)
    assert torch.equal(state["0.centre"], many[:1])
    assert all(value.untyped_storage().nbytes() == value.nbytes for value in state.values())
