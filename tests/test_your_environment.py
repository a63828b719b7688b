"""Environments of users: their ids, and errors of their code."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.envs.registration import EnvSpec

import nac_drive as nd
from nac_drive.envs import ENVIRONMENTS, EnvConfig, gymnasium_environment
from nac_drive.envs.foreign_road import Image
from nac_drive.policies import ContinuousActionHead, Driver, DriverConfig
from tests.commands import refused
from tests.roads import RACETRACK, roads_of_plugins


@pytest.fixture(scope="module", autouse=True)
def _plugins() -> Iterator[None]:
    with roads_of_plugins():
        yield


# What an id means


@pytest.mark.parametrize(
    ("shape", "channels"),
    [((20, 30), [0, 0, 0]), ((20, 30, 1), [0, 0, 0]), ((1, 20, 30), [0, 0, 0]), ((20, 30, 3), [0, 1, 2]),
     ((3, 20, 30), [0, 1, 2]), ((2, 20, 30), [0, 0, 1]), ((20, 30, 4), [1, 2, 3]), ((5, 20, 30), [2, 3, 4])],
)  # fmt: skip
def test_images_of_any_layout_become_frames(shape, channels):
    observation = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    image = Image.of(gym.spaces.Box(0, 255, shape, np.uint8))
    assert image is not None
    last = observation if len(shape) == 2 or shape[0] == 20 else np.moveaxis(observation, 0, -1)
    last = last.reshape(20, 30, -1)
    np.testing.assert_array_equal(image.frame(observation), last[..., channels])
    stack = Image.of(gym.spaces.Box(0, 255, (4, 20, 30, 3), np.uint8))
    assert stack is not None
    frames = np.random.default_rng(0).integers(0, 256, (4, 20, 30, 3), np.uint8)
    np.testing.assert_array_equal(stack.frame(frames), frames[-1])


PICTURE = gym.spaces.Box(0, 255, (20, 30, 3), np.uint8)


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (gym.spaces.Dict(speed=gym.spaces.Box(-1, 1, (2,)), image=PICTURE), "three channels, from the entry 'image'"),
        (gym.spaces.Tuple((gym.spaces.Box(-1, 1, (2,)), PICTURE)), "three channels, from the entry 1"),
    ],
)
def test_one_entry_may_be_the_image(space, words):
    image, observation = Image.of(space), space.sample()
    assert image is not None
    assert image.words.startswith(words)
    np.testing.assert_array_equal(image.frame(image.found(observation)), observation[image.entry])
    assert image.found(()) is None


@pytest.mark.parametrize(
    "space",
    [
        gym.spaces.Box(0, 1, (20, 30, 3)),
        gym.spaces.Box(0, 255, (4,), np.uint8),
        gym.spaces.Dict(left=PICTURE, right=PICTURE),
        gym.spaces.Dict(speed=gym.spaces.Box(-1, 1, (2,))),
    ],
)
def test_other_observations_are_no_images(space):
    assert Image.of(space) is None


class OneArray(gym.Env):
    """An environment that draws every frame into one array."""

    observation_space, action_space = PICTURE, gym.spaces.Discrete(2)

    def __init__(self) -> None:
        self.array = np.zeros(PICTURE.shape, np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        return self._drawn(), {}

    def _drawn(self) -> np.ndarray:
        self.array[:] = self.np_random.integers(256, size=self.array.shape)
        return self.array

    def step(self, action):
        return self._drawn(), 0.0, False, False, {}


def test_an_environment_may_draw_into_one_array(tmp_path, monkeypatch):
    """Every recorded frame was the last one."""
    monkeypatch.setitem(gym.registry, "array-v0", EnvSpec("array-v0", cast("Any", OneArray), max_episode_steps=5))
    monkeypatch.setitem(ENVIRONMENTS, "array-v0", gymnasium_environment("array-v0"))
    env = EnvConfig(environment="array-v0")
    recorded = nd.collect(tmp_path / "data", lambda frame: 0, env=env, seeds=[3], workers=1)
    again = gym.make("array-v0", disable_env_checker=True)
    frames = [again.reset(seed=3)[0].copy(), *(again.step(0)[0].copy() for _ in range(4))]
    np.testing.assert_array_equal(recorded.load().frames, frames)


def test_the_place_of_the_car_may_be_an_array_of_the_environment(monkeypatch):
    monkeypatch.setitem(gym.registry, "array-v0", EnvSpec("array-v0", cast("Any", OneArray), max_episode_steps=5))
    spec = gymnasium_environment("array-v0", pose=lambda env: env.array[0, 0])
    env = spec.make(EnvConfig(), "ignore", None)  # type: ignore[misc]
    env.reset(seed=3)
    before, values = spec.pose(env), env.unwrapped.env.unwrapped.array[0, 0].copy()  # type: ignore[misc]
    env.step(0)
    np.testing.assert_array_equal(before, values)


def test_arguments_of_gymnasium_make_are_stated_in_a_plug_in(monkeypatch):
    grey = {"type": "GrayscaleObservation", "observation_shape": (96, 72), "stack_size": 4, "scaling": 1.75}
    config = {"observation": {**grey, "weights": [0.3, 0.6, 0.1]}, "duration": 2}
    monkeypatch.setitem(ENVIRONMENTS, "grey", gymnasium_environment(RACETRACK, {"config": config}, max_steps=7))
    env = nd.make_env(EnvConfig(environment="grey"))
    frame, _ = env.reset(seed=1)
    assert EnvConfig(environment="grey").max_steps == 7
    np.testing.assert_array_equal(frame, env.unwrapped.observation[-3:].transpose(1, 2, 0))  # type: ignore[attr-defined]
    env.close()


def test_a_head_keeps_to_the_ranges_of_a_road_and_weighs_its_numbers_alike():
    head = ContinuousActionHead(4, 8, ((-0.3, 0.3), (0.0, 5.0), (2.0, 6.0)))
    extreme = head.squash(torch.tensor([[-50.0, -50.0, -50.0], [50.0, 50.0, 50.0], [0.0, 0.0, 0.0]]))
    torch.testing.assert_close(extreme, torch.tensor([[-0.3, 0.0, 2.0], [0.3, 5.0, 6.0], [0.0, 2.5, 4.0]]))
    torch.testing.assert_close(head.relative(extreme)[:2], torch.tensor([[-1.0, 0.0, -1.0], [1.0, 1.0, 1.0]]))
    z = torch.randn(5, 3)
    torch.testing.assert_close(head.of_fractions(head.fractions(z)), head.squash(z))


def test_a_core_measures_time_in_frames_of_the_road():
    """Actions depend on the number of frames between observations."""
    torch.manual_seed(0)
    usual = Driver(DriverConfig("cfc", d_model=8, dense=8, frame_shape=(32, 32, 3), dt_input=True)).eval()
    slow = Driver(replace(usual.config, nominal_dt=0.2)).eval()
    slow.load_state_dict(usual.state_dict())
    frames, dt = torch.randint(256, (1, 6, 32, 32, 3), dtype=torch.uint8), torch.rand(1, 6) * 0.1
    torch.testing.assert_close(slow(frames, 10 * dt)[0], usual(frames, dt)[0])
    assert not torch.allclose(slow(frames, dt)[0], usual(frames, dt)[0])


def test_what_is_typed_with_its_module_is_imported(tmp_path, capsys):
    missing = refused(capsys, "collect", "--environment", "nowhere_to_be_found:x-v0", "--out", str(tmp_path / "out"))
    assert "there is no module 'nowhere_to_be_found'" in missing
    unknown = refused(capsys, "collect", "--environment", "highway_env:racetrack-v99", "--out", str(tmp_path / "out"))
    assert "environment 'racetrack-v99' is unknown" in unknown


# Errors of the user's environment


class Broken(gym.Env):
    """An environment that goes wrong at its third step."""

    observation_space = gym.spaces.Box(0, 255, (32, 32, 3), np.uint8)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, wrong: str) -> None:
        self.wrong = wrong

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self.steps = 0
        return self.picture((32, 32, 3), np.uint8), {"speed": 1.0}

    @staticmethod
    def picture(shape: tuple[int, ...], kind: Any) -> np.ndarray:
        return np.arange(np.prod(shape)).reshape(shape).astype(kind)

    def step(self, action):
        self.steps += 1
        shape, kind, reward, info = (32, 32, 3), np.uint8, 1.0, {"speed": 1.0}
        if (self.steps == 3 and int(self.np_random.integers(2)) == 0) or (self.steps == 3 and self.wrong != "late"):
            if self.wrong == "raise":
                raise RuntimeError("the engine\nis gone")
            shape = (16, 32, 3) if self.wrong == "shape" else shape
            kind = np.float32 if self.wrong == "dtype" else kind
            reward = float("nan") if self.wrong == "reward" else reward
            info = {"speed": "fast"} if self.wrong == "info" else {} if self.wrong == "key" else info
        return self.picture(shape, kind), reward, False, self.steps == 5, info


WRONG = {
    "raise": r"it raised RuntimeError: the engine is gone \(test_your_environment.py:\d+\); correct it",
    "shape": r"it returned an observation uint8 \(16, 32, 3\), its space says uint8 \(32, 32, 3\); correct it",
    "dtype": r"it returned an observation float32 \(32, 32, 3\), its space says uint8",
    "reward": "it returned the reward nan, expected a finite number; correct it",
    "info": r"it returned info\['speed'\] = 'fast', expected a number; correct or rename it",
    "key": r"it reports no info\['speed'\] any more; report it after every step",
}


@pytest.mark.parametrize("wrong", WRONG)
def test_an_error_of_the_environment_is_one_line_with_its_step(wrong, monkeypatch):
    monkeypatch.setitem(gym.registry, "broken-v0", EnvSpec("broken-v0", cast("Any", lambda: Broken(wrong))))
    monkeypatch.setitem(ENVIRONMENTS, "broken-v0", gymnasium_environment("broken-v0"))
    env = nd.make_env(EnvConfig(environment="broken-v0"))
    env.reset(seed=7)
    env.step(0)
    env.step(0)
    where = "environment 'broken-v0', step 3 of the episode with seed 7: "
    with pytest.raises(ValueError, match=where + WRONG[wrong]) as raised:
        env.step(0)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("method", "outcome", "message"),
    [
        (
            "reset",
            Broken.picture((32, 32, 3), np.uint8),
            "step 0 of .* seed 7: it returned a ndarray from reset, expected obs",
        ),
        (
            "step",
            (Broken.picture((32, 32, 3), np.uint8), 1.0, False, {}),
            "step 1 .* 4 values from step, expected observation",
        ),
        (
            "step",
            (Broken.picture((32, 32, 3), np.uint8), 1.0, False, False, None),
            "5 values from step, expected observation",
        ),
    ],
)
def test_an_environment_of_another_api_is_refused(method, outcome, message, monkeypatch):
    monkeypatch.setitem(gym.registry, "old-v0", EnvSpec("old-v0", cast("Any", lambda: Broken(""))))
    monkeypatch.setitem(ENVIRONMENTS, "old-v0", gymnasium_environment("old-v0"))
    env = nd.make_env(EnvConfig(environment="old-v0"))
    env.reset(seed=3)
    monkeypatch.setattr(Broken, method, lambda *_, **__: outcome)
    if method == "step":
        env.reset(seed=7)
    with pytest.raises(ValueError, match=message):
        env.reset(seed=7) if method == "reset" else env.step(0)


@pytest.mark.parametrize("space", [gym.spaces.MultiDiscrete([2, 3]), gym.spaces.Box(-np.inf, np.inf, (2,))])
def test_other_actions_are_refused(space, monkeypatch):
    class Other(Broken):
        action_space = space

    monkeypatch.setitem(gym.registry, "other-v0", EnvSpec("other-v0", cast("Any", lambda: Other(""))))
    with pytest.raises(
        ValueError, match=r"environment 'other-v0' has the actions .*, expected Discrete.n. or a Box of"
    ):
        gymnasium_environment("other-v0")


class Blank(Broken):
    """An environment whose images have one colour."""

    @staticmethod
    def picture(shape: tuple[int, ...], kind: Any) -> np.ndarray:
        return np.full(shape, 7, kind)


def test_images_of_one_colour_are_refused_with_the_fix(monkeypatch):
    monkeypatch.setitem(gym.registry, "blank-v0", EnvSpec("blank-v0", cast("Any", lambda: Blank(""))))
    monkeypatch.delenv("SDL_VIDEODRIVER", raising=False)
    with pytest.raises(ValueError, match="its first 6 images have one colour alone each; correct its images"):
        nd.check_environment("blank-v0")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    with pytest.raises(ValueError, match="unset SDL_VIDEODRIVER, which is 'dummy': pygame draws nothing then"):
        gymnasium_environment("blank-v0")


def test_an_environment_that_begins_in_the_dark_is_taken(monkeypatch):
    class Dark(Broken):
        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
            frame, info = super().reset(seed=seed)
            return np.zeros_like(frame), info

    monkeypatch.setitem(gym.registry, "dark-v0", EnvSpec("dark-v0", cast("Any", lambda: Dark(""))))
    assert gymnasium_environment("dark-v0").frame_shape == (32, 32, 3)


def test_a_check_finds_an_episode_that_its_seed_does_not_settle(monkeypatch):
    class Drifting(Broken):
        def step(self, action):
            return *super().step(action)[:1], float(np.random.default_rng().random()), False, self.steps == 5, {}

    drifting = EnvSpec("drifting-v0", cast("Any", lambda: Drifting("late")))
    monkeypatch.setitem(gym.registry, "drifting-v0", drifting)
    check = nd.check_environment("drifting-v0")
    monkeypatch.delitem(ENVIRONMENTS, "drifting-v0")
    (seed,) = (finding for finding in check.findings if finding.topic == "same seed")
    assert seed.found == "another episode, so that dataset verify --replay and paired differences mean nothing"
    assert "np_random" in seed.fix
    assert "paired differences" not in check.verdict, "they are not left out"
    (rate,) = (finding for finding in check.findings if finding.topic == "frames per second")
    assert rate.found == "50, assumed"
