"""Fixtures of the tests about labels."""

from __future__ import annotations

import pytest
from opacus import PrivacyEngine
from torch import nn

from tests.labels.helpers import train_with_opacus


@pytest.fixture(scope="session")
def trained() -> list[tuple[nn.Module, nn.Module, PrivacyEngine]]:
    """Three teachers, trained once."""
    return [train_with_opacus(seed) for seed in range(3)]
