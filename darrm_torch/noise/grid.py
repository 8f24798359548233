"""Noise functions as arrays on the grid from which labels are drawn exactly."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from ..arguments import as_array
from ..arrays import FloatArray
from ..errors import InvalidArgument, check_integer

__all__ = ["GRID", "MOST_TEACHERS", "gamma_digest", "is_monotone", "label_law", "on_grid"]

MOST_TEACHERS = 100_000  # more take minutes
GRID = 2**53
"""Noise functions are multiples of 1/GRID, so that 54 random bits draw a label exactly."""


def on_grid(gamma: npt.ArrayLike, teachers: int | None = None) -> FloatArray:
    """Checks a noise function and rounds it down to multiples of 2^-53: float64 ``(K + 1,)``, read-only.

    Raises:
        InvalidArgument: not ``K + 1`` numbers in [0, 1] (K >= 1), or not ``gamma(l) == gamma(K - l)``.
    """
    expected = "K + 1 numbers"
    if teachers is not None:
        expected = f"{check_integer('teachers', teachers, low=1, high=MOST_TEACHERS) + 1} numbers"
    values = as_array("gamma", gamma, f"{expected} in [0, 1], gamma(0), .., gamma(K)").astype(np.float64)
    if values.ndim != 1 or len(values) < 2 or (teachers is not None and len(values) != teachers + 1):
        raise InvalidArgument("gamma", f"{expected}, gamma(0), .., gamma(K)", f"an array of shape {values.shape}")
    if not np.all((values >= 0) & (values <= 1)):
        raise InvalidArgument("gamma", "in [0, 1] everywhere", values)
    rounded = np.floor(values * GRID) / GRID
    if not np.array_equal(rounded, rounded[::-1]):
        raise InvalidArgument("gamma", "symmetric: gamma(l) == gamma(K - l)", values)
    rounded.setflags(write=False)
    return rounded


def gamma_digest(gamma: FloatArray) -> str:
    """Identifies a noise function on the grid: SHA-256 of its values."""
    return hashlib.sha256(gamma.astype("<f8").tobytes()).hexdigest()


def label_law(gamma: FloatArray) -> FloatArray:
    """Pr[label 1] for each number of votes for 1: (1 + sign(2 l - K) gamma(l)) / 2, ``(K + 1,)``."""
    teachers = len(gamma) - 1
    return (1.0 + np.sign(2 * np.arange(teachers + 1) - teachers) * gamma) / 2


def is_monotone(gamma: FloatArray) -> bool:
    """Whether more votes for 1 never make label 1 less likely."""
    teachers = len(gamma) - 1
    return bool(np.all(np.diff(gamma[teachers // 2 + 1 :]) >= 0))
