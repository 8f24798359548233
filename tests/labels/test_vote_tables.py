"""Files that are damaged, are not what they seem, or would take all memory are refused in one line."""

from __future__ import annotations

import gzip
import io
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import darrm_torch as dt
from darrm_torch.labels.vote_tables import lines_of, matrix_of, parquet_batches, parquet_shape, parts_of

MATRIX = np.array([[0, 1, 2]] * 5)
PACKED = gzip.compress(b"a,b,c\n" + b"0,1,2\n" * 1000, mtime=0)


def npz(shape: tuple[int, ...], **content: bytes) -> Callable[[Path], None]:
    """An archive with an array whose header says ``shape`` and that has 240 bytes, or with other files."""

    def save(path: Path) -> None:
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(header, {"descr": "<i8", "fortran_order": False, "shape": shape})
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in (content or {"a.npy": header.getvalue() + bytes(240)}).items():
                archive.writestr(name, data)

    return save


def written(array: Any, how: Callable[..., Any] = np.save) -> Callable[[Path], None]:
    def save(path: Path) -> None:
        with path.open("wb") as stream:
            how(stream, array)

    return save


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("v.csv", "a,b\n0,1\n".encode("utf-16"), "text in UTF-8"),
        ("v.csv", "a,b\n0,1\n".encode("utf-16-le"), "as many cells in each line|NUL"),
        ("v.csv", b"a,b\n0,\xe9\n", "text in UTF-8"),
        ("v.csv", b"0," * 2**23 + b"\n", "a line has over"),
        ("v.csv", b"1" * 200_000 + b",0\n", "field larger than"),
        ("v.csv", b'"0"x,1\n', "expected after"),
        ("v.csv.gz", PACKED[:-12], "ended before"),
        ("v.csv.gz", PACKED[:20] + b"xxxx" + PACKED[24:], "decompressing|CRC"),
        ("v.csv.gz", PACKED + b"more", "Not a gzipped file"),
        ("v.npz", written(MATRIX), "Rename it: it holds one array, .npy"),
        ("v.npy", written(MATRIX, np.savez), "Rename it: it holds an archive, .npz"),
        ("v.npz", written(MATRIX.astype(object), np.savez), "Python objects, which are not read"),
        ("v.npy", written(MATRIX.astype(object)), "array of numbers or text"),
        ("v.npy", b"\x93NUMPY\x02\x00\x00\x10\x00\x00" + b"[" * 4096, "array of numbers or text"),
        ("v.npy", written(MATRIX > 0), r"votes.astype\(int\)"),
        ("v.npy", written(MATRIX.astype("S")), r"votes.astype\(str\)"),
        ("v.npz", npz((10**9, 3)), "as large as its header says"),
        ("v.npz", npz((-1, 3)), "array of numbers or text"),
        ("v.npz", npz((), **{"a.txt": b"hello"}), "array of numbers or text"),
        ("v.npz", npz((), **{"a.npy": b"hello"}), "array of numbers or text"),
    ],
)
def test_damage_is_one_line(name: str, content: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / name
    content(path) if callable(content) else path.write_bytes(content)
    with pytest.raises(dt.InvalidArgument, match=message) as caught:
        matrix_of(path, None) if name.startswith("v.np") else list(lines_of(path))
    assert "\n" not in str(caught.value)


def test_an_archive_is_unpacked_within_limits(tmp_path: Path) -> None:
    path = tmp_path / "v.npz"
    npz((10, 3))(path)
    assert matrix_of(path, "a").shape == (10, 3)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("a.npy", "w") as stream:
        stream.write(bytes(10**6))
    data = path.read_bytes().replace((10**6).to_bytes(4, "little"), (2**32 - 2).to_bytes(4, "little"))
    path.write_bytes(data)
    with pytest.raises(dt.InvalidArgument, match="It unpacks to 4,294,967,294 bytes"):
        dt.VoteFile(path, teachers=3, classes=5)


@pytest.mark.parametrize("other", ["part-1.csv", "part-1.parquet.tmp", "site=3", "folder.parquet", "pipe.parquet"])
def test_no_file_of_a_folder_is_passed_over(other: str, tmp_path: Path) -> None:
    for name in ("part-0.parquet", "_SUCCESS", ".part-0.parquet.crc"):
        (tmp_path / name).touch()
    assert [part.name for part in parts_of(tmp_path)] == ["part-0.parquet"]
    place = tmp_path / other
    if other.startswith("pipe"):
        os.mkfifo(place)
    else:
        place.touch() if "part" in other else place.mkdir()
    with pytest.raises(dt.InvalidArgument, match=r"a folder of \.parquet files only"):
        parts_of(tmp_path)


def test_parts_have_the_same_columns_in_the_same_order(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    tables: dict[str, dict[str, Any]] = {
        "part-0": {"id": ["x", "y"], "a": [0, 1]},
        "part-1": {"id": pyarrow.array([], pyarrow.string()), "a": pyarrow.array([], pyarrow.int64())},
        "part-2": {"id": [7], "a": [None]},
    }
    for name, columns in tables.items():
        parquet.write_table(pyarrow.table(columns), tmp_path / f"{name}.parquet")
    parts = parts_of(tmp_path)
    assert parquet_shape(parts) == (["id", "a"], 3)
    read = list(parquet_batches(parts, key=0, rows=10))
    assert [key for _, keys in read for key in keys or []] == [b"x", b"y", b"7"]
    parquet.write_table(pyarrow.table({"a": [0], "id": ["x"]}), tmp_path / "part-3.parquet")
    with pytest.raises(dt.InvalidArgument, match=r"parts with the columns \['id', 'a'\], got 'others in part-3"):
        parquet_shape(parts_of(tmp_path))
    parquet.write_table(pyarrow.table({"a": [[0]], "id": ["x"]}), tmp_path / "part-0.parquet")
    with pytest.raises(dt.InvalidArgument, match="columns of numbers or text, got 'list"):
        parquet_shape(parts_of(tmp_path))
    damaged = tmp_path / "part-2.parquet"
    content = damaged.read_bytes()
    damaged.write_bytes(content[:40] + b"U" * 40 + content[80:])
    with pytest.raises(dt.InvalidArgument, match="can be read"):
        list(parquet_batches([damaged], key=0, rows=10))
