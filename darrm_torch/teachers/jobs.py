"""One teacher's training as a job for any executor, and the processes of this machine that run such jobs.

A job carries private records to the process that runs it, and nothing else shows them: it returns the teacher's file or
the text of an error as bytes and never raises, because schedulers log errors together with arguments.
"""

from __future__ import annotations

import io
import multiprocessing
import multiprocessing.connection
import os
import secrets
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from ..errors import DarrmError, UnprovenPrivacy
from ..interrupts import deferred_interrupts
from .dp_sgd import TrainingSettings, train_teacher
from .structures import checked_device
from .workers import cores, prepare_workers

__all__ = ["Job", "QueuedJob", "run_job", "run_jobs", "shared_cores"]

_one_at_a_time = threading.Lock()  # trainings in one process: they seed Torch's generator and silence warnings
_counter: Any = None
_stop: Any = None


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Job:
    """What a process needs to train one teacher.

    Without ``seeds`` the process draws them from its operating system. An executor that runs a job again after it lost
    the first process then gets an independent teacher.
    """

    build_model: Callable[[], nn.Module]
    dataset: Any
    shard_size: int
    settings: TrainingSettings
    seeds: tuple[int, int] | None
    secure: bool
    device: str
    threads: int | None
    facts: dict[str, Any]

    def __dask_tokenize__(self) -> str:
        """A random name: by contents, Dask would log a digest of them, and train equal shards only once."""
        return secrets.token_hex(16)


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class QueuedJob:
    """A job that waits for a process.

    Attributes:
        job: the job with so many threads; ``None``: Torch's own number.
        store: receives what :func:`run_job` returns.
        records: how many records are read in the training, which is about how long it takes.
    """

    job: Callable[[int | None], Job]
    store: Callable[[str, bytes], None]
    records: int


def run_job(job: Job) -> tuple[Literal["trained", "unproven", "failed"], bytes]:
    """Train a teacher: the content of its file, or the text of an error, which may show a record if it "failed"."""
    try:
        with _one_at_a_time:
            if job.threads is not None:
                torch.set_num_threads(job.threads)
            record = train_teacher(
                job.build_model,
                job.dataset,
                shard_size=job.shard_size,
                settings=job.settings,
                seeds=job.seeds,
                secure=job.secure,
                device=job.device if torch.cuda.is_available() else "cpu",
                on_step=_count_step,
            )
        content = io.BytesIO()
        torch.save(record | job.facts, content)
    except UnprovenPrivacy as error:
        return "unproven", str(error).encode()  # about the model, and it names no record
    except Exception:
        return "failed", traceback.format_exc().encode()
    return "trained", content.getvalue()


def run_jobs(
    queue: Sequence[QueuedJob],
    bar: Any,
    *,
    executor: Executor | None,
    workers: int | None,
    device: str,
    meanwhile: Callable[[], object],
) -> None:
    """Run the jobs, the longest first, in an executor or in processes of this machine, and store their outcomes.

    Args:
        queue: the jobs.
        bar: a progress bar: of the jobs in an executor, or of the steps in processes of this machine.
        executor: ``None``: processes of this machine, which share its cores in proportion to their work.
        workers: the largest number of jobs at a time; default: all in an executor, else as many as cores (1 on CUDA).
        device: where the jobs compute.
        meanwhile: is called once, as soon as the first jobs run.

    Raises:
        DarrmError: a process died.
    """
    if not queue:
        meanwhile()
        return
    if executor is not None:
        alone = [(one, None) for one, _ in shared_cores(queue, 1)]
        _run(alone, executor, most=workers or len(queue), meanwhile=meanwhile, on_done=bar.update)
        return
    if workers is None:
        workers = 1 if checked_device(device).startswith("cuda") else cores()
    with deferred_interrupts() as let_through, _processes(min(workers, len(queue))) as (pool, steps):

        def on_wait() -> None:
            bar.update(steps() - bar.n)
            let_through()

        _run(shared_cores(queue, workers), pool, most=workers, meanwhile=meanwhile, on_wait=on_wait)


def shared_cores(queue: Sequence[QueuedJob], workers: int) -> list[tuple[QueuedJob, int]]:
    """The jobs, the longest first, each with its share of so many threads, in proportion to its work."""
    total = sum(one.records for one in queue)
    return [(one, max(1, workers * one.records // total)) for one in sorted(queue, key=lambda one: -one.records)]


def _run(
    queue: Sequence[tuple[QueuedJob, int | None]],
    executor: Executor,
    *,
    most: int,
    meanwhile: Callable[[], object],
    on_wait: Callable[[], object] = lambda: None,
    on_done: Callable[[], object] = lambda: None,
) -> None:
    """Run jobs with so many threads each, at most ``most`` threads (or jobs) at a time."""
    waiting, running = [*reversed(queue)], dict[Future[tuple[str, bytes]], tuple[QueuedJob, int]]()

    def submit() -> None:
        while waiting:
            queued, threads = waiting[-1]
            if running and sum(taken for _, taken in running.values()) + (threads or 1) > most:
                return
            waiting.pop()
            running[executor.submit(run_job, queued.job(threads))] = queued, threads or 1

    try:
        submit()
        meanwhile()
        while running:
            done, _ = wait(running, timeout=0.2, return_when=FIRST_COMPLETED)
            errors = list[Exception]()
            while done:  # and keep no future: Dask would compute it again if its worker died
                future = done.pop()
                queued, _ = running.pop(future)
                try:
                    outcome = future.result()
                    del future
                    queued.store(*outcome)
                except Exception as error:  # the others that are done are stored all the same
                    errors.append(error)
                on_done()
            on_wait()
            if errors:
                raise errors[0]
            submit()
    except BrokenExecutor:
        raise DarrmError(
            "a process died while it trained a teacher: most often the machine has no memory left for it. Finished "
            "teachers are kept. Run the same again to train the others, with fewer workers or a smaller "
            "max_physical_batch_size if memory was short"
        ) from None
    finally:
        for future in running:
            future.cancel()


@contextmanager
def _processes(count: int) -> Iterator[tuple[Executor, Callable[[], int]]]:
    """Processes of this machine, and a function that returns how many steps they have done."""
    context = prepare_workers()
    counter, stop = context.Value("q", 0), context.Value("b", 0, lock=False)
    done = counter.get_obj()  # to be read without the lock, which a process may hold that is stopped
    with ProcessPoolExecutor(count, mp_context=context, initializer=_start_worker, initargs=(counter, stop)) as pool:
        try:
            yield pool, lambda: done.value
        except BaseException:
            stop.value = 1  # nobody waits for the others
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _start_worker(counter: Any, stop: Any) -> None:
    """Initialise a process of this machine: it counts its steps, stops when told to, and never outlives its parent."""
    global _counter, _stop
    _counter, _stop = counter, stop
    parent = multiprocessing.parent_process()
    if parent is not None:
        watch = threading.Thread(target=_exit_with, args=(parent.sentinel,), daemon=True)
        watch.start()


def _exit_with(sentinel: int) -> None:
    multiprocessing.connection.wait([sentinel])
    os._exit(1)


def _count_step() -> None:
    if _counter is None:
        return
    if _stop.value:
        os._exit(1)
    with _counter.get_lock():
        _counter.value += 1
