"""Training the expert: a driver without memory, cloned from a teacher or new, drives on by PPO (stable-baselines3).

PPO: Schulman et al., arXiv 1707.06347. A start from a clone of a privileged teacher: Chen et al., "Learning by
Cheating", arXiv 1912.12294. The reward that PPO sees is the native one, scaled; an episode also ends at a crash
(`EventDetector`), so that leaving the road costs what would have come after it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from safetensors.torch import load_file, save_file
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.policies import ActorCriticCnnPolicy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv
from torch import Tensor, nn

from data_collection.drivers import driver_hash, resolve_driver, trained_env
from data_collection.processes import default_workers, map_in_processes, one_thread
from data_collection.run_folder import RunFolder, load_training_state, save_training_state
from data_collection.sb3_vec_env import SB3VecEnv
from envs import (
    SPLITS,
    Augmentation,
    Control,
    EnvConfig,
    ProcessVectorEnv,
    RendererName,
    make_env,
    rollout,
    track_seeds,
)
from envs.telemetry import OFF_ROAD_WHEELS
from policies import Driver, DriverConfig, save_driver

Report = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class ExpertConfig:
    """Settings of `train_expert`."""

    control: Control = "discrete"
    """Five actions, or steer, gas and brake."""
    renderer: RendererName = "fast"
    """Who draws the frames that it learns from and is validated on; the tests of docs/expert.md use gymnasium's."""
    seed: int = 0
    """Seed of weights, tracks and noise."""
    init: str = ""
    """Driver of core cnn to start from, such as the folder of a run of `nac-drive dagger --core cnn`; empty: random
    weights."""
    sharpness: float = 1.0
    """Five actions: the logits of `init` are multiplied by this before PPO samples from them, to explore around the
    driver instead of around its uncertainty."""
    action_noise: float = 0.1
    """Continuous control: standard deviation of what PPO adds to steer, gas and brake at the start."""
    steps: int = 240_000
    """Frames that PPO drives, over all environments."""
    envs: int = 8
    """Environments that PPO drives at the same time, spread over as many processes as there are cores."""
    rollout_steps: int = 512
    """Frames per environment between two updates."""
    value_warmup_steps: int = 12_288
    """Frames during which only the value network learns."""
    batch_size: int = 512
    """Frames per update."""
    epochs: int = 3
    """Passes over each rollout."""
    learning_rate: float = 1e-4
    """Adam's rate at the start; it falls linearly to zero."""
    clip_range: float = 0.1
    """How far an update may move the probability of an action: by a factor within 1 ± this."""
    gamma: float = 0.99
    """Discount of the reward per frame."""
    gae_lambda: float = 0.95
    """Decay of generalised advantage estimation per frame: 0 trusts the value network, 1 the observed rewards."""
    entropy: float = 0.0
    """Weight of the entropy bonus."""
    reward_scale: float = 0.1
    """Native rewards are multiplied by this, in training only."""
    crash_penalty: float = 30.0
    """Native reward points taken off at a crash, in training only."""
    off_road_penalty: float = 1.0
    """Native reward points taken off for every frame with three wheels or four off the road, in training only: a tile
    that is missed there costs 30 points at the end of the lap, which no discounted reward would tell."""
    augment: tuple[str, ...] = ()
    """Perturbations of pictures, such as colour:2 shadows:1+gaussian-noise:1: PPO drives every episode under one of
    them or clean, all equally likely, with a draw of its own (domain randomisation)."""
    validate_every: int = 24_576
    """Frames between two validations."""
    validation_tracks: str = "val-10"
    """Tracks whose mean - 0.5 sd of native returns picks the best checkpoint."""

    def __post_init__(self) -> None:
        track_seeds(self.validation_tracks)  # a bad name fails here, before laps are driven
        Augmentation(self.augment)


def train_expert(
    config: ExpertConfig, folder: Path, *, resume: bool = False, report: Report = lambda row: None
) -> Path:
    """Train (or go on training) an expert in the run folder `folder`; returns the folder of the best checkpoint.

    The expert is a `Driver` of core cnn. `report` gets a dict per event: `phase` (ppo, validation) with its figures;
    validations are also rows of metrics.jsonl, `seconds` of which counts driving and learning alone.

    Raises FileExistsError for an existing folder without `resume`, ValueError for an `init` that has memory or that
    drives another environment.
    """
    env_config = EnvConfig(control=config.control, renderer=config.renderer)
    torch.manual_seed(config.seed)
    actor = _actor(config, env_config)
    resolved = asdict(config)
    if config.init:
        resolved["init_sha256"] = driver_hash(config.init, env_config)
    if resume:
        run = RunFolder.open(folder)
        run.require_config(resolved)
    else:
        run = RunFolder.create(folder, resolved)
    last = run.checkpoint_folder("last")
    envs = [partial(_training_env, env_config, config, rank) for rank in range(config.envs)]
    model = _build(config, actor, DummyVecEnv(envs))  # for their spaces; processes are started when PPO drives
    if last is not None:
        saved = load_file(last / "training_state" / "policy.safetensors")
        for name, parameter in model.policy.named_parameters():
            parameter.data.copy_(saved[name])
        model.num_timesteps = load_training_state(last / "training_state", model.policy.optimizer)["step"]
    if resume:
        run.drop_rows_after(model.num_timesteps if last else -1)
        if last and run.last_row_is_best():  # killed between the checkpoint and its mark
            run.mark_best(last)
    validation = _Validation(run, config, actor, env_config, report)
    validation.validate_once(model)
    if model.num_timesteps < config.steps:
        vec_env = SB3VecEnv(ProcessVectorEnv(envs, min(config.envs, default_workers())))
        try:
            model.set_env(vec_env)
            model.learn(config.steps - model.num_timesteps, callback=validation, reset_num_timesteps=False)
        finally:
            vec_env.close()
        validation.validate_once(model)
    best = run.checkpoint_folder("best")
    assert best is not None
    return best


# The environment and the model


class _TrainingEnv(gym.Wrapper):
    """Draws a training track and an augmentation at every reset, scales the reward, takes the crash penalty off."""

    def __init__(self, env: gym.Env, rng: np.random.Generator, config: ExpertConfig):
        super().__init__(env)
        self._rng, self._config = rng, config
        self._augmentation = Augmentation(config.augment)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        observation, info = self.env.reset(seed=int(self._rng.choice(SPLITS["train"])), options=options)
        self._effect = self._augmentation.draw(self._rng, observation.shape[:2])
        return self._effect(observation), info

    def step(self, action):
        observation, reward, terminated, truncated, info = self.env.step(action)
        penalty = self._config.crash_penalty if info["crash"] else 0.0
        if info["wheels_off_road"] >= OFF_ROAD_WHEELS:
            penalty += self._config.off_road_penalty
        reward = (float(reward) - penalty) * self._config.reward_scale
        return self._effect(observation), reward, terminated, truncated, info


def _training_env(env_config: EnvConfig, config: ExpertConfig, rank: int) -> gym.Env:
    rng = np.random.default_rng((config.seed, 1, rank))
    return _TrainingEnv(Monitor(make_env(env_config, crash="terminate")), rng, config)


def _actor(config: ExpertConfig, env: EnvConfig) -> Driver:
    if not config.init:
        return Driver(DriverConfig(core="cnn", vision="compact", dropout=0.0, control=env.control))
    driver = resolve_driver(config.init, env)
    if not isinstance(driver, Driver) or driver.config.core != "cnn":
        core = driver.config.core if isinstance(driver, Driver) else config.init
        raise ValueError(f"init must name a driver of core cnn, got {core}: PPO here trains without memory.")
    trained = trained_env(driver)
    if trained and trained.mask_bar:
        raise ValueError(f"init {config.init!r} was trained without the status bar; pass one that was trained with it.")
    if driver.config.control == "discrete":
        driver.head.out.weight.data *= config.sharpness
        driver.head.out.bias.data *= config.sharpness
    return driver


class _Vision(BaseFeaturesExtractor):
    """The vision of a driver where stable-baselines3 expects it."""

    def __init__(self, observation_space: gym.Space, driver: Driver):
        super().__init__(observation_space, driver.config.d_model)
        self.driver = driver

    def forward(self, observations: Tensor) -> Tensor:
        """(B, 3, 96, 96) in [0, 1] -> (B, d)."""
        return self.driver.vision(observations.permute(0, 2, 3, 1))


class _Heads(nn.Module):
    """What the action head and the value network read.

    The value network sends no gradient back into the actor's features: it must not disturb the clone.
    """

    def __init__(self, driver: Driver):
        super().__init__()
        self.driver = driver
        self.latent_dim_pi = self.latent_dim_vf = driver.config.d_model
        self.value = nn.Sequential(nn.Linear(self.latent_dim_vf, self.latent_dim_vf), nn.Tanh())

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        return self.forward_actor(features), self.forward_critic(features)

    def forward_actor(self, features: Tensor) -> Tensor:
        y, _ = self.driver.core(features[:, None], features.new_zeros(len(features), 1), ())
        return y[:, 0] + features if self.driver.config.residual else y[:, 0]

    def forward_critic(self, features: Tensor) -> Tensor:
        return self.value(features.detach())


class _Policy(ActorCriticCnnPolicy):
    """stable-baselines3's policy around a driver, whose output is the logits of five actions or the mean of three."""

    def _build_mlp_extractor(self) -> None:
        vision: Any = self.features_extractor
        self.mlp_extractor: Any = _Heads(vision.driver)

    def _build(self, lr_schedule: Any) -> None:
        super()._build(lr_schedule)
        vision: Any = self.features_extractor
        self.action_net = vision.driver.head
        settings: dict[str, Any] = {"lr": lr_schedule(1), **self.optimizer_kwargs}
        self.optimizer = self.optimizer_class(self.parameters(), **settings)


def _build(config: ExpertConfig, actor: Driver, vec_env: VecEnv) -> PPO:
    return PPO(
        _Policy,
        vec_env,
        learning_rate=lambda remaining: config.learning_rate * remaining,
        n_steps=config.rollout_steps,
        batch_size=config.batch_size,
        n_epochs=config.epochs,
        gamma=config.gamma,
        gae_lambda=config.gae_lambda,
        clip_range=config.clip_range,
        ent_coef=config.entropy,
        seed=config.seed,
        device="cpu",
        policy_kwargs={
            "features_extractor_class": _Vision,
            "features_extractor_kwargs": {"driver": actor},
            "ortho_init": False,
            "log_std_init": math.log(config.action_noise),
        },
    )


# Validation and checkpoints


class _Validation(BaseCallback):
    """Frees the actor after the value warm-up; saves and validates the policy every so many frames."""

    def __init__(self, run: RunFolder, config: ExpertConfig, actor: Driver, env_config: EnvConfig, report: Report):
        super().__init__()
        self._run, self._config, self._actor = run, config, actor
        self._env_config, self._report = env_config, report
        self._since = time.perf_counter()
        """When driving and learning began after the last validation."""

    def _on_training_start(self) -> None:
        self._since = time.perf_counter()

    def _on_rollout_start(self) -> None:
        self._actor.requires_grad_(self.num_timesteps >= self._config.value_warmup_steps)
        if self.num_timesteps - self._run.rows()[-1]["step"] >= self._config.validate_every:
            self.validate(self.model)

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        episodes = [episode["r"] for episode in self.model.ep_info_buffer or []]
        mean = float(np.mean(episodes)) if episodes else None
        self._report({"phase": "ppo", "step": self.num_timesteps, "steps": self._config.steps, "return": mean})

    def validate_once(self, model: Any) -> None:
        """Validate unless the last row already tells of this very step."""
        rows = self._run.rows()
        if not rows or rows[-1]["step"] < model.num_timesteps:
            self.validate(model)

    def validate(self, model: Any) -> None:
        step, rows = model.num_timesteps, self._run.rows()
        seconds = rows[-1].get("seconds", 0.0) + time.perf_counter() - self._since if rows else 0.0
        expert = Driver(self._actor.config).eval()
        expert.load_state_dict(self._actor.state_dict())

        def write(folder: Path) -> None:
            meta = {"step": step, "training": asdict(self._config)}
            save_driver(folder, expert, env=asdict(self._env_config), meta=meta)
            save_training_state(folder / "training_state", model.policy.optimizer, {"step": step})
            weights = {name: parameter.data.contiguous() for name, parameter in model.policy.named_parameters()}
            save_file(weights, folder / "training_state" / "policy.safetensors")

        seeds = track_seeds(self._config.validation_tracks)
        validate = partial(_validation_return, expert, self._env_config)
        returns = list(map_in_processes(validate, seeds, min(len(seeds), default_workers())))
        score = float(np.mean(returns) - 0.5 * np.std(returns))
        row = {
            "step": step, "score": score, "mean": float(np.mean(returns)), "sd": float(np.std(returns)),
            "minimum": float(np.min(returns)), "returns": returns, "seconds": seconds,
        }  # fmt: skip
        self._run.log(row)  # before the checkpoint: a row without one is repeated, a checkpoint without its row is not
        checkpoint = self._run.checkpoint(step, write)
        if self._run.last_row_is_best():
            self._run.mark_best(checkpoint)
        self._report({"phase": "validation", **row})
        self._since = time.perf_counter()


def _validation_return(expert: Driver, env_config: EnvConfig, seed: int) -> float:
    with one_thread():
        return rollout(make_env(env_config), expert, seed).episode_return
