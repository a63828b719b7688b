"""Demonstrations in memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nac_drive.data_collection.dataset.episode_file import EpisodeArrays, read_episode
from nac_drive.envs import EnvConfig


@dataclass(frozen=True)
class Frames:
    """E episodes in memory, end to end: N frames; row i is observation i and the decision made on it."""

    frames: NDArray[np.uint8]
    """(N, 96, 96, 3)."""
    labels: NDArray[Any]
    """int64 (N,) or float32 (N, 3): the expert's actions."""
    actions: NDArray[Any]
    """The executed actions, like `labels`."""
    rewards: NDArray[np.float32]
    """(N,)."""
    dt: NDArray[np.float32]
    """(N,): seconds since the previous observation, 0 at the start of an episode."""
    zooming: NDArray[np.bool_]
    """(N,): whether gymnasium's opening animation is on."""
    telemetry: dict[str, NDArray[np.float32]]
    """One (N,) array per name of `TELEMETRY`; empty for own data."""
    offsets: NDArray[np.int64]
    """(E + 1,): episode e is the rows offsets[e] to offsets[e + 1]."""
    seeds: NDArray[np.int64]
    """(E,): track seeds."""

    def __len__(self) -> int:
        return len(self.labels)


def load_frames(path: Path, rows: Sequence[dict[str, Any]], env: EnvConfig) -> Frames:
    """Decode episodes into memory.

    Args:
        path: The dataset folder.
        rows: Rows of its episodes.jsonl, at least one.
        env: The dataset's EnvConfig.

    Returns:
        The episodes, without the frames after their last actions.

    Raises:
        DatasetError: If an episode is damaged.
    """
    offsets = np.cumsum([0, *(row["length"] for row in rows)], dtype=np.int64)
    shape = env.spec.frame_shape
    frames = np.empty((offsets[-1], *shape), dtype=np.uint8)

    def decode(episode: int) -> EpisodeArrays:
        target = frames[offsets[episode] : offsets[episode + 1]]
        return read_episode(path / rows[episode]["file"], env.control, frames=target, frame_shape=shape)[0]

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        episodes = list(pool.map(decode, range(len(rows))))
    return Frames(
        frames=frames,
        labels=np.concatenate([episode.label for episode in episodes]),
        actions=np.concatenate([episode.action for episode in episodes]),
        rewards=np.concatenate([episode.reward for episode in episodes]).astype(np.float32),
        dt=np.concatenate([episode.dt for episode in episodes]).astype(np.float32),
        zooming=np.concatenate([episode.zooming for episode in episodes]),
        telemetry={
            name: np.concatenate([episode.telemetry[name] for episode in episodes]).astype(np.float32)
            for name in episodes[0].telemetry
            if all(name in episode.telemetry for episode in episodes)
        },
        offsets=offsets,
        seeds=np.array([row["seed"] for row in rows], dtype=np.int64),
    )
