"""What is too large is refused before it is opened."""

from __future__ import annotations

import os
import zipfile

import pytest

from darrm_torch.errors import InvalidArgument
from darrm_torch.limits import MOST_BYTES, check_file, check_unpacked, read_file


def test_only_regular_files_are_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_text("four")
    assert check_file("file", tmp_path / "file") == tmp_path / "file"
    for path, reason in (
        (tmp_path / "pipe", "a pipe, a socket or a device"),
        (tmp_path, "a folder"),
        ("/dev/zero", "a pipe, a socket or a device"),
        (tmp_path / "none", "Check the spelling"),
        ("a\0b", "It cannot be read"),
    ):
        with pytest.raises(InvalidArgument, match=reason):
            check_file("file", path)
    (tmp_path / "empty").touch()
    for path in [tmp_path / "empty", *(["/proc/kmsg"] if os.path.exists("/proc/kmsg") else [])]:  # reading that blocks
        for read in (check_file, read_file):
            with pytest.raises(InvalidArgument, match="This is an empty file"):
                read("file", path)
    assert check_file("log", tmp_path / "empty", may_be_empty=True).name == "empty"
    with pytest.raises(InvalidArgument, match=r"of at most 3 bytes, got .* It has 4"):
        check_file("file", tmp_path / "file", most=3)


def test_a_file_that_is_exchanged_before_it_is_opened_is_refused(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("four")
    assert read_file("file", tmp_path / "file") == b"four"
    os.mkfifo(tmp_path / "pipe")
    real = os.open
    monkeypatch.setattr(os, "open", lambda path, flags: real(tmp_path / "pipe", flags))
    with pytest.raises(InvalidArgument, match="a pipe, a socket or a device"):
        read_file("file", tmp_path / "file")


def test_an_archive_may_not_unpack_to_much_more_than_it_is(tmp_path):
    with zipfile.ZipFile(tmp_path / "small.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", bytes(2**20))
    check_unpacked("inputs", tmp_path / "small.npz", expected="an array")
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", bytes(2**20))
        archive.infolist()[0].file_size = MOST_BYTES + 1  # what a bomb of two megabytes declares
    with pytest.raises(InvalidArgument, match=r"It unpacks to [\d,]+ bytes. Save it without compression"):
        check_unpacked("inputs", tmp_path / "bomb.npz", expected="an array")
    (tmp_path / "text.npz").write_text("no archive")
    check_unpacked("inputs", tmp_path / "text.npz", expected="an array")
