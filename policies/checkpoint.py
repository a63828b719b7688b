"""A driver on disk: a folder with config.json and model.safetensors. Nothing is ever unpickled."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from policies.driver import Driver, DriverConfig

SCHEMA = 1
CONFIG, WEIGHTS = "config.json", "model.safetensors"


class CheckpointError(ValueError):
    """A folder that is not a readable driver."""


def save_driver(
    path: str | os.PathLike[str], driver: Driver, *, env: dict[str, Any], meta: dict[str, Any] | None = None
) -> Path:
    """Write the driver folder: all of it or nothing. A driver already there is replaced; anything else is refused.

    `env` is the configuration of its environment, `meta` anything JSON-able worth keeping.
    Raises ValueError if those are not JSON-able or if `path` exists and is not a driver folder.
    """
    path = Path(path)
    config = {"schema": SCHEMA, "driver": asdict(driver.config), "env": env, "meta": {} if meta is None else meta}
    try:
        text = json.dumps(config, indent=2, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"env, meta, core_args: must be JSON-able ({error}).") from error
    if path.exists() and not (path / CONFIG).is_file():
        raise ValueError(f"path: {path} exists and is not a driver folder (no {CONFIG}); choose another.")
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    stale = path.with_name(f".{path.name}.{os.getpid()}.old")
    for leftover in (fresh, stale):
        shutil.rmtree(leftover, ignore_errors=True)
    fresh.mkdir()
    try:
        (fresh / CONFIG).write_text(text + "\n", encoding="utf-8")
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in driver.state_dict().items()}
        save_file(tensors, fresh / WEIGHTS)
        for item in (fresh / CONFIG, fresh / WEIGHTS, fresh):
            _sync(item)
        if path.exists():
            os.rename(path, stale)
        os.rename(fresh, path)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        if stale.exists() and not path.exists():
            os.rename(stale, path)
        raise
    _sync(path.parent)
    shutil.rmtree(stale, ignore_errors=True)
    return path


def load_driver(path: str | os.PathLike[str], device: torch.device | str = "cpu") -> Driver:
    """The driver in a folder, in evaluation mode, with its `env_config` and `meta`.

    Raises FileNotFoundError if the folder or a file is missing, CheckpointError if one cannot be read or does not fit.
    """
    path = Path(path)
    if not path.is_dir():
        raise FileNotFoundError(f"path: {path} is not a folder; give the folder that holds {CONFIG} and {WEIGHTS}.")
    for name in (CONFIG, WEIGHTS):
        if not (path / name).is_file():
            raise FileNotFoundError(f"path: {path} has no {name}; it is not a complete driver folder.")
    saved = _read_config(path / CONFIG)
    try:
        weights = load_file(path / WEIGHTS)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path / WEIGHTS}: damaged or not a safetensors file ({error}).") from error
    with torch.random.fork_rng(devices=[]):  # building draws initial weights; loading must not move the generator
        try:
            driver = Driver(DriverConfig(**saved["driver"]))
        except (ValueError, TypeError) as error:
            raise CheckpointError(f"{path / CONFIG}: no driver can be built from it: {error}") from error
    _fit(path / WEIGHTS, driver, weights)
    driver.load_state_dict(weights)
    driver.env_config, driver.meta = saved["env"], saved["meta"]
    return driver.to(device).eval()


def _read_config(file: Path) -> dict[str, Any]:
    try:
        saved = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise CheckpointError(f"{file}: not readable as JSON ({error}).") from error
    parts = ("driver", "env", "meta")
    if (
        not isinstance(saved, dict)
        or set(saved) != {"schema", *parts}
        or not all(isinstance(saved[p], dict) for p in parts)
    ):
        raise CheckpointError(f"{file}: not a driver's config; it must hold exactly schema, driver, env and meta.")
    if saved["schema"] != SCHEMA:
        raise CheckpointError(
            f"{file}: schema must be {SCHEMA}, got {saved['schema']!r}; save it again with this version."
        )
    known = {f.name for f in fields(DriverConfig)}
    if set(saved["driver"]) != known:
        unknown, missing = sorted(set(saved["driver"]) - known), sorted(known - set(saved["driver"]))
        raise CheckpointError(f"{file}: driver keys must be {sorted(known)}; unknown {unknown}, missing {missing}.")
    return saved


def _fit(file: Path, driver: Driver, weights: dict[str, torch.Tensor]) -> None:
    expected = driver.state_dict()
    for name in sorted(set(expected) | set(weights)):
        want, have = expected.get(name), weights.get(name)
        if want is None or have is None or want.shape != have.shape or want.dtype != have.dtype:
            raise CheckpointError(
                f"{file}: does not match {CONFIG} at {name!r}: expected {_describe(want)}, got {_describe(have)}."
            )


def _describe(tensor: torch.Tensor | None) -> str:
    return "no such tensor" if tensor is None else f"{tensor.dtype} {tuple(tensor.shape)}"


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
