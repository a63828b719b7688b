"""The mean weights of several drivers.

This is a model soup (Wortsman et al., 2022).

    python benchmarks/protocols/average_weights.py runs/seat-turn runs/seat-hard --out runs/seat-soup

Stages that went on from one another lie close together. Their mean may keep what each of them has learned, at the cost
of one driver. Two trainings from different random weights have no useful mean.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import torch
import tyro

import nac_drive as nd
from nac_drive.data_collection.drivers import driver_hash, resolve_driver
from nac_drive.data_collection.trained_env import env_for
from nac_drive.envs import Control, EnvConfig
from nac_drive.policies import Driver


def average(drivers: Sequence[Driver]) -> Driver:
    """Return a driver with the mean of all weights.

    Raises:
        ValueError: There are fewer than two drivers, or their settings or environments differ.
    """
    if len(drivers) < 2:
        raise ValueError(f"drivers must be two or more, got {len(drivers)}; a mean needs another driver.")
    first = drivers[0]
    for other in drivers[1:]:
        settings, environments = (first.config, other.config), (env_for(first), env_for(other))
        for what, (a, b) in {"settings": settings, "environment": environments}.items():
            if a != b:
                raise ValueError(f"drivers must have the same {what}, got {a} and {b}; average stages of one training.")
    mean, weights = Driver(first.config), [driver.state_dict() for driver in drivers]
    mean.load_state_dict(
        {
            name: torch.stack([w[name] for w in weights]).mean(dim=0) if tensor.is_floating_point() else tensor
            for name, tensor in weights[0].items()
        }
    )
    return mean


def run(drivers: Annotated[list[str], tyro.conf.Positional], out: Path, control: Control | None = None) -> None:
    """Average the weights of drivers.

    Args:
        drivers: Names of shipped drivers, and folders of drivers and runs.
        out: Folder of the new driver.
        control: Control of shipped drivers; a folder knows its own.
    """
    env = EnvConfig(control) if control else None
    loaded = []
    for name in drivers:
        driver = resolve_driver(name, env)
        if not isinstance(driver, Driver):
            raise ValueError(f"drivers must have weights, got {name!r}; pass the folder of a driver or run.")
        loaded.append(driver)
    hashes = {name: driver_hash(name, env_for(driver)) for name, driver in zip(drivers, loaded, strict=True)}
    nd.save_driver(out, average(loaded), env=asdict(env_for(loaded[0])), meta={"average_of": hashes})


if __name__ == "__main__":
    try:
        tyro.cli(run)
    except (ValueError, OSError) as error:
        sys.exit(str(error))
