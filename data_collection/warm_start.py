"""The expert's warm start: its actor learns from the controller, first on noisy laps, then in turns with it (DAgger).

DART: Laskey et al., arXiv 1703.09327. DAgger: Ross et al., AISTATS 2011, arXiv 1011.0686. Warm starting on-policy
learning from a privileged teacher: Chen et al., "Learning by Cheating", arXiv 1912.12294.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from data_collection.controller import Controller
from data_collection.expert import Expert, ExpertNetwork
from data_collection.noise import ActionNoise
from data_collection.processes import default_workers, map_in_processes, one_thread
from data_collection.turns import Turns, TurnsConfig
from envs import SPLITS, EnvConfig, Step, make_env, rollout

Lap = tuple[np.ndarray, np.ndarray, float]
"""Frames (N, 96, 96, 3), the controller's actions (N,) or (N, 3), the return."""


@dataclass(frozen=True)
class WarmStartConfig:
    """Settings of `warm_start`. Every round ends with passes over all laps so far."""

    laps: int = 24
    """Laps of the controller in round 0; 0 leaves the warm start out."""
    noise: float = 0.15
    """Share of frames of round 0 with a random executed action (the label stays the controller's)."""
    noise_hold: float = 4.0
    """Mean number of frames that one random action is held."""
    epochs: int = 6
    """Passes over the laps of round 0."""
    rounds: int = 8
    """Rounds in which actor and controller take turns at the wheel."""
    round_laps: int = 12
    """Laps in each of these rounds."""
    round_epochs: int = 1
    """Passes over all laps after each of these rounds."""
    student_share: float = 0.8
    """Probability that the actor, not the controller, steers through a segment of 25 frames."""
    final_epochs: int = 2
    """Passes at the end, while the learning rate falls to zero (half a cosine)."""
    learning_rate: float = 1e-3
    """Adam's rate."""
    batch_size: int = 128
    """Frames per update."""
    sharpness: float = 3.0
    """The logits are multiplied by this before PPO samples from them: it then explores around the cloned driver
    instead of around its uncertainty. Five actions only."""


def warm_start(
    config: WarmStartConfig, env: EnvConfig, seed: int, report: Callable[[dict[str, Any]], None]
) -> ExpertNetwork:
    """A network that imitates the controller in environments of `env`.

    report: gets a dict per lap (phase, round, lap, laps, return) and per pass (phase, round, epoch, epochs, loss).
    """
    network = ExpertNetwork(env.control)
    learner = _Learner(network, config, seed, report)
    tracks = np.random.default_rng((seed, 0)).choice(
        SPLITS["train"], config.laps + config.rounds * config.round_laps, replace=False
    )
    first, *rounds = np.split(tracks, range(config.laps, len(tracks), config.round_laps))
    noise = partial(_noisy_lap, config, env)
    learner.add(0, len(first), map_in_processes(noise, first.tolist(), default_workers()))
    learner.learn(0, config.epochs)
    for number, seeds in enumerate(rounds, 1):
        turns = partial(_lap_in_turns, config, env, pickle.dumps(Expert(network, env, {})), seed)
        learner.add(number, len(seeds), map_in_processes(turns, seeds.tolist(), default_workers()))
        learner.learn(number, config.round_epochs)
    learner.learn(len(rounds) + 1, config.final_epochs, falling=True)
    if env.control == "discrete":
        for parameter in network.action.parameters():
            parameter.data *= config.sharpness
    return network


class _Learner:
    """All laps so far, and the network that learns from them."""

    def __init__(
        self, network: ExpertNetwork, config: WarmStartConfig, seed: int, report: Callable[[dict[str, Any]], None]
    ):
        self._network, self._config, self._report = network, config, report
        self._optimizer = torch.optim.Adam(network.parameters(), config.learning_rate)
        self._generator = torch.Generator().manual_seed(seed)
        self._loss = nn.functional.cross_entropy if network.control == "discrete" else nn.functional.mse_loss
        self._frames: list[np.ndarray] = []
        self._labels: list[np.ndarray] = []

    def add(self, number: int, count: int, laps: Iterable[Lap]) -> None:
        for lap, (frames, labels, lap_return) in enumerate(laps, 1):
            self._frames.append(frames)
            self._labels.append(labels)
            self._report({"phase": "warm_start", "round": number, "lap": lap, "laps": count, "return": lap_return})

    def learn(self, number: int, epochs: int, *, falling: bool = False) -> None:
        frames = torch.from_numpy(np.concatenate(self._frames)).permute(0, 3, 1, 2)  # (N, 3, 96, 96) uint8
        labels = torch.from_numpy(np.concatenate(self._labels))  # (N,) or (N, 3)
        self._network.train()
        for epoch in range(epochs):
            total, batches = 0.0, torch.randperm(len(frames), generator=self._generator).split(self._config.batch_size)
            for done, batch in enumerate(batches):
                if falling:
                    share = (epoch + done / len(batches)) / epochs
                    for group in self._optimizer.param_groups:
                        group["lr"] = self._config.learning_rate * (1 + math.cos(math.pi * share)) / 2
                total += self._update(frames[batch], labels[batch]) * len(batch)
            row = {"phase": "warm_start", "round": number, "epoch": epoch + 1, "epochs": epochs}
            self._report({**row, "loss": total / len(frames)})
        self._network.eval()

    def _update(self, frames: Tensor, labels: Tensor) -> float:
        loss = self._loss(self._network(frames.float() / 255), labels)
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        return loss.item()


def _noisy_lap(config: WarmStartConfig, env_config: EnvConfig, track: int) -> Lap:
    env = make_env(env_config)
    noise = ActionNoise(config.noise, config.noise_hold, env.action_space, track)
    steps: list[Step] = []
    episode = rollout(env, Controller(env_config.control), track, execute=noise, subscribers=[steps.append])
    return _lap([step.observation for step in steps], [step.intended for step in steps], episode.episode_return)


def _lap_in_turns(config: WarmStartConfig, env_config: EnvConfig, actor: bytes, seed: int, track: int) -> Lap:
    students = TurnsConfig(config.student_share).students(env_config.max_steps, (seed, track))
    hand = Turns(Controller(env_config.control), students)
    steps: list[Step] = []
    with one_thread():
        episode = rollout(
            make_env(env_config), pickle.loads(actor), track, advisor=hand, execute=hand.execute,
            subscribers=[steps.append],
        )  # fmt: skip
    return _lap([step.observation for step in steps], [step.advice for step in steps], episode.episode_return)


def _lap(frames: list[np.ndarray], labels: list[Any], lap_return: float) -> Lap:
    return np.stack(frames), np.stack(labels), lap_return
