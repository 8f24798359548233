"""Which records each teacher is trained on."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..arguments import as_array, checked
from ..errors import InvalidArgument, check_integer

__all__ = ["assign_shards", "check_shards", "contiguous_shards"]


@checked
def assign_shards(records: Sequence[bytes], *, teachers: int, overlap: int = 1, key: bytes) -> list[NDArray[np.int64]]:
    """Shards that hold every record exactly ``overlap`` times, decided by a keyed hash of the record alone.

    Each record ranks the teachers by a keyed hash of (record, teacher) and enters the shards of the first ``overlap``.
    Adding or removing a record therefore changes ``overlap`` shards and leaves the others as they are.

    Args:
        records: what identifies each record, for example a digest of its content.
        teachers: K.
        overlap: r, in ``[1, K]``.
        key: at most 64 bytes; keep it with the private data, because it reveals which shards a known record is in.

    Returns:
        K sorted arrays of positions in ``records``.

    Raises:
        InvalidArgument: ``teachers < 1`` or ``overlap`` outside ``[1, teachers]``.

    >>> shards = assign_shards([b"a", b"b", b"c"], teachers=4, overlap=2, key=b"k")
    >>> sum(len(shard) for shard in shards)
    6
    """
    check_integer("teachers", teachers, low=1, high=10**6)
    check_integer("overlap", overlap, low=1, high=teachers, cure="A record can be in at most all of the shards.")
    for record in records:
        if not isinstance(record, bytes):
            raise InvalidArgument("records", "bytes, such as a digest of each record", record)
    members: list[list[int]] = [[] for _ in range(teachers)]
    for position, record in enumerate(records):
        ranks = []
        for teacher in range(teachers):
            digest = hashlib.blake2b(record, key=key, salt=teacher.to_bytes(8, "little"), digest_size=16).digest()
            ranks.append((digest, teacher))
        for _, teacher in sorted(ranks)[:overlap]:
            members[teacher].append(position)
    return [np.asarray(shard, dtype=np.int64) for shard in members]


@checked
def contiguous_shards(count: int, *, teachers: int) -> list[NDArray[np.int64]]:
    """Equal slices by position, as the paper cuts its data.

    They promise nothing about the overlap: removing one record moves every later cut, so all K teachers may change
    (``overlap = K``). :func:`assign_shards` does not have this flaw.

    >>> [len(shard) for shard in contiguous_shards(11, teachers=3)]
    [4, 4, 3]
    """
    check_integer("teachers", teachers, low=1, high=10**6)
    check_integer("count", count, low=0, high=10**8)
    return [np.asarray(part, dtype=np.int64) for part in np.array_split(np.arange(count), teachers)]


def check_shards(shards: Sequence[NDArray[np.int64]], *, records: int) -> None:
    """Check that each shard holds different positions in ``[0, records)``, and at least one.

    Raises:
        InvalidArgument: it does not. A repeated or negative position would count a record several times.
    """
    for number, shard in enumerate(shards):
        positions = as_array("shards", shard, "arrays of positions")
        if positions.ndim and not len(positions):
            cure = "Use fewer teachers, more records or a larger overlap."
            raise InvalidArgument(f"shard {number}", "at least one record", 0, cure)
        expected, problem = f"different positions in [0, {records})", ""
        if positions.ndim != 1 or positions.dtype.kind not in "iu":
            problem = f"an array {positions.shape} of {positions.dtype}"
        elif positions.min() < 0 or positions.max() >= records:
            problem = "positions outside"
        elif len(np.unique(positions)) < len(positions):
            problem = "repeated positions"
        if problem:
            raise InvalidArgument(f"shard {number}", expected, problem, "A record may count only once.")
