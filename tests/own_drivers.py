"""Drivers as users bring them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3 import A2C, DQN, PPO
from stable_baselines3.common.vec_env import VecFrameStack

from nac_drive import plugins
from nac_drive.envs import EnvConfig, make_vec_env
from nac_drive.training.sb3_vec_env import SB3VecEnv

ALGORITHMS: dict[str, tuple[Any, dict[str, Any]]] = {
    "ppo": (PPO, {"n_steps": 4, "batch_size": 4, "n_epochs": 1}),
    "a2c": (A2C, {"n_steps": 2}),
    "dqn": (DQN, {"buffer_size": 8, "learning_starts": 2, "batch_size": 2}),
}


def brake(observation: np.ndarray) -> int:
    """Brake always."""
    return 4


class Brakes:
    """Brakes always, as an object."""

    def begin(self, env: gym.Env) -> None:
        return None

    def act(self, observation: np.ndarray, state: None, dt: float) -> tuple[np.int64, None]:
        return np.int64(4), None


class Weighs:
    """A network of torch as an object.

    Its logits are sums of colours of this frame and the last.
    """

    def __init__(self, seed: int = 0) -> None:
        self.layer = _linear(seed)

    def begin(self, env: gym.Env) -> torch.Tensor:
        return torch.zeros(3)

    def act(self, observation: np.ndarray, state: torch.Tensor, dt: float) -> tuple[int, torch.Tensor]:
        colours = torch.from_numpy(observation[60:70, 40:56]).float().mean(dim=(0, 1))
        with torch.no_grad():
            logits = self.layer(torch.cat([colours % 7 - 3, state % 5 - 2]))
        return int(logits.argmax()), colours


def _linear(seed: int) -> torch.nn.Linear:
    layer = torch.nn.Linear(6, 5)
    rng = np.random.default_rng(seed)
    layer.weight.data = torch.tensor(rng.standard_normal((5, 6)), dtype=torch.float32)
    layer.bias.data = torch.zeros(5)
    return layer


class Recurrent:
    """A model with a recurrent state.

    It brakes in every third frame, by what `predict` gave back.
    """

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = False
    ) -> tuple[Any, Any]:
        assert deterministic
        assert episode_start.shape == (1,)
        assert bool(episode_start[0]) == (state is None)
        count = 0 if state is None else state[0] + 1
        return np.array(4 if count % 3 == 0 else 3), (count,)


def worlds(env: EnvConfig, frames: int = 1) -> Any:
    """One environment for stable-baselines3, with stacked frames."""
    world = SB3VecEnv(make_vec_env(env, 1))
    return VecFrameStack(world, frames) if frames > 1 else world


def trained(algorithm: str = "ppo", env: EnvConfig | None = None, frames: int = 1, **settings: Any) -> Any:
    """A model after a few steps of training.

    Its actions change from frame to frame.
    """
    kind, keywords = ALGORITHMS[algorithm]
    policy = {"features_extractor_kwargs": {"features_dim": 8}} | settings
    env = env or EnvConfig(max_steps=20)
    model = kind("CnnPolicy", worlds(env, frames), policy_kwargs=policy, seed=0, device="cpu", **keywords)
    model.learn(4)
    last = model.policy.q_net.q_net[-1] if algorithm == "dqn" else model.policy.action_net
    if env.control == "discrete":  # no action may be the best one in every frame
        frame, scores = model.env.reset(), []
        for action in (3, 1, 3, 2, 3, 4, 3, 1) * 4:
            observation, _ = model.policy.obs_to_tensor(frame)
            with torch.no_grad():
                scores.append(
                    model.q_net(observation) if algorithm == "dqn"
                    else model.policy.get_distribution(observation).distribution.logits
                )  # fmt: skip
            frame = model.env.step(np.array([action]))[0]
        last.bias.data -= torch.cat(scores).median(dim=0).values
    return model


@contextmanager
def no_plugins() -> Iterator[None]:
    """No plug-in is loaded.

    Those that are loaded inside are gone afterwards.
    """
    modules = set(sys.modules)
    with patch.dict(os.environ), patch.dict(plugins._loaded, clear=True), patch.object(sys, "path", list(sys.path)):
        os.environ.pop(plugins.VARIABLE, None)
        yield
    for name in set(sys.modules) - modules:
        file = getattr(sys.modules[name], "__file__", None) or ""
        if file and "site-packages" not in file and not name.startswith(("nac_drive", "tests")):
            del sys.modules[name]
