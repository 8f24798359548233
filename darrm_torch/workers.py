"""Training processes and what they import; for whoever starts them before Torch is imported."""

from __future__ import annotations

import multiprocessing.context
import multiprocessing.forkserver

__all__ = ["prepare_workers", "start_workers_early"]

_IMPORTS = ["darrm_torch.teachers", "opacus", "torch._dynamo"]


def prepare_workers() -> multiprocessing.context.ForkServerContext:
    """Where training processes come from: a server that has imported what they need."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_IMPORTS)
    return context


def start_workers_early() -> None:
    """Start that server now: it imports Torch and Opacus while this process does the same."""
    prepare_workers()
    multiprocessing.forkserver.ensure_running()
