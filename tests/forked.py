"""Worker processes in tests are forked, not spawned.

A spawned process imports for three seconds before it begins. A forked one comes from a server, a copy of the process
that runs tests from before the first of them. It gets what a spawned one gets, by pickle: its work, the working folder,
the path of imports and the environment. Tests of the start itself ask for `spawned` (conftest.py), and processes of
scripts are always spawned.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import SpawnProcess
from multiprocessing.popen_forkserver import Popen
from pathlib import Path
from select import select
from threading import Lock
from typing import Any

import numpy as np
import pytest

from nac_drive.envs import batch, readings

_IMPORTED = [
    "nac_drive.cli.main",
    "nac_drive.experiments.compare",
    "nac_drive.experiments.reproduce",
    "nac_drive.training.dagger",
    "nac_drive.training.ppo.run",
    "lightning_fabric",
    "matplotlib.figure",
]
"""Modules of workers. A server of some tests alone may be without them."""
_SPAWNED = vars(SpawnProcess)["_Popen"]


class _Surroundings:
    """Brings environment and zoom to another process when it is unpickled. Random generators start anew."""

    def __reduce__(self) -> Any:
        return _set, (dict(os.environ), readings.ZOOM_FRAMES)


def _set(environment: dict[str, str], zoom: int) -> None:
    os.environ.clear()
    os.environ.update(environment)
    for module in (readings, batch):
        module.ZOOM_FRAMES = zoom  # type: ignore
    random.seed()
    np.random.seed()  # noqa: NPY002


def _forked(process: Any) -> Popen:
    process.__dict__ = {"_surroundings": _Surroundings(), **vars(process)}  # the first that is unpickled
    return Popen(process)


def fork_workers() -> None:
    """Fork worker processes from now on. `start_server` has to follow."""
    SpawnProcess._Popen = staticmethod(_forked)  # type: ignore[attr-defined]


def start_server() -> None:
    """Fork the server of worker processes.

    All tests are imported then, and none has begun.
    """
    if vars(SpawnProcess)["_Popen"] is _SPAWNED:
        return
    resource_tracker.ensure_running()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forkserver.util, "spawnv_passfds", _serve)  # type: ignore[attr-defined]
        forkserver.ensure_running()


def _serve(program: object, words: object, descriptors: list[int]) -> int:
    """Fork a server in place of a program."""
    if process := os.fork():
        return process
    try:
        forkserver._forkserver._lock = Lock()  # type: ignore[attr-defined]  # it is held
        sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))  # noqa: SIM115
        for number in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
            if number > 2 and number not in descriptors:
                with suppress(OSError):
                    os.close(number)
        listener, alive = descriptors
        if listener in select([listener, alive], [], [])[0]:  # no import before the first worker is wanted
            forkserver.main(listener, alive, _IMPORTED)
    finally:
        os._exit(0)


@contextmanager
def workers_are_spawned() -> Iterator[None]:
    """Spawn worker processes for a `with` block."""
    before = vars(SpawnProcess)["_Popen"]
    SpawnProcess._Popen = _SPAWNED  # type: ignore[attr-defined]
    try:
        yield
    finally:
        SpawnProcess._Popen = before  # type: ignore[attr-defined]
