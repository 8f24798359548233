"""Files are written whole, for whom they are meant, and only where a new or a regular file may be."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from darrm_torch.errors import InvalidArgument
from darrm_torch.files import make_private_folder, weights_in, write_private, write_whole

MASKS = [0o000, 0o022, 0o077, 0o777]


@pytest.mark.parametrize("mask", MASKS)
def test_private_files_and_folders_are_for_their_owner_under_any_umask(tmp_path, mask):
    before = os.umask(mask)
    try:
        make_private_folder(tmp_path / "one" / "two")
        with write_whole(tmp_path / "one" / "two" / "file.txt", private=True) as beside:
            beside.write_text("votes")
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    assert modes == {"one": 0o700, "two": 0o700, "file.txt": 0o600}
    assert os.umask(before) == before


@pytest.mark.parametrize("content", ["a \udcff b", b"a \\udcff b"])
def test_a_private_file_takes_any_text(tmp_path, content):
    write_private(tmp_path / "report.txt", content)
    assert (tmp_path / "report.txt").read_bytes() == b"a \\udcff b"
    assert stat.S_IMODE((tmp_path / "report.txt").stat().st_mode) == 0o600


def test_a_folder_that_exists_keeps_its_permissions(tmp_path):
    tmp_path.chmod(0o755)
    make_private_folder(tmp_path)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "file" / "folder", Path("a\0b")):
        with pytest.raises(InvalidArgument, match="runs must be a folder that exists or can be created"):
            make_private_folder(place, "runs")


@pytest.mark.parametrize("name", ["teacher-0.pt", "heads.pt"])
def test_what_a_killed_process_left_is_no_teacher(tmp_path, name):
    for file in (name, f".{name}-k1ll3d.pt"):
        (tmp_path / file).touch()
    assert weights_in(tmp_path) == [tmp_path / name]


def test_links_folders_pipes_and_devices_are_not_replaced(tmp_path):
    target = tmp_path / "target"
    target.write_text("precious")
    (tmp_path / "link").symlink_to(target)
    (tmp_path / "dangling").symlink_to(tmp_path / "new")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    before = sorted(path.name for path in tmp_path.iterdir())
    for name in ("link", "dangling", "folder", "pipe"):
        with pytest.raises(FileExistsError, match="is not replaced"), write_whole(tmp_path / name):
            pytest.fail("it was started")
    assert target.read_text() == "precious"
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    with pytest.raises(FileExistsError, match="device"), write_whole(Path("/dev/null")):
        pytest.fail("it was started")
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


def test_a_link_that_is_planted_while_the_file_is_written_is_not_replaced(tmp_path):
    (tmp_path / "target").write_text("precious")
    with pytest.raises(FileExistsError, match="a link"), write_whole(tmp_path / "out"):
        (tmp_path / "out").symlink_to("target")
    assert (tmp_path / "target").read_text() == "precious"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "target"]


def test_a_file_is_on_disk_before_it_gets_its_name(tmp_path, monkeypatch):
    steps = []
    monkeypatch.setattr(os, "fsync", lambda number: steps.append("on disk"))
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda *names: (steps.append("named"), replace(*names)))
    with write_whole(tmp_path / "file") as beside:
        beside.write_text("whole")
    assert steps == ["on disk", "named"]


UNPRIVILEGED = """
import os, sys
from pathlib import Path
import darrm_torch as dt
from darrm_torch import LedgerError, PrivacyLedger, cli
from darrm_torch.files import write_whole
folder = Path(sys.argv[1])
PrivacyLedger(folder / "first").close()
assert cli.main(["ledger", str(folder / "first")]) == 0  # the other user may not import what this needs
(folder / "first").unlink()
os.setgroups([]), os.setgid(65534), os.setuid(65534)
os.chdir(folder)

def refused(kind, words, action):
    try:
        action()
    except kind as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"not refused: {words}")

def write(name):
    with write_whole(Path(name)) as beside:
        beside.write_text("new")

# files of one's own that are read-only
(folder / "result").write_text("old")
(folder / "result").chmod(0o400)
refused(PermissionError, "read-only", lambda: write("result"))
assert (folder / "result").read_text() == "old"

# a ledger of one's own: read-only, and in a folder that is
ledger = PrivacyLedger("ledger", dt.PrivacyGuarantee(epsilon=1.0), cost=dt.PrivacyGuarantee(epsilon=0.1))
ledger.answer([b"a"], lambda new: [1])
ledger.close()
(folder / "ledger").chmod(0o400)
shown = PrivacyLedger("ledger", cost=dt.PrivacyGuarantee(epsilon=0.1))
assert shown.count == 1 and shown.left(100) == 9
refused(LedgerError, "is read-only. Nothing was given out", lambda: shown.answer([b"b"], lambda new: 1 / 0))
assert cli.main(["ledger", "ledger"]) == 0
(folder / "ledger").chmod(0o600)
folder.chmod(0o500)
assert PrivacyLedger("ledger", cost=dt.PrivacyGuarantee(epsilon=0.1)).answer([b"b"], lambda new: [0]) == [0]
refused(LedgerError, "Permission denied", lambda: PrivacyLedger("new"))
refused(OSError, "Permission denied", lambda: write("new"))
folder.chmod(0o700)

# those of another user
refused(LedgerError, "Permission denied", lambda: PrivacyLedger(sys.argv[2]))
refused(PermissionError, "read-only", lambda: write(sys.argv[2]))
"""


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become another user")
def test_permissions_as_a_user_without_privileges():
    """Root ignores permission bits, so a child process becomes nobody."""
    with tempfile.TemporaryDirectory() as name:  # pytest's own folders are closed to others
        mine, theirs = Path(name) / "mine", Path(name) / "theirs"
        os.chmod(name, 0o711)
        mine.mkdir(mode=0o700)
        os.chown(mine, 65534, 65534)
        theirs.write_text("of root")
        theirs.chmod(0o600)
        command = [sys.executable, "-c", UNPRIVILEGED, str(mine), str(theirs)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
