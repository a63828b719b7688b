"""Parallel processes of one thread each. They end with their parent, and the death of one is an error.

`multiprocessing.Pool`, by contrast, waits forever when one of its workers is killed.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from itertools import islice
from multiprocessing import Pipe, connection, parent_process
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext, SpawnProcess
from threading import Thread
from typing import Any, Protocol

import cloudpickle

from nac_drive.parallel.cluster import ClusterPool, cluster_pool
from nac_drive.parallel.outcome import TaskOutcome, outcome_of
from nac_drive.parallel.signals import interrupts_held, release_interrupts
from nac_drive.parallel.spawning import reason_of_end, require_spawn
from nac_drive.plain import whole
from nac_drive.plugins import load_plugins
from nac_drive.registry import inherit, pickled_additions

_PATIENCE = 1.0
"""Seconds between two calls of `Workers.while_waiting`."""
MOST_WORKERS = 1024
"""Largest number of processes that may be asked for."""


class Pool(Protocol):
    """A pool of processes: `Workers`, `ClusterPool` or `multiprocessing.Pool`."""

    def imap(self, function: Callable[[Any], Any], tasks: Iterable[Any], /) -> Iterator[Any]:
        """Yield the results in the tasks' order, like `map`."""
        ...

    def imap_unordered(self, function: Callable[[Any], Any], tasks: Iterable[Any], /) -> Iterator[Any]:
        """Yield the results in the order in which they come."""
        ...


class _QuietProcess(SpawnProcess):
    """A process that reports no Ctrl-C while it imports. `init_worker` lets it through."""

    def start(self) -> None:
        with interrupts_held():
            super().start()


class _QuietContext(SpawnContext):
    """Makes quiet processes and knows them all."""

    def __init__(self) -> None:
        super().__init__()
        self.processes: list[_QuietProcess] = []

    def Process(self, *args: Any, **keywords: Any) -> _QuietProcess:  # type: ignore[override]  # noqa: N802
        process = _QuietProcess(*args, **keywords)
        self.processes.append(process)
        return process


class Workers:
    """A `Pool` of `count` spawned processes. They start with the first work and end with the `with` block.

    They finish the work that they have begun, unless an interruption (Ctrl-C, SIGTERM) ends the block.
    Loops over results raise ChildProcessError when a process dies, and the exceptions of the work itself.
    """

    def __init__(self, count: int):
        require_spawn("pass workers=1")
        self._count = count
        self.while_waiting: Callable[[], None] = lambda: None
        """Called now and then while `imap_unordered` waits for a result."""
        self._context = _QuietContext()
        self._executor = ProcessPoolExecutor(count, self._context, init_worker, (pickled_additions(),))
        self._open = True

    def size(self) -> int:
        """Return the number of processes."""
        return self._count

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind and not issubclass(kind, Exception):
            for process in self._context.processes:
                if process.pid:
                    process.terminate()
        self._executor.shutdown(cancel_futures=True)
        self._open = False

    def require_open(self) -> None:
        """Check that the pool can work.

        Raises:
            ChildProcessError: A process died.
            ValueError: Its `with` block has ended.
        """
        if not self._open:
            raise ValueError("pool: its `with worker_pool(...)` block has ended; work inside of the block.")
        ends = [process.exitcode for process in self._context.processes if process.pid and not process.is_alive()]
        if ends:
            raise self._death(ends)

    def _death(self, ends: Iterable[int | None]) -> ChildProcessError:
        return ChildProcessError(
            f"one of {self._count} worker processes {reason_of_end(ends)}; free some or use fewer workers."
        )

    def imap(self, function: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[Any]:
        """Yield the results in the tasks' order, like `map`."""
        return self._results(function, tasks, iter)

    def imap_unordered(self, function: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[Any]:
        """Yield the results in the order in which they come."""
        return self._results(function, tasks, self._as_they_end)

    def _as_they_end(self, futures: list[Future]) -> Iterator[Future]:
        waiting = set(futures)
        while waiting:
            ended, waiting = wait(waiting, _PATIENCE, FIRST_COMPLETED)
            yield from ended
            self.while_waiting()

    def _results(
        self, function: Callable, tasks: Iterable, order: Callable[[list[Future]], Iterator[Future]]
    ) -> Iterator:
        self.require_open()
        try:
            sent = cloudpickle.dumps(function)
            for future in order([self._executor.submit(_unpickled, sent, cloudpickle.dumps(task)) for task in tasks]):
                yield future.result()
        except BrokenProcessPool:
            self._executor.shutdown()  # until then the exit status of a killed process may not be known
            raise self._death(process.exitcode for process in self._context.processes) from None


@contextmanager
def worker_pool(workers: int, cluster: str | None = None) -> Iterator[Workers | ClusterPool | None]:
    """Start processes, or connect to a cluster.

    Args:
        workers: Number of processes, of one thread each, see `number_of_workers`. On a cluster the largest number of
            tasks at a time; 0 for one per CPU of the cluster.
        cluster: A Ray cluster, see `cluster_pool`; None for processes of this machine.

    Yields:
        The pool; None for one worker of this machine: do the work in this process.

    Raises:
        ValueError: For a number out of range.
        ClusterError: If the cluster cannot be used.
    """
    number = number_of_workers(workers)
    if cluster is not None:
        with cluster_pool(cluster, workers) as pool:
            yield pool
    elif number == 1:
        yield None
    else:
        with Workers(number) as pool:
            yield pool


def pool_size(pool: Pool) -> int:
    """Return the number of tasks a pool does at once.

    A pool of another kind counts one per core.
    """
    return pool.size() if isinstance(pool, Workers | ClusterPool) else default_workers()


def each_in_a_process(
    function: Callable[[Any], Any], tasks: Iterable[Any], workers: int
) -> Iterator[tuple[Any, TaskOutcome]]:
    """Call `function(task)` for each task in a spawned process.

    Args:
        function: Any function. It and its tasks are pickled by cloudpickle, with the classes of a notebook.
        tasks: One process each; the next one is taken when a process is free.
        workers: Processes at a time, of one thread each.

    Yields:
        (task, outcome) as processes end: a task that fails, or whose process dies, costs no other task.
    """
    workers, waiting, additions = number_of_workers(workers), iter(tasks), pickled_additions()
    require_spawn("start it from the main process")
    running: dict[Any, tuple[SpawnProcess, Any]] = {}  # the end of a pipe -> the process at its other end
    try:
        while True:
            for task in islice(waiting, workers - len(running)):
                result, sender = Pipe(duplex=False)
                sent = cloudpickle.dumps(function), cloudpickle.dumps(task)
                process = _QuietProcess(target=_alone, args=(*sent, sender, additions), daemon=True)
                process.start()
                sender.close()  # so that the end of the process is the end of the pipe
                running[result] = process, task
            if not running:
                return
            for result in connection.wait(list(running)):
                process, task = running.pop(result)
                try:
                    outcome = result.recv()  # type: ignore[union-attr]
                except EOFError:
                    outcome = None
                process.join()
                yield task, outcome or TaskOutcome(error=f"its process died ({process.exitcode})")
    finally:
        for process, _ in running.values():
            process.terminate()
            process.join()


def map_in_processes(function: Callable[[Any], Any], tasks: Iterable[Any], workers: int) -> Iterator[Any]:
    """Return the results of `map` in a new `worker_pool`."""
    return _map(function, tasks, number_of_workers(workers))


def _map(function: Callable[[Any], Any], tasks: Iterable[Any], workers: int) -> Iterator[Any]:
    with worker_pool(workers) as pool:
        yield from pool.imap(function, tasks) if pool else map(function, tasks)


def number_of_workers(workers: int) -> int:
    """Return the number of processes that `workers` means.

    Args:
        workers: The number, up to MOST_WORKERS; 0 for one per core.

    Raises:
        ValueError: For a number out of range.
    """
    workers = whole("workers", workers)
    if not 0 <= workers <= MOST_WORKERS:
        raise ValueError(f"workers must lie in 0 to {MOST_WORKERS:,}, where 0 is one per core, got {workers}.")
    return workers or default_workers()


def require_workers(workers: int, cluster: str | None = None) -> int:
    """Check that a `worker_pool` can be started here.

    It is for functions that write something first.

    Args:
        workers: See `worker_pool`.
        cluster: See `worker_pool`.

    Returns:
        See `number_of_workers`.

    Raises:
        ChildProcessError: See `require_spawn`.
        ValueError: For a number out of range.
    """
    number = number_of_workers(workers)
    if number > 1 and cluster is None:
        require_spawn("pass workers=1")
    return number


def default_workers() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _unpickled(function: bytes, task: bytes) -> Any:
    """Return the result of a pickled function."""
    return pickle.loads(function)(pickle.loads(task))


def _alone(function: bytes, task: bytes, sender: Connection, additions: Mapping[str, bytes]) -> None:
    init_worker(additions)
    sender.send(outcome_of(partial(_unpickled, function), task))


def init_worker(additions: Mapping[str, bytes]) -> None:
    """Make this process a worker of one thread.

    It prints no traceback on Ctrl-C and ends with its parent. It knows the plug-ins of its parent.

    Args:
        additions: The parent's additions to registries, see `pickled_additions`.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the parent reports it
    release_interrupts()
    os.environ["OMP_NUM_THREADS"] = "1"  # for a torch that is loaded later
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    Thread(target=_end_with_parent, daemon=True).start()
    inherit(additions)
    load_plugins(installed=False)  # before a task is unpickled that holds an object of theirs


def _end_with_parent() -> None:
    """End this process when its parent has ended.

    A worker of ProcessPoolExecutor would outlive a killed parent, waiting for work.
    """
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
