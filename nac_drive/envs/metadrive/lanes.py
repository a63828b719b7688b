"""Lanes of a road network as polygons."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from nac_drive.envs.metadrive.situation import RoadMap

LINE_WIDTH = 0.15
"""Metres, as MetaDrive's."""
STRIPE, PERIOD = 2.0, 4.0
"""Metres of a stripe of a broken line, and from one stripe to the next, as MetaDrive's."""
_STRAIGHT, _CURVED = 10.0, 3.0
"""The longest piece of a straight and of a curved lane, metres."""
_BROKEN, _UNMARKED = "BROKEN", "UNKNOWN"
"""Words in MetaDrive's names of the types of lines."""


def road_map(graph: dict[str, dict[str, Sequence[Any]]], checkpoints: Sequence[str]) -> RoadMap:
    """Return the polygons of a road network.

    Args:
        graph: Node -> node -> lanes from left to right, as MetaDrive has it.
        checkpoints: The nodes of the route.

    Returns:
        The map. A line between two lanes is drawn once.
    """
    surface, lines, yellow = [], [], []
    for lanes in (lanes for ends in graph.values() for lanes in ends.values()):
        for number, lane in enumerate(lanes):
            half = lane.width / 2
            surface.append(_strip(lane, _places(lane), -half, half))
            for side in (0, 1) if number == 0 else (1,):
                pieces = _line(lane, side)
                lines.append(pieces)
                yellow.append(np.full(len(pieces), _is_yellow(lane.line_colors[side])))
    return RoadMap(_joined(surface), _joined(lines), np.concatenate(yellow), _route(graph, checkpoints))


def _line(lane: Any, side: int) -> np.ndarray:
    """Return the pieces (N, 4, 2) of a line.

    Side 0 is the left of the lane, 1 its right.
    """
    kind = str(lane.line_types[side])
    if _UNMARKED in kind:
        return np.zeros((0, 4, 2), np.float32)
    places = _places(lane)
    if _BROKEN in kind:
        starts = np.arange(0, lane.length - STRIPE / 2, PERIOD)
        places = np.stack((starts, np.minimum(starts + STRIPE, lane.length)), axis=1)
    middle = (side - 0.5) * lane.width
    return _strip(lane, places, middle - LINE_WIDTH / 2, middle + LINE_WIDTH / 2)


def _places(lane: Any) -> np.ndarray:
    """Return beginnings and ends (N, 2) of a lane's pieces."""
    longest = _CURVED if lane.radius else _STRAIGHT
    edges = np.linspace(0, lane.length, max(1, math.ceil(lane.length / longest)) + 1)
    return np.stack((edges[:-1], edges[1:]), axis=1)


def _strip(lane: Any, places: np.ndarray, left: float, right: float) -> np.ndarray:
    """Return pieces (N, 4, 2) of a lane.

    They lie between two distances from its middle, right positive.
    """
    corners = [
        [lane.position(start, left), lane.position(start, right), lane.position(end, right), lane.position(end, left)]
        for start, end in places.tolist()
    ]
    return np.asarray(corners, np.float32).reshape(-1, 4, 2)


def _joined(polygons: Iterable[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.zeros((0, 4, 2), np.float32), *polygons])


def _is_yellow(color: Sequence[float]) -> bool:
    return color[2] < color[0]


def _route(graph: dict[str, dict[str, Sequence[Any]]], checkpoints: Sequence[str]) -> np.ndarray:
    """Return the middle (N, 2) of a route's roads."""
    points = []
    for start, end in pairwise(checkpoints):
        lanes = graph[start][end]
        for along in np.linspace(0, 1, 9).tolist():
            sides = [lane.position(along * lane.length, 0) for lane in (lanes[0], lanes[-1])]
            points.append(np.mean(np.asarray(sides, float), axis=0))
    return np.asarray(points, np.float32).reshape(-1, 2)
