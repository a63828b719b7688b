"""TensorBoard, Weights & Biases and Trackio show a run's rows.

Each tracker works in a thread of its own, so that a training never waits for one. A tracker that fails costs a warning:
metrics.jsonl has every row.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, Literal, Protocol, get_args

from nac_drive.policies.ranges import check_words
from nac_drive.storage.read import one_line

TrackerName = Literal["tensorboard", "wandb", "trackio"]
PROJECT = "nac-drive"
_PATIENCE = 30.0
"""Seconds that a tracker may take at the end of a run."""


@dataclass(frozen=True)
class TrackedRun:
    """A run as trackers know it."""

    folder: Path
    config: Mapping[str, Any]
    last_step: int | None
    """The last step so far, of a run that goes on; None for a new one."""

    @property
    def identity(self) -> str:
        """A name that stays when the run goes on."""
        return hashlib.sha256((self.folder / "env.json").read_bytes()).hexdigest()[:8]


class Tracker(Protocol):
    """Where rows are shown. It is made from a `TrackedRun`, in the thread that calls it."""

    def log(self, metrics: dict[str, float], step: int) -> None:
        """Show the numbers of a row."""
        ...

    def close(self) -> None:
        """Finish."""
        ...


class TensorBoard:
    """Event files in RUN/tensorboard."""

    def __init__(self, run: TrackedRun):
        from torch.utils.tensorboard import SummaryWriter

        purged = None if run.last_step is None else run.last_step + 1  # rows that the run has lost are hidden
        self._writer = SummaryWriter(str(run.folder / "tensorboard"), purge_step=purged)

    def log(self, metrics: dict[str, float], step: int) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WeightsAndBiases:
    """A run of the project nac-drive, or of WANDB_PROJECT."""

    def __init__(self, run: TrackedRun):
        import wandb

        settings = wandb.Settings(silent=True, console="off")
        if os.environ.get("WANDB_MODE", "online") == "online" and not wandb.login(prompt=False):
            raise RuntimeError("nobody is logged in; run `wandb login`, or set WANDB_MODE=offline")
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT), name=run.folder.name, id=run.identity, resume="allow",
            config=dict(run.config), settings=settings, reinit="create_new",
        )  # fmt: skip

    def log(self, metrics: dict[str, float], step: int) -> None:
        self._run.log(metrics, step=step)

    def close(self) -> None:
        self._run.finish()


class Trackio:
    """A run of the project nac-drive on this machine."""

    def __init__(self, run: TrackedRun):
        import trackio  # type: ignore[import-not-found]

        name = f"{run.folder.name}-{run.identity}"
        self._run = trackio.init(project=PROJECT, name=name, config=dict(run.config), resume="allow")

    def log(self, metrics: dict[str, float], step: int) -> None:
        self._run.log(metrics, step=step)

    def close(self) -> None:
        self._run.finish()


TRACKERS: dict[str, Callable[[TrackedRun], Tracker]] = {
    "tensorboard": TensorBoard, "wandb": WeightsAndBiases, "trackio": Trackio,
}  # fmt: skip
"""Name, which is the package's and the extra's -> tracker."""


def check_track(track: Any) -> None:
    """Check the names of trackers.

    Raises:
        ValueError: A name is unknown, or its package is not installed.
    """
    check_words("track", track)
    for name in track:
        if name not in get_args(TrackerName):
            raise ValueError(f"track must be of {', '.join(get_args(TrackerName))}, got {name!r}.")
        if find_spec(name) is None:
            raise ValueError(f"track: {name} is not installed; run `pip install 'nac-drive[{name}]'`.")


@contextmanager
def tracked(names: Sequence[str], run: TrackedRun) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Give rows to trackers.

    Args:
        names: Names in TRACKERS.
        run: The run.

    Yields:
        A function of a row, which returns at once.

    Warns:
        UserWarning: Once for each tracker that fails or does not finish.
    """
    feeds = [_Feed(name, run) for name in names]

    def log(row: Mapping[str, Any]) -> None:
        for feed in feeds:
            feed.put(row)

    try:
        yield log
    finally:
        for feed in feeds:
            feed.put(None)
        for feed in feeds:
            feed.finish()


class _Feed:
    """The thread of a tracker."""

    def __init__(self, name: str, run: TrackedRun):
        self._name, self._rows = name, SimpleQueue[Mapping[str, Any] | None]()
        self._error: Exception | None = None
        self._thread = Thread(target=self._work, args=(run,), name=f"track {name}", daemon=True)
        self._thread.start()

    def put(self, row: Mapping[str, Any] | None) -> None:
        """Hand over a row; None is the end."""
        self._rows.put(row)
        self._warn()

    def finish(self) -> None:
        """Wait for the tracker, but not long."""
        self._thread.join(_PATIENCE)
        if self._thread.is_alive():
            self._error = TimeoutError(f"it did not finish within {_PATIENCE:g} s")
        self._warn()

    def _work(self, run: TrackedRun) -> None:
        try:
            tracker = TRACKERS[self._name](run)
            while (row := self._rows.get()) is not None:
                tracker.log(numbers(row), row["step"])
            tracker.close()
        except Exception as error:  # of any kind: a tracker must not cost a training
            self._error = error

    def _warn(self) -> None:
        if self._error is not None:
            text = f"track: {self._name} failed: {one_line(self._error).rstrip('.')}; metrics.jsonl has every row."
            self._error = None
            warnings.warn(text, stacklevel=2)


def numbers(row: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Return the numbers of a row but its step. Names of nested ones are joined by slashes."""
    found: dict[str, float] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            found |= numbers(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and (prefix or name != "step"):
            found[f"{prefix}{name}"] = value
    return found
