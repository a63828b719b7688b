"""Speed of the simulator on one core, and the time of a reset.

python benchmarks/speed/env_speed.py       # seven rounds, about a minute
python benchmarks/speed/env_speed.py 20    # more rounds

Every round drives every environment for 300 frames after a reset, the zoom-in included, with the same actions: the
controller's on the track of that round (EnvPool draws other tracks). One process, one core, one thread. Rates count
processor time; they are medians over the rounds. Ratios are medians of the ratios within a round, so that a busy
machine hurts both sides alike. EnvPool is measured where it is installed (`pip install envpool`).
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import cv2
import gymnasium
import numpy as np

from nac_drive.data_collection.controller.controller import Controller
from nac_drive.envs import ActionRepeat, EnvConfig, Step, make_env, make_vec_env, rollout
from nac_drive.envs.branches import branch

FRAMES = 300
REPEAT = 4
BATCH = 16


def drawn() -> Any:
    return make_env(EnvConfig("continuous"))


def seat() -> Any:
    return make_env(EnvConfig("continuous", view="seat"))


def undrawn() -> Any:
    env = drawn()
    env.unwrapped.observe = False
    return env


class GymnasiumUndrawn:
    """gymnasium's environment without its drawing."""

    def __init__(self) -> None:
        self.env = gymnasium.make("CarRacing-v3", continuous=True, disable_env_checker=True)
        black = np.zeros((96, 96, 3), np.uint8)
        self.env.unwrapped._render = lambda mode: black  # type: ignore[attr-defined]
        self.reset, self.step = self.env.reset, self.env.step


class Batch:
    """`BATCH` environments on one track, as a vector environment or as bare worlds."""

    count = BATCH

    def __init__(self, observe: bool):
        self.envs = make_vec_env(EnvConfig("continuous"), BATCH)
        self.envs.set_attr("observe", observe)

    def reset(self, seed: int) -> None:
        self.envs.reset(seed=[seed] * BATCH)

    def step(self, action: np.ndarray) -> None:
        self.envs.step(np.tile(action, (BATCH, 1)))


class Worlds:
    """`BATCH` bare worlds on one track: no `info`."""

    count = BATCH

    def reset(self, seed: int) -> None:
        env = undrawn()
        env.reset(seed=seed)
        self.world = branch(env.unwrapped.save_state(), BATCH)

    def step(self, action: np.ndarray) -> None:
        self.world.actions[:] = action
        self.world.step()


class EnvPool:
    """EnvPool's CarRacing with the calls that are timed here."""

    def __init__(self, count: int):
        import envpool  # type: ignore[import-not-found]

        self.count = count
        self.env = envpool.make("CarRacing-v3", env_type="gymnasium", num_envs=count, num_threads=1)

    def reset(self, seed: int) -> None:
        self.env.reset()

    def step(self, action: np.ndarray) -> None:
        self.env.step(np.tile(action, (self.count, 1)))


ENVIRONMENTS: dict[str, Callable[[], Any]] = {
    "gymnasium": lambda: gymnasium.make("CarRacing-v3", continuous=True),
    "gymnasium, undrawn": GymnasiumUndrawn,
    "drawn": drawn,
    "drawn, from the driver's seat": seat,
    f"drawn, ActionRepeat({REPEAT})": lambda: ActionRepeat(drawn(), REPEAT),
    "undrawn": undrawn,
    f"make_vec_env, {BATCH} drawn": lambda: Batch(True),
    f"make_vec_env, {BATCH} undrawn": lambda: Batch(False),
    f"worlds, {BATCH} undrawn": Worlds,
}
if importlib.util.find_spec("envpool"):
    ENVIRONMENTS["EnvPool"] = lambda: EnvPool(1)
    ENVIRONMENTS[f"EnvPool, {BATCH}"] = lambda: EnvPool(BATCH)


def episode(seed: int) -> list[np.ndarray]:
    """The controller's actions in the first 300 frames of a track."""
    steps: list[Step] = []
    env = make_env(EnvConfig("continuous", max_steps=FRAMES))
    env.unwrapped.observe = False  # type: ignore[attr-defined]
    rollout(env, Controller("continuous"), seed, subscribers=[steps.append])
    return [np.asarray(step.action, dtype=np.float32) for step in steps]


def rates(rounds: int) -> None:
    """Frames/s of all entries."""
    entries = {name: make() for name, make in ENVIRONMENTS.items()}
    frames = defaultdict(list)
    for seed in range(rounds + 1):
        actions = episode(seed)
        for name, env in entries.items():
            env.reset(seed=seed)
            started = time.process_time()
            for action in actions[::REPEAT] if isinstance(env, ActionRepeat) else actions:
                env.step(action)
            if seed:  # the first round warms up
                count = getattr(env, "count", 1) * len(actions)
                frames[name].append(count / (time.process_time() - started))
    print(f"{'frames/s':32} {'median':>8} {'x gymnasium':>12} {'x EnvPool':>10}")
    for name in entries:
        ratios = [
            f"{statistics.median(a / b for a, b in zip(frames[name], frames[other], strict=True)):.2f}"
            if other in entries
            else "-"
            for other in ("gymnasium", "EnvPool")
        ]
        print(f"{name:32} {statistics.median(frames[name]):8.0f} {ratios[0]:>12} {ratios[1]:>10}")


def resets(tracks: int) -> None:
    """Milliseconds of a reset, one track after another, ten frames on each; the first one also allocates."""
    print(f"{'reset, ms':32} {'median':>8} {'longest':>12} {'the first':>10}")
    for name, make in ENVIRONMENTS.items():
        env, times = make(), []
        for seed in range(tracks + 1):
            started = time.process_time()
            env.reset(seed=seed)
            times.append(1000 * (time.process_time() - started) / getattr(env, "count", 1))
            for _ in range(10):
                env.step(np.array([0, 1, 0], np.float32))
        print(f"{name:32} {statistics.median(times[1:]):8.2f} {max(times[1:]):12.2f} {times[0]:10.2f}")


if __name__ == "__main__":
    cv2.setNumThreads(1)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    chosen = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    rates(chosen)
    resets(3 * chosen)
