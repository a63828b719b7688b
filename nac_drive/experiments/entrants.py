"""The drivers of a comparison.

They are cores to train, drivers as they are, and the expert.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.data_collection.drivers import (
    AnyDriver,
    driver_hash,
    driver_name,
    driver_names,
    names_plugin_driver,
    resolve_driver,
    sendable,
)
from nac_drive.data_collection.own_code import own_code
from nac_drive.data_collection.trained_env import env_seen_by, require_environment
from nac_drive.envs import CrashMode, EnvConfig
from nac_drive.experiments.driving import EXPERT, Driving, Entry, Training, folder_name
from nac_drive.plain import whole
from nac_drive.policies import CORES, shipped_names
from nac_drive.suggest import did_you_mean
from nac_drive.training.config import TrainConfig, core_settings
from nac_drive.training.plan import source_hashes
from nac_drive.training.train import train_plan
from nac_drive.training.trainer import build_learner

ENCODER = "encoder"
"""Folder of the run that trains the shared encoder."""


@dataclass(frozen=True)
class Entrants:
    """The cores and drivers of a comparison."""

    dataset: Demonstrations
    """What the cores learn from. It decides control and view."""
    config: TrainConfig
    """Settings of every run, but for its core."""
    configs: Mapping[str, TrainConfig]
    """Core as the user wrote it -> settings of its runs."""
    num_seeds: int = 1
    shared_encoder: bool = False
    given: tuple[AnyDriver, ...] = ()
    """Drivers that are evaluated as they are."""
    expert: AnyDriver | None = None
    """None for no expert: in an environment that the shipped one was not trained for."""

    @property
    def env(self) -> EnvConfig:
        """The environment of the evaluation.

        It has the status bar, under the perturbation of the training.
        """
        env = self.dataset.meta.env
        return replace(env, mask_bar=False, perturb=self.config.perturb or env.perturb)

    @property
    def given_names(self) -> list[str]:
        """Names of the drivers that are evaluated as they are."""
        return driver_names(self.given, [EXPERT, *self.configs, *self.run_names])

    @property
    def run_names(self) -> list[str]:
        """Names of all runs, which are their folders."""
        return [f"{folder_name(core)}-{seed}" for core, config in self.configs.items() for seed in self._seeds(config)]

    def _seeds(self, config: TrainConfig) -> range:
        return range(config.seed, config.seed + self.num_seeds)

    @property
    def names(self) -> list[str]:
        """Names of all, the expert last.

        Raises:
            ValueError: Two of them are the same, or a driver has the name of a run.
        """
        if taken := sorted({*self.given_names} & {*self.run_names}):
            raise ValueError(
                f"drivers: {taken[0]!r} is the name of a run of this comparison, too; rename the folder of the driver, "
                "or choose another --seed."
            )
        names = [*self.configs, *self.given_names, *([EXPERT] if self.expert is not None else [])]
        if len(set(names)) < len(names):
            raise ValueError(
                f"drivers and expert must be different, each with a name of its own, got {', '.join(names)}."
            )
        return names

    def require_runnable(self, device: str) -> None:
        """Check that the runs can start, before anything is created.

        Raises:
            FileNotFoundError: If there is no such driver.
            ValueError: If the expert, a core, its settings, the device or the dataset cannot be used.
        """
        if self.env.spec.make is None:
            raise ValueError(
                f"dataset: environment {self.env.environment!r} is not simulated here, and a comparison drives; train "
                "each core, and measure the runs with `nac-drive evaluate --dataset`."
            )
        experts = [] if self.expert is None else [("expert", self.expert)]
        for role, spec in (*experts, *(("driver", spec) for spec in self.given)):
            driver = resolve_driver(spec, self.env)
            require_environment(f"{role} {driver_name(spec)!r}", driver, self.env)
            if not sendable(driver, wanted=False):
                raise ValueError(
                    f"{role} {driver_name(spec)!r} cannot be sent to the processes of a comparison; pass an object "
                    "that can be pickled."
                )
        for config in self.configs.values():
            build_learner(train_plan(config, self.dataset, device))
            self.dataset.split(config.validation_fraction)

    def driving(self, tracks: tuple[int, ...], crash: CrashMode, device: str) -> Driving:
        """Return the grid.

        It has the expert, the drivers as they are, then every run of every core.
        """
        env = self.env
        bare, expert, entries = replace(env, perturb=None), None, []
        if self.expert is not None:
            expert = resolve_driver(self.expert, env)
            entries = [Entry(EXPERT, driver_hash(self.expert, env), env_seen_by(expert, bare), expert)]
        for name, spec in zip(self.given_names, self.given, strict=True):
            driver = resolve_driver(spec, env)
            entries.append(Entry(name, driver_hash(spec, env), env_seen_by(driver, bare), driver, expert))
        for core, config in self.configs.items():
            sees = replace(bare, mask_bar=self.dataset.meta.env.mask_bar or config.data.mask_bar)
            driver, code = config.driver, own_code(config.driver).values()
            decides = [driver.core, driver.core_args, config.rate_of_core, *code]
            sha256 = hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()
            entries += [
                Entry(
                    core, sha256, sees, expert=expert, run=seed,
                    training=Training(replace(config, seed=seed), self.dataset.path, device),
                )
                for seed in self._seeds(config)
            ]  # fmt: skip
        settings = {
            "config": asdict(_what_counts(with_driver(self.config, core="", core_args={}))),
            "shared_encoder": self.shared_encoder,
            "dataset_sha256": self.dataset.fingerprint(), **source_hashes(self.config, env),
        }  # fmt: skip
        return Driving(tuple(entries), tracks, (env.perturb,), crash, "a comparison", settings)


def configs_of(
    cores: Sequence[str], config: TrainConfig, num_seeds: int, shared_encoder: bool
) -> dict[str, TrainConfig]:
    """Return the config of every core.

    Raises:
        ValueError: A setting is outside its range.
    """
    if not cores:
        raise ValueError("drivers must be names of CORES or drivers, got none; such as nac-exact lstm cfc.")
    whole("num_seeds", num_seeds, 1)
    if shared_encoder and config.optim.freeze_encoder_from:
        raise ValueError(
            "shared_encoder trains an encoder, freeze_encoder_from takes one from "
            f"{config.optim.freeze_encoder_from!r}; choose one."
        )
    configs = {core: with_core(config, core) for core in cores}
    for own in configs.values():
        own.check()
        CORES[own.driver.core].check_effects(own.driver.core_args)
        if shared_encoder:
            on_features(own, ENCODER).check()
    return configs


def is_core(name: str) -> bool:
    """Return whether a name is a core.

    One that is no driver either counts as a core, so that its error says so, unless it is a path.
    """
    name = name.split(",")[0]
    if names_plugin_driver(name):
        return False
    try:
        return name in CORES or not resolve_driver(name)
    except FileNotFoundError:
        path = Path(name)
        return path.name == name and not path.suffix and not path.exists()


def with_core(config: TrainConfig, core: str) -> TrainConfig:
    """Return the config of a core with its settings.

    The core is written as `nac-exact,window=8`.

    Raises:
        ValueError: There is no such core.
    """
    name, *settings = core.split(",")
    if name not in CORES:
        close = did_you_mean(name, (*CORES, *shipped_names()))
        raise ValueError(f"drivers must be names of CORES (docs/drivers.md) or drivers, got {core!r}.{close}")
    if wrong := [word for word in settings if not word.partition("=")[2]]:
        raise ValueError(
            f"drivers: settings of a core must be KEY=VALUE, got {wrong[0]!r} in {core!r}; such as nac-exact,window=8."
        )
    return with_driver(config, core=name, core_args={**config.driver.core_args, **core_settings(settings)})


def with_driver(config: TrainConfig, **changed: Any) -> TrainConfig:
    """Return the settings with changes of the driver."""
    return replace(config, driver=replace(config.driver, **changed))


def _what_counts(config: TrainConfig) -> TrainConfig:
    """Return the config without what may change.

    That is trackers, and the folders of drivers, which have hashes.
    """
    return replace(config, optim=replace(config.optim, init_from=None, freeze_encoder_from=None), track=())


def on_features(config: TrainConfig, encoder: str) -> TrainConfig:
    """Return the config of a core on clean features."""
    data, optim = replace(config.data, augment=()), replace(config.optim, freeze_encoder_from=encoder)
    return replace(config, data=data, optim=optim)
