"""What all tests have in common."""

from __future__ import annotations

import gc

from hypothesis import settings

# The same examples in every run, however slow the machine is: a failure can be repeated, and time is no failure.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


def pytest_collection_finish() -> None:
    """Whatever the imports left stays: collections of garbage need not look at it again after every few tests."""
    gc.freeze()
