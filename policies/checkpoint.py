"""A driver on disk: a folder with config.json and model.safetensors. Nothing is ever unpickled.

`PRETRAINED` lists the drivers that the package ships, each with a model card (`README.md`).
"""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from nac_drive.policies.config import CONTROLS, DriverConfig
from nac_drive.policies.driver import Driver
from nac_drive.suggest import did_you_mean

SCHEMA = 1
CONFIG, WEIGHTS = "config.json", "model.safetensors"

PRETRAINED: dict[str, Path] = {
    config.parent.name: config.parent for config in sorted((Path(__file__).parent / "pretrained").glob(f"*/{CONFIG}"))
}
"""NAME-CONTROL, such as champion-discrete, -> driver folder."""

_OLD_SETTINGS = {"vision": "encoder"}
_OLD_CORES = {"pdna-a": ("cfc", (r"^core\.cfc\.", "core."))}
"""Old core -> core that computes the same, and its tensors."""
_OLD_WINDOWS = {"nac-32k": 8, "nac-pw": 8, "nac-learned": 8}
"""Default windows that version 0.1 had for some cores."""
_OLD_CORE_ARGS = {"gate": "phi_activation", "graph": "wiring", "gates": "gate_wirings"}
_OLD_TENSORS = (
    (r"^vision\.", "encoder."),
    (r"^head\.", "action_head."),
    (r"^core\.((?:\w+\.)*)entry\.", r"core.\1kv."),
)
"""Names in driver folders that version 0.1 wrote, and the present ones."""


class CheckpointError(ValueError):
    """The folder does not hold a readable driver."""


def save_driver(
    path: str | os.PathLike[str],
    driver: Driver,
    *,
    env: dict[str, Any] | None = None,
    meta: dict[str, Any] | None = None,
) -> Path:
    """Write a driver folder: all of it or nothing.

    Args:
        path: The folder. A driver that is already there is replaced; anything else is refused.
        driver: The driver to save.
        env: The configuration of its environment; that of the driver itself by default.
        meta: Anything JSON-able worth keeping; that of the driver itself by default.

    Returns:
        The folder.

    Raises:
        ValueError: If `env` or `meta` is not JSON-able, or if `path` exists and is not a driver folder.
    """
    path = Path(path)
    config = {"schema": SCHEMA, "driver": asdict(driver.config), "env": driver.env_config if env is None else env}
    config["meta"] = driver.meta if meta is None else meta
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


def load_driver(
    source: str | os.PathLike[str], control: str | None = None, *, device: torch.device | str = "cpu"
) -> Driver:
    """Load a driver, in evaluation mode, with its `env_config` and `meta`.

    Args:
        source: A driver that comes with the package (`champion`, `expert`, or with its control, such as
            `champion-continuous`), the folder of a driver, or the folder of a run (its best checkpoint).
        control: "discrete" or "continuous": which of two shipped drivers a name without control means, discrete by
            default.
        device: Where the weights go.

    Returns:
        The driver.

    Raises:
        FileNotFoundError: If the folder or one of its files is missing.
        CheckpointError: If a file cannot be read or does not fit the other.
    """
    path = driver_folder(source, control)
    saved, renamed = _read_config(path / CONFIG)
    try:
        weights = _with_new_names(load_file(path / WEIGHTS), renamed)
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


def driver_folder(source: str | os.PathLike[str], control: str | None = None) -> Path:
    """Return the folder that `load_driver(source, control)` reads.

    Raises:
        FileNotFoundError: If the folder or one of its files is missing.
    """
    if control is not None and control not in CONTROLS:
        raise ValueError(f"control: must be one of {CONTROLS}, got {control!r}.")
    name = os.fspath(source)
    if shipped := PRETRAINED.get(name) or PRETRAINED.get(f"{name}-{control or CONTROLS[0]}"):
        return shipped
    best = Path(source) / "checkpoints" / "best"
    path = best if best.is_dir() else Path(source)
    if not path.is_dir():
        names = {*PRETRAINED, *(name.rpartition("-")[0] for name in PRETRAINED)}
        raise FileNotFoundError(
            f"driver: there is no folder {path} and the package ships no driver of that name; pass one of "
            f"{', '.join(sorted(names))}, or the folder of a driver or run.{did_you_mean(name, names)}"
        )
    for file in (CONFIG, WEIGHTS):
        if not (path / file).is_file():
            raise FileNotFoundError(f"path: {path} has no {file}; it is not a complete driver folder.")
    return path


def _read_config(file: Path) -> tuple[dict[str, Any], tuple[tuple[str, str], ...]]:
    """Return the config with the present names, and the tensors to rename: (pattern, replacement) pairs."""
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
    from_0_1 = not _OLD_SETTINGS.keys().isdisjoint(saved["driver"])
    found: dict[str, Any] = saved["driver"]
    driver = {_OLD_SETTINGS.get(name, name): value for name, value in found.items()}
    driver.setdefault("num_actions", DriverConfig.num_actions)  # version 0.1 knew CarRacing's five alone
    saved["driver"] = driver
    known = {f.name for f in fields(DriverConfig)}
    if set(driver) != known:
        unknown, missing = sorted(set(driver) - known), sorted(known - set(driver))
        raise CheckpointError(f"{file}: driver keys must be {sorted(known)}; unknown {unknown}, missing {missing}.")
    core, tensors = driver["core"], _OLD_TENSORS
    if isinstance(core, str) and core in _OLD_CORES:
        driver["core"], core_tensors = _OLD_CORES[core]
        tensors = (*tensors, core_tensors)
    if isinstance(driver["core_args"], dict):
        arguments = {_OLD_CORE_ARGS.get(name, name): value for name, value in driver["core_args"].items()}
        if from_0_1 and core in _OLD_WINDOWS:
            arguments = {"window": _OLD_WINDOWS[core], **arguments}
        driver["core_args"] = arguments
    return saved, tensors


def _with_new_names(weights: dict[str, torch.Tensor], renamed: tuple[tuple[str, str], ...]) -> dict[str, torch.Tensor]:
    present = {}
    for name, tensor in weights.items():
        for old, new in renamed:
            name = re.sub(old, new, name)
        present[name] = tensor
    return present


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
