"""Whether teachers have what the price of a random allocation needs: all of one draw, public constants, no slices."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

from torch.utils.data import Subset

from ..errors import InvalidArgument, UnprovenPrivacy
from ..privacy.allocation import RandomAllocation
from ..privacy.profiles import PrivacyProfile
from .findings import Finding, refuse_unless_accepted

__all__ = ["check_constants", "check_slices", "recorded_allocation", "settled_allocation"]


def recorded_allocation(profiles: Sequence[PrivacyProfile], *, overlap: int | None = None) -> RandomAllocation | None:
    """The allocation that the teachers' files record, if these are all teachers of one draw; else ``None``.

    ``None`` also where the caller states another ``overlap``.
    """
    readings = [profile.reading for profile in profiles]
    if not readings or any(reading is None or reading.shard is None for reading in readings):
        return None
    allocation: RandomAllocation | None = readings[0].allocation
    if allocation is None or overlap not in (None, allocation.overlap):
        return None
    one_draw = len({(reading.shard[0], reading.allocation) for reading in readings}) == 1
    shards = sorted(reading.shard[1] for reading in readings)
    return allocation if one_draw and shards == list(range(allocation.teachers)) else None


def settled_allocation(
    profiles: Sequence[PrivacyProfile],
    allocation: RandomAllocation | None,
    overlap: int | None,
    neighbours: str,
) -> tuple[RandomAllocation | None, int | None]:
    """The allocation that is stated, or else recorded, and the overlap that goes with it.

    Raises:
        InvalidArgument: the stated allocation is for another number of teachers, another overlap or other neighbours.
    """
    if allocation is None and neighbours == "add/remove":
        allocation = recorded_allocation(profiles, overlap=overlap)
    elif allocation is not None:
        if allocation.teachers != len(profiles) or neighbours != "add/remove":
            expected = f"one to {len(profiles)} teachers, for neighbours that add or remove a record"
            raise InvalidArgument("allocation", expected, allocation)
        if overlap not in (None, allocation.overlap):
            raise InvalidArgument("overlap", f"{allocation.overlap}, as in the allocation", overlap)
    return allocation, allocation.overlap if allocation is not None and overlap is None else overlap


def check_constants(
    allocation: RandomAllocation | None,
    profiles: Sequence[PrivacyProfile],
    *,
    optimizers: Iterable[Any] | None = None,
    accept: Collection[Finding] = (),
) -> None:
    """Check that sample rate, steps, noise and divisor did not depend on the shards, or that the caller vouches for it.

    The loaders and optimizers of Opacus compute rate, steps and divisor from the true size of the shard, which shows
    the draws. Only files of :func:`~darrm_torch.train_teachers` prove that they were declared.

    Args:
        allocation: the stated allocation; ``None``: nothing to check.
        profiles: what was read of the teachers.
        optimizers: those that ``make_private`` returned, if they are known.
        accept: "constants" admits constants that were declared, which nothing can show.

    Raises:
        UnprovenPrivacy: the constants differ, or nobody vouches for them.
    """
    recorded = recorded_allocation(profiles)
    if allocation is None or (recorded and replace(recorded, validation=allocation.validation) == allocation):
        return
    constants = {profile.reading.history for profile in profiles if profile.reading is not None}
    divisors = {getattr(optimizer, "expected_batch_size", None) for optimizer in optimizers or ()}
    if len(constants) > 1 or len(divisors) > 1:
        raise UnprovenPrivacy(
            "the teachers have different sample rates, steps, noise or expected batch sizes, as Opacus computes them "
            "from the true size of each shard. That shows the draws, so the allocation is not secret. Train with "
            "declared constants that are equal for all teachers (train_teachers does), or leave allocation out"
        )
    refuse_unless_accepted(
        "constants",
        accept,
        "nothing shows that sample rate, steps and expected batch size were declared: Opacus computes them from the "
        "true size of each shard, which shows the draws. Train with train_teachers, or leave allocation out; "
        'accept=["constants"] if they were declared before any shard was drawn',
    )


def check_slices(data_loaders: Iterable[Any] | None, *, overlap: int, accept: Collection[Finding] = ()) -> None:
    """Check that loaders which draw from parts of one data set do not draw from equal slices of it.

    Raises:
        UnprovenPrivacy: the parts have equal sizes, so adding a record moves others, and ``overlap`` is less than all.
    """
    datasets = [loader.dataset for loader in data_loaders or () if loader is not None]
    parts = [dataset for dataset in datasets if isinstance(dataset, Subset)]
    sizes = [len(part.indices) for part in parts]
    if len(parts) < 2 or len(parts) < len(datasets) or overlap >= len(parts):
        return
    if len({id(part.dataset) for part in parts}) == 1 and max(sizes) - min(sizes) <= 1:
        refuse_unless_accepted(
            "slices",
            accept,
            "the teachers' shards are equal parts of one data set (slices, random_split, array_split). One record more "
            f'moves others, so overlap={overlap} holds for replacing a record only: pass neighbours="replace-one". '
            'accept=["slices"] if each record drew its shard by itself and the sizes are equal by chance',
        )
