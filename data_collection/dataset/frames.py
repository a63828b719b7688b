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

from nac_drive.data_collection.dataset.episode_file import TELEMETRY, EpisodeArrays, read_episode
from nac_drive.envs import FRAME_SHAPE


@dataclass(frozen=True)
class Frames:
    """E episodes in memory, end to end: N frames, row i is the observation i and the decision made on it.

    frames: (N, 96, 96, 3) uint8.  labels: the expert's actions, int64 (N,) or float32 (N, 3).  actions: the executed
    ones, like labels.  rewards: (N,) float32.  dt: (N,) float32, seconds since the previous observation, 0 at the start
    of an episode.  zooming: (N,) bool.  telemetry: float32 (N,) per name of `TELEMETRY`.
    offsets: (E + 1,) int64; episode e is the rows offsets[e] to offsets[e + 1].  seeds: (E,) int64, its track seed.
    """

    frames: NDArray[np.uint8]
    labels: NDArray[Any]
    actions: NDArray[Any]
    rewards: NDArray[np.float32]
    dt: NDArray[np.float32]
    zooming: NDArray[np.bool_]
    telemetry: dict[str, NDArray[np.float32]]
    offsets: NDArray[np.int64]
    seeds: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)


def load_frames(path: Path, rows: Sequence[dict[str, Any]], control: str) -> Frames:
    """Decode the episodes that `rows` of the dataset at `path` tell of. Raises DatasetError for a damaged one."""
    offsets = np.cumsum([0, *(row["length"] for row in rows)], dtype=np.int64)
    frames = np.empty((offsets[-1], *FRAME_SHAPE), dtype=np.uint8)

    def decode(episode: int) -> EpisodeArrays:
        target = frames[offsets[episode] : offsets[episode + 1]]
        return read_episode(path / rows[episode]["file"], control, frames=target)[0]

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
            for name in TELEMETRY
        },
        offsets=offsets,
        seeds=np.array([row["seed"] for row in rows], dtype=np.int64),
    )
