"""Your own Opacus models: your training loop, then private labels, then a student.

    python -m recipes.02_your_own_models

Two teachers are trained on halves of the 5,000 offline digits (even against odd). The student may be published, since
it has only seen public images and private labels. Prints what the labels cost.
"""

from __future__ import annotations

import logging
from typing import Any

import lightning as L
import torch
from opacus import PrivacyEngine
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import darrm_torch as dt
from darrm_torch.lightning import PrivateLabelDataModule, StudentModule

from .data import load_task
from .models import PaperCNN

BATCH_SIZE = 64


def train_teachers_of_your_own() -> tuple[dict[str, Any], Tensor]:
    """Two models trained as in the Opacus tutorial, what Opacus says about them, and public images without labels."""
    task = load_task("mnist-5000")
    # Each record draws its shard by itself, at random and in secret, and trains one teacher. Nobody knows which, so all
    # teachers together cost less than one. For that, rate, steps and divisor are declared for all teachers alike: taken
    # from the true size of a shard, as Opacus does, they would show the draws.
    shards = dt.assign_shards(len(task.private_labels), teachers=2)
    trained: dict[str, Any] = {"models": [], "engines": [], "optimizers": [], "allocation": shards.allocation}
    for shard in shards:
        model = PaperCNN()
        engine = PrivacyEngine()
        data = TensorDataset(task.private_images[shard], task.private_labels[shard])
        private, optimizer, loader = engine.make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.25),
            data_loader=dt.declared_loader(data, shard_size=task.declared_records // 2, batch_size=BATCH_SIZE),
            noise_multiplier=2.0,
            max_grad_norm=1.0,
        )
        optimizer.expected_batch_size = BATCH_SIZE
        for images, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(private(images), labels).backward()
            optimizer.step()
        for name, part in (("models", private), ("engines", engine), ("optimizers", optimizer)):
            trained[name].append(part)
    return trained, task.public_images


def teach_a_student(trained: dict[str, Any], images: Tensor) -> StudentModule:
    """From Opacus models to a student: 100 private labels, bought once, before training."""
    # "constants": nothing in Opacus shows that rate, steps and divisor were declared; they were, above.
    # Each record is in one shard, so noise on 100 labels would buy nothing. Keep your own ledger in a file.
    how: dict[str, Any] = {"mechanism": dt.NoiseFreeMajority(classes=2), "ledger": dt.PrivacyLedger()}
    ensemble = dt.PrivateMajorityEnsemble.from_opacus(**trained, delta=1e-4, accept=["constants"], **how)
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
