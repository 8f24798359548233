"""Who vouches for public constants, and which loaders draw from equal slices."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import Subset, TensorDataset, random_split

from darrm_torch import PrivacyProfile, RandomAllocation, UnprovenPrivacy
from darrm_torch.teachers.allocations import check_constants, check_slices, recorded_allocation, settled_allocation

ALLOCATION = RandomAllocation(teachers=3, source="made by the library")
RUN = ((1.0, 0.1, 10),)


def profile(number=0, *, history=RUN, draw="a", allocation=ALLOCATION):
    reading = SimpleNamespace(history=history, allocation=allocation, shard=(draw, number))
    return PrivacyProfile(dp_sgd=history, reading=reading)


def test_all_teachers_of_one_draw_have_its_allocation():
    teachers = [profile(number) for number in range(3)]
    assert recorded_allocation(teachers) == recorded_allocation(teachers[::-1]) == ALLOCATION
    assert recorded_allocation(teachers, overlap=1) == ALLOCATION
    assert settled_allocation(teachers, None, None, "add/remove") == (ALLOCATION, 1)


@pytest.mark.parametrize(
    "teachers",
    [
        [],
        [profile(0), profile(1)],  # some of them, perhaps chosen by their accuracy
        [profile(0), profile(1), profile(1)],
        [profile(0), profile(1), profile(2, draw="b")],  # a second draw: a record may be in the data of two
        [profile(0), profile(1), profile(2, allocation=None)],
        [profile(0), profile(1), PrivacyProfile(dp_sgd=RUN)],
    ],
)
def test_other_teachers_have_none(teachers):
    assert recorded_allocation(teachers) is None


def test_another_overlap_or_other_neighbours_have_none():
    teachers = [profile(number) for number in range(3)]
    assert settled_allocation(teachers, None, 3, "add/remove") == (None, 3)
    assert settled_allocation(teachers, None, None, "replace-one") == (None, None)
    stated = RandomAllocation(teachers=3, overlap=2)
    assert settled_allocation(teachers, stated, None, "add/remove") == (stated, 2)


def test_rates_and_steps_from_the_shard_are_refused():
    stated = RandomAllocation(teachers=2)
    unlike = [
        PrivacyProfile(dp_sgd=run, reading=SimpleNamespace(history=run, shard=None)) for run in (RUN, ((1.0, 0.2, 5),))
    ]
    with pytest.raises(UnprovenPrivacy, match="as Opacus computes them from the true size of each shard"):
        check_constants(stated, unlike, accept=["constants"])
    alike = [unlike[0]] * 2
    optimizers = [SimpleNamespace(expected_batch_size=size) for size in (10, 11)]
    with pytest.raises(UnprovenPrivacy, match="expected batch sizes"):
        check_constants(stated, alike, optimizers=optimizers, accept=["constants"])
    with pytest.raises(UnprovenPrivacy, match="nothing shows that sample rate") as caught:
        check_constants(stated, alike, optimizers=optimizers[:1] * 2)
    assert caught.value.finding == "constants"
    check_constants(stated, alike, optimizers=optimizers[:1] * 2, accept=["constants"])


def test_recorded_constants_need_nobody_to_vouch_for_them():
    check_constants(ALLOCATION, [profile(number) for number in range(3)])
    check_constants(None, [profile(0), profile(1, history=((1.0, 0.2, 5),))])
    with pytest.raises(UnprovenPrivacy, match="nothing shows"):
        check_constants(RandomAllocation(teachers=3), [profile(number) for number in range(3)])


def loaders(parts):
    return [SimpleNamespace(dataset=part) for part in parts]


def test_equal_parts_of_one_data_set_are_slices():
    data = TensorDataset(torch.arange(31))
    for parts in (
        random_split(data, [10, 10, 11], generator=torch.Generator().manual_seed(0)),
        [Subset(data, range(start, 31, 3)) for start in range(3)],
    ):
        with pytest.raises(UnprovenPrivacy, match='replacing a record only: pass neighbours="replace-one"') as caught:
            check_slices(loaders(parts), overlap=1)
        assert caught.value.finding == "slices"
        check_slices(loaders(parts), overlap=1, accept=["slices"])
        check_slices(loaders(parts), overlap=3)  # nothing is claimed


def test_other_parts_are_not():
    data, other = TensorDataset(torch.arange(31)), TensorDataset(torch.arange(31))
    check_slices(loaders([Subset(data, range(8)), Subset(data, range(8, 31))]), overlap=1)
    check_slices(loaders([Subset(data, range(15)), Subset(other, range(15))]), overlap=1)
    check_slices(loaders([data, Subset(data, range(15))]), overlap=1)
    check_slices(None, overlap=1)
