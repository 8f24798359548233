"""Cryptographic draws: their distributions. Each bound fails by chance less than once in a million runs."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from darrm_torch.teachers.secure import SecureRandom


def test_bits_are_uniform_and_never_repeat() -> None:
    one, other = SecureRandom(), SecureRandom()
    bits = one.bits(100_000)
    assert len(np.unique(bits)) == 100_000
    ones = int(np.unpackbits(bits.view(np.uint8)).sum())
    assert abs(ones - 3_200_000) < 5.5 * math.sqrt(1_600_000)
    assert not np.intersect1d(bits, np.concatenate([one.bits(1000), other.bits(1000)])).size


@pytest.mark.parametrize("rate", [1.0, 0.3, 1 / 35, 1e-6])
def test_samples_have_their_rate(rate: float) -> None:
    count = 1_000_000
    positions = SecureRandom().sample(count, rate)
    spread = math.sqrt(count * rate * (1 - rate))
    assert abs(len(positions) - count * rate) <= 5.5 * spread + 10 * (rate < 1e-3)
    assert positions.dtype == torch.int64
    assert torch.equal(positions, positions.unique())


def test_noise_has_its_deviation_and_is_gaussian() -> None:
    count, std = 1_000_000, 3.0
    noise = SecureRandom().normal(torch.zeros(1000, 1000), std).double() / std
    assert noise.shape == (1000, 1000)
    assert abs(float(noise.mean())) < 5.5 / math.sqrt(count)
    assert abs(float(noise.var()) - 1) < 5.5 * math.sqrt(2 / count)
    assert abs(float((noise**4).mean()) - 3) < 5.5 * math.sqrt(96 / count)
    for wrong in (0.98, 1.02):  # a deviation two percent off is caught
        assert abs(float((wrong * noise).var()) - 1) > 5.5 * math.sqrt(2 / count)
    below = float((noise < 1).double().mean())
    assert abs(below - 0.841345) < 5.5 * math.sqrt(0.1335 / count)


def test_noise_keeps_type_and_shape() -> None:
    noise = SecureRandom().normal(torch.zeros(2, 3, 4, dtype=torch.float64), 1.0)
    assert (noise.dtype, noise.shape) == (torch.float64, (2, 3, 4))
