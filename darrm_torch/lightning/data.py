"""A data module that asks for private labels of public inputs once and serves them for any number of epochs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import lightning as L
import torch
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, StackDataset, Subset, default_collate

from ..arguments import checked, is_inflated
from ..errors import InvalidArgument, check_integer
from ..labels.ensemble import PrivateMajorityEnsemble
from ..labels.identity import input_keys
from ..labels.ledger_index import checked_keys
from ..teachers.structures import Rows, tensors_of
from .acquisition import Acquire, scores_of

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
        rounds: how many rounds to ask them in. The first round is random; :meth:`ask` asks each of the others.
        acquire: which inputs the student asks about after the first round: ``"margin"`` (its two best classes are about
            equally likely), ``"disagreement"`` (its ``consistency`` changes the input, and that changes its answer), or
            a function (student, inputs) -> scores ``(B,)``, of which the largest are asked. It must not read private
            data. ``None``: random ones.
        validation: data set of (input, label), optional.
        test: data set of (input, label), optional.
        batch_size: of all loaders but the unlabelled one.
        unlabelled_batch_size: if given, training batches are {"labelled": (input, private label), "unlabelled":
            inputs}, for a student with ``consistency``; an epoch is then a pass over the longer of the two.
        keys: what identifies each of the public inputs, as bytes; ``None``: their values, as in calls
            of the ensemble.
        collate_fn: makes a batch of a list of inputs, such as ``DataCollatorWithPadding(tokenizer)``.
        seed: chooses the queries, independently of the votes and of the ledger: another seed, or another number of
            public inputs, asks and pays for other inputs. It is public, and no privacy rests on it.

    Raises:
        InvalidArgument: more queries than public inputs, fewer queries than rounds, or nothing left for unlabelled
            batches.
    """

    @checked
    def __init__(
        self,
        ensemble: PrivateMajorityEnsemble,
        public: Any,
        *,
        queries: int,
        rounds: int = 1,
        acquire: Acquire | None = "margin",
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
        if isinstance(public, Tensor | Mapping | tuple) and not is_inflated(public):
            rows = {part.shape[:1] for _, part in tensors_of(public, "public")}
            if len(rows) > 1 or not rows.pop():
                raise InvalidArgument("public", "tensors (N, ...), as many rows in each", "others")
            public = Rows(public)
        elif (
            not (hasattr(public, "__getitem__") and hasattr(public, "__len__"))
            or isinstance(public, str | bytes | type)
            or getattr(public, "ndim", None) == 0
            or type(public).__name__ == "DataFrame"  # its items are columns
            or is_inflated(public)
        ):
            expected = "a tensor, a tuple or a mapping of tensors, or a map-style Dataset"
            cure = "Of a table take torch.tensor(table.to_numpy(), dtype=torch.float32)."
            raise InvalidArgument("public", expected, type(public).__name__, cure)
        self._public = public if isinstance(public, Rows) else _Inputs(public)
        self._keys = None if keys is None else checked_keys(keys)
        if self._keys is not None and len(self._keys) != len(self._public):
            expected = f"one for each of the {len(self._public)} public inputs"
            raise InvalidArgument("keys", expected, f"{len(self._keys)} of them")
        self._collate = collate_fn
        check_integer("queries", queries, low=1)
        if queries > len(self._public):
            raise InvalidArgument("queries", f"at most the {len(self._public)} public inputs", queries)
        check_integer("rounds", rounds, low=1, high=queries)
        self._acquire = acquire
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
        self._seed = check_integer("seed", seed, low=0, high=2**63 - 1)
        generator = torch.Generator().manual_seed(seed)
        self._order: list[int] = torch.randperm(len(self._public), generator=generator).tolist()
        self._ends = [queries * (number + 1) // rounds for number in range(rounds)]  # of rounds, in questions
        self.queries: list[int] = self._order[: self._ends[0]]
        self._labels: Tensor | None = None

    @property
    def unlabelled(self) -> list[int]:
        """The numbers of the public inputs that are not among ``queries``."""
        chosen = set(self.queries)
        return [number for number in self._order if number not in chosen]

    @property
    def labels(self) -> Tensor:
        """The private labels ``(Q,)`` int64, in the order of ``queries``.

        ``(Q, F)`` where the ensemble is asked about F findings; soft labels are ``(Q, C)`` float32.
        """
        return self.label() if self._labels is None else self._labels

    def label(self) -> Tensor:
        """Ask the first round, if there is none yet; labels that were asked before come from the ledger.

        Raises:
            BudgetExceeded: the labels of all rounds together would exceed the ledger's budget; nothing was charged.
        """
        if self._labels is None:
            if self._kept_choice(1) is None:  # what later rounds will choose costs as much
                self._check_budget(self._order[: self._ends[-1]])
            self._labels = self._answers(self.queries)
        return self._labels

    def ask(self, student: nn.Module) -> Tensor:
        """Ask the next round: the inputs without a label that have the largest scores by the present student.

        Returns all labels so far, in the order of ``queries``. The ledger keeps what was chosen before anything is
        asked. So a data module with the same arguments that is built after an interruption asks about the same inputs,
        whatever its student is, and no label is paid for twice. With ``L.Trainer(reload_dataloaders_every_n_epochs=N)``
        every N-th epoch asks a round by itself. Otherwise call this between fits.

        Privacy: a question may depend on earlier labels, see docs/theory/adaptive.md. All routes of
        :func:`~darrm_torch.total_privacy` cover that. The number of questions does not depend on labels.

        Raises:
            InvalidArgument: no round is left, too few different inputs are left, or scores are not finite numbers.
            BudgetExceeded: the labels of this round would exceed the ledger's budget; nothing was charged.
        """
        labels, number = self.label(), self._round + 1
        if number == len(self._ends):
            raise InvalidArgument("rounds", f"more than the {number} that were asked", number, "All rounds were asked.")
        chosen = self._kept_choice(number) or self._choice(student, number)
        self._check_budget(chosen)
        self._labels = torch.cat([labels, self._answers(chosen)])
        self.queries = self.queries + chosen
        return self._labels

    @property
    def _round(self) -> int:
        """The number of the last round, from 0."""
        return self._ends.index(len(self.queries))

    def _choice(self, student: nn.Module, number: int) -> list[int]:
        """The questions of a round, stored in the ledger."""
        count = self._ends[number] - self._ends[number - 1]
        if self._acquire is None:
            return self._order[self._ends[number - 1] :][:count]
        # One input of each key: then no choice needs fewer labels than another.
        first: dict[bytes, int] = {}
        for one in [*self.queries, *self.unlabelled]:
            first.setdefault(self._public_keys[one], one)
        chosen = {*self.queries}
        candidates = [one for one in first.values() if one not in chosen]
        if len(candidates) < count:
            raise InvalidArgument("queries", f"at most {len(self.queries) + len(candidates)} here", self._ends[-1])
        loader = self._loader(Subset(self._public, candidates), shuffle=False)
        scores = scores_of(self._acquire, student, loader, seed=self._seed)
        best = torch.sort(scores, descending=True, stable=True).indices[:count].tolist()
        return self._kept_choice(number, [candidates[place] for place in best]) or []

    def _kept_choice(self, number: int, chosen: list[int] | None = None) -> list[int] | None:
        """The questions that the ledger has for a round; ``chosen`` if there are none yet."""
        if self._acquire is None or len(self._ends) == 1:
            return None
        assert self._ensemble is not None
        named = self._acquire if isinstance(self._acquire, str) else _name_of(self._acquire)
        plan = json.dumps([self._seed, self._ends, named]).encode()
        digest = hashlib.blake2b(b"".join([plan, *self._public_keys]), digest_size=16).hexdigest()
        text = None if chosen is None else json.dumps(chosen)
        kept = self._ensemble.ledger.note(f"questions {digest} {number}", text)
        return None if kept is None else json.loads(kept)

    @cached_property
    def _public_keys(self) -> list[bytes]:
        """The key of each public input."""
        if self._keys is not None:
            return self._keys
        return [key for inputs in self._loader(self._public, shuffle=False) for key in input_keys(inputs, None)]

    def _check_budget(self, questions: Sequence[int]) -> None:
        assert self._ensemble is not None
        if self._keys is not None:
            self._ensemble.check_budget(keys=[self._keys[number] for number in questions])
        else:
            self._ensemble.check_budget(self._loader(Subset(self._public, questions), shuffle=False))

    def _answers(self, questions: Sequence[int]) -> Tensor:
        """The labels of these public inputs, after the budget was checked for all of them."""
        assert self._ensemble is not None
        labels, start = [], 0
        for inputs in self._loader(Subset(self._public, questions), shuffle=False):
            part = questions[start : start + self.batch_size]
            keys = None if self._keys is None else [self._keys[number] for number in part]
            labels.append(self._ensemble(inputs, keys=keys).cpu())
            start += self.batch_size
        return torch.cat(labels)

    def prepare_data(self) -> None:
        """Label before training starts; Lightning calls it in the first process only."""
        if self.trainer is None or self.trainer.state.fn == TrainerFn.FITTING:
            self.label()

    def __repr__(self) -> str:
        return f"<PrivateLabelDataModule: {len(self._public)} public inputs, {self._ensemble!r}>"

    def setup(self, stage: str) -> None:
        """Send the labels to all processes."""
        if stage == "fit" and self.trainer is not None:
            self._share(self.trainer)

    def _share(self, trainer: L.Trainer) -> None:
        self.queries, self._labels = trainer.strategy.broadcast((self.queries, self._labels))

    def _ask_rounds_that_are_due(self, trainer: L.Trainer) -> None:
        every: int = trainer.reload_dataloaders_every_n_epochs  # type: ignore[attr-defined]
        while every and self._round < min(trainer.current_epoch // every, len(self._ends) - 1):
            if trainer.is_global_zero:
                self.ask(trainer.lightning_module)
            self._share(trainer)

    def train_dataloader(self) -> Any:
        """(input, private label) batches; see ``unlabelled_batch_size`` for the others."""
        if self.trainer is not None and self.trainer.training:
            self._ask_rounds_that_are_due(self.trainer)
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
        ensemble = self._ensemble if self._labels is None or self._round + 1 < len(self._ends) else None
        return {**self.__dict__, "_ensemble": ensemble, "_trainer": None}

    def _loader(
        self, dataset: Dataset[Any], *, shuffle: bool, batch_size: int | None = None, pairs: bool = False
    ) -> DataLoader[Any]:
        collate = partial(_collated_pairs, self._collate) if pairs else self._collate
        return DataLoader(dataset, batch_size=batch_size or self.batch_size, shuffle=shuffle, collate_fn=collate)


def _name_of(function: Any) -> str:
    kind = function if hasattr(function, "__qualname__") else type(function)
    return f"{kind.__module__}.{kind.__qualname__}"


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
