"""What data loaders draw: which records, by which samplers, at which rates, with which random generators."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset

from ..arguments import checked
from ..errors import InvalidArgument, UnprovenPrivacy, check_integer
from .findings import Notes

__all__ = [
    "GUESSED",
    "check_sampling",
    "declared_loader",
    "drawn_records",
    "draws_poisson",
    "generators_of",
    "guessed_seed",
    "largest_overlap",
]

Positions = NDArray[np.int64]

_FEW_RECORDS = 1000
_DEFAULT_SEED = torch.Generator().initial_seed()  # of every generator that nobody seeds
GUESSED = (
    "the generator of the {} has a seed that can be found by trying (below 2**32, or Torch's default), and anyone who "
    "finds it takes away the protection. Train without a generator of your own, or with generator.manual_seed("
    'secrets.randbits(63)); accept=["seeds"] if nobody can find it'
)


@checked
def declared_loader(dataset: Dataset[Any], *, shard_size: int, batch_size: int) -> DataLoader[Any]:
    """A loader for Opacus whose sample rate and steps are declared, and do not depend on the size of the shard.

    ``make_private`` takes the sample rate from the number of batches of its loader: here 1 / ceil(shard_size /
    batch_size), whatever the length of ``dataset``. It also computes the divisor of gradients from the true length, so
    set it afterwards: ``optimizer.expected_batch_size = batch_size``. Then the constants are public, as the price of a
    :class:`~darrm_torch.RandomAllocation` needs them, and ``from_opacus(..., optimizers=optimizers,
    accept=["constants"])`` may say so. Opacus cannot train on an empty shard; :func:`~darrm_torch.train_teachers` can.

    Args:
        dataset: the records of one shard, at least one.
        shard_size: a declared, public number of records of a shard, such as a published number of records times
            ``overlap / K``. Never the true one.
        batch_size: the expected batch size, equal for all teachers.

    Raises:
        InvalidArgument: a number out of range.

    >>> from torch.utils.data import TensorDataset
    >>> shards = [TensorDataset(torch.zeros(size, 4)) for size in (95, 104)]
    >>> [len(declared_loader(shard, shard_size=100, batch_size=20)) for shard in shards]
    [5, 5]
    """
    from opacus.utils.uniform_sampler import UniformWithReplacementSampler

    if not hasattr(dataset, "__len__") or not len(dataset):
        expected = "a map-style data set with at least one record"
        raise InvalidArgument("dataset", expected, type(dataset).__name__)
    batch_size = check_integer("batch_size", batch_size, low=1, high=2**53)
    steps = math.ceil(check_integer("shard_size", shard_size, low=1, high=2**53) / batch_size)
    sampler = UniformWithReplacementSampler(num_samples=len(dataset), sample_rate=1 / steps, steps=steps)
    return DataLoader(dataset, batch_sampler=sampler)


def draws_poisson(data_loader: Any) -> bool:
    """Whether a loader draws its batches by one of Opacus' Poisson samplers."""
    from opacus.utils.uniform_sampler import DistributedUniformWithReplacementSampler, UniformWithReplacementSampler

    sampler = getattr(data_loader, "batch_sampler", None)
    return isinstance(sampler, (UniformWithReplacementSampler, DistributedUniformWithReplacementSampler))


def generators_of(data_loader: Any) -> list[torch.Generator]:
    """The random generators of a loader and its samplers; Torch's global generator has no place in this list."""
    batch_sampler = getattr(data_loader, "batch_sampler", None)
    parts = (data_loader, batch_sampler, getattr(data_loader, "sampler", None), getattr(batch_sampler, "sampler", None))
    found = {id(g): g for part in parts if isinstance(g := getattr(part, "generator", None), torch.Generator)}
    return list(found.values())


def guessed_seed(generator: Any) -> bool:
    """Whether the seed of a generator can be found by trying: a short number, or the one that Torch gives to all."""
    try:
        seed = int(generator.initial_seed())
    except (AttributeError, RuntimeError):  # no generator, or a cryptographic one without a seed
        return False
    return seed < 2**32 or seed == _DEFAULT_SEED


def drawn_records(data_loader: Any, known: list[torch.Tensor] | None = None) -> dict[Hashable, Positions]:
    """The records that a loader can draw: positions in each underlying data set, repeated if a record is.

    ``Subset``, ``ConcatDataset`` and wrappers of the same length are looked through. Data sets that hold tensors or
    arrays are the same if these share memory, or if all their values are equal to those in ``known``, which collects
    them. Opacus' Poisson samplers draw from the whole data set, whatever sampler the loader had before.
    """
    dataset = data_loader.dataset
    indices = getattr(getattr(data_loader, "sampler", None), "indices", None)  # of a SubsetRandomSampler
    if not hasattr(dataset, "__len__"):
        return {id(dataset): np.zeros(1, np.int64)}
    positions = np.arange(len(dataset)) if draws_poisson(data_loader) or indices is None else np.asarray(indices)
    records: dict[Hashable, list[Positions]] = defaultdict(list)
    for key, part in _origins(dataset, positions % max(len(dataset), 1), [] if known is None else known):
        records[key].append(part)
    return {key: np.concatenate(parts) for key, parts in records.items()}


def largest_overlap(data_loaders: Iterable[Any]) -> int:
    """The largest number of loaders that can draw the same record."""
    records: dict[Hashable, list[Positions]] = defaultdict(list)
    known: list[torch.Tensor] = []
    for loader in data_loaders:
        for key, positions in drawn_records(loader, known).items():
            records[key].append(np.unique(positions))
    counts = (np.unique(np.concatenate(parts), return_counts=True)[1] for parts in records.values())
    return max((int(count.max()) for count in counts if len(count)), default=1)


def _origins(dataset: Any, positions: Positions, known: list[torch.Tensor]) -> list[tuple[Hashable, Positions]]:
    """The same records as positions in the data sets that ``dataset`` is made of."""
    if isinstance(dataset, Subset):
        indices = np.asarray(dataset.indices, dtype=np.int64)
        return _origins(dataset.dataset, indices[positions] % len(dataset.dataset), known)  # type: ignore[arg-type]
    if isinstance(dataset, ConcatDataset):
        origins, start = [], 0
        for part, end in zip(dataset.datasets, dataset.cumulative_sizes, strict=True):
            origins += _origins(part, positions[(start <= positions) & (positions < end)] - start, known)
            start = end
        return origins
    parts = _parts(dataset)
    for inner in parts:
        if isinstance(inner, Dataset):
            return _origins(inner, positions, known)
    tensors = [torch.as_tensor(part) for part in parts]
    if tensors:
        rows = _first_equal(max(tensors, key=torch.Tensor.numel), known)
        if step := rows.stride(0) * rows.element_size():
            return [(str(rows.device), rows.data_ptr() + positions * step)]
    return [(id(dataset), positions)]


def _parts(dataset: Any) -> list[Any]:
    """The data sets, tensors and arrays of numbers that a data set holds and that have as many records as itself."""
    held = [part for value in getattr(dataset, "__dict__", {}).values() for part in _listed(value)]
    kinds = (Dataset, torch.Tensor, np.ndarray)
    parts = [part for part in held if isinstance(part, kinds) and hasattr(part, "__len__")]
    parts = [part for part in parts if getattr(part, "ndim", 1) and getattr(part, "layout", None) in _DENSE]
    numbers = [part for part in parts if not isinstance(part, np.ndarray) or part.dtype.kind in "biuf"]
    return [part for part in numbers if len(part) == len(dataset)]


_DENSE = (None, torch.strided)


def _listed(value: Any) -> Iterable[Any]:
    """The value itself, or what is in a tuple, list or dictionary of a few values."""
    if isinstance(value, dict):
        value = list(value.values())
    return value if isinstance(value, tuple | list) and len(value) < 10 else [value]


def _first_equal(rows: torch.Tensor, known: list[torch.Tensor]) -> torch.Tensor:
    """The first known tensor with the same records; tensors that hold a single value only are never the same."""
    for one in known:
        if one.data_ptr() == rows.data_ptr() and one.stride() == rows.stride():
            return rows
        alike = (one.shape, one.dtype, one.device) == (rows.shape, rows.dtype, rows.device)
        if alike and bool(torch.equal(one, rows)) and bool((rows != rows[(0,) * rows.dim()]).any()):
            return one
    known.append(rows)
    return rows


def check_sampling(
    history: Sequence[tuple[float, float, int]],
    data_loader: Any,
    rate: float | None,
    record: Mapping[str, Any],
    notes: Notes,
) -> tuple[str, int | None]:
    """How the batches of a training were drawn, and from how many records.

    Args:
        history: what the accountant recorded.
        data_loader: the loader, or ``None``.
        rate: the sample rate of one batch, as the optimizer reports it, if it does.
        record: what the teacher's file says.
        notes: takes what was not checked, or what the caller vouches for.

    Raises:
        UnprovenPrivacy: this is not the loader of the training, or batches were not drawn by Poisson sampling.
    """
    records = record.get("shard_size")
    if data_loader is not None:
        if not hasattr(data_loader, "dataset"):
            raise InvalidArgument("data_loader", "the loader that make_private returned", data_loader)
        sampler: Any = getattr(data_loader, "batch_sampler", None)
        poisson = draws_poisson(data_loader)
        sampling = "poisson" if poisson else "not poisson"
        records = len(data_loader.dataset)
        if any(len(np.unique(positions)) < len(positions) for positions in drawn_records(data_loader).values()):
            raise UnprovenPrivacy(
                "the loader can draw one record several times in a batch: its positions are repeated. Remove "
                "repetitions from the indices of the Subset and train again"
            )
        if poisson and hasattr(sampler, "num_replicas"):
            notes.vouched(
                "sampling",
                f"each batch is drawn by {sampler.num_replicas} processes. If their generators have the same seed, "
                "they draw the same places of their parts, and records are no longer drawn independently. And Opacus "
                "leaves out parts without a record, so the others are drawn more often. Train in one process, without "
                'DDP; accept=["sampling"] if every process had a seed of its own and no part was ever empty',
                "The caller vouches that the processes that drew the batches had different seeds and no empty part.",
            )
        if poisson and getattr(data_loader.collate_fn, "rand_on_empty", False):
            notes.vouched(
                "sampling",
                "the loader puts a random record in the place of an empty batch (rand_on_empty), so that a record that "
                "is drawn alone moves the sum by two clipping bounds. Train again without it; "
                'accept=["sampling"] if batches are so large that none was ever empty',
                "The caller vouches that no batch was ever empty, and none was replaced by a random record.",
            )
        if any(guessed_seed(generator) for generator in generators_of(data_loader)):
            note = "The caller vouches that nobody can find the seeds of the batches."
            notes.vouched("seeds", GUESSED.format("batches"), note)
        # Opacus records 1 / len(loader). Where int(1 / rate) rounds, that is slightly more than the true rate.
        recorded = history[-1][1]
        if poisson and not (sampler.sample_rate <= recorded * (1 + 1e-9) and round(1 / recorded) == len(data_loader)):
            raise UnprovenPrivacy(
                f"the loader samples at {sampler.sample_rate:.6g}, the accountant recorded {recorded:.6g}: this "
                "is not the loader that the teacher was trained with. Give the one that make_private returned"
            )
        # Opacus remembers the first batch, if it was drawn in this process.
        drawn = sum(count for *_, count in history) * recorded * len(data_loader.dataset)
        first = getattr(data_loader.collate_fn, "first_batch", ())
        if poisson and first is None and not data_loader.num_workers and not record and drawn > 30:
            raise UnprovenPrivacy(
                "the loader has not drawn a batch yet, so the teacher was not trained with it. Train with the loader "
                "that make_private returned, not with the one that it was given; if the loader is gone, leave it out"
            )
        rate = recorded
    else:
        sampling = {"poisson": "poisson", None: "assumed"}.get(record.get("sampling"), "not poisson")
    # For n batches between two steps Opacus records n times the rate. But a record may be drawn for several of them,
    # and then moves the sum by several clipping bounds, which no rate makes up for.
    others = sorted({run[1] for run in history if rate is not None and abs(run[1] - rate) > 1e-9 * rate})
    if others:
        notes.vouched(
            "sampling",
            f"steps were recorded at other sample rates ({others[0]:.6g}) than a batch is drawn at ({rate:.6g}): "
            "gradients were accumulated over several batches, which the accountant does not cover, or another loader "
            "was used too. Use BatchMemoryManager for batches that are too large for the memory, which accumulates "
            'within a batch; accept=["sampling"] if it was another loader, of Poisson samples',
            "The caller vouches that steps at other sample rates had Poisson samples of their own.",
        )
    if sampling == "not poisson":
        notes.vouched(
            "sampling",
            "its batches were not drawn by Poisson sampling, which the accountant takes for granted. Train with the "
            "loader that make_private returns and poisson_sampling=True",
            "The batches were not drawn by Poisson sampling: no guarantee, by the caller's choice.",
        )
    if sampling == "assumed":
        notes.append("The loader was not given: Poisson sampling is assumed.")
    declared = "no_allocation" in record  # by train_teachers, which does not look at the shard
    if records is not None and (data_loader is not None or (records < _FEW_RECORDS and not declared)):
        notes.append(f"The number of records ({records}) must be public: sample rate and batch size depend on it.")
    return sampling, records
