"""The utility study: its fast trainer is DP-SGD, its prices are kept, it resumes, and it reports what is missing."""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import darrm_torch as dt
from darrm_torch.teachers.dp_sgd import train_teacher
from recipes import data
from recipes.reproduce import comparison, linear, published, students, study

fashion_mnist = pytest.mark.skipif(
    not data.DEBIAN_FOLDER.exists(), reason="Debian's dataset-fashion-mnist is not installed"
)


class FromZero(nn.Linear):
    """Logits without a bias, from weights that are all zero."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__(width, classes, bias=False)
        nn.init.zeros_(self.weight)


def records(count: int, width: int, classes: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(1)
    return 3 * torch.randn(count, width, generator=random), torch.randint(classes, (count,), generator=random)


@pytest.mark.parametrize("classes", [2, 4])
def test_steps_are_those_of_opacus(classes: int) -> None:
    """Whole batches and next to no noise: the weights are those of the library's training, clipping included."""
    inputs, labels = records(40, 6, classes)
    settings = dt.TrainingSettings(noise_multiplier=1e-7, batch_size=50, epochs=7, learning_rate=3.0)
    data = TensorDataset(inputs, labels)
    record = train_teacher(partial(FromZero, 6, classes), data, shard_size=50, settings=settings, seeds=(1, 2))
    model = linear.LinearModel(rows=np.arange(40), noise=1e-7, learning_rate=3.0, size=50)
    empty = linear.LinearModel(rows=np.arange(0), noise=1e-7, learning_rate=3.0, size=50)
    ours, nothing = linear.train(inputs, labels, [model, empty], classes=classes, sample_rate=1.0, steps=7, seed=3)
    assert torch.allclose(ours.T, record["module_state_dict"]["weight"], atol=1e-5)
    assert ours.norm() > 0.5
    assert nothing.abs().max() < 1e-5


@pytest.mark.slow
def test_noise_and_sampling_have_the_declared_size() -> None:
    """Without records only noise moves the weights; their standard deviation is known.

    80,000 weights: a false alarm at four standard errors has probability 6e-5, and the seed is fixed.
    """
    inputs, labels = records(10, 8000, 2)
    models = [linear.LinearModel(rows=np.arange(0), noise=noise, learning_rate=0.5, size=100) for noise in (1.0, 4.0)]
    weights = linear.train(inputs, labels, models, classes=10, sample_rate=0.2, steps=3, clip=0.7, seed=5)
    for model, found in zip(models, weights, strict=True):
        expected = 0.5 * model.noise * 0.7 * math.sqrt(3) / 20
        assert float(found.std()) == pytest.approx(expected, rel=4 / math.sqrt(2 * 80_000))
    # One feature, always clipped to a residual of one half: the weight counts how often a record was sampled.
    ones, zeros = torch.ones(1, 1), torch.zeros(1, dtype=torch.int64)
    single = linear.LinearModel(rows=np.arange(1), noise=0.0, learning_rate=1e-6, size=1)
    moved = linear.train(ones, zeros, [single], classes=2, sample_rate=0.25, steps=4000, seed=6)[0, 0, 0]
    sampled = float(moved) / (1e-6 / 0.25) / 0.5
    assert sampled == pytest.approx(1000, abs=5 * math.sqrt(4000 * 0.25 * 0.75))


def test_a_record_moves_a_step_by_at_most_the_clipping_bound() -> None:
    inputs, labels = records(30, 5, 3)
    models = [linear.LinearModel(rows=np.arange(count), noise=0.0, learning_rate=1.0, size=1) for count in (30, 29)]
    one, other = linear.train(100 * inputs, labels, models, classes=3, sample_rate=1.0, steps=1, clip=0.3, seed=1)
    assert float((one - other).norm()) == pytest.approx(0.3, abs=1e-5)


def test_features_are_unit_vectors_that_show_edges() -> None:
    images = torch.zeros(3, 1, 28, 28)
    images[0, 0, :, 14:] = 1  # an upright edge
    images[1, 0, 14:] = 1  # a level one
    found = linear.features(images)
    assert found.shape == (3, 392)
    assert found.norm(dim=1).tolist() == pytest.approx([1, 1, 0])
    assert float(found[0] @ found[1]) == pytest.approx(0, abs=1e-6)


SLOW = [
    pytest.param(one, id=one.name, marks=[pytest.mark.slow] if one.priced == "allocation" or one.teachers > 5 else [])
    for one in study.DESIGNS
]


@pytest.mark.parametrize("design", SLOW)
def test_every_design_keeps_its_total(design: study.Design, tmp_path: Path) -> None:
    noise = study.noise_multiplier(tmp_path, design, 1.0)
    if design.priced == "plain":
        assert noise == 0
        mechanism = dt.GNMax.calibrated(dt.PrivacyGuarantee(epsilon=1.0, delta=study.DELTA), labels=study.QUERIES)
        assert mechanism.guarantee(labels=study.QUERIES, delta=study.DELTA).epsilon <= 1.0 + 1e-9
        return
    teacher = dt.PrivacyProfile.from_dp_sgd([(noise, study.SAMPLE_RATE, study.STEPS)])
    secret = design.priced == "allocation"
    total = dt.total_privacy(
        teachers=[teacher] * design.teachers,
        overlap=design.overlap,
        mechanism=dt.NoiseFreeMajority(classes=2),
        labels=10_000,
        delta=study.DELTA,
        allocation=dt.RandomAllocation(teachers=design.teachers) if secret else None,
    )
    assert total.epsilon <= 1.0
    assert study.noise_multiplier(tmp_path, design, 1.0) == noise  # from the folder


def test_hard_and_soft_labels() -> None:
    weights = torch.tensor([[[2.0, 0.0]], [[0.1, 0.0]], [[0.0, 3.0]]])
    ensemble = study.Design(priced="allocation", teachers=3)
    found = study.laws(weights, torch.tensor([[1.0], [-1.0]]), ensemble, 1.0)
    assert found["hard"].tolist() == [[1, 0], [0, 1]]
    assert found["soft"].argmax(dim=1).tolist() == [1, 0]  # the sure teacher outweighs the two others
    assert study.label_accuracy("hard", found["hard"], torch.tensor([0, 0])) == 0.5
    assert study.label_accuracy("soft", found["soft"], torch.tensor([1, 0])) == 1.0


def test_learning_rates_are_the_best_on_the_public_data() -> None:
    design = study.DESIGNS[0]
    table = {f"{design.name} 1": [0.5, 0.9, 0.6, 0.5], f"{design.name} 4": [0.9, 0.5, 0.5, 0.5]}
    assert study.chosen_rate(table, design, 1.0) == study.LEARNING_RATES[1]
    assert study.chosen_rate(table, design, 4.0) == study.LEARNING_RATES[0]
    assert study.parts(("5v8", "0v6"), (1, 2)) == [("5v8", 1), ("0v6", 1), ("5v8", 2), ("0v6", 2)]


@pytest.mark.slow
@fashion_mnist
def test_a_small_study_resumes_and_reports_what_is_missing(tmp_path: Path) -> None:
    designs = tuple(one for one in study.DESIGNS if one.teachers in (1, 5))
    small = partial(study.study, tmp_path, tasks=("5v8", "0v6"), totals=(1.0,), designs=designs, limit=400)
    stopped = small(seeds=(1,), minutes=0)
    assert "Unfinished and in no table: 5v8, seed 1; 0v6, seed 1." in stopped.notes[0]
    assert stopped.draw is None
    whole = small(seeds=(1, 2))
    assert not any(note.startswith("Unfinished") for note in whole.notes)
    files = sorted((tmp_path / "limit-400").glob("*-seed-*.json"))
    assert len(files) == 4
    stamps = [file.stat().st_mtime_ns for file in files]
    again = small(seeds=(1, 2))
    assert [file.stat().st_mtime_ns for file in files] == stamps
    assert json.dumps(again.data) == json.dumps(whole.data)
    goals, worth, *tables = whole.tables
    assert [row[:2] for row in goals.rows] == [("5v8", "1"), ("0v6", "1")]
    assert len(worth.rows) == 2
    assert len(tables) == 4
    assert all(0.4 < float(cell.split()[0]) <= 1 for table in tables for row in table.rows for cell in row[2:])
    whole.write(tmp_path)
    assert (tmp_path / "study.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@fashion_mnist
def test_a_small_comparison_keeps_what_it_says(tmp_path: Path) -> None:
    rows = comparison.rows()
    total = comparison.everything()
    by_block: dict[str, list[comparison.Row]] = {}
    for row in rows:
        by_block.setdefault(row.block, []).append(row)
    first, third, together = by_block.values()
    for m, block in zip(comparison.ALLOWANCES, (first, third), strict=True):
        assert all(row.label <= m * published.EPSILON["fashion-mnist"] * (1 + 1e-6) for row in block)
    assert all(row.total <= total.epsilon * (1 + 1e-9) for row in together)
    noise = comparison.noises()
    priced = [
        (comparison.SECRET, dt.RandomAllocation(teachers=11), 11),
        (comparison.ONE, None, 1),
        (comparison.PRIVATE, None, 11),
    ]
    for design, allocation, count in priced:
        teacher = dt.PrivacyProfile.from_dp_sgd([(noise[design], study.SAMPLE_RATE, study.STEPS)])
        found = dt.total_privacy(
            teachers=[teacher] * count,
            mechanism=dt.NoiseFreeMajority(classes=2),
            labels=1000,
            delta=comparison.DELTA,
            allocation=allocation,
        )
        assert found.epsilon <= total.epsilon * (1 + 1e-9)
    result = comparison.comparison(seeds=(1,), limit=400)
    result.write(tmp_path)
    assert len(result.tables) == 3
    assert (tmp_path / "comparison.png").read_bytes().startswith(b"\x89PNG")
    assert 0.5 < np.array(result.data["scores"]).mean() < 1


def test_students_of_chosen_questions_and_of_true_labels_are_compared_within_a_seed() -> None:
    def scores(shift: float) -> students.Scores:
        sizes = {f"{name} {size}": 0.8 for name in students.ACQUIRE for size in (25, 50, 75, 100)}
        labels = {"random labels": 0.9, "true labels": 0.8 + shift, "majority": 0.8, "mean probabilities": 0.81 + shift}
        return sizes | labels | {"margin 100": 0.82 + shift}

    found = {name: [scores(0.0), scores(0.01)] for name in ("5v8", "5v7")}
    gaps, chosen = students.report(found, rate=8.0, seeds=(1, 2), steps=1, queries=100).tables
    assert [row[0] for row in gaps.rows] == list(students.SOURCES)
    assert [row[-1] for row in gaps.rows] == ["", "1.0", "-1.0"]
    assert gaps.rows[2][-2] == "-1.0 (0.0)"
    assert gaps.rows[1][-2] == "+0.5 (6.4)"  # 12.71 standard errors of two seeds, 0.5 each
    assert chosen.rows[-2][:2] == (100, "margin")
    assert chosen.rows[-2][-1] == "+2.5 (0.9)"
    assert [row[-1] for row in chosen.rows[::3]] == [""] * 3


@pytest.mark.slow
@fashion_mnist
def test_small_students_are_measured_once(tmp_path: Path) -> None:
    folder = tmp_path / "limit-200"
    folder.mkdir()
    (folder / "digits-even-odd.json").write_text(json.dumps({f"{students.DESIGN.name} 0.25": [0.5, 0.6, 0.7, 0.6]}))
    (folder / "noise.json").write_text(json.dumps({f"{students.DESIGN.name} 0.25": 2.0}))
    small = partial(students.students, tmp_path, pairs=("5v8",), seeds=(1,), steps=2, queries=8, limit=200)
    result = small()
    (scores,) = result.data["scores"]["5v8"]
    asked = [f"{name} {size}" for name in students.ACQUIRE for size in (2, 4, 6, 8)]
    assert {*asked, *students.SOURCES} < scores.keys()
    assert scores["random 2"] == scores["margin 2"] == scores["disagreement 2"]
    assert all(0 <= score <= 1 for score in scores.values())
    (file,) = folder.glob("5v8-seed-*.json")
    stamp = file.stat().st_mtime_ns
    assert small().tables == result.tables
    assert file.stat().st_mtime_ns == stamp
