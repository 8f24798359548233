"""Recipes with teachers on a public base, at a small size: images with a frozen ResNet, texts with LoRA adapters."""

from __future__ import annotations

import dataclasses
import importlib
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import darrm_torch as dt
from recipes import data, rivals

images = importlib.import_module("recipes.06_resnet_teachers")
METHODS = ["private", "plain", "one", "majority"]


@pytest.fixture
def texts() -> Any:
    pytest.importorskip("peft")
    return importlib.import_module("recipes.11_text_teachers")


def packages(count: int, *, text: str = "tool number {}") -> str:
    sections = ["games", "universe/libs", "non-free/math"]
    return "\n\n".join(
        f"Package: lib{number}\nSource: source{number // 2} (1.0)\nDescription: {text.format(number)}\n a second line\n"
        f"Section: {sections[number % 3]}"
        for number in range(count)
    )


@pytest.mark.slow
@pytest.mark.skipif(not data.DEBIAN_FOLDER.exists(), reason="Debian's dataset-fashion-mnist is not installed")
def test_heads_on_a_frozen_resnet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert images.main(["--limit", "300", "--run", str(tmp_path / "run")]) == 0
    shown = capsys.readouterr().out
    assert "by random allocation" in shown
    assert "They come from public data" in shown
    assert all(rivals.TITLES[name] in shown for name in METHODS)
    folder = tmp_path / "run" / "small" / "run-0"
    first, second = (torch.load(folder / "private" / f"private-00{number}.pt") for number in (0, 1))
    weights = [file["module_state_dict"] for file in (first, second)]
    same = [name for name, value in weights[0].items() if torch.equal(value, weights[1][name])]
    assert [name for name in weights[0] if name not in same] == ["2.weight", "2.bias"]
    ledger = dt.PrivacyLedger(folder / "labels.ledger")
    assert images.main(["--limit", "300", "--run", str(tmp_path / "run")]) == 0
    assert dt.PrivacyLedger(folder / "labels.ledger").count == ledger.count > 0


def test_public_and_private_classes_do_not_meet() -> None:
    assert sorted([*images.PRIVATE_CLASSES, *images.PUBLIC_CLASSES]) == [*range(10)]
    pictures, classes = torch.arange(20.0).reshape(20, 1), torch.arange(20) % 10
    chosen, numbers = images.of_classes(pictures, classes, [2, 6], at_most=3)
    assert chosen.flatten().tolist() == [2, 6, 12]
    assert numbers.tolist() == [0, 1, 0]


def test_resnets_return_features_of_grey_images() -> None:
    batch = torch.rand(2, 1, 28, 28)
    for network in (images.small_resnet(), images.resnet_of_torchvision(download=False)):
        assert network.eval()(batch).shape == (2, images.FEATURES)
        assert any(isinstance(layer, nn.BatchNorm2d) for layer in network.modules())


@pytest.mark.slow
def test_lora_teachers_of_texts(texts: Any, tmp_path: Path) -> None:
    """A tenth of the packages, one epoch of everything; asked again, nothing is trained or paid again."""
    try:
        synopses = texts.read_synopses()
    except dt.DarrmError:
        pytest.skip("no package lists of Debian")
    plan = dataclasses.replace(texts.PLAN.small(), teachers=3, records=380)
    task = texts.split(synopses[::10], seed=0)
    for count in range(2):
        base = texts.make_base(tmp_path, task.public, epochs=1)
        results = texts.run_seed(tmp_path / "seed-0", task, base, seed=0, plan=plan)
        assert [*results.accuracies] == ["private", "plain", "one", "public", "majority"]
        assert results.total.epsilon <= plan.total.epsilon
        assert results.total.route.name == "random allocation"
        if count == 0:
            paid = dt.PrivacyLedger(tmp_path / "seed-0" / "labels.ledger").count
            weights = (base / "model.safetensors").read_bytes()
    assert dt.PrivacyLedger(tmp_path / "seed-0" / "labels.ledger").count == paid > 0
    assert (base / "model.safetensors").read_bytes() == weights


def test_one_synopsis_for_each_source_package(texts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    listing = packages(600)
    monkeypatch.setattr(texts, "FEWEST", 300)

    def dumpavail(*command: Any, **how: Any) -> Any:
        return subprocess.CompletedProcess(command, 0, stdout=listing)

    monkeypatch.setattr(subprocess, "run", dumpavail)
    synopses = texts.read_synopses()
    assert len(synopses) == 300
    assert {section for _, section in synopses} == {"games", "libs", "math"}
    task = texts.split(synopses, seed=1)
    parts = [{text for text, _ in part} for part in (task.public, task.private, task.queries, task.heldout)]
    assert len(set.union(*parts)) == sum(map(len, parts)) == 300
    assert {section for _, section in task.public} == {"libs"}
    assert {topic for _, topic in task.private} == {0, 1}
    assert texts.split(synopses, seed=1) == task != texts.split(synopses, seed=2)


@pytest.mark.parametrize("listing", ["", packages(10)])
def test_missing_texts_are_one_line(
    listing: str, texts: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def dumpavail(*command: Any, **how: Any) -> Any:
        if not listing:
            raise FileNotFoundError("apt-cache")
        return subprocess.CompletedProcess(command, 0, stdout=listing)

    monkeypatch.setattr(subprocess, "run", dumpavail)
    assert texts.main(["--run", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "apt-get update" in line


@pytest.mark.parametrize("name", ["06_resnet_teachers", "12_findings"])
def test_missing_images_are_one_line(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(*place: Any) -> Any:
        raise OSError("no such file")

    monkeypatch.setattr(data, "_read_idx", missing)
    monkeypatch.setattr(data, "_download", missing)
    assert importlib.import_module(f"recipes.{name}").main([]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "dataset-fashion-mnist" in line


def test_the_table_has_eighty_columns_for_five_runs() -> None:
    total: Any = None
    results = [rivals.Results(dict.fromkeys(rivals.TITLES, (0.7, 1.0)), total, "")] * 5
    lines = rivals.table(results).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[2].split() == ["private", "ensemble", "70.0", "100.0", *["70/100"] * 5]
