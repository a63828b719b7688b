"""Every public function that takes a path takes it as text and as a Path."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nac_drive as nd
from nac_drive.experiments import experiment
from nac_drive.policies.ops.threads import one_thread
from nac_drive.training.run_folder import RunFolder
from tests.nac_drive.small import FRAMES, config, dagger_config, each_here, nested
from tests.slow import slow_but

ENV = nd.EnvConfig(max_steps=FRAMES)
FEW = {"rounds": 0, "initial_episodes": 1, "initial_epochs": 1, "max_steps": 20}
PPO = nested(nd.PPOConfig(),
    total_timesteps=32, n_envs=1, n_steps=16, value_warmup_steps=0, batch_size=16, n_epochs=1, validate_every=32,
    validation_tracks="val-1",
)  # fmt: skip
Kind = Callable[[Path], Any]


def own_data(path: Any) -> nd.Demonstrations:
    episode = {"observations": np.zeros((3, 96, 96, 3), np.uint8), "actions": np.zeros(3, np.int64)}
    return nd.Demonstrations.from_episodes(path, [episode])


def train(kind: Kind, data: Path, run: Path, out: Path) -> Path:
    settings = config("cnn", epochs=1, init_from=kind(run), freeze_encoder_from=kind(run))
    first = nd.train(settings, kind(data), kind(out), device="cpu")
    return nd.train(settings, kind(data), kind(out), device="cpu", resume=True) if first.exists() else first


def ppo(kind: Kind, data: Path, run: Path, out: Path) -> Path:
    return nd.ppo(nested(PPO, init_from=kind(run)), kind(out))


def compare(kind: Kind, data: Path, run: Path, out: Path) -> Path:
    settings = config("cnn", epochs=1)
    nd.compare(["cnn"], kind(data), [900_000], kind(out), config=settings, expert=kind(run))
    return out / "report.html"


def show(kind: Kind, data: Path, run: Path, out: Path) -> Path:
    nd.watch(kind(run), 900_000, video=kind(out / "watch.gif"))
    driver = nd.load_driver(kind(run))
    for name in ("one.mp4", "two.mp4"):
        nd.record_video(kind(out / name), driver, 900_000, name="cnn", env=ENV)
    nd.side_by_side(kind(out / "both.mp4"), [kind(out / "one.mp4"), kind(out / "two.mp4")])
    return out / "both.mp4"


def action_log(kind: Kind, data: Path, run: Path, out: Path) -> Path:
    out.mkdir()
    nd.save_action_log(kind(data), kind(out / "log.npz"))
    nd.rebuild(kind(out / "log.npz"), kind(out / "rebuilt"))
    return out / "rebuilt"


def evaluate(kind: Kind, data: Path, run: Path, out: Path) -> Path:
    evaluation = nd.evaluate(kind(run), [900_000], env=ENV, expert=kind(run))
    assert evaluation.summary.agreement == 1.0
    return run


CALLS: dict[str, Callable[[Kind, Path, Path, Path], Any]] = {
    "collect": lambda kind, data, run, out: nd.collect(kind(out), kind(run), env=ENV, seeds=[0]).path,
    "train": train,
    "dagger": lambda kind, data, run, out: nd.dagger(
        dagger_config("cnn", **FEW), kind(out), expert=kind(run), device="cpu"
    ),
    "ppo": ppo,
    "compare": compare,
    "evaluate": evaluate,
    "watch, record_video, side_by_side": show,
    "save_driver": lambda kind, data, run, out: nd.save_driver(kind(out), nd.load_driver(kind(run))),
    "resolve_driver": lambda kind, data, run, out: nd.resolve_driver(kind(run)) and run,
    "Demonstrations.open": lambda kind, data, run, out: nd.Demonstrations.open(kind(data)).path,
    "Demonstrations.create": lambda kind, data, run, out: (
        nd.Demonstrations.create(kind(out), nd.Demonstrations.open(data).meta).path
    ),
    "Demonstrations.from_episodes": lambda kind, data, run, out: own_data(kind(out)).path,
    "Demonstrations.merge": lambda kind, data, run, out: nd.Demonstrations.merge(kind(out), [kind(data)]).path,
    "save_action_log, rebuild": action_log,
    "RunFolder": lambda kind, data, run, out: RunFolder.open(RunFolder.create(kind(out), {"a": 1}).path).path,
}


@pytest.mark.parametrize("kind", [os.fspath])  # Path is what the other tests pass
@pytest.mark.parametrize(
    "name", slow_but(CALLS.keys() - {"dagger", "ppo", "compare", "watch, record_video, side_by_side"}, CALLS)
)
def test_paths_are_text_or_paths(name, kind, dataset, trained, tmp_path, monkeypatch):
    monkeypatch.setattr(experiment, "each_in_a_process", each_here)
    with one_thread():
        result = CALLS[name](kind, dataset.path, trained, tmp_path / "out")
    assert isinstance(result, Path)
    assert result.exists()
