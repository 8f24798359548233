"""Trainings as jobs for any executor: what they show, and that they never raise."""

from __future__ import annotations

import io
from concurrent.futures import Executor, Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from darrm_torch import DarrmError, TrainingSettings, UnprovenPrivacy
from darrm_torch.teachers.jobs import Job, QueuedJob, run_job, run_jobs, shared_cores
from tests.teachers.helpers import Centred, build, some_data


def job(**other: Any) -> Job:
    given: dict[str, Any] = {
        "build_model": build,
        "dataset": TensorDataset(*some_data(20)),
        "shard_size": 20,
        "settings": TrainingSettings(batch_size=10, epochs=1),
        "seeds": None,
        "secure": False,
        "device": "cuda",  # falls back
        "threads": None,
        "facts": {"shard": 3},
    }
    return Job(**(given | other))


def test_outcomes() -> None:
    kind, content = run_job(job())
    record = torch.load(io.BytesIO(content), weights_only=True)
    assert (kind, record["shard"], record["sampling"]) == ("trained", 3, "poisson")
    kind, content = run_job(job(build_model=Centred))
    assert (kind, b"the buffer mean" in content) == ("unproven", True)
    kind, content = run_job(job(dataset=[("seven", 7)] * 20))
    assert (kind, b"Traceback" in content) == ("failed", True)


def test_a_job_that_runs_again_is_an_independent_training() -> None:
    first, second = (torch.load(io.BytesIO(run_job(same)[1]))["module_state_dict"] for same in [job()] * 2)
    assert not torch.equal(first["1.weight"], second["1.weight"])


def test_training_leaves_the_generator_of_the_process_as_it_was() -> None:
    """What a worker draws afterwards would otherwise follow from the seed of the batches."""
    torch.manual_seed(1)
    before = torch.get_rng_state()
    run_job(job())
    assert torch.equal(before, torch.get_rng_state())


def test_a_job_shows_nothing_of_its_records() -> None:
    one = job()
    assert "0." not in repr(one)
    assert len({one.__dask_tokenize__() for _ in range(3)}) == 3


class Recorder(Executor):
    """Runs nothing until it is asked, and notes what it is given."""

    def __init__(self, most: int) -> None:
        self.most, self.log = most, list[Any]()
        self.running = list[tuple[Future[Any], Any]]()

    def submit(self, function: Any, /, *arguments: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.running.append((future, arguments[0]))
        self.log.append(arguments[0])
        assert len(self.running) <= self.most
        if len(self.running) == self.most:
            self.finish()
        return future

    def finish(self) -> None:
        for future, name in self.running:
            future.set_result(("trained", name.encode()))
        self.running = []


def queued(names: str, stored: list[bytes]) -> list[QueuedJob]:
    """Jobs with names of one letter, which are stand-ins: a capital is ten times the work."""
    return [
        QueuedJob(
            job=lambda threads, name=name: name,  # type: ignore[misc]
            store=lambda kind, content: stored.append(content),
            records=1000 if name.isupper() else 100,
        )
        for name in names
    ]


class Bar:
    n = 0

    def update(self, count: int = 1) -> None:
        self.n += count


def test_the_longest_jobs_run_first_and_the_rest_in_order() -> None:
    executor, stored, bar = Recorder(most=3), list[bytes](), Bar()
    run_jobs(
        queued("abCdeF", stored),
        bar,
        executor=executor,
        workers=3,
        device="cpu",
        meanwhile=lambda: executor.log.append("meanwhile"),
    )
    assert executor.log == ["C", "F", "a", "meanwhile", "b", "d", "e"]
    assert (sorted(stored), bar.n) == ([b"C", b"F", b"a", b"b", b"d", b"e"], 6)


def test_what_is_finished_beside_a_failure_is_kept() -> None:
    class Dying(Recorder):
        def finish(self) -> None:
            (lost, _), *others = self.running
            lost.set_exception(BrokenProcessPool("terminated abruptly"))
            for done, name in others:
                done.set_result(("trained", name.encode()))

    def refuse(kind: str, content: bytes) -> None:
        raise UnprovenPrivacy("no")

    for executor, error in ((Dying(most=9), "a process died.*Run the same again"), (Recorder(most=9), "no")):
        stored = list[bytes]()
        failing = replace(queued("A", [])[0], store=refuse)
        with pytest.raises(DarrmError, match=error):
            run_jobs(
                [*queued("abcdefgh", stored), failing],
                Bar(),
                executor=executor,
                workers=9,
                device="cpu",
                meanwhile=lambda: None,
            )
        assert len(stored) == 8


def test_without_jobs_there_is_only_the_meanwhile() -> None:
    done: list[str] = []
    run_jobs([], Bar(), executor=None, workers=None, device="cpu", meanwhile=lambda: done.append("it"))
    assert done == ["it"]


@pytest.mark.parametrize(
    ("names", "workers", "threads"),
    [
        ("abc", 2, [1, 1, 1]),
        ("abc", 7, [2, 2, 2]),
        ("a", 4, [4]),
        ("abA", 8, [6, 1, 1]),  # the long one first
        ("abcdefghijkA", 2, [1] * 12),
    ],
)
def test_processes_share_the_cores_by_their_work(names: str, workers: int, threads: list[int]) -> None:
    assert [given for _, given in shared_cores(queued(names, []), workers)] == threads
