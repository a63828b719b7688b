"""What the tests of exports share."""

from __future__ import annotations

from typing import Any

import pytest

from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.data_collection.dataset.episode_file import EpisodeArrays, read_episode

DISCRETE, CONTINUOUS, OWN = "discrete", "continuous", "own"
every_dataset = pytest.mark.parametrize("name", [DISCRETE, CONTINUOUS, OWN])


def episodes_of(dataset: Demonstrations) -> list[tuple[EpisodeArrays, dict[str, Any]]]:
    """Arrays and summary of every episode."""
    return [read_episode(dataset.path / row["file"], dataset.meta.env) for row in dataset.rows]
