"""Types of NumPy arrays."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["BoolArray", "FloatArray", "IntArray", "NumberArray", "WordArray"]

BoolArray: TypeAlias = npt.NDArray[np.bool_]
FloatArray: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.int64]
NumberArray: TypeAlias = npt.NDArray[np.int64] | npt.NDArray[np.float32]
WordArray: TypeAlias = npt.NDArray[np.uint64]
