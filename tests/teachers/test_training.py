"""Training that does not depend on the number of records, and folders from which it resumes."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from darrm_torch import InvalidArgument, TrainingSettings, assign_shards, load_teacher, train_teachers
from darrm_torch.teachers.dp_sgd import train_teacher
from darrm_torch.teachers.training import _data_digest


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
        with pytest.raises(InvalidArgument, match="a folder with teachers of these data and shards"):
            train(**wrong)
    assert all(file.exists() for file in train(b"one"))
    for file in train(b"one"):
        file.unlink()
    train(b"another")  # nothing is left of the others


def test_empty_shards_and_unequal_lengths_are_refused(tmp_path: Path) -> None:
    inputs, labels = some_data(4)
    rest = {"build_model": build, "shard_size": 4, "settings": TrainingSettings(), "progress": False}
    with pytest.raises(InvalidArgument, match="at least one record"):
        train_teachers(tmp_path, inputs=inputs, labels=labels, shards=[np.arange(4), np.arange(0)], **rest)
    for shard, problem in ([0, 1, 1], "repeated"), ([-1, 2], "outside"), ([4], "outside"), ([0.5], "float64"):
        with pytest.raises(InvalidArgument, match=rf"shard 1 must be different positions in .*{problem}"):
            train_teachers(tmp_path, inputs=inputs, labels=labels, shards=[np.arange(4), np.array(shard)], **rest)
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
        train_teachers(tmp_path, shard_size=8, settings=setting, secure=True, **arguments)
    with pytest.raises(InvalidArgument, match="insecure_seed must be None with secure=True"):
        train_teachers(tmp_path, shard_size=8, settings=setting, secure=True, insecure_seed=1, **arguments)
    with pytest.raises(InvalidArgument, match="other settings"):
        train_teachers(tmp_path, shard_size=8, settings=TrainingSettings(epochs=2), **arguments)
    with pytest.raises(InvalidArgument, match="device must be cpu or cuda"):
        train_teachers(tmp_path, shard_size=8, settings=setting, device="abacus", **arguments)
