"""The store: what is remembered, what is never believed, and several processes at once."""

from __future__ import annotations

import json
import multiprocessing
import os
import warnings
from pathlib import Path
from typing import Any

import pytest

from darrm_torch import (
    IndependentVotes,
    InvalidArgument,
    NoiseFunction,
    PrivacyGuarantee,
    PrivacyProfile,
    fetch_noise,
    optimize_noise,
)
from darrm_torch.noise import store
from darrm_torch.noise.store import _digest

ARGUMENTS: dict[str, Any] = {
    "teachers": 7,
    "teacher": PrivacyGuarantee(epsilon=0.1, delta=1e-5),
    "target": PrivacyGuarantee(epsilon=0.3, delta=3e-5),
}


@pytest.fixture
def solved(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The calls that reached the solver."""
    calls: list[dict[str, Any]] = []
    solve = store.optimize_noise

    def count(**arguments: Any) -> NoiseFunction:
        calls.append(arguments)
        return solve(**arguments)

    monkeypatch.setattr(store, "optimize_noise", count)
    return calls


def only_file(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


def test_solved_once(tmp_path: Path, solved: list[dict[str, Any]]) -> None:
    first, again = (fetch_noise(**ARGUMENTS, cache_dir=tmp_path / "new" / "folder") for _ in range(2))
    assert len(solved) == 1
    assert first == again
    assert first.gamma.tobytes() == again.gamma.tobytes()


def test_every_argument_is_part_of_the_key(tmp_path: Path, solved: list[dict[str, Any]]) -> None:
    changes: list[dict[str, Any]] = [
        {},
        {"teachers": 9},
        {"teacher": PrivacyProfile.from_guarantee(ARGUMENTS["teacher"], PrivacyGuarantee(epsilon=0.0, delta=0.2))},
        {"target": PrivacyGuarantee(epsilon=0.3, delta=2e-5)},
        {"overlap": 6},
        {"prior": IndependentVotes(mean=0.85)},
        {"shape": "free"},
        {"objective": "expected_error"},
    ]
    for _ in range(2):
        for change in changes:
            fetch_noise(**{**ARGUMENTS, **change}, cache_dir=tmp_path)
    assert len(solved) == len(changes) == len(list(tmp_path.iterdir()))


def test_equal_arguments_share_a_file(tmp_path: Path, solved: list[dict[str, Any]]) -> None:
    fetch_noise(**ARGUMENTS, cache_dir=tmp_path)
    fetch_noise(**{**ARGUMENTS, "teacher": [ARGUMENTS["teacher"]] * 7}, overlap=7, cache_dir=str(tmp_path))
    assert len(solved) == 1


def tamper(path: Path, how: str) -> None:
    stored = json.loads(path.read_text())
    noise = json.loads(stored["noise"])
    if how == "truncated":
        path.write_text(path.read_text()[:-40])
        return
    if how == "binary":
        path.write_bytes(b"\xff\xfe\x00")
        return
    if how == "list":
        path.write_text("[]")
        return
    if how == "nested":  # deeper than Python reads
        path.write_text("[" * 100_000)
        return
    if how == "gamma":
        noise["gamma"] = [1.0] * 8
    elif how == "target":
        noise["certificate"]["target"] = [0.2, 1e-5]
    elif how == "weaker":  # private for a weaker target, which it then truly keeps
        noise["gamma"], noise["certificate"]["target"] = [1.0] * 8, [5.0, 0.5]
    elif how == "coin":  # private, as bad as can be, and praised
        noise["gamma"], noise["certificate"]["optimality_gap"] = [0.0] * 8, 0.0
    elif how == "gap":
        noise["certificate"]["optimality_gap"] = -1e9
    elif how == "infinite gap":
        noise["certificate"]["optimality_gap"] = float("inf")
    elif how == "no gap":
        noise["certificate"]["optimality_gap"] = None
    elif how == "bare":
        noise["certificate"] = None
    elif how == "question":
        stored["question"] = stored["question"].replace("0.3", "0.2")
    stored["noise"] = json.dumps(noise)
    if how != "digest":
        stored["digest"] = _digest(stored["question"], stored["noise"])
    else:
        stored["digest"] = "0" * 64
    path.write_text(json.dumps(stored))


@pytest.mark.parametrize(
    "how",
    [
        *("truncated", "binary", "list", "nested", "gamma", "target", "weaker", "bare", "question", "digest"),
        *("coin", "gap", "infinite gap", "no gap"),
    ],
)
def test_what_is_damaged_or_forged_is_solved_again(tmp_path: Path, solved: list[dict[str, Any]], how: str) -> None:
    good = fetch_noise(**ARGUMENTS, cache_dir=tmp_path)
    tamper(only_file(tmp_path), how)
    with pytest.warns(UserWarning, match="is ignored and solved again"):
        again = fetch_noise(**ARGUMENTS, cache_dir=tmp_path)
    assert again == good
    assert len(solved) == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fetch_noise(**ARGUMENTS, cache_dir=tmp_path) == good
    assert len(solved) == 2


def test_a_file_of_the_first_format_is_rewritten_and_kept(tmp_path: Path, solved: list[dict[str, Any]]) -> None:
    good = fetch_noise(**ARGUMENTS, cache_dir=tmp_path)
    path = only_file(tmp_path)
    stored = json.loads(path.read_text())
    assert stored.pop("format") == 2
    path.write_text(json.dumps(stored))
    for _ in range(2):
        assert fetch_noise(**ARGUMENTS, cache_dir=tmp_path) == good
    assert json.loads(path.read_text()) == {"format": 2, **stored}
    assert json.loads(Path(f"{path}.format-1").read_text()) == stored
    assert len(solved) == 1


def test_a_file_of_a_newer_version_is_named_and_left_alone(tmp_path: Path, solved: list[dict[str, Any]]) -> None:
    good = fetch_noise(**ARGUMENTS, cache_dir=tmp_path)
    path = only_file(tmp_path)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 3}))
    before = path.read_bytes()
    with pytest.warns(UserWarning, match=f"{path.name} is ignored .*format 3, which a newer version of darrm-torch"):
        assert fetch_noise(**ARGUMENTS, cache_dir=tmp_path) == good
    assert path.read_bytes() == before
    assert len(solved) == 2


def test_the_platforms_folder_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store.platformdirs, "user_cache_dir", lambda name: str(tmp_path / name))
    fetch_noise(**ARGUMENTS)
    assert only_file(tmp_path / "darrm-torch").suffix == ".json"


@pytest.mark.parametrize("place", ["file/darrm-torch", "~/.cache/darrm-torch"], ids=["read-only", "unknown user"])
def test_without_a_home_nothing_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """For a user that the system does not know, "~" stays as it is: a folder of that name must not appear."""
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    folder = place if place.startswith("~") else str(tmp_path / place)
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda *_: folder)
    with pytest.warns(UserWarning, match="the noise function is not stored in"):
        assert fetch_noise(**ARGUMENTS) == optimize_noise(**ARGUMENTS)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_user_without_a_home_is_told_in_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some versions of platformdirs raise an error for a user whom the system does not know."""

    def fails(*_: str) -> str:
        raise RuntimeError("could not determine the home directory")

    monkeypatch.setattr("platformdirs.user_cache_dir", fails)
    with pytest.warns(UserWarning, match="no home folder. It will be solved again the next time") as warned:
        assert fetch_noise(**ARGUMENTS) == optimize_noise(**ARGUMENTS)
    assert [one.filename for one in warned] == [__file__]


def test_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidArgument, match="cache_dir must be a folder that can be written to"):
        fetch_noise(**ARGUMENTS, cache_dir=tmp_path / "file")


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(InvalidArgument, match=r"cache_dir must be a folder that can be written to.*disk full"):
        fetch_noise(**ARGUMENTS, cache_dir=tmp_path)
    assert list(tmp_path.iterdir()) == []


def _fetch(folder: str) -> str:
    warnings.simplefilter("error")
    return [fetch_noise(**ARGUMENTS, cache_dir=folder).to_json() for _ in range(20)][-1]


@pytest.mark.slow
def test_several_processes_at_once(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        texts = pool.map(_fetch, [str(tmp_path)] * 6)
    assert len(set(texts)) == 1
    assert only_file(tmp_path).suffix == ".json"


@pytest.mark.parametrize("name", ["teachers", "teacher", "target", "overlap", "prior", "shape", "objective"])
def test_bad_arguments_are_named_and_nothing_is_stored(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^{name} must be"):
        fetch_noise(**{**ARGUMENTS, name: object()}, cache_dir=tmp_path)
    assert list(tmp_path.iterdir()) == []
