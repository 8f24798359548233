"""Votes as people keep them: files of many kinds, each read in one way, or refused in words that resolve it."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import darrm_torch as dt

K, N = 5, 7
VOTES = np.random.default_rng(0).integers(0, 3, (K, N))
VOTES[0, 0], VOTES[1, 3] = 2, 0
COUNTS = np.stack([(one == VOTES).sum(axis=0) for one in range(3)], axis=1)
NAMES = np.array(["cat", "dog", "eel"])
BEYOND_FLOATS = [str(2**53), str(2**53 + 1)]


def read(path: Path, **how: Any) -> Any:
    """All votes ``(K, N)``, or counts, of a file that is read in parts of three."""
    batches = list(dt.VoteFile(path, **{"teachers": K, "classes": 3, "part": 3, **how}))
    assert all(len(batch.keys) <= 3 for batch in batches)
    if batches[0].counts is not None:
        return np.concatenate([batch.counts for batch in batches])
    return np.concatenate([batch.votes for batch in batches], axis=1)


def text(rows: Any, *, header: str = "", separator: str = ",") -> str:
    return header + "".join(separator.join(map(str, row)) + "\n" for row in rows)


def saved(name: str, content: Any) -> Callable[[Path], Path]:
    def save(folder: Path) -> Path:
        path = folder / name
        if callable(content):
            content(path)
        elif name.endswith(".gz"):
            path.write_bytes(gzip.compress(content.encode()))
        elif name.endswith(".npy"):
            np.save(path, content)
        elif name.endswith(".npz"):
            np.savez(path, **content)
        else:
            path.write_text(content)
        return path

    return save


WITH_MISSING = np.where(np.arange(K)[:, None] == 2, -1, VOTES)
FLOATS = np.where(WITH_MISSING < 0, np.nan, WITH_MISSING.astype(float))

# What public repositories of PATE and its relatives keep.
FILES: dict[str, tuple[Callable[[Path], Path], dict[str, Any], Any]] = {
    "teachers by inputs": (saved("v.npy", VOTES.astype(np.uint8)), {}, VOTES),
    "inputs by teachers": (saved("v.npy", VOTES.T.astype(np.int32)), {}, VOTES),
    "counts": (saved("v.npy", COUNTS.astype(float)), {}, COUNTS),
    "several arrays": (saved("v.npz", {"votes": VOTES, "truth": VOTES[0]}), {"array": "votes"}, VOTES),
    "text without a header": (saved("v.csv", text(VOTES.T)), {"header": False}, VOTES),
    "a header": (saved("v.csv", text(VOTES.T, header="a,b,c,d,e\n")), {}, VOTES),
    "pandas' own header": (saved("v.csv", text(VOTES.T, header="0,1,2,3,4\n")), {"header": True}, VOTES),
    "class names": (saved("v.csv", text(NAMES[VOTES].T, header="a,b,c,d,e\n")), {"classes": NAMES.tolist()}, VOTES),
    "class names alone": (saved("v.tsv", text(NAMES[VOTES].T, separator="\t")), {"classes": NAMES.tolist()}, VOTES),
    "-1 for missing": (saved("v.csv.gz", text(WITH_MISSING)), {"missing": ["-1"]}, WITH_MISSING),
    "floats and empty cells": (
        saved("v.csv", text(FLOATS.T, header="a,b,c,d,e\n").replace("nan", "")),
        {"missing": ["nan"]},
        WITH_MISSING,
    ),
    "matrix of floats": (saved("v.npy", FLOATS), {"missing": ["nan"]}, WITH_MISSING),
    "classes from one": (saved("v.npy", VOTES + 1), {"classes": ["1", "2", "3"]}, VOTES),
    "keys": (
        saved("v.csv", text([[f"x{n}", *VOTES[:, n]] for n in range(N)], header="id,a,b,c,d,e\n")),
        {"keys": "id"},
        VOTES,
    ),
    "pandas' index": (
        saved("v.csv", text([[n, *VOTES[:, n]] for n in range(N)], header=",a,b,c,d,e\n")),
        {"keys": 0},
        VOTES,
    ),
    "a byte order mark, CRLF": (
        saved("v.csv", "\ufeff" + text(VOTES.T, header="a,b,c,d,e\n").replace("\n", "\r\n")),
        {},
        VOTES,
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_files_as_they_are_found(name: str, tmp_path: Path) -> None:
    save, how, expected = FILES[name]
    assert (read(save(tmp_path), **how) == expected).all()


REFUSED: dict[str, tuple[Callable[[Path], Path], dict[str, Any], str]] = {
    "square": (saved("v.npy", np.zeros((K, K), int)), {}, "layout must be given"),
    "as many classes as teachers": (saved("v.npy", np.ones((N, 5), int)), {"classes": 5}, "layout must be given"),
    "square text": (saved("v.csv", text(np.zeros((K, K), int))), {}, "layout must be given"),
    "another number of teachers": (saved("v.npy", np.zeros((N, 4), int)), {}, "5 columns of votes or 5 lines"),
    "another layout": (saved("v.npy", VOTES), {"layout": "counts"}, "3 columns of counts"),
    "missing unsaid": (saved("v.csv", text(WITH_MISSING.T)), {}, r'missing=\["-1"\]'),
    "empty unsaid": (saved("v.csv", text(FLOATS.T)), {}, r'missing=\["nan"\]'),
    "classes from one": (saved("v.npy", VOTES.T + 1), {}, "votes that are one of"),
    "unknown name": (
        saved("v.csv", text(NAMES[VOTES].T, header="a,b,c,d,e\n")),
        {"classes": ["cat", "dog"]},
        r"votes that are one of \['cat', 'dog'\], got 'another value in row",  # it may be a vote, so it is not shown
    ),
    "a header of numbers": (saved("v.csv", text(VOTES.T, header="0,1,2,3,4\n")), {}, "header must be given"),
    "fractions": (saved("v.npy", VOTES + 0.5), {}, "votes that are one of"),
    "counts of others": (saved("v.npy", COUNTS + 1), {}, "counts that add up to 5"),
    "fractional counts": (saved("v.npy", COUNTS + 0.25), {}, "whole numbers"),
    "one-hot": (saved("v.npy", np.eye(3)[VOTES]), {}, "argmax"),
    "several arrays": (saved("v.npz", {"a": VOTES, "b": VOTES}), {}, "array must be one of"),
    "objects": (saved("v.npy", VOTES.astype(object)), {}, "array of numbers or text"),
    "a line too short": (saved("v.csv", "a,b,c,d,e\n0,1,0,1,0\n0,1,0\n"), {}, "3 in line 3"),
    "empty": (saved("v.csv", ""), {}, "empty file"),
    "an index unsaid": (
        saved("v.csv", text([[n, *VOTES[:, n]] for n in range(N)], header=",a,b,c,d,e\n")),
        {},
        "name it with keys",
    ),
    "a line too many": (
        saved("v.npy", np.vstack([VOTES, VOTES[:1]])),
        {"layout": "teachers-by-inputs"},
        "5 lines of votes, got .* Each teacher has one line",
    ),
    "keys of nothing": (saved("v.csv", text(VOTES.T, header="a,b,c,d,e\n")), {"keys": "id"}, "keys must be one of"),
    "no table": (saved("v.csv.gz", "a"), {}, "5 columns|lines"),
    "no gzip": (saved("v.csv.gz", lambda path: path.write_bytes(b"0,1\n")), {}, "can be read"),
    "a line without end": (saved("v.csv.gz", "0," * 2**24), {}, "a line has over"),
    "no array": (saved("v.npy", lambda path: path.write_bytes(b"0,1\n")), {}, "array of numbers"),
    "no Parquet": (saved("v.parquet", "0,1\n"), {}, "a Parquet file"),
    "another ending": (saved("v.json", "[]"), {}, "a folder of .parquet files, or a file"),
    "a class that is missing": (
        saved("v.npy", VOTES),
        {"missing": ["1"]},
        "missing must be values that are no class",
    ),
    "a class called nan": (saved("v.npy", VOTES), {"classes": ["nan", "b"]}, 'none of them empty or "nan"'),
    "one class": (saved("v.npy", VOTES), {"classes": ["a"]}, "at least two"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_says_how_to_say_it(name: str, tmp_path: Path) -> None:
    save, how, message = REFUSED[name]
    with pytest.raises(dt.InvalidArgument, match=message):
        read(save(tmp_path), **how)


def test_keys_are_the_column_that_is_named_or_the_number_of_the_row(tmp_path: Path) -> None:
    save, how, _ = FILES["keys"]
    path = save(tmp_path)
    with_keys = [key for batch in dt.VoteFile(path, teachers=K, classes=3, **how) for key in batch.keys]
    assert with_keys == [f"x{n}".encode() for n in range(N)]
    file = dt.VoteFile(FILES["a header"][0](tmp_path), teachers=K, classes=3, part=2)
    assert [key for batch in file for key in batch.keys] == [f"row {n}".encode() for n in range(N)]
    assert (file.names, len(file)) == (("a", "b", "c", "d", "e"), N)


def test_folders_of_parquet_parts(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    for number, rows in enumerate((range(4), range(4, N))):
        columns: dict[str, Any] = {"id": [f"x{n}" for n in rows]}
        columns |= {f"site {k}": NAMES[VOTES[k, list(rows)]] for k in range(K)}
        columns["site 2"] = [None] * len(rows)
        parquet.write_table(pyarrow.table(columns), tmp_path / f"part-{number}.parquet")
    how = {"classes": NAMES.tolist(), "missing": ["nan"]}
    assert (read(tmp_path, keys="id", **how) == WITH_MISSING).all()
    assert (read(tmp_path / "part-0.parquet", keys="id", **how) == WITH_MISSING[:, :4]).all()
    with pytest.raises(dt.InvalidArgument, match="keys must be the column that identifies the inputs"):
        read(tmp_path, **how)
    parquet.write_table(pyarrow.table({"id": ["x"]}), tmp_path / "part-9.parquet")
    with pytest.raises(dt.InvalidArgument, match="parts with the columns"):
        read(tmp_path, keys="id", **how)


@pytest.mark.parametrize(
    ("content", "how", "message"),
    [
        ("0,1,5x\n0,1,2\n", {}, "header must be given"),  # a header, or votes and a mark for a missing one?
        ("0,1,?\n0,1,2\n", {}, "Values that mean a missing vote go into missing"),
        ("1,2,3\n0,1,2\n", {}, "header must be given"),
        ("2,0,1\n0,1,2\n", {}, "header must be given"),
        ("a,b,c\nb,b,b\n", {"classes": ["a", "b", "c"], "layout": "inputs-by-teachers"}, "header must be given"),
        ("id,0,1,2\np,0,1,2\n", {"keys": 0}, "header must be given"),
        ("id,0,1,2\np,0,1,2\n", {"keys": "0"}, "header must be given"),
        ("id,0,1,2\np,0,1,2\n", {"keys": "0", "header": True}, "keys must be the name or position of one column"),
        ("id,id,a,b,c\np,q,0,1,2\n", {"keys": "id"}, "keys must be the name or position of one column"),
        ("id,a,b,c\np,0,1,2\n", {"keys": "\u00b2"}, r"keys must be one of the columns 0\.\.3, got"),
        ("id,a,b,c\np,0,1,2\n,0,1,2\n", {"keys": "id"}, "keys must be a column without empty cells"),
        ("id,a,b,c\np,0,1,2\n", {"keys": "id", "layout": "teachers-by-inputs"}, "keys must be left out"),
        ("id,a,b,c\np,0,1,2\n", {"keys": 4}, r"keys must be one of the columns 0\.\.3, got 4"),
        ("p,0,1,2\nq,0,1,2\n", {"keys": -1}, r"keys must be one of the columns 0\.\.3, got -1"),
        ("id,a,b,c\np,0,1,2\n \t,0,1,2\n", {"keys": "id"}, "keys must be a column without empty cells"),
        ("a,a,b\n0,1,2\n", {}, "a different name for each teacher, got 'an empty name, or a name twice'"),
        ("a,b,c\n", {}, "at least one input"),
        ("id,a,b,c\n", {"keys": "id"}, "at least one input"),
        ("a,b,c\n9007199254740993,1,1\n", {"classes": ["9007199254740992", "1"]}, "votes that are one of"),
        ("a,b,c\nNA,,NA\n", {"classes": ["NA", "no"]}, r'missing=\["nan"\]'),
        ("# votes\n0,1,2\n", {"header": True}, "as many cells in each line, got '1 in the first line and 3 in line 2'"),
        ("x,y,z,u,v\n3,0,0,0,0\n", {}, "columns of counts named"),
        ("a,b,c\n0,1,2\n\n0,1,2\n", {}, "without empty lines"),
        ("a\n0\n1\n\n", {"teachers": 1}, "without empty lines"),
        ('a,b,c\n0,"1,2\n0,1,2\n', {}, "can be read, got .* A quote is never closed"),
        ('a,b,c\n0,1,"2\n0,1,2"\n', {}, "whose cells end in their line"),
        ("a;b;c\n0;1;2\n", {}, "Text has commas between cells"),
        ("0,0;1,0;2,0\n", {}, "header must be given"),
        ('a,b,c\n"1,000",1,2\n', {}, "votes that are one of"),
        ("a,b,c,\n0,1,2,\n", {}, "1 lines and 4 columns"),
        ("a,b,c\n0,1\0,2\n", {}, "votes that are one of|NUL"),
    ],
)
def test_what_was_once_misread_is_refused(content: str, how: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "v.csv"
    path.write_text(content)
    with pytest.raises(dt.InvalidArgument, match=message) as caught:
        dt.VoteFile(path, **{"teachers": 3, "classes": 5, **how})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "how", "votes"),
    [
        ("1,2,3\n0,1,2\n", {"header": True}, [[0], [1], [2]]),
        ("1,2,3\n0,1,2\n", {"header": False, "layout": "inputs-by-teachers"}, [[1, 0], [2, 1], [3, 2]]),
        ("id,0,1,2\np,0,1,2\n", {"keys": "id"}, [[0], [1], [2]]),
        ("id,0,1,2\np,0,1,2\n", {"keys": 0, "header": True}, [[0], [1], [2]]),
        (" id ,a,b,c\np,0,1,2\n", {"keys": "id"}, [[0], [1], [2]]),
        ("a,b,c\n0,1,2\n", {"classes": np.int64(5)}, [[0], [1], [2]]),
        ("none,b,b\n,b,none\n", {"classes": ["none", "b"], "missing": ["nan"]}, [[0, -1], [1, 1], [1, 0]]),
        (
            "x,y,z\n9007199254740993,9007199254740992,9007199254740993\n",
            {"classes": BEYOND_FLOATS},
            [[1], [0], [1]],
        ),
        ("a,b,c\r0,1,2\r1,1,1\r", {}, [[0, 1], [1, 1], [2, 1]]),
        (" 0 ,01,2.0\n", {"header": False}, [[0], [1], [2]]),
        ('"a",b,c\n"0",1,-0.0\n\n\n', {}, [[0], [1], [0]]),
    ],
)
def test_what_was_once_misread_is_read(content: str, how: dict[str, Any], votes: Any, tmp_path: Path) -> None:
    path = tmp_path / "v.csv"
    path.write_text(content, newline="")
    (batch,) = dt.VoteFile(path, **{"teachers": 3, "classes": 5, **how})
    assert batch.votes.tolist() == votes


def test_columns_of_counts_go_by_their_names(tmp_path: Path) -> None:
    path = tmp_path / "v.csv"
    path.write_text("dog,eel,cat\n3,0,1\n1,1,2\n")
    how: dict[str, Any] = {"teachers": 4, "classes": NAMES.tolist()}
    assert read(path, **how, header=True).tolist() == [[1, 3, 0], [2, 1, 1]]
    assert read(path, **how, layout="counts").tolist() == [[1, 3, 0], [2, 1, 1]]
    with pytest.raises(dt.InvalidArgument, match="header must be given"):
        read(path, **how)


def test_the_digest_is_that_of_the_votes_in_their_order(tmp_path: Path) -> None:
    """Not that of the bytes: the same votes in another kind of file are the same."""
    first = dt.VoteFile(saved("v.npy", VOTES)(tmp_path), teachers=K, classes=3, part=2).digest
    assert first == dt.VoteFile(saved("w.npy", VOTES.T)(tmp_path), teachers=K, classes=3).digest
    moved = saved("v.npy", VOTES[:, ::-1])(tmp_path)
    assert first != dt.VoteFile(moved, teachers=K, classes=3).digest
    save, how, _ = FILES["keys"]
    assert dt.VoteFile(save(tmp_path), teachers=K, classes=3, **how).digest is None


def test_a_square_table_of_parquet_is_not_guessed(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path, columns = tmp_path / "v.parquet", {str(n): VOTES[:, n] for n in range(K)}
    parquet.write_table(pyarrow.table(columns), path)
    with pytest.raises(dt.InvalidArgument, match="layout must be given"):
        read(path)
    assert (read(path, layout="teachers-by-inputs") == VOTES[:, :K]).all()
    assert (read(path, layout="inputs-by-teachers") == VOTES[:, :K].T).all()
    parquet.write_table(pyarrow.table({"id": list("vwxyz"), **columns}), path)
    assert (read(path, keys="id") == VOTES[:, :K].T).all()  # the rows have keys, so they are the inputs


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (["x", None], "a column without empty cells, got 'an empty one in row 1'"),
        (["x", ""], "a column without empty cells"),
        ([1.0, 2.0], "a column of text or integers, got 'double'"),
        ([b"\xff", b"x"], "a column of text or integers, got 'binary'"),
    ],
)
def test_keys_of_parquet_are_text_or_integers(keys: list[Any], message: str, tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    votes: dict[str, Any] = {"a": [2**60 + 1, None], "b": [2**60, 2**60], "c": [2**60, 2**60]}
    parquet.write_table(pyarrow.table({"id": keys, **votes}), tmp_path / "v.parquet")
    how: dict[str, Any] = {"teachers": 3, "classes": [str(2**60), str(2**60 + 1)], "missing": ["nan"]}
    with pytest.raises(dt.InvalidArgument, match=message):
        read(tmp_path / "v.parquet", keys="id", **how)
    parquet.write_table(pyarrow.table({"id": [2**60 + 1, 7], **votes}), tmp_path / "v.parquet")
    (batch,) = dt.VoteFile(tmp_path / "v.parquet", keys="id", **how)
    assert (batch.keys, batch.votes.tolist()) == ([b"1152921504606846977", b"7"], [[1, -1], [0, 0], [0, 0]])
