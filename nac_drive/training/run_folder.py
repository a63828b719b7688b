"""The folder of one run of train, dagger or ppo: config, command, machine, a row of metrics per step, checkpoints.

RUN/config.yaml  command.txt  env.json  metrics.jsonl  checkpoints/step_N/  checkpoints/last  checkpoints/best
"""

from __future__ import annotations

import json
import math
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch.optim import Optimizer

from nac_drive.data_collection.files import flatten, sync_folder, sync_tree, write_atomically, writing
from nac_drive.data_collection.versions import installed_versions

FORMAT = 2
"""The format of config.yaml: nested settings. Version 0.1 wrote flat ones and no format."""


class RunFolder:
    """The folder of a run. Rows and checkpoints are on disk when the call that writes them returns."""

    def __init__(self, path: Path):
        self.path = path

    @classmethod
    def create(cls, path: str | os.PathLike[str], config: dict[str, Any]) -> RunFolder:
        """Start a new run.

        Args:
            path: Its folder.
            config: Its settings, for config.yaml.

        Raises:
            FileExistsError: If `path` holds more than the remains of a killed creation.
            WriteError: If it cannot be written.
        """
        path = Path(path)
        if not _vacant(path):
            raise FileExistsError(
                f"run folder {path} already exists; choose another folder, or continue with --resume."
            )
        with writing(path):
            path.mkdir(parents=True, exist_ok=True)
            (path / "command.txt").write_text(shlex.join(sys.argv) + "\n")
            (path / "env.json").write_text(json.dumps(describe_machine(), indent=2) + "\n")
            run = cls(path)
            run._write_config(config)
        return run

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> RunFolder:
        """Open an existing run.

        Raises:
            FileNotFoundError: `path` is no run.
        """
        path = Path(path)
        if not (path / "config.yaml").is_file():
            raise FileNotFoundError(f"{path} is not a run folder: config.yaml is missing; pass the folder of a run.")
        return cls(path)

    @property
    def config(self) -> dict[str, Any]:
        """Read the settings of the run.

        Raises:
            ValueError: The file is damaged.
        """
        config = self._read_config()
        config.pop("format", None)
        return config

    def _read_config(self) -> dict[str, Any]:
        try:
            config = yaml.safe_load((self.path / "config.yaml").read_text())
        except yaml.YAMLError:
            config = None
        if not isinstance(config, dict):
            raise ValueError(f"{self.path / 'config.yaml'} is damaged or not a run's config; start a new run.")
        return config

    def require_config(self, config: dict[str, Any], *, moved: Sequence[str] = (), grown: Sequence[str] = ()) -> None:
        """Require `config` to be that of the run. `keep_config` then writes the settings that may differ.

        Args:
            config: The config to go on with.
            moved: Keys that may differ, such as `dataset`; those of nested settings are joined by dots.
            grown: Keys whose number may be larger than that of the run.

        Raises:
            ValueError: Naming the keys that differ, or if the run was started by version 0.1.
        """
        saved = self._read_config()
        if saved.pop("format", None) != FORMAT:
            raise ValueError(
                f"{self.path} was started by version 0.1 of nac-drive: its driver still loads and drives, but the run "
                "cannot be resumed; start a new one (--init-from takes over the weights)."
            )
        before, now = flatten(saved), flatten(yaml.safe_load(yaml.safe_dump(config)))  # tuples are read back as lists
        changed = [
            key for key in sorted(before.keys() | now.keys())
            if before.get(key) != now.get(key)
            and key not in moved
            and not (key in grown and key in before and now[key] > before[key])
        ]  # fmt: skip
        if changed:
            differences = "; ".join(
                f"{k}: run has {before.get(k)!r}, got {now.get(k)!r}" + ", but it may only grow" * (k in grown)
                for k in changed
            )
            raise ValueError(
                f"cannot resume {self.path} with another config ({differences}); keep it or start a new run."
            )

    def keep_config(self, config: dict[str, Any]) -> None:
        """Write the config of a run that goes on: moved and grown settings replace those on disk."""
        if flatten(self.config) != flatten(yaml.safe_load(yaml.safe_dump(config))):
            self._write_config(config)

    def _write_config(self, config: dict[str, Any]) -> None:
        text = yaml.safe_dump({"format": FORMAT, **config}, sort_keys=False)
        write_atomically(self.path / "config.yaml", text.encode())

    # Metrics

    def log(self, row: dict[str, Any]) -> None:
        """Append one row to metrics.jsonl."""
        path = self.path / "metrics.jsonl"
        with writing(path), path.open("a") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def rows(self) -> list[dict[str, Any]]:
        """All whole rows so far; a line cut off by a crash is left out."""
        path = self.path / "metrics.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        rows = []
        for line in lines:
            try:
                rows.append(json.loads(line))
            except ValueError:
                break
        return rows

    def drop_rows_after(self, step: int) -> None:
        """Remove the rows of later steps."""
        kept = [row for row in self.rows() if row["step"] <= step]
        write_atomically(self.path / "metrics.jsonl", "".join(json.dumps(row) + "\n" for row in kept).encode())

    def last_row_is_best(self) -> bool:
        """Return whether the last row has a `score` above that of every other row."""
        *others, row = self.rows()
        return "score" in row and all(row["score"] > other.get("score", -math.inf) for other in others)

    # Steps

    def finish_step(self, row: dict[str, Any], write: Callable[[Path], None]) -> None:
        """Log the row of a step, save its checkpoint, and let `best` point there if its score is the highest.

        The row comes first: on resume, a row without a checkpoint is dropped and its step repeated.

        Args:
            row: Metrics; `step` is the number of the step, `score` decides the best.
            write: Makes the folder that it is given.
        """
        self.log(row)
        checkpoint = self.checkpoint(row["step"], write)
        if self.last_row_is_best():
            self.mark_best(checkpoint)

    def rewind(self) -> Path | None:
        """Return to the last checkpoint: drop later rows, and mark the checkpoint if it is the best.

        Returns:
            Its folder; None before the first one.
        """
        last = self.checkpoint_folder("last")
        self.drop_rows_after(-1 if last is None else int(last.name.removeprefix("step_")))
        if last and self.last_row_is_best():  # killed between the checkpoint and its mark
            self.mark_best(last)
        return last

    # Checkpoints

    def checkpoint(self, step: int, write: Callable[[Path], None]) -> Path:
        """Save a checkpoint, which appears as a whole; `last` then points to it.

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
        folder = self.path / "checkpoints" / f"step_{step}"
        if self.checkpoint_folder("last") == folder.resolve():
            return folder
        temporary = folder.with_name(folder.name + ".tmp")
        with writing(folder):
            folder.parent.mkdir(exist_ok=True)
            for leftover in (temporary, folder):
                shutil.rmtree(leftover, ignore_errors=True)
            write(temporary)
            sync_tree(temporary)
            os.replace(temporary, folder)
            sync_folder(folder.parent)
            self._point("last", folder)
        kept = {(self.path / "checkpoints" / name).resolve() for name in ("last", "best")}
        for old in (self.path / "checkpoints").glob("step_*"):
            if old.resolve() not in kept:
                shutil.rmtree(old, ignore_errors=True)
        return folder

    def mark_best(self, folder: Path) -> None:
        """Let `best` point to the checkpoint `folder`."""
        self._point("best", folder)

    def checkpoint_folder(self, name: str) -> Path | None:
        """The folder that `last` or `best` points to; None before the first checkpoint."""
        link = self.path / "checkpoints" / name
        return link.resolve() if link.exists() else None

    def _point(self, name: str, folder: Path) -> None:
        link = self.path / "checkpoints" / name
        temporary = link.with_name(name + ".tmp")
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(folder.name)
        os.replace(temporary, link)


def _vacant(path: Path) -> bool:
    """Return whether `path` is free or holds a creation that was killed: `create` writes config.yaml last."""
    if not path.exists():
        return True
    remains = {"checkpoints", "command.txt", "env.json"}
    return (
        path.is_dir()
        and all(file.name in remains or file.suffix == ".tmp" for file in path.iterdir())
        and not any(path.glob("checkpoints/*"))
    )


def save_training_state(path: Path, optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Write `path/optimizer.safetensors`, the moments of every parameter, and `path/state.json`.

    Args:
        path: The folder; it is made.
        optimizer: Adam or another optimizer whose state is tensors.
        state: Anything JSON-able, such as the step.
    """
    path.mkdir(parents=True, exist_ok=True)
    tensors = {
        f"{index}.{name}": value.detach().cpu().contiguous()
        for index, values in optimizer.state_dict()["state"].items()
        for name, value in values.items()
    }
    save_file(tensors, path / "optimizer.safetensors")
    (path / "state.json").write_text(json.dumps(state) + "\n")


def load_training_state(path: Path, optimizer: Optimizer) -> dict[str, Any]:
    """Load the saved moments into `optimizer`.

    Args:
        path: The folder that `save_training_state` wrote.
        optimizer: Made from the same parameters.

    Returns:
        The rest of the state.

    Raises:
        ValueError: For a damaged file.
    """
    moments: dict[int, dict[str, torch.Tensor]] = {}
    try:
        saved = load_file(path / "optimizer.safetensors")
    except SafetensorError as error:
        raise ValueError(f"{path / 'optimizer.safetensors'} is damaged ({error}); start a new run.") from error
    for key, value in saved.items():
        index, name = key.split(".", 1)
        moments.setdefault(int(index), {})[name] = value
    whole = optimizer.state_dict()
    optimizer.load_state_dict({"state": moments, "param_groups": whole["param_groups"]})
    return json.loads((path / "state.json").read_text())


def describe_machine() -> dict[str, Any]:
    """Return versions, hardware and git commit, which a reader needs to run the training again."""
    commit = subprocess.run(
        ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu_count": os.cpu_count(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "versions": installed_versions(),
        "git_commit": commit or None,
    }
