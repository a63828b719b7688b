"""A driver as one file for other programs.

The file says what they must know of its environment.
"""

from __future__ import annotations

import copy
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from nac_drive.arguments import require_kind
from nac_drive.data_collection.trained_env import trained_env
from nac_drive.envs import Control, EnvConfig, same_actions
from nac_drive.policies.checkpoint import load_driver
from nac_drive.policies.driver import Driver
from nac_drive.policies.export import export_step, require_new_file
from nac_drive.policies.onnx_driver import Interface


def export(
    driver: Driver | str | os.PathLike[str], path: str | os.PathLike[str], *, control: Control | None = None
) -> Path:
    """Write one step of a driver to one file.

    The file holds all that is needed to drive.

    Inputs are `observation` (1, H, W, 3) uint8, `dt` (1,) float32, seconds since the previous observation, and the
    tensors of the state, `state_0` and so on. Outputs are `prediction` (1, A), the logits or the continuous action,
    `action`, (1,) int64 or (1, 3) float32, and the new state, `next_state_0` and so on. The metadata of the file holds
    a `Header` as JSON: in an ONNX file under the key `nac_drive`, in a .pt2 file as the extra file `nac_drive.json`.

    Args:
        driver: The driver, its name, or its folder (see `load_driver`).
        path: The new file: `.onnx` for onnxruntime and `load_onnx`, `.pt2` for `torch.export.load`.
        control: Control of a shipped driver; a cloned driver knows its own. Pulsed puts a driver of continuous control
            under pulsed control, and continuous the other way round.

    Returns:
        The file.

    Raises:
        FileExistsError: `path` exists.
        FileNotFoundError: There is no such driver.
        ValueError: It has another suffix or another control, its environment is not there, a package is not installed,
            or the core cannot be exported.
        WriteError: The file cannot be written.
    """
    path = require_new_file(path)
    if isinstance(driver, str | os.PathLike):
        driver = load_driver(driver, control)
    require_kind("driver", driver, Driver, "pass a driver, its name or its folder")
    env = trained_env(driver)
    if control and not same_actions(control, driver.config.control):
        raise ValueError(f"control: the driver has {driver.config.control} control, got {control!r}; leave it out.")
    driver = copy.copy(driver)
    driver.config = replace(driver.config, control=control or driver.config.control)
    if env is None:
        return export_step(driver, path)
    env = replace(env, control=driver.config.control)
    driver.env_config = _stated(env)
    return export_step(driver, path, _interface(env))


def _stated(env: EnvConfig) -> dict[str, Any]:
    """Return the settings of an environment.

    One without views says nothing of them.
    """
    return {name: value for name, value in asdict(env).items() if env.spec.views or name not in ("view", "size")}


def _interface(env: EnvConfig) -> Interface:
    spec = env.spec
    return Interface(
        frame="RGB, 0 to 255, top row first",
        black_from_row=spec.bar_top if env.mask_bar else None,
        frames_per_second=spec.frames_per_second,
        actions=spec.action_names if env.control != "continuous" else None,
        parts=spec.parts if env.control != "discrete" else None,
    )
