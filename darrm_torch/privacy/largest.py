"""The largest cost of many unlike profiles, of which most cannot be the largest and are never computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

__all__ = ["largest_cost"]

_Profile = TypeVar("_Profile")
_FEW = 8  # up to which each is computed


def largest_cost(
    profiles: Sequence[_Profile],
    cost: Callable[[_Profile], float],
    weakest: Callable[[tuple[_Profile, ...]], _Profile],
) -> float:
    """The largest ``cost`` of any of ``profiles``; the same number as if each were computed.

    Args:
        profiles: one or more. Neighbours should be alike, so that few are computed.
        cost: takes a tenth of a second.
        weakest: of several: a profile that costs at least as much as each of them. Where it costs no more than the
            largest so far, all of these are skipped; otherwise they are split.

    >>> computed = []
    >>> largest_cost(range(1000), lambda n: computed.append(n) or float(n), max), len(computed)
    (999.0, 21)
    """
    if len(profiles) <= _FEW:
        return max(map(cost, profiles))
    largest, groups = 0.0, [(cost(weakest(tuple(profiles))), tuple(profiles))]
    while groups:
        most, group = groups.pop()
        if len(group) == 1:
            largest = max(largest, most)
        elif most > largest:
            halves = (group[: len(group) // 2], group[len(group) // 2 :])
            bounds = [cost(half[0] if len(half) == 1 else weakest(half)) for half in halves]
            groups += sorted(zip(bounds, halves, strict=True), key=lambda pair: pair[0])
    return largest
