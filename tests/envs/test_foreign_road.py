"""Reports of a user's road: taken as meant, or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec

import nac_drive as nd
from nac_drive.envs import ENVIRONMENTS, EnvConfig, gymnasium_environment

NAME = "reports-v0"
WHERE = f"environment '{NAME}', step {{}} of the episode with seed 7: it "


class Reports(gym.Env):
    """A road with scripted `info`."""

    metadata = {"render_modes": ["rgb_array"]}
    observation_space: gym.Space = gym.spaces.Box(0, 255, (20, 30, 3), np.uint8)
    action_space: gym.Space = gym.spaces.Discrete(2)

    def __init__(self, info: Callable[[int], dict[str, Any]] = lambda _: {}, render_mode: str | None = None) -> None:
        self.info, self.render_mode = info, render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self.time = 0
        return self.observed(), {}

    def step(self, action):
        self.time += 1
        return self.observed(), 1.0, False, self.time == 60, self.info(self.time)

    def observed(self) -> Any:
        return self.render()

    def render(self) -> np.ndarray:
        image = np.zeros((20, 30, 3), np.uint8)
        image[:, self.time // 3] = 255
        return image


@pytest.fixture
def road(monkeypatch):
    """Return a function that registers a road."""

    def register(make: Callable[..., gym.Env], **facts: Any) -> EnvConfig:
        monkeypatch.setitem(gym.registry, NAME, EnvSpec(NAME, cast("Any", make)))
        monkeypatch.setitem(ENVIRONMENTS, NAME, gymnasium_environment(NAME, **facts))
        return EnvConfig(environment=NAME)

    return register


def steps(env_config: EnvConfig, count: int) -> list[dict[str, Any]]:
    """Return `info` of some steps."""
    env = nd.make_env(env_config)
    env.reset(seed=7)
    return [env.step(0)[4] for _ in range(count)]


@pytest.mark.parametrize("key", ["off_road", "lap_finished"])
@pytest.mark.parametrize(
    "value", [True, False, np.True_, np.False_, 0, 1, 1.0, np.int64(1), np.float32(0), np.array(1)]
)
def test_a_flag_is_what_it_says(road, key, value):
    (info,) = steps(road(lambda: Reports(lambda _: {key: value})), 1)
    assert info[key] is bool(value)


@pytest.mark.parametrize("key", ["off_road", "lap_finished", "crash"])
@pytest.mark.parametrize("value", [[0, 0, 0, 0], np.zeros(2, bool), 2, np.nan, {}, np.zeros((40, 40))])
def test_what_is_no_flag_is_refused(road, key, value):
    """Lists counted as true; arrays raised an error without names."""
    with pytest.raises(ValueError, match=WHERE.format(1) + rf"returned info\['{key}'\] = .*, expected True") as raised:
        steps(road(lambda: Reports(lambda _: {key: value})), 1)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("value", ["no", "False", ""])
def test_a_text_is_no_flag(road, value):
    with pytest.raises(ValueError, match=rf"info\['off_road'\] = '{value}', expected True or False; correct or rename"):
        steps(road(lambda: Reports(lambda _: {"off_road": value})), 1)


@pytest.mark.parametrize(
    ("value", "kind"),
    [(None, None), ("", None), (False, None), (0, None), (np.False_, None), (True, "crash"), (1, "crash"),
     ("wall", "wall")],
)  # fmt: skip
def test_a_crash_is_a_flag_or_its_kind(road, value, kind):
    (info,) = steps(road(lambda: Reports(lambda _: {"crash": value})), 1)
    assert info["crash"] == kind
    assert info["crashes"] == (kind is not None)


@pytest.mark.parametrize(("value", "read"), [(-0.1, 0.0), (0.25, 0.25), (1.0 + 1e-9, 1.0), (1.01, 1.0)])
def test_completion_is_a_fraction_but_for_rounding(road, value, read):
    assert steps(road(lambda: Reports(lambda _: {"completion": value})), 1)[0]["completion"] == read


@pytest.mark.parametrize("value", [1.02, 50, 100.0])
def test_a_percentage_is_no_completion(road, value):
    """Every episode was complete."""
    message = rf"returned info\['completion'\] = {value}, expected a fraction of the track, 0 to 1; correct or rename"
    with pytest.raises(ValueError, match=WHERE.format(1) + message):
        steps(road(lambda: Reports(lambda _: {"completion": value})), 1)


@pytest.mark.parametrize(
    ("info", "step", "message"),
    [
        (lambda time: {"crash": True} if time == 30 else {}, 30, r"reports info\['crash'\], but not from the first"),
        (lambda time: {"crash": True} if time == 1 else {}, 2, r"reports no info\['crash'\] any more"),
        (lambda time: {"speed": 1.0 if time > 5 else None}, 6, r"reports info\['speed'\], but not from the first"),
    ],
)
def test_a_key_is_there_after_every_step_or_after_none(road, info, step, message):
    """A crash reported in its own step alone was dropped."""
    with pytest.raises(ValueError, match=f"{WHERE.format(step)}{message}.*; report it after every step"):
        steps(road(lambda: Reports(info)), 60)


def test_a_held_crash_is_one_crash_of_one_kind(road):
    """Ten steps at the wall were ten kinds."""
    crashes = {**dict.fromkeys(range(20, 30), "wall"), **dict.fromkeys(range(40, 60), "car")}
    config = road(lambda: Reports(lambda time: {"crash": crashes.get(time)}))
    (row,) = nd.evaluate(lambda frame: 0, [7], env=config).rows
    assert (row.crashes, row.crash_kinds) == (2, ["wall", "car"])


def test_a_held_crash_is_recovered_from_once(road):
    """Every step at the wall was one more crash."""

    def info(time: int) -> dict[str, Any]:
        crash, wheels = "wall" if 3 <= time <= 10 else None, 0 if time <= 10 else 4
        return {"crash": crash, "wheels_off_road": wheels, "heading_error": 0.0, "speed": 10.0}

    (row,) = nd.evaluate(lambda frame: 0, [7], env=road(lambda: Reports(info), frames_per_second=5)).rows
    assert row.recovered == 1


def test_a_rendered_image_keeps_its_proportions(road):
    class Growing(Reports):
        observation_space = gym.spaces.Box(-1, 1, (2,))

        def observed(self):
            return np.zeros(2, np.float32)

        def render(self):
            image = super().render()
            return np.repeat(image, 2, axis=0) if self.time >= 9 else image.repeat(2, 0).repeat(2, 1)

    message = r"returned from render an image that becomes a frame \(96, 72, 3\), the first one became \(64, 96, 3\)"
    with pytest.raises(ValueError, match=WHERE.format(9) + message):
        steps(road(Growing), 60)


@pytest.mark.parametrize(
    ("stated", "rate", "said"),
    [(np.int64(10), 10, "10"), (np.float32(8), 8, "8"), (2.5, 2, "2, the environment states 2.5"),
     (0.2, 1, "1, the environment states 0.2"), (np.nan, 50, "50, assumed"), ("10", 50, "50, assumed")],
)  # fmt: skip
def test_a_rate_may_be_a_number_of_numpy_and_is_whole(road, stated, rate, said):
    """Rates of numpy were ignored, and 2.5 became 2 silently."""

    class Slow(Reports):
        metadata = {"render_modes": [], "render_fps": stated}

    config = road(Slow)
    assert config.spec.frames_per_second == rate
    (finding,) = (finding for finding in nd.check_environment(NAME).findings if finding.topic == "frames per second")
    assert finding.found == said
    assert bool(finding.fix) == ("," in said)


def test_a_driver_may_return_the_form_of_the_environment_itself(road):
    """A Box of rows was refused."""
    taken = []

    class Rows(Reports):
        action_space = gym.spaces.Box(-2, 5, (2, 2), np.float64)

        def step(self, action):
            taken.append(action)
            return super().step(action)

    config = road(Rows)
    rows = np.array([[1.5, -2.0], [0.25, 5.0]])
    for answer in (rows, rows.ravel()):
        taken.clear()
        nd.evaluate(lambda frame, answer=answer: answer, [7], env=config)
        np.testing.assert_array_equal(taken, [rows] * 60)
    with pytest.raises(ValueError, match="its action must be 4 finite numbers"):
        nd.evaluate(lambda frame: rows.reshape(4, 1), [7], env=config)


def test_episodes_without_a_seed_differ_in_every_copy():
    """Making an environment seeded it."""
    config = EnvConfig("discrete", environment="CartPole-v1")
    copies: list[Any] = [nd.make_env(config).unwrapped for _ in range(3)]
    starts = [copy.reset() and tuple(copy.env.unwrapped.state) for copy in copies]
    assert len(set(starts)) == 3
