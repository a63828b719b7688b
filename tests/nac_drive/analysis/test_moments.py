"""The moment at which the page of an episode opens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nac_drive.analysis.moments import moments
from nac_drive.analysis.recording import Recording

STRAIGHT, TURNS = [0.0] * 10, [0.0, 0.1, 0.0, 0.0, 0.0, 0.0, -0.9, 0.2, 0.0, 0.0]
ON_ROAD, OFF_ROAD = [0] * 10, [0, 0, 3, 4, 3, 4, 4, 4, 4, 4]


def drove(name: str, steer: list[float], off: list[int] = ON_ROAD, crash: int = -1, speed: float = 10.0) -> Recording:
    """Ten frames along a straight road."""
    steps = np.arange(10)
    series = {
        "time": 0.02 * (steps + 1), "steer": np.array(steer), "wheels_off_road": np.array(off), "crash": steps == crash
    }  # fmt: skip
    position = np.stack((speed * steps, np.zeros(10)), axis=1)
    return Recording(name, 3, None, position, np.zeros((10, 2, 2, 3), np.uint8), series, position)


def named(*recordings: Recording) -> list[tuple[str, Any]]:
    return [(moment.name, pytest.approx(moment.seconds)) for moment in moments(recordings)]


def test_a_driver_alone():
    assert named(drove("a", TURNS)) == [("sharpest steering", 0.14), ("start", 0.0)]
    assert named(drove("a", TURNS, OFF_ROAD)) == [("off the road", 0.14), ("start", 0.0)]
    crashed = named(drove("a", TURNS, OFF_ROAD, crash=8))
    assert crashed == [("first crash", 0.18), ("off the road", 0.14), ("start", 0.0)]


def test_four_frames_off_the_road_open_no_event():
    assert named(drove("a", TURNS, [0, 4, 4, 4, 4, 0, 0, 0, 0, 0])) == [("sharpest steering", 0.14), ("start", 0.0)]


def test_drivers_are_compared_where_they_are_at_the_same_place():
    assert named(drove("a", TURNS), drove("b", STRAIGHT)) == [("largest steering difference", 0.14), ("start", 0.0)]
    assert named(drove("a", TURNS), drove("b", STRAIGHT, OFF_ROAD, crash=9)) == [
        ("b: first crash", 0.2), ("b: off the road", 0.14), ("largest steering difference", 0.14), ("start", 0.0)
    ]  # fmt: skip
    late, soon = [0.0] * 6 + [-0.9] + [0.0] * 3, [0.0] * 3 + [-0.9] + [0.0] * 6
    same_place = named(drove("a", late, speed=100), drove("b", soon, speed=200))
    assert same_place == [("a: sharpest steering", 0.14), ("b: sharpest steering", 0.08), ("start", 0.0)]


def test_drivers_without_places_are_compared_frame_by_frame():
    one, other = drove("a", TURNS), drove("b", STRAIGHT)
    one.road = other.road = np.zeros((0, 2))
    assert named(one, other)[0] == ("largest steering difference", 0.14)
