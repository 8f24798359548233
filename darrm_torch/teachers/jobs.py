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
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from ..errors import UnprovenPrivacy
from .dp_sgd import TrainingSettings, train_teacher

__all__ = ["Job", "run_job", "start_worker"]

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


def start_worker(counter: Any, stop: Any) -> None:
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
