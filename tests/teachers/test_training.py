"""Training that does not depend on the number of records, and folders from which it resumes."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from darrm_torch import InvalidArgument, TrainingSettings, assign_shards, load_teacher, train_teachers
from darrm_torch.teachers.training import _data_digest, train_teacher


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


def test_teachers_are_kept_resumed_and_independent(tmp_path: Path) -> None:
    inputs, labels = some_data(60)
    everyone = [np.arange(60)] * 3
    arguments = {
        "build_model": zeros,
        "inputs": inputs,
        "labels": labels,
        "shards": everyone,
        "shard_size": 60,
        "settings": TrainingSettings(batch_size=20, epochs=1),
        "progress": False,
    }
    (tmp_path / "teacher-001.partial").write_bytes(b"left by a killed process")
    files = train_teachers(tmp_path, **arguments)
    states, histories = [], []
    for file in files:
        model = build()
        histories.append(load_teacher(file, model)["privacy_accountant_state_dict"]["history"])
        states.append(model[1].weight)
    assert histories == [[(12.0, 1 / 3, 3)]] * 3
    # Same data, same zero start: only the noise differs, and it must not be shared.
    for a, b in ((0, 1), (0, 2), (1, 2)):
        correlation = torch.corrcoef(torch.stack([states[a].flatten(), states[b].flatten()]))[0, 1]
        assert abs(correlation) < 0.97
    files[1].unlink()
    times = [files[0].stat().st_mtime_ns, files[2].stat().st_mtime_ns]
    again = train_teachers(tmp_path, **arguments)
    assert again == files
    assert [files[0].stat().st_mtime_ns, files[2].stat().st_mtime_ns] == times
    fresh = build()
    load_teacher(files[1], fresh)
    assert not torch.equal(fresh[1].weight, states[1])


def test_a_folder_goes_on_with_the_same_data_and_shards_only(tmp_path: Path) -> None:
    """Interrupted, and run again with another key: a record may then be in the data of two teachers, not of one."""
    inputs, labels = some_data(60)
    ids = [row.numpy().tobytes() for row in inputs]

    def train(key: bytes, moved: bool = False) -> list[Path]:
        return train_teachers(
            tmp_path,
            build_model=zeros,
            inputs=inputs.flip(0) if moved else inputs,
            labels=labels,
            shards=assign_shards(ids, teachers=2, key=key),
            shard_size=30,
            settings=TrainingSettings(batch_size=20, epochs=1),
            progress=False,
            workers=1,
        )

    train(b"one")[1].unlink()
    for wrong in ({"key": b"another"}, {"key": b"one", "moved": True}):
        with pytest.raises(InvalidArgument, match="teachers of these data and shards"):
            train(**wrong)
    assert all(file.exists() for file in train(b"one"))
    for file in train(b"one"):
        file.unlink()
    train(b"another")  # nothing is left of the others


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


def test_empty_shards_and_unequal_lengths_are_refused(tmp_path: Path) -> None:
    inputs, labels = some_data(4)
    rest = {"build_model": build, "shard_size": 4, "settings": TrainingSettings(), "progress": False}
    with pytest.raises(InvalidArgument, match="at least one record"):
        train_teachers(tmp_path, inputs=inputs, labels=labels, shards=[np.arange(4), np.arange(0)], **rest)
    with pytest.raises(InvalidArgument, match="as long as inputs"):
        train_teachers(tmp_path, inputs=inputs, labels=labels[:2], shards=[np.arange(4)], **rest)


TRAINS_FOR_MINUTES = """
import sys
from pathlib import Path
import numpy as np
import torch
from torch import nn
from darrm_torch import TrainingSettings, train_teachers

def build():
    return nn.Linear(4, 2)

if __name__ == "__main__":
    train_teachers(
        Path(sys.argv[1]),
        build_model=build,
        inputs=torch.rand(2000, 4),
        labels=torch.zeros(2000, dtype=torch.int64),
        shards=[np.arange(2000)] * 4,
        shard_size=2000,
        settings=TrainingSettings(batch_size=1, epochs=50),
        progress=False,
    )
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=["killed", "interrupted"])
def test_a_stopped_run_leaves_no_workers(tmp_path: Path, how: signal.Signals) -> None:
    """Which would replace a teacher that the next attempt has trained, and asked, meanwhile."""
    script = tmp_path / "train.py"
    script.write_text(TRAINS_FOR_MINUTES)
    process = subprocess.Popen([sys.executable, "-W", "ignore", script, tmp_path / "run"], start_new_session=True)
    deadline = time.monotonic() + 120
    while len(members(process.pid)) < 4:  # the script, the fork server and two workers
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.2)
    process.send_signal(how)
    process.wait(timeout=60)
    deadline = time.monotonic() + 20
    while members(process.pid) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert members(process.pid) == []


def members(group: int) -> list[int]:
    """Living processes of a process group."""
    alive = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            alive.append(int(stat.parent.name))
    return alive


def test_damaged_and_foreign_files_are_named(tmp_path: Path) -> None:
    inputs, labels = some_data(8)
    arguments = {"build_model": build, "inputs": inputs, "labels": labels, "shards": [np.arange(8)], "progress": False}
    setting = TrainingSettings(epochs=1)
    (tmp_path / "teacher-000.pt").write_bytes(b"junk")
    with pytest.raises(InvalidArgument, match=r"teacher-000\.pt must be a teacher's file.* Use another"):
        train_teachers(tmp_path, shard_size=8, settings=setting, **arguments)
    torch.save(
        train_teacher(build, inputs, labels, shard_size=8, settings=setting, seeds=(1, 2)), tmp_path / "teacher-000.pt"
    )
    with pytest.raises(InvalidArgument, match="teachers of others"):  # nothing says what it was trained on
        train_teachers(tmp_path, shard_size=8, settings=setting, **arguments)
    (tmp_path / "teacher-data.sha256").write_text(_data_digest(inputs, labels, [np.arange(8)]))
    assert train_teachers(tmp_path, shard_size=8, settings=setting, **arguments) == [tmp_path / "teacher-000.pt"]
    with pytest.raises(InvalidArgument, match="other settings"):
        train_teachers(tmp_path, shard_size=8, settings=TrainingSettings(epochs=2), **arguments)
    with pytest.raises(InvalidArgument, match="device must be cpu or cuda"):
        train_teachers(tmp_path, shard_size=8, settings=setting, device="abacus", **arguments)
