"""``darrm student``."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import numpy as np
import pytest

from tests.cli.commands import ASK, LABEL, STUDENT, check_mistake, name_of, said


def test_labels_and_a_student(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    report = said(capsys, *LABEL)
    assert "Released: 30 labels, by DaRRM from 3 teachers" in report
    labels = np.load("y.npy")
    assert labels.shape == (30,)
    assert set(labels) <= {0, 1}
    again = json.loads(said(capsys, *LABEL[:-1], "again.pt", "--json"))
    assert again["labels"] == 30  # asked again, they are free and the same
    assert np.array_equal(torch.load("again.pt", weights_only=True).numpy(), labels)
    result = json.loads(
        said(capsys, "student", "--inputs", "x.npy", "--labels", "y.npy", "--build", "nets_of_a_user:build",
             "--out", "student.pt", "--epochs", "2", "--test-inputs", "x.npy", "--test-labels", "y.npy", "--json")
    )  # fmt: skip
    assert 0 <= result["test_accuracy"] <= 1
    torch.nn.Linear(4, 2).load_state_dict(torch.load("student.pt", weights_only=True))


def test_a_student_reads_the_table_that_label_writes(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said(capsys, *LABEL[:-1], "y.csv")
    np.savetxt("x.csv", np.load("x.npy"), delimiter=",", header="a,b,c,d", comments="")
    trains = ("student", "--inputs", "x.csv", "--labels", "y.csv", "--build", "nets_of_a_user:build", "--out", "s.pt")
    assert "Trained on 30 labels for 1 epochs" in said(capsys, *trains, "--epochs", "1")


def test_soft_labels_and_a_student(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ask = [*ASK, "--mechanism", "mean-probabilities", "--overlap", "1"]
    report = said(capsys, *ask)
    assert "Released: 30 soft labels, by MeanProbabilities from 3 teachers" in report
    assert "expected agreement" not in report
    rows = np.load("y.npy")
    assert (rows.shape, rows.dtype) == ((30, 2), np.dtype(np.float32))
    result = json.loads(said(capsys, *ask, "--json"))
    assert result["expected_agreement"] is None
    assert np.array_equal(np.load("y.npy"), rows)
    trains = ("student", "--inputs", "x.npy", "--labels", "y.npy", "--build", "nets_of_a_user:build", "--out", "s.pt")
    tested = ("--test-inputs", "x.npy", "--test-labels", "y.npy")
    assert "Trained on 30 labels for 2 epochs" in said(capsys, *trains, "--epochs", "2", *tested)
    np.save("wrong.npy", 2 * rows)
    check_mistake(capsys, trained, *trains, "--labels", "wrong.npy", words="rows of 2 probabilities that sum to 1")
    check_mistake(capsys, trained, *ask, "--out", "y.csv", words="--out must be a file that ends in .npy or .pt")


def test_a_student_can_be_stopped(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Lightning catches the interruption, and ignores the signal from then on."""
    before = sorted(path.name for path in trained.iterdir())
    handler = signal.getsignal(signal.SIGINT)
    try:
        assert said(capsys, *STUDENT, "--build", "nets_of_a_user:stopped", status=130) == "darrm: stopped\n"
    finally:
        signal.signal(signal.SIGINT, handler)
    assert sorted(path.name for path in trained.iterdir() if path.name != "__pycache__") == before


MISTAKES = [
    (("student", "--inputs", "x.npy", "--labels", "x.npy", "--build", "nets_of_a_user:build", "--out", "s.pt"),
     "--labels must be integers, one for each of 30 inputs"),
    ((*STUDENT, "--out", "s3"), "--out must be a file that ends in .pt, got 's3'"),
    ((*STUDENT, "--out", "."), "--out must be a file, got '.'. This is a folder."),
    ((*STUDENT, "--out", "no/s.pt"), "got 'no/s.pt'. There is no such folder."),
    ((*STUDENT, "--classes", "5"), "--classes must be a network's outputs, (1, 5) for one input, got (1, 2)"),
    ((*STUDENT, "--learning-rate", "1e300"), "--learning-rate must be a number in (0, 1000]"),
    ((*STUDENT, "--inputs", "three.npy", "--labels", "ones.npy"), "--inputs must be inputs that the network"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "words"), MISTAKES, ids=name_of)
def test_a_mistake_is_one_line_that_names_it(
    trained: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    check_mistake(capsys, trained, *arguments, words=words)
