"""What an optimizer of Opacus does at each step, recorded while it trains.

An accountant asks the optimizer for its noise multiplier at each step and for nothing else. It does not see a clipping
bound that changes between clipping and noise, nor steps without noise. A watched optimizer records both.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..arguments import checked
from ..errors import InvalidArgument, UnprovenPrivacy
from .loaders import draws_poisson

__all__ = ["StepRecord", "check_rows", "check_watched", "record_of", "watch_training"]


@dataclass
class StepRecord:
    """The steps of one optimizer since it is watched.

    Attributes:
        runs: (noise multiplier, largest clipping bound, bound that the noise was scaled to, number of equal steps).
        taken: the steps of the optimizer that Opacus wraps, with noise or without.
        rows: the gradients that were clipped, each by itself, in all steps together.
    """

    runs: list[tuple[float, float, float, int]] = field(default_factory=list)
    taken: int = 0
    rows: int = 0
    _clipped: float = 0.0
    _clipped_rows: int = 0

    @property
    def steps(self) -> int:
        """The number of steps with noise."""
        return sum(run[3] for run in self.runs)

    def note_clipping(self, bound: float, rows: int) -> None:
        """So many gradients are about to be clipped to this bound; a step may clip in several parts."""
        self._clipped = max(self._clipped, bound)
        self._clipped_rows += rows

    def note_noise(self, multiplier: float, bound: float) -> None:
        """Noise of ``multiplier * bound`` is about to be added: the step is complete."""
        step, self._clipped = (float(multiplier), self._clipped, float(bound)), 0.0
        self.rows, self._clipped_rows = self.rows + self._clipped_rows, 0
        if self.runs and self.runs[-1][:3] == step:
            self.runs[-1] = (*step, self.runs[-1][3] + 1)
        else:
            self.runs.append((*step, 1))


@checked
def watch_training(optimizer: Any) -> None:
    """Record the noise and the clipping bound of every further step of an optimizer of Opacus.

    Call it before the first step. :func:`~darrm_torch.read_privacy` then checks, given the optimizer, that noise was
    added to every step, that it was the noise that the accountant recorded, and that no clipping bound was above the
    one that the noise was scaled to; given the loader, also that each record was one row. Without it these are
    assumptions of the report.

    Args:
        optimizer: the one that ``make_private`` returned. Watching it twice changes nothing.

    Raises:
        InvalidArgument: it is no optimizer of Opacus, or one of ghost clipping, whose module clips.

    >>> import torch
    >>> from opacus.optimizers import DPOptimizer
    >>> sgd = torch.optim.SGD(torch.nn.Linear(4, 2).parameters(), lr=0.1)
    >>> optimizer = DPOptimizer(sgd, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=8)
    >>> watch_training(optimizer)  # from now on every step is recorded
    """
    if not all(hasattr(optimizer, name) for name in ("clip_and_accumulate", "add_noise", "original_optimizer")):
        raise InvalidArgument("optimizer", "the one that make_private returned", type(optimizer).__name__)
    if "FastGradientClipping" in type(optimizer).__name__:
        cure = 'Train with grad_sample_mode="hooks", or by train_teachers, which checks the norms of ghost clipping.'
        raise InvalidArgument("optimizer", "one that clips itself", "one of ghost clipping, whose module clips", cure)
    if record_of(optimizer) is not None:
        return
    record = StepRecord()

    def count(*_: Any) -> None:
        record.taken += 1

    optimizer.original_optimizer.register_step_post_hook(count)
    optimizer.darrm_record = record
    optimizer.__class__ = _watched(type(optimizer))


def record_of(optimizer: Any) -> StepRecord | None:
    """The record of a watched optimizer."""
    record = getattr(optimizer, "darrm_record", None)
    return record if isinstance(record, StepRecord) else None


def _watched(kind: Any) -> type:
    """The same optimizer, which notes each step in its record."""

    class Watched(kind):  # type: ignore[misc] # Opacus has no types
        def clip_and_accumulate(self) -> None:
            self.darrm_record.note_clipping(_clipping_bound(self), len(self.grad_samples[0]))
            super().clip_and_accumulate()

        def add_noise(self) -> None:
            self.darrm_record.note_noise(self.noise_multiplier, self.max_grad_norm)
            super().add_noise()

    Watched.__name__, Watched.__qualname__, Watched.__module__ = kind.__name__, kind.__qualname__, kind.__module__
    return Watched


def _clipping_bound(optimizer: Any) -> float:
    """The L2 norm that one record's clipped gradient has at most."""
    layers = getattr(optimizer, "max_grad_norms", None)
    return float(optimizer.max_grad_norm if layers is None else math.hypot(*layers))


def check_watched(record: StepRecord | None, history: Sequence[tuple[float, float, int]]) -> bool:
    """Check an accountant's history against the record of its optimizer; whether the record covers all of it.

    Raises:
        UnprovenPrivacy: steps without noise, noise that was not recorded, or a clipping bound above that of the noise.
    """
    if record is None:
        return False
    total = sum(count for *_, count in history)
    if record.taken > record.steps or record.steps > total:
        raise UnprovenPrivacy(
            f"the optimizer took {max(record.taken, record.steps)} steps since it was watched, {record.steps} of them "
            f"with noise, and the accountant recorded {total}: some steps had no privacy, or were not recorded. Take "
            "every step with the optimizer that make_private returned, and keep its step hook"
        )
    first = 0
    for _, clipped, scaled, count in record.runs:
        if clipped * (1 - 1e-6) > scaled:
            raise UnprovenPrivacy(
                f"from watched step {first + 1} on, gradients were clipped to {clipped:.6g} and the noise was scaled "
                f"to {scaled:.6g}: one record could move the sum further than the noise covers. Train again, and "
                "change max_grad_norm between steps only"
            )
        first += count
    earlier = total - record.steps
    recorded = _noise_runs([(noise, count) for noise, _, count in history], earlier)
    watched = _noise_runs([(run[0], run[3]) for run in record.runs], 0)
    if recorded != watched:
        raise UnprovenPrivacy(
            f"the accountant recorded steps with noise multipliers {recorded}, the optimizer added {watched} (each "
            "with its number of steps). Give the accountant of this optimizer; change the noise between steps only"
        )
    return earlier == 0


def check_rows(record: StepRecord | None, history: Sequence[tuple[float, float, int]], data_loader: Any) -> None:
    """Check that as many gradients were clipped as the loader draws records, except with a probability below 1e-12.

    Raises:
        UnprovenPrivacy: there were more or fewer: a record was several rows, or another loader was used.
    """
    one_rate = len({rate for _, rate, _ in history}) == 1
    if record is None or not one_rate or not draws_poisson(data_loader) or hasattr(data_loader.batch_sampler, "rank"):
        return
    sampler = data_loader.batch_sampler
    expected = sampler.num_samples * sampler.sample_rate * record.steps
    third = math.log(2e12) / 3  # Bernstein's bound on the tails of a sum of independent draws
    margin = third + math.sqrt(third**2 + 6 * third * expected * (1 - sampler.sample_rate))
    if abs(record.rows - expected) > margin:
        raise UnprovenPrivacy(
            "the optimizer did not clip as many gradients as the loader draws records. Either it was not the loader of "
            "the training, or a record is not one row of a batch: tokens, frames or several augmentations of a record "
            "are rows of their own, and each of them is clipped by itself. Train on the loader that make_private "
            "returned, with one row for each record in all layers with weights (see batch_first)"
        )


def _noise_runs(runs: Iterable[tuple[float, int]], skipped: int) -> list[tuple[float, int]]:
    """Noise multipliers and how many steps each one was used, after the first ``skipped`` steps."""
    merged: list[tuple[float, int]] = []
    for noise, count in runs:
        cut = min(skipped, count)
        skipped -= cut
        if merged and merged[-1][0] == noise:
            merged[-1] = (noise, merged[-1][1] + count - cut)
        elif count > cut:
            merged.append((noise, count - cut))
    return merged
