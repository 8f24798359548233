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
    """How close two logits may be, as a share of their size, for rounding to decide between them: the margin.

    At first it is the square root of the precision. A close vote is cast again on the input alone, which shows how
    much the difference of its two best logits changed. After ``LEAST`` changes, the margin is ``TIMES`` the largest of
    them, if that is smaller, but no less than ``FLOOR`` units of the precision. A difference that did not change says
    nothing: perhaps both were exact.

    Args:
        kinds: the types of the teachers' weights.

    >>> rounding = Rounding([torch.float32])
    >>> before = rounding.margin
    >>> rounding.learn(torch.full((16,), 1e-6))
    >>> before > rounding.margin > 15e-6
    True
    """

    LEAST, TIMES, FLOOR = 16, 16, 64

    def __init__(self, kinds: Iterable[torch.dtype]) -> None:
        self._unit = max((torch.finfo(kind).eps for kind in kinds), default=2.0**-23)
        self._largest, self._count, self._votes = 0.0, 0, 0

    @property
    def is_new(self) -> bool:
        """Whether few votes were cast again, so that every teacher's should be."""
        return self._votes < self.LEAST

    @property
    def margin(self) -> float:
        """The share of their size."""
        widest = math.sqrt(self._unit)
        if self._count < self.LEAST:
            return widest
        return min(widest, max(self.FLOOR * self._unit, self.TIMES * self._largest))

    def learn(self, changes: Tensor) -> None:
        """Take note of the changes ``(n,)`` of votes that were cast again, as shares of the size."""
        self._votes += len(changes)
        changes = changes[changes > 0]
        if len(changes):
            self._largest = max(self._largest, float(changes.max()))
            self._count += len(changes)
