"""Teachers with a torchvision architecture: a ResNet whose batch normalisation the Opacus validator replaces.

    python -m recipes.06_resnet_teachers

Three teachers learn the 5,000 offline digits (even against odd). Batch normalisation mixes the records of a batch and
keeps statistics that no accountant counts, so Opacus refuses it. GroupNorm normalises each record by itself.
"""

from __future__ import annotations

from typing import Any

import torch
from opacus import PrivacyEngine
from opacus.validators import ModuleValidator
from torch import nn
from torch.utils.data import TensorDataset
from torchvision.models.resnet import BasicBlock, ResNet

import darrm_torch as dt

from .data import load_task


class Block(BasicBlock):
    """The torchvision block without its in-place addition, which Torch forbids on outputs of Opacus' hooks."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Two convolutions and a shortcut."""
        shortcut = x if self.downsample is None else self.downsample(x)
        inner = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(inner)) + shortcut)


def small_resnet() -> nn.Module:
    """The first two stages of a ResNet for small grey images, ready for DP-SGD."""
    network = ResNet(Block, [1, 1, 1, 1])
    network.conv1 = nn.Conv2d(1, 64, kernel_size=7, stride=2, padding=3, bias=False)
    # The noise grows with the number of weights, and small shards cannot train the other stages.
    network.layer3 = network.layer4 = nn.Identity()
    network.fc = nn.Linear(128, 2)
    network = ModuleValidator.fix(network)  # BatchNorm becomes GroupNorm
    for layer in network.modules():
        if isinstance(layer, nn.ReLU):
            layer.inplace = False  # see Block
    ModuleValidator.validate(network, strict=True)
    return network


BATCH_SIZE = 64


def train_teacher(images: torch.Tensor, labels: torch.Tensor, *, shard_size: int, epochs: int) -> tuple[Any, ...]:
    """Train one teacher by DP-SGD as in the Opacus tutorial; returns the network, its engine and its optimizer."""
    network, engine = small_resnet(), PrivacyEngine()
    private, optimizer, loader = engine.make_private(
        module=network,
        optimizer=torch.optim.SGD(network.parameters(), lr=0.5),
        data_loader=dt.declared_loader(TensorDataset(images, labels), shard_size=shard_size, batch_size=BATCH_SIZE),
        noise_multiplier=1.5,
        max_grad_norm=1.0,
    )
    optimizer.expected_batch_size = BATCH_SIZE  # declared, like the loader's rate and steps
    for _ in range(epochs):
        for batch, targets in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(private(batch), targets).backward()
            optimizer.step()
    return private, engine, optimizer


def main(*, teachers: int = 3, epochs: int = 8, limit: int | None = None) -> None:
    """Train, buy labels, print the report."""
    task = load_task("mnist-5000", limit=limit)
    shards = dt.assign_shards(len(task.private_labels), teachers=teachers)
    shard_size = (limit or task.declared_records) // teachers  # a declared number: the shards' true sizes are private
    trained = [
        train_teacher(task.private_images[s], task.private_labels[s], shard_size=shard_size, epochs=epochs)
        for s in shards
    ]
    models, engines, optimizers = zip(*trained, strict=True)
    ensemble = dt.PrivateMajorityEnsemble.from_opacus(
        models,
        engines,
        optimizers=optimizers,
        delta=1e-4,
        allowance=1,
        allocation=shards.allocation,
        accept=["constants"],  # nothing in Opacus shows that rate, steps and divisor were declared; they were
    )
    labels = ensemble(task.public_images[:100])
    print(f"{len(labels)} labels, {int((labels == task.public_labels[: len(labels)]).sum())} of them right\n")
    print(ensemble.privacy_report())


if __name__ == "__main__":
    main()
