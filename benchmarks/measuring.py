"""What the benchmarks share: a description of the machine, times, separate processes."""

from __future__ import annotations

import importlib.metadata
import multiprocessing
import os
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

Result = TypeVar("Result")
Record: TypeAlias = dict[str, Any]

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def machine() -> dict[str, Any]:
    """A description of the machine and of the installed versions."""
    return {
        "system": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in ("numpy", "scipy", "highspy", "torch", "opacus")},
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line.partition(":")[2].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def seconds(work: Callable[[], Any], *, repeat: int, clock: Callable[[], float] = time.process_time) -> float:
    """The median of ``repeat`` runs: processor time, which a busy machine disturbs least, or another clock."""
    times = []
    for _ in range(repeat):
        start = clock()
        work()
        times.append(clock() - start)
    return statistics.median(times)


def alone(work: Callable[..., Result], *arguments: Any) -> Result:
    """The result of ``work(*arguments)`` in a new process with one thread, whose memory and imports are its own."""
    before = {name: os.environ.get(name) for name in THREADS}
    os.environ.update(dict.fromkeys(THREADS, "1"))
    try:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            return pool.apply(work, arguments)
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def peak_mib() -> float:
    """The peak memory of this process since its program began, imports included."""
    try:  # getrusage also counts the memory of the parent before exec
        with open("/proc/self/status", encoding="utf-8") as file:
            return round(next(int(line.split()[1]) for line in file if line.startswith("VmHWM:")) / 1024, 1)
    except (OSError, StopIteration):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return round(peak / (1 << 20 if sys.platform == "darwin" else 1 << 10), 1)
