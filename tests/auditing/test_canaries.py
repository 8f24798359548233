"""Canaries of each strength, and scores from whatever a pipeline may release."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from darrm_torch import InvalidArgument
from darrm_torch.auditing.canaries import Canaries, make_canaries, scores_of

GENERATOR = np.random.default_rng(3)
LABELS = np.arange(60) % 3
INPUTS = np.concatenate([GENERATOR.standard_normal((60, 8)), np.zeros((60, 24))], axis=1)


def made(strength: Any, count: Any = None, inputs: Any = INPUTS) -> Canaries:
    return make_canaries(strength, inputs, LABELS, count, np.random.default_rng(1))


def test_each_strength() -> None:
    quiet = made("gradient")
    assert len(quiet.labels) == 24  # one for each direction that the private records do not use
    gram = quiet.inputs @ quiet.inputs.T
    assert np.allclose(gram, np.diag(np.diag(gram)), atol=1e-9 * gram.max())
    assert np.abs(INPUTS @ quiet.inputs.T).max() < 1e-9  # the private records use eight dimensions
    assert np.linalg.norm(quiet.inputs, axis=1).min() > 5 * np.linalg.norm(INPUTS, axis=1).mean()
    assert len(made("gradient", None, INPUTS[:, :8]).labels) == 8  # they use all of them
    far = made("far-out", 40)
    assert far.inputs.shape == (40, 32)
    wrong = made("mislabelled", 200)
    rows = [np.flatnonzero((record == INPUTS).all(axis=1))[0] for record in wrong.inputs]
    assert (LABELS[rows] != wrong.labels).all()
    assert set(wrong.labels) == set(quiet.labels) == {0, 1, 2}


def test_more_canaries_than_dimensions_and_images() -> None:
    assert made("gradient", 70).inputs.shape == (70, 32)
    images = INPUTS.reshape(60, 2, 4, 4).astype(np.float32)
    canaries = made("gradient", 10, images)
    assert canaries.inputs.shape == (10, 2, 4, 4)
    assert canaries.inputs.dtype == np.float32
    assert np.isfinite(made("gradient", 9, np.where(INPUTS > 2, np.nan, INPUTS)).inputs).all()
    wide = np.zeros((60, 1500), dtype=np.float32)
    assert made("gradient", 3, wide).inputs.shape == (3, 1500)


def test_own_canaries() -> None:
    own = made("gradient", (INPUTS[:5], [0, 1, 2, 0, 1]))
    assert (own.inputs == INPUTS[:5]).all()
    for wrong in ((INPUTS[:5, :3], [0] * 5), (INPUTS[:5], [0] * 4), (INPUTS[:5], [7] * 5), (INPUTS[:0], []), "ab"):
        with pytest.raises(InvalidArgument, match="canaries"):
            made("gradient", wrong)


def test_numbers_without_directions_can_only_be_mislabelled() -> None:
    tokens = np.arange(240).reshape(60, 4)
    assert made("mislabelled", 7, tokens).inputs.dtype == tokens.dtype
    with pytest.raises(InvalidArgument, match='strength must be "mislabelled"'):
        made("gradient", 7, tokens)
    with pytest.raises(InvalidArgument, match="labels must be of two or more classes"):
        make_canaries("mislabelled", INPUTS, 0 * LABELS, 3, GENERATOR)


CANARIES = Canaries(inputs=np.eye(4), labels=np.array([0, 1, 0, 1]), classes=2)


def scored(release: Any, queries: Any = CANARIES.inputs) -> Any:
    return scores_of(release, CANARIES, queries)


def test_scores_are_margins_of_the_canarys_label() -> None:
    logits = np.array([[3.0, 1.0], [0.0, 4.0], [1.0, 2.0], [2.0, 0.0]])
    assert scored(logits).tolist() == [[2, 4, -1, -2]]
    assert scored(np.array([0, 1, 1, 1])).tolist() == [[1, 1, 0, 1]]
    assert scored(np.array([0.5, 0.5, -1.0, -1.0])).tolist() == [[-0.5, 0.5, 1.0, -1.0]]
    assert scored(torch.tensor(logits)).tolist() == scored(lambda queries: logits).tolist() == [[2, 4, -1, -2]]


def test_of_several_models_the_mean_and_the_one_that_stands_out() -> None:
    one, other = np.array([1.0, 1.0, 1.0, 5.0]), np.array([1.0, 1.0, 1.0, 1.0])
    mean, largest, *alone = scored([lambda queries: one, lambda queries: other])
    assert [row.tolist() for row in alone] == [[-1, 1, -1, 5], [-1, 1, -1, 1]]
    assert len(scored([lambda queries: one] * 5)) == 2
    assert mean.tolist() == [-1, 1, -1, 3]
    assert largest.tolist() == [0, 0, 0, 2]


def test_a_network_is_evaluated_without_gradients_and_left_as_it_was() -> None:
    network = nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.5)).train()
    queries = torch.eye(4)
    first, second = (scored(network, queries) for _ in range(2))
    assert (first == second).all()
    assert network.training
    assert network[0].weight.grad is None


def test_labels_of_other_queries_are_learnt_first() -> None:
    generator = np.random.default_rng(5)
    queries = generator.standard_normal((400, 4))
    labels = (queries[:, 0] > 0).astype(np.int64)
    scores = scores_of((queries, labels), CANARIES, None)[0]
    assert scores[0] < -0.3  # far on the side of class 1, and labelled 0
    assert np.abs(scores[1:]).max() < 0.3


@pytest.mark.parametrize(
    "release",
    [None, "labels", np.zeros(3), np.zeros((4, 1, 2)), [], (np.eye(4),), (np.eye(4), np.zeros(3)), {"labels": 1}],
    ids=str,
)
def test_other_releases_are_refused(release: Any) -> None:
    with pytest.raises(InvalidArgument, match="pipeline must be"):
        scored(release)
