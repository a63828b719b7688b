"""The protocols of harness.py as data: cores x methods x seeds, trained alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import nac_drive as nd
from nac_drive.envs import Control
from nac_drive.training.config import core_settings

Method = Literal["bc", "dart", "dagger"]


@dataclass(frozen=True)
class Run:
    """One run to train."""

    core: str
    method: Method
    seed: int

    @property
    def name(self) -> str:
        return f"{self.core}-{self.method}-{self.seed}"


@dataclass(frozen=True)
class Protocol:
    """Cores x methods x seeds, trained alike."""

    cores: dict[str, dict[str, Any]]
    """Core, such as nac-exact or nac-sharp,window=32 -> further settings."""
    seeds: dict[int, int]
    """Seed of a run -> seed of the first track that DAgger drives."""
    expert: str
    """Gives the labels."""
    training: nd.DaggerConfig
    """Settings of every run; behaviour cloning and DART take driver, data, optimiser and validation from here."""
    methods: tuple[Method, ...] = ("dagger",)
    epochs: int = 7
    """Epochs of behaviour cloning and of DART: about as many updates as DAgger's, whose first epochs are short."""

    def plan(self) -> list[Run]:
        """All runs, the seeds of a core and method beside each other."""
        return [Run(core, method, seed) for core in self.cores for method in self.methods for seed in self.seeds]

    def dagger_config(self, run: Run) -> nd.DaggerConfig:
        """Settings of a run of DAgger."""
        name, *settings = run.core.split(",")
        driver = replace(self.training.driver, core=name, core_args=self.cores[run.core] | core_settings(settings))
        return replace(self.training, driver=driver, seed=run.seed, first_track=self.seeds[run.seed])

    def train_config(self, run: Run) -> nd.TrainConfig:
        """Settings of a run of behaviour cloning."""
        config = self.dagger_config(run)
        return nd.TrainConfig(
            config.driver, config.data, config.with_rates().optim, config.validation,
            seed=run.seed, epochs=self.epochs, validation_fraction=0.02, validate_every=2,
        )  # fmt: skip

    def quick(self) -> Protocol:
        """The same with one seed, one round and one epoch."""
        small = replace(
            self.training, initial_episodes=2, rounds=1, episodes=1, initial_epochs=1, epochs=1,
            validation=nd.EvalConfig("val-1"),
        )  # fmt: skip
        return replace(self, seeds=dict([*self.seeds.items()][:1]), training=small, epochs=1)


def baselines_protocol(control: Control, init_from: str, precision: str) -> Protocol:
    """DAgger from the controller, with encoder and action head of one driver to start from, and no residual path."""
    training = nd.DaggerConfig(
        nd.DriverConfig(control=control),
        optim=nd.OptimConfig(init_from=init_from, precision=precision),
        validation=nd.EvalConfig("val-10"),
        initial_episodes=16, initial_epochs=4, rounds=3, episodes=10, epochs=2,
    )  # fmt: skip
    cores = {"nac-exact": {"num_heads": 4, "window": 8}, "lstm": {}, "cfc": {"backbone_units": 80}}
    return Protocol(cores, {0: 1000, 1: 2000, 2: 3000}, "controller", training)


def cloning_protocol(methods: Sequence[Method], expert: str, precision: str) -> Protocol:
    """Behaviour cloning, DART and DAgger with a residual path, from random weights."""
    training = nd.DaggerConfig(
        nd.DriverConfig(residual=True),
        optim=nd.OptimConfig(precision=precision),
        validation=nd.EvalConfig("val-10"),
        initial_episodes=12, initial_epochs=3, rounds=5, episodes=6, epochs=2,
    )  # fmt: skip
    cores = {"nac-exact": {"num_heads": 4, "window": 8}, "lstm": {}, "cfc": {}}
    ordered = tuple(method for method in get_args(Method) if method in methods)
    return Protocol(cores, {0: 0}, expert, training, ordered)
