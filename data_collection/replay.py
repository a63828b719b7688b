"""Publish a dataset as one small file, and drive it again from there, bit for bit. See `dataset.action_log`."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

from nac_drive.data_collection.collect import Row, add_missing, open_recording
from nac_drive.data_collection.dataset.action_log import ActionLog, EpisodeActions, encode_action_log, read_action_log
from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.data_collection.dataset.episode_file import (
    ROUND,
    DatasetError,
    episode_file,
    read_episode,
    write_episode,
)
from nac_drive.data_collection.dataset.verify import play_back
from nac_drive.data_collection.files import write_atomically, writing
from nac_drive.data_collection.versions import SIMULATOR, installed_versions
from nac_drive.envs import EnvConfig


def save_action_log(dataset: Demonstrations, path: Path, *, workers: int = 1) -> None:
    """Write the action log of `dataset` to the new file `path`. The same dataset gives the same bytes.

    workers: processes that check the dataset first, as `verify` does without a replay (`rebuild` is one).
    Raises FileExistsError for an existing file, WriteError when it cannot be written, and DatasetError for a dataset
    that is empty, unfinished or damaged.
    """
    if path.exists():
        raise FileExistsError(f"{path} already exists; choose another file.")
    if problems := dataset.verify(workers=workers):
        raise DatasetError(
            f"{problems[0]} ({len(problems)} problem(s) in {dataset.path}); record those episodes again."
        )
    rows, control = dataset.rows, dataset.meta.env.control
    try:
        missing = set(range(len(rows))) - {row["index"] for row in rows}
        if missing:
            raise ValueError(f"its episode {min(missing)} is missing")
        episodes = [EpisodeActions.of(*read_episode(dataset.path / row["file"], control)) for row in rows]
        log = ActionLog(json.loads((dataset.path / "meta.json").read_text()), episodes)
    except ValueError as error:
        raise DatasetError(
            f"{dataset.path} makes no action log: {error}; record it to its end with --resume."
        ) from error
    with writing(path):
        write_atomically(path, encode_action_log(log))


def rebuild(
    log_path: Path,
    path: Path,
    *,
    workers: int = 1,
    resume: bool = False,
    on_episode: Callable[[Row], None] | None = None,
) -> Demonstrations:
    """Drive the episodes of an action log again and store them in the dataset folder `path`: the original, bit for bit.

    workers, resume, on_episode: as in `record`. No episode is written that is not the action log's.
    Raises DatasetError for a bad action log, for an episode that comes out otherwise here (those before it are kept), and when
    `path` holds another episode (it is left alone); and what `record` raises of folders, disks and workers.
    """
    log = read_action_log(log_path)
    if workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}.")
    if resume and not path.exists():
        raise DatasetError(f"nothing to resume at {path}: there is no such folder; start without --resume.")
    if resume and not Demonstrations.vacant(path):
        _require_episodes_of(log, Demonstrations.open(path))
    dataset = open_recording(path, log.meta, [episode.summary["seed"] for episode in log.episodes], resume=resume)
    episode = partial(_rebuild_episode, path, log.meta.env, log_path, _cause(log))
    add_missing(dataset, episode, enumerate(log.episodes), workers, on_episode)
    return dataset


def _rebuild_episode(path: Path, env: EnvConfig, log_path: Path, cause: str, task: tuple[int, EpisodeActions]) -> Row:
    """Drive episode `task[1]` again as episode `task[0]` and write its file; returns its row."""
    index, episode = task
    seed = episode.summary["seed"]
    arrays, summary = play_back(env, seed, episode.label, episode.action)
    summary |= {name: episode.summary[name] for name in {ROUND} & episode.summary.keys()}
    if told := EpisodeActions.of(arrays, summary).differences(episode):
        raise DatasetError(
            f"episode {index} (track {seed}) of {log_path} comes out otherwise here: {', '.join(told)}; {cause}."
        )
    return write_episode(path, index, arrays, summary)


def _cause(log: ActionLog) -> str:
    """Why an episode comes out otherwise, and the fix."""
    made, here = log.document.get("versions", {}), installed_versions()
    other = [name for name in SIMULATOR if name in made and made[name] != here.get(name)]
    if other:
        told = ", ".join(f"{name} {made[name]} (here {here.get(name, 'none')})" for name in other)
        return f"it was recorded with {told}: install that and go on with --resume"
    return "the versions are the same, so the action log was changed or its processor was another: fetch or record it again"


def _require_episodes_of(log: ActionLog, dataset: Demonstrations) -> None:
    """Raises DatasetError unless every whole episode in `dataset`, also one without a row, is the action log's."""
    dataset.require_meta(log.meta)
    episodes = dict(enumerate(log.episodes))
    for index in sorted(episodes.keys() | {row["index"] for row in dataset.rows}):
        try:
            found = EpisodeActions.of(*read_episode(dataset.path / episode_file(index), log.meta.env.control))
        except DatasetError:  # missing or damaged: it will be driven again
            continue
        told = found.differences(episodes[index]) if index in episodes else ["there is none in the action log"]
        if told:
            raise DatasetError(
                f"cannot resume {dataset.path}: its episode {index} is not the action log's ({', '.join(told)}); "
                "rebuild into another folder."
            )
