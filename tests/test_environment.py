"""Another track environment is an adapter: a gymnasium environment, a function that makes it, and one registry line."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import nac_drive as nd
from nac_drive.envs import ENVIRONMENTS, EnvSpec, Step
from nac_drive.training.data import flipped

SHAPE = (32, 40, 3)


class ToyTrack(gym.Env):
    """A car that drifts sideways on a straight road, drawn as a white column, with a gauge in the lowest rows.

    Three actions: straight on, right, left. The drift is drawn from the track's seed.
    """

    observation_space = gym.spaces.Box(0, 255, SHAPE, np.uint8)
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self.offset, self.frame = float(self.np_random.uniform(-0.5, 0.5)), 0
        return self._draw(), self._info(0.0)

    def step(self, action):
        self.frame += 1
        self.offset += float(self.np_random.normal(0, 0.05)) + (0.0, 0.1, -0.1)[int(action)]
        return self._draw(), 1.0 - abs(self.offset), abs(self.offset) > 1, False, self._info(0.04)

    def _draw(self) -> np.ndarray:
        self.state = np.zeros(SHAPE, np.uint8)
        column = int(np.clip(19.5 + 15 * self.offset, 1, SHAPE[1] - 2))
        self.state[:28, column - 1 : column + 2] = 255
        self.state[28:, :10] = 100
        return self.state

    def _info(self, dt: float) -> dict[str, Any]:
        off = abs(self.offset) > 1
        return {
            "dt": dt, "zooming": False, "speed": 10.0, "lateral_offset": self.offset, "heading_error": 0.0,
            "wheels_off_road": 4 * off, "completion": min(1.0, self.frame / 30), "lap_finished": self.frame >= 30,
            "off_road": off, "off_road_events": int(off), "crash": None, "crashes": 0, "interventions": 0,
        }  # fmt: skip


def make_toy_track(config: nd.EnvConfig, crash: str, render_mode: str | None) -> gym.Env:
    return ToyTrack()


SPEC = EnvSpec(
    make_toy_track, SHAPE, frames_per_second=25, steering=(0.0, 1.0, -1.0), action_names=("straight", "right", "left"),
    flipped_actions=(0, 2, 1), bar_top=28, flipped_bar_columns=tuple(range(SHAPE[1])),
)  # fmt: skip


class ToyExpert:
    """Steers back to the middle."""

    def begin(self, env: gym.Env) -> int:
        return 0

    def act(self, observation: np.ndarray, state: int, dt: float) -> tuple[np.int64, int]:
        offset = (observation[0, :, 0].nonzero()[0].mean() - 19.5) / 15
        return np.int64(0 if abs(offset) < 0.1 else 2 if offset > 0 else 1), state + 1


@pytest.fixture
def env(monkeypatch) -> nd.EnvConfig:
    monkeypatch.setitem(ENVIRONMENTS, "toy-track", SPEC)
    return nd.EnvConfig(environment="toy-track", max_steps=40)


def episodes(env: nd.EnvConfig, tracks: range) -> list[dict[str, np.ndarray]]:
    found = []
    for track in tracks:
        steps: list[Step] = []
        end = nd.rollout(nd.make_env(env), ToyExpert(), track, subscribers=[steps.append])
        frames = [*(step.observation for step in steps), end.last_observation]
        found.append({"observations": np.stack(frames), "actions": np.array([step.action for step in steps])})
    return found


def test_a_driver_is_cloned_and_evaluated_on_another_track_environment(env, tmp_path):
    data = nd.Demonstrations.from_episodes(tmp_path / "data", episodes(env, range(12)), env=env)
    assert data.info()["labels"].keys() == set(SPEC.action_names)
    config = nd.TrainConfig(
        nd.DriverConfig("cnn", dropout=0.0), nd.DataConfig(1, 16), nd.OptimConfig(ema_decay=0.0),
        nd.EvalConfig("val-2"), epochs=8, validation_fraction=0.2,
    )  # fmt: skip
    best = nd.train(config, data, tmp_path / "run", device="cpu")
    driver = nd.load_driver(best)
    assert driver.config.num_actions == 3
    assert driver.config.frame_shape == SHAPE
    learned = nd.evaluate(best, "test-3", expert=ToyExpert())
    straight = nd.evaluate(_Straight(), "test-3", env=env)
    assert [row.seed for row in learned.rows] == nd.track_seeds("test-3")
    assert learned.summary.return_mean > straight.summary.return_mean + 5
    assert (learned.summary.agreement or 0) > 0.8
    again = nd.collect(tmp_path / "again", tmp_path / "run", env=env, seeds=[3, 4])
    assert again.verify(replay=True) == []


class _Straight(ToyExpert):
    def act(self, observation: np.ndarray, state: int, dt: float) -> tuple[np.int64, int]:
        return np.int64(0), state


def test_times_are_those_of_its_frame_rate(env):
    (row,) = nd.evaluate(ToyExpert(), [5], env=env).rows
    assert row.lap_time == pytest.approx(30 / 25)


def test_frames_and_actions_are_flipped_as_it_says(env):
    frame = torch.from_numpy(episodes(env, range(1))[0]["observations"])
    image, labels = flipped(frame, torch.tensor([0, 1, 2]), SPEC)
    assert labels.tolist() == [0, 2, 1]
    assert torch.equal(image[:, :28], frame[:, :28].flip(2))
    assert torch.equal(image[:, 28:], frame[:, 28:])
    assert torch.equal(flipped(image, labels, SPEC)[0], frame)


def test_its_status_bar_is_masked(env):
    masked = nd.make_env(nd.EnvConfig(environment="toy-track", mask_bar=True, max_steps=5))
    observation, _ = masked.reset(seed=0)
    assert not observation[28:].any()
    assert observation[:28].any()


def test_an_unknown_environment_is_refused():
    with pytest.raises(ValueError, match="environment must be one of \\['car-racing', 'udacity'\\], got 'nowhere'"):
        nd.EnvConfig(environment="nowhere")
