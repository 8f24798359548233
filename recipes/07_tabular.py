"""Tabular data: Wisconsin breast cancer, 569 patients with 30 numbers each, from scikit-learn.

    python -m recipes.07_tabular

Five teachers, logistic regressions trained by DP-SGD, label the patients of a public study, and a student learns from
these labels. Each shard has about 80 patients, so one teacher costs a few units of epsilon; the report shows it.
"""

from __future__ import annotations

import logging
from pathlib import Path

import lightning as L
import torch
from sklearn.datasets import load_breast_cancer
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import darrm_torch as dt
from darrm_torch.lightning import PrivateLabelDataModule, StudentModule

RECORDS = 400  # declared: it fixes sample rate and steps, however many patients there are


def patients() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Measurements and diagnoses (1: benign) of 400 private and then of 169 public patients."""
    measured, diagnoses = (torch.as_tensor(part) for part in load_breast_cancer(return_X_y=True))
    order = torch.randperm(len(diagnoses), generator=torch.Generator().manual_seed(0))
    private, public = order[:RECORDS], order[RECORDS:]
    # Scale by statistics of the public patients: those of the private ones would be a further release.
    measured = (measured - measured[public].mean(dim=0)) / measured[public].std(dim=0)
    measured, diagnoses = measured.float(), diagnoses.long()
    return measured[private], diagnoses[private], measured[public], diagnoses[public]


def logistic_regression() -> nn.Module:
    """An untrained model."""
    return nn.Linear(30, 2)


def main(folder: Path = Path("runs/tabular"), *, teachers: int = 5, epochs: int = 10) -> float:
    """Train teachers, buy labels, train a student; returns its accuracy on patients without a bought label."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    private, diagnoses, public, truth = patients()
    # Each patient draws a shard at random and in secret. Nobody knows which teacher to look at, so all of them together
    # cost less than one. When all are trained, dt.forget_draws(folder / "private") deletes the draws.
    shards = dt.assign_shards(len(private), teachers=teachers, unit="patient", private_folder=folder / "private")
    files = dt.train_teachers(
        folder / "teachers",
        build_model=logistic_regression,
        dataset=TensorDataset(private, diagnoses),
        shards=shards,
        shard_size=RECORDS // teachers,
        settings=dt.TrainingSettings(noise_multiplier=2.0, batch_size=20, epochs=epochs, learning_rate=0.5),
    )
    models = [logistic_regression() for _ in files]
    for file, model in zip(files, models, strict=True):
        dt.load_teacher(file, model)
    ledger = dt.PrivacyLedger(folder / "labels.ledger")
    # 100 labels cost what publishing the teachers costs, so noise would buy nothing.
    mechanism = dt.NoiseFreeMajority()
    ensemble = dt.PrivateMajorityEnsemble.from_opacus(models, files, delta=1e-4, mechanism=mechanism, ledger=ledger)
    data = PrivateLabelDataModule(ensemble, public[:100], queries=100, test=TensorDataset(public[100:], truth[100:]))
    student = StudentModule(logistic_regression(), learning_rate=0.05)
    trainer = L.Trainer(
        max_epochs=20, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(student, datamodule=data)
    (scores,) = trainer.test(student, datamodule=data, verbose=False)
    print(f"\nstudent: {scores['test_accuracy']:.3f} right on {len(public) - 100} patients without a bought label\n")
    print(ensemble.privacy_report())
    return float(scores["test_accuracy"])


if __name__ == "__main__":
    main()
