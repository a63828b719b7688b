"""The folder of one run of train, dagger or ppo.

It holds config, command, machine, a row of metrics per step, checkpoints.

RUN/config.yaml  command.txt  env.json  metrics.jsonl  curve.png  checkpoints/step_N/  checkpoints/checkpoints.json

config.yaml is written first and marks the folder as a run. checkpoints.json names the last and the best checkpoint.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import yaml

from nac_drive.storage.checkpoints import (
    CHECKPOINTS,
    RECORD,
    Record,
    checkpoint_folder,
    read_record,
    step_of,
    write_record,
)
from nac_drive.storage.links import require_link_to_something, require_own_file, require_own_files
from nac_drive.storage.lock import LOCK
from nac_drive.storage.names import shell_word
from nac_drive.storage.read import NOT_NEGATIVE, FileError, read_json, read_json_lines, read_yaml
from nac_drive.storage.write import flatten, remove_leftovers, sync_folder, sync_tree, write_atomically, writing
from nac_drive.training.config_differences import as_read, config_differences
from nac_drive.training.curve import CURVE
from nac_drive.training.finite import require_finite_row
from nac_drive.training.machine import describe_machine
from nac_drive.training.main_process import is_main_process
from nac_drive.training.settings import CONFIG, FORMAT

_METRICS, _COMMAND, MACHINE = "metrics.jsonl", "command.txt", "env.json"
_UNFINISHED_STEP = re.compile(r"step_[0-9]+\.tmp|\.step_[0-9]+\.tmp\.[0-9]{1,10}\.(tmp|old)")
"""Folders that `checkpoint` and `save_driver` had not finished."""


_Return = Annotated[float, msgspec.Meta(ge=-1e9, le=1e9)]


class _Row(msgspec.Struct):
    """The keys of a row that are read again."""

    step: Annotated[int, msgspec.Meta(ge=0)]
    score: float = -math.inf
    loss: float | msgspec.UnsetType = msgspec.UNSET
    seconds: Annotated[float, NOT_NEGATIVE] | msgspec.UnsetType = msgspec.UNSET
    return_mean: _Return | msgspec.UnsetType = msgspec.UNSET
    returns: Annotated[list[_Return], msgspec.Meta(min_length=1)] | msgspec.UnsetType = msgspec.UNSET


class RunFolder:
    """The folder of a run. Rows and checkpoints are on disk when the call that writes them returns."""

    def __init__(self, path: Path):
        self.path = path
        self.on_row: Callable[[dict[str, Any]], None] = lambda row: None
        """Called with every row that is written."""

    @classmethod
    def create(cls, path: str | os.PathLike[str], config: dict[str, Any], *, checkpoints: bool = True) -> RunFolder:
        """Start a new run.

        Args:
            path: Its folder.
            config: Its settings, for config.yaml.
            checkpoints: It will have checkpoints; a comparison has none of its own.

        Raises:
            FileExistsError: If `path` holds more than the remains of a killed creation.
            WriteError: If it cannot be written.
        """
        path = Path(path)
        cls.require(path, resume=False)
        with writing(path):
            path.mkdir(parents=True, exist_ok=True)
            run = cls(path)
            run._write_config(config)
            run.complete(checkpoints)
        return run

    @classmethod
    def require(cls, path: Path, resume: bool) -> None:
        """Check that a run can be resumed or started.

        It is checked before work begins.

        The main process checks for all that train together.

        Raises:
            FileExistsError: If a new run would find more than the remains of a killed creation.
            FileNotFoundError: If there is no run to resume.
            FileError: If a file or folder of the run is a link, see `require_own_files`.
        """
        if not is_main_process():
            return
        require_link_to_something(path)
        if resume:
            require_own_file(path / CONFIG)
            cls.open(path)
            read_record(path)
            require_own_files(path)
        elif not _vacant(path):
            raise FileExistsError(
                f"run folder {path} already exists; choose another folder, or continue with --resume."
            )

    def complete(self, checkpoints: bool = True) -> None:
        """Write the files that a killed creation may lack."""
        if not (self.path / _COMMAND).exists():
            write_atomically(self.path / _COMMAND, (" ".join(map(shell_word, sys.argv)) + "\n").encode())
        if not (self.path / MACHINE).exists():
            write_atomically(self.path / MACHINE, (json.dumps(describe_machine(), indent=2) + "\n").encode())
        if checkpoints and not (self.path / CHECKPOINTS / RECORD).exists():
            (self.path / CHECKPOINTS).mkdir(exist_ok=True)
            write_record(self.path, read_record(self.path) or Record(None, None))

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> RunFolder:
        """Open an existing run.

        Raises:
            FileNotFoundError: `path` is no run.
        """
        path = Path(path)
        if not (path / CONFIG).is_file():
            raise FileNotFoundError(f"{path} is not a run folder: config.yaml is missing; pass the folder of a run.")
        return cls(path)

    @property
    def config(self) -> dict[str, Any]:
        """Read the settings of the run.

        Raises:
            FileError: The file is damaged.
        """
        config = self._read_config()
        config.pop("format", None)
        return config

    def _read_config(self) -> dict[str, Any]:
        return read_yaml(self.path / CONFIG, dict[str, Any], "a run's config", "start a new run")

    def require_config(self, config: dict[str, Any], *, moved: Sequence[str] = (), grown: Sequence[str] = ()) -> None:
        """Require `config` to be the run's. `keep_config` then writes the settings that may differ.

        Args:
            config: The config to go on with.
            moved: Keys that may differ, such as `dataset`; keys of nested settings are joined by dots.
            grown: Keys whose number may be larger than in the run.

        Raises:
            ValueError: Keys differ, which are named, or an older version started the run.
        """
        saved = self._read_config()
        if saved.pop("format", None) != FORMAT:
            raise ValueError(
                f"{self.path} was started by an older version of nac-drive and cannot be resumed; start a new run."
            )
        if differences := config_differences(saved, config, moved, grown):
            raise ValueError(
                f"cannot resume {self.path} with another config ({differences}); keep it or start a new run."
            )

    def keep_config(self, config: dict[str, Any], grown: Sequence[str] = ()) -> None:
        """Write the config of a run that goes on.

        Moved and grown settings replace the settings on disk. env.json keeps the first number of one that has grown.

        Args:
            config: The config to go on with.
            grown: See `require_config`.
        """
        before = self.config
        if flatten(before) == flatten(as_read(config)):
            return
        if first := {key: before[key] for key in grown if before.get(key) != config[key]}:
            machine = read_json(self.path / MACHINE, dict[str, Any], "a run's machine", "start a new run")
            machine["grown_from"] = {**first, **machine.get("grown_from", {})}
            write_atomically(self.path / MACHINE, (json.dumps(machine, indent=2) + "\n").encode())
        self._write_config(config)

    def _write_config(self, config: dict[str, Any]) -> None:
        text = yaml.safe_dump({"format": FORMAT, **config}, sort_keys=False)
        write_atomically(self.path / CONFIG, text.encode())

    # Metrics

    def log(self, row: dict[str, Any]) -> None:
        """Append one row to metrics.jsonl.

        Raises:
            DivergedError: If a metric is NaN or infinite; nothing is written.
            WriteError: If it cannot be written.
        """
        require_finite_row(row)
        path = self.path / _METRICS
        with writing(path), path.open("a") as file:
            file.write(json.dumps(row, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.on_row(row)

    def rows(self) -> list[dict[str, Any]]:
        """Return all whole rows so far.

        A line cut off by a crash is left out.

        Raises:
            FileError: The file is damaged, or holds a step twice or in another order.
        """
        path = self.path / _METRICS
        if not path.exists():
            return []
        what, fix = "a row of metrics", "restore the file or start a new run"
        rows, _ = read_json_lines(path, dict[str, Any], what, fix)
        last = -1
        for number, row in enumerate(rows, 1):
            try:
                step = msgspec.convert(row, _Row).step
            except msgspec.ValidationError as error:
                raise FileError(f"{path}, line {number} is not {what}: {error}; {fix}.") from None
            if step <= last:
                raise FileError(f"{path}, line {number} holds step {step} after step {last}; {fix}.")
            last = step
        return rows

    def drop_rows_after(self, step: int) -> None:
        """Remove the rows of later steps."""
        kept = [row for row in self.rows() if row["step"] <= step]
        write_atomically(self.path / _METRICS, "".join(json.dumps(row) + "\n" for row in kept).encode())

    def last_row_is_best(self) -> bool:
        """Return whether the last row has the highest `score`."""
        *others, score = (row.get("score", -math.inf) for row in self.rows())
        return all(score > other for other in (-math.inf, *others))

    # Steps

    def finish_step(self, row: dict[str, Any], write: Callable[[Path], None]) -> None:
        """Log the row of a step and save its checkpoint.

        `best` points there if its score is the highest.

        The row comes first: on resume, a row without a checkpoint is dropped and its step repeated.

        Args:
            row: Metrics; `step` is the number of the step, `score` decides the best.
            write: Makes the folder that it is given.

        Raises:
            DivergedError: If a metric is NaN or infinite; nothing is written.
            WriteError: If it cannot be written.
        """
        self.log(row)
        checkpoint = self.checkpoint(row["step"], write)
        if self.last_row_is_best():
            self.mark_best(checkpoint)

    def rewind(self) -> Path | None:
        """Return to the last checkpoint.

        Later rows are dropped. The checkpoint is marked if it is the best.

        What killed processes left is removed.

        Returns:
            Its folder; None before the first one.

        Raises:
            FileError: The run has checkpoints, but no record of the last one, or no row of it.
        """
        last, rows = self.checkpoint_folder("last"), self.rows()
        record = read_record(self.path)
        lost = bool(last or self._steps()) if record is None else record.last is None and record.best is not None
        if lost or (last is None and len(rows) > 1):
            raise FileError(
                f"{self.path / CHECKPOINTS / RECORD} is missing or has lost the last checkpoint of this run; "
                "restore it, or start a new run in another folder."
            )
        step = -1 if last is None else int(last.name.removeprefix("step_"))
        if last and step not in [row["step"] for row in rows]:
            raise FileError(f"{self.path / _METRICS} has lost the row of step {step}; restore it or start a new run.")
        self._remove_leftovers()
        self.complete()
        self.drop_rows_after(step)
        if last and self.last_row_is_best():  # killed between the checkpoint and its mark
            self.mark_best(last)
        self._remove_others()
        return last

    # Checkpoints

    def checkpoint(self, step: int, write: Callable[[Path], None]) -> Path:
        """Save a checkpoint as a whole, and mark it `last`.

        Checkpoints that are neither the last nor the best are removed. A step that `last` points to already is kept as
        it is.

        Args:
            step: The number of the step.
            write: Makes the folder that it is given.

        Returns:
            The folder `checkpoints/step_N`.

        Raises:
            WriteError: If it cannot be written.
        """
        folder = self.path / CHECKPOINTS / f"step_{step}"
        if self.checkpoint_folder("last") == folder:
            return folder
        temporary = folder.with_name(folder.name + ".tmp")
        with writing(folder):
            self._remove_leftovers()
            shutil.rmtree(folder, ignore_errors=True)
            try:
                write(temporary)
                sync_tree(temporary)
                os.replace(temporary, folder)
            except Exception:
                shutil.rmtree(temporary, ignore_errors=True)
                raise
            sync_folder(folder.parent)
            self._record(last=folder)
        return folder

    def mark_best(self, folder: Path) -> None:
        """Record the checkpoint `folder` as the best."""
        self._record(best=folder)

    def checkpoint_folder(self, name: str) -> Path | None:
        """Return the folder of the `last` or `best` checkpoint.

        None before the first.

        Raises:
            FileError: The record of checkpoints is damaged, or the folder is missing.
        """
        return checkpoint_folder(self.path, name)

    def _record(self, **folders: Path) -> None:
        record = read_record(self.path) or Record(None, None)
        names = {name: folder.name for name, folder in folders.items()}
        write_record(self.path, msgspec.structs.replace(record, **names))
        self._remove_others()

    def _remove_others(self) -> None:
        """Remove checkpoints that are neither the last nor the best."""
        kept = {self.checkpoint_folder(name) for name in ("last", "best")}
        for folder in self._steps():
            if folder not in kept:
                shutil.rmtree(folder, ignore_errors=True)

    def _steps(self) -> list[Path]:
        """All folders of checkpoints."""
        return [path for path in (self.path / CHECKPOINTS).glob("step_*") if step_of(path) is not None]

    def _remove_leftovers(self) -> None:
        """Remove files and checkpoints that were not finished. Files of other names are not ours and stay."""
        for name in (CONFIG, _METRICS, _COMMAND, MACHINE, CURVE):
            remove_leftovers(self.path / name)
        (self.path / CHECKPOINTS).mkdir(exist_ok=True)
        remove_leftovers(self.path / CHECKPOINTS / RECORD)
        for path in (self.path / CHECKPOINTS).iterdir():
            if not path.is_symlink() and _UNFINISHED_STEP.fullmatch(path.name):
                shutil.rmtree(path, ignore_errors=True)


def _vacant(path: Path) -> bool:
    """Return whether a run can be created at `path`.

    It is free, or holds a creation that was killed before config.yaml was there.
    """
    if not path.exists():
        return True
    unfinished = re.compile(rf"{re.escape(CONFIG)}\.[0-9]{{1,10}}\.tmp")
    return path.is_dir() and all(file.name == LOCK or unfinished.fullmatch(file.name) for file in path.iterdir())
