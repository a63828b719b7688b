"""Worker processes in tests are forked, not spawned.

A spawned process imports for three seconds before it begins. A forked one comes from a process that has imported
everything. It gets what a spawned one gets, by pickle: its work, the working folder, the path of imports and the
environment. Tests of the start itself ask for `spawned` (conftest.py), and processes of scripts are always spawned.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver
from multiprocessing.context import SpawnProcess
from multiprocessing.popen_forkserver import Popen
from typing import Any

import numpy as np

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
    """Fork worker processes from now on. The process that has imported everything starts with the first of them."""
    forkserver.set_forkserver_preload(_IMPORTED)
    SpawnProcess._Popen = staticmethod(_forked)  # type: ignore[attr-defined]


@contextmanager
def workers_are_spawned() -> Iterator[None]:
    """Spawn worker processes for a `with` block."""
    before = vars(SpawnProcess)["_Popen"]
    SpawnProcess._Popen = _SPAWNED  # type: ignore[attr-defined]
    try:
        yield
    finally:
        SpawnProcess._Popen = before  # type: ignore[attr-defined]
