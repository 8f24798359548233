"""Labels for votes in files, by the command."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import darrm_torch as dt
from darrm_torch import PrivacyGuarantee
from darrm_torch.cli import main

VOTES = np.random.default_rng(1).integers(0, 3, (40, 5))


def table(folder: Path, rows: Any = VOTES) -> Path:
    path = folder / "votes.csv"
    lines = ["id,north,south,east,west,isle", *(f"p{n}," + ",".join(map(str, row)) for n, row in enumerate(rows))]
    path.write_text("\n".join(lines) + "\n")
    return path


def label(folder: Path, *more: str, votes: Path | None = None, out: str = "y.csv") -> int:
    given = votes or table(folder)
    line = [f"--votes={given}", f"--ledger={folder / 'labels.ledger'}", f"--out={folder / out}", "--overlap=1"]
    return main(["label", *line, *more])


NOISE_FREE = ("--keys=id", "--teachers=5", "--class-count=3", "--mechanism=noise-free", "--teacher=0.5,1e-5")


def rows(path: Path) -> list[list[str]]:
    with path.open(newline="") as stream:
        return list(csv.reader(stream))


def test_votes_become_labels_with_their_keys_and_are_paid_for_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert label(tmp_path, *NOISE_FREE, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["labels"], report["teachers"], report["total"]["epsilon"]) == (40, 5, 0.5)
    first = rows(tmp_path / "y.csv")
    assert first[0] == ["key", "label"]
    assert [key for key, _ in first[1:]] == [f"p{n}" for n in range(40)]
    counts = np.stack([(one == VOTES).sum(axis=1) for one in range(3)], axis=1)
    winners = np.array([int(label) for _, label in first[1:]])
    assert (counts[np.arange(40), winners] == counts.max(axis=1)).all()
    assert label(tmp_path, "--teachers=5", "--teacher=0.5,1e-5", out="z.csv") == 0  # the ledger knows keys and classes
    assert rows(tmp_path / "z.csv") == first


@pytest.mark.parametrize("kind", ["darrm", "darrm-point"])
def test_an_allowance_is_counted_in_teachers(tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    """For two classes, the default noise takes an allowance for votes as it does for models."""
    binary = table(tmp_path, VOTES % 2)
    how = ["--keys=id", "--teachers=5", "--class-count=2", f"--mechanism={kind}", "--teacher=0.5,1e-4", "--json"]
    assert label(tmp_path, *how, "--allowance=0", votes=binary) == 2
    assert "--allowance must be a number in (0, inf)" in capsys.readouterr().err
    assert label(tmp_path, *how, "--overlap=5", "--allowance=2", votes=binary) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["label"]["delta"] == 2e-4
    assert report["label"]["epsilon"] <= 1.0


def test_own_randomness_needs_no_promise_and_stops_at_the_budget(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    how = ["--keys=id", "--teachers=5", "--class-count=3", "--mechanism=gnmax", "--accept=guesses"]
    assert label(tmp_path, *how, "--label-target=0.5,1e-5", "--budget=1,1e-5") == 1
    assert "Nothing was given out" in capsys.readouterr().err
    assert not (tmp_path / "labels.ledger").exists()
    assert label(tmp_path, *how, "--total-target=2,1e-5", out="y.npy") == 0
    assert np.load(tmp_path / "y.npy").shape == (40,)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--teachers=5", "--class-count=3", "--mechanism=noise-free", "--teacher=1"], "--votes must be"),
        ([*NOISE_FREE, "--class-names", "a", "b"], "--class-names must be left out with --class-count"),
        ([*NOISE_FREE[:1], *NOISE_FREE[2:]], "required: --teachers (see darrm label --help)"),
        ([*NOISE_FREE[:2], *NOISE_FREE[3:]], "required: --class-names or --class-count (see"),
        (["--mechanism=noise-free"], "--teachers; --class-names or --class-count; --accountants or --teacher ("),
        ([*NOISE_FREE, "--models", "a.pt"], "--votes must be given without options about models"),
        ([*NOISE_FREE, "--missing", "1"], "--missing must be values that are no class"),
        (NOISE_FREE[:-1], "required: --accountants or --teacher (see"),
        ([*NOISE_FREE, "--layout=rows"], "--layout"),
        ([*NOISE_FREE[1:], "--keys=name"], "--keys must be one of"),
    ],
)
def test_mistakes_are_one_line_and_cost_nothing(
    more: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert label(tmp_path, *more) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "labels.ledger").exists()
    assert not (tmp_path / "y.csv").exists()


def test_options_about_votes_go_with_votes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = [f"--ledger={tmp_path / 'l'}", f"--out={tmp_path / 'y.npy'}", "--mechanism=noise-free"]
    assert main(["label", *place]) == 2
    assert "required: --inputs; --models (or --votes) (see" in capsys.readouterr().err
    assert main(["label", *place, "--inputs=x.npy", "--models=a.pt", "--teachers=3"]) == 2
    assert "--teachers must be used with --votes" in capsys.readouterr().err


def test_a_ledger_of_other_votes_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert label(tmp_path, *NOISE_FREE) == 0
    other = tmp_path / "others.csv"
    other.write_text(table(tmp_path).read_text().replace("isle", "shore"))
    assert label(tmp_path, *NOISE_FREE, votes=other) == 2
    assert "other teachers" in capsys.readouterr().err
    assert label(tmp_path, *NOISE_FREE, "--header=yes", out="again.csv") == 0
    assert dt.PrivacyLedger(tmp_path / "labels.ledger").count == 40


def test_units_and_neighbours_are_priced_named_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Four records of a patient cost what group privacy says; the ledger knows the unit."""
    unit = ("--unit=patient", "--records-per-unit=4")
    assert label(tmp_path, *NOISE_FREE, *unit, "--delta=1e-3", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    teacher = dt.PrivacyProfile.from_guarantee(PrivacyGuarantee(epsilon=0.5, delta=1e-5))
    assert report["total"]["epsilon"] == teacher.for_unit("patient", records=4).epsilon(1e-3) > 1.99
    assert "patient with at most 4 records" in json.dumps(report)
    assert label(tmp_path, *NOISE_FREE, out="z.csv") == 0  # the unit is that of the ledger
    assert "patient" in capsys.readouterr().out
    assert label(tmp_path, *NOISE_FREE, "--unit=person", out="z.csv") == 2
    assert "--unit must be left out, or as when" in capsys.readouterr().err


def test_a_replaced_record_costs_more(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert label(tmp_path, *NOISE_FREE, "--neighbours=replace-one", "--delta=1e-3", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert 0.99 < report["total"]["epsilon"] <= 1
    assert "replacing one record" in json.dumps(report)


def test_rows_that_are_known_by_their_number_stay_where_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same votes in another kind of file are the same; other votes, or votes in another order, are refused."""
    how, file, other = NOISE_FREE[1:], tmp_path / "votes.npy", tmp_path / "others.npy"
    np.save(file, VOTES)
    assert label(tmp_path, *how, votes=file) == 0
    text = tmp_path / "same.tsv"
    text.write_text("\n".join("\t".join(map(str, row)) for row in VOTES) + "\n")
    assert label(tmp_path, *how, "--header=no", votes=text, out="z.csv") == 0
    assert rows(tmp_path / "z.csv") == rows(tmp_path / "y.csv")
    for changed in (VOTES[::-1], VOTES[:39], np.concatenate([VOTES, VOTES])):
        np.save(other, changed)
        capsys.readouterr()
        assert label(tmp_path, *how, votes=other, out="new.csv") == 2
        assert "belongs to other votes (--votes; without --keys a row is known by its number" in capsys.readouterr().err
    assert not (tmp_path / "new.csv").exists()
    assert dt.PrivacyLedger(tmp_path / "labels.ledger").count == 40


def test_what_else_a_ledger_of_votes_belongs_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert label(tmp_path, *NOISE_FREE) == 0
    assert label(tmp_path, "--keys=0", *NOISE_FREE[1:]) == 2
    assert "belongs to another column of keys (--keys)" in capsys.readouterr().err
    names = ["--class-names", "2", "1", "0"]
    assert label(tmp_path, *NOISE_FREE[:2], *NOISE_FREE[3:], *names) == 2
    assert "belongs to other classes (--class-names)" in capsys.readouterr().err


def test_a_ledger_that_python_bound_to_rules_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dt.PrivacyLedger(tmp_path / "labels.ledger").bind({"rules": "ours"})
    assert label(tmp_path, *NOISE_FREE) == 2
    assert "and other rules (--overlap, --classes, --delta, a target, --unit" in capsys.readouterr().err


def test_labels_of_a_folder_are_written_with_their_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    folder = tmp_path / "votes"
    folder.mkdir()
    for number in (10, 2):
        columns: dict[str, Any] = {"id": [f"p{number}-{n}" for n in range(20)]}
        columns |= {f"site {k}": VOTES[:20, k] for k in range(5)}
        parquet.write_table(pyarrow.table(columns), folder / f"part-{number}.parquet")
    assert label(tmp_path, *NOISE_FREE, votes=folder, out="y.npy") == 2
    assert "--out must be a file that ends in .csv" in capsys.readouterr().err
    assert label(tmp_path, *NOISE_FREE, votes=folder) == 0
    assert {key for key, _ in rows(tmp_path / "y.csv")[1:]} == {f"p{m}-{n}" for m in (2, 10) for n in range(20)}
