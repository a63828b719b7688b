"""Read the next batches in the background."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
_Result = TypeVar("_Result")

_THREADS = min(os.cpu_count() or 1, 4)
_BYTES_AHEAD = 2**26
"""Bytes of results that wait to be used; at least one result does."""


def read_ahead(read: Callable[[Item], _Result], items: Iterable[Item], size: int) -> Iterator[_Result]:
    """Yield `read(item)` of all items, in order.

    Threads read the next ones meanwhile.

    Closing the iterator waits for the reads that have begun.

    Args:
        read: Called in threads.
        items: Arguments of `read`.
        size: Bytes of one result; together the waiting ones have at most 64 MiB.
    """
    ahead = max(1, min(2 * _THREADS, _BYTES_AHEAD // size))
    waiting: deque[Future[_Result]] = deque()
    pool = ThreadPoolExecutor(_THREADS, "read-ahead")
    try:
        for item in items:
            waiting.append(pool.submit(read, item))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
