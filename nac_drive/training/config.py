"""The settings of train, dagger and ppo, nested by subject. Free of torch: the command line reads them at once.

A config is a frozen value; `check` raises ValueError for settings that cannot be trained with. train, dagger and ppo
call it before anything is created.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from nac_drive.data_collection.dart import NoiseConfig
from nac_drive.data_collection.mixture import MixtureConfig
from nac_drive.envs import SPLITS, Augmentation, Control, EnvConfig, RendererName, track_seeds
from nac_drive.policies import DriverConfig

SHORTEST_SEQUENCE = 16
"""Frames that a core with memory must see at least in training."""


@dataclass(frozen=True)
class DataConfig:
    """Training sequences: their length, number, augmentation and weights."""

    sequence_length: int = 32
    """Frames per training sequence (T), at least 16; `cnn` alone may see single frames."""
    batch_size: int = 8
    """Sequences per update (B)."""
    horizontal_flip: bool = True
    """Flip half of the sequences, drawn at random, left to right: tracks are driven counter-clockwise, so curves to the
    left outnumber those to the right."""
    augment: tuple[str, ...] = ()
    """Perturbations of images, such as gaussian-noise:1 shadows:2+colour:3: every sequence is put under one of them or
    left clean, all equally likely, with a draw of its own."""
    class_weights: bool = False
    """Weigh each of the discrete actions by its inverse frequency."""
    change_weight: float = 1.0
    """Weight of the frames where the expert's action changes."""
    mask_bar: bool = False
    """Hide the status bar from the driver."""

    def check(self) -> None:
        """Check the settings.

        Raises:
            ValueError: A setting is outside its range.
        """
        _require_at_least(self, sequence_length=1, batch_size=1)
        _require_positive(self, "change_weight", "1 weighs all frames alike")
        Augmentation(self.augment)


@dataclass(frozen=True)
class OptimConfig:
    """Optimizer, initial weights and precision."""

    learning_rate: float = 1e-3
    """Adam's rate."""
    ema_decay: float = 0.999
    """Decay per update of an exponential moving average of the weights: the average is validated and saved, the
    optimizer updates the weights themselves. 0: no average."""
    init_from: str | Path | None = None
    """Driver whose weights training starts from, such as the folder of a run. If its core is another one, only the
    encoder and the action head are taken over."""
    freeze_encoder_from: str | Path | None = None
    """Driver whose encoder is taken over and frozen, such as expert or the folder of a run: the features of all frames
    are computed once, which makes training many times faster."""
    precision: str = "auto"
    """auto: bf16-mixed on a GPU, 32-true on a CPU; or a precision of lightning-fabric."""

    def __post_init__(self) -> None:
        _paths_as_text(self, "init_from", "freeze_encoder_from")

    def check(self) -> None:
        """Check the settings.

        Raises:
            ValueError: A setting is outside its range.
        """
        _require_positive(self, "learning_rate", "0.001 is usual")
        if not 0 <= self.ema_decay < 1:
            raise ValueError(f"ema_decay must lie in [0, 1), got {self.ema_decay}; 0.999 is usual, 0 is none.")


@dataclass(frozen=True)
class EvalConfig:
    """The closed-loop validation, which picks the best checkpoint."""

    validation_tracks: str = "val-5"
    """Tracks of the closed-loop validation: the checkpoint with the best mean - 0.5 sd of returns is kept."""

    def check(self) -> None:
        """Raises ValueError for unknown tracks."""
        track_seeds(self.validation_tracks)


@dataclass(frozen=True)
class CloningConfig:
    """Settings that `train` and `dagger` have in common."""

    driver: DriverConfig = field(default_factory=lambda: DriverConfig(residual=True))
    data: DataConfig = field(default_factory=DataConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    validation: EvalConfig = field(default_factory=EvalConfig)
    seed: int = 0
    """Seed of weights, order, dropout and every other draw."""
    tensorboard: bool = False
    """Write the metrics for TensorBoard too (needs the extra `tensorboard`)."""

    def check(self) -> None:
        """Check the settings.

        Raises:
            ValueError: The settings cannot be trained with.
        """
        for part in (self.driver, self.data, self.optim, self.validation):
            part.check()
        _require_at_least(self, seed=0)
        if self.driver.core != "cnn" and self.data.sequence_length < SHORTEST_SEQUENCE:
            raise ValueError(
                f"sequence_length must be at least {SHORTEST_SEQUENCE} for core {self.driver.core!r}, "
                f"got {self.data.sequence_length}; cnn alone may see single frames."
            )
        if self.optim.freeze_encoder_from and self.data.augment:
            raise ValueError(
                f"augment changes images, which a frozen encoder sees once, got {self.data.augment}; "
                "train end to end, or augment when the encoder is trained."
            )


@dataclass(frozen=True)
class TrainConfig(CloningConfig):
    """Settings of `train`: behaviour cloning on recorded episodes. Control and frame shape are the dataset's."""

    epochs: int = 12
    """Epochs over the demonstrations."""
    validation_fraction: float = 0.1
    """Fraction of the recorded tracks kept out of training, on which accuracy is measured."""
    validate_every: int = 5
    """Epochs between two closed-loop validations; the last epoch is always validated."""

    def check(self) -> None:
        """Check the settings.

        Raises:
            ValueError: The settings cannot be trained with.
        """
        super().check()
        _require_at_least(self, epochs=1, validate_every=1)


def paper_recipe() -> TrainConfig:
    """The settings of the NAC paper for CarRacing (Table 4), for `--recipe paper`.

    Three convolutions with dropout 0.2, NAC with 64 features and 16 heads (the default of the NAC cores), 64 dense
    units, Adam at 1e-4, batches of 32, 100 epochs; no flips, no weights of classes or frames, no moving average. One
    difference: the table names no sequence length, and the published accuracies are those of sequences of one frame
    (docs/cloning.md), on which a memory learns nothing; sequences here have the least length, 16 frames.

    Returns:
        The config; a user's own options replace its values.
    """
    return TrainConfig(
        driver=DriverConfig(core="nac-exact", encoder="paper", residual=False, d_model=64, dense=64, dropout=0.2),
        data=DataConfig(sequence_length=SHORTEST_SEQUENCE, batch_size=32, horizontal_flip=False),
        optim=OptimConfig(learning_rate=1e-4, ema_decay=0.0),
        epochs=100,
        validation_fraction=0.1,
    )


@dataclass(frozen=True)
class DaggerConfig(CloningConfig):
    """Settings of `dagger`. The control is that of `driver`."""

    renderer: RendererName = "fast"
    """Renderer of episodes and validations; reported scores are measured with gymnasium's."""
    max_steps: int = 1000
    """Frames before an episode is truncated."""
    environment: str = EnvConfig.environment
    """The track environment: a name in ENVIRONMENTS."""
    rounds: int = 8
    """Rounds with the mixture policy, after round 0 of the expert alone."""
    initial_episodes: int = 20
    """Episodes of the expert in round 0."""
    episodes: int = 12
    """Episodes in each later round."""
    first_track: int = 0
    """Training track of the first episode; each episode drives the next one."""
    noise: float = 0.15
    """Fraction of frames of round 0 whose executed action is random while the label stays the expert's."""
    noise_hold: float = 4.0
    """Mean number of frames that one random action is held."""
    beta: float = 0.2
    """Probability that the expert, not the learner, drives through a switch interval of the mixture policy."""
    switch_interval: int = 25
    """Frames before the mixture policy draws again between expert and learner."""
    initial_epochs: int = 6
    """Epochs over the episodes of round 0."""
    epochs: int = 2
    """Epochs over all episodes so far in each later round."""
    final_learning_rate: float = 2e-4
    """Adam's rate in the last round; in between it falls by the same factor from round to round."""

    def check(self) -> None:
        """Check the settings.

        Raises:
            ValueError: The settings cannot be trained with.
        """
        super().check()
        _require_positive(self, "final_learning_rate", "0.0002 is usual")
        _require_at_least(self, initial_episodes=1, episodes=1, rounds=0, initial_epochs=1, epochs=1, max_steps=1)
        if self.data.sequence_length > self.max_steps:
            raise ValueError(
                f"sequence_length must not exceed max_steps ({self.max_steps} frames), "
                f"got {self.data.sequence_length}; choose a shorter one."
            )
        tracks, last = len(SPLITS["train"]), self.first_track + self.initial_episodes + self.rounds * self.episodes - 1
        if self.first_track < 0 or last >= tracks:
            raise ValueError(
                f"first_track, initial_episodes, rounds and episodes must name tracks 0 to {tracks - 1}, "
                f"got {self.first_track} to {last}; start lower or drive fewer."
            )
        _ = self.env, self.noise_config, self.mixture  # they check their own numbers

    @property
    def env(self) -> EnvConfig:
        """The environment of the learner."""
        control: Any = self.driver.control
        return EnvConfig(control, self.data.mask_bar, self.max_steps, self.renderer, self.environment)

    @property
    def noise_config(self) -> NoiseConfig:
        """The action noise of round 0."""
        return NoiseConfig(self.noise, self.noise_hold)

    @property
    def mixture(self) -> MixtureConfig:
        """The mixture policy of the later rounds."""
        return MixtureConfig(self.beta, self.switch_interval)

    def tasks(self, number: int) -> list[tuple[int, int]]:
        """(episode, track) of the episodes of round `number`."""
        first = 0 if number == 0 else self.initial_episodes + (number - 1) * self.episodes
        count = self.initial_episodes if number == 0 else self.episodes
        return [(i, SPLITS["train"][self.first_track + i]) for i in range(first, first + count)]

    def rate(self, number: int) -> float:
        """Adam's rate in round `number`."""
        start = self.optim.learning_rate
        return start * (self.final_learning_rate / start) ** (number / max(1, self.rounds))

    def round_epochs(self, number: int) -> range:
        """Numbers of the epochs of round `number`."""
        first = 1 if number == 0 else 1 + self.initial_epochs + (number - 1) * self.epochs
        count = self.initial_epochs if number == 0 else self.epochs
        return range(first, first + count)


@dataclass(frozen=True)
class PPOConfig:
    """Settings of `ppo`, under the names of stable-baselines3 where it has them."""

    control: Control = "discrete"
    """discrete (nothing, right, left, gas, brake) or continuous (steer, gas, brake)."""
    renderer: RendererName = "fast"
    """Renderer of training and validation; reported scores are measured with gymnasium's."""
    seed: int = 0
    """Seed of weights, tracks and noise."""
    init_from: str | Path | None = None
    """Driver of core cnn to start from, such as the folder of a run of `nac-drive dagger --core cnn`; without one,
    random weights."""
    init_logit_scale: float = 1.0
    """Discrete: factor of the logits of `init_from`; above 1, PPO samples the driver's own action more often."""
    action_noise: float = 0.1
    """Continuous: standard deviation of the noise that PPO adds to steer, gas and brake at the start."""
    total_timesteps: int = 240_000
    """Frames that PPO drives, over all environments."""
    n_envs: int = 8
    """Environments that PPO drives at the same time, spread over as many processes as there are cores."""
    n_steps: int = 512
    """Frames per environment between two updates."""
    value_warmup_steps: int = 12_288
    """Frames during which only the value network learns."""
    batch_size: int = 512
    """Frames per update."""
    n_epochs: int = 3
    """Epochs over each rollout."""
    learning_rate: float = 1e-4
    """Adam's rate at the start; it falls linearly to zero."""
    clip_range: float = 0.1
    """Bound of an update: the probability of an action changes by a factor within 1 ± clip_range."""
    gamma: float = 0.99
    """Discount of the reward per frame."""
    gae_lambda: float = 0.95
    """Decay of generalised advantage estimation per frame: 0 trusts the value network, 1 the observed rewards."""
    ent_coef: float = 0.0
    """Weight of the entropy bonus."""
    reward_scale: float = 0.1
    """Native rewards are multiplied by this, in training only."""
    crash_penalty: float = 30.0
    """Native reward points subtracted at a crash, in training only."""
    off_road_penalty: float = 1.0
    """Native reward points subtracted for every frame with three or four wheels off the road, in training only: a tile
    missed there costs 30 points at the end of the episode, too late for a discounted reward."""
    augment: tuple[str, ...] = ()
    """Perturbations of images, such as colour:2 shadows:1+gaussian-noise:1: PPO drives every episode under one of them
    or clean, all equally likely, with a draw of its own (domain randomisation)."""
    validate_every: int = 24_576
    """Frames between two validations."""
    validation_tracks: str = "val-10"
    """Tracks whose mean - 0.5 sd of native returns picks the best checkpoint."""

    def __post_init__(self) -> None:
        _paths_as_text(self, "init_from")

    def check(self) -> None:
        """Check the settings.

        Raises:
            ValueError: The settings cannot be trained with.
        """
        track_seeds(self.validation_tracks)
        Augmentation(self.augment)
        _require_at_least(
            self, seed=0, total_timesteps=0, n_envs=1, n_steps=2, value_warmup_steps=0, batch_size=2, n_epochs=1,
            validate_every=1,
        )  # fmt: skip
        for name in ("init_logit_scale", "action_noise", "learning_rate", "clip_range", "reward_scale"):
            _require_positive(self, name, f"the default is {getattr(type(self), name)}")
        for name in ("gamma", "gae_lambda"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must lie in [0, 1], got {getattr(self, name)}.")


def core_settings(pairs: Sequence[str]) -> dict[str, Any]:
    """Settings of a core from the words of --core-args.

    Args:
        pairs: Words KEY=VALUE; values are read as YAML.

    Raises:
        ValueError: For a word of another form.
    """
    settings = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise ValueError(f"core-args must be KEY=VALUE, got {pair!r}; such as --core-args top_k=4 window=64.")
        try:
            settings[key] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise ValueError(f"core-args: the value of {pair!r} is neither a number nor a word.") from None
    return settings


def _paths_as_text(config: Any, *names: str) -> None:
    """Settings are written to config.yaml and compared there as text."""
    for name in names:
        if isinstance(getattr(config, name), os.PathLike):
            object.__setattr__(config, name, os.fspath(getattr(config, name)))


def _require_at_least(config: Any, **least: int) -> None:
    for name, number in least.items():
        if getattr(config, name) < number:
            raise ValueError(f"{name} must be at least {number}, got {getattr(config, name)}.")


def _require_positive(config: Any, name: str, usual: str) -> None:
    value = getattr(config, name)
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be positive and finite, got {value}; {usual}.")
