"""``darrm audit``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from darrm_torch import cli
from tests.cli.commands import check_mistake, name_of, said

QUICK = ("--samples", "20000")
GNMAX = ("audit", "--mechanism", "gnmax", "--teachers", "11", "--overlap", "1", "--label-target", "1,1e-5", *QUICK)
DARRM = ("--teachers", "5", "--teacher", "0.5", "--label-target", "1")


def test_a_mechanism_that_keeps_its_claim(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "Not refuted: one label is (1, 1e-05)-DP." in said(capsys, *GNMAX).replace("\n  ", " ")
    answer = json.loads(said(capsys, "audit", "--mechanism", "darrm", *DARRM, *QUICK, "--json"))
    assert answer["claim"] == {"epsilon": 1.0, "delta": 0.0}
    assert 0.5 < answer["epsilon"] <= 1.0
    subsampling = ("--mechanism", "subsampling", "--allowance", "2", "--teachers", "5", "--teacher", "0.5")
    assert "Not refuted" in said(capsys, "audit", *subsampling, "--claim", "1", *QUICK)


def test_a_file_of_noise(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said(capsys, "noise", "--teachers", "5", "--teacher", "0.5", "--target", "1", "--out", "n.json")
    assert "Not refuted: one label is (1, 0)-DP." in said(capsys, "audit", "--noise", "n.json", *QUICK)
    assert "the labels are not (0.5, 0)-DP" in said(
        capsys, "audit", "--noise", "n.json", "--claim", "0.5", *QUICK, status=1
    )


def test_a_wrong_claim_is_refuted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "the labels are not (0.2, 1e-05)-DP" in said(capsys, *GNMAX, "--claim", "0.2,1e-5", status=1)


PIPELINES = """
import numpy as np

def records():
    return np.random.default_rng(1).normal(size=(40, 60)), np.arange(40) % 2

def sums(inputs, labels):
    total = ((2 * labels[:, None] - 1) * inputs).sum(axis=0)
    return lambda queries: queries @ total

def constant(inputs, labels, queries):
    return np.zeros(len(queries), dtype=int)

def broken(inputs, labels):
    raise RuntimeError("no")
"""


@pytest.fixture
def pipelines(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (folder / "pipelines_of_a_user.py").write_text(PIPELINES)
    monkeypatch.delitem(sys.modules, "pipelines_of_a_user", raising=False)
    return folder


def pipeline(name: str) -> tuple[str, ...]:
    functions = ("--pipeline", f"pipelines_of_a_user:{name}", "--records", "pipelines_of_a_user:records")
    return ("audit", *functions, "--claim", "1,1e-6")


def test_a_pipeline(pipelines: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main((*pipeline("sums"), "--runs", "3", "--plot", "audit.png")) == 1
    text = capsys.readouterr().out
    assert "REFUTED" in text
    assert "60 canaries, 3 runs" in text.replace("\n  ", " ")
    assert (pipelines / "audit.png").read_bytes().startswith(b"\x89PNG")
    options = ("--query-control", "--strength", "far-out", "--canaries", "10", "--copies", "1")
    answer = json.loads(said(capsys, *pipeline("constant"), *options, "--json"))
    assert answer["refuted"] is False
    assert answer["coins"] == 10


def test_mistakes_about_a_pipeline(pipelines: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in (
        (pipeline("sums")[:3], "required: --records; --claim (see darrm audit --help)"),
        (pipeline("nothing"), "--pipeline must be MODULE:FUNCTION"),
        ((*pipeline("sums"), "--canaries", "0"), "--canaries must be"),
        ((*pipeline("sums"), "--runs", "0"), "--runs must be"),
        ((*pipeline("sums"), "--strength", "strong"), "--strength"),
        ((*pipeline("sums"), "--noise", "n.json"), "give --mechanism KIND"),
        ((*pipeline("sums"), "--plot", "audit.txt"), "--plot must"),
        (pipeline("broken"), "RuntimeError: no"),
        ((*GNMAX, "--plot", "audit.png"), "--records and --plot go with --pipeline"),
    ):
        check_mistake(capsys, pipelines, *arguments, words=words)


MISTAKES = [
    (("audit",), "give --mechanism KIND, --noise FILE or --pipeline MODULE:FUNCTION"),
    (("audit", "--mechanism", "gnmax", "--noise", "n.json"), "give --mechanism KIND, --noise FILE"),
    (("audit", "--mechanism", "gnmax", "--label-target", "1,1e-5"), "required: --teachers (see darrm audit --help)"),
    (("audit", "--mechanism", "gnmx"), "Did you mean gnmax?"),
    ((*GNMAX, "--samples", "0"), "--samples must be"),
    ((*GNMAX, "--confidence", "2"), "--confidence must be"),
    (("audit", "--noise", "nets_of_a_user.py"), "a file that `darrm noise --out` wrote"),
    (("audit", "--noise", "nothing.json"), "'nothing.json'"),
    (("audit", "--mechanism", "subsampling", "--allowance", "1", "--teachers", "5", "--teacher", ".5"), "--claim must"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "words"), MISTAKES, ids=name_of)
def test_a_mistake_is_one_line_that_names_it(
    trained: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    check_mistake(capsys, trained, *arguments, words=words)
