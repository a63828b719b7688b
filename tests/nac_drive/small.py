"""Small demonstrations and trainings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from data_collection.dataset import Demonstrations
from data_collection.noise import NoiseConfig
from data_collection.record import record
from envs import Control, EnvConfig
from nac_drive.cloning import CloneConfig, clone
from nac_drive.dagger import DaggerConfig, dagger

FRAMES = 60


def demonstrations(path: Path, control: Control = "discrete", tracks: int = 3) -> Demonstrations:
    """Episodes of 60 frames, ten of them after the zoom, by the controller under noise."""
    env = EnvConfig(control, max_steps=FRAMES)
    return record(path, "controller", env=env, seeds=list(range(tracks)), noise=NoiseConfig(0.3, 4))


def config(core: str = "lstm", **changed: Any) -> CloneConfig:
    settings: dict[str, Any] = {
        "window": 16, "batch_size": 2, "epochs": 3, "learning_rate": 1e-3, "validation_share": 0.34,
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
    """Two laps a round of 60 frames, ten of them after the zoom."""
    settings: dict[str, Any] = {
        "window": 16, "batch_size": 2, "max_steps": 60, "rounds": 2, "first_laps": 2, "laps": 2, "segment": 7,
        "first_epochs": 2, "epochs": 1, "final_epochs": 1, "validation_tracks": "800000", "student_share": 0.5,
    }  # fmt: skip
    return DaggerConfig(core=core, **{**settings, **changed})


def train_dagger(settings: DaggerConfig, folder: Path, **keywords: Any) -> Path:
    return dagger(settings, folder, **{"teacher": "controller", "device": "cpu", **keywords})
