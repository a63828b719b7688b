"""Ctrl-C and SIGTERM: one line from the command, nothing from the processes that it starts."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from threading import current_thread, main_thread
from types import FrameType

_CAN_HOLD = hasattr(signal, "pthread_sigmask")  # not on Windows


class Terminated(BaseException):
    """SIGTERM came: like KeyboardInterrupt, no error of the work."""


@contextmanager
def termination_raised() -> Iterator[None]:
    """Raise Terminated at a SIGTERM during the `with` block, so that everything is closed on the way out.

    Outside of the main thread, where Python handles no signals, nothing changes.
    """
    if current_thread() is not main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _raise)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _raise(number: int, frame: FrameType | None) -> None:
    raise Terminated


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Hold Ctrl-C back during the `with` block, in this thread and in the processes that it starts.

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
    """Let Ctrl-C through in this thread; one that was held back comes at once."""
    if _CAN_HOLD:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
