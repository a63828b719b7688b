"""Proof that the compiled drawing has gymnasium's pixels, value for value.

python benchmarks/proof_pixels.py                                  # 2,000 frames, a look
python benchmarks/proof_pixels.py --frames 100000 --workers 2      # ten minutes
python benchmarks/proof_pixels.py --levels 0 1 2                   # every form of the drawing: plain C, SSE2, AVX2
python benchmarks/proof_pixels.py --kinds poses --save differences # images of the first difference, as PNG

gymnasium's own `CarRacing-v3` drives and draws. Its state is copied into the structs of the compiled simulator, which
draws it again. All 27,648 values of both frames are compared. The kinds of frames:

    expert, random, violent, lazy, spin   drives of up to 600 frames, each from its zoom-in on
    leave       full gas straight ahead, until the car is far outside the playfield
    colors      the expert with `domain_randomize`
    episodes    short episodes, one after the other in one environment
    poses       states that no drive reaches: anywhere, exact quarter turns, wheels torn off, indicators beyond the bar,
                any score, any height of the view

The turning rate to the left stays below 31 rad/s in poses, and the steering below 1.4 rad: their indicators would
reach the score. No car turns so fast, and joints stop at 0.4 rad.
The exit status is 1 after a difference.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from gymnasium.envs.box2d import car_racing
from PIL import Image
from proof_workers import results_of  # the file beside this one
from rich.console import Console
from rich.table import Table

from nac_drive.envs.gymnasium_world import read_car, read_road
from nac_drive.envs.native.build import LIBRARY
from nac_drive.envs.native.library import CAR, LOWEST_SCORE, ROAD, load, score_images
from nac_drive.envs.score import draw_score

DRIVES = ("expert", "random", "violent", "lazy", "spin", "leave", "colors")
KINDS = (*DRIVES, "episodes", "poses")
EPISODE_FRAMES, SHORT_EPISODE_FRAMES, POSES_PER_TRACK = 600, 60, 200
BEST_LEVEL = 2
ALIGNMENT = 64
COUNTS = ("frames", "values", "different_frames", "different_values")


class Recorded(car_racing.CarRacing):
    """gymnasium's environment that keeps the score of its frame."""

    car: Any
    road: Any
    track: Any
    state: Any
    shown_reward = 0.0

    def _render(self, mode: str) -> Any:
        self.shown_reward = self.reward  # the cost of the step is subtracted afterwards
        return super()._render(mode)


class Compiled:
    """The compiled drawing of one state at a time."""

    def __init__(self, path: Path):
        self._library = load(path)
        self._library.picture_use.argtypes = (ctypes.c_int,)
        self._memory = np.zeros(self._library.picture_scratch_size() + ALIGNMENT, np.uint8)
        self._scratch = -(-self._memory.ctypes.data // ALIGNMENT) * ALIGNMENT
        self._scores = np.ascontiguousarray(score_images())
        self._roads, self._cars = np.zeros(1, ROAD), np.zeros(1, CAR)

    def take_road(self, env: Recorded) -> None:
        self._roads[:] = np.zeros(1, ROAD)
        read_road(env, self._roads[0])

    def take_car(self, env: Recorded) -> None:
        self._cars[:] = np.zeros(1, CAR)
        read_car(env, self._cars[0])

    def draw(self, level: int) -> np.ndarray:
        frame, scoreless = np.zeros((1, 96, 96, 3), np.uint8), np.zeros(1, np.bool_)
        self._library.picture_use(level)
        self._library.frames_draw(
            self._roads.ctypes.data, self._cars.ctypes.data, 1, self._scratch, self._scores.ctypes.data,
            len(self._scores), LOWEST_SCORE, frame.ctypes.data, scoreless.ctypes.data,
        )  # fmt: skip
        if scoreless[0]:
            draw_score(frame[0], self._cars["shown_reward"][0])
        return frame[0]


def expert(env: Recorded) -> np.ndarray:
    """Return the action of a simple controller."""
    (x, y), track = env.car.hull.position, np.array(env.track)
    nearest = int(np.argmin(np.hypot(track[:, 2] - x, track[:, 3] - y)))
    _, beta, tile_x, tile_y = track[nearest]
    heading = _wrapped(env.car.hull.angle - beta)
    offset = (x - tile_x) * np.cos(beta) + (y - tile_y) * np.sin(beta)
    curve = _wrapped(track[(nearest + 8) % len(track), 1] - beta)
    speed, target = np.hypot(*env.car.hull.linearVelocity), 55 - 45 * min(abs(curve), 1)
    steer = np.clip(2 * heading - 0.12 * offset - 1.5 * curve, -1, 1)
    return np.array([steer, np.clip((target - speed) * 0.1, 0, 1), np.clip((speed - target) * 0.05, 0, 0.8)])


def _wrapped(angle: float) -> float:
    return (angle + np.pi) % (2 * np.pi) - np.pi


def policy(kind: str, env: Recorded, rng: np.random.Generator) -> Callable[[], np.ndarray]:
    action = np.zeros(3)

    def violent() -> np.ndarray:
        if rng.random() < 0.1:
            action[:] = rng.choice([-1, 0, 1]), rng.choice([0, 1]), rng.choice([0, 0, 0.5, 1])
        return action

    def lazy() -> np.ndarray:
        return np.array([rng.choice([-1.0, 0, 1]) * (rng.random() < 0.02), 0.3 * (rng.random() < 0.05), 0.0])

    def random() -> np.ndarray:
        return np.array([rng.uniform(-1, 1), rng.random(), rng.random() * (rng.random() < 0.3)])

    return {
        "expert": lambda: expert(env), "colors": lambda: expert(env),
        "violent": violent, "lazy": lazy, "random": random,
        "spin": lambda: np.array([1.0, 1.0, 0.0]), "leave": lambda: np.array([0.0, 1.0, 0.0]),
    }[kind]  # fmt: skip


def driven(kind: str, seed: int, frames: int, compiled: Compiled) -> Iterator[tuple[str, np.ndarray]]:
    """Yield a name and gymnasium's frame for each state; `compiled` holds the same state."""
    env, rng = Recorded(domain_randomize=kind == "colors"), np.random.default_rng(seed)
    act = policy("violent" if kind == "episodes" else kind, env, rng)
    length = SHORT_EPISODE_FRAMES if kind == "episodes" else EPISODE_FRAMES
    for frame in range(frames):
        if frame % length == 0:
            env.reset(seed=seed + frame)
            compiled.take_road(env)
        else:
            env.step(np.asarray(act(), np.float32))
        compiled.take_car(env)
        yield f"{kind} {seed}, frame {frame}", env.state


def posed(seed: int, frames: int, compiled: Compiled) -> Iterator[tuple[str, np.ndarray]]:
    """Yield gymnasium's frames of random states."""
    env, rng = Recorded(domain_randomize=True), np.random.default_rng(seed)
    for frame in range(frames):
        if frame % POSES_PER_TRACK == 0:
            env.reset(seed=seed + frame)
            compiled.take_road(env)
        pose(env, rng)
        image = env._render("state_pixels")
        compiled.take_car(env)
        yield f"poses {seed}, frame {frame}", image


def pose(env: Recorded, rng: np.random.Generator) -> None:
    """Put the car into a state that may be impossible."""
    hull, wheels = env.car.hull, env.car.wheels
    hull.angle = _angle(rng)
    place = rng.integers(5)
    if place < 2:  # on the road
        _, _, x, y = env.track[rng.integers(len(env.track))]
        hull.position = (x + rng.normal(0, 6), y + rng.normal(0, 6))
    elif place == 2:  # around the border of the playfield
        border = rng.choice([-1, 1]) * car_racing.PLAYFIELD + rng.normal(0, 30)
        other = rng.uniform(-360, 360)
        hull.position = (border, other) if rng.random() < 0.5 else (other, border)
    else:  # anywhere, and far outside: pygame's coordinates of 16 bits wrap around there
        hull.position = tuple(rng.uniform(-1, 1, 2) * (340 if place == 3 else 6000))
    drift = rng.choice([0, 0.3, 3, 40])
    for wheel, (x, y) in zip(wheels, car_racing_wheels(), strict=True):
        offset = hull.GetWorldVector((x, y))
        wheel.position = tuple(np.add(hull.position, offset) + rng.normal(0, drift, 2))
        wheel.angle = hull.angle + rng.choice([0, rng.uniform(-0.4, 0.4), rng.uniform(-9, 1.4)])
        wheel.omega = float(
            rng.choice([0, 5e-5, 2e-4, 1, 90, 395, 405, 900, 5000]) * rng.choice([-1, 1]) * rng.random()
        )
        wheel.phase = rng.uniform(-50, 50)
    hull.linearVelocity = tuple(rng.normal(0, 1, 2) * rng.choice([0, 5e-5, 30, 150, 2000]))
    hull.angularVelocity = float(np.clip(rng.normal(0, rng.choice([0, 5e-5, 1, 15])), -90, 31))
    env.t = rng.choice([0.02, 0.5, 1.0, 7.0]) if rng.random() < 0.5 else rng.uniform(0, 1.1)
    scores = (rng.uniform(-1, 1), rng.uniform(-1500, 1500), float(rng.integers(-2000, 12000)), -0.5, 0.5)
    env.reward = float(rng.choice(scores))
    for index in rng.integers(len(env.road), size=4):
        env.road[index].color[:] = env.road_color


def _angle(rng: np.random.Generator) -> float:
    kind = rng.integers(4)
    if kind == 0:  # within 1e-6 of a quarter turn, pygame does not rotate, but swaps coordinates
        return float(rng.integers(-9, 10) * np.pi / 2 + rng.choice([0, 4e-7, -4e-7, 9e-7, -9e-7, 2e-6, -2e-6, 1e-4]))
    if kind == 1:
        return float(rng.integers(-9, 10) * np.pi / 4)
    return rng.uniform(-30, 30)


def car_racing_wheels() -> list[tuple[float, float]]:
    return [(x * 0.02, y * 0.02) for x, y in ((-55, 80), (55, 80), (-55, -82), (55, -82))]


@dataclass
class Job:
    kind: str
    seed: int
    frames: int
    levels: tuple[int, ...]
    library: Path
    save: Path | None


@dataclass
class Result:
    kind: str
    frames: int = 0
    values: int = 0
    different_frames: int = 0
    different_values: int = 0
    first: str = ""


def run(job: Job) -> Result:
    compiled, result = Compiled(job.library), Result(job.kind)
    source = posed if job.kind == "poses" else lambda *rest: driven(job.kind, *rest)
    for name, expected in source(job.seed, job.frames, compiled):
        result.frames += 1
        for level in job.levels:
            frame = compiled.draw(level)
            result.values += frame.size
            different = int((frame != expected).sum())
            if not different:
                continue
            result.different_frames += 1
            result.different_values += different
            if not result.first:
                row, column, _ = (int(index[0]) for index in np.nonzero(frame != expected))
                result.first = f"{name}, level {level}: {different} values, the first at row {row}, column {column}"
                if job.save:
                    job.save.mkdir(parents=True, exist_ok=True)
                    for image, label in ((expected, "gymnasium"), (frame, "compiled")):
                        Image.fromarray(image).save(job.save / f"{name.replace(', ', '-')}-{label}.png")
    return result


@dataclass
class ProofOptions:
    """Pixels of the compiled drawing against gymnasium's."""

    frames: int = 2000
    """Frames in all, shared by the kinds."""
    kinds: tuple[str, ...] = KINDS
    levels: tuple[int, ...] = (BEST_LEVEL,)
    """Forms of the drawing: 0 plain C, 1 SSE2, 2 AVX2. The next lower one replaces a form that the processor lacks."""
    workers: int = 1
    seed: int = 900000
    library: Path = LIBRARY
    save: Path | None = None
    """Folder for images of the first difference of each job."""
    jobs: list[Job] = field(init=False)

    def __post_init__(self) -> None:
        if unknown := set(self.kinds) - set(KINDS):
            raise ValueError(f"kinds must be of {KINDS}, got {sorted(unknown)}.")
        each = -(-self.frames // len(self.kinds))
        self.jobs = [
            Job(kind, self.seed + 10_000 * KINDS.index(kind) + first, min(EPISODE_FRAMES, each - first), self.levels,
                self.library, self.save)
            for first in range(0, each, EPISODE_FRAMES) for kind in self.kinds
        ]  # fmt: skip


def main() -> None:
    options, started = tyro.cli(ProofOptions), time.perf_counter()
    totals = {kind: Result(kind) for kind in options.kinds}
    with closing(results_of(run, options.jobs, options.workers)) as results:
        for result in results:
            total = totals[result.kind]
            for name in COUNTS:
                setattr(total, name, getattr(total, name) + getattr(result, name))
            total.first = total.first or result.first
    everything = Result("all")
    for name in COUNTS:
        setattr(everything, name, sum(getattr(total, name) for total in totals.values()))
    totals["all"] = everything
    table = Table("kind", "frames", "values", "different frames", "different values")
    for total in totals.values():
        table.add_row(total.kind, *(f"{number:,}" for number in (
            total.frames, total.values, total.different_frames, total.different_values)))  # fmt: skip
    console = Console(width=120)
    console.print(table)
    for total in totals.values():
        if total.first:
            console.print(total.first)
    console.print(f"{time.perf_counter() - started:.0f} s")
    sys.exit(bool(totals["all"].different_values))


if __name__ == "__main__":
    main()
