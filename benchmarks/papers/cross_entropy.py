"""Search for the numbers of the controller: the cross-entropy method, with rendering off.

De Boer et al., A tutorial on the cross-entropy method, Annals of Operations Research 134 (2005).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np

from nac_drive.data_collection.controller.controller import Controller, ControllerConfig
from nac_drive.envs import SPLITS, CarRacing, Control
from nac_drive.envs.telemetry import OFF_ROAD_WHEELS
from nac_drive.events import Progress, counting, silent
from nac_drive.parallel.processes import Pool

MAX_STEPS = 1000
START: dict[str, dict[str, tuple[float, float]]] = {
    "discrete": {
        "line_fraction": (0.65, 0.05), "look_ahead": (12, 2), "look_ahead_time": (0.166, 0.03),
        "steering_gain": (0.75, 0.12), "feed_forward": (1.45, 0.15), "yaw_gain": (0.02, 0.01), "preview": (0.07, 0.02),
        "lateral_limit": (208, 10), "braking_limit": (33, 8), "slack": (1.086, 0.03), "gas_worth": (7.7, 1.2),
        "brake_worth": (4, 1),
    },
    "continuous": {
        "line_fraction": (0.63, 0.05), "look_ahead": (9.9, 2), "look_ahead_time": (0.121, 0.03),
        "steering_gain": (0.9, 0.15), "feed_forward": (1.0, 0.1), "yaw_gain": (0.03, 0.01), "preview": (0.09, 0.02),
        "lateral_limit": (178, 8), "braking_limit": (82, 15), "top_speed": (110, 6), "slack": (1.06, 0.02),
        "gas_gain": (0.64, 0.2), "brake_gain": (0.043, 0.015), "slip": (4.8, 0.4),
    },
}  # fmt: skip
"""Mean and standard deviation of the first candidates, tuned by hand."""
REST = {"discrete": ControllerConfig(slip=math.inf), "continuous": ControllerConfig()}
"""Numbers that are not searched for. The rule for a sliding tail in discrete actions is younger than the search."""


@dataclass(frozen=True)
class SearchConfig:
    """Size of a search. Its result depends on nothing else."""

    control: Literal["discrete", "continuous"] = "discrete"
    """Pulsed control has the numbers of discrete control."""
    generations: int = 12
    candidates: int = 20
    """Configs driven in a generation; the first is the present mean."""
    elites: int = 5
    """The best of them, which the next generation is drawn around."""
    episodes: int = 6
    """Training tracks that each candidate of a generation drives."""
    seed: int = 0


@dataclass(frozen=True)
class EpisodeScore:
    """Result of one episode."""

    episode_return: float
    frames: int
    touching_grass: int
    """Frames with at least one wheel off the road."""
    off_road: int
    """Frames with at least three wheels off the road."""


def drive(control: Control, config: ControllerConfig, seed: int) -> EpisodeScore:
    """Drive an episode on the track of `seed`."""
    return drive_controller(Controller(control, config), seed)


def drive_controller(controller: Controller, seed: int) -> EpisodeScore:
    """Drive an episode on the track of `seed`."""
    env = CarRacing(control=controller.control)
    env.observe = False  # no frame is drawn
    env.reset(seed=seed)
    plan = controller.begin(env)
    rewards, wheels_off = [], []
    for _ in range(MAX_STEPS):
        action, plan = controller.act(env.state, plan, 0.02)
        _, reward, terminated, _, info = env.step(action)
        rewards.append(reward)
        wheels_off.append(info["wheels_off_road"])
        if terminated:
            break
    off = np.array(wheels_off)
    grass, off_road = int((off > 0).sum()), int((off >= OFF_ROAD_WHEELS).sum())
    return EpisodeScore(float(np.sum(rewards)), len(rewards), grass, off_road)


def fitness(episodes: Iterable[EpisodeScore]) -> float:
    """Return mean - sd / 2 of the returns, less 0.02 per frame with a wheel off and 0.05 per off-road frame."""
    episodes = list(episodes)
    returns = np.array([episode.episode_return for episode in episodes])
    grass = np.mean([0.02 * episode.touching_grass + 0.05 * episode.off_road for episode in episodes])
    return float(returns.mean() - returns.std() / 2 - grass)


def score_note(episodes: Sequence[EpisodeScore]) -> str:
    """Return fitness, returns and frames of episodes as one line."""
    returns = np.array([episode.episode_return for episode in episodes])
    frames, grass, off = (
        np.mean([getattr(episode, name) for episode in episodes]) for name in ("frames", "touching_grass", "off_road")
    )
    return (
        f"fitness {fitness(episodes):.2f}, return {returns.mean():.1f} +- {returns.std():.1f}, "
        f"minimum {returns.min():.1f}; an episode: {frames:.0f} frames, {grass:.1f} with a wheel on the grass, "
        f"{off:.2f} off-road"
    )


def search(
    config: SearchConfig,
    *,
    pool: Pool | None = None,
    progress: Progress = silent,
) -> ControllerConfig:
    """Search by the cross-entropy method.

    Args:
        config: Settings; the result depends on nothing else.
        pool: Processes, see `worker_pool`.
        progress: Called after each generation with the result and the numbers of the mean that it began with.

    Returns:
        The mean after the last generation, rounded to four digits.
    """
    mean, spread = np.array(list(START[config.control].values())).T
    finished = counting(progress, f"search ({config.control})", config.generations)

    def evaluate(candidates: np.ndarray, rng: np.random.Generator) -> list[float]:
        seeds = rng.choice(len(SPLITS["train"]), config.episodes, replace=False).tolist()
        task = partial(_drive_all, config.control, seeds)
        configs = [_config(config.control, values) for values in candidates]
        results = list((pool.imap if pool else map)(task, configs))
        finished(f"{score_note(results[0])}; {numbers(config.control, configs[0])}")
        return [fitness(episodes) for episodes in results]

    return _config(config.control, cross_entropy(evaluate, mean, spread, config, np.random.default_rng(config.seed)))


def cross_entropy(
    evaluate: Callable[[np.ndarray, np.random.Generator], Sequence[float]],
    mean: np.ndarray,
    spread: np.ndarray,
    config: SearchConfig,
    rng: np.random.Generator,
) -> np.ndarray:
    """Search by the cross-entropy method, within four spreads of the start and above 0.

    Args:
        evaluate: Returns the fitness of candidates (C, D), of which the first is the present mean. It may draw from the
            generator.
        mean: (D,), of the first candidates.
        spread: (D,), their standard deviations.
        config: Numbers of generations, candidates and elites.
        rng: Generator of the candidates.

    Returns:
        (D,), the mean after the last generation.
    """
    low, high, first_spread = np.maximum(mean - 4 * spread, 0.0), mean + 4 * spread, spread
    for _ in range(config.generations):
        candidates = np.clip(rng.normal(mean, spread, (config.candidates, len(mean))), low, high)
        candidates[0] = mean
        scores = np.asarray(evaluate(candidates, rng))
        best = np.argsort(-scores, kind="stable")[: config.elites]
        mean = 0.4 * mean + 0.6 * candidates[best].mean(axis=0)
        spread = 0.4 * spread + 0.6 * candidates[best].std(axis=0) + 0.05 * first_spread
    return mean


def _drive_all(control: Control, seeds: list[int], config: ControllerConfig) -> list[EpisodeScore]:
    return [drive(control, config, seed) for seed in seeds]


def _config(control: Control, values: np.ndarray) -> ControllerConfig:
    named = zip(START[control], values, strict=True)
    return replace(REST[control], **{name: float(f"{value:.4g}") for name, value in named})


def numbers(control: Control, config: ControllerConfig) -> dict[str, float]:
    """Return the numbers that are searched for."""
    return {name: getattr(config, name) for name in START[control]}
