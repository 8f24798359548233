"""The private records of one teacher: its shard of a map-style data set, batches, features of a frozen trunk."""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Dataset, Subset, TensorDataset, default_collate

from ..arguments import is_dense
from ..errors import InvalidArgument
from ..limits import MOST_BYTES
from .checkpoints import weights_digest
from .secure import SecureRandom
from .structures import Structure, call, mapped, tensors_of

__all__ = [
    "PoissonBatches",
    "RowNumbers",
    "batch_of",
    "data_digest",
    "example_of",
    "features_of",
    "finite_rows",
    "shard_of",
    "zeros_unless",
]

TARGET = "labels"


class _TensorShard(TensorDataset):
    """Tensors that travel to other processes as bytes, not through shared memory."""

    def __reduce__(self) -> Any:
        content = io.BytesIO()
        torch.save(self.tensors, content)
        return _restored, (content.getvalue(),)


def _restored(content: bytes) -> _TensorShard:
    return _TensorShard(*torch.load(io.BytesIO(content), weights_only=True))


def shard_of(dataset: Any, positions: NDArray[np.int64]) -> Any:
    """The records at these positions: cut out of a ``TensorDataset``; of other data sets, a view of the whole."""
    if isinstance(dataset, TensorDataset):
        return _TensorShard(*(tensor.cpu()[torch.from_numpy(positions)] for tensor in dataset.tensors))
    return Subset(dataset, positions.tolist())


def batch_of(dataset: Any, rows: Sequence[int], device: str | torch.device) -> tuple[Structure, Any]:
    """The inputs and the targets of these records, on the device.

    Raises:
        InvalidArgument: items that are neither ``(input, ..., target)`` nor a mapping with ``"labels"``.
    """
    if isinstance(dataset, TensorDataset):
        batch: Any = tuple(tensor[rows] for tensor in dataset.tensors)
    else:
        batch = default_collate([dataset[row] for row in rows])
    batch = mapped(batch, lambda part: part.to(device))
    if isinstance(batch, Mapping) and TARGET in batch and len(batch) > 1:
        return {name: part for name, part in batch.items() if name != TARGET}, batch[TARGET]
    if isinstance(batch, (tuple, list)) and len(batch) > 1:
        *inputs, target = batch
        return (inputs[0] if len(inputs) == 1 else tuple(inputs)), target
    got = type(batch).__name__
    raise InvalidArgument("dataset", f'one with items (input, target), or mappings with "{TARGET}"', got)


def example_of(dataset: Any) -> list[Any]:
    """A data set of one record, all zeros, with the structure, the shapes and the types of the given one's."""
    if isinstance(dataset, TensorDataset):
        _check_dense(dataset.tensors)
        return [tuple(tensor.new_zeros(tensor.shape[1:], device="cpu") for tensor in dataset.tensors)]
    try:
        if not len(dataset):
            raise InvalidArgument("dataset", "one with at least one record", "an empty one")
        batch = default_collate([dataset[0]])
        _check_dense(part for _, part in tensors_of(batch, "part"))  # which refuses what is no tensor
        return [mapped(batch, lambda part: torch.zeros_like(part[0]))]
    except InvalidArgument as error:
        if error.name == "dataset":
            raise
        cure = "Turn texts and names of classes into numbers first."
        raise InvalidArgument("dataset", "one whose items are tensors and numbers", error.got, cure) from None
    except Exception as error:  # its text may show the record
        got = f"{type(dataset).__name__}, {type(error).__name__}"
        cure = "Tensors go into a TensorDataset."
        raise InvalidArgument("dataset", "a map-style data set of tensors and numbers", got, cure) from None


def _check_dense(parts: Iterable[Tensor]) -> None:
    if not all(is_dense(part) or part.is_complex() for part in parts):
        raise InvalidArgument("dataset", "one of dense tensors", "others", "Sparse and meta tensors are no records.")


def finite_rows(structure: Any, size: int) -> Tensor:
    """Which of the records ``(B,)`` hold no NaN and no infinity."""
    finite: Any = True
    for _, part in tensors_of(structure):
        if part.is_floating_point():
            finite = finite & part.isfinite().reshape(size, -1).all(dim=1)
    return torch.ones(size, dtype=torch.bool) if finite is True else finite


class RowNumbers(Dataset[int]):
    """Stands for ``count`` records in a loader, which fetches the numbers of a batch's records."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitems__(self, rows: list[int]) -> list[int]:
        return rows


class PoissonBatches:
    """Poisson samples of ``count`` records, perhaps none, at rate 1 / ``steps``; ``steps`` an epoch.

    With a generator of Torch they are those of Opacus' sampler, which refuses an empty data set.
    """

    def __init__(self, random: SecureRandom | torch.Generator, *, count: int, steps: int) -> None:
        self._random, self._count, self._steps = random, count, steps

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[list[int]]:
        rate = 1 / self._steps
        for _ in range(self._steps):
            if isinstance(self._random, SecureRandom):
                yield self._random.sample(self._count, rate).tolist()
            else:
                yield (torch.rand(self._count, generator=self._random) < rate).nonzero().reshape(-1).tolist()


@torch.no_grad()
def features_of(trunk: nn.Module, dataset: Any, *, device: str, size: int) -> TensorDataset | None:
    """The records with what the trunk makes of their inputs; ``None`` if that cannot be kept in one tensor each.

    It is also ``None`` if they would take more than :data:`~darrm_torch.limits.MOST_BYTES`: the trunk then runs for
    each batch. This is no error, because the size of a shard is private.

    The features of a record that is not finite are NaN.
    """
    parts = []
    for start in range(0, len(dataset), size):
        rows = range(start, min(start + size, len(dataset)))
        inputs, targets = batch_of(dataset, list(rows), device)
        features = call(trunk, inputs)
        if not (isinstance(features, Tensor) and features.is_floating_point() and isinstance(targets, Tensor)):
            return None
        if 2 * len(dataset) / len(rows) * features.nbytes > MOST_BYTES:  # the parts, and all in one
            return None
        finite = finite_rows(inputs, len(rows)).to(features.device)
        parts.append((torch.where(_per_row(finite, features), features, torch.nan), targets))
    return TensorDataset(*(torch.cat(part) for part in zip(*parts, strict=True))) if parts else None


def zeros_unless(kept: Tensor, structure: Any) -> Any:
    """The structure with zeros in place of the real numbers of records that are not kept."""

    def kept_part(part: Tensor) -> Tensor:
        return torch.where(_per_row(kept.to(part.device), part), part, 0) if part.is_floating_point() else part

    return mapped(structure, kept_part)


def _per_row(rows: Tensor, like: Tensor) -> Tensor:
    return rows.reshape(-1, *[1] * (like.dim() - 1))


def data_digest(dataset: Any, shards: Sequence[NDArray[np.int64]]) -> str:
    """A digest of data and shards: of the values of a ``TensorDataset``, of other data sets as they are pickled."""
    cut = {f"shard {number}": torch.as_tensor(shard) for number, shard in enumerate(shards)}
    if not isinstance(dataset, TensorDataset):
        digest = _Digest()
        pickle.Pickler(digest, protocol=4).dump(dataset)
        return digest.state.hexdigest() + weights_digest(cut)
    names = ["inputs", "labels"] if len(dataset.tensors) == 2 else map(str, range(len(dataset.tensors)))
    return weights_digest({**dict(zip(names, dataset.tensors, strict=True)), **cut})


class _Digest:
    """A file that keeps nothing but the digest of what is written to it."""

    def __init__(self) -> None:
        self.state = hashlib.blake2b(digest_size=16)

    def write(self, data: Any) -> int:
        self.state.update(data)
        return len(data)
