"""What all tests have in common."""

from __future__ import annotations

import gc
import sys

import pytest
from hypothesis import HealthCheck, settings

from tests.randomness import Repeatable

# The same examples in every run, however slow the machine is: a failure can be repeated, and time is no failure.
settings.register_profile("repeatable", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
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


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that gives tests the operating system's randomness."""
    parser.addoption("--fresh-randomness", action="store_true", help="draw anew in each run (see tests/randomness.py)")


def pytest_configure(config: pytest.Config) -> None:
    """Give all tests of this process, doctests too, randomness that can be repeated."""
    if not config.getoption("--fresh-randomness"):
        config.pluginmanager.register(Repeatable())
