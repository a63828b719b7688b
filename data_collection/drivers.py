"""From the words of a command line to a driver: a name of one that comes with the package, or a folder."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict
from pathlib import Path

from data_collection.controller import Controller
from envs import Driver, EnvConfig
from policies import is_pretrained, load_driver, pretrained_folder


def resolve_driver(spec: str, env: EnvConfig | None = None) -> Driver:
    """The driver that `spec` names, ready to drive in environments of `env` (five actions when it is not given).

    spec: `controller`; a driver that comes with the package, such as `expert`, `champion` or `champion-continuous`; or
    a path: the folder of a driver or of a whole run (its best checkpoint).
    Raises FileNotFoundError for a missing folder, ValueError for a foreign one or one made for another control.
    """
    control = env.control if env else "discrete"
    if spec == "controller":
        return Controller(control)
    driver = load_driver(_driver_folder(spec, control))
    trained = trained_env(driver)
    if env and trained and trained.control != env.control:
        raise ValueError(
            f"driver {spec!r} was made for {trained.control} control, the environment has {env.control} control; "
            f"pass --control {trained.control} or another driver."
        )
    return driver


def driver_name(spec: str) -> str:
    """What tables and datasets call the driver that `spec` names: the word itself, or the name of the folder."""
    return Path(os.path.abspath(spec)).name


def trained_env(driver: Driver) -> EnvConfig | None:
    """The environment that `driver` was trained in; None for one that was not trained."""
    config = getattr(driver, "env_config", None)
    return EnvConfig(**config) if config else None


def driver_hash(spec: str, env: EnvConfig) -> str:
    """SHA-256 of what decides the driver's actions: its weights and config, or the controller's numbers."""
    if spec == "controller":
        return hashlib.sha256(json.dumps(asdict(Controller(env.control).config)).encode()).hexdigest()
    folder = _driver_folder(spec, env.control)
    digest = hashlib.sha256()
    for name in ("config.json", "model.safetensors"):
        digest.update((folder / name).read_bytes())
    return digest.hexdigest()


def _driver_folder(spec: str, control: str) -> Path:
    if is_pretrained(spec):
        return pretrained_folder(spec, control)
    best = Path(spec) / "checkpoints" / "best"
    return best if best.is_dir() else Path(spec)
