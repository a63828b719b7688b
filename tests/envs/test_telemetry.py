"""Poses on tracks with known answers. Events and laps, frame by frame."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nac_drive.envs import TRACK_HALF_WIDTH, EventDetector, LapDetector, wrap_angle
from nac_drive.envs.telemetry import _fused
from tests.problems import circle, square, units

CIRCLE, SQUARE = circle(), square()
DEGREE = math.pi / 180


@given(angle=st.floats(-50, 50), turns=st.integers(-5, 5))
def test_wrapping_changes_an_angle_by_whole_turns_only(angle, turns):
    wrapped = wrap_angle(angle)
    assert -math.pi < wrapped <= math.pi
    assert math.cos(wrapped - angle) == pytest.approx(1.0)
    assert math.cos(wrap_angle(angle + 2 * math.pi * turns) - wrapped) == pytest.approx(1.0)


def test_half_a_turn_is_positive():
    assert wrap_angle(math.pi) == math.pi
    assert wrap_angle(-math.pi) == math.pi
    assert wrap_angle(0.0) == 0.0


@given(t=st.floats(0, 2 * math.pi), lateral=st.floats(-3, 3), turn=st.floats(-3, 3), turns=st.integers(-2, 2))
def test_on_a_circle_everything_is_known(t, lateral, turn, turns):
    radius = 100.0 + units(lateral)  # outside is right
    pose = CIRCLE.locate((radius * math.cos(t), radius * math.sin(t)), t + turn + 2 * math.pi * turns)
    assert pose.lateral == pytest.approx(lateral, abs=1e-3)
    assert pose.heading == pytest.approx(turn, abs=1e-3)
    away = abs(wrap_angle(pose.index * 2 * math.pi / len(CIRCLE) - t))
    assert away <= math.pi / len(CIRCLE) + 1e-9


@pytest.mark.parametrize(
    ("position", "degrees", "index", "lateral", "heading"),
    [
        ((20.0, 0.0), -90, 20, 0.0, 0),  # east on the lower side
        ((20.4, -2.0), -90, 20, +2.0, 0),  # south of it is right
        ((20.4, +2.0), -90, 20, -2.0, 0),
        ((20.6, 0.0), -80, 21, 0.0, +10),  # turned to the left
        ((20.6, 0.0), -100, 21, 0.0, -10),
        ((20.0, 0.0), +90, 20, 0.0, 180),  # driving backwards
        ((43.0, 11.0), 0, 51, +3.0, 0),  # north on the right side: east is right
        ((12.3, 41.5), 90, 40 + 40 + 28, +1.5, 0),  # west on the upper side: north is right
        ((-1.0, 25.25), 180, 40 * 3 + 15, +1.0, 0),  # south on the left side: west is right
        ((1.0, 25.25), -190, 40 * 3 + 15, -1.0, -10),
        ((-3.0, 0.4), 180, 0, +3.0, None),  # between the last tile and the first, where the angle turns by 90 degrees
        ((0.0, 0.0), -90, 0, 0.0, None),
    ],
)
def test_on_a_square_everything_is_known(position, degrees, index, lateral, heading):
    pose = SQUARE.locate(position, degrees * DEGREE)
    assert pose.index == index
    assert pose.lateral * TRACK_HALF_WIDTH == pytest.approx(lateral, abs=1e-9)
    if heading is not None:
        assert pose.heading == pytest.approx(heading * DEGREE, abs=1e-9)


def test_the_heading_turns_evenly_between_two_tiles_also_at_the_finish():
    last = len(CIRCLE) - 1
    for start in (0, 100, last):
        a, b = CIRCLE.points[start], CIRCLE.points[(start + 1) % len(CIRCLE)]
        headings = [
            CIRCLE.locate(a + fraction * (b - a), CIRCLE.angles[start]).heading for fraction in (0, 0.25, 0.5, 0.75)
        ]
        expected = [-fraction * 2 * math.pi / len(CIRCLE) for fraction in (0, 0.25, 0.5, 0.75)]
        np.testing.assert_allclose(headings, expected, atol=1e-9)


# Events: rows of (frames, wheels off, heading in degrees, outside) and the state after them:
# (off_road, off_road_events, crashes, kinds returned within them).

TIMELINES = {
    "it opens on the fifth frame": [
        ((10, 0, 0, False), (False, 0, 0, [])),
        ((4, 3, 0, False), (False, 0, 0, [])),
        ((1, 3, 0, False), (True, 1, 0, [])),
        ((1, 4, 0, False), (True, 1, 0, [])),
    ],
    "two wheels are on the road": [
        ((200, 2, 0, False), (False, 0, 0, [])),
    ],
    "one frame on the road starts the count again": [
        ((4, 4, 0, False), (False, 0, 0, [])),
        ((1, 2, 0, False), (False, 0, 0, [])),
        ((4, 4, 0, False), (False, 0, 0, [])),
        ((1, 4, 0, False), (True, 1, 0, [])),
    ],
    "it closes after ten frames on the road": [
        ((5, 3, 0, False), (True, 1, 0, [])),
        ((9, 0, 0, False), (True, 1, 0, [])),
        ((1, 3, 0, False), (True, 1, 0, [])),
        ((9, 2, 0, False), (True, 1, 0, [])),
        ((1, 2, 0, False), (False, 1, 0, [])),
        ((5, 3, 0, False), (True, 2, 0, [])),
    ],
    "fifty frames off the road are one crash, however long it lasts": [
        ((49, 4, 0, False), (True, 1, 0, [])),
        ((1, 4, 0, False), (True, 1, 1, ["off_road"])),
        ((200, 4, 0, False), (True, 1, 1, [])),
    ],
    "a crash is over when the car is back on the road": [
        ((50, 4, 0, False), (True, 1, 1, ["off_road"])),
        ((9, 0, 0, False), (True, 1, 1, [])),
        ((50, 4, 0, False), (True, 1, 1, [])),
        ((10, 0, 0, False), (False, 1, 1, [])),
        ((50, 4, 0, False), (True, 2, 2, ["off_road"])),
    ],
    "25 frames turned by more than 90 degrees are a crash": [
        ((24, 0, 91, False), (False, 0, 0, [])),
        ((1, 0, 90, False), (False, 0, 0, [])),
        ((24, 0, -91, False), (False, 0, 0, [])),
        ((1, 0, 91, False), (False, 0, 1, ["heading"])),
        ((99, 0, 180, False), (False, 0, 1, [])),
        ((1, 0, 0, False), (False, 0, 1, [])),
        ((25, 0, 120, False), (False, 0, 2, ["heading"])),
    ],
    "turned and off the road is one crash": [
        ((24, 4, 170, False), (True, 1, 0, [])),
        ((1, 4, 170, False), (True, 1, 1, ["heading"])),
        ((100, 4, 170, False), (True, 1, 1, [])),
        ((100, 4, 0, False), (True, 1, 1, [])),
    ],
    "outside is a crash at once": [
        ((3, 0, 0, False), (False, 0, 0, [])),
        ((1, 4, 0, True), (False, 0, 1, ["outside"])),
        ((5, 4, 0, True), (True, 1, 1, [])),
    ],
}


def play(detector: EventDetector, row: tuple[int, int, float, bool]) -> list[str]:
    frames, wheels, degrees, outside = row
    kinds = [detector.update(wheels, degrees * DEGREE, outside) for _ in range(frames)]
    return [kind for kind in kinds if kind is not None]


@pytest.mark.parametrize("name", TIMELINES)
def test_a_timeline(name):
    detector = EventDetector()
    for row, expected in TIMELINES[name]:
        kinds = play(detector, row)
        assert (detector.off_road, detector.off_road_events, detector.crashes, kinds) == expected, row


def test_a_crash_is_reported_in_the_frame_that_completes_it():
    detector = EventDetector()
    kinds = [detector.update(4, 0.0, False) for _ in range(60)]
    assert kinds.index("off_road") == 49


def test_rearming_forgets_the_excursion_and_keeps_the_counts():
    detector = EventDetector()
    play(detector, (50, 4, 0, False))
    detector.rearm()
    assert (detector.off_road, detector.off_road_events, detector.crashes) == (False, 1, 1)
    assert play(detector, (49, 4, 0, False)) == []
    assert play(detector, (1, 4, 0, False)) == ["off_road"]
    assert (detector.off_road_events, detector.crashes) == (2, 2)


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 4), st.sampled_from([0, 45, 120]), st.booleans())))
def test_counts_agree_with_the_reported_crashes_and_the_openings(rows):
    detector, reported, opened, before = EventDetector(), 0, 0, False
    for frames, wheels, degrees, outside in rows:
        for _ in range(frames):
            reported += detector.update(wheels, degrees * DEGREE, outside and frames < 3) is not None
            opened += detector.off_road and not before
            before = detector.off_road
    assert detector.crashes == reported
    assert detector.off_road_events == opened


# Laps


LAPS = {
    # (nearest tile, tiles touched) of 100, whether the lap is finished
    "a missed tile does not matter": [((60, 60), 0), ((99, 98), 0), ((0, 98), 1), ((5, 98), 1)],
    "95 are not enough": [((99, 95), 0), ((0, 95), 0), ((5, 96), 0), ((60, 97), 0), ((3, 97), 1)],
    "the last tile before the start": [((60, 60), 0), ((97, 99), 0), ((98, 100), 1), ((5, 100), 1)],
    "backwards over the start": [((0, 97), 0), ((99, 97), 0), ((98, 98), 0), ((60, 98), 0), ((2, 98), 1)],
    "a nearest tile that wavers": [((0, 1), 0), ((99, 1), 0), ((0, 1), 0), ((99, 97), 0), ((0, 97), 1)],
}


@pytest.mark.parametrize("name", LAPS)
def test_a_lap_ends_at_the_start_with_nearly_all_tiles_or_with_the_last_one(name):
    detector = LapDetector(100)
    assert [detector.update(*row) for row, _ in LAPS[name]] == [bool(finished) for _, finished in LAPS[name]]


def test_the_furthest_tile_is_counted_on_over_the_start_and_not_backwards():
    detector, furthest = LapDetector(100), []
    for index in (0, 99, 98, 99, 0, 5, 4, 50, 98, 2, 99, 90, 1, 30):
        detector.update(index, 0)
        furthest.append(detector.furthest)
    assert furthest == [0, 0, 0, 0, 0, 5, 5, 50, 98, 102, 102, 102, 102, 130]


def test_a_fused_product_is_rounded_once():
    """Parity with exact fractions: a lateral offset has the same last bit on every processor."""
    rng = np.random.default_rng(0)
    scales = 10.0 ** rng.integers(-6, 7, size=(2000, 3))
    for a, b, c in (rng.standard_normal((2000, 3)) * scales).tolist():
        assert _fused(a, b, c) == float(Fraction(a) * Fraction(b) + Fraction(c))
    assert _fused(0.1, 10.0, -1.0) == 2.0**-54  # 0 where the product is rounded before
