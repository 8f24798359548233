"""``darrm student``."""

from __future__ import annotations

import importlib
import json
import signal
import sys
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


def test_the_student_has_as_many_classes_as_outputs(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save("three_classes.npy", np.arange(30) % 3)
    wide = (*STUDENT, "--labels", "three_classes.npy", "--build", "nets_of_a_user:three", "--epochs", "1")
    assert "Trained on 30 labels" in said(capsys, *wide)
    np.save("soft.npy", np.full((30, 3), 1 / 3, dtype=np.float32))
    assert "Trained on 30 labels" in said(capsys, *wide, "--labels", "soft.npy")
    check_mistake(capsys, trained, *wide, "--classes", "2", words="--classes must be a network's outputs, (1, 2)")


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
    check_mistake(capsys, trained, *trains, "--labels", "wrong.npy", words="or rows of 2 probabilities, got ")
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


LABELS = [  # as files hold them, and what is said; nothing: they are taught
    (np.array([0, 1, 1], dtype=np.uint16), ""),
    (np.array([0, 1, 1], dtype=np.uint32), ""),
    (np.array([0, 1, 1], dtype=np.uint64), ""),
    (np.array([0, 1, 1], dtype=">i4"), ""),
    (np.array([0, 1, 2**63 + 1], dtype=np.uint64), "--labels must be integers below 2**63"),
    (np.array([-1, -1, -1]), "--labels must be one label or more, got '-1 (no label) everywhere'"),
    (np.array([0, -2, 1]), "--labels must be from -1 to 1, for the 2 outputs of the student, got '-2 to 1'"),
    (np.array([5, 8, 8]), "--labels must be from -1 to 1, for the 2 outputs of the student, got '5 to 8'"),
    (np.array([0j, 1, 1]), "--labels must be an array of real numbers or integers"),
    (np.array(["a", "b", "c"]), "--labels must be an array of real numbers or integers"),
    (np.array(3), "--labels must be a dense array (N, ...)"),
]


@pytest.mark.parametrize(("labels", "words"), LABELS)
def test_labels_of_any_integer_type_are_read(
    trained: Path, capsys: pytest.CaptureFixture[str], labels: np.ndarray, words: str
) -> None:
    np.save("three_labels.npy", labels)
    np.save("three_inputs.npy", np.zeros((3, 4), dtype=np.uint16))
    arguments = (*STUDENT, "--inputs", "three_inputs.npy", "--labels", "three_labels.npy", "--epochs", "1")
    if words:
        check_mistake(capsys, trained, *arguments, words=words)
    else:
        assert "Trained on 3 labels" in said(capsys, *arguments)


def test_an_input_without_a_label_does_not_count_as_taught(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save("some.npy", np.where(np.arange(30) < 12, -1, 1))
    arguments = (*STUDENT, "--labels", "some.npy", "--epochs", "1")
    assert json.loads(said(capsys, *arguments, "--json"))["labels"] == 18
    arguments = (*STUDENT, "--test-inputs", "x.npy", "--test-labels", "some.npy")
    check_mistake(capsys, trained, *arguments, words="--test-labels must be from 0 to 1")


def test_nan_is_blamed_on_the_inputs(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for value in (np.nan, np.inf, 1e300):
        np.save("broken.npy", np.full((30, 4), value))
        check_mistake(capsys, trained, *STUDENT, "--inputs", "broken.npy", words="--inputs must be finite as float32")


@pytest.mark.parametrize(("arguments", "words"), MISTAKES, ids=name_of)
def test_a_mistake_is_one_line_that_names_it(
    trained: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    check_mistake(capsys, trained, *arguments, words=words)


TOKENS = """
import torch

class Tokens(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = torch.nn.Embedding(9, 4), torch.nn.Linear(4, 2)

    def forward(self, input_ids, attention_mask):
        return {"logits": self.head((self.embedding(input_ids) * attention_mask[..., None]).sum(dim=1))}
"""


def test_tokens_are_labelled_and_teach_a_student(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    (folder / "tokens_of_a_user.py").write_text(TOKENS)
    monkeypatch.delitem(sys.modules, "tokens_of_a_user", raising=False)
    monkeypatch.syspath_prepend(str(folder))
    network = importlib.import_module("tokens_of_a_user").Tokens
    for number in range(3):
        torch.save(network().state_dict(), f"teacher-{number}.pt")
    np.savez("x.npz", input_ids=np.arange(24).reshape(8, 3) % 9, attention_mask=np.ones((8, 3), dtype=np.int64))
    build = ("--inputs", "x.npz", "--build", "tokens_of_a_user:Tokens")
    models = ("--models", *(f"teacher-{number}.pt" for number in range(3)))
    noise = ("--mechanism", "gnmax", "--total-target", "9,1e-5")
    said(capsys, "label", *build, *models, *noise, "--batch-size", "3", "--ledger", "l.ledger", "--out", "y.npy")
    assert np.load("y.npy").shape == (8,)
    trains = ("student", *build, "--labels", "y.npy", "--out", "s.pt", "--epochs", "1")
    assert "Trained on 8 labels" in said(capsys, *trains)
