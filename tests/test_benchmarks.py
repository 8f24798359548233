"""The benchmarks: the runner, its comparison with bounds, and that what is timed is the same problem."""

from __future__ import annotations

import importlib
import inspect
import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import config, oracle, planner, problems, votes
from benchmarks.__main__ import check, main
from benchmarks.measuring import alone, peak_mib
from darrm_torch import PrivacyGuarantee, optimize_noise, plan

BOUND = config.Bound(benchmark="b", case="c", ratio="r", at_least=2)


@pytest.mark.parametrize(
    ("record", "worse"),
    [
        ({"case": "c", "r": 2.5}, False),
        ({"case": "c", "r": 1.9}, True),
        ({"case": "c", "r": math.nan}, True),
        ({"case": "c"}, True),
        ({"case": "another", "r": 2.5}, True),  # a bound on a case that nothing measures would never fail
    ],
)
def test_a_ratio_out_of_its_bound_is_a_regression(record: dict[str, object], worse: bool) -> None:
    assert len(check({"b": [record]}, [BOUND], "full")) == worse
    assert check({"other": [record]}, [BOUND], "full") == []
    assert check({"b": [record]}, [replace(BOUND, sizes=("full",))], "small") == []


def test_a_mistyped_case_is_named() -> None:
    assert check({"b": [{"case": "K=5", "r": 3}, {"case": "K=7", "r": 3}]}, [replace(BOUND, case="K=6")], "small") == [
        "b: there is no case 'K=6', only K=5, K=7"
    ]


@pytest.mark.slow
def test_runner_writes_everything_and_fails_on_a_regression(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    records = [{"case": f"K={k}", "teachers": k, "seconds": k / 8, "oracle_calls": 2.0} for k in (3, 5)]
    monkeypatch.setattr("benchmarks.__main__.run", lambda name, sizes: records)
    impossible = config.Bound(benchmark="certificate", case="K=3", ratio="seconds", at_most=0)
    for bounds, status in (((), 0), ((impossible,), 1)):
        monkeypatch.setattr(config, "BOUNDS", bounds)
        out, copy = tmp_path / f"out-{status}", tmp_path / "copy.json"
        assert main(["certificate", "--small", "--check", "--out", str(out), "--json", str(copy)]) == status
        report = json.loads((out / "results.json").read_text())
        assert json.loads(copy.read_text()) == report
        assert report["machine"]["cores"] >= 1
        assert report["results"] == {"certificate": records}
        summary = (out / "summary.md").read_text()
        assert "| K=3 | 3 | 0.375 | 2 |" in summary
        assert "Proving a noise function private" in summary
        assert (out / "growth.svg").read_text().startswith("<?xml")
    assert "regression: certificate, K=3: seconds is 0.375" in capsys.readouterr().err


@pytest.mark.parametrize(("slow", "status", "runs"), [(0, 0, 1), (2, 0, 3), (9, 1, 3)])
def test_what_a_busy_machine_slowed_down_is_measured_again(
    slow: int, status: int, runs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def run(name: str, sizes: dict[str, Any]) -> list[dict[str, Any]]:
        seen.append(len(seen))
        return [{"case": "c", "r": 1.0 if len(seen) <= slow else 3.0}]

    monkeypatch.setattr("benchmarks.__main__.run", run)
    monkeypatch.setattr(config, "BOUNDS", (replace(BOUND, benchmark="ledger"),))
    assert main(["ledger", "--small", "--check", "--out", str(tmp_path)]) == status
    assert len(seen) == runs


@pytest.mark.slow
def test_a_benchmark_measures() -> None:
    (all_of_them, two) = oracle.measure(sizes=(3,), repeat=1)
    assert (all_of_them["case"], all_of_them["compositions"]) == ("K=3, r=3", 10)
    assert (two["case"], two["compositions"]) == ("K=3, r=2", 12)
    assert all_of_them["seconds"] > 0


@pytest.mark.parametrize("name", config.FULL)
def test_every_benchmark_can_be_imported_and_takes_its_sizes(name: str) -> None:
    measure = importlib.import_module(f"benchmarks.{name}").measure
    for sizes in (config.FULL, config.SMALL):
        if name in sizes:
            inspect.signature(measure).bind(**sizes[name])


def test_bounds_are_on_what_is_measured() -> None:
    for bound in config.BOUNDS:
        assert set(bound.sizes) <= {"full", "small"}
        for size, sizes in (("full", config.FULL), ("small", config.SMALL)):
            assert size not in bound.sizes or bound.benchmark in sizes
    assert set(config.SMALL) <= set(config.FULL)


@pytest.mark.parametrize(
    ("name", "seed", "pairs"),
    [("settings", "seed", planner.PROXIES), ("development", "development_seed", planner.DEVELOPMENT)],
)
def test_settings_of_the_planner_are_drawn_from_the_stated_ranges(name: str, seed: str, pairs: dict[str, str]) -> None:
    kept = json.loads(planner.FILE.read_text())
    assert kept[name] == planner.draw(len(kept[name]), seed=kept[seed], pairs=pairs)
    assert len(kept["settings"]) == 18
    for setting in kept[name]:
        assert 5 <= setting["teachers"] <= 33
        assert 1 <= setting["overlap"] <= setting["teachers"]
        assert 1 <= setting["noise_multiplier"] <= 12
        assert 1 <= setting["labels"] <= 100
        assert not set(setting["pair"]) & set(setting["proxy"]) - {"v"}
    assert not set(planner.PROXIES) & set(planner.DEVELOPMENT)


def test_the_accuracy_of_a_strategy_is_exact() -> None:
    """Over all ways of choosing the teachers that vote, one at a time."""
    target = PrivacyGuarantee(epsilon=0.25, delta=1e-5)
    answer = plan(teachers=5, teacher=PrivacyGuarantee(epsilon=0.1, delta=1e-7), label_target=target)
    given = np.random.default_rng(1).integers(0, 2, (7, 5))
    truth = np.array([0, 1, 1, 0, 1, 0, 0])
    fewer = [row for row in answer.rows if row.mechanism is not None and row.voters < 5]
    assert fewer
    for row in (answer.rows[0], fewer[0]):
        chances = []
        for item, right in zip(given, truth, strict=True):
            for read in itertools.combinations(item, row.voters):
                ones = sum(read)
                chances.append(row.mechanism.label_probabilities(np.array([[row.voters - ones, ones]]))[0, right])
        assert planner.accuracy(row, given, truth) == pytest.approx(np.mean(chances), abs=1e-12)


def test_votes_are_kept_and_repeatable(tmp_path: Path) -> None:
    ask: dict[str, Any] = {"teachers": 3, "overlap": 2, "noise": 4.0, "seed": 5}
    first, truth = votes.votes("digits", folder=tmp_path, **ask)
    assert first.shape == (len(truth), 3)
    assert 0.5 < votes.accuracies(first, truth)[0] < 1
    for folder in (tmp_path, None):
        assert np.array_equal(votes.votes("digits", folder=folder, **ask)[0], first)


def test_peak_memory_is_that_of_the_process_alone() -> None:
    ballast = b"1" * (300 << 20)
    assert len(ballast) / (1 << 20) <= peak_mib()
    assert alone(peak_mib) < 300


@pytest.mark.parametrize(("teachers", "overlap", "corners"), [(5, 5, 3), (6, 2, 3), (4, 3, 5)])
def test_compositions_are_counted_right(teachers: int, overlap: int, corners: int) -> None:
    multisets = itertools.combinations_with_replacement(range(corners), overlap)
    cases = itertools.product(multisets, range(teachers - overlap + 1))
    assert oracle.compositions(teachers, overlap=overlap, corners=corners) == len(list(cases))


def test_enumerating_solves_the_same_problem() -> None:
    pytest.importorskip("scipy", minversion="1.15")  # its law of unlike votes, which only this benchmark uses
    target = problems.times(problems.POINT, 2)
    written = problems.enumerate_all(5, target)
    noise = optimize_noise(teachers=5, teacher=problems.POINT, target=target, shape="free")
    assert written["constraints"] == math.comb(8 + 5 - 1, 5)
    for value in written["values"].values():
        assert float(problems.weights(5) @ noise.gamma[3:]) == pytest.approx(value, abs=1e-8)
