"""Teachers in files, loaded one at a time, and labels for whole data sets, teacher by teacher."""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from tqdm.auto import tqdm

from ..arguments import checked
from ..arrays import IntArray
from ..errors import InvalidArgument, UnprovenPrivacy
from ..files import write_whole
from ..mechanisms.noise_free import NoiseFreeMajority
from ..teachers.checkpoints import Checkpoint, load_teacher, unwrap_module, weights_digest
from ..teachers.shards import open_private
from ..teachers.structures import Structure, checked_device, rows_of
from .identity import checked_inputs, input_digests
from .labeler import PrivateLabeler
from .questions import checked_findings, class_numbers, classes_of_votes, label_shape
from .voting import VotingTeachers

__all__ = ["StoredTeacher", "label_loader"]

_NOT_ASKED = -2
_PART = 4096  # labels whose votes are in memory, 8 bytes each, and that are charged together


class StoredTeacher:
    """A teacher in a file, a :class:`~darrm_torch.Voter` that is in memory only while it votes.

    It votes as in :class:`~darrm_torch.PrivateMajorityEnsemble`. Each call of :meth:`vote` loads the file, except
    within ``with teacher:``. :func:`label_loader` labels a data set with many of them.

    Args:
        file: see :func:`~darrm_torch.load_teacher`.
        build_model: returns a network of the teacher's architecture.
        classes, findings: which logits compete, see :class:`~darrm_torch.PrivateMajorityEnsemble`.
        device: where it votes; ``"cuda"`` falls back to the CPU without CUDA.
        dtype: the precision in which it votes, such as ``torch.bfloat16``; ``None``: that of its weights. It is part of
            the ``digest``, because a vote may depend on it.

    Raises:
        InvalidArgument: the file cannot be read, or ``classes`` cannot compete.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     torch.save(nn.Linear(4, 2).state_dict(), f"{folder}/teacher.pt")
    ...     StoredTeacher(f"{folder}/teacher.pt", lambda: nn.Linear(4, 2)).vote(torch.rand(3, 4)).shape
    (3,)
    """

    @checked
    def __init__(
        self,
        file: str | os.PathLike[str],
        build_model: Callable[[], nn.Module],
        *,
        classes: Sequence[int] | int | None = None,
        findings: Sequence[str] | None = None,
        device: str = "cpu",
        dtype: torch.dtype | None = None,
    ) -> None:
        self.file, self._build, self._dtype = Path(file), build_model, dtype
        self._classes, self.findings = class_numbers(classes), checked_findings(findings, classes)
        self._device = checked_device(device)
        self._weights = weights_digest(Checkpoint.read(file).weights)
        self.digest = self._weights if dtype is None else f"{self._weights} {dtype}"
        self._loaded: VotingTeachers | None = None

    def __repr__(self) -> str:
        return f"<StoredTeacher: {self.file.name}>"

    def __enter__(self) -> StoredTeacher:
        self._loaded = self._ready(load=True)
        return self

    def __exit__(self, *error: object) -> None:
        self._loaded = None

    @checked
    def vote(self, inputs: Structure) -> IntArray:
        """Votes ``(B,)``, or ``(B, F)``, int64; as sensitive as the teacher.

        Raises:
            InvalidArgument: inputs that are not finite, or that the network does not take.
        """
        if self._loaded is None:
            self._check(inputs)
            with self:
                return self.vote(inputs)
        inputs = checked_inputs(inputs)
        votes: IntArray = self._loaded.votes(inputs, [0])[0].cpu().numpy()
        return votes

    def _check(self, inputs: Structure) -> None:
        """Check that the network takes these inputs; its weights are not read."""
        self._ready(load=False).check(checked_inputs(inputs), [0])

    def _ready(self, *, load: bool) -> VotingTeachers:
        network = unwrap_module(self._build(), "build_model")
        if load:
            load_teacher(self.file, network)
            if weights_digest(network) != self._weights:
                raise UnprovenPrivacy(f"{self.file} holds other weights than before: it is another teacher")
        network.to(self._device, self._dtype)
        return VotingTeachers([network], self.findings, classes=self._classes, mechanism=NoiseFreeMajority())


@checked
def label_loader(
    labeler: PrivateLabeler,
    loader: Iterable[Any],
    *,
    private_folder: str | os.PathLike[str],
    progress: bool = True,
) -> IntArray:
    """Private labels ``(N,)`` or ``(N, F)`` int64 for all inputs of a loader, through which the voters go in turn.

    Memory holds one teacher, one batch and the digests of the inputs. The teachers must be voters, such as
    :class:`StoredTeacher`. As elsewhere, all labels are checked against the budget before any teacher votes, an input
    that was labelled before gets the same label free of charge, and labels are charged before they are returned.

    Each teacher's votes are kept on disk until the labels are drawn, one byte for each label (two beyond 127 classes).
    **They are as private as the teachers.** They are in ``private_folder/votes``, which only its owner can open (mode
    0700, files 0600), and are deleted at the end. A run that was killed goes on where it stopped if it is started again
    with the same arguments: finished teachers do not vote again, and no label is drawn or paid twice. Delete the folder
    yourself if you never start it again.

    Args:
        labeler: holds the mechanism, the voters and the ledger.
        loader: batches of inputs, the same ones in the same order each time (``shuffle=False``). A batch is a structure
            of tensors; a list of one tensor, as that of a ``TensorDataset``, stands for the tensor.
        private_folder: where votes are kept. One run at a time may use it.
        progress: show a progress bar.

    Raises:
        InvalidArgument: teachers that are no voters, inputs that they do not take, a loader that does not repeat its
            batches, or a folder that others can open; nothing was charged.
        BudgetExceeded: the labels would cost more than the ledger's budget; no teacher voted, nothing was charged.
        UnprovenPrivacy: a teacher's file changed.

    >>> import tempfile
    >>> from darrm_torch import NoiseFreeMajority, PrivacyLedger, PrivacyProfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     files = [f"{folder}/teacher-{number}.pt" for number in range(3)]
    ...     for file in files:
    ...         torch.save(nn.Linear(4, 2).state_dict(), file)
    ...     labeler = PrivateLabeler(
    ...         NoiseFreeMajority(),
    ...         teachers=[StoredTeacher(file, lambda: nn.Linear(4, 2)) for file in files],
    ...         profiles=[PrivacyProfile.from_dp_sgd([(4.0, 0.1, 50)])] * 3,
    ...         classes=2,
    ...         ledger=PrivacyLedger(f"{folder}/labels.ledger"),
    ...     )
    ...     label_loader(labeler, torch.rand(20, 4).split(8), private_folder=f"{folder}/private", progress=False).shape
    (20,)
    """
    voters = labeler.panel.voters
    if len(voters) < len(labeler.profiles):
        raise InvalidArgument("labeler", "one whose teachers are voters, such as StoredTeacher", "one with names")
    for number, (voter, profile) in enumerate(zip(voters, labeler.profiles, strict=True)):
        read = None if profile.reading is None else profile.reading.digest
        if isinstance(voter, StoredTeacher) and read not in (None, voter._weights):
            raise UnprovenPrivacy(f"the weights of teacher {number} are not those that its profile was read with")
    keys = [key for inputs in _batches(loader) for key in input_digests(inputs)]
    new = np.array(labeler.check_budget(keys), dtype=np.int64)
    folder = open_private(private_folder)
    votes = folder / "votes"
    classes = classes_of_votes(labeler.mechanism, labeler.classes)
    kind = np.int8 if classes <= 127 else np.int16 if classes <= 2**15 else np.int32
    files = []
    if len(new):
        open_private(votes)
        for inputs in _batches(loader):
            if isinstance(voters[0], StoredTeacher):
                voters[0]._check(inputs)
            break
        run = hashlib.sha256(b"".join([repr(sorted(labeler.identity.items())).encode(), *keys]))
        files = [votes / f"{run.hexdigest()[:32]}-{number:04d}.npy" for number in range(len(voters))]
        with tqdm(total=len(files), desc="teachers", unit="teacher", disable=not progress, dynamic_ncols=True) as bar:
            for number, file in enumerate(files):
                if not file.exists() or (np.load(file, mmap_mode="r")[new] == _NOT_ASKED).any():
                    with write_whole(file, private=True) as temporary, open(temporary, "wb") as out:
                        np.save(out, _votes_of(labeler, number, loader, keys, new).astype(kind))
                bar.update()

    def kept(start: int, rows: Sequence[int]) -> IntArray:
        return np.stack([np.load(file, mmap_mode="r")[start:][rows] for file in files])

    part = max(1, _PART // math.prod(label_shape(1, labeler.findings)))
    parts = [labeler.label(keys[start : start + part], partial(kept, start)) for start in range(0, len(keys), part)]
    labels: IntArray = np.concatenate([np.zeros(label_shape(0, labeler.findings), dtype=np.int64), *parts])
    for file in files:
        file.unlink()
    with contextlib.suppress(OSError):  # another run's
        votes.rmdir()
    return labels


def _batches(loader: Iterable[Any]) -> Iterator[Structure]:
    for batch in loader:
        yield checked_inputs(batch[0] if isinstance(batch, (list, tuple)) and len(batch) == 1 else batch)


def _votes_of(
    labeler: PrivateLabeler, number: int, loader: Iterable[Any], keys: Sequence[bytes], new: IntArray
) -> IntArray:
    """One voter's votes ``(N,)`` or ``(N, F)`` on the inputs that are new."""
    voter, votes = labeler.panel.voters[number], np.full(label_shape(len(keys), labeler.findings), _NOT_ASKED)
    classes = classes_of_votes(labeler.mechanism, labeler.classes)
    start, same = 0, True
    with voter if isinstance(voter, contextlib.AbstractContextManager) else contextlib.nullcontext():
        for inputs in _batches(loader):
            digests = input_digests(inputs)
            end = start + len(digests)
            same = same and digests == list(keys[start:end])
            first, last = np.searchsorted(new, [start, end])
            if same and last > first:
                rows = new[first:last]
                votes[rows] = labeler.panel.vote(number, rows_of(inputs, (rows - start).tolist()), classes=classes)
            start = end
    if not same or start != len(keys):
        cure = "Use shuffle=False and no random transforms."
        raise InvalidArgument("loader", "one that repeats its batches in the same order", "another", cure)
    return votes
