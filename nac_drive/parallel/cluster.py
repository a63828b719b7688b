"""A `Pool` on a Ray cluster of several machines.

`ray.util.multiprocessing.Pool` is not used. It yields the exceptions of the work as results, it deals the tasks out in
turn, so that one slow machine holds up all, and the tasks of a machine that died wait for a CPU that its own processes
hold. Ray's tasks have none of this.
"""

from __future__ import annotations

import os
import pickle
import re
import signal
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from itertools import islice
from threading import current_thread, main_thread
from typing import Any

import cloudpickle

from nac_drive.parallel.optional import optional_module
from nac_drive.parallel.outcome import TaskOutcome, failure
from nac_drive.parallel.versions import installed_versions
from nac_drive.plugins import VARIABLE, load_plugins
from nac_drive.registry import inherit, pickled_additions

_ATTEMPTS = 4
"""A task whose process or machine dies is run again until it has been tried this often."""
_PATIENCE = 10.0
"""Seconds that a machine has to answer at the address of a cluster; Ray itself would wait for minutes."""


class ClusterError(ValueError):
    """The cluster cannot be used. The message is one line: the cause, and the fix."""


class ClusterPool:
    """A `Pool` on the machines of a Ray cluster. Each task has one CPU and one thread.

    A task whose process or machine dies is run again, wherever there is room. Loops over results raise
    ChildProcessError when it dies every time, and the exceptions of the work itself.

    Args:
        limit: Largest number of tasks at a time; 0 for as many as the cluster has CPUs and GPUs for.
        gpus: GPUs that each task has to itself.
    """

    def __init__(self, limit: int = 0, gpus: int = 0):
        import ray

        self._ray, self._limit, self._gpus = ray, limit, gpus
        self._work = ray.remote(
            num_cpus=1, num_gpus=gpus, max_retries=_ATTEMPTS - 1, scheduling_strategy="SPREAD"
        )(_work)  # fmt: skip

    def imap(self, function: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[Any]:
        """Yield the results in the tasks' order, like `map`."""
        return (self._result(reference) for _, reference in self._finished(function, tasks, in_order=True))

    def imap_unordered(self, function: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[Any]:
        """Yield the results in the order in which they come."""
        return (self._result(reference) for _, reference in self._finished(function, tasks))

    def each(self, function: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[tuple[Any, TaskOutcome]]:
        """Call `function(task)` for each task.

        Yields:
            (task, outcome) as tasks end: one that fails, or whose process dies every time, costs no other task.

        Raises:
            ClusterError: If a machine of the cluster cannot do the work.
        """
        for task, reference in self._finished(function, tasks):
            try:
                yield task, TaskOutcome(self._result(reference))
            except ClusterError:
                raise
            except Exception as error:
                yield task, failure(error)

    def _finished(
        self, function: Callable[[Any], Any], tasks: Iterable[Any], *, in_order: bool = False
    ) -> Iterator[tuple[Any, Any]]:
        """Yield each finished task with the reference to its result."""
        ray, waiting = self._ray, iter(tasks)
        sent = ray.put(cloudpickle.dumps(function))  # once, not with every task
        brought = ray.put((os.environ.get(VARIABLE, ""), pickled_additions()))
        running: dict[Any, Any] = {}  # reference -> task
        try:
            while True:
                for task in islice(waiting, max(0, self.size() - len(running))):
                    running[self._work.remote(_versions(), brought, sent, cloudpickle.dumps(task))] = task
                if not running:
                    return
                reference = next(iter(running)) if in_order else ray.wait(list(running))[0][0]
                yield running.pop(reference), reference
        finally:
            for reference in running if ray.is_initialized() else ():  # `cancel` would start a cluster
                ray.cancel(reference, force=True)

    def size(self) -> int:
        """Return the number of tasks to submit now.

        Machines come and go.
        """
        there = self._ray.cluster_resources()
        room = [there.get("CPU", 1), *([there.get("GPU", 0) / self._gpus] if self._gpus else [])]
        return self._limit or max(1, int(min(room)))

    def _result(self, reference: Any) -> Any:
        errors = self._ray.exceptions
        try:
            return self._ray.get(reference)
        except errors.RayTaskError as error:
            cause = error.cause
            if isinstance(cause, RuntimeError) and "failed to import" in str(cause):
                raise ClusterError(
                    "a machine of the cluster cannot import this version of nac-drive; install it there, "
                    f"{_listed(_versions())}."
                ) from None
            raise cause from None
        except errors.RayError as error:
            raise ChildProcessError(
                f"a task died {_ATTEMPTS} times on the cluster ({type(error).__name__}), perhaps out of memory; "
                "give each machine fewer CPUs (ray start --num-cpus) or more memory."
            ) from None


@contextmanager
def cluster_pool(address: str, limit: int = 0, gpus: int = 0) -> Iterator[ClusterPool]:
    """Connect to a Ray cluster for a `with` block. A connection that this process has already is used and kept.

    Args:
        address: `auto` for the cluster that this machine belongs to, HOST:PORT of its head, or ray://HOST:PORT of the
            server for machines outside of it. No cluster is started.
        limit: Largest number of tasks at a time; 0 for as many as the cluster has CPUs and GPUs for.
        gpus: GPUs that each task has to itself.

    Yields:
        The pool.

    Raises:
        ClusterError: Without such a cluster, if it has another version of Ray or Python, or fewer GPUs than a task
            needs.
        ValueError: Without Ray.
    """
    with _connection(address) as ray:
        if gpus > (there := ray.cluster_resources().get("GPU", 0)):
            raise ClusterError(
                f"cluster {address} has {there:g} GPUs, a task needs {gpus}; pass --device cpu, or start machines with "
                "GPUs."
            )
        yield ClusterPool(limit, gpus)


def has_gpus(address: str) -> bool:
    """Return whether a cluster has a GPU.

    Args:
        address: See `cluster_pool`.

    Raises:
        ClusterError: See `cluster_pool`.
        ValueError: Without Ray.
    """
    with _connection(address) as ray:
        return ray.cluster_resources().get("GPU", 0) >= 1


@contextmanager
def _connection(address: str) -> Iterator[Any]:
    """Connect this process unless it is connected, and yield Ray."""
    ray = optional_module("ray", "cluster")
    if ray.is_initialized():
        yield ray
        return
    _connect(ray, address)
    try:
        yield ray
    finally:
        ray.shutdown()


def _connect(ray: Any, address: str) -> None:
    """Raises ClusterError, see `cluster_pool`."""
    start = "start one with `ray start --head`, and `ray start --address HOST:6379` on the other machines"
    if address != "auto":
        _require_answer(address, start)
    on_termination = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except ConnectionError:
        fix = start if address == "auto" else "this machine must belong to it, or pass ray://HOST:10001"
        raise ClusterError(f"cluster {address}: no Ray cluster was found; {fix}.") from None
    except Exception as error:  # Ray has no common base for errors of the connection
        raise ClusterError(f"cluster {address} cannot be used: {' '.join(str(error).split())}") from None
    finally:
        if current_thread() is main_thread():
            signal.signal(signal.SIGTERM, on_termination)  # Ray puts its own in the place


def _require_answer(address: str, fix: str) -> None:
    """Raise ClusterError unless something listens at `address`."""
    found = re.fullmatch(r"(?:ray://)?\[?([^/\s]+?)\]?:(\d{1,5})", address)
    if not found or int(found[2]) > 65535:
        raise ClusterError(f"cluster must be auto, HOST:PORT or ray://HOST:PORT, got {address!r}.")
    try:
        socket.create_connection((found[1], int(found[2])), timeout=_PATIENCE).close()
    except OSError as error:
        raise ClusterError(f"cluster {address} does not answer ({error.strerror or error}); {fix}.") from None


def _work(versions: dict[str, str], brought: tuple[str, dict[str, bytes]], function: bytes, task: bytes) -> Any:
    """Do one task in a process of the cluster.

    `function` and `task` are unpickled once the versions are known and the user's plug-ins are loaded.
    """
    os.environ["OMP_NUM_THREADS"] = "1"  # for a torch that is loaded with the first task
    here = _versions()
    if differing := {name for name in versions.keys() | here.keys() if versions.get(name) != here.get(name)}:
        raise ClusterError(
            f"machine {socket.gethostname()} has {_listed(here, differing)}, this one has "
            f"{_listed(versions, differing)}; install the same versions on all machines."
        )
    os.environ[VARIABLE], additions = brought
    inherit(additions)
    try:
        load_plugins(installed=False)
        call, argument = pickle.loads(function), pickle.loads(task)
    except (ImportError, AttributeError, FileNotFoundError) as error:
        raise ClusterError(
            f"machine {socket.gethostname()} cannot load the work ({error}); install the package that defines it "
            "there, or keep the plug-in in storage that all machines share."
        ) from None
    return call(argument)


@lru_cache(maxsize=1)
def _versions() -> dict[str, str]:
    """Versions of the packages that decide results. Builds of torch for CPU and GPU (2.8.0+cpu) count as the same."""
    return {name: version.split("+")[0] for name, version in installed_versions().items()}


def _listed(versions: dict[str, str], names: Iterable[str] | None = None) -> str:
    return ", ".join(f"{name} {versions.get(name, 'none')}" for name in sorted(versions if names is None else names))
