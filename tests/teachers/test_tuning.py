"""Private tuning: the best noisy score wins, secrets go, a stopped tuning resumes, files carry the price."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import darrm_torch as dt
from darrm_torch.teachers import tuning

TOTAL = dt.PrivacyGuarantee(epsilon=2.0, delta=1e-5)
SETTINGS = [dt.TrainingSettings(batch_size=20, epochs=1, learning_rate=rate) for rate in (1e-6, 2.0)]
BUILDING = torch.Generator().manual_seed(3)
INPUTS = torch.randn(120, 3, generator=BUILDING)
RECORDS = TensorDataset(INPUTS, (INPUTS[:, 0] > 0).long())


def network() -> nn.Module:
    return nn.Linear(3, 2)


def arguments(place: Path, **changes: Any) -> dict[str, Any]:
    given = {
        "folder": place / "teachers",
        "candidates": SETTINGS,
        "runs": dt.RandomRuns(mean=3),
        "total": TOTAL,
        "build_model": network,
        "dataset": RECORDS,
        "shards": dt.assign_shards(120, teachers=2, overlap=2, holdout=0.3, private_folder=place / "private"),
        "shard_size": 100,
        "score_epsilon": 0.5,
        "executor": ThreadPoolExecutor(1),
    }
    return given | changes


def runs_of(monkeypatch: pytest.MonkeyPatch, chosen: list[int], scores: list[list[int]]) -> None:
    """Fix the draws: how many runs, with which candidates, and what their scores say."""
    monkeypatch.setattr(dt.RandomRuns, "draw", lambda self: len(chosen))
    draws, counts = iter(chosen), iter(scores)
    monkeypatch.setattr(tuning.secrets, "randbelow", lambda below: next(draws))

    class Counts(list):
        def tolist(self) -> list[int]:
            return list(self)

    monkeypatch.setattr(tuning, "private_counts", lambda found, epsilon: Counts(next(counts)))


@pytest.mark.slow
def test_the_best_score_wins_and_everything_else_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs_of(monkeypatch, [0, 1, 0], [[10, 20], [25, 5], [25, 5]])
    asked, before, began, train = arguments(tmp_path), time.time_ns(), [], tuning.train_teachers

    def timed(*place: Path, **given: Any) -> Any:
        began.append(time.time_ns())
        return train(*place, **given)

    monkeypatch.setattr(tuning, "train_teachers", timed)
    won = dt.tune_teachers(**asked)
    assert (won.right, won.wrong, won.total) == (25, 5, TOTAL)
    assert won.settings.learning_rate == 2.0  # of equal scores the first
    trained = dt.PrivacyProfile.from_dp_sgd([(won.settings.noise_multiplier, 0.2, 5)])
    spent = dt.tuning_epsilon(trained, TOTAL.delta, runs=asked["runs"], overlap=2)
    assert 0.97 * TOTAL.epsilon < spent <= TOTAL.epsilon * (1 + 1e-6)
    assert [file.name for file in won.files] == ["teacher-000.pt", "teacher-001.pt"]
    assert {file.name for file in (tmp_path / "private").iterdir()} == {"draw.json", "draws.npy"}
    (written,) = {file.stat().st_mtime_ns for file in won.files}
    assert before <= written <= began[0]  # not the end, which would show how many runs there were
    assert dt.tune_teachers(**asked) == won  # nothing is drawn again
    with pytest.raises(dt.InvalidArgument, match="another"):
        dt.tune_teachers(**asked | {"score_epsilon": 0.4})


@pytest.mark.slow
def test_the_files_carry_the_price_of_the_tuning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs_of(monkeypatch, [1], [[25, 5]])
    won = dt.tune_teachers(**arguments(tmp_path))
    profiles = dt.read_teachers(won.files)
    assert all(profile.together and profile.epsilon(TOTAL.delta) == TOTAL.epsilon for profile in profiles)
    for mechanism in (dt.NoiseFreeMajority(), dt.DaRRM(dt.self_bounding_noise(teachers=2, allowance=0.5))):
        total = dt.total_privacy(teachers=profiles, mechanism=mechanism, labels=50, delta=TOTAL.delta)
        assert total.epsilon == TOTAL.epsilon
        assert [route.key for route in total.routes if route.applies] == ["publishing"]
        assert won.assumptions[0] in total.assumptions
    doubled = dt.read_teachers(won.files, unit="patient", records_per_unit=2)
    for several, neighbours in ((doubled, "add/remove"), (profiles, "replace-one")):
        total = dt.total_privacy(
            teachers=several, mechanism=dt.NoiseFreeMajority(), labels=9, delta=1e-3, neighbours=neighbours
        )
        assert 1.99 * TOTAL.epsilon < total.epsilon <= 2 * TOTAL.epsilon
        assert [route.key for route in total.routes if route.applies] == ["publishing"]
    assert dt.PrivacyProfile.weakest(profiles).together
    mixed = [profiles[0], dt.PrivacyProfile.from_guarantee(TOTAL)]
    total = dt.total_privacy(teachers=mixed, mechanism=dt.NoiseFreeMajority(), labels=50, delta=TOTAL.delta)
    assert total.epsilon == math.inf
    assert profiles[0].reading is not None
    other = replace(profiles[1], reading=replace(profiles[1].reading, tuning="another"))
    assert {profile.reading.tuning for profile in profiles} == {profiles[0].reading.tuning} != {None}
    total = dt.total_privacy(
        teachers=[profiles[0], other], mechanism=dt.NoiseFreeMajority(), labels=50, delta=TOTAL.delta
    )
    assert total.epsilon == math.inf  # of two tunings with the same total
    assert dt.PrivacyProfile.from_dict(profiles[0].to_dict()) == profiles[0] != dt.PrivacyProfile.from_guarantee(TOTAL)


class Stopped(BaseException):
    """Stands for a kill."""


@pytest.mark.slow
@pytest.mark.parametrize("shared", [True, False])
def test_a_stopped_tuning_resumes_with_the_runs_it_drew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    def drawn(folder: Path) -> dt.Shards:
        return dt.assign_shards(120, teachers=2, holdout=0.3, private_folder=folder)

    runs_of(monkeypatch, [0, 1, 1], [[10, 20], [25, 5], [20, 9]])
    asked = arguments(tmp_path, **({} if shared else {"shards": drawn}))
    train, seen = tuning.train_teachers, []

    def stop_at(number: int) -> Callable[..., Any]:
        def trained(place: Path, **given: Any) -> Any:
            seen.append(place.parent.name)
            if place.parent.name == f"run-{number:04d}":
                raise Stopped
            return train(place, **given)

        return trained

    monkeypatch.setattr(tuning, "train_teachers", stop_at(2))
    with pytest.raises(Stopped):
        dt.tune_teachers(**asked)
    private = tmp_path / "private" if shared else tmp_path / "teachers" / "private"
    state = json.loads((private / "tuning.json").read_text())
    assert (state["chosen"], state["scores"]) == ([0, 1, 1], [[10, 20], [25, 5]])
    assert (private / "tuning.json").stat().st_mode & 0o777 == 0o600
    assert not [*(tmp_path / "teachers").glob("*.pt")]
    turned = TensorDataset(INPUTS.flip(0), RECORDS.tensors[1].flip(0))
    with pytest.raises(dt.InvalidArgument, match="dataset must be the one that the tuning was started with"):
        dt.tune_teachers(**asked | {"dataset": turned})
    kept = (private / "tuning.json").read_text()
    for damaged, message in (
        ("{", "a complete tuning.json"),
        (kept.replace('"version": 1', '"version": 9'), "format 9"),
    ):
        (private / "tuning.json").write_text(damaged)
        with pytest.raises(dt.InvalidArgument, match=f"private_folder must be one .*{message}"):
            dt.tune_teachers(**asked)
    (private / "tuning.json").write_text(kept)
    monkeypatch.setattr(dt.RandomRuns, "draw", None)  # nothing is drawn again
    monkeypatch.setattr(tuning, "train_teachers", stop_at(-1))
    won = dt.tune_teachers(**asked)
    assert seen == ["run-0000", "run-0001", "run-0002", "run-0002"]
    assert (won.right, won.wrong) == (25, 5)
    assert not [*private.glob("run-*"), *private.glob("*tuning*")]


@pytest.mark.slow
def test_a_failed_run_shows_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs_of(monkeypatch, [0, 1], [[10, 20], [25, 5]])

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("record 17 is secret")

    monkeypatch.setattr(tuning, "train_teachers", fail)
    with pytest.raises(dt.DarrmError, match="a run of the tuning failed") as caught:
        dt.tune_teachers(**arguments(tmp_path))
    assert "17" not in str(caught.value)
    assert caught.value.__suppress_context__
    report = tmp_path / "private" / "failed-tuning.txt"
    assert "record 17" in report.read_text()
    assert report.stat().st_mode & 0o777 == 0o600


def test_the_score_counts_what_the_mean_of_the_teachers_gets_right(tmp_path: Path) -> None:
    files = []
    for number, sign in enumerate((1.0, 3.0)):
        weights = {"weight": torch.tensor([[-sign, 0.0, 0.0], [sign, 0.0, 0.0]]), "bias": torch.zeros(2)}
        files.append(tmp_path / f"{number}.pt")
        torch.save({"module_state_dict": weights}, files[-1])
    targets = RECORDS.tensors[1].clone()
    targets[:5] = 1 - targets[:5]
    targets[5] = 7  # no class: counts nowhere
    records = TensorDataset(INPUTS, targets)
    assert tuning.counts_on(files, network, records) == [114, 5]
    torch.save({"module_state_dict": {"weight": torch.tensor([[1.0, 0.0, 0.0]]), "bias": torch.zeros(1)}}, files[0])
    assert tuning.counts_on(files[:1], lambda: nn.Linear(3, 1), records) == [114, 5]


def test_what_cannot_be_tuned_is_refused(tmp_path: Path) -> None:
    for wrong, name in (
        ({"candidates": []}, "candidates"),
        ({"shards": dt.assign_shards(120, teachers=2)}, "shards"),
        ({"shards": dt.assign_shards(range(120), teachers=2, holdout=0.3, insecure_seed=1)}, "shards"),
        ({"score_epsilon": 3.0}, "score_epsilon"),
    ):
        with pytest.raises(dt.InvalidArgument, match=name):
            dt.tune_teachers(**arguments(tmp_path) | wrong)
    mixing = SETTINGS[0], replace(SETTINGS[0], loss=share_of_the_batch)
    with pytest.raises(dt.UnprovenPrivacy, match="mixes records"):
        dt.tune_teachers(**arguments(tmp_path) | {"candidates": mixing})


def share_of_the_batch(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs, targets, reduction="none") / len(targets)
