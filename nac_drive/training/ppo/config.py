"""The settings of ppo. Free of torch: the command line and the environments' processes read them at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from nac_drive.arguments import require_flag
from nac_drive.envs import EnvConfig, parse_corruptions
from nac_drive.envs.perturbations.registry import parse_all
from nac_drive.envs.views import Size, View
from nac_drive.plain import plain_fields
from nac_drive.policies import DriverConfig
from nac_drive.policies.ranges import check_number, check_positive, check_type, check_whole, check_words
from nac_drive.training.config import (
    HIGHEST_RATE,
    LARGEST_BATCH,
    LARGEST_FACTOR,
    LONGEST_SEQUENCE,
    MOST,
    MOST_SEEDS,
    EvalConfig,
    paths_as_text,
    require_parts,
)
from nac_drive.training.tracking import TrackerName, check_track

MOST_ENVS = 256
LONGEST_REPEAT = 50
REWARD_SCALE = 0.02
"""Rewards of training are multiplied by this: the value network then learns numbers of about 1."""
Distribution = Literal["beta", "gaussian"]
Precision = Literal["32-true", "bf16-mixed"]


@dataclass(frozen=True)
class RolloutConfig:
    """Driving between two updates."""

    n_envs: int = 16
    """Environments that PPO drives at the same time, in threads, at most 16 to a thread where there are 32 or more."""
    n_steps: int = 128
    """Actions per environment between two updates."""
    action_repeat: int = 4
    """Frames for which PPO holds every action. The driver that comes out acts at every frame."""
    patience: int = 100
    """Frames without a new tile after which an episode ends, in training only; 0: never. In an environment other
    than CarRacing, frames in which completion stays the same and below 1: the value network estimates the rest."""
    distribution: Distribution = "beta"
    """Continuous: beta, or gaussian before tanh and sigmoid."""
    augment: tuple[str, ...] = ()
    """Perturbations of images, such as colour:2 shadows:1+gaussian-noise:1: PPO drives every episode under one of them
    or clean, all equally likely, with a draw of its own (domain randomisation)."""

    def __post_init__(self) -> None:
        plain_fields(self)

    def check(self) -> None:
        """Check the settings.

        Raises:
            ValueError: A setting is outside its range.
        """
        check_whole("n_envs", self.n_envs, 1, MOST_ENVS)
        check_whole("n_steps", self.n_steps, 2, LONGEST_SEQUENCE)
        check_whole("action_repeat", self.action_repeat, 1, LONGEST_REPEAT)
        check_whole("patience", self.patience, 0, MOST)
        if self.distribution not in get_args(Distribution):
            raise ValueError(
                f"distribution must be one of {', '.join(get_args(Distribution))}, got {self.distribution!r}."
            )
        check_words("augment", self.augment)
        for spec in self.augment:
            parse_corruptions(spec)


@dataclass(frozen=True)
class RewardConfig:
    """Penalties in training; a validation has gymnasium's rewards."""

    crash_penalty: float = 30.0
    """Native reward points subtracted at a crash, in training only."""
    off_road_penalty: float = 1.0
    """Native reward points subtracted for every frame of an action after which three or four wheels are off the road,
    in training only."""
    missed_tile_penalty: float = 20.0
    """Native reward points subtracted for every tile that the car passes without touching it, in training only. The
    first one costs some 35 points in gymnasium, as the lap cannot end any more, but only at the end of the episode."""
    penalty_warmup_steps: int = 1_000_000
    """Frames over which the three penalties grow from nothing to their full size: a driver that is fined before it can
    drive learns to stand still (docs/expert.md). A driver of init_from can drive and pays in full from the start."""

    def __post_init__(self) -> None:
        plain_fields(self)

    def check(self) -> None:
        """Check the settings.

        Raises:
            ValueError: A setting is outside its range.
        """
        for name in ("crash_penalty", "off_road_penalty", "missed_tile_penalty"):
            check_number(name, getattr(self, name), 0, LARGEST_FACTOR)
        check_whole("penalty_warmup_steps", self.penalty_warmup_steps, 0, MOST)


@dataclass(frozen=True)
class PPOOptimConfig:
    """Initial weights and updates."""

    init_from: str | Path | None = None
    """Driver to start from, such as the folder of a run of `nac-drive dagger`; without one, random weights. The driver
    keeps its encoder, core and action head."""
    init_logit_scale: float = 1.0
    """Discrete: factor of the logits of `init_from`; above 1, PPO samples the driver's own action more often."""
    learning_rate: float = 5e-4
    """Adam's rate at the start; it falls linearly to zero."""
    ema_decay: float = 0.998
    """Decay per update of an exponential moving average of the driver's weights: the average is validated and saved,
    PPO drives and updates the weights themselves. 0: no average."""
    precision: Precision = "32-true"
    """Of the encoder: bf16-mixed is faster on processors that have bfloat16 (docs/expert.md), and slower on others."""
    batch_size: int = 512
    """Actions per update; in a core with memory a multiple of sequence_length, or as near as whole sequences come."""
    n_epochs: int = 4
    """Epochs over each rollout."""
    sequence_length: int = 4
    """Actions over which gradients go back in time, in a core with memory; it divides n_steps. Longer sequences are
    fewer in an update, and their actions resemble each other (docs/expert.md)."""
    value_warmup_steps: int = 0
    """Frames during which only the value network learns, fewer than total_timesteps."""
    clip_range: float = 0.2
    """Bound of an update: the probability of an action changes by a factor within 1 ± clip_range."""
    gamma: float = 0.9995
    """Discount of the reward per frame."""
    gae_lambda: float = 0.95
    """Decay of generalised advantage estimation per action: 0 trusts the value network, 1 the observed rewards."""
    ent_coef: float = 0.0
    """Weight of the entropy bonus."""
    value_core: bool = False
    """The value network has a core of the driver's kind, with its core_args, in place of a perceptron. It looks at one
    state of the simulator at a time, without a memory."""

    def __post_init__(self) -> None:
        plain_fields(self)
        paths_as_text(self, "init_from")

    def check(self) -> None:
        """Check the settings.

        Raises:
            ValueError: A setting is outside its range.
        """
        for name in ("init_logit_scale", "clip_range", "learning_rate"):
            most = HIGHEST_RATE if name == "learning_rate" else LARGEST_FACTOR
            check_positive(name, getattr(self, name), most, f"the default is {getattr(type(self), name)}")
        check_number("ema_decay", self.ema_decay)
        if not 0 <= self.ema_decay < 1:
            raise ValueError(f"ema_decay must lie in [0, 1), got {self.ema_decay}; 0 is no average.")
        if self.precision not in get_args(Precision):
            raise ValueError(f"precision must be one of {', '.join(get_args(Precision))}, got {self.precision!r}.")
        check_whole("batch_size", self.batch_size, 2, LARGEST_BATCH)
        check_whole("n_epochs", self.n_epochs, 1, MOST)
        check_whole("sequence_length", self.sequence_length, 1, LONGEST_SEQUENCE)
        check_whole("value_warmup_steps", self.value_warmup_steps, 0, MOST)
        for name in ("gamma", "gae_lambda"):
            check_number(name, getattr(self, name), 0, 1)
        check_number("ent_coef", self.ent_coef, 0, LARGEST_FACTOR)
        require_flag("value_core", self.value_core)


@dataclass(frozen=True)
class PPOConfig:
    """Settings of `ppo`, under the names of stable-baselines3 where it has them."""

    driver: DriverConfig = field(default_factory=lambda: DriverConfig(core="cnn", encoder="pooled", d_model=128))
    """Encoder, core and action head of a driver from random weights; with `init_from` that driver has its own."""
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    optim: PPOOptimConfig = field(default_factory=PPOOptimConfig)
    validation: EvalConfig = field(default_factory=EvalConfig)
    seed: int = 0
    """Seed of weights, tracks and noise."""
    total_timesteps: int = 20_000_000
    """Frames that PPO drives, over all environments."""
    validate_every: int = 1_000_000
    """Frames between two validations."""
    environment: str = EnvConfig.environment
    """The track environment: car-racing, or an id that is registered with gymnasium (docs/your-own-road.md)."""
    view: View = EnvConfig.view
    """What the driver sees: above, gymnasium's frames, or seat, from the driver's seat (docs/simulator.md)."""
    size: Size = EnvConfig.size
    """Width and height of its frames from the seat, in pixels."""
    perturb: str | None = None
    """Perturbations of every episode, in training and validation, such as frame-drop:1:skip; of several, separated by
    commas, each episode has one, in turn by track."""
    track: tuple[TrackerName, ...] = ()
    """Trackers that show the rows of metrics.jsonl too; each needs the extra of its name."""

    def __post_init__(self) -> None:
        plain_fields(self)
        require_parts(self)

    def check(self) -> None:
        """Check the settings.

        Raises:
            ValueError: The settings cannot be trained with.
        """
        for part in (self.driver, self.rollout, self.reward, self.optim, self.validation):
            part.check()
        if self.driver.dropout and not self.optim.init_from:
            raise ValueError(
                f"dropout must be 0 in ppo, got {self.driver.dropout}: the policy that learns must be the one that "
                "drove; leave it out."
            )
        check_whole("seed", self.seed, 0, MOST_SEEDS)
        check_whole("total_timesteps", self.total_timesteps, 0, MOST)
        check_whole("validate_every", self.validate_every, 1, MOST)
        check_track(self.track)
        if self.perturb is not None:
            check_type("perturb", self.perturb, str)
            parse_all(self.perturb)
        check_type("environment", self.environment, str)
        _ = self.env  # it checks its own settings
        actions, optim = self.rollout.n_envs * self.rollout.n_steps, self.optim
        if actions % optim.batch_size:
            raise ValueError(
                f"batch_size must divide the n_envs * n_steps = {actions:,} actions of a rollout, "
                f"got {optim.batch_size}."
            )
        if 0 < self.total_timesteps <= optim.value_warmup_steps:
            raise ValueError(
                f"value_warmup_steps must be less than total_timesteps = {self.total_timesteps:,}, got "
                f"{optim.value_warmup_steps}: the driver would never learn; lower it."
            )

    @property
    def env(self) -> EnvConfig:
        """The environment of the driver."""
        control: Any = self.driver.control
        return EnvConfig(
            control, environment=self.environment, perturb=self.perturb, view=self.view, size=self.size
        )  # fmt: skip
