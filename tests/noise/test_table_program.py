"""Linear programs for tables: nothing that is as private reports the true class more often."""

from __future__ import annotations

import math

import numpy as np
import pytest

from darrm_torch import PluralityVotes
from darrm_torch.noise.histograms import standings
from darrm_torch.noise.plurality_priors import standing_weights
from darrm_torch.noise.regions import growth_at_least
from darrm_torch.noise.table_program import self_bounding_table, vote_private_table
from darrm_torch.noise.tables import VoteTable, noise_free_table

PRIORS = [(PluralityVotes(accuracy=accuracy),) for accuracy in (0.4, 0.7, 0.95)]


def accuracy_of(table: VoteTable, prior: tuple[PluralityVotes, ...]) -> float:
    return float(standing_weights(table.space, prior) @ table.chances)


@pytest.mark.parametrize(("teachers", "classes"), [(3, 3), (5, 3), (4, 4)])
def test_each_prior_has_its_own_best_table(teachers: int, classes: int) -> None:
    space = standings(teachers, classes)
    for build in (
        lambda prior: self_bounding_table(space, allowance=1.3, prior=prior),
        lambda prior: vote_private_table(space, epsilon=0.8, prior=prior),
    ):
        tables = [build(prior) for prior in PRIORS]
        for table, prior in zip(tables, PRIORS, strict=True):
            assert accuracy_of(table, prior) >= max(accuracy_of(other, prior) for other in tables) - 1e-9


@pytest.mark.parametrize("overlap", [None, 1, 3])
def test_more_allowance_never_hurts_and_enough_needs_no_noise(overlap: int | None) -> None:
    space = standings(5, 3)
    enough = float(noise_free_table(space).smallest_allowance(overlap or 5))
    allowances = [0.2, 0.9, 1.5, enough]
    tables = [self_bounding_table(space, allowance=m, overlap=overlap, prior=PRIORS[1]) for m in allowances]
    accuracies = [accuracy_of(table, PRIORS[1]) for table in tables]
    assert accuracies == sorted(accuracies)
    assert np.array_equal(tables[-1].shares, noise_free_table(space).shares)
    for table, m in zip(tables, allowances, strict=True):
        assert table.smallest_allowance(overlap or 5) <= m


def test_a_smaller_overlap_needs_less_noise() -> None:
    space = standings(5, 3)
    one, all_of_them = (self_bounding_table(space, allowance=0.9, overlap=r, prior=PRIORS[1]) for r in (1, 5))
    assert accuracy_of(one, PRIORS[1]) > accuracy_of(all_of_them, PRIORS[1])


@pytest.mark.parametrize("epsilon", [1e-6, 0.3, 2.0, 500.0])
def test_one_changed_vote_changes_no_probability_by_more_than_epsilon_allows(epsilon: float) -> None:
    """In exact arithmetic; and between 0.3 and 2 some probability uses what is allowed."""
    table = vote_private_table(standings(5, 3), epsilon=epsilon, prior=PRIORS[1])
    growth = growth_at_least(epsilon)
    assert table.lacking_growth(growth) <= 0
    if 0.1 < epsilon < 10:
        assert table.lacking_growth(growth_at_least(0.99 * epsilon)) > 0
    np.testing.assert_allclose(np.bincount(table.space.histogram, table.shares), 2.0**53, rtol=0, atol=0)


def test_one_vote_is_randomized_response() -> None:
    for classes in (2, 3, 10):
        chances = vote_private_table(standings(1, classes), epsilon=1.0).chances
        right = math.e / (math.e + classes - 1)
        np.testing.assert_allclose(chances, [right, (1 - right) / (classes - 1)], rtol=1e-9)
