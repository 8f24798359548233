"""Findings about teachers that are refused unless the caller accepts them by name."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, get_args

from ..errors import UnprovenPrivacy

__all__ = ["FINDINGS", "Finding", "Notes", "refuse_unless_accepted"]

Finding = Literal["gdp", "sampling", "buffers", "ghost", "seeds", "constants", "slices"]
FINDINGS: tuple[Finding, ...] = get_args(Finding)


def refuse_unless_accepted(finding: Finding, accept: Collection[str], reason: str) -> None:
    """Raise :class:`UnprovenPrivacy` with ``reason`` unless ``finding`` is among ``accept``."""
    if finding not in accept:
        raise UnprovenPrivacy(reason, finding=finding)


class Notes(list[str]):
    """What was not checked about a teacher, and what the caller vouches for.

    Args:
        accept: the findings that the caller accepts.
    """

    def __init__(self, accept: Collection[str]) -> None:
        super().__init__()
        self._accept = accept

    def vouched(self, finding: Finding, reason: str, note: str) -> None:
        """Add ``note`` about a finding that the caller accepts; any other finding is refused with ``reason``."""
        refuse_unless_accepted(finding, self._accept, reason)
        self.append(note)
