"""Votes as people keep them: ten kinds of files, each read in one way or refused with the argument that resolves it."""

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
        "'eel' in row",
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
    "keys of nothing": (saved("v.csv", text(VOTES.T, header="a,b,c,d,e\n")), {"keys": "id"}, "keys must be one of"),
    "no table": (saved("v.csv.gz", "a"), {}, "5 columns|lines"),
    "no gzip": (saved("v.csv.gz", lambda path: path.write_bytes(b"0,1\n")), {}, "can be read"),
    "a line without end": (saved("v.csv.gz", "0," * 2**24), {}, "a line has over"),
    "no array": (saved("v.npy", lambda path: path.write_bytes(b"0,1\n")), {}, "array of numbers"),
    "no Parquet": (saved("v.parquet", "0,1\n"), {}, "a Parquet file"),
    "another ending": (saved("v.json", "[]"), {}, "a folder of .parquet files, or a file"),
    "a class that is missing": (saved("v.npy", VOTES), {"missing": ["1"]}, "missing must be no class"),
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
