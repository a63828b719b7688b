"""Lanes and the camera, without metadrive."""

from __future__ import annotations

import math

import numpy as np
import pytest

from nac_drive.envs import CarRacing
from nac_drive.envs.metadrive.camera import AHEAD, EYE, FAR_ROAD, FULL_SPEED, HALF_VIEW, HORIZON, PITCH, REGIONS, Camera
from nac_drive.envs.metadrive.lanes import LINE_WIDTH
from tests.envs.metadrive_stand_in import TWO_LANES, WIDTH, StraightLane, car_at, road, situation

ROWS = 84
"""Rows of the view above the bar."""
LINE = HORIZON * ROWS


def drawn(**values) -> np.ndarray:
    camera = Camera()
    camera.begin(road())
    return camera.draw(situation(**values))


def area(polygons: np.ndarray) -> float:
    x, y = np.moveaxis(polygons.astype(float), -1, 0)
    return float(np.abs((x * np.roll(y, -1, axis=1) - y * np.roll(x, -1, axis=1)).sum(axis=1)).sum() / 2)


def row_of(distance: float) -> float:
    """The row of a distance, by the compiled camera's formula."""
    focal = 48 / math.tan(HALF_VIEW)
    depth = (distance - AHEAD) * math.cos(PITCH) + EYE * math.sin(PITCH)
    return LINE + EYE * focal / math.cos(PITCH) / depth


def test_asphalt_and_paint_have_the_areas_of_the_lanes():
    ground = road()
    assert area(ground.surface) == pytest.approx(200 * 2 * WIDTH, rel=1e-5)
    left, middle, right = 200.0, 100.0, 200.0  # metres of paint: the broken line has stripes of 2 m every 4 m, once
    assert area(ground.lines) == pytest.approx(LINE_WIDTH * (left + middle + right), rel=1e-3)
    assert area(ground.lines[ground.yellow]) == pytest.approx(LINE_WIDTH * left, rel=1e-3)
    np.testing.assert_allclose(ground.route[[0, -1]], ((0, -WIDTH / 2), (200, -WIDTH / 2)))


def test_a_lane_without_lines_has_no_paint():
    assert len(road([StraightLane(line_types=("UNKNOWN_LINE", "UNKNOWN_LINE"))]).lines) == 0


def test_sky_and_hills_are_those_of_the_compiled_seat():
    env = CarRacing(view="seat", size=(96, 96))
    seat, _ = env.reset(seed=0)
    above = int(LINE)
    np.testing.assert_allclose(drawn()[:above].astype(int), seat[:above].astype(int), atol=1)


def test_a_mark_on_the_road_lies_in_the_row_of_the_pinhole():
    camera, unmarked = Camera(), ("UNKNOWN_LINE", "UNKNOWN_LINE")
    for distance in (6.0, 12.0, 30.0):
        length = distance / 8
        camera.begin(road([StraightLane(length=1.0, start=-50, line_types=unmarked)]))
        without = camera.draw(situation()).astype(float)
        camera.begin(road([StraightLane(length=length, start=20 + distance, line_types=unmarked)]))
        change = np.abs(camera.draw(situation()) - without)[:ROWS, 48].sum(axis=-1)
        middle = ((np.arange(ROWS) + 0.5) * change).sum() / change.sum()
        assert abs(middle - (row_of(distance) + row_of(distance + length)) / 2) < 0.5


def test_the_car_drives_between_the_line_on_its_left_and_the_line_on_its_right():
    frame = drawn().astype(int)
    row = frame[int(row_of(8.0))]
    yellow = np.flatnonzero(row[:, 0] - row[:, 2] > 60)
    assert yellow.max() < 48
    shifted = drawn(y=-1.0).astype(int)[int(row_of(8.0))]
    assert np.flatnonzero(shifted[:, 0] - shifted[:, 2] > 60).max() < yellow.max()  # the car stands further right


def test_paint_fades_towards_the_horizon_and_keeps_its_width():
    frame = drawn(y=0.0).astype(float)
    contrast = []
    for distance in (5.0, 40.0, 120.0):
        row = frame[int(row_of(distance)), :48]
        contrast.append(float((row[:, 0] - row[:, 2]).max()))
        assert (row[:, 0] - row[:, 2] > 40).sum() <= 4
    assert contrast == sorted(contrast, reverse=True)


def test_a_nearer_car_hides_a_farther_one_and_a_car_behind_is_not_drawn():
    alone, none = drawn(traffic=car_at(32, 0, 0)), drawn()
    both = drawn(traffic=np.concatenate((car_at(32, 0, 0), car_at(60, 0, 1))))
    turned = drawn(traffic=np.concatenate((car_at(60, 0, 1), car_at(32, 0, 0))))
    np.testing.assert_array_equal(both, turned)
    assert (alone != none).any(axis=2).sum() > 60
    assert (both != alone).any(axis=2).sum() < (drawn(traffic=car_at(60, 0, 1)) != none).any(axis=2).sum()
    np.testing.assert_array_equal(drawn(traffic=car_at(10, 0)), none)


def test_the_size_of_a_car_falls_with_its_distance():
    sizes = [(drawn(traffic=car_at(20 + away, 0)) != drawn()).any(axis=2).sum() for away in (8, 16, 32, 64)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[1] > 2.5 * sizes[2]  # as the square


def test_the_bar_shows_the_speed_as_the_compiled_seat_does():
    env = CarRacing(view="seat", size=(96, 96))
    env.reset(seed=0)
    env.place(0.0, 0.0, 0.0, velocity=(0.0, 55.0))  # half of its bar
    np.testing.assert_allclose(drawn(speed=FULL_SPEED / 2)[ROWS:].astype(int), env.look()[ROWS:].astype(int), atol=1)


@pytest.mark.parametrize(("turn", "columns"), [(math.pi / 2, (0, 20)), (0.0, (44, 52)), (-math.pi / 2, (76, 96))])
def test_the_needle_shows_where_the_route_turns(turn, columns):
    needle = drawn(turn=turn)[-2].astype(int)
    marked = np.flatnonzero(needle[:, 0] > 200)
    assert len(marked) > 0
    assert columns[0] <= marked.min() <= marked.max() < columns[1]
    assert not drawn()[-2].any()


def test_frames_of_other_sizes_show_the_same_view():
    camera = Camera(192, 192)
    camera.begin(road(TWO_LANES))
    large = camera.draw(situation())[:168].astype(float)
    small = drawn()[:ROWS].astype(float)
    halved = large.reshape(84, 2, 96, 2, 3).mean(axis=(1, 3))
    assert np.abs(halved - small).mean() < 3


def labelled(**values) -> tuple[np.ndarray, np.ndarray]:
    """Labels and frame of a situation."""
    camera = Camera()
    camera.begin(road())
    return camera.regions(situation(**values)), camera.draw(situation(**values)).astype(int)


def test_regions_are_where_their_colours_are():
    labels, frame = labelled(traffic=car_at(32, 0, 0))
    assert labels.shape == frame.shape[:2]
    is_region = {name: labels == number for number, name in enumerate(REGIONS)}
    red, green, blue = np.moveaxis(frame, -1, 0)
    asphalt = is_region["near road"]
    assert (np.abs(frame[asphalt] - 103).max(axis=1) < 8).mean() > 0.9  # a few pixels hold a part of a line
    assert (green > red)[is_region["grass"]].mean() > 0.98
    assert (blue >= green)[is_region["sky"]].all()
    assert (red > 112)[is_region["lines"]].mean() > 0.9
    assert is_region["status bar"][ROWS:].all()
    assert not is_region["status bar"][:ROWS].any()
    without, _ = labelled()
    cars = (frame != drawn().astype(int)).any(axis=2)
    assert (cars & is_region["cars"]).sum() > 0.7 * cars.sum()  # the others are at its edge
    assert not (is_region["cars"] & ~cars).any()
    np.testing.assert_array_equal(labels[~is_region["cars"]], without[~is_region["cars"]])


def test_the_far_road_and_the_horizon_lie_in_the_rows_of_the_pinhole():
    labels, _ = labelled()
    rows = {name: np.flatnonzero((labels == number).any(axis=1)) for number, name in enumerate(REGIONS)}
    border = row_of(FAR_ROAD + AHEAD)
    assert rows["far road"].max() <= border <= rows["near road"].min() + 1
    band = 3 / 84 * ROWS
    assert LINE - band - 1 <= rows["horizon"].min() < LINE < rows["horizon"].max() <= LINE + band
    assert rows["sky"].max() < rows["horizon"].min()
    assert rows["grass"].min() > rows["horizon"].max()
