"""The one loop that drives episodes.

Collection, evaluation and video subscribe to it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, Protocol, runtime_checkable

import gymnasium as gym
import numpy as np

from nac_drive.arguments import value_text
from nac_drive.envs.config import EnvConfig
from nac_drive.envs.wrappers import without_bar
from nac_drive.markdown import number_text
from nac_drive.notebook import table
from nac_drive.plain import whole


class Policy(Protocol):
    """Protocol of networks, experts and controllers that drive."""

    def begin(self, env: gym.Env) -> Any:
        """Return the state at the start of an episode.

        `env` was reset before.

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


@runtime_checkable
class BatchPolicy(Policy, Protocol):
    """Protocol of a driver that decides for several cars."""

    def act_batch(
        self, observations: Sequence[np.ndarray], states: Sequence[Any], dts: Sequence[float]
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        """Choose an action for each car.

        Actions and next states equal `act`'s, bit for bit.

        Args:
            observations: The observation of each car.
            states: The state of each car, from `begin` or its previous decision.
            dts: Seconds since the previous observation of each car.

        Returns:
            The actions and the next states, in the order of the cars.
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
    latency: float | None
    """Seconds that `act` took for this car alone; None for a decision among others, see `rollouts`."""


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

    def __repr__(self) -> str:
        return f"Episode({', '.join(f'{name} {value}' for name, value in self._facts())})"

    def _facts(self) -> list[tuple[str, str]]:
        """Return names and values of the result."""
        facts = [
            ("track", str(self.seed)),
            ("return", number_text(self.episode_return, ".1f")),
            ("decisions", f"{self.length:,}"),
            ("end", self._end()),
        ]
        if "completion" in self.outcome:
            facts.append(("completion", f"{100 * self.outcome['completion']:.1f} %"))
        if "crashes" in self.outcome:
            facts.append(("crashes", str(self.outcome["crashes"])))
        return facts

    def _end(self) -> str:
        if not self.terminated:
            return "the time limit"
        if self.outcome.get("lap_finished"):
            return "the lap is finished"
        return f"a crash: {crash}" if (crash := self.outcome.get("crash")) else "a rule of the environment"

    def _repr_html_(self) -> str:
        return table([], self._facts())


def trained_view(driver: Policy | None) -> Callable[[Any], np.ndarray]:
    """Return the function that reads the present clean frame.

    A driver that was trained sees the world in the view of its training, and no status bar if it was trained without
    one. Any other driver sees the whole frame.

    Args:
        driver: A driver, whose `env_config` holds the settings of its training, if it was trained.
    """
    trained: dict[str, Any] = getattr(driver, "env_config", None) or {}
    if not trained:
        return _clean_frame
    names = ("environment", "mask_bar", "view", "size")
    return partial(_frame_of, EnvConfig(**{name: trained[name] for name in names if name in trained}))


def _clean_frame(simulator: Any) -> np.ndarray:
    return simulator.state


def _frame_of(trained: EnvConfig, simulator: Any) -> np.ndarray:
    frame = simulator.state
    if (trained.view, trained.size) != (getattr(simulator, "view", "above"), getattr(simulator, "size", trained.size)):
        frame = simulator.frame_from(trained.view, trained.size)
    bar_top = trained.spec.bar_top if trained.mask_bar else None
    return frame if bar_top is None else without_bar(frame, bar_top)


@dataclass(frozen=True, slots=True)
class EpisodeSetup:
    """Everything that an episode needs; the arguments of `rollout`."""

    env: gym.Env
    driver: Policy
    seed: int
    expert: Policy | None = None
    execute: Callable[[Any], Any] = lambda action: action
    subscribers: Iterable[Callable[[Step], None]] = ()


TIMED_EVERY = 64
"""Of so many decisions of an episode among others, the first is made alone and timed."""


def rollout(
    env: gym.Env,
    driver: Policy,
    seed: int,
    *,
    expert: Policy | None = None,
    execute: Callable[[Any], Any] = lambda action: action,
    subscribers: Iterable[Callable[[Step], None]] = (),
) -> Episode:
    """Drive one episode.

    Args:
        env: The environment of `make_env`, or one with the same `info["dt"]`. It is reset, and not closed.
        driver: Chooses the actions.
        seed: Seed of the track.
        expert: A second driver that is queried at every frame and never steers. It sees the clean frame, without any
            perturbation, in the view of its training (see `trained_view`).
        execute: Turns the intended action into the executed one (action noise).
        subscribers: Called with every `Step`, in order.

    Returns:
        The result of the episode.

    Raises:
        ValueError: For an environment, a driver or an expert of another kind, and a bad seed.
    """
    if not callable(getattr(env, "reset", None)):
        raise ValueError(f"env must be an environment, got {value_text(env)}; pass make_env(...).")
    _require_policy("driver", driver)
    if expert is not None:
        _require_policy("expert", expert)
    ((_, episode),) = rollouts([EpisodeSetup(env, driver, seed, expert, execute, subscribers)])
    return episode


def _require_policy(role: str, driver: Any) -> None:
    """Check that a driver has `begin` and `act`.

    Raises:
        ValueError: It has not.
    """
    if not all(callable(getattr(driver, method, None)) for method in ("begin", "act")):
        fix = f"resolve_driver({value_text(driver)})" if isinstance(driver, str | os.PathLike) else f"as_policy({role})"
        raise ValueError(f"{role} must have begin and act, got {value_text(driver)}; pass {fix}.")


def rollouts(setups: Iterable[EpisodeSetup], batch_size: int = 1) -> Iterator[tuple[EpisodeSetup, Episode]]:
    """Drive many episodes, several at a time in lockstep.

    Cars with the same `BatchPolicy` are driven in one pass, and so are queries of the same expert. Any other driver is
    queried car by car. An episode depends neither on the others nor on `batch_size`, as long as its driver and its
    expert keep all memory in their states.

    The time of a decision is measured where one car decides alone. In a batch, every car does so at each
    `TIMED_EVERY`-th decision.

    Args:
        setups: The episodes. The next one is taken when an episode has ended, so environments can be made as they are
            needed. Each needs an environment of its own.
        batch_size: Number of episodes at a time.

    Yields:
        The setup and the result of each episode, as episodes end.
    """
    waiting = iter(setups)
    running: list[_RunningEpisode] = []
    while True:
        running.extend(map(_RunningEpisode, islice(waiting, batch_size - len(running))))
        if not running:
            return
        _decide([(each.driver, each.observation, each.dt, not each.index % TIMED_EVERY) for each in running])
        _decide([(each.expert, each.clean_frame(), each.dt, False) for each in running if each.expert])
        results = [(each.setup, each.step()) for each in running]
        running = [each for each, (_, episode) in zip(running, results, strict=True) if episode is None]
        for setup, episode in results:
            if episode is not None:
                yield setup, episode


class _EpisodeDriver:
    """A driver in one episode, its state and last decision."""

    def __init__(self, driver: Policy, env: gym.Env) -> None:
        self.driver, self.state = driver, driver.begin(env)
        self.act_batch = driver.act_batch if isinstance(driver, BatchPolicy) else None
        self.action: Any = None
        self.latency: float | None = None


class _RunningEpisode:
    """An episode that is being driven."""

    def __init__(self, setup: EpisodeSetup) -> None:
        self.setup, self.seed, self.subscribers = setup, whole("seed", setup.seed, 0), tuple(setup.subscribers)
        self.observation, self.info = setup.env.reset(seed=self.seed)
        self.simulator: Any = setup.env.unwrapped
        self.driver = _EpisodeDriver(setup.driver, setup.env)
        self.expert = _EpisodeDriver(setup.expert, setup.env) if setup.expert else None
        self.expert_view = trained_view(setup.expert)
        self.episode_return, self.index = 0.0, 0

    @property
    def dt(self) -> float:
        return self.info["dt"]

    def clean_frame(self) -> np.ndarray:
        """Return the frame that the expert sees."""
        return self.expert_view(self.simulator)

    def step(self) -> Episode | None:
        """Execute the decision and call the subscribers. Return the result if the episode has ended."""
        intended, expert_action = self.driver.action, self.expert.action if self.expert else None
        action = self.setup.execute(intended)
        next_observation, reward, terminated, truncated, outcome = self.setup.env.step(action)
        step = Step(
            self.index, self.observation, self.info, self.dt, intended, action, expert_action,
            float(reward), terminated, truncated, outcome, self.driver.latency,
        )  # fmt: skip
        for subscriber in self.subscribers:
            subscriber(step)
        self.episode_return += float(reward)
        self.index += 1
        self.observation, self.info = next_observation, outcome
        if not (terminated or truncated):
            return None
        return Episode(self.seed, self.episode_return, self.index, terminated, outcome, next_observation)


Query = tuple[_EpisodeDriver, np.ndarray, float, bool]
"""A driver in an episode, its observation, dt, and whether it must decide alone."""


def _decide(queries: Sequence[Query]) -> None:
    """Let every driver choose its action. One `BatchPolicy` chooses in one pass."""
    batches: dict[int, list[Query]] = {}
    for query in queries:
        driver, *_, alone = query
        if driver.act_batch is None or alone:
            _decide_alone(*query)
        else:
            batches.setdefault(id(driver.driver), []).append(query)
    for batch in batches.values():
        if len(batch) == 1:
            _decide_alone(*batch[0])
            continue
        drivers, observations, dts, _ = zip(*batch, strict=True)
        actions, states = drivers[0].act_batch(observations, [driver.state for driver in drivers], dts)
        for driver, action, state in zip(drivers, actions, states, strict=True):
            driver.action, driver.state, driver.latency = action, state, None


def _decide_alone(driver: _EpisodeDriver, observation: np.ndarray, dt: float, _: bool) -> None:
    started = time.perf_counter()
    driver.action, driver.state = driver.driver.act(observation, driver.state, dt)
    driver.latency = time.perf_counter() - started
