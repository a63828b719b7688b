"""Ctrl-C, SIGTERM and SIGHUP end a command in one line."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from threading import Timer, current_thread, main_thread
from types import FrameType
from typing import Any

_CAN_HOLD = hasattr(signal, "pthread_sigmask")  # not on Windows

_AGAIN_AFTER = 0.01
"""Seconds until a signal comes again that could not be raised."""


class Ended(BaseException):
    """A signal came that ends the command, which is no error."""

    word: str
    """The end of the command, in one word."""

    def __init__(self, number: int):
        super().__init__(number)
        self.number, self.exit_status = number, 128 + number


class Interrupted(Ended, KeyboardInterrupt):
    """Ctrl-C came.

    Code that `exec` runs marks the interpreter when it raises KeyboardInterrupt itself: it then ends by the signal,
    whatever exit status the program gives.
    """

    word = "stopped"


class Terminated(Ended):
    """SIGTERM or SIGHUP came."""

    word = "terminated"


@contextmanager
def handled_by(handler: Callable[[int, FrameType | None], None], *names: str) -> Iterator[None]:
    """Handle signals for the `with` block.

    Outside of the main thread, where Python handles no signals, nothing changes. A signal that is ignored (SIGHUP under
    `nohup`) stays ignored.

    Args:
        handler: Called with the number of the signal and the frame.
        *names: Names of signals, such as SIGTERM; the system need not have them.
    """
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    if current_thread() is not main_thread():
        numbers = []
    handled = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in handled}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


@contextmanager
def signals_raised() -> Iterator[None]:
    """Raise an exception at Ctrl-C, SIGTERM and SIGHUP.

    They are Interrupted and Terminated. Everything is closed on the way out.

    SIGHUP comes when the terminal of a command is closed. See `handled_by` for threads and signals that are ignored.
    Python raises nothing in the callback of a weak reference, of which h5py has thousands. A signal that comes there is
    sent again.
    """
    former = sys.unraisablehook

    def again(unraisable: Any) -> None:
        if isinstance(unraisable.exc_value, Ended):
            Timer(_AGAIN_AFTER, os.kill, (os.getpid(), unraisable.exc_value.number)).start()
        else:
            former(unraisable)

    with handled_by(_raise, "SIGINT", "SIGTERM", "SIGHUP"):
        sys.unraisablehook = again
        try:
            yield
        finally:
            sys.unraisablehook = former


def _raise(number: int, frame: FrameType | None) -> None:
    raise Interrupted(number) if number == signal.SIGINT else Terminated(number)


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Hold Ctrl-C back during the `with` block.

    This thread and the processes that it starts do not get it.

    A process goes on holding it back: it reports nothing while it imports. `release_interrupts` ends that.
    """
    if not _CAN_HOLD:
        yield
        return
    resource_tracker.ensure_running()  # its own start, within the block, would let signals through
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def release_interrupts() -> None:
    """Let Ctrl-C through in this thread. One that was held back comes at once."""
    if _CAN_HOLD:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
