"""From the words of a command line to a driver: a name of one that comes with the package, or a folder."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict
from pathlib import Path

from nac_drive.data_collection.controller.controller import Controller
from nac_drive.envs import Driver, EnvConfig
from nac_drive.policies import driver_folder, load_driver

CONTROLLER = "controller"


def resolve_driver(spec: str | os.PathLike[str], env: EnvConfig | None = None) -> Driver:
    """Load the driver that a word of the command line or a path names.

    Args:
        spec: `controller`; a driver that comes with the package, such as `expert`, `champion` or
            `champion-continuous`; or the folder of a driver or of a run (its best checkpoint).
        env: The environment it will drive in; a name without control means the driver for its control, discrete by
            default.

    Returns:
        The driver.

    Raises:
        FileNotFoundError: If there is no such name or folder.
        ValueError: If the folder is no driver's, or the driver was made for another control.
    """
    control = env.control if env else None
    if os.fspath(spec) == CONTROLLER:
        return Controller(control or "discrete")
    driver = load_driver(spec, control)
    trained = trained_env(driver)
    if env and trained and trained.control != env.control:
        raise ValueError(
            f"driver {str(spec)!r} was made for {trained.control} control, the environment has {env.control} control; "
            f"pass --control {trained.control} or another driver."
        )
    return driver


def driver_name(spec: str | os.PathLike[str]) -> str:
    """The name of a driver in tables and datasets: the word itself, or the name of the folder."""
    return Path(os.path.abspath(spec)).name


def trained_env(driver: Driver) -> EnvConfig | None:
    """The environment that `driver` was trained in; None for one that was not trained."""
    config = getattr(driver, "env_config", None)
    return EnvConfig(**config) if config else None


def driver_hash(spec: str | os.PathLike[str], env: EnvConfig) -> str:
    """SHA-256 of what decides the driver's actions: its weights and config, or the controller's numbers."""
    if os.fspath(spec) == CONTROLLER:
        return hashlib.sha256(json.dumps(asdict(Controller(env.control).config)).encode()).hexdigest()
    folder = driver_folder(spec, env.control)
    digest = hashlib.sha256()
    for name in ("config.json", "model.safetensors"):
        digest.update((folder / name).read_bytes())
    return digest.hexdigest()
