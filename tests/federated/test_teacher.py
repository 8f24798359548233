"""A network votes at a site as it does in an ensemble."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from opacus import GradSampleModule
from torch import nn

import darrm_torch as dt
from darrm_torch.federated import LocalTeacher
from darrm_torch.teachers.checkpoints import weights_digest
from tests.labels.helpers import Says


def test_votes_are_those_of_the_network() -> None:
    torch.manual_seed(0)
    wrapped = GradSampleModule(nn.Linear(4, 2))
    teacher = LocalTeacher(wrapped)
    inputs = torch.rand(50, 4)
    np.testing.assert_array_equal(teacher.vote(inputs.numpy()), wrapped(inputs).argmax(dim=1))
    np.testing.assert_array_equal(teacher.vote(inputs.double().numpy()), teacher.vote(inputs))
    assert teacher.digest == weights_digest(wrapped)


def test_nan_is_a_vote_for_the_first_class() -> None:
    teacher = LocalTeacher(Says(float("nan")))
    assert teacher.vote(np.ones((2, 1), dtype=np.float32)).tolist() == [0, 0]


def test_the_teacher_is_a_copy() -> None:
    model = Says(0.5)
    teacher = LocalTeacher(model)
    with torch.no_grad():
        model.threshold.fill_(9.0)
    assert teacher.vote(np.ones((1, 1), dtype=np.float32)).tolist() == [1]


def test_arrays_of_text_are_refused_and_structures_are_inputs() -> None:
    teacher = LocalTeacher(Says(0.5))
    with pytest.raises(dt.InvalidArgument, match=r"^inputs must be an array \(B, ...\) of finite numbers"):
        teacher.vote(np.array([["a"]]))
    assert teacher.vote((torch.ones(2, 1),)).tolist() == [1, 1]


def test_inputs_that_fit_no_network_are_refused() -> None:
    with pytest.raises(dt.InvalidArgument, match="inputs must be what teacher 0 takes"):
        LocalTeacher(nn.Linear(4, 2)).vote(np.zeros((2, 3), dtype=np.float32))
