"""One ensemble over several processes or machines, on torch.distributed: one coin and one charge for each label."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..arguments import checked
from ..errors import DarrmError, InvalidArgument, UnprovenPrivacy
from .ensemble import PrivateMajorityEnsemble
from .voting import input_digests

__all__ = ["DistributedEnsemble"]


class DistributedEnsemble(nn.Module):
    """An ensemble whose votes several processes take together; the first rank charges, draws and tells the others.

    Formal guarantee: that of the ensemble, for the labels given out, by whichever rank. Only the first rank's mechanism
    and ledger are used. Vote counts travel between the ranks (``all_reduce``) and nowhere else.

    Every call is collective: all ranks make it, and all get their labels or all raise the same error. When a rank dies
    the others raise an error, at once where the backend notices (gloo), else after the group's timeout
    (``init_process_group(timeout=...)``). No label is given out before the first rank has stored it with its charge;
    one that was stored and not given out is free for whoever asks again.

    The labels do not depend on the number of ranks: votes are the same, and so are the draws of an ``insecure_seed``.

    Args:
        ensemble: built on every rank from the same teachers by the same rules.
        split: ``"teachers"``: all ranks pass the same inputs, and each asks its share of the teachers. ``"inputs"``:
            each passes inputs of its own, as many as it likes, and asks all teachers; together, in the order of the
            ranks, they are one batch. ``.to(device)`` moves the teachers that this rank asks.
        group: who takes part; ``None``: all ranks.

    Raises:
        InvalidArgument: an unknown split, or no process group that this process is in.
        UnprovenPrivacy: the ranks have different teachers, promises, mechanisms or rules.
    """

    @checked
    def __init__(
        self,
        ensemble: PrivateMajorityEnsemble,
        *,
        split: Literal["teachers", "inputs"] = "teachers",
        group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__()
        if split not in ("teachers", "inputs"):
            raise InvalidArgument("split", '"teachers" or "inputs"', split)
        if not dist.is_available() or not dist.is_initialized() or dist.get_rank(group) < 0:
            cure = "Start with torchrun and call torch.distributed.init_process_group first."
            raise InvalidArgument("group", "a process group that this process is in", group, cure)
        self.split = split
        self._group = group
        self._rank = dist.get_rank(group)
        teachers, ranks = len(ensemble.profiles), dist.get_world_size(group)
        self._numbers = range(self._rank, teachers, ranks) if split == "teachers" else range(teachers)
        self._asked = nn.ModuleList(ensemble._teachers[number] for number in self._numbers)
        super().train(False)
        self._outside = (ensemble,)  # no submodule: the teachers of other ranks stay where they are
        for name, value in ensemble.get_extra_state().items():
            if len(set(self._gather(value))) > 1:
                raise UnprovenPrivacy(
                    f"the ranks have different {name}, so what they say of the labels would not hold. Build the "
                    "ensemble on each from the same files, in the same order"
                )

    @property
    def ensemble(self) -> PrivateMajorityEnsemble:
        """The ensemble; on the first rank its ledger and its report tell what was given out."""
        return self._outside[0]

    def train(self, mode: bool = True) -> DistributedEnsemble:
        """Teachers stay in eval mode."""
        return self

    def forward(self, inputs: Tensor) -> Tensor:
        """Private labels ``(B,)`` int64 of this rank's inputs, on their device.

        Raises:
            InvalidArgument: teachers or inputs that cannot vote, on any rank; other inputs on another rank when the
                teachers are split.
            BudgetExceeded: as the ensemble's.
            RuntimeError: a rank failed or is gone.
        """
        gathered = self._gather(_digests_or_error(inputs))
        for found in gathered:
            if isinstance(found, Exception):
                raise found
        keys = gathered[self._rank]
        if self.split == "teachers":
            start = 0
            if any(other != keys for other in gathered):
                cure = 'When each rank has inputs of its own, say split="inputs".'
                raise InvalidArgument("inputs", "the same on every rank", "different ones", cure)
        else:
            start = sum(map(len, gathered[: self._rank]))
            keys = [key for part in gathered for key in part]

        def count(rows: Sequence[int]) -> Tensor | Exception:
            return self._count(rows, inputs, start)

        labels = self._answer(keys, count) if self._rank == 0 else self._assist(count)
        return torch.tensor(labels[start : start + len(inputs)], dtype=torch.int64, device=inputs.device)

    def _answer(self, keys: Sequence[bytes], count: Callable[[Sequence[int]], Tensor | Exception]) -> list[int]:
        """The first rank: charge, have everyone count, draw, store; then tell."""

        def draw(rows: Sequence[int]) -> list[int]:
            self._tell(("count", list(rows)))
            counts = count(rows)
            if isinstance(counts, Exception):
                raise counts
            labels: list[int] = self.ensemble.mechanism.aggregate(counts).tolist()
            return labels

        try:
            labels = self.ensemble.ledger.answer(keys, draw)
        except Exception as error:
            with contextlib.suppress(RuntimeError):  # where the group is what failed, this fails as well
                self._tell(("error", _portable(error)))
            raise
        self._tell(("labels", labels))
        return labels

    def _assist(self, count: Callable[[Sequence[int]], Tensor | Exception]) -> list[int]:
        """The other ranks: count what is asked for, and hear what comes of it."""
        kind, content = self._tell(None)
        if kind == "count":
            count(content)  # an error of any rank comes back from the first one
            kind, content = self._tell(None)
        if kind == "error":
            raise content
        labels: list[int] = content
        return labels

    def _count(self, rows: Sequence[int], inputs: Tensor, start: int) -> Tensor | Exception:
        """The counts ``(len(rows), C)`` of all ranks together, or what went wrong on one of them.

        ``inputs`` are the rows from ``start`` on; a rank fills in what it has, and the sum is taken.
        """
        mine = [place for place, row in enumerate(rows) if start <= row < start + len(inputs)]
        part, problem = None, None
        try:
            if mine and self._numbers:
                chosen = inputs[[rows[place] - start for place in mine]]
                part = self.ensemble.sensitive_counts(chosen, teachers=self._numbers)
        except Exception as error:
            problem = _portable(error)
        found = self._gather((problem, None if part is None else part.shape[1]))
        problems = [failed for failed, _ in found if isinstance(failed, Exception)]
        if problems:
            return problems[0]
        classes = {width for _, width in found if width is not None}
        if len(classes) > 1:
            return InvalidArgument("outputs of the teachers", "logits of the same classes", sorted(classes))
        backend = dist.get_backend(self._group)
        counts = torch.zeros(len(rows), *classes, dtype=torch.int64, device="cuda" if backend == "nccl" else "cpu")
        if part is not None:
            counts[mine] = part.to(counts.device)
        dist.all_reduce(counts, group=self._group)
        return counts

    def _gather(self, value: Any) -> list[Any]:
        values: list[Any] = [None] * dist.get_world_size(self._group)
        dist.all_gather_object(values, value, group=self._group)
        return values

    def _tell(self, message: Any) -> Any:
        """What the first rank says; the others pass None."""
        box = [message]
        first = 0 if self._group is None else dist.get_global_rank(self._group, 0)
        dist.broadcast_object_list(box, src=first, group=self._group)
        return box[0]


def _digests_or_error(inputs: Any) -> list[bytes] | Exception:
    try:
        return input_digests(inputs)
    except Exception as error:
        return _portable(error)


def _portable(error: Exception) -> Exception:
    """An error that every rank can read, whatever it is made of."""
    return error if isinstance(error, DarrmError) else RuntimeError(f"{type(error).__name__}: {error}")
