"""Speed of the simulation on one core, and the time of a reset.

python benchmarks/speed/env_speed.py       # seven rounds, about a minute
python benchmarks/speed/env_speed.py 20    # more rounds

Every round drives every environment for 300 frames after a reset, the zoom-in included, with the same actions: those of
the controller on the track of that round (EnvPool draws other tracks). One process, one thread. Rates are medians over
the rounds, ratios are medians of the ratios within a round, so that a busy machine hurts both sides alike. EnvPool is
measured where it is installed (`pip install envpool`).
"""

from __future__ import annotations

import importlib.util
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
from nac_drive.envs import ActionRepeat, EnvConfig, Step, make_env, rollout

FRAMES = 300
REPEAT = 4


def drawn() -> Any:
    return make_env(EnvConfig("continuous"))


def blind() -> Any:
    env = drawn()
    env.unwrapped.observe = False
    return env


class EnvPool:
    """EnvPool's CarRacing with the calls that are timed here."""

    def __init__(self):
        import envpool  # type: ignore[import-not-found]

        self.env = envpool.make("CarRacing-v3", env_type="gymnasium", num_envs=1, num_threads=1)

    def reset(self, seed: int) -> None:
        self.env.reset()

    def step(self, action: np.ndarray) -> None:
        self.env.step(action[None])


ENVIRONMENTS: dict[str, Callable[[], Any]] = {
    "gymnasium": lambda: gymnasium.make("CarRacing-v3", continuous=True),
    "drawn": drawn,
    f"drawn, ActionRepeat({REPEAT})": lambda: ActionRepeat(drawn(), REPEAT),
    "observe=False": blind,
}
if importlib.util.find_spec("envpool"):
    ENVIRONMENTS["EnvPool"] = EnvPool


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
            started = time.perf_counter()
            for action in actions[::REPEAT] if isinstance(env, ActionRepeat) else actions:
                env.step(action)
            if seed:  # the first round warms up
                frames[name].append(len(actions) / (time.perf_counter() - started))
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
            started = time.perf_counter()
            env.reset(seed=seed)
            times.append(1000 * (time.perf_counter() - started))
            for _ in range(10):
                env.step(np.array([0, 1, 0], np.float32))
        print(f"{name:32} {statistics.median(times[1:]):8.1f} {max(times[1:]):12.1f} {times[0]:10.1f}")


if __name__ == "__main__":
    cv2.setNumThreads(1)
    chosen = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    rates(chosen)
    resets(3 * chosen)
