"""Votes on a cluster: Dask workers run the teachers over a public set, and `darrm label --votes` labels their files.

    pip install 'darrm-torch[cluster,demo,tables]'
    python -m recipes.10_votes_on_a_cluster

Seven teachers learn digits from 1,000 private images of scikit-learn. The public set is made up block by block where it
is needed, as if it were too large for one machine. Each block becomes a Parquet file with a row for each input: its key
and the votes. The workers see teachers and votes, so they are trusted with both; only the labels are released.

You can stop it at any time and run it again: blocks that are complete are kept, and no label is paid for twice.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from distributed import Client, LocalCluster
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import darrm_torch as dt
from darrm_torch.cli import main as darrm

RECORDS = 1000  # declared: it fixes sample rate and steps, however many images there are
TEACHERS = 7


def digits() -> tuple[Tensor, Tensor]:
    """All images, (1797, 64) in [0, 1], and their digits, in an order that says nothing about them."""
    images, truth = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(truth))
    return torch.as_tensor(images[order] / 16, dtype=torch.float32), torch.as_tensor(truth[order])


def logistic_regression() -> nn.Module:
    """An untrained model."""
    return nn.Linear(64, 10)


def public_block(block: int, rows: int) -> tuple[Tensor, Tensor]:
    """Public images and their digits: noisy copies of the images that are not private."""
    images, truth = digits()
    generator = torch.Generator().manual_seed(block)
    chosen = torch.randint(RECORDS, len(truth), (rows,), generator=generator)
    return images[chosen] + 0.1 * torch.randn(rows, 64, generator=generator), truth[chosen]


def write_votes(block: int, *, rows: int, files: Sequence[Path], folder: Path) -> None:
    """One task of the cluster: the votes of all teachers on one block, as one file that is complete or absent."""
    import pyarrow
    import pyarrow.parquet

    part = folder / f"part-{block:04d}.parquet"
    if part.exists():
        return
    images, _ = public_block(block, rows)
    columns = {"id": pyarrow.array([f"{block}-{row}" for row in range(rows)])}
    for file in files:
        teacher = logistic_regression()
        dt.load_teacher(file, teacher)
        with torch.no_grad():
            columns[file.stem] = pyarrow.array(teacher(images).argmax(dim=1).numpy().astype(np.int8))
    unfinished = folder / f".{part.name}"  # a name with a dot is no part
    pyarrow.parquet.write_table(pyarrow.table(columns), unfinished)
    os.replace(unfinished, part)


def main(
    folder: Path = Path("runs/cluster"), *, blocks: int = 20, rows: int = 5000, workers: int = 2, epochs: int = 10
) -> float:
    """Train, vote, label; returns how many of the labels are right."""
    images, truth = digits()
    teachers = dt.train_teachers(
        folder / "teachers",
        build_model=logistic_regression,
        dataset=TensorDataset(images[:RECORDS], truth[:RECORDS]),
        shards=dt.assign_shards(RECORDS, teachers=TEACHERS, private_folder=folder / "private"),
        shard_size=RECORDS // TEACHERS,
        settings=dt.TrainingSettings(noise_multiplier=1.5, batch_size=40, epochs=epochs, learning_rate=1.0),
    )
    votes = folder / "votes"
    votes.mkdir(exist_ok=True)
    with (
        LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        client.gather(client.map(write_votes, range(blocks), rows=rows, files=teachers, folder=votes))
    labels = folder / "labels.csv"
    status = darrm(
        [
            "label", f"--votes={votes}", "--keys=id", f"--teachers={TEACHERS}", "--class-count=10", "--overlap=1",
            "--accountants", *map(str, teachers), "--mechanism=noise-free", "--delta=1e-4",
            f"--ledger={folder / 'labels.ledger'}", f"--out={labels}",
        ]
    )  # fmt: skip
    if status:
        raise SystemExit(status)
    with labels.open(newline="") as stream:
        bought = {row["key"]: int(row["label"]) for row in csv.DictReader(stream)}
    right = 0
    for block in range(blocks):
        right += sum(bought[f"{block}-{row}"] == one for row, one in enumerate(public_block(block, rows)[1].tolist()))
    print(f"\n{len(bought)} labels in {labels}, {right / len(bought):.3f} of them right")
    return right / len(bought)


if __name__ == "__main__":
    main()
