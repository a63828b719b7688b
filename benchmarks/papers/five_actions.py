"""How far five actions go: a search on each track alone, with the track in hand.

    python benchmarks/papers/five_actions.py --tracks test-10
    python benchmarks/papers/five_actions.py --tracks test-10 --both-pedals

The cross-entropy method looks for the numbers of the controller, and for the speed in each of eight sections of the
lap, that make the highest return on one track. It drives in the true simulator, from the start each time. So a driver
that sees a track for the first time is compared with one that has driven it some hundred times. The result is a return
that the five actions reach, not a proof that they reach no more.

`--both-pedals` takes away what five actions forbid: the wheels take any angle while a pedal is pressed. Gas and brake
stay within the range of the five actions, 0.2 and 0.8. Every sequence of the five actions is one of these, too.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import tyro
from cross_entropy import (
    START,
    EpisodeScore,
    SearchConfig,
    cross_entropy,
    drive_controller,
    numbers,
)

from nac_drive.data_collection.controller.controller import CONTROLLERS, Controller, ControllerConfig, Plan
from nac_drive.envs import Control, track_seeds
from nac_drive.parallel.processes import default_workers, worker_pool

SECTIONS = 8
SPREAD = 0.05
"""Of the factor of the speed in a section, around 1."""
GAS, BRAKE = 0.2, 0.8


class SectionController(Controller):
    """The controller with a factor of its speed for each section of the lap."""

    def __init__(self, control: Control, config: ControllerConfig, factors: np.ndarray):
        super().__init__(control, config)
        self._factors = factors

    def begin(self, env: gym.Env) -> Plan:
        plan = super().begin(env)
        places = np.linspace(0, len(self._factors), len(plan.speed), endpoint=False)
        factors = np.interp(places, np.arange(len(self._factors)) + 0.5, self._factors, period=len(self._factors))
        plan.speed = (factors * plan.speed).tolist()
        return plan

    def act(self, observation: np.ndarray, state: Plan, dt: float) -> tuple[Any, Plan]:
        action, state = super().act(observation, state, dt)
        return action if self.control == "discrete" else np.minimum(action, (1.0, GAS, BRAKE)), state


def drive(control: Control, seed: int, values: np.ndarray) -> EpisodeScore:
    config = CONTROLLERS["controller"][control]
    named = dict(zip(START[control], values[:-SECTIONS].tolist(), strict=True))
    return drive_controller(SectionController(control, replace(config, **named), values[-SECTIONS:]), seed)


def best_of_track(control: Control, config: SearchConfig, seed: int) -> tuple[float, EpisodeScore]:
    """Return what the shipped numbers make, and the best episode of the search."""
    shipped = numbers(control, CONTROLLERS["controller"][control])
    mean = np.array([*shipped.values(), *np.ones(SECTIONS)])
    spread = np.array([*(spread for _, spread in START[control].values()), *np.full(SECTIONS, SPREAD)])
    episodes: list[EpisodeScore] = []

    def evaluate(candidates: np.ndarray, rng: np.random.Generator) -> list[float]:
        driven = [drive(control, seed, values) for values in candidates]
        episodes.extend(driven)
        return [episode.episode_return for episode in driven]

    cross_entropy(evaluate, mean, spread, config, np.random.default_rng((config.seed, seed)))
    return episodes[0].episode_return, max(episodes, key=lambda episode: episode.episode_return)


def main(
    tracks: str = "test-10", generations: int = 20, candidates: int = 20, both_pedals: bool = False, workers: int = 0
) -> None:
    """Search on every track alone and print the returns."""
    control: Control = "continuous" if both_pedals else "discrete"
    config = SearchConfig(generations=generations, candidates=candidates)
    seeds = track_seeds(tracks)
    results = []
    with worker_pool(workers or default_workers()) as pool:
        found = (pool.imap if pool else map)(partial(best_of_track, control, config), seeds)
        print("| track | shipped numbers | best found | frames |\n|---|---:|---:|---:|", flush=True)
        for seed, (first, best) in zip(seeds, found, strict=True):
            results.append((first, best.episode_return))
            print(f"| {seed} | {first:.1f} | {best.episode_return:.1f} | {best.frames} |", flush=True)
    (first, best), deviations = np.mean(results, axis=0), np.std(results, axis=0, ddof=1)
    least = np.min(results, axis=0)[1]
    print(f"| mean | {first:.1f} ± {deviations[0]:.1f} | {best:.1f} ± {deviations[1]:.1f}, minimum {least:.1f} | |")


if __name__ == "__main__":
    tyro.cli(main)
