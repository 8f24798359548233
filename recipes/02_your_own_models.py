"""Your own Opacus models: your training loop, then private labels, then a student.

    python -m recipes.02_your_own_models

Two teachers are trained on halves of the 5,000 offline digits (even against odd). The student may be published, since
it has only seen public images and private labels. Prints what the labels cost.
"""

from __future__ import annotations

import logging

import lightning as L
import torch
from opacus import PrivacyEngine
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import darrm_torch as dt
from darrm_torch.lightning import PrivateLabelDataModule, StudentModule

from .data import load_task
from .models import PaperCNN


def train_teachers_of_your_own() -> tuple[list[nn.Module], list[PrivacyEngine], Tensor]:
    """Two models trained as in the Opacus tutorial, their engines, and public images without labels."""
    task = load_task("mnist-5000")
    # Each record draws its shard by itself, at random and in secret, and trains one teacher (overlap 1). Opacus takes
    # sample rate and steps from the size of a shard; recipe 07 declares them, and all teachers together cost less.
    shards = dt.assign_shards(len(task.private_labels), teachers=2)
    models, engines = [], []
    for shard in shards:
        model = PaperCNN()
        engine = PrivacyEngine()
        data = TensorDataset(task.private_images[shard], task.private_labels[shard])
        private, optimizer, loader = engine.make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.25),
            data_loader=DataLoader(data, batch_size=64),
            noise_multiplier=2.0,
            max_grad_norm=1.0,
        )
        for images, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(private(images), labels).backward()
            optimizer.step()
        models.append(private)
        engines.append(engine)
    return models, engines, task.public_images


def teach_a_student(models: list[nn.Module], engines: list[PrivacyEngine], images: Tensor) -> StudentModule:
    """From Opacus models to a student: 100 private labels, bought once, before training."""
    ensemble = dt.PrivateMajorityEnsemble.from_opacus(models, engines, delta=1e-4, allowance=1, overlap=1)
    data = PrivateLabelDataModule(ensemble, images, queries=100)
    student = StudentModule(PaperCNN())
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = L.Trainer(max_epochs=20, accelerator="cpu", **quiet)
    trainer.fit(student, datamodule=data)
    print(f"{len(data.labels)} labels, {int(data.labels.sum())} of them 1\n")
    print(ensemble.privacy_report())
    return student


def main() -> None:
    """Train two teachers, buy labels, train the student."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    teach_a_student(*train_teachers_of_your_own())


if __name__ == "__main__":
    main()
