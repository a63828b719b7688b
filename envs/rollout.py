"""The one loop that drives an episode. Collection, evaluation and video subscribe to it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import gymnasium as gym
import numpy as np

from nac_drive.envs.config import EnvConfig
from nac_drive.envs.spec import environment
from nac_drive.envs.wrappers import without_bar
from nac_drive.plain import whole


class Driver(Protocol):
    """Protocol of everything that drives: a network, an expert, a controller."""

    def begin(self, env: gym.Env) -> Any:
        """Return the state at the start of an episode, after `env.reset`.

        Args:
            env: The environment. Only privileged drivers read it.
        """
        ...

    def act(self, observation: np.ndarray, state: Any, dt: float) -> tuple[Any, Any]:
        """Choose an action.

        Args:
            observation: (96, 96, 3) uint8.
            state: State of the driver, from `begin` or the previous `act`.
            dt: Seconds since the previous observation, 0 for the first one.

        Returns:
            The action and the next state.
        """
        ...


@dataclass(frozen=True, slots=True)
class Step:
    """One decision and its result."""

    index: int
    """Number of the decision, from 0."""
    observation: np.ndarray
    """The observation that the driver received."""
    info: dict[str, Any]
    """`info` of the observation."""
    dt: float
    """Seconds since the previous observation."""
    intended: Any
    """The action that the driver chose."""
    action: Any
    """The executed action, different from `intended` under action noise."""
    expert_action: Any
    """The expert's action, None without an expert."""
    reward: float
    """Reward of the action."""
    terminated: bool
    """The episode ended by a rule of the environment."""
    truncated: bool
    """The episode ended by the time limit."""
    outcome: dict[str, Any]
    """`info` after the action."""
    latency: float
    """Seconds that `act` took."""


@dataclass(frozen=True, slots=True)
class Episode:
    """Result of an episode."""

    seed: int
    """Seed of the track."""
    episode_return: float
    """Undiscounted sum of the environment's rewards."""
    length: int
    """Number of decisions."""
    terminated: bool
    """False if the time limit ended the episode."""
    outcome: dict[str, Any]
    """The last `info`."""
    last_observation: np.ndarray | None = field(default=None, repr=False, compare=False)
    """The frame after the last action, which no driver acts on. Comparisons of two episodes ignore it."""


def trained_view(driver: Driver | None) -> Callable[[np.ndarray], np.ndarray]:
    """Return the function from a clean frame to the driver's view.

    The status bar is hidden from a driver that was trained without it. Any other driver sees the whole frame.

    Args:
        driver: A driver, whose `env_config` holds the settings of its training, if it was trained.
    """
    trained: dict[str, Any] = getattr(driver, "env_config", None) or {}
    bar_top = (
        environment(trained.get("environment", EnvConfig.environment)).bar_top if trained.get("mask_bar") else None
    )
    return (lambda frame: frame) if bar_top is None else partial(without_bar, bar_top=bar_top)


def rollout(
    env: gym.Env,
    driver: Driver,
    seed: int,
    *,
    expert: Driver | None = None,
    execute: Callable[[Any], Any] = lambda action: action,
    subscribers: Iterable[Callable[[Step], None]] = (),
) -> Episode:
    """Drive one episode.

    Args:
        env: The environment of `make_env`, or one with the same `info["dt"]`. It is reset, and not closed.
        driver: Chooses the actions.
        seed: Seed of the track.
        expert: A second driver that is queried at every frame and never steers. It sees the clean frame, without any
            perturbation. Its status bar is as in the expert's training, see `trained_view`.
        execute: Turns the intended action into the executed one (action noise).
        subscribers: Called with every `Step`, in order.

    Returns:
        The result of the episode.
    """
    seed, subscribers = whole("seed", seed, 0), tuple(subscribers)
    observation, info = env.reset(seed=seed)
    car_racing: Any = env.unwrapped
    state = driver.begin(env)
    expert_state = expert.begin(env) if expert else None
    view = trained_view(expert)
    episode_return, index = 0.0, 0
    while True:
        dt = info["dt"]
        started = time.perf_counter()
        intended, state = driver.act(observation, state, dt)
        latency = time.perf_counter() - started
        expert_action = None
        if expert:
            expert_action, expert_state = expert.act(view(car_racing.state), expert_state, dt)
        action = execute(intended)
        next_observation, reward, terminated, truncated, outcome = env.step(action)
        step = Step(
            index, observation, info, dt, intended, action, expert_action,
            float(reward), terminated, truncated, outcome, latency,
        )  # fmt: skip
        for subscriber in subscribers:
            subscriber(step)
        episode_return += float(reward)
        index += 1
        observation, info = next_observation, outcome
        if terminated or truncated:
            return Episode(seed, episode_return, index, terminated, outcome, next_observation)
