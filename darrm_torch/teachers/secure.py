"""Cryptographic randomness for training: AES-256 in counter mode, keyed by the operating system."""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["SECURE", "SecureRandom"]

SECURE = "AES-256 in counter mode, keyed by the operating system"


class SecureRandom:
    """Bits that nobody can predict from other bits, and draws made of them.

    Torch's generators hold 64 bits of seed and were not built to resist prediction. This one has a 256-bit key.

    Raises:
        ImportError: the package ``cryptography`` is not installed.
    """

    def __init__(self) -> None:
        try:
            from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
        except ImportError as error:
            raise ImportError("secure=True needs cryptography: pip install 'darrm-torch[secure]'") from error
        cipher = Cipher(algorithms.AES(secrets.token_bytes(32)), modes.CTR(secrets.token_bytes(16)))
        self._stream: Any = cipher.encryptor()

    def bits(self, count: int) -> NDArray[np.uint64]:
        """``count`` uniform 64-bit integers."""
        return np.frombuffer(self._stream.update(bytes(8 * count)), dtype=np.uint64)

    def sample(self, count: int, rate: float) -> Tensor:
        """Positions in ``range(count)``, each drawn with probability at most ``rate`` (exact to 2**-64)."""
        if rate >= 1.0:
            return torch.arange(count)
        return torch.from_numpy(np.flatnonzero(self.bits(count) < np.uint64(int(rate * 2**64))))

    def normal(self, reference: Tensor, std: float) -> Tensor:
        """Gaussian noise like ``reference``: half the sum of four Gaussian draws of 53 bits.

        The sum hides the grid of floating-point numbers on which single draws lie, as in Opacus' secure mode
        (arXiv:2107.10138, section 5.1).
        """
        count = reference.numel()
        uniform = (self.bits(4 * count) >> np.uint64(11)) * 2.0**-53
        radius = np.sqrt(-2.0 * np.log1p(-uniform[: 2 * count]))
        angle = 2.0 * np.pi * uniform[2 * count :]
        sums = (radius * np.cos(angle) + radius * np.sin(angle)).reshape(2, count).sum(axis=0)
        return torch.from_numpy(std / 2.0 * sums).to(reference).view_as(reference)
