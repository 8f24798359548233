"""The index of labels is a dictionary that needs little memory."""

from __future__ import annotations

import tracemalloc
from unittest.mock import patch

import pytest
from hypothesis import given, strategies as st

from darrm_torch.labels import ledger_index
from darrm_torch.labels.ledger_index import LabelIndex

KEYS = st.binary(min_size=1, max_size=3)
LABELS = st.integers(-(2**63), 2**63 - 1) | st.lists(st.floats(0, 1), max_size=2)


@pytest.mark.slow
@given(st.lists(st.dictionaries(KEYS, LABELS, max_size=6), max_size=12), st.lists(KEYS))
def test_it_is_a_dictionary(batches: list[dict[bytes, object]], asked: list[bytes]) -> None:
    with patch.object(ledger_index, "_RECENT", 3):
        index, expected = LabelIndex(), dict[bytes, object]()
        for batch in batches:
            new = {key: label for key, label in batch.items() if key not in expected}
            index.add(new)
            expected |= new
            assert len(index) == len(expected)
        asked = [*asked, *expected]
        assert index.find(asked) == [expected.get(key) for key in asked]


def test_keys_whose_digests_begin_alike_are_different() -> None:
    with patch.object(ledger_index, "_RECENT", 1), patch.object(ledger_index.hashlib, "blake2b") as digest:
        digest.side_effect = lambda key, digest_size: type("Digest", (), {"digest": lambda self: bytes(8) + key * 8})()
        index = LabelIndex()
        index.add({bytes([number]): number for number in range(5)})
        assert index.find([bytes([3]), bytes([9]), bytes([0])]) == [3, None, 0]


@pytest.mark.slow
def test_a_million_labels_need_at_most_60_bytes_each() -> None:
    tracemalloc.start()
    index = LabelIndex()
    for start in range(0, 1_000_000, 50_000):
        index.add({number.to_bytes(16, "big"): number % 7 for number in range(start, start + 50_000)})
    now, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert index.find([(777_777).to_bytes(16, "big")]) == [777_777 % 7]
    assert now < 60 * 1_000_000
