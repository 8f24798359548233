"""A quiet trainer, and students whose losses are computed by hand."""

from __future__ import annotations

import math
from pathlib import Path

import lightning as L
import torch
from torch import nn

LOG = math.log


def linear(rows: list[list[float]]) -> nn.Linear:
    """Logits ``rows @ x``, without bias."""
    layer = nn.Linear(len(rows[0]), len(rows), bias=False)
    layer.weight.data = torch.tensor(rows)
    return layer


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def trainer(folder: Path, **how: object) -> L.Trainer:
    """Trains on the CPU, and neither shows nor keeps anything unless asked to."""
    quiet = {"accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    return L.Trainer(default_root_dir=folder, **{**quiet, "enable_checkpointing": False, "max_epochs": 1, **how})
