"""What all tests have in common."""

from __future__ import annotations

import gc
import sys

import pytest
from hypothesis import settings

# The same examples in every run, however slow the machine is: a failure can be repeated, and time is no failure.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


# Containers often forbid compiled files. Without those of the package and of the tests, every process of every run
# compiles them again. What tests themselves write and import is not kept: it may change within a second.
sys.dont_write_bytecode = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes a minute starts first: at the end, one worker would wait for the other."""
    items.sort(key=lambda item: item.get_closest_marker("first") is None)


def pytest_collection_finish() -> None:
    """Whatever the imports left stays: collections of garbage need not look at it again after every few tests."""
    gc.freeze()
    sys.dont_write_bytecode = True
