"""An environment whose perturbations may change between two frames."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import TimeLimit

from nac_drive.envs import CarRacing, EnvConfig, perturb
from nac_drive.envs.saved_state import CarState
from nac_drive.envs.wrappers import wrappers_of


class Perturbable(gym.Wrapper):
    """An environment under perturbations that `set_perturbations` changes.

    Perturbations that are set in the middle of an episode begin there as they do at a reset. A `blind` camera gives
    black frames.

    Args:
        env: An environment of `make_env` without perturbations.
        config: Its configuration.
    """

    def __init__(self, env: gym.Env, config: EnvConfig) -> None:
        super().__init__(env)
        self._ongoing = _Ongoing(env)
        self._chain: gym.Env = self._ongoing
        self._facts = {"episode_frames": config.max_steps, "bar_top": config.spec.bar_top}
        self._spec: str | None = None
        self._seed: int | None = None
        self.blind = False

    @property
    def spec(self) -> str | None:
        """The perturbations now, as `envs.perturb` takes them; None for none."""
        return self._spec

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        self._seed = seed
        self._ongoing.start(seed, options)
        return self._begin()

    def set_perturbations(self, spec: str | None) -> None:
        """Change the perturbations.

        Args:
            spec: See `envs.perturb`; None for none.

        Raises:
            ValueError: For a specification that `envs.perturb` refuses; nothing has changed then.
        """
        self.under(spec)
        before, self._spec = self._spec, spec
        if self._ongoing.started:
            try:
                self._begin()
            except ValueError:  # a perturbation of the user's own failed
                self._spec = before
                self._begin()
                raise

    def under(self, spec: str | None) -> gym.Env:
        """Return the environment under perturbations that are not begun.

        Args:
            spec: See `envs.perturb`; None for none.

        Raises:
            ValueError: For a specification that `envs.perturb` refuses, as for one that this view does not have.
        """
        return self._ongoing if spec is None else perturb(self._ongoing, spec, **self._facts)

    def moment(self) -> EnvMoment:
        """Return where the episode is: `go_back` goes on from there.

        Raises:
            ValueError: If the simulator saves no states.
        """
        simulator: Any = self.unwrapped
        try:
            state = simulator.save_state()
        except (AttributeError, NotImplementedError):
            raise ValueError("this simulator saves no states, so nothing can be driven again from here.") from None
        return EnvMoment(self._seed, state, [limit._elapsed_steps for limit in self._limits()], self._ongoing.now)

    def go_back(self, moment: EnvMoment) -> tuple[np.ndarray, dict[str, Any]]:
        """Go on from a moment of an episode. The perturbations of now begin there as they do at a reset.

        Args:
            moment: The result of `moment`.

        Returns:
            The observation and `info` of that moment, under the perturbations of now.
        """
        simulator: Any = self.unwrapped
        simulator.restore_state(moment.state)
        simulator.look()
        for limit, elapsed in zip(self._limits(), moment.elapsed, strict=True):
            limit._elapsed_steps = elapsed
        self._seed, self._ongoing.now = moment.seed, moment.now
        return self._begin()

    def _limits(self) -> list[TimeLimit]:
        return [wrapper for wrapper in wrappers_of(self._ongoing.env) if isinstance(wrapper, TimeLimit)]

    def step(self, action):
        observation, reward, terminated, truncated, info = self._chain.step(action)
        return self._seen(observation), reward, terminated, truncated, info

    def _begin(self) -> tuple[np.ndarray, dict[str, Any]]:
        self._chain = self.under(self._spec)
        observation, info = self._chain.reset(seed=self._seed)
        return self._seen(observation), info

    def _seen(self, observation: np.ndarray) -> np.ndarray:
        return np.zeros_like(observation) if self.blind else observation


@dataclass(frozen=True)
class EnvMoment:
    """A moment of an episode, see `Perturbable.moment`."""

    seed: int | None
    state: CarState
    elapsed: list[int | None]
    """Steps that every time limit has counted."""
    now: tuple[np.ndarray, dict[str, Any]]
    """Observation and `info`, unperturbed."""


class _Ongoing(gym.Wrapper):
    """An environment whose `reset` leaves the episode where it is. `start` begins one."""

    started = False
    now: tuple[np.ndarray, dict[str, Any]]
    """The last observation and `info`."""

    def start(self, seed: int | None, options: dict[str, Any] | None) -> None:
        self.now = self.env.reset(seed=seed, options=options)
        self.started = True

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        simulator: Any = self.unwrapped
        if isinstance(simulator, CarRacing):
            simulator.grip = 1.0  # as it was before weak tyres
        return self.now

    def step(self, action):
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.now = observation, info
        return observation, reward, terminated, truncated, info
