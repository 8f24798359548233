"""Every way in which votes can be cast."""

from __future__ import annotations

import itertools

import numpy as np


def all_counts(teachers: int, classes: int) -> np.ndarray:
    """All rows of counts (B, C) that sum to the number of teachers."""
    bars = itertools.combinations(range(teachers + classes - 1), classes - 1)
    return np.array([np.diff([-1, *bar, teachers + classes - 1]) - 1 for bar in bars])
