"""Check episode files against their rows and the simulator.

The simulator replays them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from nac_drive.data_collection.dataset import folder
from nac_drive.data_collection.dataset.episode_arrays import EpisodeArrays, summarize
from nac_drive.data_collection.dataset.episode_file import DatasetError, episode_sha256, read_episode
from nac_drive.data_collection.dataset.meta import Meta
from nac_drive.data_collection.dataset.rows import OPTIONAL, SUMMARY, DatasetRow
from nac_drive.envs import EnvConfig, Step, make_env, rollout
from nac_drive.events import Progress, counting
from nac_drive.parallel.processes import map_in_processes


def check_dataset(
    path: Path,
    meta: Meta,
    rows: Sequence[DatasetRow],
    cut_off: bool,
    *,
    replay: bool,
    workers: int,
    progress: Progress,
) -> list[str]:
    """Return the problems of a dataset, see `Demonstrations.verify`.

    `cut_off` says whether the last line of the rows is cut off.
    """
    if replay and not meta.simulated:
        raise DatasetError(f"{path} holds own data, which cannot be simulated again; verify without a replay.")
    problems = []
    if cut_off:
        problems.append(f"{path / folder.ROWS}: the last row is cut off; {meta.repair}")
    with_row = {path / row["file"] for row in rows}
    problems += [
        f"{file}: it has no row in {folder.ROWS}; {meta.repair}"
        for file in sorted((path / folder.EPISODES).glob("*.h5"))
        if file not in with_row
    ]
    check = partial(check_episode, path, meta, replay)
    finished = counting(progress, f"verify ({path.name})", len(rows))
    for row, of_episode in zip(rows, map_in_processes(check, rows, workers), strict=True):
        problems += of_episode
        finished(f"track {row['seed']}")
    return problems


def check_episode(path: Path, meta: Meta, replay: bool, row: DatasetRow) -> list[str]:
    """Find the problems of one episode.

    Its file must exist, have the row's SHA-256, be whole, and agree with the row.

    Args:
        path: The dataset folder.
        meta: The dataset's settings.
        replay: Simulate the track of the row's seed under the executed actions as well: frames, rewards, telemetry and
            ending must be the same, bit for bit.
        row: The row of the episode.

    Returns:
        One line per problem, with its fix; empty for a sound episode.
    """
    env, repair = meta.env, meta.repair
    file = path / row["file"]
    problems = []
    try:
        if episode_sha256(file) != row["sha256"]:
            problems.append(
                f"{file}: the content has changed since it was recorded (SHA-256 differs from the row's); {repair}"
            )
        arrays, summary = read_episode(file, env)
    except DatasetError as error:
        return [*problems, str(error)]
    differences = [
        f"{file}: {name} is {summary.get(name)}, its row says {row.get(name)}"
        for name in (*SUMMARY, *OPTIONAL)
        if summary.get(name) != row.get(name)
    ]
    if np.cumsum(arrays.reward)[-1] != summary["return"]:
        differences.append(f"{file}: the rewards sum to {arrays.reward.sum()}, the return is {summary['return']}")
    if replay:
        differences += [f"{file}: replay: {problem}" for problem in _replay(arrays, summary, env)]
    return [*problems, *(f"{difference}; delete the file and {repair}" for difference in differences)]


def play_back(
    env: EnvConfig, seed: int, label: NDArray[Any], action: NDArray[Any]
) -> tuple[EpisodeArrays, dict[str, Any], bool]:
    """Simulate an episode again from its actions. It is cut after the last one.

    Args:
        env: The environment.
        seed: The track.
        label: The expert's actions, (N,) or (N, 3) as in `EpisodeArrays`.
        action: The executed actions, like `label`.

    Returns:
        The arrays and the summary of the simulated episode, and whether it ended by itself.

    Raises:
        ValueError: If the environment refuses an action.
    """
    steps: list[Step] = []
    executed, simulator = iter(action), _Cut(make_env(env), len(action))
    episode = rollout(simulator, _Repeat(label), seed, execute=lambda _: next(executed), subscribers=[steps.append])
    return EpisodeArrays.from_steps(steps, episode.last_observation), summarize(episode), simulator.ended


class _Cut(gym.Wrapper):
    """Truncates an episode after some decisions."""

    def __init__(self, env: gym.Env, decisions: int):
        super().__init__(env)
        self._left = decisions
        self.ended = False
        """Whether the episode ended by itself."""

    def step(self, action):
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._left -= 1
        self.ended = terminated or truncated
        return observation, reward, terminated, truncated or not self._left, info


class _Repeat:
    """A policy whose actions are recorded labels."""

    def __init__(self, labels: NDArray[Any]):
        self._labels = labels

    def begin(self, env: gym.Env) -> int:
        return 0

    def act(self, observation: np.ndarray, state: int, dt: float) -> tuple[Any, int]:
        return self._labels[state], state + 1


def _replay(recorded: EpisodeArrays, summary: dict[str, Any], env: EnvConfig) -> list[str]:
    try:
        simulated, ending, ended = play_back(env, summary["seed"], recorded.label, recorded.action)
    except ValueError as error:
        return [f"an executed action is refused: {error}"]
    length = ending["length"]
    if length < summary["length"]:
        return [f"the episode ends after {length} frames, recorded are {summary['length']}"]
    problems = []
    expected = {"frames": recorded.frames, **recorded.columns()}
    for name, values in {"frames": simulated.frames, **simulated.columns()}.items():
        if name not in expected:  # own data has no telemetry
            problems.append(f"{name} is missing")
            continue
        differs = (values != expected[name]).reshape(length, -1).any(axis=1)
        if differs.any():
            problems.append(f"{name} differ from frame {int(differs.argmax())} on")
    last, recorded_last = simulated.last_frame, recorded.last_frame
    if last is not None and recorded_last is not None and (last != recorded_last).any():
        problems.append("the frame after the last action differs")
    problems += [
        f"{name} is {ending.get(name)}, recorded is {summary.get(name)}"
        for name in SUMMARY
        if ending.get(name) != summary.get(name)
    ]
    if not ended:
        problems.append(f"the episode goes on after its last frame {length - 1}")
    return problems
