"""A data module that asks for private labels of public inputs once and serves them for any number of epochs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import lightning as L
import torch
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, StackDataset, Subset, default_collate

from ..arguments import checked
from ..errors import InvalidArgument, check_integer
from ..labels.ensemble import PrivateMajorityEnsemble
from ..labels.ledger_index import checked_keys
from ..teachers.structures import Rows, tensors_of

__all__ = ["PrivateLabelDataModule"]


class PrivateLabelDataModule(L.LightningDataModule):
    """Private labels for ``queries`` inputs of a public data set, asked once, before any training step.

    ``label()`` (called by ``prepare_data`` when a fit begins) asks the ensemble; the ensemble's ledger keeps each label
    with its charge. Epochs, sanity checks, learning-rate searches, resumed runs and second runs over the same ledger
    therefore ask nothing again; validation, test and prediction alone ask nothing at all.

    With several processes, on one machine or more, the first one asks and sends the labels to the others. If processes
    start from copies of this object (``ddp_spawn``), call ``label()`` before, or give the ledger a file: a ledger in
    memory cannot be shared. Once it has the labels, its copies hold no teachers.

    Args:
        ensemble: gives the labels; the data module holds it, the student never does.
        public: unlabelled inputs: a tensor ``(N, ...)``, a tuple or a mapping of tensors, or a map-style data set of
            inputs (of an item that is a tuple the first element is taken). An item that is a mapping is an input as a
            whole: remove labels from it.
        queries: Q, how many of them to label; with F findings each is F labels.
        validation: data set of (input, label), optional.
        test: data set of (input, label), optional.
        batch_size: of all loaders but the unlabelled one.
        unlabelled_batch_size: if given, training batches are {"labelled": (input, private label), "unlabelled":
            inputs}, for a student with ``consistency``; an epoch is then a pass over the longer of the two.
        keys: what identifies each of the public inputs, as bytes; ``None``: their values, as in calls
            of the ensemble.
        collate_fn: makes a batch of a list of inputs, such as ``DataCollatorWithPadding(tokenizer)``.
        seed: chooses the queries, independently of the votes; it is public, and no privacy rests on it.

    Raises:
        InvalidArgument: more queries than public inputs, or nothing left for unlabelled batches.
    """

    @checked
    def __init__(
        self,
        ensemble: PrivateMajorityEnsemble,
        public: Any,
        *,
        queries: int,
        validation: Dataset[Any] | None = None,
        test: Dataset[Any] | None = None,
        batch_size: int = 32,
        unlabelled_batch_size: int | None = None,
        keys: Sequence[bytes] | None = None,
        collate_fn: Callable[[list[Any]], Any] = default_collate,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.prepare_data_per_node = False  # one process in all asks, not one on each machine
        self._ensemble = ensemble
        if isinstance(public, Tensor | Mapping | tuple):
            rows = {part.shape[:1] for _, part in tensors_of(public, "public")}
            if len(rows) > 1 or not rows.pop():
                raise InvalidArgument("public", "tensors (N, ...), as many rows in each", "others")
            public = Rows(public)
        elif not (hasattr(public, "__getitem__") and hasattr(public, "__len__")) or isinstance(public, str | bytes):
            expected = "a tensor, a tuple or a mapping of tensors, or a map-style Dataset"
            raise InvalidArgument("public", expected, type(public).__name__)
        self._public = public if isinstance(public, Rows) else _Inputs(public)
        self._keys = None if keys is None else checked_keys(keys)
        if self._keys is not None and len(self._keys) != len(self._public):
            expected = f"one for each of the {len(self._public)} public inputs"
            raise InvalidArgument("keys", expected, f"{len(self._keys)} of them")
        self._collate = collate_fn
        check_integer("queries", queries, low=1)
        if queries > len(self._public):
            raise InvalidArgument("queries", f"at most the {len(self._public)} public inputs", queries)
        # Lightning runs validation or test if there is such a method: without the data there must be none.
        for name, dataset in (("val_dataloader", validation), ("test_dataloader", test)):
            if dataset is not None:
                setattr(self, name, partial(self._loader, dataset, shuffle=False, pairs=True))
        self.batch_size = check_integer("batch_size", batch_size, low=1)
        if unlabelled_batch_size is not None:
            check_integer("unlabelled_batch_size", unlabelled_batch_size, low=1)
            if queries == len(self._public):
                raise InvalidArgument("queries", "fewer than the public inputs, for unlabelled batches", queries)
        self.unlabelled_batch_size = unlabelled_batch_size
        generator = torch.Generator().manual_seed(check_integer("seed", seed, low=0, high=2**63 - 1))
        order = torch.randperm(len(self._public), generator=generator).tolist()
        self.queries: list[int] = order[:queries]
        self.unlabelled: list[int] = order[queries:]
        self._labels: Tensor | None = None

    @property
    def labels(self) -> Tensor:
        """The private labels ``(Q,)`` int64, in the order of ``queries``.

        ``(Q, F)`` where the ensemble is asked about F findings; soft labels are ``(Q, C)`` float32.
        """
        return self.label() if self._labels is None else self._labels

    def label(self) -> Tensor:
        """Ask for the labels; those that were asked before come from the ledger.

        Raises:
            BudgetExceeded: all of them together would exceed the ledger's budget; nothing was charged.
        """
        if self._labels is None:
            assert self._ensemble is not None
            ensemble, loader = self._ensemble, self._loader(Subset(self._public, self.queries), shuffle=False)
            if self._keys is None:
                ensemble.check_budget(loader)
                self._labels = torch.cat([ensemble(inputs).cpu() for inputs in loader])
            else:
                keys = [self._keys[number] for number in self.queries]
                ensemble.check_budget(keys=keys)
                parts = [keys[start : start + self.batch_size] for start in range(0, len(keys), self.batch_size)]
                labels = [ensemble(inputs, keys=part).cpu() for inputs, part in zip(loader, parts, strict=True)]
                self._labels = torch.cat(labels)
        return self._labels

    def prepare_data(self) -> None:
        """Label before training starts; Lightning calls it in the first process only."""
        if self.trainer is None or self.trainer.state.fn == TrainerFn.FITTING:
            self.label()

    def __repr__(self) -> str:
        return f"<PrivateLabelDataModule: {len(self._public)} public inputs, {self._ensemble!r}>"

    def setup(self, stage: str) -> None:
        """Send the labels to all processes."""
        if stage == "fit" and self.trainer is not None:
            self._labels = self.trainer.strategy.broadcast(self._labels)

    def train_dataloader(self) -> Any:
        """(input, private label) batches; see ``unlabelled_batch_size`` for the others."""
        labels: Any = self.labels
        pairs: Dataset[Any] = StackDataset(Subset(self._public, self.queries), labels)
        labelled = self._loader(pairs, shuffle=True, pairs=True)
        if self.unlabelled_batch_size is None:
            return labelled
        return {"labelled": labelled, "unlabelled": self.unlabelled_dataloader()}

    def unlabelled_dataloader(self) -> DataLoader[Any]:
        """Batches of the public inputs that were not labelled."""
        return self._loader(Subset(self._public, self.unlabelled), shuffle=True, batch_size=self.unlabelled_batch_size)

    def predict_dataloader(self) -> DataLoader[Any]:
        """Batches of all public inputs, in their order."""
        return self._loader(self._public, shuffle=False)

    @property
    def trainer(self) -> L.Trainer | None:
        """The trainer; set by Lightning."""
        return self._trainer

    @trainer.setter
    def trainer(self, trainer: L.Trainer | None) -> None:
        if not (trainer is None or isinstance(trainer, L.Trainer)):
            kind = type(trainer)
            cure = "Use `import lightning as L`: pytorch_lightning has other classes of the same names."
            raise InvalidArgument("trainer", "a lightning.Trainer", f"{kind.__module__}.{kind.__name__}", cure)
        self._trainer = trainer

    def __getstate__(self) -> dict[str, Any]:
        # Copies hold no teachers once they are not needed; a trainer may hold them too.
        ensemble = self._ensemble if self._labels is None else None
        return {**self.__dict__, "_ensemble": ensemble, "_trainer": None}

    def _loader(
        self, dataset: Dataset[Any], *, shuffle: bool, batch_size: int | None = None, pairs: bool = False
    ) -> DataLoader[Any]:
        collate = partial(_collated_pairs, self._collate) if pairs else self._collate
        return DataLoader(dataset, batch_size=batch_size or self.batch_size, shuffle=shuffle, collate_fn=collate)


def _collated_pairs(collate: Callable[[list[Any]], Any], pairs: list[Any]) -> Any:
    """A batch of (input, label) pairs; anything else is left to Torch, and refused by the student."""
    if not all(isinstance(pair, (tuple, list)) and len(pair) == 2 for pair in pairs):
        return default_collate(pairs)
    inputs, labels = zip(*pairs, strict=True)
    return [collate([*inputs]), default_collate([*labels])]


class _Inputs(Dataset[Any]):
    """The inputs of a data set, without the rest of its items."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        item = self._dataset[index]
        return item[0] if isinstance(item, (tuple, list)) else item
