"""The settings of ppo. Free of torch: the command line and the environments' processes read them at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from nac_drive.envs import EnvConfig, parse_corruptions, track_seeds
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
    paths_as_text,
)

MOST_ENVS = 256
LONGEST_REPEAT = 50
WIDEST_BETA = 0.22
"""Largest standard deviation of a Beta distribution of one mode as `ActorCritic` has them: just under sqrt(1/20)."""
Distribution = Literal["beta", "gaussian"]
Precision = Literal["32-true", "bf16-mixed"]


@dataclass(frozen=True)
class PPOConfig:
    """Settings of `ppo`, under the names of stable-baselines3 where it has them."""

    driver: DriverConfig = field(default_factory=lambda: DriverConfig(core="cnn", encoder="pooled", d_model=128))
    """Encoder, core and action head of a driver from random weights; with `init_from` only control is chosen here."""
    seed: int = 0
    """Seed of weights, tracks and noise."""
    init_from: str | Path | None = None
    """Driver to start from, such as the folder of a run of `nac-drive dagger`; without one, random weights."""
    init_logit_scale: float = 1.0
    """Discrete: factor of the logits of `init_from`; above 1, PPO samples the driver's own action more often."""
    distribution: Distribution = "beta"
    """Continuous: beta, or gaussian before tanh and sigmoid."""
    action_noise: float = 0.19
    """Continuous: standard deviation of an action at the start, as a fraction of its range; for beta at most 0.22."""
    action_repeat: int = 4
    """Frames for which PPO holds every action. The driver that comes out acts at every frame."""
    patience: int = 100
    """Frames without a new tile after which an episode ends, in training only; 0: never."""
    total_timesteps: int = 20_000_000
    """Frames that PPO drives, over all environments."""
    n_envs: int = 16
    """Environments that PPO drives at the same time, in threads, at most 16 to a thread where there are 32 or more."""
    n_steps: int = 128
    """Actions per environment between two updates."""
    sequence_length: int = 4
    """Actions over which gradients go back in time, in a core with memory; it divides n_steps. Longer sequences are
    fewer in an update, and their actions resemble each other (docs/expert.md)."""
    value_warmup_steps: int = 0
    """Frames during which only the value network learns."""
    batch_size: int = 512
    """Actions per update; in a core with memory a multiple of sequence_length, or as near as whole sequences come."""
    n_epochs: int = 4
    """Epochs over each rollout."""
    precision: Precision = "32-true"
    """Of the encoder: bf16-mixed is faster on processors that have bfloat16 (docs/expert.md), and slower on others."""
    learning_rate: float = 5e-4
    """Adam's rate at the start; it falls linearly to zero."""
    ema_decay: float = 0.998
    """Decay per update of an exponential moving average of the driver's weights: the average is validated and saved,
    PPO drives and updates the weights themselves. 0: no average."""
    clip_range: float = 0.2
    """Bound of an update: the probability of an action changes by a factor within 1 ± clip_range."""
    gamma: float = 0.9995
    """Discount of the reward per frame."""
    gae_lambda: float = 0.95
    """Decay of generalised advantage estimation per action: 0 trusts the value network, 1 the observed rewards."""
    ent_coef: float = 0.0
    """Weight of the entropy bonus."""
    reward_scale: float = 0.02
    """Native rewards are multiplied by this, in training only."""
    crash_penalty: float = 30.0
    """Native reward points subtracted at a crash, in training only."""
    off_road_penalty: float = 1.0
    """Native reward points subtracted for every frame with three or four wheels off the road, in training only."""
    missed_tile_penalty: float = 20.0
    """Native reward points subtracted for every tile that the car passes without touching it, in training only. The
    first one costs some 35 points in gymnasium, as the lap cannot end any more, but only at the end of the episode."""
    penalty_warmup_steps: int = 1_000_000
    """Frames over which the three penalties grow from nothing to their full size: a driver that is fined before it can
    drive learns to stand still (docs/expert.md). A driver of init_from can drive and pays in full from the start."""
    augment: tuple[str, ...] = ()
    """Perturbations of images, such as colour:2 shadows:1+gaussian-noise:1: PPO drives every episode under one of them
    or clean, all equally likely, with a draw of its own (domain randomisation)."""
    view: View = EnvConfig.view
    """What the driver sees: above, gymnasium's frames, or seat, from the driver's seat (docs/simulator.md)."""
    size: Size = EnvConfig.size
    """Width and height of its frames from the seat, in pixels."""
    perturb: str | None = None
    """Perturbations of every episode, in training and validation, such as frame-drop:1:skip; of several, separated by
    commas, each episode has one, in turn by track."""
    validate_every: int = 1_000_000
    """Frames between two validations."""
    validation_tracks: str = "val-20"
    """Tracks whose mean - 0.5 sd of native returns picks the best checkpoint."""

    def __post_init__(self) -> None:
        plain_fields(self)
        paths_as_text(self, "init_from")

    def check(self) -> None:
        """Check the settings.

        Raises:
            ValueError: The settings cannot be trained with.
        """
        self.driver.check()
        if self.driver.dropout:
            raise ValueError(
                f"dropout must be 0 in ppo, got {self.driver.dropout}: the policy that learns must be the one that "
                "drove; leave it out."
            )
        check_type("validation_tracks", self.validation_tracks, str)
        track_seeds(self.validation_tracks)
        check_words("augment", self.augment)
        for spec in self.augment:
            parse_corruptions(spec)
        if self.perturb is not None:
            check_type("perturb", self.perturb, str)
            parse_all(self.perturb)
        if self.distribution not in get_args(Distribution):
            raise ValueError(
                f"distribution must be one of {', '.join(get_args(Distribution))}, got {self.distribution!r}."
            )
        if self.precision not in get_args(Precision):
            raise ValueError(f"precision must be one of {', '.join(get_args(Precision))}, got {self.precision!r}.")
        check_whole("seed", self.seed, 0, MOST_SEEDS)
        for name in ("total_timesteps", "value_warmup_steps", "penalty_warmup_steps"):
            check_whole(name, getattr(self, name), 0, MOST)
        check_whole("validate_every", self.validate_every, 1, MOST)
        check_whole("action_repeat", self.action_repeat, 1, LONGEST_REPEAT)
        check_whole("patience", self.patience, 0, MOST)
        check_whole("n_epochs", self.n_epochs, 1, MOST)
        check_whole("n_envs", self.n_envs, 1, MOST_ENVS)
        check_whole("n_steps", self.n_steps, 2, LONGEST_SEQUENCE)
        check_whole("batch_size", self.batch_size, 2, LARGEST_BATCH)
        if self.n_envs * self.n_steps % self.batch_size:
            raise ValueError(
                f"batch_size must divide the n_envs * n_steps = {self.n_envs * self.n_steps:,} actions of a rollout, "
                f"got {self.batch_size}."
            )
        check_whole("sequence_length", self.sequence_length, 1, LONGEST_SEQUENCE)
        if self.n_steps % self.sequence_length:
            raise ValueError(f"sequence_length must divide n_steps = {self.n_steps}, got {self.sequence_length}.")
        for name in ("init_logit_scale", "action_noise", "clip_range", "reward_scale", "learning_rate"):
            most = HIGHEST_RATE if name == "learning_rate" else LARGEST_FACTOR
            check_positive(name, getattr(self, name), most, f"the default is {getattr(type(self), name)}")
        if self.distribution == "beta" and self.action_noise > WIDEST_BETA:
            raise ValueError(
                f"action_noise must be at most {WIDEST_BETA} with distribution beta, got {self.action_noise}; "
                "take less, or distribution gaussian."
            )
        for name in ("gamma", "gae_lambda"):
            check_number(name, getattr(self, name), 0, 1)
        check_number("ema_decay", self.ema_decay)
        if not 0 <= self.ema_decay < 1:
            raise ValueError(f"ema_decay must lie in [0, 1), got {self.ema_decay}; 0 is no average.")
        for name in ("ent_coef", "crash_penalty", "off_road_penalty", "missed_tile_penalty"):
            check_number(name, getattr(self, name), 0, LARGEST_FACTOR)
