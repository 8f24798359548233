"""Priors on the votes over more than two classes are probability laws."""

from __future__ import annotations

import pytest

from darrm_torch import (
    PluralityVotes,
)
from darrm_torch.noise.histograms import standings


def test_priors_are_laws() -> None:
    space = standings(7, 4)
    for prior in (PluralityVotes(accuracy=0.6), PluralityVotes(accuracy=0.6, concentration=2.0)):
        weights = prior.weights(space)
        assert weights.sum() == pytest.approx(1.0, abs=1e-12)
        assert weights @ space.own == pytest.approx(7 * 0.6, abs=1e-12)
