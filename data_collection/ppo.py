"""Training the expert: the actor learns from the controller (`warm_start.py`), then PPO (stable-baselines3) drives.

PPO: Schulman et al., arXiv 1707.06347. The reward that PPO sees is the native one, scaled; an episode also ends at a
crash (`EventDetector`), so that leaving the road costs what would have come after it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from safetensors.torch import load_model, save_model
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.policies import ActorCriticCnnPolicy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, MlpExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv
from torch import Tensor

from data_collection.expert import Expert, ExpertNetwork, ExpertVision, save_expert
from data_collection.processes import default_workers, map_in_processes, one_thread
from data_collection.run_folder import RunFolder, load_training_state, save_training_state
from data_collection.sb3_vec_env import SB3VecEnv
from data_collection.warm_start import WarmStartConfig, warm_start
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

Report = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class ExpertConfig:
    """Settings of `train_expert`. The shipped expert was made with others (docs/expert.md)."""

    control: Control = "discrete"
    """Five actions, or steer, gas and brake."""
    renderer: RendererName = "fast"
    """Who draws the frames that it learns from and is validated on; the tests of docs/expert.md use gymnasium's."""
    seed: int = 0
    """Seed of weights, tracks and noise."""
    warm_start: WarmStartConfig = field(default_factory=WarmStartConfig)
    """How the actor learns from the controller before PPO."""
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

    `report` gets a dict per event: `phase` (warm_start, ppo, validation) with its figures; validations are also rows of
    metrics.jsonl. Raises FileExistsError for an existing folder without `resume`.
    """
    if resume:
        run = RunFolder.open(folder)
        run.require_config(asdict(config))
    else:
        run = RunFolder.create(folder, asdict(config))
    last = run.checkpoint_folder("last")
    torch.manual_seed(config.seed)
    env_config = EnvConfig(control=config.control, renderer=config.renderer)
    envs = [partial(_training_env, env_config, config, rank) for rank in range(config.envs)]
    model = _build(config, DummyVecEnv(envs))  # for their spaces; processes are started when PPO drives
    if last is not None:
        load_model(model.policy, last / "training_state" / "policy.safetensors")
        model.num_timesteps = load_training_state(last / "training_state", model.policy.optimizer)["step"]
    elif config.warm_start.laps:
        network = warm_start(config.warm_start, env_config, config.seed, report)
        policy: Any = model.policy
        policy.features_extractor.layers.load_state_dict(network.vision.state_dict())
        policy.action_net.load_state_dict(network.action.state_dict())
    if resume:
        run.drop_rows_after(model.num_timesteps if last else -1)
        if last and run.last_row_is_best():  # killed between the checkpoint and its mark
            run.mark_best(last)
    validation = _Validation(run, config, env_config, report)
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
        reward = (float(reward) - penalty) * self._config.reward_scale
        return self._effect(observation), reward, terminated, truncated, info


def _training_env(env_config: EnvConfig, config: ExpertConfig, rank: int) -> gym.Env:
    rng = np.random.default_rng((config.seed, 1, rank))
    return _TrainingEnv(Monitor(make_env(env_config, crash="terminate")), rng, config)


class _Vision(BaseFeaturesExtractor):
    """`ExpertVision` where stable-baselines3 expects it."""

    def __init__(self, observation_space: gym.Space):
        super().__init__(observation_space, ExpertVision.features_dim)
        self.layers = ExpertVision()

    def forward(self, observations: Tensor) -> Tensor:
        return self.layers(observations)


class _Heads(MlpExtractor):
    """The value network reads the actor's features and sends no gradient back: it must not disturb the clone."""

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        return self.forward_actor(features), self.forward_critic(features)

    def forward_critic(self, features: Tensor) -> Tensor:
        return super().forward_critic(features.detach())


class _Policy(ActorCriticCnnPolicy):
    """stable-baselines3's policy on shared features with `_Heads`."""

    def _build_mlp_extractor(self) -> None:
        self.mlp_extractor = _Heads(self.features_dim, self.net_arch, self.activation_fn, self.device)


def _build(config: ExpertConfig, vec_env: VecEnv) -> PPO:
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
            "net_arch": {"pi": [], "vf": [64]},
            "ortho_init": False,
            "log_std_init": -1.5,
        },
    )


# Validation and checkpoints


class _Validation(BaseCallback):
    """Frees the actor after the value warm-up; saves and validates the policy every so many frames."""

    def __init__(self, run: RunFolder, config: ExpertConfig, env_config: EnvConfig, report: Report):
        super().__init__()
        self._run, self._config, self._env_config, self._report = run, config, env_config, report

    def _on_rollout_start(self) -> None:
        policy: Any = self.model.policy
        for module in (policy.features_extractor, policy.action_net):
            module.requires_grad_(self.num_timesteps >= self._config.value_warmup_steps)
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
        step = model.num_timesteps
        network = ExpertNetwork(self._config.control)
        network.vision.load_state_dict(model.policy.features_extractor.layers.state_dict())
        network.action.load_state_dict(model.policy.action_net.state_dict())

        def write(folder: Path) -> None:
            save_expert(folder, network, self._env_config, {"step": step, "training": asdict(self._config)})
            save_training_state(folder / "training_state", model.policy.optimizer, {"step": step})
            save_model(model.policy, str(folder / "training_state" / "policy.safetensors"))

        seeds = track_seeds(self._config.validation_tracks)
        validate = partial(_validation_return, Expert(network, self._env_config, {}), self._env_config)
        returns = list(map_in_processes(validate, seeds, min(len(seeds), default_workers())))
        score = float(np.mean(returns) - 0.5 * np.std(returns))
        row = {
            "step": step, "score": score, "mean": float(np.mean(returns)), "sd": float(np.std(returns)),
            "minimum": float(np.min(returns)), "returns": returns,
        }  # fmt: skip
        self._run.log(row)  # before the checkpoint: a row without one is repeated, a checkpoint without its row is not
        checkpoint = self._run.checkpoint(step, write)
        if self._run.last_row_is_best():
            self._run.mark_best(checkpoint)
        self._report({"phase": "validation", **row})


def _validation_return(expert: Expert, env_config: EnvConfig, seed: int) -> float:
    with one_thread():
        return rollout(make_env(env_config), expert, seed).episode_return
