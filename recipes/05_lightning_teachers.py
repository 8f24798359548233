"""Teachers trained by Lightning with Opacus; the checkpoints hold the accountants, so training can be resumed.

    python -m recipes.05_lightning_teachers

Three teachers learn the 5,000 offline digits (even against odd). You can stop it at any time and run it again: training
continues after the last epoch, and the accountant still counts the earlier steps, which a plain Lightning checkpoint
would lose.

`opacus.lightning` only replaces the data loader, and only for classes of `pytorch_lightning`. It is not needed: a
LightningModule can call `make_private` itself, once, as below.
"""

from __future__ import annotations

import logging
import secrets
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from opacus import PrivacyEngine
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import darrm_torch as dt
from darrm_torch.lightning import AccountantCheckpoint

from .data import load_task
from .models import PaperCNN

BATCH_SIZE = 64


class Teacher(L.LightningModule):
    """A network trained by DP-SGD, with the optimizer and the Poisson sampling loader that Opacus returns."""

    def __init__(self, images: Tensor, labels: Tensor, *, shard_size: int, noise_multiplier: float = 2.0) -> None:
        super().__init__()
        network = PaperCNN()
        self.engine = PrivacyEngine()
        self.network, self.optimizer, self.loader = self.engine.make_private(
            module=network,
            optimizer=torch.optim.SGD(network.parameters(), lr=0.25),
            data_loader=dt.declared_loader(TensorDataset(images, labels), shard_size=shard_size, batch_size=BATCH_SIZE),
            noise_multiplier=noise_multiplier,
            max_grad_norm=1.0,
            # With Torch's global generator, the seed of L.seed_everything would reveal the noise.
            noise_generator=torch.Generator().manual_seed(secrets.randbits(63)),
        )
        self.optimizer.expected_batch_size = BATCH_SIZE  # declared, like the loader's rate and steps

    def training_step(self, batch: Any, index: int) -> Tensor:
        """Cross-entropy."""
        images, labels = batch
        return nn.functional.cross_entropy(self.network(images), labels)

    def train_dataloader(self) -> Any:
        """Poisson samples of this teacher's shard."""
        return self.loader

    def configure_optimizers(self) -> Any:
        """The optimizer that clips, adds noise and reports to the accountant."""
        return self.optimizer


def train(teacher: Teacher, folder: Path, *, epochs: int) -> Path:
    """Train for ``epochs`` in all, continuing from the checkpoint in ``folder``, and return the last checkpoint."""
    last = folder / "last.ckpt"
    trainer = L.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        devices=1,  # one process per teacher: Opacus does not see Lightning's other processes
        callbacks=[AccountantCheckpoint(teacher.engine), ModelCheckpoint(folder, save_last=True, save_top_k=0)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(teacher, ckpt_path=last if last.exists() else None)
    return last


def main(
    folder: Path = Path("runs/lightning-teachers"), *, teachers: int = 3, epochs: int = 6, limit: int | None = None
) -> None:
    """Train or continue, read the guarantees from the checkpoints, buy labels, print the report."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    task = load_task("mnist-5000", limit=limit)
    # Each record draws its shard by itself, at random and in secret, and trains one teacher (overlap 1). The sizes of
    # the shards are private, so the number of records that sets rate and steps is a declared one.
    shards = dt.assign_shards(len(task.private_labels), teachers=teachers, private_folder=folder / "private")
    shard_size = (limit or task.declared_records) // teachers
    modules = [Teacher(task.private_images[s], task.private_labels[s], shard_size=shard_size) for s in shards]
    files = [train(module, folder / f"{number}", epochs=epochs) for number, module in enumerate(modules)]
    networks = [module.network for module in modules]
    ensemble = dt.PrivateMajorityEnsemble.from_opacus(
        networks,
        files,
        optimizers=[module.optimizer for module in modules],
        delta=1e-4,
        mechanism=dt.NoiseFreeMajority(),  # 100 labels cost what publishing the teachers costs
        allocation=shards.allocation,
        accept=["constants"],  # nothing in a checkpoint shows that they were declared; they were
    )
    labels = ensemble(task.public_images[:100])
    print(f"{len(labels)} labels, {int((labels == task.public_labels[: len(labels)]).sum())} of them right\n")
    print(ensemble.privacy_report())


if __name__ == "__main__":
    main()
