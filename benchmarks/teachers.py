"""Training K teachers: `train_teachers` against an ordinary Opacus loop, one after another in one process.

Both start with Torch and Opacus imported and train the same network with the same DP-SGD settings on random images, as
many per shard as with Fashion-MNIST. "Times slower" compares wall-clock time with `train_teachers` on all cores, which
means nothing on a busy machine. "Times slower than one process" compares processor time for the same steps without
workers.
"""

from __future__ import annotations

import statistics
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

from darrm_torch.teachers.workers import start_workers_early

from .measuring import Record


def ordinary_loop(inputs: Any, labels: Any, shards: Any, settings: Any) -> None:
    """The loop of the Opacus tutorial, for one teacher after another."""
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


def measure(*, teachers: int, shard: int, repeat: int) -> list[Record]:
    """One record per way of training.

    ``times_slower`` compares with `train_teachers` and so depends on free cores; ``times_slower_than_one_process``
    compares processor time, which does not.
    """
    start_workers_early()
    import opacus  # noqa: F401
    import torch
    from torch.utils.data import TensorDataset

    from darrm_torch.teachers.dp_sgd import TrainingSettings, train_teacher
    from darrm_torch.teachers.shards import contiguous_shards
    from darrm_torch.teachers.training import train_teachers
    from recipes.models import PaperCNN

    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand(teachers * shard, 1, 28, 28, generator=generator)
    labels = torch.randint(0, 2, (teachers * shard,), generator=generator)
    shards = contiguous_shards(len(labels), teachers=teachers)
    settings = TrainingSettings()

    def together() -> None:
        with tempfile.TemporaryDirectory() as folder:
            train_teachers(
                Path(folder),
                build_model=PaperCNN,
                dataset=TensorDataset(inputs, labels),
                shards=shards,
                shard_size=shard,
                settings=settings,
                progress=False,
            )

    def one_process() -> None:
        for number, part in enumerate(shards):
            records = TensorDataset(inputs[part], labels[part])
            train_teacher(PaperCNN, records, shard_size=shard, settings=settings, seeds=(number, 99 + number))

    ways = {
        "train_teachers": together,
        "same steps, one process": one_process,
        "ordinary loop": lambda: ordinary_loop(inputs, labels, shards, settings),
    }
    times: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(repeat):  # in turns, so that other load on the machine affects all of them alike
            for way, train in ways.items():
                start, spent = time.perf_counter(), time.process_time()
                train()
                times[way].append((time.perf_counter() - start, time.process_time() - spent))
    medians = {way: [statistics.median(took) for took in zip(*pairs, strict=True)] for way, pairs in times.items()}
    together_seconds, alone_spent = medians["train_teachers"][0], medians["same steps, one process"][1]
    return [
        {
            "case": way,
            "seconds": round(took, 2),
            "times_slower": round(took / together_seconds, 2),
            # Time of this process; train_teachers uses other processes.
            "times_slower_than_one_process": None if way == "train_teachers" else round(spent / alone_spent, 2),
        }
        for way, (took, spent) in medians.items()
    ]
