"""A plug-in file with two toy roads and their drivers."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from nac_drive.envs import ENVIRONMENTS, gymnasium_environment


class Lane(gym.Env):
    """A car drifts on a straight road, a white column."""

    metadata = {"render_modes": [], "render_fps": 25}
    observation_space = gym.spaces.Box(0, 255, (64, 64, 3), np.uint8)
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self.offset, self.frame = float(self.np_random.uniform(-0.5, 0.5)), 0
        return self.draw(), self.info()

    def step(self, action):
        assert isinstance(action, int)
        self.frame += 1
        self.offset += float(self.np_random.normal(0, 0.05)) + (0.0, 0.1, -0.1)[action]
        return self.draw(), 1.0 - abs(self.offset), abs(self.offset) > 1, False, self.info()

    def draw(self) -> np.ndarray:
        image = self.np_random.integers(0, 60, (64, 64, 3)).astype(np.uint8)
        column = int(np.clip(32 + 24 * self.offset, 1, 62))
        image[:, column - 1 : column + 2] = 255
        return image

    def info(self) -> dict[str, Any]:
        return {
            "lateral_offset": self.offset,
            "completion": min(1.0, self.frame / 20),
            "off_road": abs(self.offset) > 1,
        }


class Grey(gym.Env):
    """The same in grey, without anything in `info`."""

    metadata = {"render_modes": [], "render_fps": 10}
    observation_space = gym.spaces.Box(0, 255, (84, 84, 1), np.uint8)
    action_space = gym.spaces.Box(np.array([-0.3, 0.0]), np.array([0.3, 5.0]), dtype=np.float64)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self.offset = float(self.np_random.uniform(-0.5, 0.5))
        return self.draw(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.offset += float(self.np_random.normal(0, 0.05)) + float(action[0])
        return self.draw(), 0.2 * float(action[1]) - abs(self.offset), abs(self.offset) > 1, False, {}

    def draw(self) -> np.ndarray:
        image = self.np_random.integers(0, 60, (84, 84, 1)).astype(np.uint8)
        column = int(np.clip(42 + 36 * self.offset, 1, 82))
        image[:, column - 1 : column + 2] = 255
        return image


class LaneDriver:
    """Steers the column of the lane back to the middle."""

    env_config = {"environment": "toy/lane-v0"}  # where commands let it drive

    def begin(self, env: gym.Env) -> int:
        return 0

    def act(self, observation: np.ndarray, state: int, dt: float) -> tuple[int, int]:
        offset = (observation[0, :, 0] == 255).nonzero()[0].mean() - 32
        return (0 if abs(offset) < 3 else 2 if offset > 0 else 1), state + 1


class GreyDriver(LaneDriver):
    """Does so with two numbers."""

    env_config = {"environment": "toy/grey-v0"}

    def act(self, observation, state, dt):  # type: ignore[override]
        offset = (observation[0, :, 0] == 255).nonzero()[0].mean() - 42
        return np.array([np.clip(-offset / 36, -0.3, 0.3), 5.0], np.float32), state + 1


class StraightOn(LaneDriver):
    """Steers nowhere, with one number."""

    env_config = {"environment": "racetrack-v0"}

    def act(self, observation, state, dt):  # type: ignore[override]
        return np.zeros(1, np.float32), state + 1


class LaneKeeper:
    """The expert of the lane, which reads the simulator."""

    def begin(self, env: gym.Env) -> Lane:
        road: Any = env.unwrapped
        return road.env.unwrapped

    def act(self, observation: np.ndarray, lane: Lane, dt: float) -> tuple[int, Lane]:
        return (0 if abs(lane.offset) < 0.1 else 2 if lane.offset > 0 else 1), lane


gym.register("toy/lane-v0", f"{__name__}:Lane", max_episode_steps=24, reward_threshold=20.0)
gym.register("toy/grey-v0", f"{__name__}:Grey", max_episode_steps=20)
ENVIRONMENTS["toy/lane-v0"] = gymnasium_environment(
    "toy/lane-v0",
    action_names=("straight", "right", "left"),
    steering=(0.0, 1.0, -1.0),
    flipped_actions=(0, 2, 1),
    pose=lambda lane: (lane.offset, lane.frame / 20, 0.0),
    road=lambda lane: np.array([[0.0, 0.0], [0.0, 1.0]]),
    experts={"lane-keeper": LaneKeeper},
)
