"""Training processes and what they import; for whoever starts them before Torch is imported."""

from __future__ import annotations

import multiprocessing.context
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import signal

__all__ = ["prepare_workers", "start_workers_early"]

_IMPORTS = ["darrm_torch.teachers.training", "opacus", "torch._dynamo"]


def prepare_workers() -> multiprocessing.context.ForkServerContext:
    """Where training processes come from: a server that has imported what they need. It is started now.

    Neither it nor they are told of Ctrl-C: that is for this process, which stops them.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_IMPORTS)
    multiprocessing.resource_tracker.ensure_running()  # which else would unblock the signal when the server starts
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # whoever is started inherits it
    try:
        multiprocessing.forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return context


def start_workers_early() -> None:
    """Start that server now: it imports Torch and Opacus while this process does the same."""
    prepare_workers()
