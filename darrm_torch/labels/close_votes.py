"""Votes that rounding could change: which they are, and how large rounding errors are."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Leads", "Rounding"]


class Leads(NamedTuple):
    """By how much the best logit exceeds the next, and the size of the logits, ``(...)`` float64 both."""

    lead: Tensor
    size: Tensor

    @classmethod
    def of(cls, logits: Tensor) -> Leads:
        """Those of logits ``(..., C)``.

        >>> Leads.of(torch.tensor([[1.0, 4.0, 3.5]])).lead.item()
        0.5
        """
        logits = logits.double()
        sizes = logits.abs().amax(dim=-1)
        best = logits.topk(2, dim=-1).values
        return cls(best[..., 0] - best[..., 1], torch.maximum(sizes, sizes.nanmean()))


class Rounding:
    """How close two logits of a teacher may be, as a share of their size, for rounding to decide: the margin.

    At first it is the square root of the precision. A close vote is cast again on the input alone, which shows how
    much the difference of its two best logits changed. So are the first ``VOTES`` votes in the second large batch,
    close or not. After ``LEAST`` changes, the margin is ``TIMES`` the largest of them, if that is smaller, but no less
    than ``FLOOR`` units of the precision. A difference that did not change says nothing: perhaps both were exact.

    Args:
        kinds: the types of the teacher's weights.

    >>> rounding = Rounding([torch.float32])
    >>> before = rounding.margin
    >>> for _ in range(8):
    ...     rounding.learn(1e-6)
    >>> before > rounding.margin > 15e-6
    True
    """

    VOTES, LEAST, TIMES, FLOOR = 16, 8, 16, 64

    def __init__(self, kinds: Iterable[torch.dtype]) -> None:
        self._unit = max((torch.finfo(kind).eps for kind in kinds), default=2.0**-23)
        self._largest, self._count, self._batches = 0.0, 0, 0

    def sample(self, rows: int) -> int:
        """How many votes of the next batch should be cast again, close or not."""
        self._batches += rows >= 4 * self.VOTES  # fewer rows would take much longer
        return self.VOTES if self._batches == 2 and rows >= 4 * self.VOTES else 0

    @property
    def margin(self) -> float:
        """The share of their size."""
        widest = math.sqrt(self._unit)
        if self._count < self.LEAST:
            return widest
        return min(widest, max(self.FLOOR * self._unit, self.TIMES * self._largest))

    def learn(self, change: float) -> None:
        """Take note of the change of a vote that was cast again, as a share of the size."""
        if change > 0:
            self._largest = max(self._largest, change)
            self._count += 1
