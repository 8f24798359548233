"""Several processes label together: the same labels, one charge each, and no label without one when a process dies.

Run as a program, this file is the processes: one imports everything, and forks the ranks of each group from itself.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
import traceback
from collections import UserDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import darrm_torch as dt
from darrm_torch.teachers.structures import rows_of
from tests.processes import HANGS, environment, free_port, running, wait_for

TEACHERS, QUERIES = 5, 23


class Teacher(nn.Module):
    """A linear teacher that fails when a number in its inputs says so."""

    def __init__(self, number: int, outputs: int = 2) -> None:
        super().__init__()
        self.number = number
        self.linear = nn.Linear(4, outputs)

    def forward(self, inputs: Tensor) -> Tensor:
        if bool((inputs == 1000.0).any()) and self.number == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        logits = self.linear(inputs)
        return torch.where((inputs == 100.0).any() & (self.number == 1), torch.nan, logits)


class Reader(nn.Module):
    """A teacher that takes what a tokenizer returns, with more beside it, and returns what transformers return."""

    def __init__(self, number: int, outputs: int = 2) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(50, 8), nn.Linear(10, outputs)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, extra: Any) -> SimpleNamespace:
        words = (self.embedding(input_ids) * attention_mask[..., None]).sum(dim=1)
        return SimpleNamespace(loss=None, logits=self.head(torch.cat([words, extra["age"], extra["site"][0]], dim=1)))


def ensemble(ledger: Path | str, budget: float | None = None, **change: Any) -> dt.PrivateMajorityEnsemble:
    torch.manual_seed(change.get("seed", 1))
    build = change.get("build", Teacher)
    models = [build(number, change.get("outputs", 2)) for number in range(TEACHERS)]
    promise = dt.PrivacyGuarantee(epsilon=change.get("epsilon", 0.1))
    profiles = [dt.PrivacyProfile.from_guarantee(promise)] * TEACHERS
    noise = dt.self_bounding_noise(teachers=TEACHERS, allowance=change.get("allowance", 1.0))
    mechanism = dt.DaRRM(noise, insecure_seed=7)
    most = None if budget is None else dt.PrivacyGuarantee(epsilon=budget)
    store, findings = dt.PrivacyLedger(ledger, most), change.get("findings")
    return dt.PrivateMajorityEnsemble(models, mechanism, profiles=profiles, ledger=store, delta=0.0, findings=findings)


FINDINGS: dict[str, Any] = {"outputs": 6, "findings": ["edema", "effusion", "nodule"]}


def inputs() -> Tensor:
    rows = torch.randn(QUERIES, 4, generator=torch.Generator().manual_seed(2))
    rows[-1] = rows[0]  # asked twice, charged once
    return rows


def texts() -> dict[str, Any]:
    """Texts of 2 to 8 tokens with numbers beside them, in a nested structure."""
    generator = torch.Generator().manual_seed(4)
    lengths = torch.randint(2, 9, (QUERIES,), generator=generator)
    rows = {
        "input_ids": torch.randint(1, 50, (QUERIES, 8), generator=generator),
        "attention_mask": (torch.arange(8) < lengths[:, None]).long(),
        "extra": {"age": torch.rand(QUERIES, 1, generator=generator), "site": (torch.ones(QUERIES, 1),)},
    }
    return rows_of(rows, [*range(QUERIES - 1), 0])  # the first is asked twice


def batch_of(numbers: Sequence[int]) -> UserDict[str, Any]:
    """Some of the texts as a tokenizer returns them: a mapping that is no dictionary, padded to the longest."""
    rows = rows_of(texts(), numbers)
    longest = int(rows["attention_mask"].sum(dim=1).max()) if len(numbers) else 0
    return UserDict({name: part if name == "extra" else part[:, :longest] for name, part in rows.items()})


# --- one of the processes ---------------------------------------------------------------------------------------------


def mine(folder: Path, name: str) -> Path | str:
    """The ledger of this process: a file for the first, memory for the others."""
    return folder / f"{name}.ledger" if dist.get_rank() == 0 else ":memory:"


def failure(call: Any) -> str:
    try:
        call()
    except (dt.DarrmError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def label(folder: Path) -> dict[str, Any]:
    """Both splits on the same questions, twice."""
    rows, result = inputs(), {}
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for split, given in (("teachers", rows), ("inputs", rows.tensor_split(ranks)[rank])):
        together = dt.DistributedEnsemble(ensemble(mine(folder, split)), split=split)
        labels = [together(given).tolist() for _ in range(2)]
        result[split] = {"labels": labels, "charged": together.ensemble.ledger.count}
        several = dt.DistributedEnsemble(ensemble(mine(folder, f"{split}-findings"), **FINDINGS), split=split)
        result[split]["findings"] = several(given).tolist()
        parts = torch.arange(QUERIES).tensor_split(1 if split == "teachers" else ranks)
        reading = dt.DistributedEnsemble(ensemble(mine(folder, f"{split}-texts"), build=Reader), split=split)
        result[split]["texts"] = reading(batch_of(parts[rank % len(parts)].tolist())).tolist()
        result[split]["charged for texts"] = reading.ensemble.ledger.count
    return result


def fail(folder: Path) -> dict[str, str]:
    """All that can go wrong while everyone lives."""
    rank, rows = dist.get_rank(), inputs()
    bad = rows[:3].clone()
    bad[1, 0] = math.inf
    poor = dt.DistributedEnsemble(ensemble(mine(folder, "poor"), budget=0.35))
    result = {
        "nan": failure(lambda: poor(bad)),
        "budget": failure(lambda: poor(rows)),
        "inputs": failure(lambda: poor(rows + rank)),
        "width": failure(lambda: poor(rows[:3, :3])),
        "kind": failure(lambda: poor(rows[:3] if rank == 0 else rows[:3].tolist())),
        "split": failure(lambda: dt.DistributedEnsemble(poor.ensemble, split="classes")),
        "teachers": failure(lambda: dt.DistributedEnsemble(ensemble(":memory:", seed=rank))),
        "promises": failure(lambda: dt.DistributedEnsemble(ensemble(":memory:", epsilon=0.1 + rank))),
        "mechanism": failure(lambda: dt.DistributedEnsemble(ensemble(":memory:", allowance=1.0 + rank))),
    }
    # After all that the group still works.
    result["after"] = str(poor(rows[:2]).tolist())
    result["mode"] = str(poor.train().training or poor.ensemble.training)
    return {**result, "charged": str(poor.ensemble.ledger.count)}


def die(folder: Path) -> dict[str, str]:
    """A rank kills itself while it votes on the second batch."""
    together = dt.DistributedEnsemble(ensemble(mine(folder, "die")))
    rows = inputs()
    first = together(rows[:5]).tolist()
    begin = time.monotonic()
    message = failure(lambda: together(torch.cat([rows[5:9], torch.full((1, 4), 1000.0)])))
    return {"first": str(first), "message": message, "seconds": str(time.monotonic() - begin)}


def work(folder: Path) -> dict[str, str]:
    """Label until killed, and write down each label before the next batch."""
    together = dt.DistributedEnsemble(ensemble(mine(folder, "work")))
    generator = torch.Generator().manual_seed(3)
    with (folder / f"given-{dist.get_rank()}.txt").open("w") as file:
        for _ in range(100_000):
            rows = torch.randn(4, 4, generator=generator)
            for row, answer in zip(rows, together(rows).tolist(), strict=True):
                file.write(json.dumps([row.tolist(), answer]) + "\n")
            file.flush()
    return {}


def take_part(task: str, folder: Path) -> None:
    tasks = {"label": [label], "work": [work], "all": [label, fail, die]}
    dist.init_process_group("gloo", timeout=timedelta(seconds=float(os.environ.get("TIMEOUT", str(3 * HANGS)))))
    for one in tasks[task]:
        result = one(folder)
        (folder / f"{one.__name__}-{dist.get_rank()}.json").write_text(json.dumps(result))


def main() -> None:
    """For each line of the input, a task, a folder, and the environment of every rank: split into the ranks."""
    torch.set_num_threads(1)
    if "RANK" in os.environ:  # torchrun has split already
        take_part("label", Path(sys.argv[1]))
        dist.destroy_process_group()  # else a thread of the group may outlive the interpreter, which aborts
        return
    for line in sys.stdin:
        task, folder, environment = json.loads(line)
        split(task, Path(folder), environment)


def split(task: str, folder: Path, environment: dict[str, str]) -> None:
    """Run one group; the numbers and the exit codes of its processes are written down."""
    children = []
    for rank in range(int(environment["WORLD_SIZE"])):
        child = os.fork()
        if not child:
            os.environ.update(environment, RANK=str(rank))
            try:
                take_part(task, folder)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        children.append(child)
    note(folder / "processes.json", children)
    note(folder / "codes.json", [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])


def note(file: Path, numbers: list[int]) -> None:
    """The whole file or none."""
    file.with_suffix(".part").write_text(json.dumps(numbers))
    file.with_suffix(".part").rename(file)


# --- the tests --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def parent() -> Iterator[subprocess.Popen[str]]:
    """The process that forks the ranks."""
    with running([sys.executable, __file__], env=environment(), stdin=subprocess.PIPE, text=True) as process:
        yield process


@contextmanager
def started(
    parent: subprocess.Popen[str], task: str, folder: Path, ranks: int, *, timeout: float = 3 * HANGS
) -> Iterator[list[int]]:
    """The ranks of a group; when the block ends, none is left."""
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    assert parent.stdin is not None
    parent.stdin.write(json.dumps([task, str(folder), where | {"WORLD_SIZE": str(ranks), "TIMEOUT": str(timeout)}]))
    parent.stdin.write("\n")
    parent.stdin.flush()
    wait_for((folder / "processes.json").exists, parent)
    processes: list[int] = json.loads((folder / "processes.json").read_text())
    try:
        yield processes
    finally:
        while parent.poll() is None and not (folder / "codes.json").exists():
            for process in processes:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            time.sleep(0.01)


def finish(parent: subprocess.Popen[str], folder: Path) -> list[int]:
    """The ranks' exit codes."""
    wait_for((folder / "codes.json").exists, parent)
    codes: list[int] = json.loads((folder / "codes.json").read_text())
    return codes


def finished(parent: subprocess.Popen[str], task: str, folder: Path, ranks: int) -> list[int]:
    with started(parent, task, folder, ranks):
        return finish(parent, folder)


def reported(task: str, folder: Path, ranks: int) -> list[Any]:
    return [json.loads((folder / f"{task}-{rank}.json").read_text()) for rank in range(ranks)]


def check_labels(folder: Path, ranks: int) -> None:
    alone = ensemble(":memory:")
    expected = alone(inputs()).tolist()
    assert len(set(expected)) == 2
    assert alone.ledger.count == QUERIES - 1
    findings = ensemble(":memory:", **FINDINGS)(inputs()).tolist()
    reports = reported("label", folder, ranks)
    for report in reports:
        assert report["teachers"]["labels"] == [expected, expected]
        assert report["teachers"]["findings"] == findings
    assert [one for report in reports for one in report["inputs"]["findings"]] == findings
    reader = ensemble(":memory:", build=Reader)
    read = reader(texts()).tolist()
    assert len(set(read)) == 2
    assert all(report["teachers"]["texts"] == read for report in reports)
    assert [one for report in reports for one in report["inputs"]["texts"]] == read
    for twice in range(2):
        assert [one for report in reports for one in report["inputs"]["labels"][twice]] == expected
    for split in ("teachers", "inputs"):
        for charged in ("charged", "charged for texts"):
            assert [report[split][charged] for report in reports] == [QUERIES - 1] + [0] * (ranks - 1)
        assert dt.PrivacyLedger(folder / f"{split}.ledger").report()["batches"] == 1
        several = dt.PrivacyLedger(folder / f"{split}-findings.ledger").report()
        assert (several["batches"], several["labels"]) == (1, 3 * (QUERIES - 1))


pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, parent: subprocess.Popen[str]) -> tuple[Path, list[int]]:
    folder = tmp_path_factory.mktemp("pair")
    return folder, finished(parent, "all", folder, 2)


@pytest.mark.slow
def test_two_processes_give_the_labels_of_one(pair: tuple[Path, list[int]]) -> None:
    check_labels(pair[0], 2)


@pytest.mark.slow
def test_all_ranks_raise_the_same_error_and_go_on(pair: tuple[Path, list[int]]) -> None:
    one, other = reported("fail", pair[0], 2)
    assert (one.pop("charged"), other.pop("charged")) == ("2", "0")
    assert one["width"].startswith("InvalidArgument: inputs must be what teacher ")
    assert one == other
    expected = {
        "nan": "InvalidArgument: inputs must be finite as float32 numbers, got 'infinite numbers or NaN'",
        "budget": "BudgetExceeded: 22 labels would cost",
        "inputs": "InvalidArgument: inputs must be the same on every rank",
        "kind": "InvalidArgument: inputs[0][0] must be a tensor (B, ...), or a tuple or a mapping of tensors",
        "split": "InvalidArgument: split",
        "teachers": "UnprovenPrivacy: the ranks have different teachers",
        "promises": "UnprovenPrivacy: the ranks have different promises",
        "mechanism": "UnprovenPrivacy: the ranks have different mechanism",
        "mode": "False",
    }
    for name, words in expected.items():
        assert one[name].startswith(words)


@pytest.mark.slow
def test_a_rank_that_dies_fails_the_others_and_leaves_the_ledger_whole(pair: tuple[Path, list[int]]) -> None:
    folder, codes = pair
    assert codes == [0, -signal.SIGKILL]
    (survivor,) = reported("die", folder, 1)
    assert survivor["message"].startswith("RuntimeError")
    assert float(survivor["seconds"]) < HANGS  # not after the timeout of the group, which is longer
    left = ensemble(folder / "die.ledger")
    assert left.ledger.count == 5  # the second batch was neither charged nor given out
    assert left(inputs()[:5]).tolist() == json.loads(survivor["first"])
    assert left.ledger.count == 5


def test_without_a_group_there_is_one_clear_error() -> None:
    with pytest.raises(dt.InvalidArgument, match="torchrun"):
        dt.DistributedEnsemble(ensemble(":memory:"))


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 4, 7])
def test_any_number_of_processes_gives_the_labels_of_one(
    tmp_path: Path, parent: subprocess.Popen[str], ranks: int
) -> None:
    assert finished(parent, "label", tmp_path, ranks) == [0] * ranks
    check_labels(tmp_path, ranks)


@pytest.mark.slow
def test_under_torchrun(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += [__file__, str(tmp_path)]
    subprocess.run(command, check=True, timeout=HANGS, capture_output=True, env=environment())
    check_labels(tmp_path, 2)


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1, 2])
@pytest.mark.parametrize("moment", [0.0, 0.2])
def test_what_was_given_out_before_a_kill_was_charged(
    tmp_path: Path, parent: subprocess.Popen[str], victim: int, moment: float
) -> None:
    given = [tmp_path / f"given-{rank}.txt" for rank in range(3)]
    with started(parent, "work", tmp_path, 3) as ranks:
        wait_for(lambda: all(file.exists() and file.stat().st_size for file in given), parent)
        time.sleep(moment)
        os.kill(ranks[victim], signal.SIGKILL)
        codes = finish(parent, tmp_path)
    assert codes[victim] == -signal.SIGKILL
    assert all(code not in (0, -signal.SIGKILL) for rank, code in enumerate(codes) if rank != victim)
    left = ensemble(tmp_path / "work.ledger")  # opening it compares labels with charges
    count = left.ledger.count
    for file in given:
        lines = [json.loads(line) for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]
        assert lines
        assert left(torch.tensor([row for row, _ in lines])).tolist() == [answer for _, answer in lines]
    assert left.ledger.count == count


@pytest.mark.slow
def test_a_rank_that_stops_is_an_error_after_the_timeout(tmp_path: Path, parent: subprocess.Popen[str]) -> None:
    given = [tmp_path / f"given-{rank}.txt" for rank in range(3)]
    with started(parent, "work", tmp_path, 3, timeout=15) as (*others, stopped):
        wait_for(lambda: all(file.exists() and file.stat().st_size for file in given), parent)
        os.kill(stopped, signal.SIGSTOP)
        wait_for(lambda: not any(alive(other) for other in others))
        os.kill(stopped, signal.SIGKILL)
        codes = finish(parent, tmp_path)
    assert codes == [1, 1, -signal.SIGKILL]
    ensemble(tmp_path / "work.ledger")


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    main()
