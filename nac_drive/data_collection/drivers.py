"""Find a driver by its name or its folder.

Names are of drivers that come with the package.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import asdict, replace
from pathlib import Path

import msgspec

from nac_drive import policies  # lazy: a worker that only simulates never loads torch
from nac_drive.data_collection.controller.controller import CONTROLLERS, Controller
from nac_drive.data_collection.human import HUMAN, KeyboardDriver
from nac_drive.envs import ENVIRONMENTS, Control, EnvConfig, Policy, same_actions
from nac_drive.policies.onnx_driver import load_onnx
from nac_drive.storage.names import shown
from nac_drive.suggest import did_you_mean


def resolve_driver(spec: str | os.PathLike[str], env: EnvConfig | None = None) -> Policy:
    """Load the driver that a name or a path stands for.

    Args:
        spec: `controller`, `steady-controller` or `cautious-controller`; `human`, a person at the keys of a window; a
            driver that comes with the package, such as `expert` or `champion-continuous`; the folder of a driver or run
            (its best checkpoint); or an `.onnx` file that `nac-drive export` wrote.
        env: The environment it will drive in; a name without control means the driver for its control, discrete by
            default.

    Returns:
        The driver.

    Raises:
        FileNotFoundError: If there is no such name or folder.
        ValueError: If the folder or file is no driver's, or the driver's actions do not fit the
            environment's control (continuous and pulsed control have the same).
    """
    control = env.control if env else None
    if os.fspath(spec) == HUMAN:
        return KeyboardDriver(control or "discrete")
    if os.fspath(spec) in CONTROLLERS:
        return _controller(spec, control or "discrete")
    try:
        driver = load_onnx(spec) if _is_exported(spec) else policies.load_driver(spec, control)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{error}{did_you_mean(os.fspath(spec), CONTROLLERS)}") from None
    trained = trained_env(driver)
    if env and trained and not same_actions(trained.control, env.control):
        raise ValueError(
            f"driver {str(spec)!r} was made for {trained.control} control, the environment has {env.control} control; "
            f"pass --control {trained.control} or another driver."
        )
    return driver


def _controller(name: str | os.PathLike[str], control: Control) -> Controller:
    return Controller(control, CONTROLLERS[os.fspath(name)][control])


def driver_name(spec: str | os.PathLike[str]) -> str:
    """Return the name of a driver in tables and datasets.

    It is the name itself, or the folder's.

    Characters that do not print become escapes, so that tables, pages and files can hold any name.
    """
    return shown(Path(os.path.abspath(spec)).name)


def trained_env(driver: Policy) -> EnvConfig | None:
    """Return the environment that `driver` was trained in. None for one that was not trained.

    Raises:
        ValueError: Its folder names an environment that there is not.
    """
    config = getattr(driver, "env_config", None)
    if not config:
        return None
    try:
        EnvConfig(**config)
        return msgspec.convert(config, EnvConfig)
    except (TypeError, ValueError, msgspec.ValidationError) as error:
        name = config.get("environment")
        unknown = isinstance(name, str) and name not in ENVIRONMENTS  # then the error names the fix
        raise ValueError(
            f"env in the driver's config.json is not an environment of nac-drive: {str(error).rstrip('.')}"
            + ("." if unknown else "; save the driver again.")
        ) from None


def seen_by(env: EnvConfig) -> tuple[object, ...]:
    """Return the settings of a driver's undisturbed view."""
    return env.environment, env.view, env.size, env.mask_bar


def require_view(role: str, driver: Policy, env: EnvConfig) -> None:
    """Check that a driver's weights fit an environment's frames.

    The weights are taken from the driver.

    Raises:
        ValueError: The driver was trained in another view, or on frames of another size.
    """
    trained = trained_env(driver)
    if trained and (trained.view, trained.size) != (env.view, env.size):
        raise ValueError(
            f"{role} was trained in the view {trained.view!r} of {trained.size} pixels, here it is {env.view!r} of "
            f"{env.size}; pass one that was trained on such frames."
        )


def require_environment(
    role: str, driver: Policy, env: EnvConfig, fix: str = "pass one that was trained there"
) -> None:
    """Check that a driver was trained in an environment.

    Others learn from it there.

    Its view may be another one: it labels and drives in the view of its training (see `trained_view`).

    Args:
        role: The role and the name of the driver, for the error.
        driver: The driver. One that was not trained may be from anywhere.
        env: The environment of the others.
        fix: The advice of the error.

    Raises:
        ValueError: It was trained in another one.
    """
    trained = trained_env(driver)
    if trained and trained.environment != env.environment:
        raise ValueError(
            f"{role} was trained in the environment {trained.environment!r}, here it is {env.environment!r}, whose "
            f"frames mean nothing to it; {fix}."
        )


def env_for(driver: Policy, control: Control | None = None, perturbation: str | None = None) -> EnvConfig:
    """Return the environment of a driver's training.

    It has the control and the perturbations of the user.

    Args:
        driver: A driver. One that was not trained drives in `EnvConfig`.
        control: The control of a driver that was not trained. It also puts a driver of continuous control under pulsed
            control, and the other way round.
        perturbation: Perturbations instead of the training's, see `envs.perturb`; none by default.
    """
    env = trained_env(driver)
    if env is None:
        env = EnvConfig(control or EnvConfig.control)
    elif control and same_actions(control, env.control):
        env = replace(env, control=control)
    return replace(env, perturb=perturbation)


def driver_hash(spec: str | os.PathLike[str], env: EnvConfig) -> str:
    """Return the SHA-256 of what decides a driver's actions.

    It covers weights and config, or the controller's numbers.

    Args:
        spec: See `resolve_driver`.
        env: The environment; its control chooses between two drivers of one name.
    """
    if os.fspath(spec) == HUMAN:
        return hashlib.sha256(HUMAN.encode()).hexdigest()
    if os.fspath(spec) in CONTROLLERS:
        config = asdict(_controller(spec, env.control).config)
        return hashlib.sha256(json.dumps(config).encode()).hexdigest()
    if _is_exported(spec):
        return hashlib.sha256(Path(spec).read_bytes()).hexdigest()
    folder = policies.driver_folder(spec, env.control)
    digest = hashlib.sha256()
    for name in ("config.json", "model.safetensors"):
        digest.update((folder / name).read_bytes())
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
    known = {f"{name}-{env.control}", name} & policies.PRETRAINED.keys()
    if not known or driver_hash(name, env) != sha256:
        return None
    card = (policies.driver_folder(name, env.control) / _CARD).read_text(encoding="utf-8")
    row = re.search(r"^\| test-100 \| (\d+) ± ", card, re.MULTILINE)
    return float(row[1]) if row else None


def _is_exported(spec: str | os.PathLike[str]) -> bool:
    """Return whether `spec` is an ONNX file.

    Raises:
        ValueError: It is a .pt2 file.
    """
    suffix = Path(spec).suffix
    if suffix == ".pt2":
        raise ValueError(
            f"driver: {os.fspath(spec)} cannot be driven with: torch unpickles parts of a .pt2 file, which can run "
            "foreign code; export the driver as .onnx, or pass its folder."
        )
    return suffix == ".onnx"
