"""Find a driver, or take the user's own object."""

from __future__ import annotations

import hashlib
import json
import os
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy, deepcopy
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nac_drive import policies  # lazy: a worker that only simulates never loads torch
from nac_drive.arguments import as_list
from nac_drive.data_collection.controller.controller import CONTROLLERS, Controller
from nac_drive.data_collection.human import HUMAN, KeyboardDriver
from nac_drive.data_collection.identity import object_hash, source_hash
from nac_drive.data_collection.own_driver import (
    AnyDriver,
    ControlError,
    OwnDriver,
    as_policy,
    can_drive,
    made,
    name_of,
)
from nac_drive.data_collection.sb3_zip import load_zip
from nac_drive.data_collection.trained_env import require_environment, trained_env
from nac_drive.envs import ENVIRONMENTS, BatchPolicy, Control, EnvConfig, Policy, same_actions
from nac_drive.envs.config import require_env
from nac_drive.plugins import attribute_of_plugin, missing_plugin, saved_plugins
from nac_drive.policies.foreign_onnx import load_any_onnx
from nac_drive.storage.names import shown
from nac_drive.suggest import did_you_mean


def accepted(spec: AnyDriver) -> str | os.PathLike[str] | Policy:
    """Return a name as it is, an object as a policy.

    Raises:
        ValueError: See `as_policy`.
    """
    return spec if isinstance(spec, str | os.PathLike) else as_policy(spec)


def each_accepted(drivers: AnyDriver | Sequence[AnyDriver]) -> list[str | os.PathLike[str] | Policy]:
    """Return one driver or several as a list, see `accepted`."""
    return [accepted(spec) for spec in as_list(drivers)]


def resolve_driver(spec: AnyDriver, env: EnvConfig | None = None) -> Policy:
    """Load the driver of a name or a path.

    An object becomes a policy.

    Args:
        spec: `controller`, `steady-controller` or `cautious-controller`; `human`, a person at the keys of a window; an
            expert that a road brings (`EnvSpec.experts`), such as `metadrive-idm`; a driver that comes with the
            package, such as `expert` or `champion-continuous`; the folder of a driver or run (its best checkpoint); an
            `.onnx` file; a `.zip` file of stable-baselines3, of which weights alone are read; the dotted name of an
            object in a loaded plug-in, such as `mine.drive`; or an object, see `as_policy`.
        env: The environment it will drive in; a name without control means the driver for its control, by
            default the first of discrete, continuous and pulsed that there is.

    Returns:
        The driver.

    Raises:
        FileNotFoundError: If there is no such name or folder.
        ValueError: If the folder or file is no driver's, `env` is no `EnvConfig`, or the driver's actions do not fit
            the environment's control (continuous and pulsed control have the same).
    """
    return _resolved(spec, env, any_actions=False)


def resolve_encoder(spec: AnyDriver, env: EnvConfig | None = None) -> Policy:
    """Load a driver for its encoder alone.

    As `resolve_driver`, but a driver that names its control may have another than `env`: an encoder knows no actions.
    """
    return _resolved(spec, env, any_actions=True)


@contextmanager
def driver_of_option(option: str) -> Iterator[None]:
    """Name an option in errors of missing drivers.

    Raises:
        FileNotFoundError: There is no such driver.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{option}: {str(error).removeprefix('driver: ')}") from None


def _resolved(spec: AnyDriver, env: EnvConfig | None, *, any_actions: bool) -> Policy:
    require_env("env", env)
    if not isinstance(spec, str | os.PathLike):
        return as_policy(spec, env)
    name, control = os.fspath(spec), env.control if env else None
    if (road := _road_with(name, env)) is not None:
        return _expert(road, name, env)
    if name == HUMAN:
        return KeyboardDriver(control or "discrete")
    if name in CONTROLLERS:
        return _controller(spec, control or "discrete")
    try:
        driver = _loaded(spec, env)
    except FileNotFoundError as error:
        module = missing_plugin(_dotted(spec))
        experts = (expert for spec in ENVIRONMENTS.values() for expert in spec.experts)
        close = did_you_mean(name, (*CONTROLLERS, *experts))
        advice = f" If a plug-in has it, pass --plugin {module}.py." if module else close
        raise FileNotFoundError(f"{error}{advice}") from None
    trained = trained_env(driver)
    if env and trained and not any_actions and not same_actions(trained.control, env.control):
        require_environment(f"driver {str(spec)!r}", driver, env, "pass its environment, or a driver of this one")
        raise ControlError(str(spec), trained.control, env.control)
    return driver


def resolve_together(specs: Sequence[AnyDriver], control: Control | None = None) -> list[Policy]:
    """Load drivers that are compared.

    An expert that several roads have drives on the road of the first driver that was trained on one of them.

    Args:
        specs: See `resolve_driver`.
        control: Control of shipped drivers and the controller; a cloned driver knows its own.

    Returns:
        The drivers.

    Raises:
        FileNotFoundError, ValueError: As `resolve_driver`.
    """
    env = EnvConfig(control=control) if control else None
    loaded = [resolve_driver(spec, env) for spec in specs]
    experts = [isinstance(spec, str) and _road_with(spec, None) is not None for spec in specs]
    trained = (trained_env(driver) for driver, is_expert in zip(loaded, experts, strict=True) if not is_expert)
    road = next(filter(None, trained), None)
    for number, spec in enumerate(specs):
        if experts[number] and road is not None and spec in road.spec.experts:
            loaded[number] = resolve_driver(spec, road)
    return loaded


def _loaded(spec: str | os.PathLike[str], env: EnvConfig | None) -> Policy:
    """Load a driver from a plug-in, file or folder."""
    name, suffix = os.fspath(spec), Path(spec).suffix
    if (own := _of_plugin(name)) is not None:
        return as_policy(own, env, name=name)
    if suffix == ".onnx":
        return as_policy(load_any_onnx(spec), env, name=driver_name(spec))
    if suffix == ".zip":
        return as_policy(load_zip(Path(spec)), env, name=driver_name(spec))
    if suffix == ".pt2" and Path(spec).is_file():
        raise ValueError(
            f"driver: {name} cannot be driven with: torch unpickles parts of a .pt2 file, which can run "
            "foreign code; export the driver as .onnx, or pass its folder."
        )
    return policies.load_driver(spec, env.control if env else None)


_MADE: dict[str, tuple[Any, Any]] = {}
"""Dotted name, or road and name -> the object of the plug-in or the road, and the driver that it is or makes."""


def _of_plugin(name: str) -> Any:
    """Return the driver in a loaded plug-in.

    None if the dotted name stands for none.

    A class or a function without arguments makes the driver once.
    """
    try:
        found = attribute_of_plugin(name)
    except KeyError:
        return None
    return _made_once(name, found)


def _made_once(key: str, maker: Any) -> Any:
    if key not in _MADE or _MADE[key][0] is not maker:
        _MADE[key] = maker, made(maker)
    return _MADE[key][1]


def names_plugin_driver(name: str) -> bool:
    """Return whether a loaded plug-in has that driver."""
    try:
        return can_drive(attribute_of_plugin(name))
    except KeyError:
        return False


def _dotted(spec: str | os.PathLike[str]) -> str:
    """Return a dotted name; empty for a path."""
    name = os.fspath(spec)
    return name if all(word.isidentifier() for word in name.split(".")) else ""


def _controller(name: str | os.PathLike[str], control: Control) -> Controller:
    return Controller(control, CONTROLLERS[os.fspath(name)][control])


def _road_with(name: str, env: EnvConfig | None) -> str | None:
    """Return the environment that brings an expert of that name.

    It is `env` if that has one. The package's own drivers come before the experts of other roads. None if there is
    none.
    """
    if env is not None and name in env.spec.experts:
        return env.environment
    if name != Path(name).name or name == HUMAN or name in CONTROLLERS or name in policies.shipped_names():
        return None
    return next((road for road, spec in ENVIRONMENTS.items() if name in spec.experts), None)


def _expert(road: str, name: str, env: EnvConfig | None) -> Policy:
    """Return an expert of a road.

    It was made for that road, unless it says otherwise.
    """
    policy: Any = as_policy(_expert_itself(road, name), env, name=name)
    if not getattr(policy, "env_config", None):
        asked = env.control if env is not None and env.environment == road else ENVIRONMENTS[road].controls[0]
        policy = policy if isinstance(policy, OwnDriver) else copy(policy)  # an expert is made once for all
        policy.env_config = {"control": getattr(policy, "control", None) or asked, "environment": road}
    return policy


def _expert_itself(road: str, name: str) -> Any:
    return _made_once(f"{road} {name}", ENVIRONMENTS[road].experts[name])


def driver_name(spec: AnyDriver) -> str:
    """Return the name of a driver in tables and datasets.

    It is the name itself, the name of the folder or file, or the name of an object's class or function.

    Characters that do not print become escapes, so that tables, pages and files can hold any name.
    """
    if not isinstance(spec, str | os.PathLike):
        return name_of(spec)
    return shown(Path(os.path.abspath(spec)).name)


def driver_names(specs: Sequence[AnyDriver], taken: Sequence[str] = ()) -> list[str]:
    """Return the names of several drivers. Of objects with one name, or one that is taken, the second is `NAME (2)`."""
    names: list[str] = []
    for spec in specs:
        name, number = driver_name(spec), 1
        while not isinstance(spec, str | os.PathLike) and name in (*taken, *names):
            number += 1
            name = f"{driver_name(spec)} ({number})"
        names.append(name)
    return names


def driving_device(device: str) -> str:
    """Return the device of networks that drive: `cpu` or `cuda`.

    Raises:
        ValueError: See `choose_device`.
    """
    return device if device == "cpu" else policies.choose_device(device).type  # the CPU needs no torch


def on_device(driver: Policy, device: str) -> Policy:
    """Return a driver whose network is on a device.

    The driver of the caller stays where it is: a copy moves. A driver without a network is returned as it is.

    Args:
        driver: The driver.
        device: `cpu` or `cuda`, see `driving_device`.
    """
    if not isinstance(driver, BatchPolicy) or not isinstance(driver, policies.Driver):  # the first check needs no torch
        return driver
    target = policies.choose_device(device)
    return driver if driver.device.type == target.type else deepcopy(driver).to(target)


def sendable(driver: Policy | None, wanted: bool = True) -> bool:
    """Return whether other processes can have a driver.

    If they cannot and want it, a warning says so.

    Args:
        driver: The driver, if any.
        wanted: Whether there are other processes.
    """
    if not isinstance(driver, OwnDriver) or not driver.unsendable:
        return True
    if wanted:
        warnings.warn(
            f"driver {driver.name!r} drives in this process alone: it cannot be sent to others ({driver.unsendable}).",
            stacklevel=3,
        )
    return False


DEFAULT_EXPERT = "expert"
"""The shipped driver that labels and is compared with by default."""


def known_there(spec: AnyDriver | None, env: EnvConfig) -> AnyDriver | None:
    """Return a driver as it was given, or None.

    None stands for the default `expert` in an environment that it was not trained for.
    """
    foreign = env.environment != EnvConfig.environment and DEFAULT_EXPERT not in env.spec.experts
    return None if foreign and isinstance(spec, str) and spec == DEFAULT_EXPERT else spec


def driver_hash(spec: AnyDriver, env: EnvConfig) -> str:
    """Return the SHA-256 of what decides a driver's actions.

    It covers weights and config, the controller's numbers, or the code and the values of an object.

    Args:
        spec: See `resolve_driver`.
        env: The environment; its control chooses between two drivers of one name.
    """
    if not isinstance(spec, str | os.PathLike):
        policy = accepted(spec)
        return policy.sha256 if isinstance(policy, OwnDriver) else object_hash(policy)
    if (road := _road_with(os.fspath(spec), env)) is not None:
        return driver_hash(_expert_itself(road, os.fspath(spec)), env)
    if os.fspath(spec) == HUMAN:
        return hashlib.sha256(HUMAN.encode()).hexdigest()
    if os.fspath(spec) in CONTROLLERS:
        config = asdict(_controller(spec, env.control).config)
        return hashlib.sha256(json.dumps(config).encode()).hexdigest()
    if (own := _of_plugin(os.fspath(spec))) is not None:
        return object_hash(own)
    if Path(spec).suffix in (".onnx", ".zip"):
        return hashlib.sha256(Path(spec).read_bytes()).hexdigest()
    folder = policies.driver_folder(spec, env.control)
    config, weights = ((folder / name).read_bytes() for name in ("config.json", "model.safetensors"))
    digest = hashlib.sha256(config + weights)
    for plugin in saved_plugins(json.loads(config).get("meta") or {}):  # the code of its core
        digest.update(source_hash(plugin["module"]) or b"")
    return digest.hexdigest()


_CARD = "README.md"
"""Model card in the folder of a driver that the package ships."""


def reported_return(name: str, sha256: str, env: EnvConfig) -> float | None:
    """Return the mean return that a model card reports.

    Args:
        name: Name of a driver.
        sha256: Its `driver_hash`.
        env: The environment; its control chooses between two drivers of one name.

    Returns:
        The return on test-100. None if the package ships no such driver, its card reports none, or `env` is another one
        than in that report.
    """
    if env != EnvConfig(env.control, env.mask_bar, view=env.view, size=env.size):
        return None
    full = f"{name.removesuffix(f'-{env.control}')}-{env.control}"
    if full not in policies.PRETRAINED or driver_hash(full, env) != sha256:
        return None
    card = (policies.PRETRAINED[full] / _CARD).read_text(encoding="utf-8")
    row = re.search(r"^\| test-100 \| (\d+) ± ", card, re.MULTILINE)
    return float(row[1]) if row else None
