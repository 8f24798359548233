"""Shards that depend on nothing but the record."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from darrm_torch import InvalidArgument, assign_shards, contiguous_shards

records = st.lists(st.binary(min_size=1, max_size=4), min_size=1, max_size=30, unique=True)


@given(records=records, teachers=st.integers(1, 6), data=st.data(), key=st.binary(min_size=1, max_size=8))
@settings(deadline=None, derandomize=True)
def test_removing_a_record_touches_its_shards_only(
    records: list[bytes], teachers: int, data: st.DataObject, key: bytes
) -> None:
    overlap = data.draw(st.integers(1, teachers))
    gone = data.draw(st.integers(0, len(records) - 1))
    before = assign_shards(records, teachers=teachers, overlap=overlap, key=key)
    rest = records[:gone] + records[gone + 1 :]
    after = assign_shards(rest, teachers=teachers, overlap=overlap, key=key)
    members = [{records[i] for i in shard} for shard in before]
    assert all(sum(record in shard for shard in members) == overlap for record in records)
    changed = [m != {rest[i] for i in shard} for m, shard in zip(members, after, strict=True)]
    assert sum(changed) == overlap
    assert changed == [records[gone] in shard for shard in members]


def test_contiguous_slices_lack_that_property() -> None:
    records = [bytes([i]) for i in range(30)]
    before = [{records[i] for i in shard} for shard in contiguous_shards(30, teachers=5)]
    after = [{records[1:][i] for i in shard} for shard in contiguous_shards(29, teachers=5)]
    assert sum(a != b for a, b in zip(before, after, strict=True)) > 1


def test_shards_are_even() -> None:
    # Chi-square with 10 degrees of freedom; a fair assignment fails once in 10,000 keys. This key is fixed.
    shards = assign_shards([i.to_bytes(4, "big") for i in range(11_000)], teachers=11, overlap=1, key=b"even")
    statistic = sum((len(shard) - 1000) ** 2 / 1000 for shard in shards)
    assert statistic < 35.6


def test_another_key_gives_other_shards() -> None:
    records = [bytes([i]) for i in range(50)]
    one, other = (assign_shards(records, teachers=3, key=key) for key in (b"1", b"2"))
    assert any(not np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(("teachers", "overlap"), [(0, 1), (3, 4), (3, 0)])
def test_wrong_shards(teachers: int, overlap: int) -> None:
    with pytest.raises(InvalidArgument):
        assign_shards([b"a"], teachers=teachers, overlap=overlap, key=b"k")
