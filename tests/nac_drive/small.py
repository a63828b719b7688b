"""Small demonstrations and runs."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

from nac_drive.data_collection.collect import collect
from nac_drive.data_collection.dart import NoiseConfig
from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.data_collection.dataset.frames import Frames
from nac_drive.envs import Control, EnvConfig, batch, readings
from nac_drive.events import Event, Progress
from nac_drive.parallel.outcome import TaskOutcome, outcome_of
from nac_drive.storage.checkpoints import checkpoint_folder
from nac_drive.training import trainer
from nac_drive.training.config import CloningConfig, TrainConfig
from nac_drive.training.dagger import dagger
from nac_drive.training.dagger_config import DaggerConfig
from nac_drive.training.ppo.config import PPOConfig
from nac_drive.training.train import train as train_driver
from tests.killing import Fuse, Killed

ZOOM = 4
"""Frames of the zoom at the start of an episode, in place of fifty, see `short_zoom`."""
FRAMES = ZOOM + 32
TINY: dict[str, Any] = {
    "sequence_length": 1, "batch_size": 8, "max_steps": 4, "initial_episodes": 1, "episodes": 1, "switch_interval": 1,
}  # fmt: skip
"""Settings of `dagger` for core cnn: one episode of four frames a round, one update an epoch."""
PARTS = ("driver", "data", "optim", "rollout", "reward", "validation")

Config = TypeVar("Config", CloningConfig, TrainConfig, DaggerConfig, PPOConfig)


def nested(config: Config, **changed: Any) -> Config:
    """`config` with some settings changed, each by the name of its option, whichever part holds it."""
    if "validation_tracks" in changed:
        changed["tracks"] = changed.pop("validation_tracks")
    for part in PARTS:
        if not hasattr(config, part):
            continue
        names = {setting.name for setting in fields(getattr(config, part))} & changed.keys()
        if names:
            values = {name: changed.pop(name) for name in names}
            config = replace(config, **{part: replace(getattr(config, part), **values)})
    return replace(config, **changed)


def demonstrations(path: Path, control: Control = "discrete", tracks: int = 3) -> Demonstrations:
    """Episodes of `FRAMES`, by the controller under noise."""
    env = EnvConfig(control, max_steps=FRAMES)
    return collect(path, "controller", env=env, seeds=list(range(tracks)), noise=NoiseConfig(0.3, 4))


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


@contextmanager
def short_zoom() -> Iterator[None]:
    """Let the zoom last `ZOOM` frames in recorded episodes."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (readings, batch):
            patch.setattr(module, "ZOOM_FRAMES", ZOOM)
        yield


def part_of(frames: Frames, episodes: slice) -> Frames:
    """Some of the episodes alone."""
    first, end = frames.offsets[episodes.start], frames.offsets[episodes.stop]
    rows = slice(first, end)
    return replace(
        frames, frames=frames.frames[rows], labels=frames.labels[rows], actions=frames.actions[rows],
        rewards=frames.rewards[rows], dt=frames.dt[rows], zooming=frames.zooming[rows], seeds=frames.seeds[episodes],
        offsets=frames.offsets[episodes.start : episodes.stop + 1] - first,
    )  # fmt: skip


def config(core: str = "lstm", **changed: Any) -> TrainConfig:
    """Three epochs of short sequences; settings are given by their own names, see `nested`."""
    settings: dict[str, Any] = {
        "sequence_length": 16, "batch_size": 2, "horizontal_flip": False, "epochs": 3,
        "learning_rate": 1e-3, "ema_decay": 0.0, "encoder": "pooled", "dropout": 0.2, "validation_fraction": 0.34,
        "validate_every": 1, "validation_tracks": "800000",
    }  # fmt: skip
    return nested(TrainConfig(), core=core, **{**settings, **changed})


def train(settings: TrainConfig, data: Demonstrations, folder: Path, **keywords: Any) -> Path:
    """`train` on the CPU."""
    return train_driver(settings, data, folder, **{"device": "cpu", **keywords})


def rows(run: Path) -> list[dict[str, Any]]:
    """The metrics of a run without times and memory."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    measured = ("seconds", "_per_second", "memory_mb")
    return [{key: value for key, value in json.loads(line).items() if not key.endswith(measured)} for line in lines]


def checkpoint(run: Path, name: str) -> Path:
    """The folder of the `last` or `best` checkpoint."""
    folder = checkpoint_folder(run, name)
    assert folder is not None
    return folder


def results(run: Path) -> dict[str, Any]:
    """The results of a run: metrics, and last and best checkpoint byte for byte. Asserts that no stray file is left."""
    steps = {checkpoint(run, name).name for name in ("last", "best")}
    assert {path.name for path in (run / "checkpoints").iterdir()} == {*steps, "checkpoints.json"}
    assert not list(run.rglob("*.tmp"))
    files = {
        f"{name}/{file}": (checkpoint(run, name) / file).read_bytes()
        for name in ("last", "best")
        for file in ("model.safetensors", "training_state/optimizer.safetensors", "training_state/state.json")
    }
    meta = json.loads((checkpoint(run, "best") / "config.json").read_text())["meta"]
    return {"rows": rows(run), "best": meta.get("epoch", meta.get("round", meta.get("step"))), **files}


def dagger_config(core: str = "lstm", **changed: Any) -> DaggerConfig:
    """Two episodes a round of `FRAMES`; see `nested`."""
    settings: dict[str, Any] = {
        "sequence_length": 16, "batch_size": 2, "max_steps": FRAMES, "rounds": 2, "initial_episodes": 2, "episodes": 2,
        "switch_interval": 7, "initial_epochs": 2, "epochs": 1, "validation_tracks": "800000", "beta": 0.5,
        "encoder": "pooled",
    }  # fmt: skip
    return nested(DaggerConfig(), core=core, **{**settings, **changed})


def train_dagger(settings: DaggerConfig, folder: Path, **keywords: Any) -> Path:
    """`dagger` on the CPU, with the labels of the controller."""
    return dagger(settings, folder, **{"expert": "controller", "device": "cpu", **keywords})


def each_here(
    function: Callable[[Any], Any], waiting: Iterable[Any], workers: int
) -> Iterator[tuple[Any, TaskOutcome]]:
    """Replacement of `each_in_a_process`: tasks run here, without the cost of a process each."""
    for task in waiting:
        yield task, outcome_of(function, task)


class Stop(BaseException):
    """An interruption, such as Ctrl-C: not an Exception."""


def stop_at(number: int, job: str, after: float = 0.0) -> Progress:
    """Return a progress that raises `Stop` at the `number`-th event of `job` that is done more than `after`."""
    left = number

    def progress(event: Event) -> None:
        nonlocal left
        if event.job == job and (event.done > after or not event.total):
            left -= 1
            if not left:
                raise Stop

    return progress


def score_of_weights(driver: Any, *_: Any) -> dict[str, Any]:
    """Replacement of `closed_loop` without cost: a score of the weights alone, so that any step may win."""
    score = float(driver.action_head.out.weight.detach().sum())
    return {"score": score, "return_mean": score, "returns": [score]}


def killed_at_every_operation(
    monkeypatch: pytest.MonkeyPatch, folder: Path, train: Callable[..., Any], left: Callable[[Path], Any]
) -> int:
    """Start a run once for every file operation that puts something in its place, kill it there and resume it.

    Args:
        monkeypatch: Patches the operations.
        folder: The folder of the runs.
        train: train(path, resume=...) trains.
        left: left(path) is the result, which must equal the result of a run without interruption.

    Returns:
        The number of kills.
    """
    monkeypatch.setattr(trainer, "closed_loop", score_of_weights)
    monkeypatch.setattr("nac_drive.training.run_folder.describe_machine", dict)
    train(folder / "whole", resume=False)
    whole = left(folder / "whole")
    fuse = Fuse()
    real = {name: getattr(os, name) for name in ("replace", "rename", "unlink")}
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
    raise AssertionError("every run is killed")
