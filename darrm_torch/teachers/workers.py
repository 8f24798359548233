"""Training processes, which can be started before this process imports Torch."""

from __future__ import annotations

import contextlib
import multiprocessing.context
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import os
import signal
import sys
from collections.abc import Iterator

__all__ = ["cores", "prepare_workers", "start_workers_early"]

_IMPORTS = ["darrm_torch.teachers.training", "opacus", "torch._dynamo"]


def cores() -> int:
    """The processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def prepare_workers() -> multiprocessing.context.ForkServerContext | multiprocessing.context.SpawnContext:
    """Start the server that forks training processes, after it has imported what they need.

    The server and its processes ignore Ctrl-C: this process handles it and stops them. Where there is no such server
    (Windows), each process starts anew, and a script needs ``if __name__ == "__main__":``.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_IMPORTS)
    with _away_from_foreign_code():
        multiprocessing.resource_tracker.ensure_running()  # otherwise it unblocks the signal when the server starts
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # the server inherits the mask
        try:
            multiprocessing.forkserver.ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return context


@contextlib.contextmanager
def _away_from_foreign_code() -> Iterator[None]:
    """In the root folder, unless this process imports from the current one.

    Python starts the server with ``-c``, so the server would import from the folder in which it starts. The training
    processes return to the current folder, with this process's ``sys.path``.
    """
    try:
        before = os.getcwd()
    except FileNotFoundError:  # it was deleted
        before = ""
    if not before or {"", before} & set(sys.path):
        yield
        return
    os.chdir(os.sep)
    try:
        yield
    finally:
        os.chdir(before)


def start_workers_early() -> None:
    """Start the server now, so that it imports Torch and Opacus while this process does the same."""
    prepare_workers()
