"""Files that are read and written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cli.commands import LABEL, MODELS, STUDENT, said

CLASHES = [  # a file that is written, and one that it must not be
    ((*LABEL[:-1], "x.npy"), "--out", "--inputs"),
    ((*LABEL[:-1], "teacher-1.pt"), "--out", "--models"),
    (("label", *LABEL[1:3], "--models", ".", *LABEL[7:-1], "teacher-1.pt"), "--out", "--models"),
    ((*LABEL[:-1], "wide-0.pt", "--accountants", "wide-0.pt", *MODELS[:2]), "--out", "--accountants"),
    ((*LABEL[:-1], "./link.npy"), "--out", "--inputs"),
    ((*LABEL[:-1], "hard.npy"), "--out", "--inputs"),
    ((*LABEL[:-3], "same.npy", "--out", "empty/../same.npy"), "--out", "--ledger"),
    ((*LABEL[:-3], "teacher-1.pt", *LABEL[-2:]), "--ledger", "--models"),
    ((*STUDENT[:-1], "z.pt", "--labels", "z.pt"), "--out", "--labels"),
    ((*STUDENT[:-1], "z.pt", "--test-inputs", "x.npy", "--test-labels", "z.pt"), "--out", "--test-labels"),
    (("noise", "--teachers", "3", "--allowance", "1", "--out", "q.png", "--plot", "q.png"), "--plot", "--out"),
    (("noise", "--config", "noise.yaml", "--out", "noise.yaml"), "--out", "--config"),
    (("plan", "--teachers-folder", ".", "--label-target", "1", "--plot", "teacher-0.pt"),
     "--plot", "--teachers-folder"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "option", "other"), CLASHES)
def test_nothing_that_is_read_or_written_is_written_over(
    trained: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], option: str, other: str
) -> None:
    (trained / "link.npy").symlink_to("x.npy")
    os.link("x.npy", "hard.npy")
    (trained / "noise.yaml").write_text("teachers: 3\nallowance: 1\n")
    torch = pytest.importorskip("torch")
    torch.save(torch.zeros(30, dtype=torch.int64), "z.pt")
    before = {path: path.read_bytes() for path in trained.iterdir() if path.is_file()}
    assert f"{option} must be another file than {other}, got" in said(capsys, *arguments, status=2)
    assert {path: path.read_bytes() for path in trained.iterdir() if path.is_file()} == before
