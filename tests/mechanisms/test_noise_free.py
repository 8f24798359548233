"""The noise-free plurality and its self-bounding allowance."""

from __future__ import annotations

import math

import pytest

from darrm_torch import (
    NoiseFreeMajority,
)
from darrm_torch.noise.histograms import standings
from darrm_torch.noise.tables import noise_free_table
from tests.mechanisms.enumeration import all_counts


@pytest.mark.parametrize("classes", [2, 3, 4])
def test_allowance_of_the_plain_plurality(classes: int) -> None:
    """The definition, term by term: sum over r teachers of (f - min f) <= m f, for all votes."""
    for teachers in (1, 2, 3, 4, 5, 6):
        counts = all_counts(teachers, classes)
        law = {
            tuple(c): p for c, p in zip(counts.tolist(), NoiseFreeMajority().label_probabilities(counts), strict=True)
        }
        for overlap in range(1, teachers + 1):
            claimed = NoiseFreeMajority(classes=classes).self_bounding_allowance(teachers=teachers, overlap=overlap)
            assert claimed <= NoiseFreeMajority().self_bounding_allowance(teachers=teachers, overlap=overlap)
            needed = max(_needed(law, votes, c, overlap) for votes in law for c in range(classes) if law[votes][c] > 0)
            assert math.isclose(needed, claimed)


@pytest.mark.parametrize(("classes", "most"), [(3, 22), (4, 14), (5, 12), (7, 10)])
def test_allowance_of_the_plain_plurality_is_that_of_its_table(classes: int, most: int) -> None:
    """In exact arithmetic, over all standings: also where K votes cannot make three classes tie."""
    for teachers in range(1, most + 1):
        table, free = noise_free_table(standings(teachers, classes)), NoiseFreeMajority(classes=classes)
        for overlap in range(1, teachers + 1):
            claimed = free.self_bounding_allowance(teachers=teachers, overlap=overlap)
            assert claimed == table.smallest_allowance(overlap)


def _needed(law, votes: tuple[int, ...], label: int, overlap: int) -> float:
    falls = []
    for k, number in enumerate(votes):
        least = law[votes][label]
        for w in range(len(votes)):
            if number and w != k:
                moved = list(votes)
                moved[k] -= 1
                moved[w] += 1
                least = min(least, law[tuple(moved)][label])
        falls += [law[votes][label] - least] * number
    return sum(sorted(falls, reverse=True)[:overlap]) / law[votes][label]
