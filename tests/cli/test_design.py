"""``darrm design``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import darrm_torch as dt
from darrm_torch import PrivacyGuarantee
from tests.cli.commands import check_mistake, said

ASK = ("design", "--records", "60000", "--total", "1,1e-5", "--sample-rate", "1/35", "--steps", "175")
RUN = {"records": 60_000, "total": PrivacyGuarantee(epsilon=1.0, delta=1e-5), "sample_rate": 1 / 35, "steps": 175}


@pytest.mark.slow
def test_design_is_what_the_library_says(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (*ASK, "--teachers", "4", "6", "--overlaps", "1", "--model-cost", "3")
    expected = dt.design(**RUN, teachers=(4, 6), overlaps=(1,), model_cost=3.0)
    assert json.loads(said(capsys, *arguments, "--json")) == expected.to_dict()
    assert said(capsys, *arguments) == f"{expected}\n"


def test_design_for_silos(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, *ASK, "--data", "silos", "--teachers", "3")
    assert "Recommendation: one teacher for each silo." in text
    assert max(map(len, text.splitlines())) < 80


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (ASK[:3], "--total"),
        ((*ASK, "--data", "lake"), "--data must be one of pooled, silos"),
        ((*ASK, "--teachers", "1"), "--teachers must be an integer in [2, 5000]"),
        ((*ASK, "--overlaps", "13"), "--overlaps must be an integer in [1, 12]"),
        ((*ASK, "--total", "1"), "--total.delta must be"),
        ((*ASK, "--data", "silos", "--overlaps", "1"), "--overlaps must be left out for silos"),
    ],
)
def test_mistakes(folder: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str) -> None:
    check_mistake(capsys, folder, *arguments, words=words)


def test_a_design_for_patients_needs_more_noise(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ask = (*ASK, "--data", "silos", "--teachers", "3", "--unit", "patient", "--records-per-unit", "4")
    assert "for adding or removing one patient with at most 4 records" in " ".join(said(capsys, *ask).split())
    result = json.loads(said(capsys, *ask, "--json"))
    assert result["unit"] == {"name": "patient", "records": 4, "neighbours": "add/remove"}
    noise = result["designs"][0]["noise_multiplier"]
    run = dt.PrivacyProfile.from_dp_sgd([(noise, 1 / 35, 175)])
    assert run.for_unit("patient", records=4).epsilon(1e-5) <= 1
    assert run.epsilon(1e-5) < 0.5
