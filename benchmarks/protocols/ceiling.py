"""The highest return that a search finds on each track, with the simulator in hand.

    python benchmarks/protocols/ceiling.py --tracks test-20
    python benchmarks/protocols/ceiling.py --tracks test-20 --control discrete

Every few frames an evolutionary search looks for the actions of the next 1.2 seconds that lead farthest along the
track. It drives its candidates in the true simulator from the present, saved state. Then the first few frames are
driven, and it looks again. So a driver that chooses from what it sees is compared with one that tries thousands of
futures at every decision. The result is a return that can be reached, not a proof of the maximum.

Continuous control: the cross-entropy method on steering and pedals, linear between numbers every five frames. Discrete:
one of the five actions every two frames; children cross two plans of the elite and change some actions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import tyro
from gymnasium.wrappers import TimeLimit

from nac_drive.data_collection.controller.controller import Controller, Plan
from nac_drive.envs import CarRacing, Control, rollout, track_seeds
from nac_drive.envs.branches import branch, go_back
from nac_drive.envs.pulses import COMMANDS
from nac_drive.parallel.processes import default_workers, worker_pool

STEP = 21 / 6.0
"""Units between two tiles."""
FULL_SPEED = 0.5
"""Tiles a frame: the worth of a frame that is left after the last tile."""
MISSED = 20.0
"""Tiles that a passed and untouched tile costs."""
LOCKED = 0.89
"""The largest brake: 0.9 blocks the wheels."""
EPISODE = 1000
"""Frames."""
DRIVEN = 5
"""Frames that are driven before the next search."""


@dataclass(frozen=True)
class Search:
    """Settings of the search."""

    horizon: int = 60
    """Frames that a candidate drives."""
    candidates: int = 128
    generations: int = 5
    elite: int = 12
    spread: float = 0.15
    """Continuous: standard deviation of a plan's numbers in the first generation."""
    least_spread: float = 0.02
    """Continuous: added in every generation."""
    change: float = 0.1
    """Discrete: probability that a child has another action than its parent."""
    seed: int = 0


class Plans(ABC):
    """Plans of one control: arrays (N, K, ...), and how they evolve."""

    hold: int
    """Frames between two entries of a plan."""

    def __init__(self, search: Search):
        self.search = search

    @abstractmethod
    def read(self, actions: list[Any]) -> np.ndarray:
        """Return the plan (K, ...) of the actions that the controller takes."""

    @abstractmethod
    def first(self, best: np.ndarray, shipped: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return the first generation, around the best plan so far and around the controller's."""

    @abstractmethod
    def following(self, elite: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return the generation after some plans, the best one first, which it holds too."""

    @abstractmethod
    def commands(self, plans: np.ndarray) -> np.ndarray:
        """Return steer, gas and brake of every frame, (horizon, N, 3)."""

    @abstractmethod
    def actions(self, plan: np.ndarray) -> list[Any]:
        """Return the actions of the first frames as the environment takes them."""

    def shifted(self, plan: np.ndarray) -> np.ndarray:
        """Return a plan as it is seen after the driven frames; its last entries are held."""
        frames = np.minimum(np.arange(len(plan)) * self.hold + DRIVEN, (len(plan) - 1) * self.hold)
        return plan[frames // self.hold]


class ContinuousPlans(Plans):
    """Steering, and gas or, negative, brake: (N, K, 2)."""

    hold = 5

    def read(self, actions: list[Any]) -> np.ndarray:
        return np.array([(steer, gas - brake / LOCKED) for steer, gas, brake in actions])[:: self.hold]

    def first(self, best: np.ndarray, shipped: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        plans = best + self.search.spread * rng.standard_normal((self.search.candidates, *best.shape))
        half = len(plans) // 2
        plans[half:] += shipped - best
        plans[0], plans[half] = best, shipped
        return np.clip(plans, -1, 1)

    def following(self, elite: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        spread = elite.std(axis=0) + self.search.least_spread
        plans = elite.mean(axis=0) + spread * rng.standard_normal((self.search.candidates, *elite.shape[1:]))
        plans[0] = elite[0]
        return np.clip(plans, -1, 1)

    def commands(self, plans: np.ndarray) -> np.ndarray:
        knots, frames = np.arange(plans.shape[1]) * self.hold, np.arange(self.search.horizon)
        low = np.minimum(frames // self.hold, len(knots) - 2)
        fraction = ((frames - knots[low]) / self.hold)[:, None, None]
        numbers = plans.swapaxes(0, 1)  # (K, N, 2)
        values = np.clip((1 - fraction) * numbers[low] + fraction * numbers[low + 1], -1, 1)
        steer, pedal = values[..., 0], values[..., 1]
        return np.stack((steer, np.maximum(pedal, 0), LOCKED * np.maximum(-pedal, 0)), axis=-1)

    def actions(self, plan: np.ndarray) -> list[Any]:
        return list(self.commands(plan[None])[:DRIVEN, 0].astype(np.float32))


class DiscretePlans(Plans):
    """Numbers of the five actions: (N, K)."""

    hold = 2

    def read(self, actions: list[Any]) -> np.ndarray:
        return np.array(actions)[:: self.hold]

    def first(self, best: np.ndarray, shipped: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return self.following(np.stack((best, shipped)), rng)

    def following(self, elite: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        count, knots = self.search.candidates, elite.shape[1]
        one, other = elite[rng.integers(len(elite), size=(2, count))]
        plans = np.where(np.arange(knots) < rng.integers(knots, size=(count, 1)), one, other)
        changed = rng.random(plans.shape) < self.search.change
        plans = np.where(changed, rng.integers(len(COMMANDS), size=plans.shape), plans)
        plans[: min(len(elite), 2)] = elite[:2]
        return plans

    def commands(self, plans: np.ndarray) -> np.ndarray:
        frames = np.arange(self.search.horizon) // self.hold
        return np.array(COMMANDS)[plans.swapaxes(0, 1)[frames]]

    def actions(self, plan: np.ndarray) -> list[Any]:
        return [int(plan[frame // self.hold]) for frame in range(DRIVEN)]


KINDS: dict[str, type[Plans]] = {"continuous": ContinuousPlans, "discrete": DiscretePlans}


def worth(world: Any, commands: np.ndarray) -> np.ndarray:
    """Return how many tiles the commands (horizon, N, 3) lead each car ahead."""
    horizon = len(commands)
    finished = np.full(world.count, horizon)
    for frame, actions in enumerate(commands):
        world.actions[:] = actions
        world.step()
        if world.terminated.any():
            finished = np.where(world.terminated & (finished == horizon), frame, finished)
    cars, tiles = world.cars, int(world.roads["tiles"][0])
    line = world.roads["line"][0, cars["index"]]  # (N, 4)
    away = cars["position"] - line[:, 2:]
    along = (away[:, 1] * np.cos(line[:, 1]) - away[:, 0] * np.sin(line[:, 1])) / STEP
    progress = cars["lap"]["laps"] * tiles + cars["index"] + along
    passed = np.arange(tiles) < np.clip(cars["lap"]["furthest"] - 3, 0, tiles)[:, None]
    missed = (passed & (cars["visited"][:, :tiles] == 0)).sum(axis=1)
    whole = cars["visited_count"] == tiles
    progress = np.where(whole, tiles + FULL_SPEED * (horizon - finished), np.minimum(progress, tiles + 10.0))
    return progress - MISSED * missed - 100.0 * cars["outside"] - 5.0 * (np.abs(cars["heading_error"]) > 1.5)


def controllers_actions(env: CarRacing, controller: Controller, course: Plan, frames: int) -> list[Any]:
    """Return what the shipped controller would do from here."""
    state, actions, index = env.save_state(), [], course.index
    for _ in range(frames):
        action, course = controller.act(env.state, course, 0.02)
        actions.append(action)
        env.step(action)
    env.restore_state(state)
    course.index = index
    return actions


def drive(search: Search, control: Control, seed: int) -> tuple[int, float, float, int]:
    """Return the track, the controller's return, the best drive's return, and its frames."""
    env = CarRacing(control=control)
    env.observe = False
    controller = Controller(control)
    shipped_return = rollout(TimeLimit(env, EPISODE), controller, seed).episode_return
    env.reset(seed=seed)
    rng, plans = np.random.default_rng((search.seed, seed)), KINDS[control](search)
    course = controller.begin(env)
    world = branch(env.save_state(), search.candidates)
    total, terminated, best = 0.0, False, None
    while not terminated and env.frame < EPISODE:
        state = env.save_state()
        shipped = plans.read(controllers_actions(env, controller, course, search.horizon + 1))
        generation = plans.first(shipped if best is None else plans.shifted(best), shipped, rng)
        best, record = shipped, -np.inf
        for _ in range(search.generations):
            go_back(world, state)
            values = worth(world, plans.commands(generation))
            order = np.argsort(values)[::-1]
            if values[order[0]] > record:
                best, record = generation[order[0]].copy(), values[order[0]]
            elite = np.concatenate((best[None], generation[order[: search.elite]]))
            generation = plans.following(elite, rng)
        for action in plans.actions(best):
            _, reward, terminated, *_ = env.step(action)
            total += reward
            if terminated or env.frame == EPISODE:
                break
    return seed, shipped_return, total, env.frame


def main(tracks: str = "test-20", control: Control = "continuous", search: Search = Search(), workers: int = 0) -> None:
    """Search on every track and print the returns."""
    results = []
    with worker_pool(workers or default_workers()) as pool:
        print("| track | controller | best found | frames |\n|---|---:|---:|---:|", flush=True)
        work = partial(drive, search, control)
        for seed, shipped, total, frames in (pool.imap if pool else map)(work, track_seeds(tracks)):
            results.append((shipped, total))
            print(f"| {seed} | {shipped:.1f} | {total:.1f} | {frames} |", flush=True)
    shipped, total = np.transpose(results)
    spread = [f"{values.mean():.1f} ± {values.std(ddof=min(1, len(values) - 1)):.1f}" for values in (shipped, total)]
    print(f"| mean | {spread[0]} | {spread[1]}, {total.min():.1f} to {total.max():.1f} | |")


if __name__ == "__main__":
    tyro.cli(main)
