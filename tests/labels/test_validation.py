"""Private validation: what is counted, what is charged, what is refused, and what is kept."""

from __future__ import annotations

import json
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import darrm_torch as dt
from darrm_torch.labels import validation
from darrm_torch.teachers.records import data_digest
from tests.labels.helpers import Says

TEACHER = dt.PrivacyProfile.from_guarantee(dt.PrivacyGuarantee(epsilon=0.5, delta=1e-6))
DECLARED = dt.PrivateValidation(epsilon=20.0, releases=2, reads="teachers")  # hardly any noise


def allocation(**rest: Any) -> dt.RandomAllocation:
    return dt.RandomAllocation(**{"teachers": 3, "holdout": 0.25, "validation": DECLARED} | rest)


def ensemble(mechanism: dt.Mechanism | None = None, **rest: Any) -> dt.PrivateMajorityEnsemble:
    """Three teachers: they say 1 above .1, .5 and .9."""
    settings = {"profiles": [TEACHER] * 3, "allocation": allocation(), "ledger": dt.PrivacyLedger(), "delta": 1e-5}
    models = [Says(0.1), Says(0.5), Says(0.9)]
    return dt.PrivateMajorityEnsemble(models, mechanism or dt.NoiseFreeMajority(), **settings | rest)


def data(count: int = 400) -> tuple[TensorDataset, dt.Shards]:
    """Records whose class is 1 above .6: the majority errs between .5 and .6."""
    inputs = torch.arange(count, dtype=torch.float32)[:, None] / count
    shards = dt.assign_shards(count, teachers=3, holdout=0.25, insecure_seed=1)
    return TensorDataset(inputs, (inputs[:, 0] > 0.6).long()), shards


def truth(shards: dt.Shards, dataset: TensorDataset, threshold: float) -> list[list[int]]:
    inputs, targets = (tensor[shards.held_out] for tensor in dataset.tensors)
    right = (inputs[:, 0] > threshold).long() == targets
    return [[int((right & (targets == one)).sum()), int((~right & (targets == one)).sum())] for one in (0, 1)]


def test_labels_are_counted_by_class_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset, shards = data()
    labeler = ensemble()
    found = dt.validate(labeler, dataset, shards, insecure_seed=0)
    assert (found.of, found.by, found.epsilon, found.confidence) == ("labels", "class", 20.0, 0.95)
    assert [list(one) for one in zip(found.right, found.wrong, strict=True)] == truth(shards, dataset, 0.5)
    assert found.accuracy == pytest.approx(sum(found.right) / len(shards.held_out))
    low, high = found.interval
    assert low < found.accuracy < high
    assert len(found.parts) == 2
    assert float(found) == found.accuracy
    assert labeler.ledger.count == 0  # no label of a held-out record is kept
    monkeypatch.setattr(validation, "private_counts", None)  # nothing is drawn again
    again = dt.validate(labeler, dataset, shards, confidence=0.8)
    assert (again.right, again.wrong) == (found.right, found.wrong)
    assert again.interval[0] > low
    text = " ".join(labeler.privacy_report().split())
    assert f"Validation: {found}. The bounds above cover it." in text
    assert labeler.privacy_report(as_dict=True)["validation"][0]["right"] == list(found.right)
    assert json.loads(json.dumps(found.to_dict()))["text"] == repr(found)


def test_a_random_teacher_a_student_and_calibration() -> None:
    dataset, shards = data(2000)
    declared = replace(DECLARED, releases=4)
    labeler = ensemble(allocation=allocation(validation=declared))
    teachers = dt.validate(labeler, dataset, shards, of="teachers", insecure_seed=0)
    mean = np.mean([np.array(truth(shards, dataset, one))[:, 0].sum() for one in (0.1, 0.5, 0.9)])
    # One of three teachers for each of about 500 records: five standard deviations, one run in a million.
    assert abs(sum(teachers.right) - mean) < 5 * math.sqrt(500 * 0.25)
    student = Says(0.55)
    student.train()
    found = dt.validate(labeler, dataset, shards, of=student, insecure_seed=0)
    assert student.training
    assert [list(one) for one in zip(found.right, found.wrong, strict=True)] == truth(shards, dataset, 0.55)
    sure = dt.validate(labeler, dataset, shards, by="confidence", bins=3, insecure_seed=0)
    inputs = dataset.tensors[0][shards.held_out][:, 0]
    split = int(((inputs > 0.1) & (inputs <= 0.9)).sum())  # two of three votes, share 2/3
    assert [r + w for r, w in zip(sure.right, sure.wrong, strict=True)] == [0, 0, len(inputs)]
    halves = dt.validate(labeler, dataset, shards, by="confidence", bins=4, insecure_seed=0)
    assert [r + w for r, w in zip(halves.right, halves.wrong, strict=True)] == [0, 0, split, len(inputs) - split]
    together = dt.validate(ensemble(), dataset, shards, by="all", insecure_seed=0)
    assert (sum(sure.right), sum(sure.wrong)) == (*together.right, *together.wrong)
    with pytest.raises(dt.InvalidArgument, match='by must be "class" or "all" for teachers'):
        dt.validate(labeler, dataset, shards, of="teachers", by="confidence")
    with pytest.raises(dt.BudgetExceeded, match="4 releases of a validation were declared, and all were made"):
        dt.validate(labeler, dataset, shards, of=Says(0.7))


def test_records_that_cannot_be_used_count_nowhere_in_silence() -> None:
    dataset, shards = data()
    inputs, targets = dataset.tensors
    targets = targets.double()
    spoiled = shards.held_out[:4]
    inputs[spoiled[0]], targets[spoiled[1]], targets[spoiled[2]], targets[spoiled[3]] = math.nan, 7, math.inf, 0.5
    found = dt.validate(ensemble(), TensorDataset(inputs, targets), shards, insecure_seed=0)
    assert sum(found.right) + sum(found.wrong) == len(shards.held_out) - 4
    named = ensemble(classes=(1, 0))  # label 0 is class 1
    wrong = dt.validate(named, data()[0], shards, insecure_seed=0)
    assert [list(one) for one in zip(wrong.right, wrong.wrong, strict=True)] == truth(shards, data()[0], 0.5)[::-1]


class Unreadable(Dataset):
    def __len__(self) -> int:
        return 400

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        if row:
            raise ValueError(f"record {row} is damaged: secret")
        return torch.zeros(1), 0


def test_a_record_that_cannot_be_read_is_named_in_private_only(tmp_path: Path) -> None:
    shards = dt.assign_shards(400, teachers=3, holdout=0.5, private_folder=tmp_path / "private")
    with pytest.raises(dt.DarrmError, match="could not be read") as caught:
        dt.validate(ensemble(), Unreadable(), shards)
    assert "secret" not in str(caught.value)
    assert "secret" in (tmp_path / "private" / "failed-validation.txt").read_text()
    with pytest.raises(dt.DarrmError, match="The reason is not shown"):
        dt.validate(ensemble(), Unreadable(), data()[1])


def test_rows_in_another_order_are_refused(tmp_path: Path) -> None:
    dataset, private = data()[0], tmp_path / "private"
    shards = dt.assign_shards(400, teachers=3, holdout=0.5, private_folder=private)
    (private / "teacher-data.sha256").write_text(data_digest(dataset, shards))  # as train_teachers does
    dt.validate(ensemble(), dataset, shards)
    with pytest.raises(dt.InvalidArgument, match="dataset must be the one that the teachers were trained on"):
        dt.validate(ensemble(), TensorDataset(*(part.flip(0) for part in dataset.tensors)), shards)


def test_the_total_covers_the_validation_from_the_start() -> None:
    dataset, shards = data()
    cheap = dt.PrivateValidation(epsilon=0.3)
    budget = dt.PrivacyGuarantee(epsilon=0.5, delta=1e-5)
    labeler = ensemble(allocation=allocation(validation=cheap), ledger=dt.PrivacyLedger(budget=budget))
    alone = ensemble(allocation=allocation(validation=None)).total_privacy(labels=5).epsilon
    both = labeler.total_privacy(labels=5).epsilon
    assert both <= max(alone, 0.3)
    assert labeler.ledger.spent().epsilon == 0
    dt.validate(labeler, dataset, shards)
    spent = labeler.ledger.spent()
    assert spent is not None
    assert spent.epsilon == both  # it reads what publishing the teachers covers, whatever the number of labels
    poor = ensemble(ledger=dt.PrivacyLedger(budget=dt.PrivacyGuarantee(epsilon=0.5, delta=1e-5)))
    with pytest.raises(dt.BudgetExceeded, match="with the validation the total is"):
        dt.validate(poor, dataset, shards)


def refusals() -> dict[str, tuple[Any, Any, str]]:
    dataset, shards = data()
    plain = [dt.PrivacyProfile.non_private()] * 3
    own = dt.PermuteAndFlip(epsilon=0.1, teachers=3)
    student = allocation(validation=dt.PrivateValidation(epsilon=0.3, reads="student"))
    labels = allocation(validation=dt.PrivateValidation(epsilon=0.3, reads="labels"))

    def call(labeler: dt.PrivateMajorityEnsemble, shards: Any = shards, **rest: Any) -> Any:
        return lambda: dt.validate(labeler, dataset, shards, **rest)

    return {
        "nothing declared": (
            call(ensemble(allocation=allocation(validation=None))),
            dt.InvalidArgument,
            r"ensemble must be one with a declared validation",
        ),
        "nothing held out": (
            call(ensemble(), dt.assign_shards(400, teachers=3)),
            dt.InvalidArgument,
            "shards must be some held out",
        ),
        "labels where a student was declared": (call(ensemble(allocation=student)), dt.InvalidArgument, "of must be"),
        "teachers where labels were declared": (
            call(ensemble(allocation=labels), of="teachers"),
            dt.InvalidArgument,
            "of must be",
        ),
        "plain teachers, own randomness": (
            call(ensemble(own, profiles=plain, allocation=labels)),
            dt.UnprovenPrivacy,
            "can change its answer to every held-out record",
        ),
        "shards of other teachers": (
            call(ensemble(), dt.assign_shards(400, teachers=4, holdout=0.5)),
            dt.InvalidArgument,
            "the draw that the teachers were trained on",
        ),
        "a student of other inputs": (
            call(ensemble(), of=nn.Linear(5, 2)),
            dt.InvalidArgument,
            "of must be a network that takes the inputs",
        ),
        "findings": (
            call(ensemble(findings=["fever"])),
            dt.InvalidArgument,
            "ensemble must be one without findings",
        ),
        "other records": (
            call(ensemble(), dt.assign_shards(500, teachers=3, holdout=0.5, insecure_seed=1)),
            dt.InvalidArgument,
            "dataset must be the records that the shards were drawn from",
        ),
    }


@pytest.mark.parametrize("name", refusals())
def test_what_has_no_price_is_refused(name: str) -> None:
    call, error, message = refusals()[name]
    with pytest.raises(error, match=message):
        call()


def test_a_student_of_plain_teachers_may_be_validated() -> None:
    dataset, shards = data()
    declared = allocation(validation=dt.PrivateValidation(epsilon=0.3, reads="student"))
    plain = [dt.PrivacyProfile.non_private()] * 3
    labeler = ensemble(dt.PermuteAndFlip(epsilon=0.1, teachers=3), profiles=plain, allocation=declared)
    assert dt.validate(labeler, dataset, shards, of=Says(0.6)).of == "student"
    assert labeler.total_privacy(labels=1).route.key == "own-randomness"


def test_a_ledger_of_another_validation_is_refused() -> None:
    ledger = dt.PrivacyLedger()
    ensemble(ledger=ledger)
    with pytest.raises(dt.LedgerError, match="different rules"):
        ensemble(ledger=ledger, allocation=allocation(validation=replace(DECLARED, releases=3)))


@pytest.mark.slow
def test_the_whole_way(tmp_path: Path) -> None:
    """Train on what is not held out, within a total that covers both; validate; some of the teachers are refused."""
    torch.manual_seed(0)
    inputs = torch.randn(300, 2)
    dataset = TensorDataset(inputs, (inputs[:, 0] > 0).long())
    declared = dt.PrivateValidation(epsilon=1.0, releases=2, reads="teachers")
    shards = dt.assign_shards(300, teachers=3, holdout=0.3, validation=declared, private_folder=tmp_path / "private")
    total = dt.PrivacyGuarantee(epsilon=4.0, delta=1e-5)
    files = dt.train_teachers(
        tmp_path / "teachers",
        build_model=network,
        dataset=dataset,
        shards=shards,
        shard_size=70,
        settings=dt.TrainingSettings(batch_size=35, epochs=1, noise_multiplier=None),
        total=total,
        executor=ThreadPoolExecutor(1),
        progress=False,
    )
    models = [network() for _ in files]
    for file, model in zip(files, models, strict=True):
        dt.load_teacher(file, model)
    labeler = dt.PrivateMajorityEnsemble.from_opacus(
        models, files, delta=1e-5, mechanism=dt.NoiseFreeMajority(), ledger=dt.PrivacyLedger(budget=total)
    )
    assert labeler.allocation == shards.allocation
    assert labeler.total_privacy(labels=10).epsilon <= 4.0
    assert dt.validate(labeler, dataset, shards, of="teachers").of == "teachers"
    assert dt.validate(labeler, dataset, shards).of == "labels"
    other = dt.assign_shards(300, teachers=3, holdout=0.3, validation=declared)
    with pytest.raises(dt.InvalidArgument, match="the draw that the teachers were trained on"):
        dt.validate(labeler, dataset, other)
    with pytest.raises(dt.InvalidArgument, match="ensemble must be one with a declared validation"):  # a chosen jury
        dt.validate(
            dt.PrivateMajorityEnsemble(
                models[:2],
                dt.NoiseFreeMajority(),
                profiles=labeler.profiles[:2],
                overlap=1,
                ledger=dt.PrivacyLedger(),
            ),
            dataset,
            shards,
        )


def network() -> nn.Module:
    return nn.Linear(2, 2)


class Items(list[Any], Dataset[Any]):
    """A data set that is a list of its items."""


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (Items([("a text", 1)] * 400), "items are tensors and numbers, got 'str'"),
        (Items([(torch.zeros(1), "a class")] * 400), "items are tensors and numbers, got 'str'"),
        (Items([(torch.zeros(1), None)] * 400), "a map-style data set of tensors and numbers"),
        (Items([(torch.zeros(1), 1)] * 10), "the records that the shards were drawn from, got 'only 10 of them'"),
        (Items([(torch.zeros(3), 1)] * 400), "what teacher 0 takes"),
        (TensorDataset(torch.zeros(400, 3), torch.zeros(400)), "what teacher 0 takes"),
        (TensorDataset(torch.zeros(400, 1).to_sparse(), torch.zeros(400)), "one of dense tensors"),
    ],
)
def test_wrong_records_are_refused_as_the_argument_that_they_came_in(dataset: Any, message: str) -> None:
    models = [nn.Linear(1, 2) for _ in range(3)]
    settings = {"profiles": [TEACHER] * 3, "allocation": allocation(), "ledger": dt.PrivacyLedger(), "delta": 1e-5}
    labeler = dt.PrivateMajorityEnsemble(models, dt.NoiseFreeMajority(), **settings)
    with pytest.raises(dt.InvalidArgument, match=f"^dataset must be .*{message}"):
        dt.validate(labeler, dataset, data()[1])
