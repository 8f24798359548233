"""What data loaders draw: which records, by which samplers, with which random generators."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import ConcatDataset, Subset, TensorDataset

__all__ = ["drawn_records", "draws_poisson", "generators_of", "largest_overlap", "replicas_of"]

Positions = NDArray[np.int64]


def draws_poisson(data_loader: Any) -> bool:
    """Whether a loader draws its batches by one of Opacus' Poisson samplers."""
    from opacus.utils.uniform_sampler import DistributedUniformWithReplacementSampler, UniformWithReplacementSampler

    sampler = getattr(data_loader, "batch_sampler", None)
    return isinstance(sampler, (UniformWithReplacementSampler, DistributedUniformWithReplacementSampler))


def replicas_of(data_loader: Any) -> int:
    """The number of processes that draw parts of each batch."""
    return int(getattr(getattr(data_loader, "batch_sampler", None), "num_replicas", 1))


def generators_of(data_loader: Any) -> list[torch.Generator]:
    """The random generators of a loader and its samplers; Torch's global generator has no place in this list."""
    batch_sampler = getattr(data_loader, "batch_sampler", None)
    parts = (data_loader, batch_sampler, getattr(data_loader, "sampler", None), getattr(batch_sampler, "sampler", None))
    found = {id(g): g for part in parts if isinstance(g := getattr(part, "generator", None), torch.Generator)}
    return list(found.values())


def drawn_records(data_loader: Any) -> dict[Hashable, Positions]:
    """The records that a loader can draw: positions in each underlying data set, repeated if a record is.

    ``Subset``, ``ConcatDataset`` and wrappers of the same length are looked through. Tensor data sets are the same if
    they share memory. Opacus' Poisson samplers draw from the whole data set, whatever sampler the loader had before.
    """
    dataset = data_loader.dataset
    indices = getattr(getattr(data_loader, "sampler", None), "indices", None)  # of a SubsetRandomSampler
    if not hasattr(dataset, "__len__"):
        return {id(dataset): np.zeros(1, np.int64)}
    positions = np.arange(len(dataset)) if draws_poisson(data_loader) or indices is None else np.asarray(indices)
    records: dict[Hashable, list[Positions]] = defaultdict(list)
    for key, part in _origins(dataset, positions % max(len(dataset), 1)):
        records[key].append(part)
    return {key: np.concatenate(parts) for key, parts in records.items()}


def largest_overlap(data_loaders: Iterable[Any]) -> int:
    """The largest number of loaders that can draw the same record."""
    records: dict[Hashable, list[Positions]] = defaultdict(list)
    for loader in data_loaders:
        for key, positions in drawn_records(loader).items():
            records[key].append(np.unique(positions))
    counts = (np.unique(np.concatenate(parts), return_counts=True)[1] for parts in records.values())
    return max((int(count.max()) for count in counts if len(count)), default=1)


def _origins(dataset: Any, positions: Positions) -> list[tuple[Hashable, Positions]]:
    """The same records as positions in the data sets that ``dataset`` is made of."""
    if isinstance(dataset, Subset):
        indices = np.asarray(dataset.indices, dtype=np.int64)
        return _origins(dataset.dataset, indices[positions] % len(dataset.dataset))  # type: ignore[arg-type]
    if isinstance(dataset, ConcatDataset):
        origins, start = [], 0
        for part, end in zip(dataset.datasets, dataset.cumulative_sizes, strict=True):
            origins += _origins(part, positions[(start <= positions) & (positions < end)] - start)
            start = end
        return origins
    if isinstance(dataset, TensorDataset):
        largest = max(dataset.tensors, key=torch.Tensor.numel)
        if step := largest.stride(0) * largest.element_size():
            return [(str(largest.device), largest.data_ptr() + positions * step)]
    inner: Any = getattr(dataset, "dataset", None)
    if inner is not None and hasattr(inner, "__len__") and len(inner) == len(dataset):
        return _origins(inner, positions)
    return [(id(dataset), positions)]
