"""``darrm verify``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.commands import check_mistake, name_of, said


def test_a_changed_noise_function_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said(capsys, "noise", "--teachers", "3", "--teacher", "0.1", "--target", "0.1", "--out", "noise.json")
    plain = json.loads((folder / "noise.json").read_text())
    plain["gamma"] = [1.0] * 4
    (folder / "noise.json").write_text(json.dumps(plain))
    assert "one label is not (0.1, 0)-DP" in said(capsys, "verify", "noise.json", status=1)
    plain["certificate"] = None
    (folder / "noise.json").write_text(json.dumps(plain))
    assert "no certificate" in said(capsys, "verify", "noise.json", status=1)


def test_a_file_of_a_newer_version_is_refused_by_name(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said(capsys, "noise", "--teachers", "3", "--allowance", "1", "--out", "noise.json")
    (folder / "noise.json").write_text(json.dumps(json.loads((folder / "noise.json").read_text()) | {"format": 2}))
    assert "A newer version of darrm-torch wrote it" in said(capsys, "verify", "noise.json", status=2)


MISTAKES = [
    (("verify",), "the following arguments are required: file (see darrm verify --help)"),
    (("verify", "nothing.json"), "'nothing.json'"),
    (("verify", "x.npy"), "text file that can be read"),
    (("verify", "nets_of_a_user.py"), "a file that `darrm noise --out` wrote, got 'nets_of_a_user.py'"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "words"), MISTAKES, ids=name_of)
def test_a_mistake_is_one_line_that_names_it(
    trained: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    check_mistake(capsys, trained, *arguments, words=words)
