"""Ctrl-C: held back where it could do harm, and repeated where it got lost."""

from __future__ import annotations

import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

__all__ = ["deferred_interrupts", "persistent_interrupts"]

_PAUSE = 0.5  # seconds until a lost interrupt is repeated


class _Interrupt(KeyboardInterrupt):
    """One that can be weakly referenced: it is gone as soon as nobody handles it any more."""


def _handles_interrupts() -> Any:
    """What Python does about Ctrl-C in this thread, if it does anything."""
    handler = signal.getsignal(signal.SIGINT)
    return handler if callable(handler) and threading.current_thread() is threading.main_thread() else None


@contextmanager
def deferred_interrupts() -> Iterator[Callable[[], None]]:
    """Hold back the first Ctrl-C until the end of the block, or until the function that it yields is called.

    Python raises ``KeyboardInterrupt`` between any two instructions of the main thread. Between taking a lock and
    releasing it, such as those of an executor, that leaves the lock taken, and other threads and processes wait for
    ever. A second Ctrl-C is not held back.
    """
    handler, held = _handles_interrupts(), list[tuple[int, FrameType | None]]()
    if handler is None:
        yield lambda: None
        return

    def let_through() -> None:
        if held:
            handler(*held.pop())

    def hold_back(number: int, frame: FrameType | None) -> None:
        let_through()
        held.append((number, frame))

    signal.signal(signal.SIGINT, hold_back)
    try:
        yield let_through
    finally:
        signal.signal(signal.SIGINT, handler)
        let_through()


@contextmanager
def persistent_interrupts() -> Iterator[None]:
    """Raise ``KeyboardInterrupt`` on Ctrl-C until this block ends, however often other code drops it.

    Code that catches every exception, such as ``try: import ... except:``, drops it, and so does Python itself in
    ``__del__`` and in callbacks. The command would go on for hours. Whether anyone still handles the exception is
    seen from its reference count, so clean-up that takes long is left in peace. Where there is no ``SIGALRM``
    (Windows), one Ctrl-C raises one exception.
    """
    if _handles_interrupts() is not signal.default_int_handler or not hasattr(signal, "setitimer"):
        yield
        return
    last: Callable[[], _Interrupt | None] = lambda: None  # noqa: E731
    alarm = signal.getsignal(signal.SIGALRM)

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal last
        if number == signal.SIGALRM and last() is not None:
            return
        error = _Interrupt()
        last = weakref.ref(error)
        signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, _PAUSE, _PAUSE)
        try:
            raise error
        finally:
            del error  # from this frame, which the traceback keeps

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, alarm)
        signal.signal(signal.SIGINT, signal.default_int_handler)
