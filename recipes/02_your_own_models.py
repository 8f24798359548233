"""Your own Opacus models, dropped in: the loop that you have, then private labels.

    python -m recipes.02_your_own_models

Prints the labels' guarantee. Two teachers on halves of the 5,000 offline digits (even against odd).
"""

from __future__ import annotations

import torch
from opacus import PrivacyEngine
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import darrm_torch as dt

from .data import load_task
from .models import PaperCNN


def train_teachers_of_your_own() -> tuple[list[nn.Module], list[PrivacyEngine], Tensor]:
    """Two models trained with Opacus as its tutorial does, their engines, and public images to label."""
    task = load_task("mnist-5000")
    # The shard of a record depends on that record alone, so a record is in the data of one teacher only (overlap 1).
    shards = dt.assign_shards(task.private_ids(), teachers=2, key=b"a secret of the data's owner")
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
    return models, engines, task.public_images[:100]


def main() -> None:
    """Train two, label, report."""
    models, engines, images = train_teachers_of_your_own()
    ensemble = dt.PrivateMajorityEnsemble.from_opacus(models, engines, delta=1e-4, allowance=1, overlap=1)
    labels = ensemble(images)
    print(f"{len(labels)} labels, {int(labels.sum())} of them 1\n")
    print(ensemble.privacy_report())


if __name__ == "__main__":
    main()
