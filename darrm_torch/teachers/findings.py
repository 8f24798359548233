"""Findings about teachers that are refused unless the caller accepts them by name."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, get_args

from ..errors import UnprovenPrivacy

__all__ = ["FINDINGS", "Finding", "refuse_unless_accepted"]

Finding = Literal["gdp", "sampling", "buffers", "ghost", "seeds", "constants", "slices"]
FINDINGS: tuple[Finding, ...] = get_args(Finding)


def refuse_unless_accepted(finding: Finding, accept: Collection[str], reason: str) -> None:
    """Raise :class:`UnprovenPrivacy` with ``reason`` unless ``finding`` is among ``accept``."""
    if finding not in accept:
        raise UnprovenPrivacy(reason, finding=finding)
