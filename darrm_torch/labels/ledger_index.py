"""The labels of a ledger by key, in about thirty bytes each, for ledgers of many millions of labels."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..arrays import IntArray
from ..errors import InvalidArgument

__all__ = ["LabelIndex", "checked_keys", "new_keys"]

_RECENT = 50_000


class LabelIndex:
    """Labels by key: the recent ones in a dictionary, the others in sorted arrays whose sizes grow geometrically.

    Keys are known by a digest of 16 bytes, so that long keys cost no more. Two keys with one digest are as unlikely as
    in the inputs' own digests.

    >>> index = LabelIndex()
    >>> index.add({b"a": 1, b"b": 0})
    >>> index.find([b"b", b"c", b"a"]), len(index)
    ([0, None, 1], 2)
    """

    def __init__(self) -> None:
        self._recent: dict[bytes, Any] = {}
        self._rows: dict[bytes, Any] = {}  # labels that are no integers
        self._runs: list[tuple[IntArray, IntArray]] = []  # (digests (N, 2) sorted by the first half, labels (N,))
        self._older = 0

    def __len__(self) -> int:
        return self._older + len(self._rows) + len(self._recent)

    def add(self, labels: Mapping[bytes, Any]) -> None:
        """Add labels of keys that are not in the index."""
        self._recent.update(labels)
        if len(self._recent) > _RECENT:
            self._store()

    def find(self, keys: Sequence[bytes]) -> list[Any]:
        """The label of each key; ``None`` where there is none."""
        found = [self._recent.get(key, self._rows.get(key)) for key in keys]
        if self._runs and None in found:
            missing = [place for place, label in enumerate(found) if label is None]
            digests = _digests([keys[place] for place in missing])
            for run, labels in self._runs:
                for place, label in _matches(run, labels, digests):
                    found[missing[place]] = label
        return found

    def _store(self) -> None:
        """Move the recent labels into a sorted array, merged with those that are not much longer."""
        whole = {key: label for key, label in self._recent.items() if isinstance(label, int)}
        self._rows |= {key: label for key, label in self._recent.items() if not isinstance(label, int)}
        digests, labels = [_digests(list(whole))], [np.fromiter(whole.values(), dtype=np.int64, count=len(whole))]
        self._older += len(whole)
        self._recent = {}
        while self._runs and len(self._runs[-1][1]) <= 2 * sum(map(len, labels)):
            older = self._runs.pop()
            digests.append(older[0])
            labels.append(older[1])
        together, all_labels = np.concatenate(digests), np.concatenate(labels)
        order = np.argsort(together[:, 0], kind="stable")
        self._runs.append((together[order], all_labels[order]))


def new_keys(keys: Sequence[bytes], labels: Sequence[Any]) -> dict[bytes, int]:
    """The keys without a label, each with its first position."""
    new = dict[bytes, int]()
    for position, (key, label) in enumerate(zip(keys, labels, strict=True)):
        if label is None:
            new.setdefault(key, position)
    return new


def _digests(keys: Sequence[bytes]) -> IntArray:
    """Digests ``(N, 2)`` of keys, as two integers each."""
    joined = b"".join(hashlib.blake2b(key, digest_size=16).digest() for key in keys)
    return np.frombuffer(joined, dtype=np.int64).reshape(-1, 2)


def _matches(run: IntArray, labels: IntArray, digests: IntArray) -> list[tuple[int, int]]:
    """The places of the digests that are in a run, each with its label."""
    first = run[:, 0]
    start = np.searchsorted(first, digests[:, 0], side="left")
    end = np.searchsorted(first, digests[:, 0], side="right")
    found = []
    for place in np.flatnonzero(start < end).tolist():
        for row in range(start[place], end[place]):
            if run[row, 1] == digests[place, 1]:
                found.append((place, int(labels[row])))
    return found


def checked_keys(keys: Sequence[bytes]) -> list[bytes]:
    """The keys of inputs, which are bytes."""
    keys = list(keys)
    if not all(isinstance(key, bytes) and key for key in keys):
        kinds = ", ".join(sorted({type(key).__name__ for key in keys}))
        raise InvalidArgument("keys", "non-empty bytes, a digest of each input", f"values of type {kinds}")
    return keys
