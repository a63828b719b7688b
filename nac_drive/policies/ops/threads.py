"""The number of threads of torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch


def one_thread() -> AbstractContextManager[None]:
    """Let torch compute on one thread inside the `with` block.

    The order of a sum depends on the number of threads, so an argmax may; and for a single frame, waking other threads
    costs more than they save, on a busy machine many times more.
    """
    return threads(1)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Let torch compute on `count` threads inside the `with` block."""
    before = torch.get_num_threads()
    if before == count:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
