"""What a labeler knows of its teachers."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import darrm_torch as dt
from darrm_torch.labels.voters import distinct_names


def test_teachers_are_names_or_voters_with_a_digest() -> None:
    assert distinct_names(["a", SimpleNamespace(digest="b"), "c"]) == ["a", "b", "c"]
    for teachers in (
        "abc",
        b"abc",
        ["a", ""],
        ["a", 3],
        [SimpleNamespace(digest=None)],
        ["a", SimpleNamespace(digest="a")],
    ):
        with pytest.raises(dt.InvalidArgument, match="teachers must be"):
            distinct_names(teachers)
