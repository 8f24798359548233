"""Which records each teacher is trained on: draws at random and in secret, and what they are worth.

Positions and draws are as private as the records. What may be published about them is in :attr:`Shards.allocation`.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

from ..arguments import as_array, checked
from ..errors import InvalidArgument, check_integer, check_number, is_integer
from ..files import make_private_folder, write_private
from ..limits import MOST_TEXT, read_file
from ..privacy.allocation import RandomAllocation
from ..privacy.validation import PrivateValidation

__all__ = ["Shards", "as_shards", "assign_shards", "contiguous_shards", "forget_draws", "open_private"]

Positions = NDArray[np.int64]

_FACTS, _DRAWS, _KEY = "draw.json", "draws.npy", "shard-key"
_HELD_OUT = -1  # in place of a shard
_NOT_DRAWN = (
    "The library did not draw these shards: slices by position, balanced or stratified shards and silos are no random "
    "allocation."
)
_SLICES = "The shards are slices of a list, so one record more or less moves other records."
_OWN_KEY = "The key was passed as bytes, so the library cannot know that it is secret."
_SEED = "The draws follow from an insecure_seed, and anyone who knows it can repeat them."
_SECOND = "These shards trained other teachers before, which have the price of the random allocation."
_FORGOTTEN = "Use another private folder. Teachers that are trained on another draw of the same records cost extra."


@dataclass(frozen=True, kw_only=True, eq=False)
class Shards(Sequence[Positions]):
    """K sorted arrays of positions, and what the way in which they were made is worth.

    Attributes:
        holdout: h, the public probability with which a record is held out.
        held_out: positions of the records that no teacher is trained on, sorted; as private as the shards.
        overlap: r, the number of teachers that one record affects, for ``neighbours``.
        neighbours: the neighbouring data sets for which ``overlap`` holds: "add/remove" one record, or "replace-one".
        allocation: the public facts that lower the price of all teachers together; ``None`` if nothing does.
        reason: why there is no ``allocation``; empty if there is one.
        private_folder: where the draws or their key are kept; ``None``: in memory only.
        draw: a public random name of the draw, by which teachers of one draw recognise each other.
    """

    positions: tuple[Positions, ...] = field(repr=False)
    overlap: int
    neighbours: Literal["add/remove", "replace-one"] = "add/remove"
    allocation: RandomAllocation | None = None
    reason: str = ""
    private_folder: Path | None = field(default=None, repr=False)
    draw: str = field(default_factory=lambda: secrets.token_hex(8))
    holdout: float = 0.0
    held_out: Positions = field(default_factory=lambda: np.empty(0, dtype=np.int64), repr=False)
    _record: dict[str, Any] = field(default_factory=lambda: {"trainings": []}, repr=False)

    def __post_init__(self) -> None:
        if any(np.isin(self.held_out, shard).any() for shard in self.positions):
            cure = "A record reaches the held-out counts through the teachers that are trained on it."
            raise InvalidArgument("held_out", "positions that are in no shard", "a position in both", cure)

    @overload
    def __getitem__(self, number: int) -> Positions: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[Positions]: ...
    def __getitem__(self, number: int | slice) -> Positions | Sequence[Positions]:
        return self.positions[number]

    def __len__(self) -> int:
        return len(self.positions)

    def allocation_for(self, training: str) -> tuple[RandomAllocation | None, str]:
        """The allocation that prices a private training on these shards, or ``None`` and the reason.

        Only the first training has it: everything else that is released from the shards has a price of its own, and
        the two compose (theory, section 12, point 9).

        Args:
            training: identifies the training, for example its folder. The same one may ask again.
        """
        if self.allocation is None:
            return None, self.reason
        facts = self._facts()
        if not facts["trainings"]:
            facts["trainings"].append(training)
            self._keep(facts)
        return (self.allocation, "") if facts["trainings"][0] == training else (None, _SECOND)

    @property
    def finished(self) -> bool:
        """Whether all teachers that have the ``allocation`` are trained: none of them may be trained again."""
        return bool(self._facts().get("finished"))

    def finish(self) -> None:
        """Keep for ever that the training that has the ``allocation`` is finished."""
        if not self.finished:
            self._keep(self._facts() | {"finished": True})

    def _facts(self) -> dict[str, Any]:
        return self._record if self.private_folder is None else _read_facts(self.private_folder)

    def _keep(self, facts: dict[str, Any]) -> None:
        self._record.update(facts)
        if self.private_folder is not None:
            write_private(self.private_folder / _FACTS, json.dumps(facts))


@checked
def assign_shards(
    records: int | Iterable[int | str],
    *,
    teachers: int,
    overlap: int = 1,
    holdout: float = 0.0,
    validation: PrivateValidation | None = None,
    unit: str = "record",
    private_folder: str | os.PathLike[str] | None = None,
    key: bytes | None = None,
    insecure_seed: int | None = None,
) -> Shards:
    """Draw ``overlap`` of the K shards for each record: uniformly, independently of all others, in secret.

    Adding or removing a record changes ``overlap`` shards and leaves the others as they are. And since nobody knows
    which, all teachers together cost much less than the ``overlap`` that saw the record (:class:`RandomAllocation`;
    theory, section 12, lists what that takes). Nothing is balanced: shards differ in size, and may be empty.

    Args:
        records: the number of records: each draws for itself, from the operating system. Or an id for each record, an
            integer or a string that the schema makes unique, such as a patient's number: its shards follow from a hash
            with a secret key, so they stay the same when records come and go. Never pass contents or digests of
            them: equal records would share a draw, which costs far more.
        teachers: K.
        overlap: r, in ``[1, K]``.
        holdout: h, the public probability that a record is held out for validation and enters no shard. A coin of its
            own decides, drawn and kept like the shards: how many are held out is private too.
        validation: what will be released about the held-out records (:func:`validate`). The allocation states it, so
            the price of all teachers, and the noise that ``total`` of :func:`train_teachers` finds, cover it.
        unit: what one of ``records`` is. It must be what the teachers' accounting protects: with DP-SGD, one row. If a
            person has several rows, train and account for each person instead.
        private_folder: where the draws or the key are kept, readable by the owner only. A folder holds one draw: called
            again, the function reads it. ``None``: the draws are kept in memory only.
        key: for ids: a key of your own, of 16 to 64 bytes, instead of one that the library draws. It gets no
            ``allocation``: the library cannot know that it is secret.
        insecure_seed: makes the draws repeatable, for tests and studies; it gets no ``allocation``.

    Raises:
        InvalidArgument: ``overlap`` outside ``[1, teachers]``, ids that are not unique integers and strings, a key that
            is too short, or a folder that others can read, or that holds another draw.

    >>> shards = assign_shards(100, teachers=4, overlap=2)
    >>> sum(map(len, shards)), shards.allocation.source
    (200, 'made by the library')
    """
    check_integer("teachers", teachers, low=1, high=10**6)
    check_integer("overlap", overlap, low=1, high=teachers, cure="A record can be in at most all of the shards.")
    holdout = check_number("holdout", holdout, low=0.0, high=1.0, high_open=True)
    ids = None if is_integer(records) or not isinstance(records, Iterable) else _encoded(records)
    count = check_integer("records", records, low=0) if ids is None else 0
    if sum(given is not None for given in (key, insecure_seed, private_folder)) > 1:
        raise InvalidArgument("private_folder", "None with a key or an insecure_seed", "several of them")
    reason = ""
    if key is not None:
        reason = _OWN_KEY
        if not (isinstance(key, bytes) and 16 <= len(key) <= 64 and ids is not None):
            raise InvalidArgument("key", "16 to 64 bytes, with ids", "another", "Without it the library draws a key.")
    if insecure_seed is not None:
        reason = _SEED
        key = hashlib.sha256(str(check_integer("insecure_seed", insecure_seed, low=0)).encode()).digest()
        ids = _encoded(range(count)) if ids is None else ids
    facts: dict[str, Any] = {"teachers": teachers, "overlap": overlap, "holdout": holdout, "unit": unit}
    facts["by"] = "rows" if ids is None else "ids"
    folder = None if private_folder is None else open_private(private_folder)
    kept = _kept_draw(folder, facts)
    if ids is None:
        chosen = _drawn(count, teachers, overlap, holdout) if kept is None else _stored(kept, count)
        content, file = _array_bytes(chosen), _DRAWS
    else:
        content, file = key or kept or secrets.token_bytes(32), _KEY
        chosen = _hashed(ids, content, teachers, overlap, holdout)
    allocation = RandomAllocation(
        teachers=teachers,
        overlap=overlap,
        unit=unit,
        holdout=holdout,
        validation=validation,
        source="made by the library",
        keyed=ids is not None,
    )
    draw = secrets.token_hex(8)
    if folder is not None and kept is None:
        write_private(folder / file, content)
        write_private(folder / _FACTS, json.dumps({"version": 1, **facts, "draw": draw, "trainings": []}))
    return Shards(
        positions=tuple(np.flatnonzero((chosen == number).any(axis=1)) for number in range(teachers)),
        holdout=holdout,
        held_out=np.flatnonzero(chosen[:, 0] == _HELD_OUT),
        overlap=overlap,
        allocation=None if reason else allocation,
        reason=reason,
        private_folder=folder,
        draw=draw if folder is None else _read_facts(folder)["draw"],
    )


@checked
def contiguous_shards(count: int, *, teachers: int) -> Shards:
    """Equal slices by position, as the paper cuts its data; so do ``random_split`` and ``array_split``.

    Removing one record moves every later cut, so all K teachers may change. ``overlap=1`` holds only for neighbours
    that *replace* one record: price it with ``total_privacy(neighbours="replace-one")``. Prefer :func:`assign_shards`.

    >>> shards = contiguous_shards(11, teachers=3)
    >>> [len(shard) for shard in shards], shards.overlap, shards.neighbours
    ([4, 4, 3], 1, 'replace-one')
    """
    check_integer("count", count, low=0, high=10**8)
    check_integer("teachers", teachers, low=1, high=10**6)
    parts = np.array_split(np.arange(count, dtype=np.int64), teachers)
    return Shards(positions=tuple(parts), overlap=1, neighbours="replace-one", reason=_SLICES)


def as_shards(shards: Sequence[Positions], *, records: int) -> Shards:
    """The shards, checked: each must hold different positions in ``[0, records)``; an empty one is welcome.

    Raises:
        InvalidArgument: one does not. A repeated or negative position would count a record several times. The message
            does not say which shard it is.
    """
    for shard in shards:
        positions = as_array("each of shards", shard, "an array of positions")
        problem = ""
        if positions.ndim != 1 or (positions.dtype.kind not in "iu" and positions.size):
            problem = f"an array of {positions.dtype} with {positions.ndim} dimensions"
        elif positions.size and (positions.min() < 0 or positions.max() >= records):
            problem = "positions outside"
        elif len(np.unique(positions)) < len(positions):
            problem = "repeated positions"
        if problem:
            expected = "different positions of records, from 0"
            raise InvalidArgument("each shard", expected, problem, "A record may count only once.")
    if isinstance(shards, Shards):
        return shards
    return Shards(
        positions=tuple(np.asarray(shard, dtype=np.int64) for shard in shards), overlap=len(shards), reason=_NOT_DRAWN
    )


@checked
def forget_draws(private_folder: str | os.PathLike[str]) -> None:
    """Delete the draws, their key and digests of the data after training: then nobody can leak them.

    The teachers and their price stay as they are. No further teacher can be trained on these shards.

    Raises:
        InvalidArgument: others can read the folder.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     private = Path(folder) / "private"
    ...     shards = assign_shards(20, teachers=3, private_folder=private)
    ...     forget_draws(private)
    ...     [file.name for file in private.iterdir()]
    ['draw.json']
    """
    folder = open_private(private_folder)
    for file in (folder / _DRAWS, folder / _KEY, *folder.glob("*-data.sha256")):
        file.unlink(missing_ok=True)


def open_private(folder: str | os.PathLike[str]) -> Path:
    """Create a folder that only its owner can open, or check that it is one.

    Raises:
        InvalidArgument: others can read it, or it cannot be created.
    """
    path = Path(folder)
    make_private_folder(path, "private_folder")
    if (mode := path.stat().st_mode & 0o777) & 0o077:
        raise InvalidArgument(
            "private_folder", "a folder that only its owner can open", f"mode {mode:o}", f"Run chmod 700 {path}"
        )
    return path


def _encoded(ids: Iterable[int | str]) -> list[bytes]:
    encoded = []
    for one in ids:
        if isinstance(one, bool) or not isinstance(one, (int, str, np.integer)):
            cure = "Pass the number of records instead if the schema has no such id: then each draws for itself."
            expected = "the number of records, or integers and strings that are unique by schema"
            raise InvalidArgument("records", expected, type(one).__name__, cure)
        encoded.append((f"s{one}" if isinstance(one, str) else f"i{int(one)}").encode())
    if len(set(encoded)) < len(encoded):
        cure = (
            "Several rows with one id share a draw, but training protects one row. Combine the rows of a person into "
            "one, or pass the number of records: then each row draws for itself, and is protected by itself."
        )
        raise InvalidArgument("records", "ids that are unique by schema", "an id more than once", cure)
    return encoded


def _hashed(ids: list[bytes], key: bytes, teachers: int, overlap: int, holdout: float) -> Positions:
    """The shards of each id, ``(N, overlap)``: the first ones in its ranking of the teachers by keyed hashes."""
    chosen = np.empty((len(ids), overlap), dtype=np.int64)
    for row, one in enumerate(ids):
        coin = hashlib.blake2b(one, key=key, salt=b"held out", digest_size=8).digest() if holdout else b""
        if holdout and int.from_bytes(coin, "big") < int(holdout * 2**64):
            chosen[row] = _HELD_OUT
            continue
        ranks = []
        for teacher in range(teachers):
            digest = hashlib.blake2b(one, key=key, salt=teacher.to_bytes(8, "little"), digest_size=16).digest()
            ranks.append((digest, teacher))
        chosen[row] = [teacher for _, teacher in sorted(ranks)[:overlap]]
    return chosen


def _drawn(count: int, teachers: int, overlap: int, holdout: float) -> Positions:
    """The shards of each record, ``(N, overlap)``, from the operating system: exactly uniform subsets."""
    chosen = np.empty((count, overlap), dtype=np.int64)
    rows = max(1, 2**16 // teachers)
    for start in range(0, count, rows):
        part = chosen[start : start + rows]
        while True:
            ranks = np.frombuffer(os.urandom(8 * len(part) * teachers), dtype=np.uint64).reshape(-1, teachers)
            if (np.diff(np.sort(ranks, axis=1), axis=1) > 0).all():  # without ties every order is equally likely
                break
        part[:] = ranks.argsort(axis=1)[:, :overlap]
    if holdout:
        chosen[np.frombuffer(os.urandom(8 * count), dtype=np.uint64) < int(holdout * 2**64)] = _HELD_OUT
    return chosen


def _kept_draw(folder: Path | None, facts: dict[str, Any]) -> bytes | None:
    """The draws or the key that the folder holds; ``None`` if it is new.

    Raises:
        InvalidArgument: it holds those of another draw, or they were deleted.
    """
    if folder is None or not (folder / _FACTS).exists():
        return None
    kept = {"holdout": 0.0, **_read_facts(folder)}
    if kept | facts != kept:
        cure = f"Nothing is drawn again for other settings. {_FORGOTTEN}"
        raise InvalidArgument("private_folder", f"one with a draw for {facts}", str(folder), cure)
    file = folder / (_KEY if facts["by"] == "ids" else _DRAWS)
    if not file.exists():
        raise InvalidArgument("private_folder", "one whose draws were not deleted", str(folder), _FORGOTTEN)
    return file.read_bytes()


def _read_facts(folder: Path) -> dict[str, Any]:
    try:
        facts: dict[str, Any] = json.loads(read_file("private_folder", folder / _FACTS, most=MOST_TEXT))
        number = facts["version"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        number = None
    if number == 1:
        return facts
    if isinstance(number, int) and number > 1:
        cure = "A newer version of darrm-torch wrote it: install that one."
        raise InvalidArgument("private_folder", "one of format 1", f"{folder}, of format {number}", cure)
    raise InvalidArgument("private_folder", f"one with a complete {_FACTS}", str(folder), _FORGOTTEN)


def _stored(content: bytes, count: int) -> Positions:
    chosen: Positions = np.load(io.BytesIO(content), allow_pickle=False)
    if len(chosen) != count:
        cure = f"With ids, records may come and go. {_FORGOTTEN}"
        raise InvalidArgument("records", "as many as when the shards were drawn", "another number", cure)
    return chosen


def _array_bytes(array: Positions) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()
