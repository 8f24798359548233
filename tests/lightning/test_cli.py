"""LightningCLI builds the student from a command line."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch

import darrm_torch as dt
from darrm_torch.lightning import PrivateLabelDataModule, StudentModule


def test_lightning_cli_builds_a_student() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Lightning's own imports
        from lightning.pytorch.cli import LightningCLI

        layer = "--model.backbone=torch.nn.Linear"
        sizes = ["--model.backbone.in_features=4", "--model.backbone.out_features=2"]
        trainer = ["--trainer.accelerator=cpu", "--trainer.logger=false"]
        arguments = [layer, *sizes, "--model.learning_rate=0.01", *trainer]
        cli = LightningCLI(
            StudentModule, run=False, save_config_callback=None, seed_everything_default=False, args=arguments
        )
    assert isinstance(cli.model, StudentModule)
    assert isinstance(cli.model.backbone, torch.nn.Linear)
    assert cli.model.configure_optimizers().param_groups[0]["lr"] == pytest.approx(0.01)


SETTINGS = """
model:
  backbone: {class_path: torch.nn.Linear, init_args: {in_features: 2, out_features: 2}}
data:
  ensemble: {class_path: hospitals_of_a_user.ensemble}
  public: {class_path: hospitals_of_a_user.public}
  queries: 6
trainer: {max_epochs: 1, accelerator: cpu, logger: false, enable_checkpointing: false, enable_progress_bar: false}
"""
HOSPITALS = """
import torch
import darrm_torch as dt

def ensemble() -> dt.PrivateMajorityEnsemble:
    return dt.PrivateMajorityEnsemble(
        [torch.nn.Linear(2, 2) for _ in "abc"], dt.GNMax(sigma=1.0), overlap=1, ledger=dt.PrivacyLedger("labels.ledger")
    )

def public() -> torch.Tensor:
    return torch.rand(20, 2)
"""


@pytest.mark.slow
def test_lightning_cli_fits_from_a_file_of_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As docs/tutorials/student.md shows it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("hospitals_of_a_user.py").write_text(HOSPITALS)
    Path("train.yaml").write_text(SETTINGS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Lightning's own imports
        from lightning.pytorch.cli import LightningCLI

        LightningCLI(StudentModule, PrivateLabelDataModule, args=["fit", "--config", "train.yaml"])
    assert dt.PrivacyLedger("labels.ledger").count == 6
