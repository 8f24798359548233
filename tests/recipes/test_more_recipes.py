"""The other recipes at a small size: they run, keep their promises, resume, and leave nothing that they should not."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import darrm_torch as dt
from recipes import data
from recipes.models import PaperCNN

ROOT = Path(__file__).parents[2]
USELESS = pytest.mark.filterwarnings("error:the labels carry noise")  # no recipe does what the library warns of


def recipe(name: str) -> Any:
    return importlib.import_module(f"recipes.{name}")


@pytest.fixture(scope="module")
def own_models() -> tuple[Any, ...]:
    """What the recipe trained, and its images, from few records."""
    own = recipe("02_your_own_models")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(own, "load_task", functools.partial(own.load_task, limit=240))
        return tuple(own.train_teachers_of_your_own())


@pytest.mark.slow
def test_readme_example_runs(own_models: tuple[Any, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "README.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len([line for line in example.splitlines() if line]) <= 10
    namespace = own_models[0] | {"images": own_models[1], "backbone": PaperCNN()}
    exec(example, namespace)
    assert namespace["data"].labels.shape == (100,)
    assert namespace["ledger"].count == 100
    (file,) = tmp_path.rglob("*.ckpt")
    assert torch.load(file, weights_only=True)["darrm_privacy_report"]["labels"] == 100


@USELESS
@pytest.mark.slow
def test_own_models_to_a_student_in_ten_lines(
    own_models: tuple[Any, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own, students = recipe("02_your_own_models"), []
    teach = own.teach_a_student
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(own, "train_teachers_of_your_own", lambda: own_models)
    monkeypatch.setattr(own, "teach_a_student", lambda *given: students.append(teach(*given)))
    own.main()
    shown = capsys.readouterr().out
    assert "100 labels" in shown
    assert "One label is" in shown
    assert "by random allocation" in shown
    (student,) = students
    assert student(own_models[1][:3]).shape == (3, 2)
    assert os.listdir(tmp_path) == []


@pytest.mark.slow
def test_your_own_models_at_full_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe("02_your_own_models").main()
    assert "One label" in capsys.readouterr().out
    assert os.listdir(tmp_path) == []


@USELESS
@pytest.mark.slow
def test_lightning_teachers_go_on_where_they_stopped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    teachers = recipe("05_lightning_teachers")
    steps = {}
    for epochs in (1, 2):
        teachers.main(tmp_path, teachers=2, epochs=epochs, limit=200)
        assert "Each record drew 1 of 2 shards in secret" in " ".join(capsys.readouterr().out.split())
        for number in range(2):
            file = tmp_path / str(number) / "last.ckpt"
            steps[epochs, number] = torch.load(file, weights_only=True)["global_step"]
            assert dt.read_privacy(file, delta=1e-4).reading.history[0][2] == steps[epochs, number]
    assert all(steps[2, number] == 2 * steps[1, number] > 0 for number in range(2))


@USELESS
@pytest.mark.slow
def test_tabular(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tabular = recipe("07_tabular")
    first = tabular.main(tmp_path, teachers=3)
    assert first > 0.7  # always the larger class: 0.6
    ledger = dt.PrivacyLedger(tmp_path / "labels.ledger")
    assert ledger.count == 100
    assert tabular.main(tmp_path, teachers=3) > 0.7
    assert ledger.count == 100  # asked again, it is free
    assert "One label is" in capsys.readouterr().out
    private, _, public, _ = tabular.patients()
    assert {row.numpy().tobytes() for row in private}.isdisjoint(row.numpy().tobytes() for row in public)


@pytest.mark.slow
def test_votes_on_a_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two worker processes write the parts; a block that is written again costs nothing and changes nothing."""
    pytest.importorskip("distributed")
    pytest.importorskip("pyarrow")
    cluster, how = recipe("10_votes_on_a_cluster"), {"blocks": 3, "rows": 500, "epochs": 8}
    assert cluster.main(tmp_path, **how) > 0.5
    assert "Released: 1500 labels, by NoiseFreeMajority from 7 teachers" in capsys.readouterr().out
    parts, labels = sorted((tmp_path / "votes").iterdir()), (tmp_path / "labels.csv").read_bytes()
    assert [part.name for part in parts] == [f"part-{block:04d}.parquet" for block in range(3)]
    votes = parts[1].read_bytes()
    parts[1].unlink()
    cluster.write_votes(1, rows=500, files=sorted((tmp_path / "teachers").glob("*.pt")), folder=tmp_path / "votes")
    assert parts[1].read_bytes() == votes
    (tmp_path / "votes" / ".part-0009.parquet").touch()  # of a worker that was killed
    file = dt.VoteFile(tmp_path / "votes", teachers=7, classes=10, keys="id")
    assert (len(file), labels.count(b"\n")) == (1500, 1501)


DIES = """
import importlib, os, signal, sys
from dataclasses import replace
from pathlib import Path
import darrm_torch as dt
from recipes import data

findings, answer = importlib.import_module("recipes.12_findings"), dt.PrivacyLedger.answer

def killed(ledger, keys, draw):
    def die(rows):
        labels = draw(rows)
        if ledger.count == 500:
            os.kill(os.getpid(), signal.SIGKILL)
        return labels
    return answer(ledger, keys, die)

dt.PrivacyLedger.answer = killed
findings.TEACHER = replace(findings.TEACHER, epochs=1)
findings.study(Path(sys.argv[1]), data.load_all_classes(limit=1000), seeds=1, queries=250, steps=2)
"""


@pytest.mark.slow
def test_findings_killed_in_the_middle_and_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first process dies when its teachers have voted on the second hundred images."""
    command = [sys.executable, "-c", DIES, str(tmp_path)]
    assert subprocess.run(command, check=False, cwd=ROOT, capture_output=True).returncode == -signal.SIGKILL
    before = dt.PrivacyLedger(tmp_path / "run-0" / "labels.ledger")
    assert [charge.labels for charge in before.charges] == [500]  # five findings of a hundred images, or none
    trained = {file: file.stat().st_mtime_ns for file in (tmp_path / "run-0" / "teachers").glob("teacher-*.pt")}
    findings = recipe("12_findings")
    monkeypatch.setattr(findings, "TEACHER", dataclasses.replace(findings.TEACHER, epochs=1))
    monkeypatch.setattr(findings, "ONE_MODEL", dataclasses.replace(findings.ONE_MODEL, epochs=1))
    task = data.load_all_classes(limit=1000)
    (results,) = findings.study(tmp_path, task, seeds=1, queries=250, steps=50)
    assert [charge.labels for charge in dt.PrivacyLedger(before.path).charges] == [500, 500, 250]
    assert {file: file.stat().st_mtime_ns for file in trained} == trained
    assert len(trained) == findings.TEACHERS
    assert set(results) == set(findings.COLUMNS)
    assert np.mean(results["true labels"]) > np.mean(results["majority"])
    again = findings.label(tmp_path / "run-0", task, data.PUBLISHED[task.source])  # the whole run can be repeated
    assert again.ledger.count == 1250
    shown = " ".join(capsys.readouterr().out.split())
    assert "1250 labels, one for each finding (footwear, long sleeves, opens in front, covers the legs, for" in shown
    assert "Each record drew 1 of 11 shards in secret" in shown


def test_fresh_votes_compose(capsys: pytest.CaptureFixture[str]) -> None:
    fresh = recipe("08_fresh_votes")
    results = fresh.main(hospitals=11)
    assert results["right"] == pytest.approx(1 / (1 + np.exp(-0.5)), abs=1e-9)
    # Ten labels of (0.25, 0) and ten answers of (0.5, 0), added up: no theorem does better at this delta.
    assert results["total"] == pytest.approx(2.5, abs=1e-3)
    assert results["published"] == pytest.approx(5.0, abs=1e-3)
    assert results["total"] <= 2.5
    assert "certified label" in capsys.readouterr().out
    # A hospital's view: which measurements are higher in its malignant cases.
    measured = np.array([[1.0, 5.0], [2.0, 4.0], [9.0, 1.0]])
    assert fresh.signs(measured, np.array([0, 0, 1])).tolist() == [1, 0]
    assert fresh.signs(measured, np.array([0, 0, 0])).tolist() == [0, 0]


STUDENTS_OF_ONE_RUN = ["--data", "mnist-5000", "--limit", "300", "--teachers", "3", "--epochs", "1", "--queries", "20"]


@pytest.mark.slow
def test_students_by_label_source_and_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    students, run = recipe("04_students"), tmp_path / "run"
    command = ["--run", str(run), "--seeds", "2", "--steps", "3"]
    assert students.main([*command, *STUDENTS_OF_ONE_RUN]) == 0
    shown = capsys.readouterr().out
    assert all(kind in shown for kind in students.KINDS)
    assert max(map(len, shown[shown.index("Accuracy: ") :].splitlines())) <= 80
    results = json.loads((run / "students.json").read_text())
    assert set(results) == set(students.KINDS)
    for row in results.values():
        assert set(row) == set(students.SOURCES)
        assert row["true"]["labels"] == [1.0, 1.0]
        # The same labels for every kind of student: asked once for each seed.
        assert all(row[source]["labels"] == results["VAT"][source]["labels"] for source in students.SOURCES)
        assert all(0 <= accuracy <= 1 for source in row.values() for accuracy in source["student"])
    for name, most in (("darrm-optimal", 40), ("gnmax-exact", 40), ("noise-free", 0)):
        assert dt.PrivacyLedger(run / "study" / "ledgers" / f"{name}.ledger").count <= most
    assert dt.PrivacyLedger(run / "ledgers" / "darrm-optimal.ledger").count == 20
    assert students.main([*command, *STUDENTS_OF_ONE_RUN]) == 2
    assert "has its own settings; --data, --limit" in capsys.readouterr().err


def test_a_student_of_soft_labels_is_scored_by_their_largest_entry() -> None:
    students = recipe("04_students")
    teachers = [nn.Sequential(nn.Flatten(), nn.Linear(784, 2)) for _ in range(3)]
    images, labels = torch.rand(40, 1, 28, 28), torch.arange(40) % 2
    task = data.Task("noise", "made up", "none", *[images, labels] * 3)
    found = []
    for source, mechanism in (("darrm-optimal", dt.NoiseFreeMajority()), ("mean", dt.MeanProbabilities())):
        ensemble = dt.PrivateMajorityEnsemble(teachers, mechanism, ledger=dt.PrivacyLedger())
        found.append(students.teach(source, ensemble, task, queries=10, seed=1, steps=2, aware=True))
    assert all(0 <= accuracy <= 1 for pair in found for accuracy in pair)
    some = {"supervised": {source: {"labels": [0.5], "student": [0.6]} for source in students.SOURCES}}
    assert "soft labels" in students.table(some)


def test_a_student_of_true_labels_asks_nobody() -> None:
    students = recipe("04_students")
    profiles = [dt.PrivacyProfile.from_guarantee(dt.PrivacyGuarantee(epsilon=0.1))] * 3
    teachers = [nn.Sequential(nn.Flatten(), nn.Linear(784, 2)) for _ in range(3)]
    mechanism = dt.DaRRM(dt.self_bounding_noise(teachers=3, allowance=2.0))
    ensemble = dt.PrivateMajorityEnsemble(teachers, mechanism, profiles=profiles)
    images, labels = torch.rand(40, 1, 28, 28), torch.arange(40) % 2
    task = data.Task("noise", "made up", "none", *[images, labels] * 3)
    for source, accuracy, asked in (("true", 1.0, 0), ("darrm-optimal", None, 10)):
        found, _ = students.teach(source, ensemble, task, queries=10, seed=1, steps=2, aware=True)
        assert accuracy in (None, found)
        assert ensemble.ledger.count == asked


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.skipif(not data.DEBIAN_FOLDER.exists(), reason="Debian's dataset-fashion-mnist is not installed")
def test_semi_supervised_students_are_better_than_their_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The paper's task, 100 labels at m = 3: above the labels, and near a student of as many true ones."""
    students, run = recipe("04_students"), str(tmp_path / "run")
    build = students.experiment.build_ensembles

    def build_seeded(*what: Any) -> dict[str, dt.PrivateMajorityEnsemble]:
        ensembles = build(*what)
        for (
            ensemble
        ) in ensembles.values():  # so that the outcome is the same each time; an ensemble allows no such thing
            vars(ensemble)["mechanism"] = dataclasses.replace(ensemble.mechanism, insecure_seed=1)
        return ensembles

    assert students.demo.main(["--data", "fashion-mnist", "--seed", "1", "--run", run]) == 0
    monkeypatch.setattr(students.experiment, "build_ensembles", build_seeded)
    kinds = {kind: students.KINDS[kind] for kind in ("supervised", "FixMatch")}
    results = students.study(Path(run), seeds=3, steps=300, kinds=kinds)
    private, true = results["FixMatch"]["darrm-optimal"], results["supervised"]["true"]
    assert np.mean(private["student"]) > np.mean(private["labels"])
    assert np.mean(private["student"]) > np.mean(true["student"]) - 0.015


@pytest.mark.slow
def test_federated_hospitals() -> None:
    """One split: every method runs, patients keep their epsilon, and hospitals together beat one alone."""
    pytest.importorskip("statsmodels")
    pytest.importorskip("cryptography")
    hospitals = recipe("09_federated_hospitals")
    study = hospitals.split(0)
    people = [set(rows) for rows in study.hospitals]
    assert len(set.union(*people)) == 3612
    assert max(sum(one in rows for rows in people) for one in set.union(*people)) == hospitals.OVERLAP
    assert not set.union(*people) & {*study.known, *study.public, *study.test}
    rows = hospitals.main(epsilons=(4.0,), seeds=1)
    assert all(row["epsilon"] <= 4.0 for row in rows)
    accuracy = [row["balanced_accuracy"][0] for row in rows]
    assert min(accuracy[2:6]) > 0.6
    assert [row["rounds"] for row in rows] == [0, 0, 1, 1, 10, 40, 10]
