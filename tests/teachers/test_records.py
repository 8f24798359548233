"""Shards of data sets, batches of them, and their digests."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from darrm_torch import InvalidArgument
from darrm_torch.teachers.records import (
    PoissonBatches,
    batch_of,
    data_digest,
    example_of,
    features_of,
    finite_rows,
    shard_of,
    zeros_unless,
)
from darrm_torch.teachers.secure import SecureRandom


def mixed() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    reals = torch.rand(5, 4, generator=generator)
    return TensorDataset(reals, reals[:, :2].bfloat16(), reals > 0.5, torch.arange(5))


@pytest.mark.parametrize("rows", [[0, 3], []])
def test_a_shard_of_tensors_travels_alone_and_unchanged(rows: list[int]) -> None:
    positions = np.array(rows, dtype=np.int64)
    sent = pickle.dumps(shard_of(mixed(), positions))
    shard = pickle.loads(sent)
    assert len(shard) == len(rows)
    assert all(torch.equal(mine, whole[rows]) for mine, whole in zip(shard.tensors, mixed().tensors, strict=True))
    assert len(sent) < 5000


TEXTS = [{"input_ids": torch.tensor([row, 1]), "labels": torch.tensor(row % 2)} for row in range(6)]


@pytest.mark.parametrize(
    ("dataset", "inputs", "targets"),
    [
        (TensorDataset(torch.arange(6.0), torch.arange(6)), torch.tensor([1.0, 3.0]), torch.tensor([1, 3])),
        ([(torch.tensor(float(row)), row) for row in range(6)], torch.tensor([1.0, 3.0]), torch.tensor([1, 3])),
        (TEXTS, {"input_ids": torch.tensor([[1, 1], [3, 1]])}, torch.tensor([1, 1])),
        ([(float(row), -row, row) for row in range(6)], (torch.tensor([1.0, 3.0]), torch.tensor([-1, -3])), [1, 3]),
    ],
)
def test_items_of_several_kinds(dataset: Any, inputs: Any, targets: Any) -> None:
    for rows, of in (([1, 3], dataset), ([0, 1], shard_of(dataset, np.array([1, 3])))):
        got, answers = batch_of(of, rows, "cpu")
        torch.testing.assert_close(got, inputs, check_dtype=False)
        assert answers.tolist() == list(targets)


def test_what_is_no_record_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="dataset must be one with items"):
        batch_of([torch.ones(2)], [0], "cpu")
    with pytest.raises(InvalidArgument, match="dataset must be a map-style data set of"):
        example_of(iter([]))
    with pytest.raises(InvalidArgument, match="at least one record"):
        example_of([])
    with pytest.raises(InvalidArgument, match="dataset must be one whose items are tensors and numbers, got 'str'"):
        example_of([("a text", 1)])
    (example,) = example_of(TEXTS)
    assert {name: part.tolist() for name, part in example.items()} == {"input_ids": [0, 0], "labels": 0}


def test_records_that_are_not_finite_become_zeros() -> None:
    batch = {"a": torch.tensor([[1.0, 2.0], [float("nan"), 1.0]]), "b": torch.tensor([5, 6])}
    finite = finite_rows(batch, 2)
    assert finite.tolist() == [True, False]
    cleaned = zeros_unless(finite, batch)
    assert (cleaned["a"].tolist(), cleaned["b"].tolist()) == ([[1.0, 2.0], [0.0, 0.0]], [5, 6])


def test_features_are_those_of_the_trunk() -> None:
    inputs = torch.rand(7, 3)
    inputs[2, 1] = float("inf")
    trunk = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    kept = features_of(trunk, TensorDataset(inputs, torch.arange(7)), device="cpu", size=3)
    assert kept is not None
    features, targets = kept.tensors
    others = [0, 1, 3, 4, 5, 6]
    assert torch.allclose(features[others], trunk(inputs)[others])
    assert features[2].isnan().all()
    assert targets.tolist() == list(range(7))
    assert features_of(nn.Identity(), TEXTS, device="cpu", size=3) is None


def test_the_digest_shows_order_and_contents() -> None:
    shards = [np.arange(2), np.arange(2, 5)]
    tensors = mixed()
    changed = TensorDataset(tensors.tensors[0].flip(0), *tensors.tensors[1:])
    for one, other in ((tensors, changed), (TEXTS, TEXTS[::-1])):
        assert data_digest(one, shards) == data_digest(one, shards)
        assert data_digest(one, shards) != data_digest(other, shards)
        assert data_digest(one, shards) != data_digest(one, shards[::-1])


@pytest.mark.parametrize("random", [torch.Generator(), SecureRandom()])
def test_poisson_batches_have_the_declared_rate(random: SecureRandom | torch.Generator) -> None:
    # 20,000 draws at rate 1/20: a false alarm at five standard errors has probability 6e-7.
    drawn = sum(map(len, PoissonBatches(random, count=1000, steps=20)))
    assert abs(drawn - 1000) < 5 * (20_000 * 0.05 * 0.95) ** 0.5
    assert [*map(len, PoissonBatches(random, count=0, steps=3))] == [0, 0, 0]


class Wide(nn.Module):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.new_zeros(1).expand(len(inputs), 2**26)


def test_features_that_would_not_fit_are_not_kept() -> None:
    """The check looks at the first batch alone, here a view that takes no memory."""
    assert features_of(Wide(), TensorDataset(torch.zeros(8, 1), torch.arange(8)), device="cpu", size=2) is None
