"""Training processes, which can be started before this process imports Torch."""

from __future__ import annotations

import multiprocessing.context
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import signal

__all__ = ["prepare_workers", "start_workers_early"]

_IMPORTS = ["darrm_torch.teachers.training", "opacus", "torch._dynamo"]


def prepare_workers() -> multiprocessing.context.ForkServerContext:
    """Start the server that forks training processes, after it has imported what they need.

    The server and its processes ignore Ctrl-C: this process handles it and stops them.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_IMPORTS)
    multiprocessing.resource_tracker.ensure_running()  # otherwise it unblocks the signal when the server starts
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # the server inherits the mask
    try:
        multiprocessing.forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return context


def start_workers_early() -> None:
    """Start the server now, so that it imports Torch and Opacus while this process does the same."""
    prepare_workers()
