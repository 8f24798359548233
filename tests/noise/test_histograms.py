"""Histograms of votes, against the number of partitions."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from darrm_torch.noise.histograms import standings, votes_within


@pytest.mark.parametrize(("votes", "classes"), [(6, 3), (5, 5), pytest.param(11, 10, marks=pytest.mark.slow)])
def test_there_are_as_many_histograms_as_partitions(votes: int, classes: int) -> None:
    rows = {
        tuple(sorted(np.diff([-1, *bars, votes + classes - 1]) - 1))
        for bars in itertools.combinations(range(votes + classes - 1), classes - 1)
    }
    assert standings(votes, classes).histograms == len(rows)
    assert votes_within(len(rows), votes=votes, classes=classes) == votes
    assert votes_within(len(rows) - 1, votes=votes, classes=classes) == votes - 1
