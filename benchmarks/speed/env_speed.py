"""Speed of the simulation on one core, and the time of each part of a frame and of a reset.

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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import cv2
import gymnasium
import numpy as np

from nac_drive.data_collection.controller.controller import Controller
from nac_drive.envs import BAR_TOP, ActionRepeat, EnvConfig, Renderer, Step, make_env, rollout
from nac_drive.envs.renderer.car import draw_car
from nac_drive.envs.renderer.geometry import FULL_ZOOM
from nac_drive.envs.renderer.status_bar import score

FRAMES = 300
REPEAT = 4


def fast() -> Any:
    return make_env(EnvConfig("continuous", renderer="fast"))


def blind() -> Any:
    env = fast()
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
    "renderer=gymnasium": lambda: make_env(EnvConfig("continuous")),
    "renderer=fast": fast,
    f"renderer=fast, ActionRepeat({REPEAT})": lambda: ActionRepeat(fast(), REPEAT),
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


class Stopwatch:
    """Sums the time of named parts."""

    def __init__(self):
        self.seconds: dict[str, list[float]] = defaultdict(list)

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[name].append(time.perf_counter() - started)

    def table(self, title: str) -> None:
        print(f"{title:46} {'mean':>8} {'median':>8} {'times':>7}")
        for name, seconds in self.seconds.items():
            mean, median = 1000 * statistics.fmean(seconds), 1000 * statistics.median(seconds)
            print(f"  {name:44} {mean:8.3f} {median:8.3f} {len(seconds):7}")


def parts(rounds: int) -> None:
    """Milliseconds per part of a frame, zoom-in included, and per part of a reset."""
    of_frame, of_reset = Stopwatch(), Stopwatch()
    bare: Any = gymnasium.make("CarRacing-v3", continuous=True).unwrapped
    bare._render = lambda mode: None
    env = blind()
    car_racing = env.unwrapped
    renderer = Renderer(car_racing.bg_color, car_racing.grass_color)
    frame = np.empty((96, 96, 3), np.uint8)
    for seed in range(1, rounds + 1):
        actions = episode(seed)
        with of_reset("gymnasium: track and car"):
            bare.reset(seed=seed)
        env.reset(seed=seed)
        with of_reset("painting the ground"):
            renderer.begin(car_racing.road_vertices, car_racing._road_colors)
        for action in actions:
            with of_frame("gymnasium: car and physics"):
                bare.step(action)
            with of_frame("ours, with telemetry (observe=False)"):
                env.step(action)
            car, zoom = car_racing.car, 0.6 * max(1 - car_racing.t, 0) + FULL_ZOOM * min(car_racing.t, 1)
            x, y = car.hull.position
            with of_frame("drawing: tiles that were touched"):
                renderer.ground.refresh()
            with of_frame("drawing: ground" if zoom > 0.999 * FULL_ZOOM else "drawing: ground in the zoom-in"):
                renderer.ground.draw(frame[:BAR_TOP], x, y, car.hull.angle, zoom)
            with of_frame("drawing: car"):
                draw_car(frame, car, zoom)
            with of_frame("drawing: status bar"):
                renderer.bar.draw(frame[BAR_TOP:], car)
            with of_frame("drawing: score"):
                score(f"{car_racing.reward:04.0f}")
            with of_frame("a whole frame without touched tiles"):
                renderer.draw(car, zoom, car_racing.reward)
    of_frame.table("a frame, ms")
    of_reset.table("a reset, ms")


if __name__ == "__main__":
    cv2.setNumThreads(1)
    chosen = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    rates(chosen)
    resets(3 * chosen)
    parts(chosen)
