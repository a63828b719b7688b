"""PPO: a driver without memory learns by driving (stable-baselines3), from a cloned driver or from random weights.

PPO: Schulman et al., arXiv 1707.06347. PPO from a clone of a privileged expert: Chen et al., "Learning by Cheating",
arXiv 1912.12294. PPO sees the native reward, scaled; an episode also ends at a crash (`EventDetector`), so that leaving
the road costs the reward that would have followed.

A run goes on bit for bit as if never interrupted. An environment in the middle of an episode cannot be saved, so at
every checkpoint all environments begin a new episode, and all random numbers are drawn anew from the seed and the
number of frames, with and without an interruption.
"""

from __future__ import annotations

import math
import os
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from safetensors.torch import save_file
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.policies import ActorCriticCnnPolicy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.utils import set_random_seed
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv
from torch import Tensor, nn

from nac_drive.data_collection.experts import driver_hash, resolve_driver, trained_env
from nac_drive.data_collection.processes import default_workers, worker_pool
from nac_drive.envs import EnvConfig, ProcessVectorEnv, track_seeds
from nac_drive.policies import Driver, DriverConfig, save_driver
from nac_drive.policies.tensors import read_tensors
from nac_drive.storage.lock import locked
from nac_drive.training.finite import require_finite_weights
from nac_drive.training.ppo_config import PPOConfig
from nac_drive.training.ppo_env import training_env
from nac_drive.training.run_folder import RunFolder
from nac_drive.training.sb3_vec_env import SB3VecEnv
from nac_drive.training.training_state import load_training_state, save_training_state
from nac_drive.training.validation import Report, closed_loop

_POLICY = "policy.safetensors"


def ppo(
    config: PPOConfig,
    folder: str | os.PathLike[str],
    *,
    resume: bool = False,
    report: Report = lambda row: None,
) -> Path:
    """Train a driver of core cnn by PPO.

    Args:
        config: Settings.
        folder: The folder of the run.
        resume: Go on from the last checkpoint, bit for bit as if never interrupted. `total_timesteps` may have grown;
            the learning rate then falls to zero over the new number.
        report: Called with each row of metrics.jsonl, one per validation, of which `seconds` is the time of driving and
            learning so far; before it, with a dict per rollout (timesteps, total_timesteps, return: the mean of
            the last episodes, or None) and per validation episode (validation_episode, validation_episodes, return).

    Returns:
        The folder of the best checkpoint.

    Raises:
        FileExistsError: If the run exists and `resume` is off.
        FileNotFoundError: If there is no run to resume.
        ValueError: If `init_from` has memory or drives another environment, or the run was started with other settings
            or by version 0.1.
        DivergedError: If a weight becomes NaN or infinite; the last checkpoint is kept.
        FolderInUseError: If another process writes to the folder.
    """
    config.check()
    folder = Path(folder)
    RunFolder.require(folder, resume)
    env_config = EnvConfig(control=config.control, renderer=config.renderer, perturb=config.perturb)
    torch.manual_seed(config.seed)
    actor = _actor(config, env_config)
    resolved = asdict(config)
    if config.init_from:
        resolved["init_sha256"] = driver_hash(config.init_from, env_config)
    envs = [partial(training_env, env_config, config, rank) for rank in range(config.n_envs)]
    model = _build(config, actor, DummyVecEnv(envs))  # for their spaces; processes are started when PPO drives
    with locked(folder):
        if resume:
            run = RunFolder.open(folder)
            run.require_config(resolved, moved=("init_from",), grown=("total_timesteps",))
            if last := run.rewind():
                _load(model, last / "training_state")
            run.keep_config(resolved)
        else:
            run = RunFolder.create(folder, resolved)
        validation = _Validation(run, config, actor, env_config, report)
        validation.validate_once(model)
        if model.num_timesteps < config.total_timesteps:
            vec_env = SB3VecEnv(ProcessVectorEnv(envs, min(config.n_envs, default_workers())))
            try:
                _learn(model, config, vec_env, validation)
            finally:
                vec_env.close()
            validation.validate_once(model)
        best = run.checkpoint_folder("best")
    assert best is not None
    return best


def _load(model: PPO, folder: Path) -> None:
    """Load weights, moments and the number of frames."""
    weights = dict(model.policy.named_parameters())
    for name, saved in read_tensors(folder / _POLICY, weights, "config.yaml").items():
        weights[name].data.copy_(saved)
    model.num_timesteps = load_training_state(folder, model.policy.optimizer)["step"]


def _learn(model: PPO, config: PPOConfig, vec_env: VecEnv, validation: _Validation) -> None:
    """Drive and learn up to `total_timesteps`.

    Raises:
        DivergedError: A weight is not finite.
    """
    model.set_env(vec_env)
    try:
        model.learn(config.total_timesteps - model.num_timesteps, callback=validation, reset_num_timesteps=False)
    except (ValueError, RuntimeError):  # of a distribution whose parameters are NaN
        _require_finite(model)
        raise
    _require_finite(model)


def _require_finite(model: Any) -> None:
    require_finite_weights(f"frame {model.num_timesteps:,}", model.policy.named_parameters())


# The environment and the model


def _actor(config: PPOConfig, env: EnvConfig) -> Driver:
    if not config.init_from:
        return Driver(DriverConfig(core="cnn", encoder="compact", dropout=0.0, control=env.control))
    driver = resolve_driver(config.init_from, env)
    if not isinstance(driver, Driver) or driver.config.core != "cnn":
        core = driver.config.core if isinstance(driver, Driver) else config.init_from
        raise ValueError(f"init_from must name a driver of core cnn, got {core}: PPO here trains without memory.")
    trained = trained_env(driver)
    if trained and trained.mask_bar:
        raise ValueError(
            f"init_from {config.init_from!r} was trained without the status bar; pass one that was trained with it."
        )
    if driver.config.control == "discrete":
        driver.action_head.out.weight.data *= config.init_logit_scale
        driver.action_head.out.bias.data *= config.init_logit_scale
    return driver


class _Encoder(BaseFeaturesExtractor):
    """The encoder of a driver where stable-baselines3 expects it."""

    def __init__(self, observation_space: gym.Space, driver: Driver):
        super().__init__(observation_space, driver.config.d_model)
        self.driver = driver

    def forward(self, observations: Tensor) -> Tensor:
        """(B, 3, 96, 96) in [0, 1] -> (B, d)."""
        return self.driver.features(observations.permute(0, 2, 3, 1))


class _Heads(nn.Module):
    """The inputs of the action head and of the value network.

    The value network sends no gradient back into the actor's features, which would harm the cloned driver.
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
    """stable-baselines3's policy around a driver, whose output is logits (discrete) or means (continuous)."""

    def _build_mlp_extractor(self) -> None:
        encoder: Any = self.features_extractor
        self.mlp_extractor: Any = _Heads(encoder.driver)

    def _build(self, lr_schedule: Any) -> None:
        super()._build(lr_schedule)
        encoder: Any = self.features_extractor
        self.action_net = encoder.driver.action_head
        settings: dict[str, Any] = {"lr": lr_schedule(1), **self.optimizer_kwargs}
        self.optimizer = self.optimizer_class(self.parameters(), **settings)


def _build(config: PPOConfig, actor: Driver, vec_env: VecEnv) -> PPO:
    model = PPO(
        _Policy,
        vec_env,
        learning_rate=lambda remaining: config.learning_rate * remaining,
        n_steps=config.n_steps,
        batch_size=config.batch_size,
        n_epochs=config.n_epochs,
        gamma=config.gamma,
        gae_lambda=config.gae_lambda,
        clip_range=config.clip_range,
        ent_coef=config.ent_coef,
        seed=config.seed,
        device="cpu",
        policy_kwargs={
            "features_extractor_class": _Encoder,
            "features_extractor_kwargs": {"driver": actor},
            "ortho_init": False,
            "log_std_init": math.log(config.action_noise),
        },
    )
    model.set_logger(Logger(None, []))  # the run folder holds the metrics; the default makes a temporary folder
    return model


# Validation and checkpoints


class _Validation(BaseCallback):
    """Frees the actor after the value warm-up; saves and validates the policy every so many frames, and starts over."""

    def __init__(self, run: RunFolder, config: PPOConfig, actor: Driver, env_config: EnvConfig, report: Report):
        super().__init__()
        self._run, self._config, self._actor = run, config, actor
        self._env_config, self._report = env_config, report
        self._since = time.perf_counter()
        """The moment when driving and learning began after the last validation."""

    def _on_training_start(self) -> None:
        self._since = time.perf_counter()

    def _on_rollout_start(self) -> None:
        _require_finite(self.model)
        self._actor.requires_grad_(self.num_timesteps >= self._config.value_warmup_steps)
        last = self._run.rows()[-1]["step"]
        if self.num_timesteps - last >= self._config.validate_every:
            self.validate(self.model)
            last = self.num_timesteps
        if self.num_timesteps == last:
            self._start_over()

    def _start_over(self) -> None:
        """Begin new episodes and draw all random numbers from here: a run that is resumed here does the same."""
        model: Any = self.model
        (seed,) = np.random.SeedSequence((self._config.seed, self.num_timesteps)).generate_state(1)
        set_random_seed(int(seed))
        model.env.env_method("start_at", self.num_timesteps)
        model._last_obs = model.env.reset()
        model._last_episode_starts = np.ones(model.n_envs, dtype=bool)

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        episodes = [episode["r"] for episode in self.model.ep_info_buffer or []]
        self._report({
            "timesteps": self.num_timesteps,
            "total_timesteps": self._config.total_timesteps,
            "return": float(np.mean(episodes)) if episodes else None,
        })  # fmt: skip

    def validate_once(self, model: Any) -> None:
        """Validate unless the last row is of this very step."""
        rows = self._run.rows()
        if not rows or rows[-1]["step"] < model.num_timesteps:
            self.validate(model)

    def validate(self, model: Any) -> None:
        """Drive the validation tracks; log the row and save the checkpoint of this step."""
        step, rows = model.num_timesteps, self._run.rows()
        seconds = rows[-1].get("seconds", 0.0) + time.perf_counter() - self._since if rows else 0.0
        driver = Driver(self._actor.config).eval()  # draws random numbers: those of PPO go on from there
        driver.load_state_dict(self._actor.state_dict())
        tracks = self._config.validation_tracks

        def write(folder: Path) -> None:
            meta = {"step": step, "training": asdict(self._config)}
            save_driver(folder, driver, env=asdict(self._env_config), meta=meta)
            save_training_state(folder / "training_state", model.policy.optimizer, {"step": step})
            weights = {name: parameter.data.contiguous() for name, parameter in model.policy.named_parameters()}
            save_file(weights, folder / "training_state" / _POLICY)

        with worker_pool(min(len(track_seeds(tracks)), default_workers())) as pool:
            row = {"step": step, **closed_loop(driver, self._env_config, tracks, pool, self._report)}
        row["seconds"] = seconds
        self._run.finish_step(row, write)
        self._report(row)
        self._since = time.perf_counter()
