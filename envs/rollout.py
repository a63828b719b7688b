"""The one loop that drives an episode. Recorder, evaluator, video and live view subscribe to it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import gymnasium as gym
import numpy as np


class Driver(Protocol):
    """Anything that drives: a network, an expert, a controller."""

    def begin(self, env: gym.Env) -> Any:
        """The state at the start of an episode, after `env.reset`. Only privileged drivers look at `env`."""
        ...

    def act(self, observation: np.ndarray, state: Any, dt: float) -> tuple[Any, Any]:
        """The action for one observation, `dt` seconds after the previous one, and the next state."""
        ...


@dataclass(frozen=True, slots=True)
class Step:
    """One decision and what came of it.

    observation, info, dt: what the driver was shown; dt is the time since the previous observation in seconds.
    intended: the action that the driver chose.  action: what was executed (they differ under noise).
    expert_action: what the expert would have done, None without one.  outcome: `info` after the action.
    latency: seconds that `act` took.
    """

    index: int
    observation: np.ndarray
    info: dict[str, Any]
    dt: float
    intended: Any
    action: Any
    expert_action: Any
    reward: float
    terminated: bool
    truncated: bool
    outcome: dict[str, Any]
    latency: float


@dataclass(frozen=True, slots=True)
class Episode:
    """The end of an episode: its track seed, undiscounted native return, number of steps and last `info`."""

    seed: int
    episode_return: float
    length: int
    terminated: bool
    outcome: dict[str, Any]


def rollout(
    env: gym.Env,
    driver: Driver,
    seed: int,
    *,
    expert: Driver | None = None,
    execute: Callable[[Any], Any] = lambda action: action,
    subscribers: Iterable[Callable[[Step], None]] = (),
) -> Episode:
    """Drive one episode on the track of `seed`.

    expert: a second driver that is asked at every frame and never steers; it sees the clean frame, before any mask.
    execute: turns the intended action into the executed one (action noise).  subscribers: called with every `Step`,
    in order.
    """
    subscribers = tuple(subscribers)
    observation, info = env.reset(seed=seed)
    car_racing: Any = env.unwrapped
    state = driver.begin(env)
    expert_state = expert.begin(env) if expert else None
    episode_return, index = 0.0, 0
    while True:
        dt = info["dt"]
        started = time.perf_counter()
        intended, state = driver.act(observation, state, dt)
        latency = time.perf_counter() - started
        expert_action = None
        if expert:
            expert_action, expert_state = expert.act(car_racing.state, expert_state, dt)
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
            return Episode(seed, episode_return, index, terminated, outcome)
