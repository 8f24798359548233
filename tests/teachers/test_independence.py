"""Several teachers: accountants, weights and noise of their own."""

from __future__ import annotations

import copy

import pytest
import torch

from darrm_torch import UnprovenPrivacy, check_independent, read_teachers
from tests.teachers.helpers import Net, Teacher, noisy

pytestmark = [
    pytest.mark.filterwarnings("ignore:Secure RNG turned off"),
    pytest.mark.filterwarnings("ignore:Full backward hook is firing"),
]


def test_one_object_as_two_teachers_is_refused():
    teacher = Teacher()
    for pair in ([teacher.module] * 2, [teacher.module, teacher.net], [teacher.net] * 2):
        with pytest.raises(UnprovenPrivacy, match="same object"):
            check_independent(modules=pair)


def test_teachers_that_share_their_seed_are_refused():
    one, same, other = noisy(0, 1), noisy(0, 2), noisy(3, 2)
    with pytest.raises(UnprovenPrivacy, match=r"teachers 0 and 1 have weights that correlate by 0\.99"):
        check_independent(modules=[one.module, same.module, other.module])
    check_independent(modules=[one.module, other.module])
    check_independent(modules=[one.module, same.module], accept=["seeds"])
    with pytest.raises(UnprovenPrivacy, match=r"correlate by 1\.0000"):
        check_independent(modules=[one.net, copy.deepcopy(one.net)], accept=["seeds"])


def test_noise_generators_of_one_seed_are_refused():
    """Where the teachers began with different weights, or saw different data, their weights do not tell."""
    teachers = [Teacher(seed=n, noise_generator=torch.Generator().manual_seed(5)) for n in range(2)]
    engines, modules, optimizers = zip(*((one.engine, one.module, one.optimizer) for one in teachers), strict=True)
    read_teachers(engines, modules=modules)
    with pytest.raises(UnprovenPrivacy, match="teachers 0 and 1 began with the same seed"):
        read_teachers(engines, modules=modules, optimizers=optimizers)
    read_teachers(engines, modules=modules, optimizers=optimizers, accept=["seeds"])
    going_on = torch.Generator().manual_seed(5)
    check_independent(optimizers=[Teacher(seed=n, noise_generator=going_on).optimizer for n in range(2)])
    check_independent(optimizers=[teachers[0].optimizer, Teacher().optimizer])


def test_a_common_start_is_taken_off():
    start = Net()
    with torch.no_grad():
        for parameter in start.parameters():
            parameter *= 100
    one, other = (Teacher(seed=seed, net=copy.deepcopy(start), noise_multiplier=5.0) for seed in (1, 2))
    with pytest.raises(UnprovenPrivacy, match="started alike"):
        check_independent(modules=[one.net, other.net])
    check_independent(modules=[one.net, other.net], initial=start)
