"""Voters: what a labeler knows of its teachers, which may be anywhere."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol, runtime_checkable

from ..errors import InvalidArgument

__all__ = ["Voter", "distinct_names"]


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
