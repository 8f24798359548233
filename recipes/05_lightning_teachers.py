"""Teachers that Lightning trains with Opacus; their accountants live in the checkpoints, so training can be resumed.

    python -m recipes.05_lightning_teachers

Three teachers on the 5,000 offline digits (even against odd). Stop it at any time and run it again: it goes on from the
last epoch, and the steps before it are not forgotten, as they would be by a plain Lightning checkpoint.

`opacus.lightning` only swaps a data loader, and only for the class tree of `pytorch_lightning`. A LightningModule that
calls `make_private` itself, once, as below, needs no more.
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
from torch.utils.data import DataLoader, TensorDataset

import darrm_torch as dt
from darrm_torch.lightning import AccountantCheckpoint

from .data import load_task
from .models import PaperCNN


class Teacher(L.LightningModule):
    """A network under DP-SGD, with the optimizer and the Poisson sampling loader that Opacus made for it."""

    def __init__(self, images: Tensor, labels: Tensor, *, noise_multiplier: float = 2.0) -> None:
        super().__init__()
        network = PaperCNN()
        self.engine = PrivacyEngine()
        self.network, self.optimizer, self.loader = self.engine.make_private(
            module=network,
            optimizer=torch.optim.SGD(network.parameters(), lr=0.25),
            data_loader=DataLoader(TensorDataset(images, labels), batch_size=64),
            noise_multiplier=noise_multiplier,
            max_grad_norm=1.0,
            # From Torch's own generator, L.seed_everything would let everybody know the noise.
            noise_generator=torch.Generator().manual_seed(secrets.randbits(63)),
        )

    def training_step(self, batch: Any, index: int) -> Tensor:
        """Cross-entropy."""
        images, labels = batch
        return nn.functional.cross_entropy(self.network(images), labels)

    def train_dataloader(self) -> Any:
        """Poisson samples of this teacher's own shard."""
        return self.loader

    def configure_optimizers(self) -> Any:
        """The one that clips, adds noise and tells the accountant."""
        return self.optimizer


def train(teacher: Teacher, folder: Path, *, epochs: int) -> Path:
    """Train to ``epochs``, from where ``folder`` left off, and return the checkpoint."""
    last = folder / "last.ckpt"
    trainer = L.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        devices=1,  # one process a teacher: Opacus knows nothing of Lightning's others
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
    """Train or go on, read what the checkpoints promise, label, report."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    task = load_task("mnist-5000", limit=limit)
    # The shard of a record depends on that record alone, so a record is in the data of one teacher only (overlap 1).
    shards = dt.assign_shards(task.private_ids(), teachers=teachers, key=b"a secret of the data's owner")
    modules = [Teacher(task.private_images[shard], task.private_labels[shard]) for shard in shards]
    files = [train(module, folder / f"{number}", epochs=epochs) for number, module in enumerate(modules)]
    networks = [module.network for module in modules]
    ensemble = dt.PrivateMajorityEnsemble.from_opacus(networks, files, delta=1e-4, allowance=1, overlap=1)
    labels = ensemble(task.public_images[:100])
    print(f"{len(labels)} labels, {int((labels == task.public_labels[: len(labels)]).sum())} of them right\n")
    print(ensemble.privacy_report())


if __name__ == "__main__":
    main()
