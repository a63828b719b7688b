"""The door of a training, which is settled once.

It is settled before it has a folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import nn

from nac_drive.data_collection.drivers import driver_hash, driver_of_option, resolve_driver, resolve_encoder
from nac_drive.data_collection.own_code import own_code
from nac_drive.data_collection.trained_env import require_environment, require_view
from nac_drive.envs import EnvConfig
from nac_drive.policies import CORES, Driver, DriverConfig
from nac_drive.policies.device import choose_device
from nac_drive.policies.encoders import ZeroBlack
from nac_drive.storage.figure import try_to_draw
from nac_drive.storage.lock import locked
from nac_drive.training.config import CloningConfig, TrainConfig
from nac_drive.training.curve import CURVE, draw_curve
from nac_drive.training.dagger_config import DaggerConfig
from nac_drive.training.main_process import is_main_process
from nac_drive.training.ppo.config import PPOConfig
from nac_drive.training.run_folder import RunFolder
from nac_drive.training.settings import OF_THE_CORE
from nac_drive.training.tracking import TrackedRun, tracked

_HASHES = {"init_from": "init_sha256", "freeze_encoder_from": "freeze_encoder_sha256"}
"""Setting of `optim` that names a driver -> key of config.yaml that identifies the driver, wherever it lies."""

_STEPS = {TrainConfig: "epoch", DaggerConfig: "round", PPOConfig: "frame"}
"""Config -> unit of the steps of its rows."""

Config = TypeVar("Config", bound=CloningConfig | PPOConfig)


@dataclass(frozen=True)
class TrainingPlan(Generic[Config]):
    """A training with settled settings and loaded drivers."""

    config: Config
    """Settings; `env` decides control and frames of the driver."""
    env: EnvConfig
    """The environment of the driver."""
    device: torch.device
    """The device that this process trains on."""
    sources: Mapping[str, Driver]
    """Drivers that `config.optim` names: init_from, freeze_encoder_from."""
    resolved: dict[str, Any]
    """The content of config.yaml: the settings, and what identifies the data and drivers that they name."""
    moved: tuple[str, ...]
    """Keys of `resolved` that may differ on resume: folders that moved, whose content has a hash beside them."""
    grown: tuple[str, ...]
    """Keys of `resolved` whose number may be larger on resume."""

    @classmethod
    def resolve(
        cls,
        config: Config,
        env: EnvConfig,
        *,
        device: str = "auto",
        facts: Mapping[str, Any] | None = None,
        moved: tuple[str, ...] = (),
        grown: tuple[str, ...] = (),
    ) -> TrainingPlan[Config]:
        """Settle the settings, and load the drivers that they name.

        Args:
            config: Settings that were checked.
            env: The environment of the driver.
            device: `auto`, `cpu` or `cuda`.
            facts: More keys of config.yaml, such as the dataset and its hash.
            moved: Keys that may differ on resume; keys of `optim` that name drivers are added.
            grown: Keys whose number may be larger on resume.

        Raises:
            FileNotFoundError: If there is no such driver.
            ValueError: If a setting of the core has no effect, the device is not there, a driver has no weights or
                weights for other actions or frames, or PPO shall begin with another driver than `init_from`.
        """
        CORES.require(config.driver.core).check_effects(config.driver.core_args)
        rates = OF_THE_CORE if isinstance(config, CloningConfig) and config.optim.learning_rate is None else {}
        torch_device, spec = choose_device(device), env.spec
        of_env = {
            "control": env.control, "frame_shape": spec.frame_shape, "num_actions": spec.num_actions,
            "part_ranges": spec.part_ranges, "nominal_dt": spec.nominal_dt,
        }  # fmt: skip
        config = _of_environment(replace(config, driver=replace(config.driver, **of_env)), env)
        sources = {name: _learned(name, source, env) for name, source in _named(config).items()}
        if isinstance(config, PPOConfig) and (start := sources.get("init_from")):
            config = _of_driver(config, replace(start.config, **of_env), replace(PPOConfig().driver, **of_env))
        code = {f"{part}_code_sha256": sha256 for part, sha256 in own_code(config.driver).items()}
        facts = {**(facts or {}), **source_hashes(config, env), **code, **rates, "device": torch_device.type}
        resolved = {**asdict(config), **facts}
        moved = (*moved, "device", "track", *OF_THE_CORE, *(f"optim.{name}" for name in _HASHES))
        return cls(config, env, torch_device, sources, resolved, moved, grown)

    @property
    def encoder(self) -> nn.Module | None:
        """The frozen encoder on the device; None without one."""
        if (source := self.sources.get("freeze_encoder_from")) is None:
            return None
        encoder = source.encoder.to(self.device).eval()
        return ZeroBlack(encoder) if self.config.driver.zero_lost_frames else encoder


def _of_environment(config: Config, env: EnvConfig) -> Config:
    """Return the settings that the environment allows, with the learning rates that they mean.

    The environment may not know how to flip frames and actions.

    Raises:
        ValueError: A setting needs the steering, which is not known.
    """
    if not isinstance(config, CloningConfig):
        return config
    config = config.with_rates()
    for name in ("shift", "curve_weight"):
        if getattr(config.data, name) and not env.spec.steers(env.control):
            raise ValueError(
                f"{name}: the steering of {env.environment!r} is not known; leave it out, or state steering_part in "
                "its EnvSpec."
            )
    if config.data.horizontal_flip and not env.spec.flips(env.control):
        return replace(config, data=replace(config.data, horizontal_flip=False))
    return config


def source_hashes(config: CloningConfig | PPOConfig, env: EnvConfig) -> dict[str, str]:
    """Return the SHA-256 of named drivers by key of config.yaml."""
    return {_HASHES[name]: driver_hash(source, env) for name, source in _named(config).items()}


def _named(config: CloningConfig | PPOConfig) -> dict[str, Any]:
    """Return the settings of `optim` that name a driver."""
    return {name: source for name in _HASHES if (source := getattr(config.optim, name, None))}


def _learned(option: str, source: str | os.PathLike[str], env: EnvConfig) -> Driver:
    """Load a driver whose weights are taken over.

    Raises:
        FileNotFoundError: If there is no such driver.
        ValueError: If it has no weights, or was trained in another environment or view.
    """
    with driver_of_option(option):
        driver = (resolve_encoder if option == "freeze_encoder_from" else resolve_driver)(source, env)
    if not isinstance(driver, Driver):
        raise ValueError(
            f"{option} must name a learned driver, got {os.fspath(source)!r}: it has no weights; pass the folder of a "
            "run of train, dagger or ppo."
        )
    require_environment(f"{option} {os.fspath(source)!r}", driver, env)
    require_view(f"{option} {os.fspath(source)!r}", driver, env)
    return driver


def _of_driver(config: PPOConfig, start: DriverConfig, default: DriverConfig) -> PPOConfig:
    """Return the settings with `start`, the driver of `init_from`.

    Raises:
        ValueError: The settings ask for a driver that is neither `start` nor the default.
    """
    if config.driver not in (start, default):
        asked, there = asdict(config.driver), asdict(start)
        name = next(name for name in asked if asked[name] != there[name])
        raise ValueError(f"{name} must be {there[name]!r} as in init_from, got {asked[name]!r}; leave it out.")
    return replace(config, driver=start)


@contextmanager
def open_run(folder: Path, plan: TrainingPlan[Any], *, resume: bool) -> Iterator[RunFolder]:
    """Hold a new run, or one that goes on.

    A run goes on from its last checkpoint. The main process locks, makes and checks the folder. The processes that
    it starts later find the run there. A run that ends leaves the figure of its curves.

    Args:
        folder: The folder of the run.
        plan: The training.
        resume: Go on with the run in `folder`.

    Raises:
        FileExistsError: If a new run would find another one.
        FileNotFoundError: If there is no run to resume.
        FolderInUseError: If another process writes to the folder.
        ValueError: If the run has other settings, or an older version started it.
    """
    if not is_main_process():
        yield RunFolder(folder)
        return
    with locked(folder):
        if resume:
            run = RunFolder.open(folder)
            run.require_config(plan.resolved, moved=plan.moved, grown=plan.grown)
            run.rewind()
        else:
            run = RunFolder.create(folder, plan.resolved)
        rows = run.rows()
        tracking = TrackedRun(folder, plan.resolved, rows[-1]["step"] if rows else None)
        with tracked(plan.config.track, tracking) as run.on_row:
            yield run
        try_to_draw(draw_curve, run.path / CURVE, run.rows(), _STEPS[type(plan.config)])
