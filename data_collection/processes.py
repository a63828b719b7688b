"""Parallel processes of one thread each. They end with their parent, and the death of one is an error.

`multiprocessing.Pool`, by contrast, waits forever when one of its workers is killed.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import islice
from multiprocessing import connection, get_context, parent_process
from multiprocessing.context import SpawnProcess
from threading import Thread
from typing import Any, Protocol


class Pool(Protocol):
    """A pool of processes: `Workers`, `multiprocessing.Pool` or `ray.util.multiprocessing.Pool`."""

    def imap(self, function: Callable[[Any], Any], tasks: Iterable[Any], /) -> Iterator[Any]:
        """Yield the results in the order of the tasks, like `map`."""
        ...


class Workers:
    """A `Pool` of `count` spawned processes; they start with the first work and end with the `with` block.

    Loops over results raise ChildProcessError when a process dies, and the exceptions of the work itself.
    """

    def __init__(self, count: int):
        self._count = count
        self._executor = ProcessPoolExecutor(count, get_context("spawn"), init_worker)

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *error: object) -> None:
        self._executor.shutdown(cancel_futures=True)

    def imap(self, function: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[Any]:
        """Yield the results in the order of the tasks, like `map`."""
        return self._results(function, tasks, iter)

    def imap_unordered(self, function: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[Any]:
        """Yield the results in the order in which they come."""
        return self._results(function, tasks, as_completed)

    def _results(
        self, function: Callable, tasks: Iterable, order: Callable[[list[Future]], Iterator[Future]]
    ) -> Iterator:
        try:
            for future in order([self._executor.submit(function, task) for task in tasks]):
                yield future.result()
        except BrokenProcessPool:
            raise ChildProcessError(
                f"one of {self._count} worker processes died, perhaps out of memory; free some or use fewer workers."
            ) from None


@contextmanager
def worker_pool(workers: int) -> Iterator[Workers | None]:
    """Start processes for a `with` block.

    Args:
        workers: Number of processes, of one thread each.

    Yields:
        The pool; None for one worker: do the work in this process.

    Raises:
        ValueError: If there is less than one worker.
    """
    if workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}.")
    if workers == 1:
        yield None
        return
    with Workers(workers) as pool:
        yield pool


def each_in_a_process(function: Callable[[Any], None], tasks: Iterable[Any], workers: int) -> Iterator[tuple[Any, int]]:
    """Call `function(task)` in a spawned process of its own for each task.

    Args:
        function: Must be importable by name, as its tasks are pickled.
        tasks: One process each; the next one is taken when a process is free.
        workers: Processes at a time, of one thread each.

    Yields:
        (task, exit code) as processes end: a process that dies costs its own task alone.
    """
    context, waiting = get_context("spawn"), iter(tasks)
    running: dict[int, tuple[SpawnProcess, Any]] = {}
    try:
        while True:
            for task in islice(waiting, workers - len(running)):
                process = context.Process(target=_alone, args=(function, task), daemon=True)
                process.start()
                running[process.sentinel] = process, task
            if not running:
                return
            for sentinel in connection.wait(list(running)):
                process, task = running.pop(sentinel)  # type: ignore[call-overload]
                process.join()
                yield task, process.exitcode or 0
    finally:
        for process, _ in running.values():
            process.terminate()
            process.join()


def map_in_processes(function: Callable[[Any], Any], tasks: Iterable[Any], workers: int) -> Iterator[Any]:
    """Yield the results of `map`, computed in a `worker_pool` of its own."""
    with worker_pool(workers) as pool:
        yield from pool.imap(function, tasks) if pool else map(function, tasks)


def default_workers() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _alone(function: Callable[[Any], None], task: Any) -> None:
    init_worker()
    function(task)


def init_worker() -> None:
    """Make this process a worker: one thread, no traceback on Ctrl-C, and an end when its parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the parent reports it
    os.environ["OMP_NUM_THREADS"] = "1"  # for a torch that is loaded later
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A worker of ProcessPoolExecutor would outlive a killed parent, waiting for work."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
