"""Processes that tests start: waited for by events, and gone with all that they started when the test ends."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

HANGS = 600.0  # seconds; whatever takes as long hangs, however busy the machine is
ROOT = str(Path(__file__).parents[1])


def environment(**other: str) -> dict[str, str]:
    """That of this process, with one thread and the source tree, for programs that are files of tests."""
    path = os.pathsep.join(filter(None, (ROOT, os.environ.get("PYTHONPATH"))))
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **other}


@contextlib.contextmanager
def running(command: Sequence[Any], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """A process in a session of its own.

    However the block ends, the process and all others of its group are killed, it is waited for, and its pipes are
    closed: nothing is left that could disturb another test.
    """
    process: subprocess.Popen[Any] = subprocess.Popen(command, start_new_session=True, **options)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        with process:
            pass


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[Any] | None = None) -> None:
    """Wait until the condition holds; fails if it never does, or if ``process`` ends before."""
    end = time.monotonic() + HANGS
    while not condition():
        assert process is None or process.poll() is None or condition(), "the process has ended"
        assert time.monotonic() < end, "what is waited for does not happen"
        time.sleep(0.01)


_PORTS = itertools.count(10_000 + 97 * os.getpid() % 20_000)


def free_port() -> int:
    """A port that this process alone hands out, below those that the system gives to connections of its own choice.

    Between the choice and its use another process may otherwise be given the same one.
    """
    for port in _PORTS:
        with contextlib.suppress(OSError), socket.socket() as one:
            one.bind(("127.0.0.1", port))
            return port
    raise AssertionError("there are always more ports")


def processor_seconds(work: Callable[[], Any], *, below: float) -> float:
    """The processor time of ``work``; of the quickest of three runs, where one takes longer than ``below``.

    Processor time, too, grows on a busy machine, and a collection of garbage may fall into any run.
    """
    times: list[float] = []
    while not times or (min(times) >= below and len(times) < 3):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return min(times)
