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
from collections.abc import Generator
from typing import Any

import pytest

_SYSTEM = os.urandom


class Repeatable:
    """A plugin of pytest that stands in for ``os.urandom``; a forked child has the operating system's randomness."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._bytes = random.Random(0)
        os.urandom = self
        random._urandom = self  # type: ignore[attr-defined]  # through which ``secrets`` draws

    def __call__(self, size: int, /) -> bytes:
        return self._bytes.randbytes(size) if os.getpid() == self._process else _SYSTEM(size)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Generator[None, Any, Any]:
        """A fixture that several tests share draws the same whichever of them comes first."""
        self._restart(f"{request.node.nodeid} {fixturedef.argname} {request.param_index}")
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """A test draws the same whatever its fixtures drew."""
        self._restart(item.nodeid)
        return (yield)

    def _restart(self, name: str) -> None:
        """Start all generators of the process anew."""
        seed = zlib.crc32(name.encode())
        self._bytes.seed(seed)
        random.seed(seed)
        if (numpy := sys.modules.get("numpy")) is not None:
            numpy.random.seed(seed)
        if (torch := sys.modules.get("torch")) is not None and hasattr(torch, "default_generator"):
            torch.default_generator.manual_seed(seed)  # that of the CPU alone, which takes no time
