"""The highest return that a search finds on each track, with the simulator in hand.

    python benchmarks/protocols/ceiling.py --tracks test-20

Every few frames the cross-entropy method looks for the steering and the pedals of the next 1.2 seconds that lead
farthest along the track. It drives its candidates in the true simulator from the present, saved state. Then the first
few frames are driven, and it looks again. So a driver that chooses from what it sees is compared with one that tries
thousands of futures at every decision. The result is a return that can be reached, not a proof of the maximum.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import tyro

from nac_drive.data_collection.controller.controller import Controller, Plan
from nac_drive.data_collection.processes import default_workers, worker_pool
from nac_drive.envs import CarRacing, track_seeds
from nac_drive.envs.branches import branch, go_back

STEP = 21 / 6.0
"""Units between two tiles."""
FULL_SPEED = 0.5
"""Tiles a frame: the worth of a frame that is left after the last tile."""
MISSED = 20.0
"""Tiles that a passed and untouched tile costs."""
LOCKED = 0.89
"""The largest brake: 0.9 blocks the wheels."""


@dataclass(frozen=True)
class Search:
    """Settings of the search."""

    horizon: int = 60
    """Frames that a candidate drives."""
    hold: int = 5
    """Frames between two numbers of a plan, and between two searches."""
    candidates: int = 128
    generations: int = 5
    elite: int = 12
    spread: float = 0.15
    """Standard deviation of a plan's numbers in the first generation."""
    least_spread: float = 0.02
    """Added in every generation."""
    seed: int = 0


def commands(plans: np.ndarray, search: Search) -> np.ndarray:
    """Return the actions (horizon, N, 3) of plans (N, K, 2): steering, and gas or, negative, brake."""
    knots = np.arange(plans.shape[1]) * search.hold
    frames = np.arange(search.horizon)
    low = np.minimum(frames // search.hold, len(knots) - 2)
    part = ((frames - knots[low]) / search.hold)[:, None, None]
    numbers = plans.swapaxes(0, 1)  # (K, N, 2)
    values = np.clip((1 - part) * numbers[low] + part * numbers[low + 1], -1, 1)
    steer, pedal = values[..., 0], values[..., 1]
    return np.stack((steer, np.maximum(pedal, 0), LOCKED * np.maximum(-pedal, 0)), axis=-1)


def worth(world, plans: np.ndarray, search: Search) -> np.ndarray:
    """Return how many tiles each plan (N, K, 2) leads ahead."""
    finished = np.full(world.count, search.horizon)
    for frame, actions in enumerate(commands(plans, search)):
        world.actions[:] = actions
        world.step()
        if world.terminated.any():
            finished = np.where(world.terminated & (finished == search.horizon), frame, finished)
    cars, tiles = world.cars, int(world.roads["tiles"][0])
    line = world.roads["line"][0, cars["index"]]  # (N, 4)
    away = cars["position"] - line[:, 2:]
    along = (away[:, 1] * np.cos(line[:, 1]) - away[:, 0] * np.sin(line[:, 1])) / STEP
    progress = cars["lap"]["laps"] * tiles + cars["index"] + along
    passed = np.arange(tiles) < np.clip(cars["lap"]["furthest"] - 3, 0, tiles)[:, None]
    missed = (passed & (cars["visited"][:, :tiles] == 0)).sum(axis=1)
    whole = cars["visited_count"] == tiles
    progress = np.where(whole, tiles + FULL_SPEED * (search.horizon - finished), np.minimum(progress, tiles + 10.0))
    return progress - MISSED * missed - 100.0 * cars["outside"] - 5.0 * (np.abs(cars["heading_error"]) > 1.5)


def controllers_plan(env: CarRacing, controller: Controller, course: Plan, search: Search) -> np.ndarray:
    """Return the plan (K, 2) of what the shipped controller would do from here."""
    state, numbers = env.save_state(), []
    index = course.index
    for _ in range(search.horizon + 1):
        (steer, gas, brake), course = controller.act(env.state, course, 0.02)
        numbers.append((steer, gas - brake / LOCKED))
        env.step(np.array((steer, gas, brake), np.float32))
    env.restore_state(state)
    course.index = index
    return np.array(numbers)[:: search.hold]


def drive(search: Search, seed: int) -> tuple[int, float, int]:
    """Return the track, the return and the frames of a drive."""
    env = CarRacing(control="continuous")
    env.observe = False
    env.reset(seed=seed)
    rng = np.random.default_rng((search.seed, seed))
    knots = search.horizon // search.hold + 1
    controller = Controller("continuous")
    course = controller.begin(env)
    plan = np.zeros((knots, 2))
    world = branch(env.save_state(), search.candidates)
    total, terminated = 0.0, False
    while not terminated and env.frame < 1000:
        state = env.save_state()
        mean, spread = plan, np.full_like(plan, search.spread)
        best, record, shipped = plan, -np.inf, controllers_plan(env, controller, course, search)
        for generation in range(search.generations):
            plans = np.clip(mean + spread * rng.standard_normal((search.candidates, *plan.shape)), -1, 1)
            plans[0] = best
            if generation == 0:
                half = search.candidates // 2
                plans[half:] += shipped - mean
                plans[half] = shipped
            go_back(world, state)
            values = worth(world, plans, search)
            order = np.argsort(values)[::-1]
            if values[order[0]] > record:
                best, record = plans[order[0]].copy(), values[order[0]]
            elite = plans[order[: search.elite]]
            mean, spread = elite.mean(axis=0), elite.std(axis=0) + search.least_spread
        for actions in commands(best[None], search)[: search.hold, 0].astype(np.float32):
            _, reward, terminated, *_ = env.step(actions)
            total += reward
            if terminated or env.frame == 1000:
                break
        plan = np.concatenate((best[1:], best[-1:]))
    return seed, total, env.frame


def main(tracks: str = "test-20", search: Search = Search(), workers: int = 0) -> None:
    """Search on every track and print the returns."""
    returns = []
    with worker_pool(workers or default_workers()) as pool:
        print("| track | return | frames |\n|---|---:|---:|", flush=True)
        for seed, total, frames in (pool.imap if pool else map)(partial(drive, search), track_seeds(tracks)):
            returns.append(total)
            print(f"| {seed} | {total:.1f} | {frames} |", flush=True)
    spread = f"{np.std(returns, ddof=1):.1f}, {min(returns):.1f} to {max(returns):.1f}"
    print(f"| mean | {np.mean(returns):.1f} ± {spread} | |")


if __name__ == "__main__":
    tyro.cli(main)
