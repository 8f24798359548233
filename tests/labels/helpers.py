"""Small teachers: some whose votes are known, some trained with Opacus."""

from __future__ import annotations

from typing import Any

import torch
from opacus import PrivacyEngine
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import darrm_torch as dt

POINT = dt.PrivacyGuarantee(epsilon=0.1, delta=1e-5)


class Says(nn.Module):
    """Votes for class 1 where the first feature exceeds ``threshold``."""

    def __init__(self, threshold: float) -> None:
        super().__init__()
        self.threshold = nn.Parameter(torch.tensor(threshold))

    def forward(self, inputs: Tensor) -> Tensor:
        score = inputs[:, 0] - self.threshold
        return torch.stack([-score, score], dim=1)


class Returns(nn.Module):
    """Has the same logits for every input."""

    def __init__(self, *logits: float) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.tensor(logits))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.logits.expand(len(inputs), -1)


def free(models: list[nn.Module], **how: Any) -> dt.PrivateMajorityEnsemble:
    """An ensemble of these teachers that reports their plurality without noise."""
    profiles = [dt.PrivacyProfile.from_guarantee(POINT)] * len(models)
    return dt.PrivateMajorityEnsemble(models, dt.NoiseFreeMajority(), profiles=profiles, **how)


def train_with_opacus(seed: int, model: nn.Module | None = None) -> tuple[nn.Module, nn.Module, PrivacyEngine]:
    """A network, what ``make_private`` made of it, and its engine, after one epoch of DP-SGD."""
    torch.manual_seed(seed)
    inputs = torch.rand(256, 4)
    data = TensorDataset(inputs, (inputs[:, 0] > 0.5).long())
    model = model or nn.Linear(4, 2)
    engine = PrivacyEngine()
    wrapped, optimizer, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
        data_loader=DataLoader(data, batch_size=32),
        noise_multiplier=2.0,
        max_grad_norm=1.0,
    )
    for features, targets in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(wrapped(features), targets).backward()
        optimizer.step()
    return model, wrapped, engine
