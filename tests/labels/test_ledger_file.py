"""A ledger's file: what a crash, a flipped byte, a second name, an old copy or an old format does to it."""

from __future__ import annotations

import contextlib
import datetime
import errno
import io
import itertools
import os
import random
import stat
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path
from typing import ClassVar

import pytest

from darrm_torch import BudgetExceeded, LedgerError, PrivacyGuarantee, PrivacyLedger
from tests.processes import processor_seconds

ONE = PrivacyGuarantee(epsilon=0.01, delta=1e-7)
FOR_20 = PrivacyGuarantee(epsilon=0.2, delta=2e-6)


def key(number: int) -> bytes:
    return number.to_bytes(8, "big")


def ones(new):
    return [1] * len(new)


def forbidden(new):
    pytest.fail("labels were drawn")


def facts(file: Path) -> tuple[object, ...]:
    """All that a ledger says."""
    ledger = PrivacyLedger(file, timeout=0.002)
    try:
        labels = [PrivacyLedger.answer(ledger, [key(number)], forbidden) for number in range(ledger.count)]
        return ledger.budget, ledger.count, ledger.charges, labels, ledger.bound("teachers"), ledger.note("for")
    finally:
        ledger.close()


def written(file: Path, labels: int = 4) -> None:
    ledger = PrivacyLedger(file, FOR_20, cost=ONE)
    ledger.bind({"teachers": "abc"})
    ledger.note("for", "tests")
    for number in range(labels):
        ledger.answer([key(number)], lambda new, number=number: [number % 2])
    ledger.close()


# --- damage -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_flipped_byte_is_refused_or_changes_nothing(tmp_path):
    file = tmp_path / "ledger"
    written(file, 2)
    whole, content = facts(file), file.read_bytes()
    refused = 0
    for place in range(len(content)):
        file.write_bytes(content[:place] + bytes([content[place] ^ (1 << place % 8)]) + content[place + 1 :])
        try:
            assert facts(file) == whole, place
        except LedgerError:
            refused += 1
    assert len(content) - refused <= 2 * 124  # what is harmless is in one of the two marks


@pytest.mark.slow
def test_every_cut_is_refused_and_every_interrupted_commit_is_whole_or_undone(tmp_path):
    file = tmp_path / "ledger"
    written(file, 1)
    before, marked = facts(file), file.read_bytes()
    ledger = PrivacyLedger(file, cost=ONE)
    ledger.answer([key(1)], lambda new: [1])
    ledger.close()
    after, content = facts(file), file.read_bytes()
    head = len(content) - len(content[content.index(b'{"fact"') :])
    for end in range(len(content)):
        file.write_bytes(content[:end])
        with pytest.raises(LedgerError):
            facts(file)
    for end in range(len(marked), len(content) + 1):  # killed before the mark was written
        file.write_bytes(marked[:head] + content[head:end])
        assert facts(file) == (after if end == len(content) else before)
        ledger = PrivacyLedger(file, cost=ONE)
        assert ledger.answer([key(1)], lambda new: [1]) == [1]
        ledger.close()
        assert facts(file)[3] == after[3]


def test_two_entries_that_change_places_are_noticed(tmp_path):
    file = tmp_path / "ledger"
    written(file)
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([*lines[:-2], lines[-1], lines[-2]]))
    with pytest.raises(LedgerError, match="damaged"):
        PrivacyLedger(file)


# --- names ------------------------------------------------------------------------------------------------------------


def test_a_second_hard_link_is_refused(tmp_path):
    file, other = tmp_path / "ledger", tmp_path / "other"
    ledger = PrivacyLedger(file, FOR_20, cost=ONE)
    ledger.answer([key(1)], ones)
    os.link(file, other)
    for attempt in (lambda: ledger.answer([key(2)], forbidden), lambda: PrivacyLedger(other)):
        with pytest.raises(LedgerError, match=r"has 2 names \(hard links\)"):
            attempt()
    other.unlink()
    assert ledger.answer([key(1)], forbidden) == [1]


@pytest.mark.skipif(sys.platform != "linux", reason="paths of open files are named in /proc")
def test_two_paths_to_one_file_never_overspend(tmp_path):
    """Like a bind mount: the link count is one, and no name tells that the two are one file."""
    file = tmp_path / "ledger"
    one = PrivacyLedger(file, FOR_20, cost=ONE)
    folder = os.open(tmp_path, os.O_RDONLY)
    other = PrivacyLedger(f"/proc/self/fd/{folder}/ledger", cost=ONE)
    given = 0
    for _ in range(20):
        for ledger in (one, other):
            with contextlib.suppress(BudgetExceeded):
                given += len(ledger.answer([os.urandom(8)], ones))
    assert given == one.count == other.count == 20
    other.close()
    os.close(folder)


BOUND = """
import contextlib, os, sys
from darrm_torch import BudgetExceeded, PrivacyGuarantee, PrivacyLedger

cost, given = PrivacyGuarantee(epsilon=1.0), 0
ledgers = [PrivacyLedger(sys.argv[1], PrivacyGuarantee(epsilon=20.0), cost=cost)]
ledgers += [PrivacyLedger(path, cost=cost) for path in sys.argv[2:]]
child = os.fork()
for round in range(20):
    for ledger in ledgers:
        with contextlib.suppress(BudgetExceeded):
            ledger.answer([b"%d %d" % (os.getpid(), round)], lambda new: [1 for _ in new])
if not child:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert [ledger.count for ledger in ledgers[1:]] == [ledgers[0].count] * len(ledgers[1:])
with open(sys.argv[1], "ab") as torn:  # what a process leaves that is killed while it writes
    torn.write(b'{"time": "2026-')
again = PrivacyLedger(sys.argv[2], cost=cost)
assert again.count == ledgers[0].count <= 20
print(again.count)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="mount namespaces are of Linux")
def test_a_bind_mount_never_overspends(tmp_path):
    """A bind mount of the file, and one of its folder: two processes, each by three paths."""
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "file").touch()
    original, bound, in_bound = tmp_path / "one" / "ledger", tmp_path / "file", tmp_path / "other" / "ledger"
    PrivacyLedger(original).close()
    mounts = f"mount --bind {original} {bound} && mount --bind {tmp_path / 'one'} {tmp_path / 'other'}"
    probe = subprocess.run(["unshare", "-m", "sh", "-c", mounts], capture_output=True, text=True, check=False)
    if probe.returncode:
        pytest.skip(f"this machine allows no bind mount: {probe.stderr.strip()}")
    (tmp_path / "ask.py").write_text(BOUND)
    command = f"{mounts} && exec {sys.executable} {tmp_path / 'ask.py'} {original} {bound} {in_bound}"
    done = subprocess.run(["unshare", "-m", "sh", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "20"
    assert PrivacyLedger(original).count == 20


def test_a_symbolic_link_is_the_file_that_it_names(tmp_path):
    written(tmp_path / "ledger")
    (tmp_path / "link").symlink_to("ledger")
    assert facts(tmp_path / "link") == facts(tmp_path / "ledger")


@pytest.mark.parametrize("mask", [0o000, 0o077, 0o777])
def test_only_the_owner_can_read_a_ledger_and_its_head(tmp_path, mask):
    before = os.umask(mask)
    try:
        ledger = PrivacyLedger(tmp_path / "ledger", head=tmp_path / "head")
        ledger.answer([key(1)], ones)
    finally:
        os.umask(before)
    for path in tmp_path.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(list(tmp_path.iterdir())) == 2


def test_a_newer_format_is_refused_by_name(tmp_path):
    file = tmp_path / "ledger"
    written(file)
    file.write_bytes(file.read_bytes().replace(b"format 0002", b"format 0003", 1))
    with pytest.raises(LedgerError, match=r"has format 3, and this version reads format 2: a newer version"):
        PrivacyLedger(file)


# --- power, locks, forks ---------------------------------------------------------------------------------------------


class Disk(io.FileIO):
    """A file that records what reaches it, and when it is made durable."""

    log: ClassVar[list[tuple[str, int, bytes]]] = []

    def write(self, content):
        self.log.append(("write", self.tell(), bytes(content)))
        return super().write(content)

    def truncate(self, size=None):
        self.log.append(("truncate", size, b""))
        return super().truncate(size)


@pytest.fixture
def disk(monkeypatch):
    Disk.log.clear()
    monkeypatch.setattr(io, "FileIO", Disk)
    for name in ("fdatasync", "fsync"):
        monkeypatch.setattr(os, name, lambda number: Disk.log.append(("sync", 0, b"")), raising=False)
    return Disk.log


def after_power_loss(log):
    """The possible contents: all that was synchronised, and any part of what was not, the last write cut anywhere."""
    last = max((number for number, step in enumerate(log) if step[0] == "sync"), default=-1)
    durable, pending = log[: last + 1], log[last + 1 :]
    for chosen in itertools.product((False, True), repeat=len(pending)):
        steps = durable + [step for step, kept in zip(pending, chosen, strict=True) if kept]
        torn = any(chosen) and steps[-1][0] == "write"
        for cut in [None, 0, 1, len(steps[-1][2]) // 2] if torn else [None]:
            content = b""
            for number, (kind, place, part) in enumerate(steps):
                if kind == "truncate":
                    content = content[:place].ljust(place, b"\0")
                elif kind == "write":
                    reached = part if cut is None or number < len(steps) - 1 else part[:cut]
                    content = content[:place].ljust(place, b"\0") + reached + content[place + len(reached) :]
            yield content


def test_no_loss_of_power_loses_a_label_that_was_given_out(tmp_path, disk):
    """At every step of a ledger, whatever part of the unsynchronised writes reached the disk."""
    file, crashed, given, states = tmp_path / "ledger", tmp_path / "crashed", [], set()
    ledger = PrivacyLedger(file, FOR_20, cost=ONE)
    started = len(disk)
    for number in range(3):
        ledger.answer([key(number)], lambda new, number=number: [number % 2])
        given.append((len(disk), number))
    ledger.close()
    log = list(disk)
    for moment in range(started, len(log) + 1):
        for content in after_power_loss(log[:moment]):
            if (moment, content) in states:
                continue
            states.add((moment, content))
            crashed.write_bytes(content)
            ledger = PrivacyLedger(crashed, cost=ONE)
            for steps, number in given:
                if steps <= moment:
                    assert ledger.answer([key(number)], forbidden) == [number % 2]
            assert ledger.answer([key(9)], ones) == [1]
            ledger.close()
            assert PrivacyLedger(crashed).count == ledger.count
    assert len(states) > 100


def test_an_entry_of_an_ended_process_is_on_disk_before_anybody_relies_on_it(tmp_path, disk, monkeypatch):
    def interrupted(number):
        raise KeyboardInterrupt

    file = tmp_path / "ledger"
    ledger = PrivacyLedger(file, cost=ONE)
    with monkeypatch.context() as ended:
        for name in ("fdatasync", "fsync"):
            ended.setattr(os, name, interrupted, raising=False)
        with pytest.raises(KeyboardInterrupt):
            ledger.answer([key(1)], ones)
    ledger.close()
    disk.clear()
    assert PrivacyLedger(file, cost=ONE).answer([key(1)], forbidden) == [1]
    assert ("sync", 0, b"") in disk


def test_an_entry_that_does_not_reach_the_disk_is_undone(tmp_path, monkeypatch):
    def fails(number):
        raise OSError(errno.EIO, "Input/output error")

    file = tmp_path / "ledger"
    ledger = PrivacyLedger(file, FOR_20, cost=ONE)
    with monkeypatch.context() as broken:
        for name in ("fdatasync", "fsync"):
            broken.setattr(os, name, fails, raising=False)
        with pytest.raises(LedgerError, match=r"Input/output error\. Nothing was given out"):
            ledger.answer([key(1)], lambda new: [0])
    assert ledger.count == PrivacyLedger(file).count == 0
    assert ledger.answer([key(1)], ones) == [1]


def test_locks_that_the_file_system_lacks_are_one_clear_error_at_once(tmp_path, monkeypatch):
    ledger = PrivacyLedger(tmp_path / "ledger", timeout=600.0)

    def fails(stream, kind):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", fails)
    with pytest.raises(LedgerError, match="No locks available"):
        ledger.answer([key(1)], forbidden)


def test_another_copy_of_equal_length_is_noticed(tmp_path):
    """A backup is restored in place and used by another process; counts and sizes are as they were."""
    file = tmp_path / "ledger"
    ledger = PrivacyLedger(file, FOR_20, cost=ONE)
    backup = file.read_bytes()
    ledger.answer([key(1)], ones)
    file.write_bytes(backup)
    other = PrivacyLedger(file, cost=ONE)
    other.answer([key(2)], ones)
    other.close()
    for number in (3, 1):
        with pytest.raises(LedgerError, match="an older copy took its place"):
            ledger.answer([key(number)], forbidden)


@pytest.mark.parametrize("replaced", [True, False])
def test_a_file_that_is_taken_away_while_teachers_vote_is_noticed(tmp_path, replaced):
    file = tmp_path / "ledger"
    ledger = PrivacyLedger(file, FOR_20, cost=ONE)

    def draw(new):
        content = file.read_bytes()
        file.rename(tmp_path / "old")
        if replaced:
            file.write_bytes(content)
        return ones(new)

    with pytest.raises(LedgerError, match="moved or replaced"):
        ledger.answer([key(1)], draw)
    assert PrivacyLedger(tmp_path / "old").count == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("reads", [True, False])
def test_a_child_that_is_forked_while_teachers_vote_commits_nothing(tmp_path, reads):
    ledger, status = PrivacyLedger(tmp_path / "ledger", FOR_20, cost=ONE), []

    def draw(new):
        child = os.fork()
        if child:
            status.append(os.waitpid(child, 0)[1])
            return [1]
        if reads:
            ledger.count  # noqa: B018 (opens the file again)
        return [0]

    parent = os.getpid()
    try:
        label = ledger.answer([key(1)], draw)
    except LedgerError as error:
        os._exit(0 if os.getpid() != parent and "forked" in str(error) else 1)
    if os.getpid() != parent:
        os._exit(2)
    assert (label, status, ledger.count) == ([1], [0], 1)
    assert PrivacyLedger(tmp_path / "ledger").answer([key(1)], forbidden) == [1]


def test_a_ledger_that_is_closed_while_it_answers_commits_nothing(tmp_path):
    ledger = PrivacyLedger(tmp_path / "ledger", FOR_20, cost=ONE)
    with pytest.raises(LedgerError, match="was closed"):
        ledger.answer([key(1)], lambda new: ledger.close() or [1])
    assert ledger.count == 0


@pytest.mark.parametrize("clock", ["1970-01-01T00:00:00+00:00", "9999-12-31T23:59:59+00:00"])
def test_charges_keep_their_order_under_any_clock(tmp_path, monkeypatch, clock):
    class Clock(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls.fromisoformat(clock)

    written(tmp_path / "ledger", 2)
    monkeypatch.setattr("darrm_torch.labels.ledger.datetime", Clock)
    ledger = PrivacyLedger(tmp_path / "ledger", cost=ONE)
    assert ledger.answer([key(7)], ones) == [1]
    assert [charge.time == clock for charge in PrivacyLedger(tmp_path / "ledger").charges] == [False, False, True]


def test_a_tail_that_is_repeated_or_foreign_changes_nothing(tmp_path):
    file = tmp_path / "ledger"
    written(file)
    whole, content = facts(file), file.read_bytes()
    lines = content.splitlines(keepends=True)
    for tail in (lines[-1], b"".join(lines[-3:]), content, bytes(10_000), b"{}\n" * 100, os.urandom(1000)):
        file.write_bytes(content + tail)
        assert facts(file) == whole
        assert PrivacyLedger(file, cost=ONE).answer([key(50)], ones) == [1]
        assert file.read_bytes().startswith(lines[0])
        assert PrivacyLedger(file).count == 5


def test_large_empty_and_unfinished_files_are_no_ledgers(tmp_path):
    file = tmp_path / "ledger"
    with file.open("wb") as stream:
        stream.truncate(100_000_000)  # zeros

    def refused() -> None:
        with pytest.raises(LedgerError, match="is no ledger"):
            PrivacyLedger(file)

    assert processor_seconds(refused, below=1) < 1
    for content in (b"", b"darrm-torch led"):
        file.write_bytes(content)
        with pytest.raises(LedgerError, match="is no ledger: it is empty or ends in its first line"):
            PrivacyLedger(file, timeout=0.01)
    for path in (tmp_path, Path("/dev/null"), Path("/dev/zero")):
        with pytest.raises(LedgerError, match="is no ledger"):
            PrivacyLedger(path, timeout=0.01)
    (tmp_path / "dangling").symlink_to("nowhere")
    with pytest.raises(LedgerError, match="is missing"):
        PrivacyLedger(tmp_path / "dangling", timeout=0.01)
    assert not (tmp_path / "nowhere").exists()


def test_an_export_reads_one_entry_at_a_time(tmp_path):
    file = tmp_path / "ledger"
    ledger = PrivacyLedger(file)
    for number in range(20):
        ledger.answer([key(1000 * number + one) for one in range(1000)], ones)
    tracemalloc.start()
    try:
        with open(os.devnull, "w", encoding="utf-8") as stream:
            ledger.export_json(stream)
        assert tracemalloc.get_traced_memory()[1] < file.stat().st_size
    finally:
        tracemalloc.stop()


# --- speed ------------------------------------------------------------------------------------------------------------


def test_a_call_costs_the_same_however_many_labels_there_are(tmp_path, monkeypatch):
    """Counted in bytes that are read, which no busy machine changes."""
    monkeypatch.setattr(os, "fdatasync", lambda number: None, raising=False)
    few, many = tmp_path / "few", tmp_path / "many"
    PrivacyLedger(few).answer([key(number) for number in range(10)], ones)
    PrivacyLedger(many).answer([key(number) for number in range(20_000)], ones)
    taken = []
    for file in (few, many):
        ledger = PrivacyLedger(file)
        ledger.answer([b"first"], ones)
        start = bytes_read()
        for number in range(50):
            ledger.answer([b"new%d" % number], ones)
        taken.append(bytes_read() - start)
    assert taken[1] < 2 * taken[0]


def bytes_read() -> int:
    if sys.platform != "linux":
        pytest.skip("counts of reads are in /proc")
    return int(Path("/proc/self/io").read_text().split()[1])


@pytest.mark.slow
def test_single_calls_are_linear(tmp_path, monkeypatch):
    """The last 3,000 of 30,000 calls take no longer than the first of another file, made in turns with them."""
    monkeypatch.setattr(os, "fdatasync", lambda number: None, raising=False)
    budget = PrivacyGuarantee(epsilon=1000.0, delta=0.01)
    long, short = (PrivacyLedger(tmp_path / name, budget, cost=ONE) for name in ("long", "short"))
    for number in range(27_000):
        long.answer([key(number)], ones)
    times = {long: 0.0, short: 0.0}
    for number in range(27_000, 30_000):
        for ledger in times:
            begin = time.process_time()
            ledger.answer([key(number)], ones)
            times[ledger] += time.process_time() - begin
    assert times[long] < 2 * times[short]
    long.close()
    assert processor_seconds(lambda: PrivacyLedger(tmp_path / "long").close(), below=9) < 9
    assert PrivacyLedger(tmp_path / "long").count == 30_000


# --- kills ------------------------------------------------------------------------------------------------------------

KILLS = """
import os, random, signal, sys, time
from darrm_torch import PrivacyGuarantee, PrivacyLedger
folder, kills = sys.argv[1], int(sys.argv[2])
chance = random.Random(5)
for kill in range(kills):
    child = os.fork()
    if not child:
        coin = random.Random(kill)
        ledger = PrivacyLedger(
            f"{folder}/ledger", cost=PrivacyGuarantee(epsilon=0.01, delta=1e-7), head=f"{folder}/head"
        )
        out = os.open(f"{folder}/out-{kill}", os.O_WRONLY | os.O_CREAT)
        while True:
            keys = [coin.randbytes(8) for _ in range(coin.choice([1, 1, 3, 400]))]
            labels = ledger.answer(keys, lambda new: [coin.randrange(2) for _ in new])
            os.write(out, "".join(f"{key.hex()} {label}\\n" for key, label in zip(keys, labels)).encode())
    time.sleep(chance.uniform(0.0, 0.08))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_three_hundred_kills_and_three_thousand_flips(tmp_path):
    """No label without its charge, no second draw, and every damaged file refused or unchanged."""
    kills, chance = 300, random.Random(5)
    subprocess.run([sys.executable, "-c", KILLS, str(tmp_path), str(kills)], check=True)
    out: dict[bytes, int] = {}
    for kill in range(kills):
        file = tmp_path / f"out-{kill}"
        for line in file.read_text().splitlines() if file.exists() else []:
            name, _, label = line.partition(" ")
            out[bytes.fromhex(name)] = int(label)
    ledger = PrivacyLedger(tmp_path / "ledger", head=tmp_path / "head")
    assert ledger.answer([*out], forbidden) == [*out.values()]
    assert ledger.count >= len(out) > kills
    assert ledger.count == sum(charge.labels for charge in ledger.charges)
    small = tmp_path / "small"
    written(small, 12)
    whole, content = facts(small), small.read_bytes()
    for _ in range(3000):
        place, bit = chance.randrange(len(content)), 1 << chance.randrange(8)
        small.write_bytes(content[:place] + bytes([content[place] ^ bit]) + content[place + 1 :])
        with contextlib.suppress(LedgerError):
            assert facts(small) == whole
