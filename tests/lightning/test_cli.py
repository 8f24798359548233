"""LightningCLI builds the student from a command line."""

from __future__ import annotations

import warnings

import pytest
import torch

from darrm_torch.lightning import StudentModule


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
