"""Small demonstrations and trainings."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nac_drive import training
from nac_drive.data_collection.collect import record
from nac_drive.data_collection.dart import NoiseConfig
from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.data_collection.dataset.frames import Frames
from nac_drive.envs import Control, EnvConfig
from nac_drive.training.dagger import DaggerConfig, dagger
from nac_drive.training.train import CloneConfig, clone
from tests.killing import Fuse, Killed

FRAMES = 60


def demonstrations(path: Path, control: Control = "discrete", tracks: int = 3) -> Demonstrations:
    """Episodes of 60 frames, ten of them after the zoom, by the controller under noise."""
    env = EnvConfig(control, max_steps=FRAMES)
    return record(path, "controller", env=env, seeds=list(range(tracks)), noise=NoiseConfig(0.3, 4))


def synthetic(lengths: list[int], control: Control = "discrete", seed: int = 0) -> Frames:
    """Episodes of `lengths` frames of noise."""
    rng = np.random.default_rng(seed)
    total = sum(lengths)
    labels = rng.integers(5, size=total) if control == "discrete" else rng.random((total, 3), dtype=np.float32)
    return Frames(
        frames=rng.integers(256, size=(total, 96, 96, 3), dtype=np.uint8), labels=labels, actions=labels,
        rewards=np.zeros(total, np.float32), dt=np.full(total, 0.02, np.float32), zooming=np.zeros(total, bool),
        telemetry={}, offsets=np.cumsum([0, *lengths]), seeds=np.arange(len(lengths)),
    )  # fmt: skip


def part_of(frames: Frames, episodes: slice) -> Frames:
    """Some of the episodes alone."""
    first, end = frames.offsets[episodes.start], frames.offsets[episodes.stop]
    rows = slice(first, end)
    return replace(
        frames, frames=frames.frames[rows], labels=frames.labels[rows], actions=frames.actions[rows],
        rewards=frames.rewards[rows], dt=frames.dt[rows], zooming=frames.zooming[rows], seeds=frames.seeds[episodes],
        offsets=frames.offsets[episodes.start : episodes.stop + 1] - first,
    )  # fmt: skip


def config(core: str = "lstm", **changed: Any) -> CloneConfig:
    settings: dict[str, Any] = {
        "window": 16, "batch_size": 2, "epochs": 3, "learning_rate": 1e-3, "validation_fraction": 0.34,
        "validate_every": 1, "validation_tracks": "800000",
    }  # fmt: skip
    return CloneConfig(core=core, **{**settings, **changed})


def train(settings: CloneConfig, data: Demonstrations, folder: Path, **keywords: Any) -> Path:
    return clone(settings, data, folder, device="cpu", **keywords)


def rows(run: Path) -> list[dict[str, Any]]:
    """The metrics of a run without what the clock says."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [{key: value for key, value in json.loads(line).items() if not key.endswith("seconds")} for line in lines]


def results(run: Path) -> dict[str, Any]:
    """What a training leaves: metrics, and last and best checkpoint byte for byte."""
    files = {
        f"{name}/{file}": (run / "checkpoints" / name / file).read_bytes()
        for name in ("last", "best")
        for file in ("model.safetensors", "training_state/optimizer.safetensors", "training_state/state.json")
    }
    meta = json.loads((run / "checkpoints" / "best" / "config.json").read_text())["meta"]
    return {"rows": rows(run), "best": meta.get("epoch", meta.get("round")), **files}


def dagger_config(core: str = "lstm", **changed: Any) -> DaggerConfig:
    """Two episodes a round of 60 frames, ten of them after the zoom."""
    settings: dict[str, Any] = {
        "window": 16, "batch_size": 2, "max_steps": 60, "rounds": 2, "initial_episodes": 2, "episodes": 2, "segment": 7,
        "initial_epochs": 2, "epochs": 1, "validation_tracks": "800000", "student_share": 0.5,
    }  # fmt: skip
    return DaggerConfig(core=core, **{**settings, **changed})


def train_dagger(settings: DaggerConfig, folder: Path, **keywords: Any) -> Path:
    return dagger(settings, folder, **{"expert": "controller", "device": "cpu", **keywords})


class Stop(BaseException):
    """As Ctrl-C or kill: not an Exception."""


def killed_at_every_operation(
    monkeypatch: pytest.MonkeyPatch, folder: Path, train: Callable[..., Any], left: Callable[[Path], Any]
) -> int:
    """Train in a new run once for every file operation that puts something in its place, killed there and resumed.

    train(path, resume=...) trains; left(path) is what it leaves, which must be that of a training that nobody killed.
    Returns how often it was killed.
    """
    # A score that depends on the weights alone, so that a later step may win or lose.
    monkeypatch.setattr(
        training, "closed_loop", lambda driver, *_: {"score": float(driver.action_head.out.weight.detach().sum())}
    )
    monkeypatch.setattr("nac_drive.training.run_folder.describe_machine", dict)
    train(folder / "whole", resume=False)
    whole = left(folder / "whole")
    fuse = Fuse()
    real = {name: getattr(os, name) for name in ("replace", "rename", "symlink")}
    for moment in itertools.count():
        path, fuse.left = folder / f"killed_{moment}", moment
        with monkeypatch.context() as patch:
            for name, call in real.items():
                patch.setattr(os, name, fuse.deadly(call))
            try:
                train(path, resume=False)
                return moment
            except Killed:
                pass
        train(path, resume=(path / "config.yaml").exists())
        assert left(path) == whole, f"killed at operation {moment}"
    raise AssertionError("it is always killed")
