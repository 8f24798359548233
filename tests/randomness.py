"""The randomness of a test is the same in every run: what passes once passes always, and a failure can be repeated.

The package draws from the operating system (``os.urandom``, ``secrets``) and from Torch's generator. In the process of
the tests both start anew for each fixture and each test, from its name: no outcome depends on the order of the tests,
on the worker that runs them, or on luck. Processes that tests start have the operating system's randomness, and so has
everything with ``pytest --fresh-randomness``; what is checked about random draws therefore states how often it fails
by chance.
"""

from __future__ import annotations

import os
import random
import sys
import zlib

_SYSTEM = os.urandom


class Repeatable:
    """Stands in for ``os.urandom`` in this process; a forked child has the operating system's randomness."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._bytes = random.Random(0)

    def __call__(self, size: int, /) -> bytes:
        return self._bytes.randbytes(size) if os.getpid() == self._process else _SYSTEM(size)

    def install(self) -> None:
        """Until the process ends. The module ``secrets`` draws through ``random``."""
        os.urandom = self
        random._urandom = self  # type: ignore[attr-defined]

    def restart(self, name: str) -> None:
        """Start all generators of the process anew."""
        seed = zlib.crc32(name.encode())
        self._bytes.seed(seed)
        random.seed(seed)
        if (numpy := sys.modules.get("numpy")) is not None:
            numpy.random.seed(seed)
        if (torch := sys.modules.get("torch")) is not None and hasattr(torch, "manual_seed"):
            torch.manual_seed(seed)
