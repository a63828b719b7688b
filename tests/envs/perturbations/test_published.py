"""The published tasks against plain forms of their rules."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.box2d.car_dynamics import Car

from nac_drive.envs import BAR_TOP, EnvConfig, make_env, perturb
from nac_drive.envs.car_racing import CarRacing
from nac_drive.envs.gymnasium_world import GymnasiumWorld
from nac_drive.envs.perturbations.stream import Stream
from tests.problems import ToyEnv

NAMES = ("published-colour", "published-bars", "published-blob", "published-noise")


def driven(spec: str, steps: int, track: int = 1, **config: Any) -> tuple[np.ndarray, np.ndarray, Any]:
    """Return perturbed frame, clean frame and environment after some steps."""
    env: Any = perturb(make_env(EnvConfig(**config)), spec)
    frame, _ = env.reset(seed=track)
    for i in range(steps):
        frame, *_ = env.step(np.int64(3 if i % 3 else 2))
    return frame, env.unwrapped.state, env


@pytest.mark.parametrize("name", NAMES)
def test_the_state_stays_clean_and_a_masked_bar_masked(name):
    frame, state, env = driven(f"{name}:1", 60, mask_bar=True)
    _, clean, other = driven("", 60, mask_bar=True)
    np.testing.assert_array_equal(state, clean)
    assert not frame[BAR_TOP:].any()
    assert (frame[:BAR_TOP] != clean[:BAR_TOP]).any(axis=-1).mean() > 0.02
    assert env.unwrapped.car.hull.position == other.unwrapped.car.hull.position


@pytest.mark.parametrize("name", NAMES)
def test_a_track_settles_it(name):
    one, other, third = (driven(f"{name}:1", 55, track)[0] for track in (1, 1, 2))
    np.testing.assert_array_equal(one, other)
    assert not np.array_equal(one, third)


def test_colours_are_drawn_as_gymnasium_draws_them():
    """gymnasium draws the same track in these colours."""
    for track in (1, 2, 3):
        frame, clean, _ = driven("published-colour:1", 0, track)
        reference: Any = gym.make("CarRacing-v3").unwrapped
        reference.reset(seed=track)
        np.testing.assert_array_equal(reference.state, clean)
        road, grass = (round(255 * shift) for shift in Stream("published-colour").restart(track).uniform(-0.2, 0.2, 2))
        for tile in reference.road:
            tile.color += road  # the polygons of the picture hold these arrays
        reference.bg_color = np.array([102, 204, 102]) + grass
        np.testing.assert_array_equal(reference._render("state_pixels"), frame)
        reference.close()


def test_gymnasiums_own_simulator_draws_the_same_colours():
    stand: Any = GymnasiumWorld()
    own, stand_in = CarRacing(), CarRacing(world=(stand, 0))
    for env in (own, stand_in):
        env.reset(seed=4)
    before = stand_in.look().copy()
    np.testing.assert_array_equal(own.frame_repainted(-40, 30), stand_in.frame_repainted(-40, 30))
    np.testing.assert_array_equal(stand_in.look(), before)
    np.testing.assert_array_equal(own.look(), before)


def test_shifts_of_the_colours_are_uniform_up_to_a_fifth_of_white():
    env: Any = perturb(make_env(), "published-colour:1")
    drawn = []
    env.unwrapped.frame_repainted = lambda *shift: drawn.append(shift) or env.unwrapped.state
    for track in range(60):
        env.reset(seed=track)
    shifts = np.array(drawn)
    assert np.abs(shifts).max() <= 51
    assert (np.abs(shifts).max(axis=0) > 42).all()
    assert np.abs(shifts.mean(axis=0)).max() < 12
    assert abs(np.corrcoef(shifts.T)[0, 1]) < 0.4


def test_bars_are_three_fortieths_of_the_width_at_either_side():
    frame, clean, _ = driven("published-bars:1", 60)
    for row in range(96):
        for column in range(96):
            left, right = 1000 * (column + 0.5) / 96, 1000 - 1000 * (column + 0.5) / 96  # of a window of 1000 pixels
            if row < BAR_TOP and (left < 75 or right < 75):
                assert not frame[row, column].any()
            else:
                np.testing.assert_array_equal(frame[row, column], clean[row, column])
    assert not frame[:BAR_TOP, :7].any()
    assert frame[:BAR_TOP, 7].any()


@pytest.mark.parametrize("steps", [0, 25, 70])
def test_the_blob_is_the_square_of_the_published_code(steps):
    """It begins 20 and 10 units from the hull."""
    frame, clean, _ = driven("published-blob:1", steps)
    reference: Any = gym.make("CarRacing-v3").unwrapped
    reference.reset(seed=1)
    x, y = Car(reference.world, 0, 0, 0).hull.fixtures[3].shape.vertices[0]
    reference.close()
    time = 0.02 * (steps + 1)
    scale = 0.6 * max(1 - time, 0) + 16.2 * min(time, 1)  # pixels of the window per unit
    left, right = (48 + scale * (x + 20 + side) * 96 / 1000 for side in (0, 8))
    bottom, top = (72 - scale * (y + 10 + side) * 96 / 800 for side in (0, 8))
    expected = clean.copy()
    for row in range(96):
        for column in range(96):
            if left <= column + 0.5 < right and top < row + 0.5 <= bottom:
                expected[row, column] = (204, 0, 0)
    np.testing.assert_array_equal(frame, expected)
    if steps == 70:
        assert (expected != clean).any(axis=-1).sum() == 12 * 15


def test_noise_replaces_the_two_shades_of_grass_and_nothing_else():
    frame, clean, env = driven("published-noise:1", 60)
    greens = clean[:BAR_TOP, :, 1]
    grass = np.zeros((96, 96), bool)
    grass[:BAR_TOP] = (greens == 202) | (greens == 228)
    assert grass.mean() > 0.4
    np.testing.assert_array_equal(frame[~grass], clean[~grass])
    values = frame[grass].astype(float)
    assert values.mean() == pytest.approx(127.5, abs=3)
    assert values.std() == pytest.approx(255 / np.sqrt(12), rel=0.03)
    assert (frame[grass].min(), frame[grass].max()) == (0, 255)
    assert abs(np.corrcoef(values.T)[0, 1]) < 0.05
    assert not np.array_equal(env.observation(clean)[grass], frame[grass])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: perturb(ToyEnv(), "published-bars:1"),
            "a published task needs CarRacing's picture, got .*leave it out",
        ),
        (
            lambda: perturb(make_env(), "frame-drop:1+published-colour:1"),
            "published-colour draws the frame anew, so it comes first; name it before the others",
        ),
        (lambda: perturb(make_env(), "published-bars:1+published-colour:1"), "so it comes first"),
        (lambda: perturb(make_env(), "gap:1+published-bars:1"), "name it before other perturbations"),
        (
            lambda: make_env(EnvConfig(view="seat", perturb="published-blob:1")),
            "published-blob is drawn in the view from above, got the view 'seat'",
        ),
        (lambda: make_env(EnvConfig(view="seat", perturb="published-noise:1")), "published-noise is drawn in the view"),
        (lambda: perturb(make_env(), "published-bars:2"), "has the levels 1 to 1"),
    ],
)
def test_a_task_without_a_meaning_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("name", ["published-colour", "published-bars"])
def test_from_the_seat_the_speed_bar_stays(name):
    env: Any = make_env(EnvConfig(view="seat", perturb=f"{name}:1"))
    frame, _ = env.reset(seed=1)
    np.testing.assert_array_equal(frame[-12:], env.unwrapped.state[-12:])
    assert (frame != env.unwrapped.state).any(axis=-1).mean() > 0.1
