"""The recipes at a small size: they run, resume, pay once, and say in one line what is wrong."""

from __future__ import annotations

import importlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import darrm_torch as dt
from darrm_torch import InvalidArgument
from recipes import data, ten_classes
from tests.processes import running, wait_for

demo = importlib.import_module("recipes.01_private_labels")
ten = importlib.import_module("recipes.03_ten_classes")
ROOT = Path(__file__).parents[2]
SMALL = ["--data", "mnist-5000", "--limit", "300", "--teachers", "3", "--epochs", "1", "--queries", "20"]
METHODS = 7


def answers(file: Path) -> dict[str, int]:
    """The labels in a ledger by key."""
    text = io.StringIO()
    dt.PrivacyLedger(file).export_json(text)
    charges = json.loads(text.getvalue())["charges"]
    return {key: label for charge in charges for key, label in charge["labels"].items()}


def paid(run: Path) -> dict[str, int]:
    """Labels in each ledger."""
    return {file.stem: len(answers(file)) for file in sorted((run / "ledgers").glob("*.ledger"))}


def stamps(run: Path) -> dict[str, int]:
    # Without the hidden file that a killed process leaves behind.
    return {file.name: file.stat().st_mtime_ns for file in (run / "teachers").glob("[!.]*.pt")}


def test_offline_digits() -> None:
    task = data.load_task("mnist-5000")
    assert (task.source, task.classes) == ("mnist-5000", "even-odd")
    assert task.private_images.shape == (4000, 1, 28, 28)
    assert 0 <= task.private_images.min() <= task.private_images.max() <= 1
    assert set(task.private_labels.tolist()) == {0, 1}
    parts = (task.private_images, task.public_images, task.heldout_images)
    pictures = [{image.numpy().tobytes() for image in part} for part in parts]
    assert [len(part) for part in pictures] == [4000, 500, 500]
    assert len(set.union(*pictures)) == 5000


@pytest.mark.skipif(not data.DEBIAN_FOLDER.exists(), reason="Debian's dataset-fashion-mnist is not installed")
def test_fashion_mnist_is_the_papers_task() -> None:
    task = data.load_task("auto")
    assert (task.source, task.classes) == ("fashion-mnist", "5v8")
    assert "found in" in task.reason
    assert len(task.private_labels) == 12_000
    assert len(task.public_labels) + len(task.heldout_labels) == 2000
    assert task.private_labels.float().mean() == 0.5


def test_two_classes_of_a_folder(tmp_path: Path) -> None:
    import gzip

    images = np.arange(6 * 784, dtype=np.uint32).astype(np.uint8).reshape(6, 28, 28)
    labels = np.array([5, 8, 1, 5, 8, 8], dtype=np.uint8)
    for part in ("train", "t10k"):
        with gzip.open(tmp_path / f"{part}-images-idx3-ubyte.gz", "wb") as file:
            file.write(bytes(16) + images.tobytes())
        with gzip.open(tmp_path / f"{part}-labels-idx1-ubyte.gz", "wb") as file:
            file.write(bytes(8) + labels.tobytes())
    task = data.load_task("fashion-mnist", classes="8v5", folder=tmp_path)
    assert task.private_labels.tolist() == [1, 0, 1, 0, 0]
    assert torch.equal(task.private_images[0, 0], torch.from_numpy(images[0] / np.float32(255)))
    with pytest.raises(InvalidArgument, match=r"classes in the data \(1, 5, 8\)"):
        data.load_task("fashion-mnist", classes="5v7", folder=tmp_path)


def test_the_declared_number_of_records_does_not_depend_on_the_data() -> None:
    assert [data.load_task("mnist-5000", limit=limit).declared_records for limit in (40, 50)] == [4000, 4000]
    assert data.load_task("mnist-5000", classes="5v8", limit=40).declared_records == 800
    assert data.load_all_classes("mnist-5000", limit=40).declared_records == 4000


@pytest.mark.slow
def test_the_whole_way_and_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert demo.main([*SMALL, "--run", str(run)]) == 0
    shown = capsys.readouterr().out
    assert max(len(line) for line in shown.splitlines() if str(run) not in line) <= 80
    results = json.loads((run / "results.json").read_text())
    assert (run / "figure.png").read_bytes().startswith(b"\x89PNG")
    rows = {row["method"]: row for row in results["methods"]}
    assert len(rows) == METHODS
    for name, row in rows.items():
        assert row["total"]["epsilon"] <= results["total"]["epsilon"] * (1 + 1e-9)
        assert row["total"]["delta"] == results["total"]["delta"]
        if name not in ("noise-free", "one-model"):
            assert row["label"]["epsilon"] <= results["target"]["epsilon"]
            assert row["label"]["delta"] == results["target"]["delta"]
    # Labels of the same teachers: no total is a sum of one-label guarantees, but for self-bounding noise.
    assert rows["darrm-optimal"]["total"]["route"] == "publishing the teachers"
    assert rows["darrm-optimal"]["total"]["epsilon"] == rows["noise-free"]["total"]["epsilon"]
    assert paid(run) == dict.fromkeys(rows, 20)
    private = sorted((run / "private").iterdir())
    assert [file.name for file in private] == [
        "draw.json",
        "draws.npy",
        "model-data.sha256",
        "plain-teacher-data.sha256",
        "teacher-data.sha256",
    ]
    assert all(file.stat().st_mode & 0o077 == 0 for file in private)
    prices = results["prices"]
    assert 0 < prices["allocation"] < prices["true"] < prices["assumed"] == results["total"]["epsilon"]
    for words in ("one DP-SGD model", "drawn at random and in secret", "train one private model"):
        assert words in " ".join(shown.split())
    before, records = stamps(run), [row["released_label_accuracy"] for row in results["methods"]]
    for file in sorted((run / "students").glob("*.json"))[:2]:
        file.unlink()  # as if stopped between labelling and these students
    assert demo.main([*SMALL, "--run", str(run)]) == 0
    again = json.loads((run / "results.json").read_text())
    assert stamps(run) == before
    assert paid(run) == dict.fromkeys(rows, 20)
    assert [row["released_label_accuracy"] for row in again["methods"]] == records
    capsys.readouterr()
    older = run / "teachers" / "teacher-001.pt"  # as if an earlier version had trained another network
    record = torch.load(older, weights_only=True)
    name, weights = next(iter(record["module_state_dict"].items()))
    record["module_state_dict"][name] = weights[:1]
    torch.save(record, older)
    assert demo.main([*SMALL, "--run", str(run)]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith(f"01_private_labels: error: {older} must be the weights of this PaperCNN")
    assert f"{name} is (1, " in error


BARE = "setpriv --bounding-set=-dac_override,-dac_read_search true"  # for such a process permission bits count


@pytest.mark.slow
@pytest.mark.parametrize("mask", ["0", "0277"])
def test_a_run_is_for_its_owner_under_any_umask(tmp_path: Path, mask: str) -> None:
    """The whole recipe, and once more, from a folder with code that is not to be run, for an ordinary user."""
    bare = BARE.removesuffix(" true")
    if os.geteuid() != 0:
        bare = ""
    elif shutil.which("setpriv") is None or subprocess.run(BARE.split(), check=False, capture_output=True).returncode:
        pytest.skip("root ignores permissions, and setpriv cannot take that right away here")
    for name in ("recipes", "torch", "darrm_torch"):
        (tmp_path / f"{name}.py").write_text("open('executed', 'w')")
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "__init__.py").write_text("open('executed', 'w')")
    darrm = Path(sys.executable).with_name("darrm")
    command = f"umask {mask} && exec {bare} {darrm} demo {' '.join(SMALL)} --run deep/run"
    for _ in range(1 + (mask != "0")):
        done = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert not (tmp_path / "executed").exists()
    made = [tmp_path / "deep", *(tmp_path / "deep").rglob("*")]
    assert len(made) > 20
    wrong = [path for path in made if path.stat().st_mode & 0o777 != (0o700 if path.is_dir() else 0o600)]
    assert wrong == []


WRONG = {
    "no teachers": (["--teachers", "0"], "teachers"),
    "overlap beyond K": (["--teachers", "3", "--overlap", "4"], "overlap"),
    "assumed overlap beyond K": (["--teachers", "3", "--assumed-overlap", "4"], "assumed-overlap"),
    "assumed overlap below the true one": (["--overlap", "2", "--assumed-overlap", "1"], "assumed-overlap"),
    "unknown data": (["--data", "cifar"], "fashion-mnist"),
    "absent classes": (["--classes", "5v12"], "classes"),
    "no classes": (["--classes", "cats"], "classes"),
    "epsilon of nothing": (["--epsilon", "0"], "epsilon"),
    "no delta": (["--delta", "0"], "delta"),
    "no noise": (["--noise-multiplier", "0"], "--noise-multiplier"),
    "no queries": (["--queries", "0"], "queries"),
    "too many queries": (["--queries", "100000"], "queries"),
    "words for a number": (["--teachers", "many"], "--teachers"),
    "unknown option": (["--teacher-count", "3"], "--teacher-count"),
    "more teachers than records": (["--limit", "20", "--teachers", "40", "--queries", "5"], "records"),
    "negative limit": (["--limit", "-5"], "limit"),
    "no workers": (["--workers", "0"], "workers"),
    "negative seed": (["--seed", "-1"], "seed"),
}


def refused(main: Any, arguments: list[str], named: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It says in one line what is wrong, with status 2, and has trained nothing."""
    assert main(["--data", "mnist-5000", "--limit", "100", "--run", str(run), *arguments]) == 2
    error = capsys.readouterr().err
    assert re.match(r"0\d_\w+: error: ", error)
    assert error.count("\n") == 1
    assert named in error
    assert not (run / "teachers").exists()


@pytest.mark.parametrize("wrong", WRONG)
def test_mistakes_are_one_line_and_status_2(wrong: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, named = WRONG[wrong]
    refused(demo.main, arguments, named, tmp_path / "run", capsys)


@pytest.mark.slow
def test_folders_that_cannot_be_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    taken = tmp_path / "taken"
    taken.write_text("a file")
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.tex").write_text("precious")
    other = tmp_path / "other"
    other.mkdir()
    (other / "settings.json").write_text(json.dumps({"teachers": 11}))
    for folder in (taken, foreign, other, Path("/proc/nowhere")):
        assert demo.main([*SMALL, "--run", str(folder)]) == 2
        error = capsys.readouterr().err
        assert error.startswith("01_private_labels: error: --run must be")
        assert error.count("\n") == 1
    assert (foreign / "thesis.tex").read_text() == "precious"


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["training", "labelling"])
def test_killed_and_run_again(moment: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = [sys.executable, "-m", "recipes.01_private_labels", *SMALL, "--epochs", "3", "--run", str(run)]

    def reached() -> bool:
        if moment == "training":
            return len(stamps(run)) >= 1
        return (run / "ledgers").exists() and len(list((run / "students").glob("*.json"))) >= 2

    with running(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        wait_for(reached, process)
        process.send_signal(signal.SIGKILL)
        process.wait()
    kept, answered = stamps(run), {}
    for file in (run / "ledgers").glob("*.ledger"):
        answered[file.stem] = answers(file)
    again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    after = stamps(run)
    assert all(after[name] == stamp for name, stamp in kept.items())
    assert len(after) == 6
    assert set(paid(run).values()) == {20}
    for name, labels in answered.items():
        assert labels.items() <= answers(run / "ledgers" / f"{name}.ledger").items()


@pytest.mark.slow
def test_all_ten_classes_offline() -> None:
    task = data.load_all_classes("mnist-5000", limit=60)
    assert (task.source, task.classes) == ("mnist-5000", "ten classes")
    assert (len(task.private_labels), len(task.public_labels), len(task.heldout_labels)) == (60, 30, 30)
    assert set(task.private_labels.tolist()) == set(range(10))
    two = data.load_task("mnist-5000", limit=60)
    assert torch.equal(task.private_images, two.private_images)
    assert torch.equal(task.private_labels % 2, two.private_labels)
    with pytest.raises(InvalidArgument, match="data must be"):
        data.load_all_classes("cifar")


def test_accuracy_of_ten_classes_is_exact() -> None:
    counts = torch.tensor([[2, 1, 0], [0, 3, 0], [1, 1, 1]])
    free = dt.NoiseFreeMajority()
    assert ten_classes.label_accuracy(free, counts=counts, truth=torch.tensor([0, 1, 2])) == pytest.approx(
        (1 + 1 + 1 / 3) / 3
    )
    assert ten_classes.label_accuracy(free, counts=counts, truth=torch.tensor([1, 1, 2])) == pytest.approx(
        (0 + 1 + 1 / 3) / 3
    )


def test_own_randomness_for_ten_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    """One label by the mechanism's own randomness keeps its target; GNMax uses its label where votes can be listed."""
    settings = types.SimpleNamespace(teachers=3, delta=1e-5)
    mechanisms = ten_classes.vote_mechanisms(settings, 0.5)
    assert list(mechanisms) == list(ten_classes.PLAIN_TITLES)
    for name, mechanism in mechanisms.items():
        promise = mechanism.guarantee(delta=1e-5 if name.startswith("gnmax") else None)
        assert promise.epsilon <= 0.5
        assert promise.delta == (1e-5 if name.startswith("gnmax") else 0)
    assert mechanisms["gnmax-label"].sigma < mechanisms["gnmax-exact"].sigma < mechanisms["gnmax-rdp"].sigma
    monkeypatch.setattr(ten_classes, "LISTED", 2)  # three votes have three histograms
    assert set(mechanisms) - set(ten_classes.vote_mechanisms(settings, 0.5)) == {"gnmax-label"}


SMALL_TEN = ["--data", "mnist-5000", "--limit", "300", "--teachers", "3", "--epochs", "1", "--queries", "20"]


@pytest.mark.slow
def test_ten_classes_and_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    command = [*SMALL_TEN, "--steps", "1", "--allowance", "1", "--run", str(run)]
    assert ten.main(command) == 0
    shown = capsys.readouterr().out
    assert max(len(line) for line in shown.splitlines() if str(run) not in line) <= 80
    assert (run / "figure.png").read_bytes().startswith(b"\x89PNG")
    results = json.loads((run / "results.json").read_text())
    rows = {row["method"]: row for row in results["methods"]}
    assert list(rows) == [*ten_classes.PRIVATE_TITLES, *ten_classes.PLAIN_TITLES]
    teacher, delta = results["teachers"]["epsilon"], results["settings"]["delta"]
    for name, row in rows.items():
        if name in ten_classes.PLAIN_TITLES:
            assert (row["overlap"], row["label"]["delta"]) == (1, delta)
            assert row["label"]["epsilon"] <= results["settings"]["vote_epsilon"] * (1 + 1e-9)
            assert row["total"]["route"] == "the mechanism's own randomness"
        elif name != "noise-free":
            assert (row["overlap"], row["label"]["delta"]) == (3, delta)
            assert row["label"]["epsilon"] <= teacher * (1 + 1e-9)
        assert 0 <= row["label_accuracy"] <= 1
    # Without noise a label costs all teachers; so do many labels of any noise.
    assert rows["noise-free"]["label"]["route"] == rows["self-bounding"]["total"]["route"] == "publishing the teachers"
    assert rows["self-bounding"]["label"]["route"] == "self-bounding noise"
    assert [point["allowance"] for point in results["by_allowance"]] == list(ten_classes.ALLOWANCES)
    beyond = results["by_allowance"][-1]["accuracy"]  # m = 5 of three teachers: no noise is needed
    assert beyond["self-bounding"] == pytest.approx(beyond["noise-free"], abs=1e-12)
    assert paid(run) == dict.fromkeys(rows, 20)
    before, records = stamps(run), [row["released_label_accuracy"] for row in results["methods"]]
    assert len(before) == 6
    for file in (run / "students").glob("*.json"):
        file.unlink()  # as if stopped between labelling and the students
    assert ten.main(command) == 0
    again = json.loads((run / "results.json").read_text())
    assert stamps(run) == before
    assert paid(run) == dict.fromkeys(rows, 20)
    assert [row["released_label_accuracy"] for row in again["methods"]] == records


WRONG_TEN = {
    "no teachers": (["--teachers", "0"], "teachers"),
    "unknown data": (["--data", "cifar"], "fashion-mnist"),
    "no allowance": (["--allowance", "0"], "allowance"),
    "randomness that protects nothing": (["--vote-epsilon", "inf"], "vote-epsilon"),
    "no delta": (["--delta", "0"], "delta"),
    "nothing left without a label": (["--queries", "50"], "queries"),
    "students that learn nothing": (["--steps", "0"], "steps"),
    "no noise": (["--noise-multiplier", "0"], "--noise-multiplier"),
    "unknown option": (["--classes", "5v8"], "--classes"),
    "no workers": (["--workers", "0"], "workers"),
}


@pytest.mark.parametrize("wrong", WRONG_TEN)
def test_mistakes_with_ten_classes(wrong: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, named = WRONG_TEN[wrong]
    refused(ten.main, ["--queries", "5", *arguments], named, tmp_path / "run", capsys)
