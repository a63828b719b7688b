"""Does an episode file hold what its row says, and what the simulator says?"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from nac_drive.data_collection.dataset.episode_file import (
    ROUND,
    SUMMARY,
    DatasetError,
    EpisodeArrays,
    read_episode,
    summarize,
)
from nac_drive.envs import EnvConfig, Step, make_env, rollout


def check_episode(folder: Path, env: EnvConfig, replay: bool, row: dict[str, Any]) -> list[str]:
    """The problems of one episode, one line each; empty when it is sound.

    Its file exists, has the row's SHA-256, is whole, and agrees with the row. replay: simulating the track of the
    row's seed under the executed actions gives the same frames, rewards, telemetry and ending, bit for bit.
    """
    path = folder / row["file"]
    if not path.is_file():
        return [f"{path}: the file is missing"]
    problems = []
    if file_sha256(path) != row["sha256"]:
        problems.append(f"{path}: the content has changed since it was recorded (SHA-256 differs from the row's)")
    try:
        arrays, summary = read_episode(path, env.control)
    except DatasetError as error:
        return [*problems, str(error)]
    problems += [
        f"{path}: {name} is {summary.get(name)}, its row says {row.get(name)}"
        for name in (*SUMMARY, ROUND)
        if summary.get(name) != row.get(name)
    ]
    if np.cumsum(arrays.reward)[-1] != summary["return"]:
        problems.append(f"{path}: the rewards sum to {arrays.reward.sum()}, the return is {summary['return']}")
    if replay:
        problems += [f"{path}: replay: {told}" for told in _replay(arrays, summary, env)]
    return problems


def file_sha256(path: Path) -> str:
    """Of the content of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def play_back(
    env: EnvConfig, seed: int, label: NDArray[Any], action: NDArray[Any]
) -> tuple[EpisodeArrays, dict[str, Any]]:
    """Simulate the track `seed` in `env` once more: what happens, and its summary.

    label, action: what the driver would do and what is executed, as in `EpisodeArrays`. The episode is cut after the
    last action: one that would go on shows as not terminated. Raises ValueError when an action is refused.
    """
    steps: list[Step] = []
    executed = iter(action)
    episode = rollout(
        make_env(replace(env, max_steps=len(action))), _Repeat(label), seed,
        execute=lambda _: next(executed), subscribers=[steps.append],
    )  # fmt: skip
    return EpisodeArrays.from_steps(steps), summarize(episode)


class _Repeat:
    """A `Driver` that repeats recorded labels."""

    def __init__(self, labels: NDArray[Any]):
        self._labels = labels

    def begin(self, env: gym.Env) -> int:
        return 0

    def act(self, observation: np.ndarray, state: int, dt: float) -> tuple[Any, int]:
        return self._labels[state], state + 1


def _replay(recorded: EpisodeArrays, summary: dict[str, Any], env: EnvConfig) -> list[str]:
    try:
        simulated, ending = play_back(env, summary["seed"], recorded.label, recorded.action)
    except ValueError as error:
        return [f"an executed action is refused: {error}"]
    length = ending["length"]
    if length < summary["length"]:
        return [f"the episode ends after {length} frames, recorded are {summary['length']}"]
    problems = []
    expected = {"frames": recorded.frames, **recorded.columns()}
    for name, values in {"frames": simulated.frames, **simulated.columns()}.items():
        differs = (values != expected[name]).reshape(length, -1).any(axis=1)
        if differs.any():
            problems.append(f"{name} differ from frame {int(differs.argmax())} on")
    problems += [
        f"{name} is {ending[name]}, recorded is {summary[name]}" for name in SUMMARY if ending[name] != summary[name]
    ]
    if not ending["terminated"] and length < env.max_steps:
        problems.append(f"the episode goes on after its last frame {length - 1}")
    return problems
