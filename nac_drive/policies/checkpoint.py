"""A driver on disk: a folder with config.json and model.safetensors. Nothing is ever unpickled.

`PRETRAINED` lists the drivers that the package ships, each with a model card (`README.md`).
"""

from __future__ import annotations

import glob
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors.torch import save_file

from nac_drive.arguments import path_of, require_kind
from nac_drive.plugins import advice_for, named_plugins, saved_plugins
from nac_drive.policies.config import ADDED, CONTROLS, DriverConfig
from nac_drive.policies.cores.registry import CORES
from nac_drive.policies.driver import Driver
from nac_drive.policies.encoders import ENCODERS
from nac_drive.policies.ops.size_limit import elements_of_at_most
from nac_drive.policies.tensors import read_tensors, saved_tensors
from nac_drive.storage.checkpoints import CHECKPOINTS, NAMES, RECORD, checkpoint_folder
from nac_drive.storage.links import require_own_file, require_own_files
from nac_drive.storage.read import FileError, one_line, read_json
from nac_drive.storage.write import process_runs
from nac_drive.suggest import did_you_mean

SCHEMA = 1
CONFIG, WEIGHTS = "config.json", "model.safetensors"
CARD = "README.md"
"""Model card, if there is one."""

PRETRAINED: dict[str, Path] = {
    config.parent.name: config.parent for config in sorted((Path(__file__).parent / "pretrained").glob(f"*/{CONFIG}"))
}
"""NAME-CONTROL, such as champion-discrete, -> driver folder."""

ELEMENTS, ELEMENTS_PER_BYTE = 2**20, 8
"""Numbers that may be made to build a driver: a constant, and more for each byte of its weights. Ours need 1.3."""


class CheckpointError(FileError):
    """The folder does not hold a readable driver."""


class _Saved(msgspec.Struct, forbid_unknown_fields=True):
    """The content of config.json."""

    schema: int
    driver: dict[str, Any]
    env: dict[str, Any]
    meta: dict[str, Any]


def save_driver(
    path: str | os.PathLike[str],
    driver: Driver,
    *,
    env: dict[str, Any] | None = None,
    meta: dict[str, Any] | None = None,
) -> Path:
    """Write a driver folder: all of it or nothing.

    Args:
        path: The folder. A driver that is already there is replaced, its model card kept; anything else is refused.
        driver: The driver to save.
        env: The configuration of its environment; by default the driver's own.
        meta: Anything JSON-able worth keeping; by default the driver's own.

    Returns:
        The folder.

    Raises:
        ValueError: If `driver` is no `Driver`, `env` or `meta` no dict or not JSON-able, or if `path` exists and is not
            a driver folder.
        FileError: If a file of the driver that is there is a link.
    """
    path = path_of("path", path)
    fix = f"pass load_driver({os.fspath(driver)!r})" if isinstance(driver, str | os.PathLike) else ""
    require_kind("driver", driver, Driver, fix or "it alone has weights to save")
    for name, value in (("env", env), ("meta", meta)):
        require_kind(name, value, Mapping, "pass a dict, such as dataclasses.asdict(config)", optional=True)
    config = {"schema": SCHEMA, "driver": asdict(driver.config), "env": driver.env_config if env is None else env}
    config["meta"] = dict(driver.meta if meta is None else meta)
    named = [*saved_plugins(config["meta"]), *named_plugins(type(module) for module in driver.modules())]
    if named:
        config["meta"]["plugins"] = [*{plugin["module"]: plugin for plugin in named}.values()]
    try:
        text = json.dumps(config, indent=2, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"env, meta, core_args: must be JSON-able ({error}).") from error
    if os.path.lexists(path) and not (path / CONFIG).is_file():
        raise ValueError(f"path: {path} exists and is not a driver folder (no {CONFIG}); choose another.")
    require_own_files(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    stale = path.with_name(f".{path.name}.{os.getpid()}.old")
    _remove_leftovers(path)
    fresh.mkdir()
    try:
        (fresh / CONFIG).write_text(text + "\n", encoding="utf-8")
        save_file(saved_tensors(driver.state_dict()), fresh / WEIGHTS)
        if (path / CARD).is_file():
            shutil.copyfile(path / CARD, fresh / CARD)
        for item in (*fresh.iterdir(), fresh):
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
    if stale.is_symlink():  # `path` was a link to a driver
        stale.unlink()
    shutil.rmtree(stale, ignore_errors=True)
    return path


def load_driver(
    source: str | os.PathLike[str], control: str | None = None, *, device: torch.device | str = "cpu"
) -> Driver:
    """Load a driver, in evaluation mode, with its `env_config` and `meta`.

    Args:
        source: A driver that comes with the package (`champion`, `expert`, or with its control, such as
            `champion-continuous`), the folder of a driver, or the folder of a run (its best checkpoint).
        control: "discrete", "continuous" or "pulsed": which of the shipped drivers a name without control means, by
            default the first of these that there is. For pulsed control it may be trained for continuous control:
            their actions are the same.
        device: Where the weights go.

    Returns:
        The driver.

    Raises:
        FileNotFoundError: If the folder or one of its files is missing.
        CheckpointError: If a file cannot be read or does not fit the other.
        ValueError: If `source` is neither a name nor a path, or there is no such control.
    """
    path = driver_folder(source, control)
    try:
        saved = _read_config(path / CONFIG)
        with torch.random.fork_rng(devices=[]):  # building draws initial weights; loading must not move the generator
            driver, weights = _build(path, saved)
    except CheckpointError:
        raise
    except FileError as error:
        raise CheckpointError(str(error)) from error
    driver.load_state_dict(weights)
    driver.env_config, driver.meta = saved.env, saved.meta
    return driver.to(device).eval()


def _build(path: Path, saved: _Saved) -> tuple[Driver, dict[str, torch.Tensor]]:
    """Return the driver of the saved settings, and the weights in the file.

    The size of the file bounds the memory of the driver. No tensor is read before it is known to fit.
    """
    elements = ELEMENTS + ELEMENTS_PER_BYTE * (path / WEIGHTS).stat().st_size
    try:
        with elements_of_at_most(elements):
            driver = Driver(DriverConfig(**saved.driver))
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        advice, kinds = advice_for(saved_plugins(saved.meta)), (("core", CORES), ("encoder", ENCODERS))
        names = ((kind, saved.driver.get(kind), known) for kind, known in kinds)
        unknown = [f"{kind} {name!r}" for kind, name, known in names if isinstance(name, str) and name not in known]
        reason = f"{' and '.join(unknown)}: {advice}." if advice and unknown else one_line(error)
        raise CheckpointError(f"{path / CONFIG}: no driver can be built from it: {reason}") from error
    return driver, read_tensors(path / WEIGHTS, driver.state_dict(), CONFIG)


def shipped_names() -> set[str]:
    """Return the names of the shipped drivers, with their control and without."""
    return {*PRETRAINED, *(name.rpartition("-")[0] for name in PRETRAINED)}


def driver_folder(source: str | os.PathLike[str], control: str | None = None) -> Path:
    """Return the folder that `load_driver(source, control)` reads.

    Raises:
        FileNotFoundError: If the folder or one of its files is missing.
        CheckpointError: If the record of a run's checkpoints cannot be read, or a file is a link out of the folder.
    """
    if control is not None and control not in CONTROLS:
        raise ValueError(f"control: must be one of {CONTROLS}, got {control!r}.")
    path, name = path_of("source", source), os.fspath(source)
    controls = (control, "continuous" if control == "pulsed" else "") if control else CONTROLS
    for shipped in (name, *(f"{name}-{each}" for each in controls)):
        if shipped in PRETRAINED:
            return PRETRAINED[shipped]
    try:
        if path.name in NAMES and path.parent.name == CHECKPOINTS:  # RUN/checkpoints/best
            path = checkpoint_folder(path.parent.parent, path.name) or path
        else:
            path = checkpoint_folder(path, "best") or path
    except FileError as error:
        raise CheckpointError(str(error)) from error
    if not path.is_dir():
        raise FileNotFoundError(_not_there(name, control))
    for file in (CONFIG, WEIGHTS):
        if not (path / file).is_file():
            raise FileNotFoundError(f"path: {path} has no {file}; it is not a complete driver folder.{_inside(path)}")
        if not _is_cached_download(path / file):
            _require_own_file(path / file)
    return path


def _inside(path: Path) -> str:
    """Return advice on the drivers in a folder."""
    marks = (CONFIG, f"{CHECKPOINTS}/{RECORD}")
    names = sorted(child.name for child in path.iterdir() if any((child / mark).is_file() for mark in marks))
    return f" Drivers in it are {', '.join(names[:5])}; pass {path / names[0]}." if names else ""


def _not_there(name: str, control: str | None) -> str:
    """Return the error of a name that stands for nothing."""
    names = shipped_names()
    if Path(name).is_file():
        return f"driver: {name} is a file; pass the folder of a driver or run, which has the weights."
    if name not in names:
        is_core = f" {name} is a core: nac-drive train DATASET --core {name} --out FOLDER makes a driver of it."
        return (
            f"driver: there is no folder {Path(name)} and the package ships no driver of that name; pass one of "
            f"{', '.join(sorted(names))}, or the folder of a driver or run."
            f"{is_core if name in CORES else did_you_mean(name, names)}"
        )
    controls = [each for each in CONTROLS if f"{name}-{each}" in PRETRAINED]
    if "continuous" in controls and "pulsed" not in controls:
        controls.append("pulsed")
    use = " or ".join(f"--control {each}" for each in controls)
    return f"driver: the package ships {name!r} for {' and '.join(controls)} control, not for {control}; pass {use}."


def _require_own_file(file: Path) -> None:
    try:
        require_own_file(file)
    except FileError as error:
        raise CheckpointError(str(error)) from error


def _is_cached_download(file: Path) -> bool:
    """Return whether a file is a link of the Hugging Face hub's cache: snapshots/COMMIT/FILE to a file in blobs."""
    snapshots = file.parent.resolve().parent
    blobs = snapshots.parent / "blobs"
    return snapshots.name == "snapshots" and file.resolve().parent == blobs.resolve() and not blobs.is_symlink()


def _read_config(file: Path) -> _Saved:
    saved = read_json(file, _Saved, "a driver's config", "it must hold exactly schema, driver, env and meta")
    if saved.schema != SCHEMA:
        raise CheckpointError(
            f"{file}: schema must be {SCHEMA}, got {saved.schema!r}; save it again with this version."
        )
    expected = {f.name for f in fields(DriverConfig)}
    unknown, missing = sorted(set(saved.driver) - expected), sorted(expected - {*saved.driver, *ADDED})
    if unknown or missing:
        raise CheckpointError(
            f"{file}: another, perhaps an older version of nac-drive saved this driver: settings unknown {unknown}, "
            f"missing {missing}; train it again with this version."
        )
    return saved


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove_leftovers(path: Path) -> None:
    """Remove what killed processes left of `save_driver(path)`: `.NAME.PID.tmp` and `.NAME.PID.old`.

    A folder of such a name that holds other files is not ours.
    """
    for folder in path.parent.glob(f".{glob.escape(path.name)}.*"):
        leftover = re.fullmatch(r"\.([0-9]{1,10})\.(tmp|old)", folder.name.removeprefix(f".{path.name}"))
        if not leftover or folder.is_symlink() or not folder.is_dir():
            continue
        if int(leftover[1]) != os.getpid() and process_runs(int(leftover[1])):
            continue
        inside = {file.name for file in folder.iterdir()}
        if inside <= {CONFIG, WEIGHTS, CARD} or (leftover[2] == "old" and inside >= {CONFIG, WEIGHTS}):
            shutil.rmtree(folder, ignore_errors=True)
