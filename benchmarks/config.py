"""The one configuration: what is measured at which size, and how far a ratio may fall before it is a regression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# name of the module: arguments of its measure()
FULL: dict[str, dict[str, Any]] = {
    "imports": {"repeat": 5},
    "solver": {"sizes": (11, 41, 101, 301, 1001), "repeat": 3, "enumerated": (5, 7, 9, 11)},
    "oracle": {"sizes": (11, 41, 101, 301, 1001), "repeat": 5},
    "certificate": {"sizes": (11, 41, 101, 301, 1001), "repeat": 3},
    "ledger": {"labels": 100_000, "batch": 1000, "processes": 2},
    "teachers": {"teachers": 11, "shard": 1090, "repeat": 3},
}
SMALL: dict[str, dict[str, Any]] = {
    "imports": {"repeat": 3},
    "solver": {"sizes": (11, 41, 101), "repeat": 3, "enumerated": (9,)},
    "oracle": {"sizes": (11, 41, 101), "repeat": 3},
    "certificate": {"sizes": (11, 41, 101), "repeat": 3},
    "ledger": {"labels": 5000, "batch": 1000, "processes": 2},
}


@dataclass(frozen=True, kw_only=True)
class Bound:
    """How small or large one ratio of one case may be; a bound on a case that was not measured says nothing."""

    benchmark: str
    case: str
    ratio: str
    at_least: float = float("-inf")
    at_most: float = float("inf")


BOUNDS: tuple[Bound, ...] = ()
