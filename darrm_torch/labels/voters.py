"""Voters: what a labeler knows of its teachers, which may be anywhere."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from torch import Tensor

from ..arrays import IntArray
from ..errors import InvalidArgument
from ..teachers.structures import Structure, mapped, size_of
from .questions import MISSING, checked_votes, label_shape

__all__ = ["Panel", "Voter", "distinct_names"]


@runtime_checkable
class Voter(Protocol):
    """A teacher that votes: a model in another process, at another site, or a file of votes.

    Attributes:
        digest: names the teacher. It changes whenever the teacher does, such as a digest of its weights. Only the
            ledger stores it.
    """

    digest: str

    def vote(self, inputs: Any, /) -> Any:
        """Votes ``(B,)``, or ``(B, F)`` on findings: integer classes, -1 where the teacher has no vote."""


class Panel:
    """The voters of a labeler, asked one at a time. Whatever one of them does, the votes of the others count.

    Attributes:
        voters: the teachers that can be asked.
        events: the last 1,000 times that one of them failed, as private as the votes.
    """

    def __init__(self, voters: Iterable[Voter], findings: Sequence[str] | None) -> None:
        self.voters, self._findings = tuple(voters), findings
        self.events = deque[str](maxlen=1000)

    def vote(self, number: int, inputs: Structure, *, classes: int) -> IntArray:
        """The votes ``(B,)`` or ``(B, F)`` of one voter; all missing where it fails, which only ``events`` show."""
        shape = label_shape(size_of(inputs), self._findings)
        try:  # a voter may write into its inputs
            return checked_votes(self.voters[number].vote(mapped(inputs, Tensor.clone)), shape, classes=classes)
        except Exception as error:
            self.events.append(f"teacher {number} failed: {type(error).__name__}: {error}")
            return np.full(shape, MISSING)


def distinct_names(teachers: Iterable[Any]) -> list[str]:
    """The name or digest of each teacher.

    Raises:
        InvalidArgument: no list of them, a teacher without one, or two with the same.
    """
    names: list[str] = []
    if isinstance(teachers, (str, bytes)):
        raise InvalidArgument("teachers", "a list with a name or voter for each teacher", teachers)
    for number, teacher in enumerate(teachers):
        name = teacher if isinstance(teacher, str) else getattr(teacher, "digest", None)
        if not isinstance(name, str) or not name:
            expected = "a name or digest, or a voter with a digest, for each teacher"
            raise InvalidArgument("teachers", expected, f"{type(teacher).__name__} for teacher {number}")
        if name in names:
            cure = "One teacher that votes several times would be charged as several."
            raise InvalidArgument("teachers", "different ones", f"{number} and {names.index(name)} alike", cure)
        names.append(name)
    return names
