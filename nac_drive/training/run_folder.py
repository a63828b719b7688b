"""The folder of one training: its config, command and machine, a row of metrics per step, and checkpoints.

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
"""Of config.yaml: nested settings. Version 0.1 wrote none."""


class RunFolder:
    """Creates, reads and resumes a run. Rows and checkpoints are on disk when the call that writes them returns."""

    def __init__(self, path: Path):
        self.path = path

    @classmethod
    def create(cls, path: Path, config: dict[str, Any]) -> RunFolder:
        """A new run. Raises FileExistsError when `path` holds more than what a killed creation leaves behind."""
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
    def open(cls, path: Path) -> RunFolder:
        """An existing run. Raises FileNotFoundError when `path` is none."""
        if not (path / "config.yaml").is_file():
            raise FileNotFoundError(f"{path} is not a run folder: config.yaml is missing; pass the folder of a run.")
        return cls(path)

    @property
    def config(self) -> dict[str, Any]:
        """What `create` was given. Raises ValueError when the file holds something else."""
        try:
            config = yaml.safe_load((self.path / "config.yaml").read_text())
        except yaml.YAMLError:
            config = None
        if not isinstance(config, dict):
            raise ValueError(f"{self.path / 'config.yaml'} is damaged or not a run's config; start a new run.")
        return config

    def require_config(self, config: dict[str, Any], *, moved: Sequence[str] = (), grown: Sequence[str] = ()) -> None:
        """Require `config` to be the one that the run was started with, and keep it from now on.

        Args:
            config: The config to go on with.
            moved: Keys that may differ, such as `dataset`; those of nested settings are joined by dots.
            grown: Keys whose number may be larger than that of the run.

        Raises:
            ValueError: Naming the keys that differ, or if the run was started by version 0.1.
        """
        saved = self.config
        if saved.pop("format", None) != FORMAT:
            raise ValueError(
                f"{self.path} was started by version 0.1 of nac-drive: its driver loads and drives as before, but the "
                "training cannot go on; start a new run (--init-from takes the weights over)."
            )
        before, now = flatten(saved), flatten(yaml.safe_load(yaml.safe_dump(config)))  # tuples are read back as lists
        changed = [
            key for key in sorted(before.keys() | now.keys())
            if before.get(key) != now.get(key)
            and key not in moved
            and not (key in grown and key in before and now[key] > before[key])
        ]  # fmt: skip
        if changed:
            differences = "; ".join(f"{k}: run has {before.get(k)!r}, got {now.get(k)!r}" for k in changed)
            raise ValueError(
                f"cannot resume {self.path} with another config ({differences}); keep it or start a new run."
            )
        if before != now:
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
        """Forget rows later than the checkpoint that a resumed run goes on from."""
        kept = [row for row in self.rows() if row["step"] <= step]
        write_atomically(self.path / "metrics.jsonl", "".join(json.dumps(row) + "\n" for row in kept).encode())

    def last_row_is_best(self) -> bool:
        """Whether the last row has a `score`, and one above that of every other row."""
        *others, row = self.rows()
        return "score" in row and all(row["score"] > other.get("score", -math.inf) for other in others)

    # Checkpoints

    def checkpoint(self, step: int, write: Callable[[Path], None]) -> Path:
        """Save a checkpoint: `write` makes the folder it is given, which then appears whole as `checkpoints/step_N`.

        `last` points to it; checkpoints that are neither the last nor the best are removed. A step that `last` points
        to already is kept as it is.
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
    """Whether `path` is free: `create` writes config.yaml last, and nothing else comes before it."""
    if not path.exists():
        return True
    remains = {"checkpoints", "command.txt", "env.json"}
    return (
        path.is_dir()
        and all(file.name in remains or file.suffix == ".tmp" for file in path.iterdir())
        and not any(path.glob("checkpoints/*"))
    )


def save_training_state(path: Path, optimizer: Optimizer, state: dict[str, Any]) -> None:
    """`path/optimizer.safetensors` (the moments of every parameter) and `path/state.json`."""
    path.mkdir(parents=True, exist_ok=True)
    tensors = {
        f"{index}.{name}": value.detach().cpu().contiguous()
        for index, values in optimizer.state_dict()["state"].items()
        for name, value in values.items()
    }
    save_file(tensors, path / "optimizer.safetensors")
    (path / "state.json").write_text(json.dumps(state) + "\n")


def load_training_state(path: Path, optimizer: Optimizer) -> dict[str, Any]:
    """Put the saved moments back into `optimizer`, made from the same parameters; returns the rest of the state.

    Raises ValueError for a damaged file.
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
    """Versions, hardware and git commit: what a reader needs to repeat a run."""
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
