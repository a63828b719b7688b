"""Processes of the proofs."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Generator, Sequence
from typing import Any


def results_of(work: Callable[[Any], Any], tasks: Sequence[Any], workers: int) -> Generator[Any, None, None]:
    """Yield the results of all tasks in the order in which they end; one worker is this process."""
    if workers == 1:
        yield from map(work, tasks)
        return
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        yield from pool.imap_unordered(work, tasks)
