"""A straight road in MetaDrive's place."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from nac_drive.envs.metadrive.lanes import road_map
from nac_drive.envs.metadrive.situation import RoadMap, Situation

WHITE, YELLOW = (1, 1, 1, 1), (1, 200 / 255, 0, 1)
WIDTH = 3.5


@dataclass
class StraightLane:
    """A lane along x. It has the methods of MetaDrive's lanes that are used."""

    length: float = 200.0
    y: float = 0.0
    line_types: tuple[str, str] = ("ROAD_LINE_SOLID_SINGLE_WHITE", "BOUNDARY_LINE")
    line_colors: tuple[Any, Any] = (YELLOW, WHITE)
    start: float = 0.0
    bend: float = 0.0
    width: float = WIDTH
    radius: float = 0.0

    def position(self, along: float, right: float) -> np.ndarray:
        return np.array((self.start + along, self.y - right))

    def local_coordinates(self, position: Any) -> tuple[float, float]:
        return position[0] - self.start, self.y - position[1]

    def heading_theta_at(self, along: float) -> float:
        return self.bend * along / self.length


BROKEN = "ROAD_LINE_BROKEN_SINGLE_WHITE"
TWO_LANES = [
    StraightLane(line_types=("ROAD_LINE_SOLID_SINGLE_WHITE", BROKEN)),
    StraightLane(y=-WIDTH, line_types=(BROKEN, "BOUNDARY_LINE"), line_colors=(WHITE, WHITE)),
]


def road(lanes: list[StraightLane] = TWO_LANES) -> RoadMap:
    """A road with those lanes."""
    return road_map({"a": {"b": lanes}}, ["a", "b"])


def situation(**values: Any) -> Situation:
    """A car at x = 20 in the left lane."""
    usual: dict[str, Any] = {
        "x": 20.0, "y": 0.0, "heading": 0.0, "speed": 0.0, "offset": 0.0, "lane_width": WIDTH, "lane_heading": 0.0,
        "completion": 0.0, "off_road": False, "crash": None, "arrived": False, "ended": False, "reward": 0.0,
        "turn": None, "traffic": np.zeros((0, 7), np.float32),
    }  # fmt: skip
    return Situation(**usual | values)


def car_at(x: float, y: float, number: int = 0) -> np.ndarray:
    """Another car, (1, 7)."""
    return np.array([(x, y, 0.0, 4.6, 1.85, 1.4, number)], np.float32)


@dataclass
class StandIn:
    """A simulator that reports given situations.

    It keeps what it was told.
    """

    script: list[Situation] = field(default_factory=list)
    told: list[tuple[float, float]] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)

    def reset(self, seed: int) -> tuple[RoadMap, Situation]:
        self.seeds.append(seed)
        self._waiting = list(self.script)
        return road(), situation()

    def step(self, steering: float, pedal: float) -> Situation:
        self.told.append((steering, pedal))
        now = self._waiting.pop(0)
        return replace(now, ended=not self._waiting)

    def advice(self, expert: str) -> tuple[float, float]:
        return (0.25, -0.5) if expert == "metadrive-idm" else (-0.25, 0.5)


def navigation(lane: StraightLane, branches: dict[str, StraightLane], taken: str, *, on_branch: bool = False) -> Any:
    """A route from a to b and over a branch."""
    graph = {"a": {"b": [lane]}, "b": {name: [branch] for name, branch in branches.items()}}
    before = SimpleNamespace(start_node="a", end_node="b")
    after = SimpleNamespace(start_node="b", end_node=taken)
    network = SimpleNamespace(road_network=SimpleNamespace(graph=graph))
    if on_branch:
        return SimpleNamespace(
            map=network, current_road=after, next_road=None, current_ref_lanes=[branches[taken]], next_ref_lanes=None
        )
    return SimpleNamespace(
        map=network, current_road=before, next_road=after, current_ref_lanes=[lane], next_ref_lanes=[branches[taken]]
    )
