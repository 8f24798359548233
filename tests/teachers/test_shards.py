"""Shards that are drawn at random and in secret: what has the price of that, and what has not."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from darrm_torch import InvalidArgument, RandomAllocation, Shards, assign_shards, contiguous_shards, forget_draws
from darrm_torch.teachers.shards import as_shards

identifiers = st.lists(st.integers() | st.text(max_size=4), min_size=1, max_size=30, unique=True)
KEY = b"sixteen bytes or more"


@given(ids=identifiers, teachers=st.integers(1, 6), data=st.data(), seed=st.integers(0, 99))
@settings(deadline=None, derandomize=True, max_examples=40)
def test_removing_a_record_changes_its_shards_only(
    ids: list[int | str], teachers: int, data: st.DataObject, seed: int
) -> None:
    overlap = data.draw(st.integers(1, teachers))
    gone = data.draw(st.integers(0, len(ids) - 1))
    before = assign_shards(ids, teachers=teachers, overlap=overlap, insecure_seed=seed)
    rest = ids[:gone] + ids[gone + 1 :]
    after = assign_shards(rest, teachers=teachers, overlap=overlap, insecure_seed=seed)
    members = [{ids[i] for i in shard} for shard in before]
    assert all(sum(one in shard for shard in members) == overlap for one in ids)
    changed = [m != {rest[i] for i in shard} for m, shard in zip(members, after, strict=True)]
    assert sum(changed) == overlap
    assert changed == [ids[gone] in shard for shard in members]


@pytest.mark.parametrize("records", [3000, range(3000)], ids=["rows", "ids"])
@pytest.mark.parametrize("overlap", [1, 2, 4])
def test_each_record_draws_its_shards(records: int | range, overlap: int) -> None:
    shards = assign_shards(records, teachers=4, overlap=overlap)
    assert np.array_equal(np.bincount(np.concatenate(shards), minlength=3000), np.full(3000, overlap))
    expected = RandomAllocation(
        teachers=4, overlap=overlap, source="made by the library", keyed=not isinstance(records, int)
    )
    assert (shards.allocation, shards.overlap, shards.neighbours, shards.reason) == (
        expected,
        overlap,
        "add/remove",
        "",
    )
    assert ("Key:" in " ".join(expected.assumptions)) is expected.keyed


@pytest.mark.parametrize("records", [11_000, range(11_000)], ids=["rows", "ids"])
def test_draws_are_uniform_and_independent(records: int | range) -> None:
    # Chi-square of all pairs of neighbours' shards, 120 degrees of freedom: fails once in 10,000 runs.
    shards = assign_shards(records, teachers=11)
    owner = np.empty(11_000, dtype=np.int64)
    for number, shard in enumerate(shards):
        owner[shard] = number
    pairs = np.bincount(owner[::2] * 11 + owner[1::2], minlength=121)
    assert ((pairs - 5500 / 121) ** 2 / (5500 / 121)).sum() < 186.0


def test_subsets_are_uniform() -> None:
    # Chi-square with 9 degrees of freedom: fails once in 10,000 runs.
    shards = assign_shards(10_000, teachers=5, overlap=2)
    codes = sum(np.isin(np.arange(10_000), shard) * 2**number for number, shard in enumerate(shards))
    counts = np.unique(codes, return_counts=True)[1]
    assert len(counts) == 10
    assert ((counts - 1000) ** 2 / 1000).sum() < 33.8


def test_nothing_is_balanced_and_empty_shards_are_fine() -> None:
    shards = assign_shards(3, teachers=50)
    assert sorted(map(len, shards)) == [0] * 47 + [1] * 3 or max(map(len, shards)) > 1
    assert all(shard.dtype == np.int64 for shard in as_shards(shards, records=3))
    assert [len(shard) for shard in assign_shards(0, teachers=2)] == [0, 0]


@pytest.mark.parametrize("records", [40, [f"patient {n}" for n in range(40)]], ids=["rows", "ids"])
def test_a_private_folder_keeps_one_draw(records: int | list[str], tmp_path: Path) -> None:
    folder = tmp_path / "private"
    first = assign_shards(records, teachers=3, private_folder=folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in folder.iterdir())
    again = assign_shards(records, teachers=3, private_folder=folder)
    assert all(map(np.array_equal, first, again))
    assert again.draw == first.draw != assign_shards(records, teachers=3).draw
    for other in (
        {"teachers": 4},
        {"teachers": 3, "overlap": 2},
        {"teachers": 3, "unit": "person"},
        {"teachers": 3, "holdout": 0.1},
    ):
        with pytest.raises(InvalidArgument, match="Nothing is drawn again for other settings"):
            assign_shards(records, private_folder=folder, **other)
    forget_draws(folder)
    assert [file.name for file in folder.iterdir()] == ["draw.json"]
    with pytest.raises(InvalidArgument, match="whose draws were not deleted"):
        assign_shards(records, teachers=3, private_folder=folder)
    (folder / "draw.json").write_text("{")
    with pytest.raises(InvalidArgument, match=r"a complete draw\.json"):
        assign_shards(records, teachers=3, private_folder=folder)


@pytest.mark.parametrize("records", [4000, range(4000)], ids=["rows", "ids"])
@pytest.mark.parametrize("overlap", [1, 3])
def test_each_record_is_held_out_by_a_coin_of_its_own(records: int | range, overlap: int, tmp_path: Path) -> None:
    folder = tmp_path / "private"
    shards = assign_shards(records, teachers=4, overlap=overlap, holdout=0.25, private_folder=folder)
    owners = np.bincount(np.concatenate(shards), minlength=4000)
    assert np.array_equal(shards.held_out, np.flatnonzero(owners == 0))
    assert set(owners.tolist()) == {0, overlap}
    # Four standard deviations on each side, of the number held out and of neighbours that are both held out: one run
    # of 7,000 fails.
    assert abs(len(shards.held_out) - 1000) < 4 * 27.4
    assert abs((owners.reshape(-1, 2) == 0).all(axis=1).sum() - 125) < 4 * 10.8
    assert shards.allocation is not None
    assert shards.allocation.holdout == 0.25
    again = assign_shards(records, teachers=4, overlap=overlap, holdout=0.25, private_folder=folder)
    assert np.array_equal(again.held_out, shards.held_out)
    assert not len(assign_shards(records, teachers=4, overlap=overlap).held_out)


def test_a_record_that_comes_or_goes_moves_no_other_into_the_held_out_set() -> None:
    before = assign_shards(range(300), teachers=3, holdout=0.3, insecure_seed=1)
    after = assign_shards(range(1, 300), teachers=3, holdout=0.3, insecure_seed=1)
    assert {n + 1 for n in after.held_out.tolist()} == set(before.held_out.tolist()) - {0}


def test_a_position_is_trained_on_or_held_out() -> None:
    with pytest.raises(
        InvalidArgument, match=r"held_out must be positions that are in no shard, got 'a position in both'"
    ):
        Shards(positions=(np.array([0, 1]), np.array([2])), overlap=1, held_out=np.array([1, 3]))


def test_a_folder_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    assign_shards(20, teachers=3, private_folder=tmp_path / "private")
    file = tmp_path / "private" / "draw.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"version": 2}))
    with pytest.raises(InvalidArgument, match=r"one of format 1, got .*of format 2.*newer version of darrm-torch"):
        assign_shards(20, teachers=3, private_folder=tmp_path / "private")


def test_records_with_ids_may_come_and_go(tmp_path: Path) -> None:
    before = assign_shards(range(40), teachers=3, private_folder=tmp_path / "private")
    after = assign_shards(range(1, 40), teachers=3, private_folder=tmp_path / "private")
    assert all({i + 1 for i in new} == set(old) - {0} for old, new in zip(before, after, strict=True))
    assign_shards(40, teachers=3, private_folder=tmp_path / "rows")
    with pytest.raises(InvalidArgument, match=r"as many as when the shards were drawn.*With ids"):
        assign_shards(39, teachers=3, private_folder=tmp_path / "rows")


def test_a_folder_that_others_can_open_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with pytest.raises(InvalidArgument, match="only its owner can open, got 'mode 755'"):
        assign_shards(10, teachers=2, private_folder=tmp_path)


def test_draws_are_not_printed() -> None:
    shards = assign_shards(40, teachers=3)
    assert "positions" not in repr(shards)
    assert "[" not in repr(shards)


NOT_PRICED = {
    "literal key": (lambda: assign_shards(range(9), teachers=3, key=KEY), "cannot know that it is secret"),
    "insecure_seed": (lambda: assign_shards(9, teachers=3, insecure_seed=1), "insecure_seed"),
    "shards by position": (lambda: contiguous_shards(9, teachers=3), "slices of a list"),
    "balanced": (lambda: np.array_split(np.random.default_rng(0).permutation(9), 3), "did not draw these shards"),
    "stratified": (lambda: [np.arange(9)[part::3] for part in range(3)], "did not draw these shards"),
    "silos": (lambda: [np.arange(5), np.arange(5, 7), np.arange(7, 9)], "silos are no random allocation"),
}


@pytest.mark.parametrize(("make", "reason"), NOT_PRICED.values(), ids=NOT_PRICED.keys())
def test_what_has_no_price_of_a_random_allocation(make, reason: str) -> None:
    shards = as_shards(make(), records=9)
    assert shards.allocation is None
    assert reason in shards.reason
    assert shards.allocation_for("a training") == (None, shards.reason)


@pytest.mark.parametrize("kept", [False, True])
def test_a_second_training_has_a_price_of_its_own(kept: bool, tmp_path: Path) -> None:
    folder = tmp_path / "private" if kept else None
    shards = assign_shards(9, teachers=3, private_folder=folder)
    assert shards.allocation_for("first") == (shards.allocation, "")
    assert shards.allocation_for("second") == (None, shards.allocation_for("second")[1])
    assert "trained other teachers before" in shards.allocation_for("second")[1]
    assert shards.allocation_for("first")[0] == shards.allocation  # resumed
    if kept:
        assert assign_shards(9, teachers=3, private_folder=folder).allocation_for("second")[0] is None
        assert json.loads((folder / "draw.json").read_text())["trainings"] == ["first"]


def test_people_with_several_rows_are_refused() -> None:
    """Rows that share a draw cost far more than one row (tests/privacy/test_allocation.py)."""
    with pytest.raises(InvalidArgument, match=r"unique by schema.*share a draw.*Combine the rows of a person"):
        assign_shards(["Ann", "Bob", "Ann"], teachers=3, unit="person")


def test_contents_are_refused_as_ids() -> None:
    for content in (b"digest of a record", 1.5, True, ("a", "b")):
        with pytest.raises(InvalidArgument, match="records must be the number of records, or integers and strings"):
            assign_shards([content], teachers=3)


def test_replacing_a_record_changes_one_slice() -> None:
    shards = contiguous_shards(30, teachers=5)
    assert isinstance(shards, Shards)
    assert (shards.overlap, shards.neighbours) == (1, "replace-one")
    before = [set(shard) for shard in shards]
    after = [{i + 1 for i in shard} for shard in contiguous_shards(29, teachers=5)]
    assert sum(a != b for a, b in zip(before, after, strict=True)) > 1  # adding or removing one changes several


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"teachers": 0}, "teachers"),
        ({"teachers": 3, "overlap": 4}, "overlap"),
        ({"teachers": 3, "overlap": 0}, "overlap"),
        ({"teachers": 3, "holdout": 1.0}, "holdout"),
        ({"teachers": 3, "holdout": float("nan")}, "holdout"),
        ({"teachers": 3, "key": b"short"}, "key must be 16 to 64 bytes"),
        ({"teachers": 3, "key": KEY, "insecure_seed": 1}, "private_folder must be None"),
        ({"teachers": 3, "insecure_seed": -1}, "insecure_seed"),
    ],
)
def test_wrong_arguments(wrong: dict, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        assign_shards(["a"], **wrong)
    with pytest.raises(InvalidArgument, match="key must be 16 to 64 bytes, with ids"):
        assign_shards(3, teachers=3, key=KEY)


def test_positions_are_checked_without_naming_a_shard() -> None:
    for shard, problem in ([0, 1, 1], "repeated"), ([-1, 2], "outside"), ([4], "outside"), ([0.5], "float64"):
        with pytest.raises(InvalidArgument, match=rf"each shard must be different positions of records.*{problem}"):
            as_shards([np.arange(4), np.array(shard)], records=4)
