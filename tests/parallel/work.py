"""Work for other processes: quick to import there."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from nac_drive.data_collection.controller.controller import Controller


def report(task: int) -> tuple[int, int]:
    """The task, and the process that did it."""
    return task, os.getpid()


def report_when_released(job: tuple[int, Path | None, Path | None]) -> tuple[int, int]:
    """Like `report`, after waiting at the first pipe, and after a release of the reader of the second one."""
    task, waits, releases = job
    if waits:
        waits.read_bytes()
    if releases:
        releases.write_bytes(b"")
    return report(task)


def threads(task: int) -> int:
    """The number of threads that torch computes with."""
    import torch

    return torch.get_num_threads()


def visible_gpus(task: int) -> str | None:
    """The GPUs that torch would find."""
    return os.environ.get("CUDA_VISIBLE_DEVICES")


class Dies:
    """A driver whose process is killed, as if the system had run out of memory."""

    def begin(self, env: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def act(self, observation: object, state: None, dt: float) -> tuple[int, None]:
        raise AssertionError("it is dead")


class DiesOnce(Controller):
    """The controller, whose process is killed at the tenth frame that the first of its copies sees."""

    def __init__(self, mark: Path):
        super().__init__("discrete")
        self.mark, self.frames = mark, 0

    def act(self, observation: Any, state: Any, dt: float) -> Any:
        self.frames += 1
        if self.frames == 10 and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().act(observation, state, dt)


def kill_itself(task: int) -> int:
    """Task 2 is the end of its process."""
    if task == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return task


def refuse(task: int) -> int:
    """No task is done."""
    raise ValueError(f"no {task}")


def leave_or_die(task: int) -> bytes:
    """Task 0 needs one thread, 1 exits with 3, 2 is killed, 3 is done, 4 fails."""
    kill_itself(task)
    if task == 0 and threads(task) != 1:
        sys.exit(4)
    if task == 1:
        sys.exit(3)
    if task == 4:
        raise ValueError("no 4")
    return bytes(200_000)  # more than a pipe holds


def meet_and_stay(pipes: tuple[Path, Path]) -> None:
    """Report at the first pipe, and stay until somebody writes to the second one."""
    ready, leave = pipes
    ready.write_bytes(b"")
    leave.read_bytes()
