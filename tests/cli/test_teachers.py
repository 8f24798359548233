"""``darrm teachers``."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import darrm_torch as dt
from tests.cli.commands import MODELS, check_mistake, name_of, said


def test_teachers_are_read(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for sources in (MODELS, (".",)):
        text = said(capsys, "teachers", *sources, "--delta", "1e-4")
        assert len(re.findall(r"teacher-\d.pt +0\.\d+ +0\.\d+ +0\.\d+   assumed", text)) == 3
        assert max(map(len, text.splitlines())) < 80
        result = json.loads(said(capsys, "teachers", *sources, "--delta", "1e-4", "--json"))
        assert [one["history"] for one in result] == [[[4.0, 0.1, 10]]] * 3
        assert dt.PrivacyProfile.from_dict(result[0]["profile"]).epsilon(1e-4) == result[0]["epsilon"]
    text = said(capsys, "plan", "--teachers-folder", ".", "--label-target", "0.5,1e-4")
    assert text.startswith("3 teachers")
    assert "Recommendation: noise-free majority" in text


def test_a_finding_is_refused_unless_it_is_accepted(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    checkpoint = torch.load("teacher-0.pt", weights_only=True)
    checkpoint["privacy_accountant_state_dict"]["mechanism"] = "gdp"
    torch.save(checkpoint, "gdp.pt")
    assert said(capsys, "teachers", "gdp.pt", status=1).endswith("(--accept gdp)\n")
    assert "vouches" in said(capsys, "teachers", "gdp.pt", "--accept", "gdp")


MISTAKES = [
    (("teachers", "nothing.pt"), "'nothing.pt'. Check the spelling."),
    (("teachers", "nets_of_a_user.py"), "sources must be a readable checkpoint, got 'nets_of_a_user.py'"),
    (("teachers", "junk.pt"), "sources must be a readable checkpoint, got 'junk.pt'"),
    (("teachers", "plain-teacher-0.pt"), "got 'plain-teacher-0.pt'. It holds no accountant. Write it with"),
    (("teachers", "empty"), "sources must be a folder with .pt files, got 'empty'. It holds none."),
    (("teachers", "run"), "got 'run'. Did you mean run/teachers?"),
    (("teachers", "teacher-0.pt", "--delta", "2"), "--delta must be a number in (0, 1)"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "words"), MISTAKES, ids=name_of)
def test_a_mistake_is_one_line_that_names_it(
    trained: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    check_mistake(capsys, trained, *arguments, words=words)
