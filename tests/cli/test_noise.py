"""``darrm noise``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import darrm_torch as dt
from tests.cli.commands import PAPER, check_mistake, name_of, said


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (("--teacher", "0.1,1e-5", "--target", "0.3,1e-4"), "label"),
        ((*PAPER, "--target", "0.1,1e-4", "--overlap", "2"), "label"),
        (("--allowance", "2.5"), "self-bounding"),
    ],
)
def test_noise_is_written_and_proven_again(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], kind: str
) -> None:
    pytest.importorskip("matplotlib")
    result = said(capsys, "noise", "--teachers", "5", *arguments, "--out", "noise.json", "--plot", "noise.svg")
    assert result.startswith("Proven: ")
    assert max(map(len, result.splitlines())) < 80
    assert "<svg" in (folder / "noise.svg").read_text()
    assert dt.NoiseFunction.from_json((folder / "noise.json").read_text()).teachers == 5
    assert said(capsys, "verify", "noise.json") == result
    text = json.dumps(json.loads((folder / "noise.json").read_text()), indent=1)  # as other machines save it
    (folder / "noise.json").write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    assert said(capsys, "verify", "noise.json") == result
    assert json.loads(said(capsys, "verify", "noise.json", "--json"))["kind"] == kind
    assert sorted(path.name for path in folder.iterdir()) == ["noise.json", "noise.svg"]


def test_noise_without_a_file_is_printed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "noise", "--teachers", "3", "--allowance", "1")
    assert dt.NoiseFunction.from_json(text) == dt.self_bounding_noise(teachers=3, allowance=1)


def test_noise_reports_the_smallest_proven_allowance(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A record in the training data of two teachers costs at most those two."""
    asked = ("noise", "--teachers", "11", "--out", "n.json", "--allowance")
    assert "Proven with m = 2 as well" in " ".join(said(capsys, *asked, "3", "--overlap", "2").split())
    assert "as well" not in said(capsys, *asked, "3")
    assert "as well" not in said(capsys, *asked, "0.3")  # but for rounding


def test_rates_are_numbers_or_fractions(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("noise", "--teachers", "3", *PAPER[:2], "--steps", "175", "--target", "0.1,1e-4")
    (folder / "noise.yaml").write_text("sample_rate: 0.5\n")
    assert said(capsys, *arguments, "--sample-rate", "1/35") == said(capsys, *arguments, "--sample-rate", str(1 / 35))
    assert said(capsys, *arguments, "--config", "noise.yaml") == said(capsys, *arguments, "--sample-rate", "5e-1")


MISTAKES = [
    (("noise", "--teachers", "3"), "required: --target or --allowance; --teacher, or --noise-m"),
    (("noise", "--teachers", "3", "--target", "0.1"), "required: --teacher, or --noise-multiplier, --sa"),
    (("noise", "--teachers", "3", "--allowance", "-1"), "--allowance must be a number in (0, inf)"),
    (("noise", "--teachers", "3", "--allowance", "1", "--shape", "fre"), "Did you mean free?"),
    (("noise", "--teachers", "3", "--allowance", "1", "--shape", "free"), "--shape must be left out with --allowance"),
    (("noise", "--teachers", "3", "--allowance", "1", "--teacher", "0.1"), "--teacher must be left out with --allow"),
    (("noise", "--teachers", "3", "--allowance", "1", "--steps", "9"), "--steps must be left out with --allowance"),
    (("noise", "--teachers", "3", "--allowance", "1", "--out", "no/such/folder.json"), "--out must be a file in"),
    (("noise", "--teachers", "3", "--allowance", "1", "--plot", "a.xyz"), "--plot must be a file that ends in"),
    (("noise", "--teachers", "9" * 30, "--allowance", "1"), "--teachers must be an integer in [1, 100000]"),
    (("noise", "--teachers", "3", "--allowance", "1", "--out", "."), "--out must be a file, got '.'"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "words"), MISTAKES, ids=name_of)
def test_a_mistake_is_one_line_that_names_it(
    trained: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    check_mistake(capsys, trained, *arguments, words=words)
