"""Training K teachers: `train_teachers` against an ordinary Opacus loop, one after another in one process.

    python -m benchmarks.teachers

Both start with Torch and Opacus imported and train the same network with the same DP-SGD settings on random images of
Fashion-MNIST's shard size. Prints JSON; ratios are of times in one run.
"""

from __future__ import annotations

import json
import multiprocessing
import multiprocessing.forkserver
import statistics
import sys
import tempfile
import time
import warnings
from pathlib import Path

TEACHERS, SHARD = 11, 1090


def ordinary_loop(inputs, labels, shards, settings) -> None:
    """What Opacus' tutorial does, for one teacher after another."""
    import torch
    from opacus import PrivacyEngine
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    from recipes.models import PaperCNN

    for shard in shards:
        model = PaperCNN()
        model, optimizer, loader = PrivacyEngine().make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=settings.learning_rate),
            data_loader=DataLoader(TensorDataset(inputs[shard], labels[shard]), batch_size=settings.batch_size),
            noise_multiplier=settings.noise_multiplier,
            max_grad_norm=settings.max_grad_norm,
        )
        for _ in range(settings.epochs):
            for images, targets in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(images), targets).backward()
                optimizer.step()


def main() -> None:
    multiprocessing.set_forkserver_preload(["darrm_torch.teachers", "opacus", "torch._dynamo"])
    multiprocessing.forkserver.ensure_running()
    warnings.simplefilter("ignore")
    import opacus  # noqa: F401
    import torch

    from darrm_torch.teachers import TrainingSettings, contiguous_shards, train_teacher, train_teachers
    from recipes.models import PaperCNN

    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand(TEACHERS * SHARD, 1, 28, 28, generator=generator)
    labels = torch.randint(0, 2, (TEACHERS * SHARD,), generator=generator)
    shards = contiguous_shards(len(labels), teachers=TEACHERS)
    settings = TrainingSettings()
    seconds: dict[str, list[float]] = {"train_teachers": [], "same steps, one process": [], "ordinary loop": []}
    for _ in range(3):
        start = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            train_teachers(
                Path(folder),
                build_model=PaperCNN,
                inputs=inputs,
                labels=labels,
                shards=shards,
                shard_size=SHARD,
                settings=settings,
                progress=False,
            )
        seconds["train_teachers"].append(time.perf_counter() - start)
        start = time.perf_counter()
        for number, shard in enumerate(shards):
            train_teacher(
                PaperCNN, inputs[shard], labels[shard], shard_size=SHARD, settings=settings, seeds=(number, 99 + number)
            )
        seconds["same steps, one process"].append(time.perf_counter() - start)
        start = time.perf_counter()
        ordinary_loop(inputs, labels, shards, settings)
        seconds["ordinary loop"].append(time.perf_counter() - start)
    median = {name: statistics.median(times) for name, times in seconds.items()}
    json.dump(
        {
            "threads of one process": torch.get_num_threads(),
            "seconds": median,
            "all": seconds,
            "times faster": {name: value / median["train_teachers"] for name, value in median.items()},
        },
        sys.stdout,
        indent=1,
    )
    print()


if __name__ == "__main__":
    main()
