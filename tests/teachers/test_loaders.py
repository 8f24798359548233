"""What loaders draw: records through subsets and concatenations, by which samplers and generators."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    StackDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
)

from darrm_torch import InvalidArgument
from darrm_torch.teachers.loaders import declared_loader, drawn_records, draws_poisson, generators_of, largest_overlap

DATA = TensorDataset(torch.rand(60, 4), torch.zeros(60, dtype=torch.int64))
OTHER = TensorDataset(torch.rand(20, 4), torch.zeros(20, dtype=torch.int64))


class Squares(Dataset):
    """A data set that is no tensor."""

    def __len__(self) -> int:
        return 60

    def __getitem__(self, number: int) -> tuple[int]:
        return (number**2,)


class Negated(Dataset):
    """A wrapper, as for transforms."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, number: int) -> tuple[int]:
        return (-self.dataset[number][0],)


class Records(Dataset):
    """The usual data set of one's own."""

    def __init__(self, images: Any, labels: Any) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, number: int) -> tuple[Any, Any]:
        return self.images[number], self.labels[number]


class Renamed(Dataset):
    """A wrapper that keeps what it wraps under another name."""

    def __init__(self, base: Dataset) -> None:
        self.base = base

    def __len__(self) -> int:
        return len(self.base)

    def __getitem__(self, number: int) -> tuple[int]:
        return self.base[number]


def poisson(dataset: Dataset) -> DataLoader:
    from opacus.data_loader import DPDataLoader

    return DPDataLoader.from_data_loader(DataLoader(dataset, batch_size=10))


SQUARES = Squares()
CASES = {
    "different data": ([DATA, OTHER], 1),
    "the same data": ([DATA, DATA, OTHER], 2),
    "disjoint subsets": ([Subset(DATA, range(30)), Subset(DATA, range(30, 60))], 1),
    "overlapping subsets": ([Subset(DATA, range(i, i + 30)) for i in (0, 10, 20, 30)], 3),
    "a negative index": ([Subset(SQUARES, [-1, 2]), Subset(SQUARES, [59])], 2),
    "nested subsets": ([Subset(Subset(SQUARES, range(30, 60)), [5, 6]), Subset(SQUARES, [35])], 2),
    "concatenations": ([ConcatDataset([DATA, OTHER]), ConcatDataset([OTHER, SQUARES]), Subset(OTHER, [3])], 3),
    "views of one tensor": ([TensorDataset(DATA.tensors[0][i : i + 20]) for i in (0, 10, 40)], 2),
    "copies": ([TensorDataset(DATA.tensors[0][[0, 1]]), TensorDataset(DATA.tensors[0][[0, 1]])], 2),
    "copies of parts": ([TensorDataset(DATA.tensors[0][[0, 1]]), TensorDataset(DATA.tensors[0][[0, 1, 2]])], 1),
    "equal constants": ([TensorDataset(torch.zeros(9, 2)), TensorDataset(torch.zeros(9, 2))], 1),
    "one's own data set": ([Records(*DATA.tensors), Records(*DATA.tensors), DATA], 3),
    "of arrays": ([Records(*map(torch.Tensor.numpy, DATA.tensors)), DATA], 2),
    "of views": ([Records(DATA.tensors[0][i : i + 20], DATA.tensors[1][:20]) for i in (0, 20, 40)], 1),
    "a wrapper of another name": ([Renamed(Subset(DATA, range(9))), Subset(DATA, [8])], 2),
    "stacked": ([StackDataset(DATA, SQUARES), DATA], 2),
    "wrapped": ([Negated(SQUARES), Subset(SQUARES, [3])], 2),
}


@pytest.mark.parametrize(("datasets", "overlap"), CASES.values(), ids=CASES)
def test_overlap_is_counted_in_the_underlying_data(datasets: list[Dataset], overlap: int) -> None:
    assert largest_overlap(map(poisson, datasets)) == overlap
    assert largest_overlap(DataLoader(dataset, batch_size=10) for dataset in datasets) == overlap


def test_a_sampler_that_opacus_drops_cuts_nothing() -> None:
    loaders = [DataLoader(DATA, batch_size=10, sampler=SubsetRandomSampler(range(i, i + 20))) for i in (0, 20, 40)]
    from opacus.data_loader import DPDataLoader

    private = [DPDataLoader.from_data_loader(loader) for loader in loaders]
    assert [draws_poisson(loader) for loader in (loaders[0], private[0])] == [False, True]
    assert (largest_overlap(loaders), largest_overlap(private)) == (1, 3)


def test_repeated_positions_are_kept() -> None:
    (positions,) = drawn_records(poisson(Subset(SQUARES, [3, 3, 5, -1]))).values()
    assert positions.tolist() == [3, 3, 5, 59]


def test_generators_are_found_in_loaders_and_samplers() -> None:
    generator = torch.Generator()
    assert generators_of(poisson(DATA)) == []
    assert generators_of(DataLoader(DATA, shuffle=True, generator=generator)) == [generator]
    sampler = SubsetRandomSampler(range(5), generator=generator)
    assert generators_of(DataLoader(DATA, sampler=sampler)) == [generator]


def test_declared_rates_and_steps_do_not_depend_on_the_shard() -> None:
    """Through ``make_private``, for shards of unlike sizes: equal histories and divisors, and Poisson batches."""
    from opacus import PrivacyEngine

    seen = []
    for size in (3, 40, 60):
        model, engine = torch.nn.Linear(4, 2), PrivacyEngine()
        data = TensorDataset(DATA.tensors[0][:size], DATA.tensors[1][:size])
        private, optimizer, loader = engine.make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data_loader=declared_loader(data, shard_size=50, batch_size=5),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
        )
        optimizer.expected_batch_size = 5
        assert draws_poisson(loader)
        assert loader.batch_sampler.num_samples == size
        for inputs, labels in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(private(inputs), labels).backward()
            optimizer.step()
        seen.append((tuple(engine.accountant.history), optimizer.expected_batch_size))
    assert seen == [(((1.0, 0.1, 10),), 5)] * 3
    for wrong in ({"shard_size": 0}, {"batch_size": 0}, {"shard_size": 2.5}):
        with pytest.raises(InvalidArgument):
            declared_loader(DATA, **{"shard_size": 50, "batch_size": 5, **wrong})
