"""The grid of noise functions."""

from __future__ import annotations

import numpy as np

from darrm_torch.noise.grid import GRID, on_grid


def test_the_grid() -> None:
    gamma = on_grid([1.0, 1 / 3, 1 / 3, 1.0])
    assert np.all(gamma * GRID == np.floor(gamma * GRID))
    assert 0 <= 1 / 3 - gamma[1] < 1 / GRID
    assert not gamma.flags.writeable
