"""One ensemble over several processes or machines, with torch.distributed: one draw and one charge for each label."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..arguments import checked
from ..arrays import BoolArray, NumberArray
from ..errors import DarrmError, InvalidArgument, UnprovenPrivacy
from ..teachers.structures import Structure, device_of, rows_of, size_of
from .ensemble import PrivateMajorityEnsemble
from .identity import checked_inputs, input_keys

__all__ = ["DistributedEnsemble"]

_Count = Callable[[Sequence[int], BoolArray | None], Tensor | Exception]


class DistributedEnsemble(nn.Module):
    """An ensemble whose votes several processes take together. The first rank charges, draws and sends the labels.

    Formal guarantee: that of the ensemble, for the labels that any rank returns. Only the first rank's mechanism and
    ledger are used. Vote counts travel between the ranks (``all_reduce``) and nowhere else.

    Every call is collective: all ranks make it, and all return their labels or all raise the same error. When a rank
    dies the others raise an error: at once where the backend notices (gloo), otherwise after the group's timeout
    (``init_process_group(timeout=...)``). The first rank stores labels with their charge before any rank returns them.
    Labels that were stored and not returned cost nothing when they are asked for again.

    The labels do not depend on the number of ranks: the votes are the same, and so are the draws of an
    ``insecure_seed``.

    Args:
        ensemble: built on every rank from the same teachers by the same rules.
        split: ``"teachers"``: all ranks pass the same inputs, and each runs its share of the teachers. ``"inputs"``:
            each rank passes inputs of its own, any number of them, and runs all teachers; in the order of the ranks
            they form one batch. ``.to(device)`` moves the teachers that this rank runs.
        group: the process group; ``None``: all ranks.

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
        if not dist.is_available() or not dist.is_initialized() or dist.get_rank(group) < 0:
            cure = "Start with torchrun and call torch.distributed.init_process_group first."
            raise InvalidArgument("group", "a process group that this process is in", group, cure)
        self.split = split
        self._group = group
        self._rank = dist.get_rank(group)
        teachers, ranks = len(ensemble.profiles), dist.get_world_size(group)
        self._numbers = range(self._rank, teachers, ranks) if split == "teachers" else range(teachers)
        self._own_teachers = nn.ModuleList(ensemble._teachers[number] for number in self._numbers)
        super().train(False)
        self._ensemble = (ensemble,)  # not a submodule: the teachers of other ranks stay where they are
        for name, value in ensemble.get_extra_state().items():
            if len(set(self._gather(value))) > 1:
                raise UnprovenPrivacy(
                    f"the ranks have different {name}, so the labels would not have the guarantee that they report. "
                    "Build the ensemble on each rank from the same files, in the same order"
                )

    @property
    def ensemble(self) -> PrivateMajorityEnsemble:
        """The ensemble; on the first rank its ledger and its report cover all labels."""
        return self._ensemble[0]

    def train(self, mode: bool = True) -> DistributedEnsemble:
        """Keep the teachers in eval mode."""
        return self

    def forward(self, inputs: Structure, *, keys: Sequence[bytes] | None = None) -> Tensor:
        """The ensemble's labels of this rank's inputs, on their device.

        Args:
            inputs, keys: of this rank, as for the ensemble.

        Raises:
            InvalidArgument: teachers or inputs that cannot vote, on any rank; other inputs on another rank when the
                teachers are split.
            BudgetExceeded: as the ensemble's.
            RuntimeError: a rank failed or is gone.
        """
        parts = self._gather(_keys_or_error(inputs, keys))
        for part in parts:
            if isinstance(part, Exception):
                raise part
        inputs, own = checked_inputs(inputs), parts[self._rank]
        if self.split == "teachers":
            start, everyone = 0, own
            if any(other != own for other in parts):
                cure = 'If each rank has inputs of its own, pass split="inputs".'
                raise InvalidArgument("inputs", "the same on every rank", "different ones", cure)
        else:
            start = sum(map(len, parts[: self._rank]))
            everyone = [key for part in parts for key in part]

        def count(rows: Sequence[int], juries: BoolArray | None) -> Tensor | Exception:
            return self._count(rows, juries, inputs, start)

        labels = self._answer(everyone, count) if self._rank == 0 else self._assist(count)
        return torch.from_numpy(labels[start : start + len(own)]).to(device_of(inputs))

    def _answer(self, keys: Sequence[bytes], count: _Count) -> NumberArray:
        """On the first rank: charge, have all ranks count, draw, store; then send the labels."""

        def counts(rows: Sequence[int], juries: BoolArray | None) -> Tensor:
            self._broadcast(("count", (list(rows), juries)))
            votes = count(rows, juries)
            if isinstance(votes, Exception):
                raise votes
            return votes

        try:
            labels: NumberArray = self.ensemble._labeler.answer(keys, counts)
        except Exception as error:
            with contextlib.suppress(RuntimeError):  # if the group is what failed, this fails as well
                self._broadcast(("error", _portable(error)))
            raise
        self._broadcast(("labels", labels))
        return labels

    def _assist(self, count: _Count) -> NumberArray:
        """On the other ranks: count what the first rank asks for, and receive the labels."""
        kind, content = self._broadcast(None)
        if kind == "count":
            count(*content)  # the first rank sends back an error of any rank
            kind, content = self._broadcast(None)
        if kind == "error":
            raise content
        labels: NumberArray = content
        return labels

    def _count(
        self, rows: Sequence[int], juries: BoolArray | None, inputs: Structure, start: int
    ) -> Tensor | Exception:
        """The counts ``(len(rows), C)`` or ``(len(rows), F, 2)`` of all ranks, or what went wrong on one of them.

        ``inputs`` are the rows from ``start`` on. A rank fills in its part, and the sum is taken.
        """
        mine = [place for place, row in enumerate(rows) if start <= row < start + size_of(inputs)]
        part, problem = None, None
        try:
            if mine and self._numbers:
                chosen = rows_of(inputs, [rows[place] - start for place in mine])
                part = self.ensemble.sensitive_counts(
                    chosen, teachers=self._numbers, juries=None if juries is None else juries[mine]
                )
        except Exception as error:
            problem = _portable(error)
        results = self._gather((problem, None if part is None else part.shape[1:]))
        for failed, _ in results:
            if isinstance(failed, Exception):
                return failed
        widths = {tuple(width) for _, width in results if width is not None}
        if len(widths) > 1:
            return InvalidArgument("outputs of the teachers", "logits of the same classes", sorted(widths))
        backend = dist.get_backend(self._group)
        counts = torch.zeros(
            len(rows), *next(iter(widths), ()), dtype=torch.int64, device="cuda" if backend == "nccl" else "cpu"
        )
        if part is not None:
            counts[mine] = part.to(counts.device)
        dist.all_reduce(counts, group=self._group)
        return counts

    def _gather(self, value: Any) -> list[Any]:
        values: list[Any] = [None] * dist.get_world_size(self._group)
        dist.all_gather_object(values, value, group=self._group)
        return values

    def _broadcast(self, message: Any) -> Any:
        """The first rank's message, on every rank; the others pass ``None``."""
        box = [message]
        first = 0 if self._group is None else dist.get_global_rank(self._group, 0)
        dist.broadcast_object_list(box, src=first, group=self._group)
        return box[0]


def _keys_or_error(inputs: Any, keys: Sequence[bytes] | None) -> list[bytes] | Exception:
    try:
        return input_keys(checked_inputs(inputs), keys)
    except Exception as error:
        return _portable(error)


def _portable(error: Exception) -> Exception:
    """An error that every rank can unpickle."""
    return error if isinstance(error, DarrmError) else RuntimeError(f"{type(error).__name__}: {error}")
