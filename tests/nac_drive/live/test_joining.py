"""What a race refuses changes nothing."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec

import nac_drive as nd
from nac_drive.envs import EnvConfig, make_env
from nac_drive.envs.perturbations.base import Perturbation
from nac_drive.live import snapshot
from nac_drive.live.race import Race
from nac_drive.policies import Driver, DriverConfig, save_driver
from tests.own_parts import forgotten

TRACK = 900_003
SHORT = EnvConfig("continuous", max_steps=40)


def test_what_cannot_be_done_changes_nothing():
    race = Race({"controller": "controller"}, ["controller"], TRACK)
    refused: tuple[tuple[Any, str], ...] = (
        (lambda: race.add("/etc/passwd"), "not offered here; choose from human, controller"),
        (lambda: race.replace(0, "champion"), "not offered"),
        (lambda: race.replace(3, "controller"), "car must be 0 to 0, got 3"),
        (lambda: race.remove(0), "the last car stays"),
        (lambda: race.perturb("fog", 1), "unknown"),
        (lambda: race.perturb("shadows", 9), "levels 1 to 3"),
        (lambda: race.probe(0), "controller has no network"),
    )
    for call, message in refused:
        with pytest.raises(ValueError, match=message):
            call()
    assert [car.name for car in race.cars] == ["controller"]
    assert race.levels == {}
    for _ in range(3):
        race.add("human")
    with pytest.raises(ValueError, match="4 cars already"):
        race.add("human")
    race.close()
    with pytest.raises(ValueError, match="1 to 4, got 5"):
        Race({}, ["human"] * 5, TRACK)


@pytest.fixture
def seat(tmp_path: Path) -> Path:
    """A driver that sees from the seat."""
    driver = Driver(DriverConfig("lstm", d_model=16, dense=8, control="continuous")).eval()
    save_driver(tmp_path / "seat", driver, env=asdict(replace(SHORT, view="seat")))
    return tmp_path / "seat"


def test_a_car_whose_view_lacks_the_perturbation_does_not_join(seat: Path):
    race = Race({"seat": seat, "controller": "controller"}, ["controller"], TRACK)
    race.perturb("published-blob", 1)
    race.tick()
    for join in (lambda: race.add("seat"), lambda: race.replace(0, "seat")):
        with pytest.raises(ValueError, match="drawn in the view from above"):
            join()
    race.tick()
    assert [(car.name, car.decisions) for car in race.cars] == [("controller", 2)]
    race.perturb("published-blob", 0)
    race.add("seat")
    race.tick()
    assert [(car.name, car.decisions) for car in race.cars] == [("controller", 1), ("seat", 1)]
    with pytest.raises(ValueError, match="drawn in the view from above"):
        race.perturb("published-noise", 1)  # the first car could have it
    assert race.levels == {}
    assert [car.env.spec for car in race.cars] == [None, None]
    race.restart()
    race.close()


@dataclass(frozen=True)
class RefusesTheSeat(Perturbation):
    """A user's perturbation that fails once an episode begins."""

    def wrap(self, env: gym.Env, stream: Any, episode_frames: int, bar_top: int | None) -> gym.Env:
        class Wrapper(gym.Wrapper):
            def reset(self, **settings: Any) -> Any:
                assert self.unwrapped.view == "above"  # pyright: ignore[reportAttributeAccessIssue]
                return self.env.reset(**settings)

        return Wrapper(env)


def test_a_perturbation_that_fails_in_one_car_is_taken_from_all(seat: Path):
    race = Race({"seat": seat, "controller": "controller"}, ["controller", "seat"], TRACK)
    race.perturb("shadows", 2)
    with forgotten():
        nd.PERTURBATIONS["refuses"] = (RefusesTheSeat(),)
        with pytest.raises(ValueError, match="perturbation 'refuses' failed"):
            race.perturb("refuses", 1)
    assert race.levels == {"shadows": 2}
    assert [car.env.spec for car in race.cars] == ["shadows:2", "shadows:2"]
    race.tick()
    race.close()


def test_the_only_car_may_change_its_environment(tmp_path: Path):
    road = EnvConfig("continuous", environment="MountainCarContinuous-v0", max_steps=40)
    simulator = make_env(road)
    height, width, channels = simulator.observation_space.shape or (0, 0, 0)
    config = DriverConfig(
        "lstm",
        d_model=16,
        dense=8,
        control="continuous",
        frame_shape=(height, width, channels),
        part_ranges=((-1.0, 1.0),),
    )
    save_driver(tmp_path / "hill", Driver(config).eval(), env=asdict(road))
    race = Race({"hill": tmp_path / "hill", "controller": "controller"}, ["controller"], TRACK)
    race.replace(0, "hill")
    race.tick()
    assert race.cars[0].env_config.environment == "MountainCarContinuous-v0"
    with pytest.raises(ValueError, match="the controller reads its track"):
        race.add("controller")
    race.close()


class Fast(gym.Env):
    """Sixty steps a second."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 60}
    observation_space = gym.spaces.Box(0, 255, (45, 45, 3), np.uint8)
    action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        return self.render(), {}

    def step(self, action):
        return self.render(), 0.0, False, False, {}

    def render(self) -> Any:
        return np.random.default_rng(0).integers(256, size=(45, 45, 3), dtype=np.uint8)


def test_a_fast_environment_keeps_the_clock_and_odd_images_their_place(tmp_path: Path, monkeypatch):
    """It was slow, and JavaScript could not read its arrays."""
    monkeypatch.setitem(gym.registry, "fast-v0", EnvSpec("fast-v0", entry_point=lambda **settings: Fast(**settings)))

    road = EnvConfig("continuous", environment="fast-v0")
    config = DriverConfig(
        "lstm", d_model=16, dense=8, control="continuous", frame_shape=(45, 45, 3), part_ranges=((-1.0, 1.0),)
    )
    save_driver(tmp_path / "still", Driver(config).eval(), env=asdict(road))
    race = Race({"still": tmp_path / "still"}, ["still"], TRACK)
    for _ in range(150):
        race.tick()
    assert race.cars[0].seconds == pytest.approx(3.0, abs=0.03)
    assert race.choices == ["still"]  # a person drives CarRacing
    message = snapshot.frame(race, saliency=False, shown="driver")
    length = int.from_bytes(message[:4], "little")
    sizes = [
        math.prod(shape) * np.dtype(kind).itemsize
        for _, kind, shape in json.loads(message[4 : 4 + length])["cars"][0]["arrays"]
    ]
    assert sizes[0] % 4
    assert len(message) == 4 + length + sum(-(-size // 4) * 4 for size in sizes)
    race.close()


def test_what_a_view_lacks_is_not_offered(seat: Path):
    race = Race({"seat": seat, "controller": "controller"}, ["controller"], TRACK)

    def left_out() -> set[str]:
        settings: dict[str, Any] = {"paused": True, "speed": 1.0, "saliency": False, "shown": "driver"}
        return set(json.loads(snapshot.setup(race, race.choices, recording="", **settings))["left_out"])

    assert left_out() == set()
    race.add("seat")
    assert left_out() == {"published-blob", "published-noise"}
    race.close()
