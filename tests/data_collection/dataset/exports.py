"""What the tests of exports share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from minari.data_collector import EpisodeBuffer
from minari.dataset.minari_storage import MinariStorage

from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.data_collection.dataset.episode_arrays import EpisodeArrays
from nac_drive.data_collection.dataset.episode_file import read_episode

DISCRETE, CONTINUOUS, OWN = "discrete", "continuous", "own"
every_dataset = pytest.mark.parametrize("name", [DISCRETE, CONTINUOUS, OWN])


def episodes_of(dataset: Demonstrations) -> list[tuple[EpisodeArrays, dict[str, Any]]]:
    """Arrays and summary of every episode."""
    return [read_episode(dataset.path / row["file"], dataset.meta.env) for row in dataset.rows]


def write_minari(
    folder: Path,
    episodes: Sequence[dict[str, Any]],
    seeds: Sequence[int | None] | None = None,
    ends: Sequence[tuple[bool, bool]] | None = None,
    jpeg: bool = False,
) -> Path:
    """Write a dataset as a user of Minari does.

    Args:
        folder: Its folder, NAMESPACE/NAME-vVERSION.
        episodes: Observations, discrete actions and rewards of each.
        seeds: Seed of each episode, if any.
        ends: Whether each terminated, and whether it was truncated; neither by default.
        jpeg: Store frames as JPEG.
    """
    (folder / "data").mkdir(parents=True)
    storage = MinariStorage.new(
        folder / "data", gym.spaces.Box(0, 255, (96, 96, 3), np.uint8), gym.spaces.Discrete(5), jpeg_encoding=jpeg
    )
    storage.update_metadata({"dataset_id": "/".join(folder.parts[-2:]), "minari_version": "0.5.4"})
    for index, episode in enumerate(episodes):
        flags = np.zeros((2, len(episode["actions"])), np.bool_)
        flags[:, -1] = (False, False) if ends is None else ends[index]
        storage.update_episodes(
            [
                EpisodeBuffer(
                    id=None,
                    seed=None if seeds is None else seeds[index],
                    **episode,
                    terminations=list(flags[0]),
                    truncations=list(flags[1]),
                )
            ]
        )
    return folder


ENDS = [(True, False), (False, True), (False, False), (True, True)]
"""Terminated and truncated, truncated alone, cut off, and both at once."""


def grey(length: int, index: int = 0) -> dict[str, Any]:
    """A small episode of N actions."""
    return {
        "observations": np.full((length + 1, 96, 96, 3), 10 * index, np.uint8),
        "actions": np.arange(length) % 5,
        "rewards": np.full(length, 0.5),
    }
