"""Ctrl-C that comes at a bad moment, sent by this process to itself."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from darrm_torch import interrupts
from darrm_torch.interrupts import deferred_interrupts, persistent_interrupts

pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs SIGALRM")


@pytest.fixture(autouse=True)
def handlers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lost interrupts are repeated at once here; every test leaves the handlers as they were."""
    monkeypatch.setattr(interrupts, "_PAUSE", 0.01)
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGALRM)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    after = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGALRM)
    signal.signal(signal.SIGINT, before[0])
    assert after == (signal.default_int_handler, before[1])
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def press() -> None:
    signal.raise_signal(signal.SIGINT)


def test_the_first_interrupt_waits_until_it_is_let_through() -> None:
    with deferred_interrupts() as let_through:
        let_through()
        press()
        with pytest.raises(KeyboardInterrupt):
            let_through()
        let_through()


def test_the_first_interrupt_waits_for_the_end_of_the_block() -> None:
    def block() -> None:
        with deferred_interrupts():
            press()
            done.append("the rest")

    done: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        block()
    assert done


def test_a_second_interrupt_does_not_wait() -> None:
    with deferred_interrupts():
        for _ in range(3):
            press()
            with pytest.raises(KeyboardInterrupt):
                press()
            press()
            with pytest.raises(KeyboardInterrupt):
                press()


@pytest.mark.parametrize("context", [deferred_interrupts, persistent_interrupts])
def test_other_threads_and_ignored_signals_are_left_alone(
    context: Callable[[], contextlib.AbstractContextManager[object]],
) -> None:
    def enter() -> None:
        with context():
            entered.append(signal.getsignal(signal.SIGINT))

    entered: list[object] = []
    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as for a command that a shell runs in the background
    enter()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    assert entered == [signal.default_int_handler, signal.SIG_IGN]


def lost_in_a_handler_of_everything() -> None:
    with contextlib.suppress(BaseException):  # as `try: import ...` with a bare `except:`
        press()


def lost_in_a_destructor() -> None:
    class Dying:
        def __del__(self) -> None:
            press()

    Dying()


def lost_before_it_was_let_through() -> None:
    with contextlib.suppress(KeyboardInterrupt), deferred_interrupts():
        press()


@pytest.mark.parametrize(
    "lose", [lost_in_a_handler_of_everything, lost_in_a_destructor, lost_before_it_was_let_through]
)
def test_a_lost_interrupt_comes_again(lose: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    def command() -> None:
        with persistent_interrupts():
            lose()
            time.sleep(60)

    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)  # pytest's own keeps the exception
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        command()
    assert time.monotonic() - started < 50


def test_one_that_is_lost_again_and_again_ends_the_command_all_the_same() -> None:
    lose = lost_in_a_handler_of_everything

    def command() -> None:
        with persistent_interrupts():
            lose()
            for _ in range(5):
                with contextlib.suppress(KeyboardInterrupt):
                    time.sleep(60)
            time.sleep(60)

    with pytest.raises(KeyboardInterrupt):
        command()


@pytest.mark.parametrize("turned_into", [KeyboardInterrupt, SystemExit], ids=["as it is", "as Lightning ends"])
def test_an_interrupt_that_is_being_handled_does_not_come_again(turned_into: type[BaseException]) -> None:
    def command() -> None:
        with persistent_interrupts():
            try:
                press()
            except KeyboardInterrupt:
                raise turned_into from None
            finally:
                time.sleep(0.1)  # ten times the pause
                cleaned.append("everything")

    cleaned: list[str] = []
    with pytest.raises(turned_into):
        command()
    assert cleaned
