"""A data module that buys labels for public inputs once and serves them for any number of epochs."""

from __future__ import annotations

from functools import partial
from typing import Any

import lightning as L
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, default_collate

from ..ensemble import PrivateMajorityEnsemble
from ..errors import InvalidArgument, check_integer

__all__ = ["PrivateLabelDataModule"]


class PrivateLabelDataModule(L.LightningDataModule):
    """Private labels for ``queries`` inputs of a public data set, asked once, before any training step.

    ``label()`` (called by ``prepare_data``, so before ``fit``'s first batch) asks the ensemble; the ensemble's ledger
    keeps each label with its charge. Epochs, sanity checks, learning-rate searches, resumed runs and second runs over
    the same ledger therefore ask nothing again.

    Args:
        ensemble: gives the labels; held here and never by the student.
        public: unlabelled inputs, ``(N, ...)`` tensor or a map-style data set of inputs (of a tuple the first
            element is taken).
        queries: Q, how many of them to have labelled.
        validation: data set of (input, label), optional.
        test: data set of (input, label), optional.
        batch_size: of all loaders.
        seed: picks the queries, without regard to the votes; public, no privacy rests on it.

    Raises:
        InvalidArgument: more queries than public inputs.
    """

    def __init__(
        self,
        ensemble: PrivateMajorityEnsemble,
        public: Tensor | Dataset[Any],
        *,
        queries: int,
        validation: Dataset[Any] | None = None,
        test: Dataset[Any] | None = None,
        batch_size: int = 32,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self._ensemble = ensemble
        self._public = _Inputs(TensorDataset(public) if isinstance(public, Tensor) else public)
        check_integer("queries", queries, low=1)
        if queries > len(self._public):
            raise InvalidArgument("queries", f"at most the {len(self._public)} public inputs", queries)
        # Lightning takes a loader for given as soon as there is such a method: without the data there must be none.
        for name, dataset in (("val_dataloader", validation), ("test_dataloader", test)):
            if dataset is not None:
                setattr(self, name, partial(self._loader, dataset, shuffle=False))
        self.batch_size = check_integer("batch_size", batch_size, low=1)
        order = torch.randperm(len(self._public), generator=torch.Generator().manual_seed(seed)).tolist()
        self.queries: list[int] = order[:queries]
        self.unlabelled: list[int] = order[queries:]
        self._labels: Tensor | None = None

    @property
    def labels(self) -> Tensor:
        """The private labels ``(Q,)`` int64, in the order of ``queries``."""
        return self.label() if self._labels is None else self._labels

    def label(self) -> Tensor:
        """Ask for the labels, or fetch them from the ledger where they were asked before."""
        if self._labels is None:
            loader = self._loader(Subset(self._public, self.queries), shuffle=False)
            self._labels = torch.cat([self._ensemble(inputs).cpu() for inputs in loader])
        return self._labels

    def prepare_data(self) -> None:
        """Label before training starts."""
        self.label()

    def train_dataloader(self) -> DataLoader[Any]:
        """(input, private label) batches."""
        return self._loader(_Labelled(Subset(self._public, self.queries), self.labels), shuffle=True)

    def unlabelled_dataloader(self) -> DataLoader[Any]:
        """Batches of the public inputs that were not labelled."""
        return self._loader(Subset(self._public, self.unlabelled), shuffle=True)

    def _loader(self, dataset: Dataset[Any], *, shuffle: bool) -> DataLoader[Any]:
        return DataLoader(dataset, batch_size=self.batch_size, shuffle=shuffle, collate_fn=default_collate)


class _Inputs(Dataset[Any]):
    """The inputs of a data set, whatever else its items carry."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        item = self._dataset[index]
        return item[0] if isinstance(item, (tuple, list)) else item


class _Labelled(Dataset[Any]):
    def __init__(self, inputs: Dataset[Any], labels: Tensor) -> None:
        self._inputs, self._labels = inputs, labels

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[Any, Tensor]:
        return self._inputs[index], self._labels[index]
