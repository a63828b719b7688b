"""The environments that a policy drives at once.

They are a batch of compiled code, or single ones in turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import CDLL
from typing import Any, NamedTuple, Protocol

import numpy as np

from nac_drive.envs import FRAMES_PER_SECOND, Augmentation, EnvConfig
from nac_drive.envs.car_racing import CarRacing
from nac_drive.envs.car_state import car_states, tiles_missed
from nac_drive.envs.native.check import compiled
from nac_drive.envs.perturbations.images import FrameSize
from nac_drive.envs.pulses import COMMANDS
from nac_drive.envs.telemetry import OFF_ROAD_WHEELS
from nac_drive.envs.views import Size, View
from nac_drive.envs.world import World
from nac_drive.training.ppo.config import REWARD_SCALE, PPOConfig
from nac_drive.training.ppo.env import TrainingEnv, first_limit, training_env, training_track

_COMMANDS = np.array(COMMANDS)
_NEVER = np.iinfo(np.int64).max


class Outcome(NamedTuple):
    """Results of one action in each of E environments."""

    after: np.ndarray
    """(E, K): the simulator's state after the action, before a reset."""
    rewards: np.ndarray
    """(E,): rewards of training."""
    durations: np.ndarray
    """(E,): seconds that the action lasted."""
    terminated: np.ndarray
    """(E,) bool: the episode ended by a rule."""
    ended: np.ndarray
    """(E,) bool: the episode ended by a rule or was cut."""
    dt: np.ndarray
    """(E,): seconds between the last two observations, 0 where an episode begins."""
    returns: list[float]
    """Native returns of the episodes that training did not cut."""


class RolloutEnvs(Protocol):
    """E environments. An episode that ends is followed by the next one at once."""

    observations: np.ndarray
    """(E, H, W, 3) uint8: the present frames."""
    privileged: np.ndarray
    """(E, K) float32: the simulator's states that these frames show."""

    def start_at(self, timesteps: int) -> None:
        """Begin new episodes, with new random numbers.

        They are drawn from (seed, rank, timesteps) on.
        """

    def step(self, actions: np.ndarray, penalty_share: float = 1.0) -> Outcome:
        """Take one action in every environment, (E,) or (E, 3).

        This fraction of the penalties is subtracted.
        """
        ...

    def close(self) -> None:
        """Close the environments."""


def rollout_envs(env_config: EnvConfig, config: PPOConfig, ranks: Sequence[int]) -> RolloutEnvs:
    """Make the environments of some ranks of a run.

    Only the bare CarRacing has a batch. Perturbations and pulses work on single environments, and so does gymnasium's
    own simulator. What is driven is the same, bit for bit.

    Args:
        env_config: Settings of every environment.
        config: Settings of the run.
        ranks: Numbers of the environments in the run.
    """
    bare = EnvConfig(env_config.control, max_steps=env_config.max_steps, view=env_config.view, size=env_config.size)
    library = compiled() if env_config == bare and env_config.control != "pulsed" else None
    if library is None:
        return SingleEnvs([training_env(env_config, config, rank) for rank in ranks])
    return BatchedEnvs(env_config, config, ranks, library)


class SingleEnvs:
    """Environments that are stepped in turn, see `RolloutEnvs`.

    Args:
        envs: The environments.
    """

    def __init__(self, envs: Sequence[TrainingEnv]):
        self._envs = envs

    def start_at(self, timesteps: int) -> None:
        """Begin new episodes, see `RolloutEnvs`."""
        for env in self._envs:
            env.start_at(timesteps)
        self.observations = np.stack([env.reset()[0] for env in self._envs])
        self.privileged = np.stack([env.privileged() for env in self._envs])

    def step(self, actions: np.ndarray, penalty_share: float = 1.0) -> Outcome:
        """Step every environment, see `RolloutEnvs`."""
        returns: list[float] = []
        for env in self._envs:
            env.penalty_share = penalty_share
        outcomes = [self._step(row, action, returns) for row, action in enumerate(actions)]
        return Outcome(*map(np.array, zip(*outcomes, strict=True)), returns)  # type: ignore[arg-type]

    def _step(self, row: int, action: Any, returns: list[float]) -> tuple[Any, ...]:
        env = self._envs[row]
        observation, reward, terminated, truncated, info = env.step(action)
        after, duration = env.privileged(), info["dt"]
        self.observations[row], self.privileged[row] = observation, after
        if (terminated or truncated) and not env.is_cut:
            returns.append(env.native_return)
        if terminated or truncated:
            self.observations[row], info = env.reset()
            self.privileged[row] = env.privileged()
        return after, reward, duration, terminated, terminated or truncated, info["dt"]

    def close(self) -> None:
        """Close the environments."""
        for env in self._envs:
            env.close()


class BatchedEnvs:
    """Many `TrainingEnv` around `ActionRepeat` in one `World`.

    See `RolloutEnvs`.

    Tracks, rewards, ends, states and frames equal `SingleEnvs`', bit for bit. Augmentations that draw noise for
    every frame draw other noise.

    Args:
        env_config: Control, time limit and view.
        config: Seed, action repeat, penalties, scale, patience and augmentations.
        ranks: Numbers of the environments in the run.
        library: The compiled simulator.
    """

    def __init__(self, env_config: EnvConfig, config: PPOConfig, ranks: Sequence[int], library: CDLL):
        count = len(ranks)
        self._config, self._ranks, self._max_steps = config, ranks, env_config.max_steps
        self._view: tuple[View, Size] = (env_config.view, env_config.size)
        height, width, channels = env_config.spec.frame_shape
        self._frame_size = FrameSize.of(env_config.spec.frame_shape, env_config.spec.bar_top)
        self._discrete = env_config.control == "discrete"
        self._augmentation = Augmentation(config.rollout.augment)
        self._effects: list[Any] = [None] * count
        self._world = World(count, library)
        self._simulators = [
            CarRacing(None, env_config.control, "terminate", world=(self._world, row)) for row in range(count)
        ]
        for simulator in self._simulators:
            simulator.observe = False  # all are drawn at once
        self.observations = np.zeros((count, height, width, channels), np.uint8)
        self._limits, self._frames, self._idle = np.full(count, _NEVER), np.zeros(count, int), np.zeros(count, int)
        self._visited, self._missed = np.zeros(count, int), np.zeros(count, int)
        self._native_returns = np.zeros(count)

    def start_at(self, timesteps: int) -> None:
        """Begin new episodes, see `RolloutEnvs`."""
        self._rngs = [np.random.default_rng((self._config.seed, 1, rank, timesteps)) for rank in self._ranks]
        self._limits[:] = [first_limit(rng, self._max_steps) for rng in self._rngs]
        self._begin(range(len(self._ranks)))
        self._observe()
        self.privileged = self._states()

    def step(self, actions: np.ndarray, penalty_share: float = 1.0) -> Outcome:
        """Hold the actions and begin the next episodes.

        The last frames are drawn, see `RolloutEnvs`.
        """
        config, cars = self._config, self._world.cars
        rewards, frames, durations, terminated, crashed = self._hold(actions)
        self._frames += frames
        self._native_returns += rewards
        visited, missed = cars["visited_count"], np.maximum(tiles_missed(self._world.roads, cars), self._missed)
        penalties = np.where(crashed, config.reward.crash_penalty, 0.0)
        penalties += config.reward.missed_tile_penalty * (missed - self._missed)
        penalties += np.where(cars["wheels_off_road"] >= OFF_ROAD_WHEELS, config.reward.off_road_penalty * frames, 0.0)
        self._idle = np.where(visited <= self._visited, self._idle + frames, 0)
        self._visited[:], self._missed = visited, missed
        if config.rollout.patience:
            idle = (self._idle >= config.rollout.patience) & ~terminated
            rewards[idle] *= 1 + (self._max_steps - self._frames[idle]) / frames[idle]  # of the time that is left
            terminated |= idle
        terminated |= self._frames >= self._max_steps  # the value network sees the time
        ended = terminated | (self._frames >= self._limits)
        rewards = (rewards - penalty_share * penalties) * REWARD_SCALE
        returns, after, dt = self._native_returns[terminated].tolist(), self._states(), durations
        self.privileged = after
        if ended.any():
            self._limits[ended], dt = _NEVER, np.where(ended, 0.0, durations)
            self._begin(np.flatnonzero(ended).tolist())
            self.privileged = self._states()
        self._observe()
        return Outcome(after, rewards, durations, terminated, ended, dt, returns)

    def _hold(self, actions: np.ndarray) -> tuple[np.ndarray, ...]:
        """Step every car until its episode ends.

        At most `action_repeat` frames are driven.

        Returns:
            Native rewards, frames and seconds of each car, whether its episode ended by gymnasium's rules or a crash,
            and whether it crashed.
        """
        world, count = self._world, len(self._ranks)
        world.actions[:] = _COMMANDS[actions] if self._discrete else actions
        rewards, frames, seconds = np.zeros(count), np.zeros(count, int), np.zeros(count)
        terminated, crashed, running = (np.full(count, value) for value in (False, False, True))
        finished: dict[int, np.ndarray] = {}
        for _ in range(self._config.rollout.action_repeat):
            world.step()
            rewards += np.where(running, world.rewards, 0.0)
            frames += running
            seconds += np.where(running, 1 / FRAMES_PER_SECOND, 0.0)
            terminated |= running & world.terminated
            crashed |= running & (world.cars["crash"] > 0)
            over = running & (terminated | (self._frames + frames >= self._max_steps))
            if over.any():
                finished |= {row: world.cars[row].copy() for row in np.flatnonzero(over).tolist()}
                running &= ~over
                if not running.any():
                    break
        for row, car in finished.items():  # it was stepped on with the others
            world.cars[row] = car
        return rewards, frames, seconds, terminated, crashed

    def _begin(self, rows: Sequence[int]) -> None:
        for row in rows:
            self._simulators[row].reset(seed=training_track(self._rngs[row]))
            self._effects[row] = self._augmentation.draw(self._rngs[row], self._frame_size).effect
        self._visited[rows] = self._world.cars["visited_count"][rows]
        for numbers in (self._frames, self._idle, self._missed, self._native_returns):
            numbers[rows] = 0

    def _observe(self) -> None:
        self._world.draw(self.observations, 0, None, *self._view)
        if self._config.rollout.augment:
            for row, effect in enumerate(self._effects):
                self.observations[row] = effect(self.observations[row])

    def _states(self) -> np.ndarray:
        time = (self._frames / self._max_steps).astype(np.float32)
        return np.column_stack((car_states(self._world.roads, self._world.cars), time))

    def close(self) -> None:
        """Nothing is open."""
