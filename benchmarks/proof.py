"""Proof that the compiled physics has gymnasium's numbers, bit for bit.

python benchmarks/proof.py                                        # 3,500 frames, a look
python benchmarks/proof.py --frames 160000 --kinds random violent lazy expert straight spin  # 960,000 frames, minutes
python benchmarks/proof.py --frames 40000 --kinds champion        # a network drives, it needs frames

gymnasium's own `CarRacing-v3`, which draws nothing here, and the compiled simulator get the same actions. After the
reset and after every frame all numbers are compared by their bits: track and tiles, the bodies, the impulses of the
joints, the wheels, the tiles under them, score and reward, the end, tiles visited and painted, and the telemetry, which
telemetry.py computes from gymnasium's car. Numbers of the same value and another bit, such as zeros of two signs,
count as different.

A worker keeps one environment of gymnasium for all its episodes, so its world of Box2D has a past. In every third
episode crashes are interventions, and in every fourth one the tyres are weak. The table counts rare states, such as
bodies asleep and wheels at a limit, to show that they are covered. `straight` drives on after it has left the
playfield. The exit status is 1 after a difference.
"""

from __future__ import annotations

import sys
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from gymnasium.envs.box2d import car_racing
from gymnasium.envs.box2d.car_dynamics import Car
from proof_workers import results_of  # the file beside this one
from rich.console import Console
from rich.table import Table

from nac_drive.data_collection.drivers import resolve_driver
from nac_drive.envs import CarRacing, EnvConfig, EventDetector, LapDetector, Policy, Track
from nac_drive.envs.native.build import LIBRARY
from nac_drive.envs.native.library import CRASHES, load
from nac_drive.envs.world import World

DRIVERS = {"expert": "controller", "champion": "champion"}
SCRIPTS = ("random", "violent", "lazy", "straight", "spin")
KINDS = (*SCRIPTS, *DRIVERS)
EPISODE_FRAMES = 1000
WEAK_GRIP = 0.7
COLUMNS = (
    "episodes", "frames", "differences", "finished", "outside", "crashes", "interventions", "weak grip", "off road",
    "asleep", "at a limit", "wheels blocked",
)  # fmt: skip
BLOCKING_BRAKE = 0.9
TILES_AROUND, ALL_TILES_EVERY = 12, 50


class Undrawn(car_racing.CarRacing):
    """gymnasium's environment without its drawing."""

    car: Any
    road: Any
    track: Any

    def _render(self, mode: str) -> Any:
        return None


class Script:
    """Actions of one kind that look at nothing."""

    def __init__(self, kind: str, seed: int):
        self._rng, self._kind, self._action = np.random.default_rng(seed), kind, np.zeros(3, np.float32)

    def begin(self, env: Any) -> None:
        return None

    def act(self, observation: np.ndarray, state: None, dt: float) -> tuple[np.ndarray, None]:
        return np.array(self._next(), np.float32), None

    def _next(self) -> Any:
        rng = self._rng
        match self._kind:
            case "random":
                return rng.uniform(-1, 1), rng.uniform(0, 1), rng.uniform(0, 1) * (rng.random() < 0.3)
            case "violent":
                if rng.random() < 0.1:
                    self._action[:] = rng.choice([-1, 0, 1]), rng.choice([0, 1]), rng.choice([0, 0, 0.5, 1])
                return self._action
            case "lazy":  # stands for seconds, so that the bodies sleep
                if rng.random() < 0.02:
                    self._action[1:] = [(0, 0), (0.3, 0), (0, 1)][rng.integers(3)]
                self._action[0] = rng.choice([-1, 0, 1]) * (rng.random() < 0.02)
                return self._action
            case "straight":
                return 0, 1, 0
        return 1, 1, 0  # spin


class Pair:
    """gymnasium's environment and ours, in the same episode.

    Args:
        world: The memory of `env`.
        env: Our environment.
        counts: Numbers of the columns, counted on.
    """

    def __init__(self, gymnasium: Undrawn, world: World, env: CarRacing, counts: Counter[str]):
        self.gymnasium, self.world, self.env, self.counts = gymnasium, world, env, counts
        car = world.cars[0]
        self._bodies, self._impulses = car["body"].view(np.float32), car["joint"].view(np.float32).reshape(4, -1)[:, :4]
        self._wheels = [car["wheel"][name] for name in ("steer", "gas", "brake", "omega", "phase")]
        self._flags = [car["wheel"][name] for name in ("skids", "on_road")]
        self._touched, self._touched_tiles = car["wheel"]["touched"], car["wheel"]["tiles"]
        self._visited, self._painted = car["visited"], car["painted"]
        self.terminated = False

    def reset(self, seed: int, grip: float) -> Iterator[str]:
        """Begin an episode on both sides. Yields the names of what differs."""
        self.gymnasium.reset(seed=seed)
        self.env.reset(seed=seed)
        self.env.grip = grip
        for tile in self.gymnasium.road:
            tile.road_friction *= grip
        track = np.array(self.gymnasium.track)
        self._line = Track(track[:, 2:4], track[:, 1])
        self._events, self._lap = EventDetector(), LapDetector(len(track))
        self._on_road, self._outside, self._crash = [False] * 4, False, None
        yield from self._road_differences(track)
        yield from self._differences()

    def step(self, action: np.ndarray) -> Iterator[str]:
        """Advance both sides by a frame. Yields the names of what differs."""
        self._on_road = [bool(wheel.tiles) for wheel in self.gymnasium.car.wheels]
        _, reward, terminated, *_ = self.gymnasium.step(action)
        self.world.actions[0] = action
        self.world.step()
        hull, wheels = self.gymnasium.car.hull, self.gymnasium.car.wheels
        self._pose = pose = self._line.locate(hull.position, hull.angle)
        self._outside = max(map(abs, hull.position)) > car_racing.PLAYFIELD
        self._crash = self._events.update(sum(not wheel.tiles for wheel in wheels), pose.heading, self._outside)
        self._lap.update(pose.index, self.gymnasium.tile_visited_count)
        yield from self._telemetry_differences(hull, wheels)
        if self._crash and self.env.crash == "intervene" and not terminated:
            self.gymnasium.car.destroy()
            self.gymnasium.car = Car(
                self.gymnasium.world, self._line.angles[pose.index], *self._line.points[pose.index]
            )
            self._events.rearm()
            self._on_road = [False] * 4
            self.counts["interventions"] += 1
        self.terminated = terminated
        yield from _unequal(
            "reward", (float(reward), terminated), np.array((self.world.rewards[0], self.world.terminated[0]))
        )
        yield from self._differences()
        self._count()

    def _road_differences(self, track: np.ndarray) -> Iterator[str]:
        road, tiles = self.world.roads[0], len(track)
        polygons = np.array([polygon for polygon, _ in self.gymnasium.road_poly])
        corners = [tile.fixtures[0].shape.vertices for tile in self.gymnasium.road]
        if not (road["tiles"] == tiles and road["polygons"] == len(polygons)):
            yield "number of tiles"
            return
        yield from _unequal("line", track.ravel(), road["line"][:tiles])
        yield from _unequal("polygons", polygons.ravel(), road["polygon"][: len(polygons)])
        for i in range(tiles):
            corner = road["corner"][i, : road["corners"][i]]
            yield from _unequal("corners", np.ravel(corners[i]), corner)

    def _differences(self) -> Iterator[str]:
        """Compare car, tiles and score."""
        theirs, ours = self.gymnasium, self.world.cars[0]
        car, wheels = theirs.car, theirs.car.wheels
        bodies = [number for body in (car.hull, *wheels) for number in _body(body)]
        yield from _unequal("bodies", bodies, self._bodies)
        impulses = [number for wheel in wheels for number in _impulses(wheel.joint)]
        yield from _unequal("impulses", impulses, self._impulses)
        angles = [wheel.joint.angle for wheel in wheels]
        yield from _unequal("joint angles", angles, self._bodies[10::8] - self._bodies[2])
        for name, row in zip(("steer", "gas", "brake", "omega", "phase"), self._wheels, strict=True):
            yield from _unequal(name, [getattr(wheel, name) for wheel in wheels], row)
        yield from _unequal("skids", map(_skids, wheels), self._flags[0])
        yield from _unequal("on_road", self._on_road, self._flags[1])
        yield from _unequal("position", car.hull.position, ours["position"])
        score = theirs.reward, theirs.prev_reward, theirs.t, theirs.tile_visited_count, theirs.new_lap
        names = ("reward", "previous_reward", "time", "visited_count", "new_lap")
        yield from _unequal("score", score, np.array([ours[name] for name in names], float))
        for wheel, count, row in zip(wheels, self._touched.tolist(), self._touched_tiles, strict=True):
            tiles = sorted(tile.idx for tile in wheel.tiles), sorted(row[:count].tolist())
            if tiles[0] != tiles[1]:
                yield f"tiles: {tiles[0]} and {tiles[1]}"
        yield from self._tile_differences()

    def _tile_differences(self) -> Iterator[str]:
        """Compare what was visited and painted: the tiles near the car, now and then all of them."""
        road, ours = self.gymnasium.road, self.world.cars[0]
        index, count, road_color = ours["index"].item(), len(road), self.gymnasium.road_color.tolist()
        near = range(index - TILES_AROUND, index + TILES_AROUND + 1)
        rows = [i % count for i in near] if ours["frame"] % ALL_TILES_EVERY else range(count)
        visited, painted = self._visited.tolist(), self._painted.tolist()
        for i in rows:
            if road[i].road_visited != visited[i]:
                yield f"visited: tile {i}"
            # every third tile has the colour of the road from the start
            if i % 3 and (road[i].color.tolist() == road_color) != painted[i]:
                yield f"painted: tile {i}"

    def _telemetry_differences(self, hull: Any, wheels: Any) -> Iterator[str]:
        ours, pose, events = self.world.cars[0], self._pose, self._events
        numbers = (
            pose.index, pose.lateral, pose.heading, float(np.hypot(*hull.linearVelocity)),
            sum(not wheel.tiles for wheel in wheels), CRASHES.index(self._crash), self._outside,
        )  # fmt: skip
        names = (
            "index", "lateral_offset", "heading_error", "speed", "wheels_off_road", "crash", "outside"
        )  # fmt: skip
        yield from _unequal("telemetry", numbers, np.array([ours[name] for name in names], float))
        counts = ours["events"].item()[:3], ours["lap"].item()[2:]
        yield from _unequal("events", (events.off_road, events.off_road_events, events.crashes), np.array(counts[0]))
        yield from _unequal("lap", (self._lap.furthest, self._lap.finished), np.array(counts[1]))

    def _count(self) -> None:
        ours = self.world.cars[0]
        counts = self.counts
        counts["frames"] += 1
        counts["crashes"] += bool(ours["crash"])
        counts["weak grip"] += self.env.grip < 1
        counts["off road"] += ours["wheels_off_road"].item() == 4
        counts["asleep"] += not self.gymnasium.car.hull.awake
        counts["at a limit"] += bool(ours["joint"]["limit"].any())
        counts["wheels blocked"] += bool(ours["wheel"]["brake"][0] >= BLOCKING_BRAKE)


def _body(body: Any) -> tuple[float, ...]:
    centre, velocity, turn = body.worldCenter, body.linearVelocity, body.transform.q
    return centre.x, centre.y, body.angle, velocity.x, velocity.y, body.angularVelocity, turn.s, turn.c


def _impulses(joint: Any) -> tuple[float, ...]:
    force = joint.GetReactionForce(1.0)
    return force.x, force.y, joint.GetReactionTorque(1.0), joint.GetMotorTorque(1.0)


def _skids(wheel: Any) -> bool:
    return wheel.skid_start is not None or wheel.skid_particle is not None


def _unequal(name: str, theirs: Iterable[Any], ours: np.ndarray) -> Iterator[str]:
    """Yield a line if the bits of two rows of numbers differ."""
    numbers = array(ours.dtype.char, theirs)
    if numbers.tobytes() != ours.tobytes():
        yield f"{name}: {numbers.tolist()} and {ours.ravel().tolist()}"


def drive(kind: str, first_seed: int, frames: int, library: Path) -> tuple[str, Counter[str], list[str]]:
    """Drive episodes of one kind until there are so many frames.

    Returns:
        The kind, counts, and a line for each of the first differences.
    """
    gymnasium, world, counts = Undrawn(continuous=True), World(1, load(library)), Counter()
    driver = resolve_driver(DRIVERS[kind], EnvConfig("continuous")) if kind in DRIVERS else None
    lines: list[str] = []
    seed = first_seed
    while counts["frames"] < frames:
        env = CarRacing(None, "continuous", "ignore" if seed % 3 else "intervene", world=(world, 0))
        env.observe = False
        pair = Pair(gymnasium, world, env, counts)
        grip = WEAK_GRIP if seed % 4 == 1 else 1.0
        longest = min(EPISODE_FRAMES, frames - counts["frames"])
        frame, differences = _drive_episode(pair, driver or Script(kind, seed), kind, seed, grip, longest)
        if differences:
            counts["differences"] += 1
            lines.append(f"{kind}, seed {seed}, frame {frame}: {differences[0]}")
        counts["episodes"] += 1
        counts["finished"] += bool(world.cars["lap"]["finished"][0])
        counts["outside"] += bool(world.cars["outside"][0])
        seed += 1
    return kind, counts, lines


def _drive(task: tuple[str, int, int, Path]) -> tuple[str, Counter[str], list[str]]:
    return drive(*task)


def _drive_episode(
    pair: Pair, driver: Policy, kind: str, seed: int, grip: float, longest: int
) -> tuple[int, list[str]]:
    """Drive to the end of the episode or to the first difference. Returns the frame and what differs."""
    differences = list(pair.reset(seed, grip))
    state = driver.begin(pair.env)
    for frame in range(longest):
        if differences:
            return frame, differences
        observation = pair.env.look() if kind == "champion" else pair.env.state
        action, state = driver.act(observation, state, 0.02 if frame else 0.0)
        differences = list(pair.step(np.asarray(action, np.float32)))
        if pair.terminated and kind != "straight":
            break
    return frame + 1, differences


def main(
    frames: int = 500, kinds: tuple[str, ...] = KINDS, seed: int = 0, workers: int = 2, library: Path = LIBRARY
) -> None:
    """Drive both simulators and print the table.

    Args:
        frames: Frames of each kind.
        kinds: Kinds of driving.
        seed: Seed of the first track of each kind.
        workers: Processes; the frames of a kind are divided among them.
        library: The compiled simulator, such as one with sanitizers.
    """
    if unknown := set(kinds) - set(KINDS):
        sys.exit(f"kinds must be among {', '.join(KINDS)}, got {', '.join(unknown)}.")
    tasks = [(kind, seed + 100_000 * part, -(-frames // workers), library) for kind in kinds for part in range(workers)]
    counts: dict[str, Counter[str]] = {kind: Counter() for kind in kinds}
    with closing(results_of(_drive, tasks, workers)) as results:
        for kind, part, lines in results:
            counts[kind].update(part)
            print(
                f"{kind}: {part['frames']:,} frames, {part['differences']} differences",
                *lines[:1],
                sep="\n",
                flush=True,
            )
    counts["sum"] = sum(counts.values(), Counter())
    table = Table("kind", *COLUMNS)
    for kind, row in counts.items():
        table.add_row(kind, *(f"{row[column]:,}" for column in COLUMNS))
    Console(width=160).print(table)
    if counts["sum"]["differences"]:
        sys.exit(1)


if __name__ == "__main__":
    tyro.cli(main)
