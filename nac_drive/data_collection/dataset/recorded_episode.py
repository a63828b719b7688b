"""A recorded episode as an environment.

It goes on as recorded, so a driver can be looked at where there is no simulator.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

import gymnasium as gym
import numpy as np

from nac_drive.data_collection.controller.controller import Controller
from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.data_collection.dataset.episode_arrays import EpisodeArrays
from nac_drive.data_collection.dataset.episode_file import read_episode, require_recorded
from nac_drive.data_collection.dataset.limits import DatasetError
from nac_drive.data_collection.dataset.rows import DatasetRow, labelled_frames
from nac_drive.data_collection.drivers import resolve_driver
from nac_drive.data_collection.human import KeyboardDriver
from nac_drive.data_collection.own_driver import AnyDriver, ControlError
from nac_drive.data_collection.trained_env import require_environment, require_view, trained_env
from nac_drive.envs import EnvConfig, EnvSpec, Policy
from nac_drive.envs.wrappers import without_bar


@dataclass(frozen=True)
class RecordedEpisode:
    """An episode of a dataset, in memory."""

    index: int
    """Its number in the dataset."""
    track: int
    env: EnvConfig
    """The environment of the dataset."""
    arrays: EpisodeArrays
    labelled: np.ndarray
    """(N,) bool: whether the label of a frame is the expert's."""

    @classmethod
    def read(cls, dataset: Demonstrations, index: int) -> RecordedEpisode:
        """Read an episode of a dataset.

        Raises:
            DatasetError: If there is no such episode, or it is damaged.
        """
        row = next((row for row in dataset.rows if row["index"] == index), None)
        if row is None:
            numbers = [row["index"] for row in dataset.rows]
            range_text = f"{min(numbers)} to {max(numbers)}" if numbers else "none"
            raise DatasetError(f"episode {index} is not in {dataset.path}, which has {range_text}; pass one of them.")
        return cls.of(dataset, row)

    @classmethod
    def of(cls, dataset: Demonstrations, row: DatasetRow) -> RecordedEpisode:
        """Read the episode of a row.

        Raises:
            DatasetError: If it is damaged.
        """
        env = dataset.meta.env
        require_recorded(dataset.path, row, env)
        arrays, _ = read_episode(dataset.path / row["file"], env)
        labelled = labelled_frames(row)
        mask = np.ones(len(arrays.label), bool) if labelled is None else labelled
        return cls(row["index"], row["seed"], env, arrays, mask)

    @property
    def counted(self) -> np.ndarray:
        """Return which frames (N,) offline metrics count.

        They have the expert's label, and lie after the zoom.
        """
        return ~self.arrays.zooming & self.labelled

    @property
    def spec(self) -> EnvSpec:
        """The facts of the environment that need no simulator."""
        return replace(self.env.spec, regions=None, pose=None, road=None, video_image=None)

    def road(self, driver: Policy, role: str = "the driver") -> RecordedRoad:
        """Return the episode as a driver sees it.

        Args:
            driver: The driver.
            role: Its name, for errors.

        Raises:
            ValueError: The driver reads the simulator, or was trained on other frames.
        """
        if isinstance(driver, Controller | KeyboardDriver):
            raise ValueError("driver: a controller and a person need the simulator; pass a trained one for recordings.")
        require_environment(role, driver, self.env)
        require_view(role, driver, self.env)
        trained = trained_env(driver)
        bar_top = self.env.spec.bar_top if trained and trained.mask_bar else None
        return RecordedRoad(self, bar_top)


class RecordedRoad(gym.Env):
    """The frames of a recording, one after another. No action changes what comes next.

    Args:
        episode: The recording.
        bar_top: First row of a status bar that is painted black; None shows all.
    """

    def __init__(self, episode: RecordedEpisode, bar_top: int | None = None) -> None:
        self._episode, self._bar_top, self._next = episode, bar_top, 0
        self.observation_space = gym.spaces.Box(0, 255, episode.env.spec.frame_shape, np.uint8)
        spec = episode.env.spec
        low, high = np.array(spec.part_ranges, np.float32).T
        discrete = episode.env.control == "discrete"
        self.action_space = gym.spaces.Discrete(spec.num_actions) if discrete else gym.spaces.Box(low, high)
        self.state = episode.arrays.frames[0]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self._next = 0
        return self._look(), self._info()

    def step(self, action: Any):
        arrays = self._episode.arrays
        reward = float(arrays.reward[self._next])
        self._next += 1
        ended = self._next == len(arrays.frames)
        return self._look(), reward, ended, False, self._info()

    def _look(self) -> np.ndarray:
        """Return the present frame.

        It is the last one if none was recorded after the last action.
        """
        arrays = self._episode.arrays
        if self._next < len(arrays.frames):
            self.state = arrays.frames[self._next]
        elif arrays.last_frame is not None:
            self.state = arrays.last_frame
        return self.state if self._bar_top is None else without_bar(self.state, self._bar_top)

    def _info(self) -> dict[str, Any]:
        arrays = self._episode.arrays
        row = min(self._next, len(arrays.frames) - 1)
        return {
            "dt": float(arrays.dt[row]), "zooming": bool(arrays.zooming[row]),
            **{name: float(values[row]) for name, values in arrays.telemetry.items()},
        }  # fmt: skip


def driver_of_recording(spec: AnyDriver, env: EnvConfig) -> Policy:
    """Load a driver for recorded frames, see `resolve_driver`.

    Args:
        spec: The driver.
        env: The environment of the dataset.

    Raises:
        FileNotFoundError: There is no such driver.
        ValueError: It is no driver, or one of another control.
    """
    try:
        return resolve_driver(spec, env)
    except ControlError as error:
        driver, own, asked, _ = error.args
        fix = f"pass a driver of {asked} control, or a dataset of {own} control"
        raise ControlError(driver, own, asked, fix) from None


def open_dataset(dataset: Demonstrations | str | os.PathLike[str]) -> Demonstrations:
    """Return a dataset, or open its folder."""
    return dataset if isinstance(dataset, Demonstrations) else Demonstrations.open(dataset)
