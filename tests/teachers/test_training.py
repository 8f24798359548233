"""Training that does not depend on the number of records, and folders from which it resumes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import darrm_torch as dt
from darrm_torch import (
    InvalidArgument,
    TrainingSettings,
    assign_shards,
    contiguous_shards,
    load_teacher,
    read_teachers,
    train_teachers,
)
from darrm_torch.errors import DarrmError
from darrm_torch.teachers.allocations import recorded_allocation
from darrm_torch.teachers.dp_sgd import train_teacher
from darrm_torch.teachers.jobs import QueuedJob
from darrm_torch.teachers.records import data_digest
from darrm_torch.teachers.training import prepare_training, run_trainings
from tests.processes import HANGS, running, wait_for
from tests.teachers.helpers import build, some_data, wide_zeros, zeros


def test_teachers_are_kept_resumed_and_independent(tmp_path: Path) -> None:
    inputs, labels = some_data(60)
    everyone = [np.arange(60)] * 3
    arguments = {
        "build_model": wide_zeros,
        "dataset": TensorDataset(inputs, labels),
        "shards": everyone,
        "shard_size": 60,
        "settings": TrainingSettings(batch_size=20, epochs=1),
        "progress": False,
    }
    (tmp_path / "teacher-001.partial").write_bytes(b"left by a killed process")
    files = train_teachers(tmp_path, **arguments)
    states, histories = [], []
    for file in files:
        model = wide_zeros()
        histories.append(load_teacher(file, model)["privacy_accountant_state_dict"]["history"])
        states.append(model[1].weight)
    assert histories == [[(12.0, 1 / 3, 3)]] * 3
    # Same data, same zero start: only the noise of 128 weights differs, and it must not be shared.
    for a, b in ((0, 1), (0, 2), (1, 2)):
        correlation = torch.corrcoef(torch.stack([states[a].flatten(), states[b].flatten()]))[0, 1]
        assert abs(correlation) < 0.97
    files[1].unlink()
    times = [files[0].stat().st_mtime_ns, files[2].stat().st_mtime_ns]
    again = train_teachers(tmp_path, **arguments)
    assert again == files
    assert [files[0].stat().st_mtime_ns, files[2].stat().st_mtime_ns] == times
    fresh = wide_zeros()
    load_teacher(files[1], fresh)
    assert not torch.equal(fresh[1].weight, states[1])


def test_files_of_another_format(tmp_path: Path) -> None:
    """Older ones are rewritten, with a copy kept, and newer ones are refused; the times of files tell nothing new."""
    inputs, labels = some_data(20)
    arguments = {
        "build_model": zeros,
        "dataset": TensorDataset(inputs, labels),
        "shards": [np.arange(20)] * 2,
        "shard_size": 20,
        "settings": TrainingSettings(batch_size=20, epochs=1),
        "progress": False,
        "workers": 1,
    }
    files = train_teachers(tmp_path, **arguments)
    record = torch.load(files[0], weights_only=True)
    assert record.pop("darrm_torch_format") == 2
    torch.save(record, files[0])
    os.utime(files[0], ns=(5, 5))
    old = files[0].read_bytes()
    for _ in range(2):
        assert train_teachers(tmp_path, **arguments) == files
    kept = tmp_path / "teacher-000.pt.format-1"
    assert (kept.read_bytes(), [path.stat().st_mtime_ns for path in (files[0], kept)]) == (old, [5, 5])
    assert files[0].stat().st_mode & 0o777 == 0o600
    again = torch.load(files[0], weights_only=True)
    assert again.keys() == {*record, "darrm_torch_format"}
    assert len(read_teachers(tmp_path)) == 2
    torch.save(record | {"darrm_torch_format": 3}, files[0])
    for use in (lambda: train_teachers(tmp_path, **arguments), lambda: read_teachers(tmp_path)):
        with pytest.raises(InvalidArgument, match="newer version"):
            use()


def test_a_folder_goes_on_with_the_same_data_and_shards_only(tmp_path: Path) -> None:
    """Interrupted, and run again with another key: a record may then be in the data of two teachers, not of one."""
    inputs, labels = some_data(60)

    def train(seed: int, moved: bool = False) -> list[Path]:
        return train_teachers(
            tmp_path,
            build_model=zeros,
            dataset=TensorDataset(inputs.flip(0) if moved else inputs, labels),
            shards=assign_shards(60, teachers=2, insecure_seed=seed),
            shard_size=30,
            settings=TrainingSettings(batch_size=20, epochs=1),
            progress=False,
            workers=1,
        )

    train(1)[1].unlink()
    for wrong in ({"seed": 2}, {"seed": 1, "moved": True}):
        with pytest.raises(InvalidArgument, match="a folder with teachers of these data and shards"):
            train(**wrong)
    assert all(file.exists() for file in train(1))
    for file in train(1):
        file.unlink()
    train(2)  # nothing is left of the others


def test_positions_outside_the_data_are_refused(tmp_path: Path) -> None:
    inputs, labels = some_data(4)
    rest = {"build_model": build, "shard_size": 4, "settings": TrainingSettings(), "progress": False}
    with pytest.raises(InvalidArgument, match="each shard must be different positions"):
        train_teachers(tmp_path, dataset=TensorDataset(inputs, labels), shards=[np.arange(9)], **rest)


TRAINS_FOR_MINUTES = """
import sys
from pathlib import Path
import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset
from darrm_torch import TrainingSettings, train_teachers

def build():
    return nn.Linear(4, 2)

if __name__ == "__main__":
    train_teachers(
        Path(sys.argv[1]),
        build_model=build,
        dataset=TensorDataset(torch.rand(2000, 4), torch.zeros(2000, dtype=torch.int64)),
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
    with running([sys.executable, "-W", "ignore", script, tmp_path / "run"]) as process:
        # The script, the fork server and two workers.
        wait_for(lambda: len(members(process.pid)) >= 4, process)
        process.send_signal(how)
        process.wait(timeout=HANGS)
        wait_for(lambda: members(process.pid) == [])


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
    records = TensorDataset(inputs, labels)
    arguments = {"build_model": build, "dataset": records, "shards": [np.arange(8)], "progress": False}
    setting = TrainingSettings(epochs=1)
    (tmp_path / "teacher-000.pt").write_bytes(b"junk")
    with pytest.raises(InvalidArgument, match=r"teacher-000\.pt must be a teacher's file.* Use another"):
        train_teachers(tmp_path, shard_size=8, settings=setting, **arguments)
    record = train_teacher(build, records, shard_size=8, settings=setting, seeds=(1, 2))
    torch.save(record, tmp_path / "teacher-000.pt")
    with pytest.raises(InvalidArgument, match="teachers of others"):  # nothing says what it was trained on
        train_teachers(tmp_path, shard_size=8, settings=setting, **arguments)
    (tmp_path / "private" / "teacher-data.sha256").write_text(data_digest(records, [np.arange(8)]))
    assert train_teachers(tmp_path, shard_size=8, settings=setting, **arguments) == [tmp_path / "teacher-000.pt"]
    with pytest.raises(InvalidArgument, match="other settings"):
        train_teachers(tmp_path, shard_size=8, settings=setting, secure=True, **arguments)
    with pytest.raises(InvalidArgument, match="insecure_seed must be None with secure=True"):
        train_teachers(tmp_path, shard_size=8, settings=setting, secure=True, insecure_seed=1, **arguments)
    with pytest.raises(InvalidArgument, match="other settings"):
        train_teachers(tmp_path, shard_size=8, settings=TrainingSettings(epochs=2), **arguments)
    with pytest.raises(InvalidArgument, match="device must be cpu or cuda"):
        train_teachers(tmp_path, shard_size=8, settings=setting, device="abacus", **arguments)


def test_faulty_records_are_trained_without_a_word(tmp_path: Path) -> None:
    """An error would tell about single records; ignored_records is for their owner."""
    inputs, labels = some_data(20)
    inputs[3], labels[5], labels[6] = float("nan"), 9, -100
    assert dt.ignored_records(inputs, labels, classes=2).tolist() == [3, 5, 6]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        files = train_teachers(
            tmp_path, build_model=build, dataset=TensorDataset(inputs, labels), shards=[np.arange(20)], shard_size=20,
            settings=TrainingSettings(batch_size=10, epochs=1), workers=1, progress=False,
        )  # fmt: skip
    dt.load_teacher(files[0], build())  # refuses weights that are not finite


class Picky(nn.Module):
    """Fails on one record."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if (x == 7.0).any():
            raise RuntimeError("a record with a 7 in it")
        return self.layer(x)


def test_a_failed_training_shows_no_record(tmp_path: Path) -> None:
    inputs, labels = some_data(60)
    inputs[3] = 7.0
    with pytest.raises(DarrmError, match=r"a training failed\. The reason is in ") as caught:
        train_teachers(
            tmp_path,
            build_model=Picky,
            dataset=TensorDataset(inputs, labels),
            shards=assign_shards(60, teachers=2),
            shard_size=30,
            settings=TrainingSettings(batch_size=30, epochs=3),
            progress=False,
            workers=1,
        )
    assert "7" not in str(caught.value).replace(str(tmp_path), "")
    report = tmp_path / "private" / "failed-training.txt"
    assert "a record with a 7 in it" in report.read_text()
    assert report.stat().st_mode & 0o777 == 0o600


@pytest.fixture(scope="module")
def allocated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Five teachers on three records: at least two shards are empty."""
    folder = tmp_path_factory.mktemp("allocated")
    inputs, labels = some_data(3)
    arguments = {
        "build_model": build,
        "dataset": TensorDataset(inputs, labels),
        "shards": assign_shards(3, teachers=5, private_folder=folder / "private"),
        "shard_size": 60,
        "settings": TrainingSettings(batch_size=20, epochs=2, noise_multiplier=4.0),
        "progress": False,
        "workers": 1,
    }
    train_teachers(folder / "teachers", **arguments)
    return folder, arguments


def test_empty_shards_train_and_cost_the_same(allocated: tuple[Path, dict[str, Any]]) -> None:
    folder, arguments = allocated
    profiles = read_teachers(folder / "teachers")
    assert len({profile.reading.history for profile in profiles}) == 1
    assert all(profile.reading.randomness == profiles[0].reading.randomness for profile in profiles)
    allocation = recorded_allocation(profiles)
    assert allocation == arguments["shards"].allocation
    assert recorded_allocation(profiles[:4]) is None
    assert recorded_allocation([profiles[0], *profiles[:4]]) is None
    total = dt.total_privacy(
        teachers=profiles, mechanism=dt.NoiseFreeMajority(), labels=9, delta=1e-4, allocation=allocation
    )
    assert total.route.key == "allocation"
    assert total.epsilon < 0.6 * profiles[0].epsilon(1e-4)


def test_no_teacher_of_a_finished_training_is_trained_again(allocated: tuple[Path, dict[str, Any]]) -> None:
    """A second try at one teacher would be a choice by its results."""
    folder, arguments = allocated
    file = folder / "teachers" / "teacher-002.pt"
    content = file.read_bytes()
    again = arguments | {"shards": assign_shards(3, teachers=5, private_folder=folder / "private")}
    for shards in (arguments, again):
        file.unlink()
        with pytest.raises(
            InvalidArgument, match=r"all teachers of a finished training, got '1 fewer'.*Put the files back"
        ):
            train_teachers(folder / "teachers", **shards)
        file.write_bytes(content)
        assert file in train_teachers(folder / "teachers", **shards)


def test_a_training_is_finished_whatever_becomes_of_another_beside_it(
    allocated: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """Otherwise one of its teachers could be trained again, and chosen."""
    shards = assign_shards(3, teachers=5)
    arguments = {name: value for name, value in allocated[1].items() if name != "progress"}
    private = prepare_training(tmp_path, **(arguments | {"shards": shards}))

    def stop(kind: str, content: bytes) -> None:
        assert shards.finished
        raise KeyboardInterrupt

    last = QueuedJob(job=private.queue[0].job, store=stop, records=0)
    with pytest.raises(KeyboardInterrupt), ThreadPoolExecutor(1) as executor:
        run_trainings([private, replace(private, queue=[last])], executor=executor, workers=1, progress=False)
    assert shards.finished


def test_of_two_runs_at_a_time_the_first_teacher_is_kept(
    allocated: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """A finished teacher may have answered already, and none of them may be trained again."""
    arguments = {name: value for name, value in allocated[1].items() if name != "progress"}
    arguments["shards"] = shards = assign_shards(3, teachers=5)
    with ThreadPoolExecutor(1) as executor:
        one, other = (prepare_training(tmp_path, **arguments) for _ in range(2))
        run_trainings([one], executor=executor, progress=False)
        first = [file.read_bytes() for file in one.files]
        assert shards.finished
        run_trainings([other], executor=executor, progress=False)
    assert [file.read_bytes() for file in other.files] == first


def test_a_second_training_on_the_same_shards_is_priced_without_the_allocation(
    allocated: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    _, arguments = allocated
    profiles = read_teachers(train_teachers(tmp_path, **arguments))
    assert recorded_allocation(profiles) is None
    assert any("trained other teachers before" in note for note in profiles[0].reading.notes)


@pytest.mark.parametrize("how", [{"insecure_seed": 1}, {"settings": TrainingSettings(noise_multiplier=None, epochs=1)}])
def test_trainings_without_secret_noise_have_no_allocation(
    how: dict[str, Any], allocated: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    shards = assign_shards(3, teachers=5)
    (file, *_) = train_teachers(tmp_path, **(allocated[1] | {"shards": shards} | how))
    record = torch.load(file, weights_only=True)
    assert record["allocation"] is None
    assert record["no_allocation"]
    assert shards.allocation_for("another")[0] is not None  # nothing was used up


@pytest.mark.parametrize("drawn", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_total_sets_the_noise(drawn: bool, tmp_path: Path) -> None:
    inputs, labels = some_data(60)
    target = dt.PrivacyGuarantee(epsilon=0.5, delta=1e-5)
    files = train_teachers(
        tmp_path,
        build_model=build,
        dataset=TensorDataset(inputs, labels),
        shards=assign_shards(60, teachers=3) if drawn else [np.arange(60)] * 3,
        shard_size=20,
        settings=TrainingSettings(batch_size=10, epochs=1),
        total=target,
        progress=False,
        workers=1,
    )
    profiles = read_teachers(files)
    allocation = recorded_allocation(profiles)
    assert (allocation is not None) is drawn
    total = dt.total_privacy(
        teachers=profiles, mechanism=dt.NoiseFreeMajority(), labels=1, delta=1e-5, allocation=allocation
    )
    assert 0.98 * 0.5 < total.epsilon <= 0.5
    with pytest.raises(InvalidArgument, match="total must be None with these shards"):
        train_teachers(
            tmp_path / "slices",
            build_model=build,
            dataset=TensorDataset(inputs, labels),
            shards=contiguous_shards(60, teachers=3),
            shard_size=20,
            settings=TrainingSettings(),
            total=target,
        )


NEIGHBOURS = """
import hashlib, os, secrets, sys
from pathlib import Path
import torch
import darrm_torch as dt
from torch import nn
from torch.utils.data import TensorDataset

def build():
    return nn.Linear(4, 2)

if __name__ == "__main__":
    records, folder = int(sys.argv[1]), Path("run")
    def urandom(size):  # a fixed stream: each record draws alike, whatever records there are
        blocks = (hashlib.blake2b(b"%d" % place, digest_size=64).digest() for place in range(0, size, 64))
        return b"".join(blocks)[:size]
    secrets.token_hex = lambda size: "00" * size
    secrets.randbits = lambda size: 7
    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand(40, 4, generator=generator)[:records]
    labels = torch.arange(40)[:records] % 2
    system, os.urandom = os.urandom, urandom
    shards = dt.assign_shards(records, teachers=3, private_folder=Path("private"))
    os.urandom = system
    settings = dt.TrainingSettings(batch_size=10, epochs=2)
    records = TensorDataset(inputs, labels)
    files = dt.train_teachers(folder, build_model=build, dataset=records, shards=shards, shard_size=20,
                              settings=settings, workers=1)
    for profile in dt.read_teachers(folder, accept=["seeds"]):
        print(profile, profile.reading.notes, profile.reading.allocation, profile.reading.shard)
    print(shards)
    for file in sorted(folder.rglob("*")):
        record = torch.load(file, weights_only=True)
        shapes = {name: value.shape for name, value in record.pop("module_state_dict").items()}
        print(file, file.stat().st_size, shapes, record)
    print(len({file.stat().st_mtime_ns for file in files}))
"""


@pytest.mark.slow
def test_neighbours_differ_only_in_the_teachers(tmp_path: Path) -> None:
    """Everything that is written and printed outside the private folder, for data sets of 40 and of 39 records."""
    (tmp_path / "train.py").write_text(NEIGHBOURS)
    shown = []
    for records in (40, 39):
        place = tmp_path / str(records)
        place.mkdir()
        done = subprocess.run(
            [sys.executable, "-W", "ignore", tmp_path / "train.py", str(records)],
            cwd=place,
            env=os.environ | {"PYTHONPATH": str(Path(dt.__file__).parents[1])},
            capture_output=True,
            check=True,
            text=True,
        )
        assert (place / "private" / "draws.npy").exists()
        others = sorted(str(file.relative_to(place)) for file in place.rglob("*") if "private" not in file.parts)
        shown.append((done.stdout, done.stderr.splitlines()[-1], others))
    assert shown[0] == shown[1]
    assert shown[0][0].endswith("1\n")  # one time for all files
    assert shown[0][2] == ["run", *(f"run/teacher-00{number}.pt" for number in range(3))]


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o777])
def test_only_the_owner_can_read_teachers_under_any_umask(tmp_path: Path, mask: int) -> None:
    inputs, labels = some_data(12)
    before = os.umask(mask)
    try:
        train_teachers(
            tmp_path / "new" / "teachers",
            build_model=zeros,
            dataset=TensorDataset(inputs, labels),
            shards=contiguous_shards(12, teachers=1),
            shard_size=12,
            settings=TrainingSettings(batch_size=12, epochs=1),
            progress=False,
            workers=1,
        )
    finally:
        os.umask(before)
    made = sorted((tmp_path / "new").rglob("*"))
    assert len(made) >= 4
    for path in [tmp_path / "new", *made]:
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


@pytest.mark.parametrize("name", ["../escape", "a/b", "", ".", "..", "/tmp/escape", "new\nline"])
def test_a_name_stays_in_its_folder(tmp_path: Path, name: str) -> None:
    inputs, labels = some_data(12)
    with pytest.raises(InvalidArgument, match="name must be a file name"):
        train_teachers(
            tmp_path / "teachers",
            build_model=zeros,
            dataset=TensorDataset(inputs, labels),
            shards=contiguous_shards(12, teachers=1),
            shard_size=12,
            settings=TrainingSettings(batch_size=12, epochs=1),
            name=name,
        )
    assert list(tmp_path.iterdir()) == []


def test_any_executor_trains_the_same_teachers(tmp_path: Path) -> None:
    inputs, labels = some_data(60)
    arguments = {
        "build_model": build,
        "dataset": TensorDataset(inputs, labels),
        "shards": [np.arange(20), np.arange(20, 60), np.arange(0)],
        "shard_size": 20,
        "settings": TrainingSettings(batch_size=10, epochs=2),
        "insecure_seed": 1,
        "progress": False,
    }
    here = train_teachers(tmp_path / "here", workers=1, **arguments)
    with ThreadPoolExecutor(2) as threads:  # which share one generator of Torch
        there = train_teachers(tmp_path / "there", executor=threads, workers=2, **arguments)
    for one, other in zip(here, there, strict=True):
        states = [torch.load(file, weights_only=True)["module_state_dict"]["1.weight"] for file in (one, other)]
        assert torch.equal(*states)
        assert other.stat().st_mode & 0o777 == 0o600
    assert len({file.stat().st_mtime_ns for file in there}) == 1


def noted(folder: Path, owner: int) -> nn.Module:
    """A network; leaves a file that says which process trains it. The last two of six wait for a file ``go``."""
    if os.getpid() != owner:
        (folder / f"{time.monotonic_ns()}-{os.getpid()}").touch()
        if len(starts(folder)) > 4:
            wait_for((folder.parent / "go").exists)
    return nn.Sequential(nn.Linear(4, 2))


def starts(folder: Path) -> list[int]:
    return [int(file.name.split("-")[1]) for file in sorted(folder.iterdir())]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_dask_trains_the_teachers_of_a_killed_worker_again(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    noting, teachers = tmp_path / "starts", tmp_path / "teachers"
    noting.mkdir()
    inputs, labels = some_data(60)
    inputs[7] = 0.123456
    records = TensorDataset(inputs, labels)
    shards = assign_shards(60, teachers=6, private_folder=tmp_path / "private")
    options = {"shards": shards, "shard_size": 10, "progress": False, "private_folder": tmp_path / "private"}
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=":0", local_directory=str(tmp_path / "workers")
        ) as cluster,
        distributed.Client(cluster) as client,
        ThreadPoolExecutor(1) as background,
    ):
        executor = client.get_executor()
        training = background.submit(
            train_teachers,
            teachers,
            build_model=partial(noted, noting, os.getpid()),
            dataset=records,
            settings=TrainingSettings(batch_size=1, epochs=1),
            executor=executor,
            **options,
        )
        # Then one or both of the last two have begun, and wait.
        wait_for(lambda: training.done() or len([*teachers.glob("[!.]*.pt")]) == 4 < len(starts(noting)))
        os.kill(starts(noting)[-1], signal.SIGKILL)
        (tmp_path / "go").touch()
        files = training.result(timeout=HANGS)
        assert len(starts(noting)) == 6 + 1
        profiles = read_teachers(files)
        assert recorded_allocation(profiles) == shards.allocation
        assert len({file.stat().st_mtime_ns for file in files}) == 1
        with pytest.raises(DarrmError, match=r"a training failed\. The reason is in "):
            train_teachers(
                tmp_path / "failing",
                build_model=Picky,
                dataset=TensorDataset(inputs.index_fill(0, torch.tensor([7]), 7.0), labels),
                settings=TrainingSettings(batch_size=10, epochs=2),
                executor=executor,
                **options,
            )
        logs = repr((cluster.get_logs(), client.get_worker_logs(), client.get_scheduler_logs()))
    assert "a record with a 7 in it" in (tmp_path / "private" / "failed-training.txt").read_text()
    assert not any(word in logs for word in ("a record with", "tensor(", "0.123", "Traceback"))
    left = [file for file in (tmp_path / "workers").rglob("*") if file.is_file()]
    assert not any(b"0.123" in file.read_bytes() or file.stat().st_size > 1000 for file in left), left
