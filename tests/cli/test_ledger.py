"""``darrm ledger``, and what ``darrm label`` asks of a ledger that was started before."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.optimize
import torch

import darrm_torch as dt
from darrm_torch import cli
from darrm_torch.noise.table_program import self_bounding_table, vote_private_table
from tests.cli.commands import ASK, GNMAX, LABEL, MODELS, WIDE, darrm, said


@pytest.mark.slow
def test_in_the_second_week_the_ledger_knows_its_noise(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = (*GNMAX[:-1], "permute-and-flip", "--overlap", "1", "--total-target", "8,1e-5", "--labels", "50")
    said(capsys, *first)
    labels = np.load("y.npy")
    np.save("x.npy", np.concatenate([np.load("x.npy"), np.eye(4, dtype=np.float32)]))
    second = GNMAX[:-2]  # no noise, no target
    assert "34 labels" in said(capsys, *second)
    assert np.array_equal(np.load("y.npy")[:30], labels)
    again = (
        *second,
        "--total-target",
        "8,0.00001",
        "--labels",
        "50",
        "--overlap",
        "1",
        "--mechanism",
        "permute-and-flip",
    )
    assert "34 labels" in said(capsys, *again)  # the same, said otherwise
    options = "--mechanism permute-and-flip --total-target 8,1e-5 --labels 50 --overlap 1 --delta 0.0001"
    for option, value in (
        ("--labels", "51"), ("--total-target", "9,1e-5"), ("--overlap", "2"), ("--label-target", "1,1e-5"),
        ("--mechanism", "exponential"), ("--classes", "0 1"), ("--delta", "1e-6"),
    ):  # fmt: skip
        message = said(capsys, *second, option, *value.split(), status=2)
        assert f"{option} must be left out, or as when labels.ledger was started ({options}), got " in message
    assert "--budget must be left out with --total-target" in said(capsys, *second, "--budget", "1", status=2)
    np.save("x.npy", np.random.default_rng(1).normal(size=(50, 4)).astype(np.float32))
    assert "16 more labels fit" in said(capsys, *second, status=1)


def test_a_ledger_of_others_is_refused_in_words_of_the_command(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said(capsys, *LABEL, "--budget", "99,1e-2")
    others = [*LABEL[:4], MODELS[1], MODELS[0], *LABEL[6:]]
    assert "belongs to other teachers, or to the same in another order (--models, --votes, --accountants)." in said(
        capsys, *others, status=2
    )
    fewer = said(capsys, *LABEL, "--budget", "9,1e-2", status=2)
    assert "--budget must be left out, or (99, 0.01)-DP, as in the ledger, got '(9, 0.01)-DP'" in fewer
    said(capsys, *LABEL, "--ledger", "free.ledger")
    assert "--budget must be left out, as in the" in said(
        capsys, *LABEL, "--ledger", "free.ledger", "--budget", "9,1e-2", status=2
    )
    # One of Python, which notes no options.
    ensemble = dt.PrivateMajorityEnsemble(
        [cli.networks.load_model(Path(f"plain-{model}"), "nets_of_a_user:build") for model in MODELS],
        dt.GNMax(sigma=2.0, overlap=3, teachers=3), ledger=dt.PrivacyLedger("python.ledger"),
    )  # fmt: skip
    assert ensemble.ledger.count == 0
    message = said(capsys, *GNMAX, "--ledger", "python.ledger", "--label-target", "1,1e-5", status=2)
    assert "belongs to another noise (--mechanism, --allowance or a target, --labels" in message


ELSEWHERE = {
    "darrm": ("--allowance", "1.5"),
    "gnmax": ("--total-target", "30,1e-4", "--labels", "40"),
    "self-bounding": ("--allowance", "1.5", *WIDE),
    "vote-private": ("--label-target", "1,1e-4", *WIDE),
}


def rounded_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on solvers and calibrations find other last digits, as on another machine."""
    fetch_noise, strongest, linprog = dt.fetch_noise, dt.strongest_mechanism, scipy.optimize.linprog

    def fetch(**how: Any) -> Any:
        gamma = fetch_noise(**how).gamma * (1 - 1e-9)
        known = {name: value for name, value in how.items() if name != "on_progress"}
        return dt.NoiseFunction(gamma=gamma, certificate=dt.certify(gamma, **known))

    def solve(*arguments: Any, **how: Any) -> Any:
        result = linprog(*arguments, **how)
        result.x = (1 - 1e-8) * result.x + 1e-8 / 3
        return result

    def calibrate(*arguments: Any, **how: Any) -> Any:
        found = strongest(*arguments, **how)
        return replace(found, sigma=found.sigma * (1 + 1e-12)) if isinstance(found, dt.GNMax) else found

    monkeypatch.setattr("darrm_torch.labels.kept.fetch_noise", fetch)
    monkeypatch.setattr("darrm_torch.strongest_mechanism", calibrate)
    monkeypatch.setattr("scipy.optimize.linprog", solve)
    monkeypatch.setattr("darrm_torch.mechanisms.plurality._self_bounding", self_bounding_table)  # without its cache
    monkeypatch.setattr("darrm_torch.mechanisms.plurality._vote_private", vote_private_table)


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] * (kind == "darrm")) for kind in ELSEWHERE]
)
def test_label_goes_on_with_the_noise_of_the_ledger_on_another_machine(
    trained: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    command = (*ASK, "--mechanism", kind, *ELSEWHERE[kind], "--overlap", "3", "--json")
    first = json.loads(said(capsys, *command))["mechanism"]
    labels = np.load("y.npy")
    rounded_otherwise(monkeypatch)
    elsewhere = json.loads(said(capsys, *command, "--ledger", "another.ledger"))["mechanism"]
    assert elsewhere != first
    np.save("x.npy", np.concatenate([np.load("x.npy"), np.eye(4, dtype=np.float32)]))
    again = json.loads(said(capsys, *command))
    assert again["mechanism"] == first
    assert again["labels"] == 34
    assert np.array_equal(np.load("y.npy")[:30], labels)


@pytest.mark.slow
def test_label_goes_on_under_other_threads_and_kernels(trained: Path) -> None:
    command = ("label", *ASK[1:], "--mechanism", "self-bounding", "--allowance", "1.5", *WIDE, "--overlap", "3")
    counts = []
    for machine in (
        {"OMP_NUM_THREADS": "1"},
        {"OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"},
        {"OPENBLAS_CORETYPE": "Prescott", "MKL_CBWR": "COMPATIBLE", "ATEN_CPU_CAPABILITY": "default"},
    ):
        path = os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(trained)])
        done = darrm(*command, "--json", env={**os.environ, "PYTHONPATH": path, **machine})
        assert done.returncode == 0, done.stderr
        counts.append(json.loads(done.stdout)["labels"])
    assert counts == [30, 30, 30]


def test_a_ledger_is_shown(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said(capsys, *GNMAX, "--overlap", "1", "--total-target", "8,1e-5", "--labels", "50", "--batch-size", "20")
    text = said(capsys, "ledger", "labels.ledger")
    assert text.startswith("30 labels in 2 batches.\n")
    assert re.search(r"^  20\d\d-\d\d-\d\d \(UTC\) +\d+ labels in [12] batch", text, re.MULTILINE)
    assert "Budget: (8, 1e-05)-DP." in text
    assert re.search(r"Noise: GNMax, .*sigma \d", text)
    assert "Started with: darrm label --mechanism gnmax --total-target 8,1e-5 --labels 50" in " ".join(text.split())
    spent, left = re.search(r"Spent: \(([\d.]+), 1e-05\)-DP, by.*Left: (\d+) labels", " ".join(text.split())).groups()
    assert (0 < float(spent) < 8, 20 <= int(left) < 25) == (True, True)  # made for 50
    assert max(map(len, text.splitlines())) < 80
    result = json.loads(said(capsys, "ledger", "labels.ledger", "--json"))
    assert result["labels"] == sum(day["labels"] for day in result["days"]) == 30
    assert result["options"]["labels"] == 50
    assert "answers" not in result
    again = json.loads(said(capsys, *GNMAX, "--json"))
    assert result["spent"]["epsilon"] == again["total"]["epsilon"]
    said(capsys, *LABEL, "--ledger", "theirs.ledger")
    text = said(capsys, "ledger", "theirs.ledger")
    assert "Budget: none, so there is no limit." in text
    assert "Spent: not known from the file alone" in text
    assert "Run `darrm label` with this ledger" in " ".join(text.split())
    ledger = dt.PrivacyLedger("own.ledger")
    ledger.answer([b"a"], lambda new: [1])
    text = said(capsys, "ledger", "own.ledger")
    assert text.startswith("1 label in 1 batch.\n")
    assert "Build the same ensemble with this ledger in Python" in " ".join(text.split())
    assert "file must be a file or folder that exists" in said(capsys, "ledger", "none.ledger", status=2)
    assert not Path("none.ledger").exists()
    Path("nothing").touch()
    assert "got 'nothing'. This is an empty file." in said(capsys, "ledger", "nothing", status=2)
    with contextlib.closing(sqlite3.connect("other.db")) as other:
        other.execute("CREATE TABLE mine (x)")
    for name in ("junk.pt", "other.db", "empty"):
        before = Path(name).read_bytes() if Path(name).is_file() else None
        message = said(capsys, "ledger", name, status=2)
        assert f"file must be a ledger, as `darrm label --ledger` writes it, got '{name}'" in message
        assert before is None or Path(name).read_bytes() == before
    broken = bytearray(Path("own.ledger").read_bytes())
    broken[-40:-30] = bytes(10)
    Path("broken.ledger").write_bytes(broken)
    assert "darrm: error: file: " in said(capsys, "ledger", "broken.ledger", status=2)


EVERY_KIND = {
    "DaRRM": lambda: dt.DaRRM(dt.self_bounding_noise(teachers=3, allowance=1.0)),
    "DaRRM for one label": lambda: dt.DaRRM(
        dt.optimize_noise(teachers=3, teacher=POINT, target=dt.PrivacyGuarantee(epsilon=2.0, delta=1e-4))
    ),
    "SelfBoundingPlurality": lambda: dt.SelfBoundingPlurality(teachers=3, classes=2, allowance=1.5),
    "VotePrivatePlurality": lambda: dt.VotePrivatePlurality(teachers=3, classes=2, epsilon=0.5, overlap=3),
    "NoiseFreeMajority": lambda: dt.NoiseFreeMajority(classes=2),
    "GNMax": lambda: dt.GNMax(sigma=2.0, overlap=3),
    "LNMax": lambda: dt.LNMax(scale=2.0, overlap=3),
    "PermuteAndFlip": lambda: dt.PermuteAndFlip(epsilon=0.5, overlap=3),
    "ExponentialMechanism": lambda: dt.ExponentialMechanism(epsilon=0.5, overlap=3),
    "RandomizedPlurality": lambda: dt.RandomizedPlurality(epsilon=0.5, classes=2),
}
POINT = dt.PrivacyGuarantee(epsilon=1.0, delta=1e-5)


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_a_ledger_that_python_started_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """As the tutorials make it, with each mechanism, also where the file is read-only."""
    monkeypatch.chdir(tmp_path)
    mechanism, profiles = EVERY_KIND[kind](), [dt.PrivacyProfile.from_guarantee(POINT)] * 3
    ledger = dt.PrivacyLedger("labels.ledger", dt.PrivacyGuarantee(epsilon=90.0, delta=1e-2))
    models = [torch.nn.Linear(2, 2) for _ in range(3)]
    ensemble = dt.PrivateMajorityEnsemble(models, mechanism, profiles=profiles, ledger=ledger)
    ensemble(torch.rand(4, 2))
    ledger.close()
    for mode in (0o600, 0o400):
        Path("labels.ledger").chmod(mode)
        text = " ".join(said(capsys, "ledger", "labels.ledger").split())
        assert text.startswith("4 labels in 1 batch.")
        assert f"Noise: {type(mechanism).__name__}" in text
        assert "Budget: (90, 0.01)-DP." in text
        assert "Spent: " in text
        assert json.loads(said(capsys, "ledger", "labels.ledger", "--json"))["labels"] == 4
