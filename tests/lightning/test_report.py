"""Lightning: labels are bought once, before training, and the student carries nothing but what it may."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import lightning as L
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import TensorDataset

import darrm_torch as dt
from darrm_torch.lightning import PrivacyReport, PrivateLabelDataModule, StudentModule
from tests.lightning.helpers import trainer


def ensemble(ledger: dt.PrivacyLedger | None = None) -> dt.PrivateMajorityEnsemble:
    torch.manual_seed(1)
    models = [nn.Linear(4, 2) for _ in range(5)]
    profiles = [dt.PrivacyProfile.from_guarantee(dt.PrivacyGuarantee(epsilon=0.1))] * 5
    noise = dt.self_bounding_noise(teachers=5, allowance=2.0)
    return dt.PrivateMajorityEnsemble(models, dt.DaRRM(noise), profiles=profiles, ledger=ledger)


def data(teachers: dt.PrivateMajorityEnsemble, **how: int) -> PrivateLabelDataModule:
    inputs = torch.rand(60, 4, generator=torch.Generator().manual_seed(2))
    test = TensorDataset(inputs[:20], torch.zeros(20, dtype=torch.int64))
    sizes = {"queries": 12, "batch_size": 5, **how}
    return PrivateLabelDataModule(teachers, inputs, validation=test, test=test, **sizes)


@pytest.mark.filterwarnings("ignore:You requested to overfit")
@pytest.mark.parametrize("how", [{"max_epochs": 3}, {"fast_dev_run": True}, {"overfit_batches": 1}])
def test_training_pays_for_the_queries_once(tmp_path: Path, how: dict[str, int]) -> None:
    teachers = ensemble()
    module = data(teachers)
    runner = trainer(tmp_path, **how)
    runner.fit(StudentModule(nn.Linear(4, 2)), datamodule=module)
    runner.test(StudentModule(nn.Linear(4, 2)), datamodule=module, verbose=False)
    assert teachers.ledger.count == 12


def test_a_second_run_on_the_same_ledger_pays_nothing(tmp_path: Path) -> None:
    file = tmp_path / "labels.ledger"
    first = data(ensemble(dt.PrivacyLedger(file))).label()
    again = ensemble(dt.PrivacyLedger(file))
    assert torch.equal(data(again).label(), first)
    assert again.ledger.count == 12


def test_the_loaders_serve_what_they_say() -> None:
    module = data(ensemble())
    inputs = torch.rand(60, 4, generator=torch.Generator().manual_seed(2))
    rows, labels = map(torch.cat, zip(*module.train_dataloader(), strict=True))
    served = {tuple(row.tolist()): int(label) for row, label in zip(rows, labels, strict=True)}
    assert served == {
        tuple(inputs[index].tolist()): int(label) for index, label in zip(module.queries, module.labels, strict=True)
    }
    rest = torch.cat(list(module.unlabelled_dataloader()))
    assert len(rest) == 48
    assert not set(map(tuple, rest.tolist())) & set(served)
    # Data sets of (input, something else) give their inputs only.
    pairs = PrivateLabelDataModule(ensemble(), TensorDataset(inputs, torch.arange(60)), queries=12)
    assert torch.equal(torch.cat(list(pairs.unlabelled_dataloader())).sort(0)[0], rest.sort(0)[0])


def test_too_many_queries() -> None:
    with pytest.raises(dt.InvalidArgument, match="at most the 60 public inputs"):
        data(ensemble(), queries=61)


def test_the_checkpoint_states_the_cost_and_holds_no_teacher(tmp_path: Path) -> None:
    teachers = ensemble()
    student = StudentModule(nn.Linear(4, 2))
    logger = CSVLogger(tmp_path)
    runner = trainer(tmp_path, logger=logger, callbacks=[PrivacyReport(teachers)], enable_checkpointing=True)
    runner.fit(student, datamodule=data(teachers))
    (file,) = tmp_path.rglob("*.ckpt")
    content = torch.load(file, weights_only=True)
    assert content["darrm_privacy_report"]["total"]["labels"] == 12
    assert set(content["state_dict"]) == {"backbone.weight", "backbone.bias"}
    secrets = [teacher.weight.numpy().tobytes() for teacher in teachers._teachers]
    for left in (path for path in tmp_path.rglob("*") if path.is_file()):
        assert not any(secret in left.read_bytes() for secret in secrets)
    with (Path(logger.log_dir) / "metrics.csv").open() as file:
        (logged,) = [row for row in csv.DictReader(file) if row["privacy/labels"]]
    assert float(logged["privacy/labels"]) == 12
    for name, labels in (("label", 1), ("total", 12)):
        guarantee = teachers.total_privacy(labels=labels)
        assert float(logged[f"privacy/{name}_epsilon"]) == guarantee.epsilon
        assert float(logged[f"privacy/{name}_delta"]) == guarantee.delta
    assert content["darrm_privacy_report"]["label"]["epsilon"] == teachers.total_privacy(labels=1).epsilon


def test_labels_without_any_guarantee_are_logged_as_such(tmp_path: Path) -> None:
    exposed = dt.PrivateMajorityEnsemble([nn.Linear(4, 2) for _ in range(3)], dt.NoiseFreeMajority())
    logger = CSVLogger(tmp_path)
    runner = trainer(tmp_path, logger=logger, callbacks=[PrivacyReport(exposed)])
    runner.fit(StudentModule(nn.Linear(4, 2)), datamodule=data(exposed))
    with (Path(logger.log_dir) / "metrics.csv").open() as file:
        (logged,) = [row for row in csv.DictReader(file) if row["privacy/labels"]]
    assert float(logged["privacy/label_epsilon"]) == float(logged["privacy/total_epsilon"]) == math.inf


def test_seed_everything_does_not_predict_labels() -> None:
    # 60 fair coins: two equal sequences by chance once in 2**60.
    coin = dt.DaRRM(dt.NoiseFunction(gamma=[0.0, 0.0]), uncertified=True)
    profiles = [dt.PrivacyProfile.from_guarantee(dt.PrivacyGuarantee(epsilon=0.1))]
    draws = []
    for _ in range(2):
        L.seed_everything(0, verbose=False)
        single = dt.PrivateMajorityEnsemble([nn.Linear(4, 2)], coin, profiles=profiles)
        draws.append(single(torch.rand(60, 4)))
    assert not torch.equal(draws[0], draws[1])
