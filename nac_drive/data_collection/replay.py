"""Publish a dataset as one file, and simulate it again.

The simulation is the same bit for bit. See `dataset.action_log`.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from nac_drive.arguments import checks_shared_arguments, path_of
from nac_drive.data_collection.collect import add_missing, open_recording
from nac_drive.data_collection.dataset.action_log import ActionLog, EpisodeActions, encode_action_log, read_action_log
from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.data_collection.dataset.episode_file import EncodedEpisode, read_episode
from nac_drive.data_collection.dataset.folder import META
from nac_drive.data_collection.dataset.limits import DatasetError
from nac_drive.data_collection.dataset.meta import Meta
from nac_drive.data_collection.dataset.rows import OPTIONAL, episode_file
from nac_drive.data_collection.dataset.verify import play_back
from nac_drive.envs import EnvConfig
from nac_drive.envs.views import ABOVE, Size, View
from nac_drive.events import Progress
from nac_drive.notebook import automatic
from nac_drive.parallel.processes import number_of_workers, require_workers
from nac_drive.parallel.versions import SIMULATOR, installed_versions
from nac_drive.storage.read import read_json
from nac_drive.storage.write import require_new, require_writable, write_atomically, writing


@checks_shared_arguments
def save_action_log(
    dataset: Demonstrations | str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    workers: int = 1,
    progress: Progress = automatic,
) -> None:
    """Write the action log of a dataset. The same dataset gives the same bytes.

    Args:
        dataset: The dataset, or its folder.
        path: The new file.
        workers: Processes that check the dataset first, as `verify` does without a replay (`rebuild` is one).
        progress: Called after every episode that is checked.

    Raises:
        FileExistsError: If the file exists.
        WriteError: If it cannot be written.
        DatasetError: The dataset is empty, unfinished, damaged, or own data.
    """
    path = path_of("path", path)
    require_new(path)
    require_writable(path)
    if not isinstance(dataset, Demonstrations):
        dataset = Demonstrations.open(dataset)
    log = _log_of(dataset, workers, progress)
    with writing(path):
        write_atomically(path, encode_action_log(log), new=True)


def _log_of(dataset: Demonstrations, workers: int, progress: Progress) -> ActionLog:
    """Return the action log of a dataset.

    Its files are checked first.

    Raises:
        DatasetError: The dataset is empty, unfinished, damaged, or own data.
    """
    if not dataset.meta.simulated:
        raise DatasetError(f"{dataset.path} makes no action log: it holds own data, which was not simulated here.")
    if problems := dataset.verify(workers=workers, progress=progress):
        raise DatasetError(f"{dataset.path} has {len(problems)} problem(s), first {problems[0].rstrip('.')}.")
    rows, env = dataset.rows, dataset.meta.env
    try:
        missing = set(range(len(rows))) - {row["index"] for row in rows}
        if missing:
            raise ValueError(f"its episode {min(missing)} is missing; collect it to its end with --resume")
        episodes = [EpisodeActions.from_arrays(*read_episode(dataset.path / row["file"], env)) for row in rows]
        document = read_json(dataset.path / META, dict[str, Any], "a dataset's meta.json", "fetch it again")
        return ActionLog(document, episodes)
    except ValueError as error:
        raise DatasetError(f"{dataset.path} makes no action log: {str(error).rstrip('.')}.") from error


def drawn_anew(
    dataset: Demonstrations, view: View, *, workers: int = 1, progress: Progress = automatic
) -> Demonstrations:
    """Return a recording as another view shows it.

    It is the dataset NAME-VIEW beside the dataset NAME, and is made or completed if it is not there. Frame i of both is
    the same instant, with the same label.

    Args:
        dataset: The recording.
        view: The view. The recording itself is returned where it has that view.
        workers: Processes; the dataset does not depend on their number.
        progress: Called after every episode.

    Raises:
        DatasetError: See `save_action_log` and `rebuild`.
        ValueError: The environment has no such view.
    """
    if dataset.meta.env.view == view:
        return dataset
    path = dataset.path.with_name(f"{dataset.path.name}-{view}")
    meta = replace(dataset.meta, env=replace(dataset.meta.env, view=view, size=ABOVE))
    log = _log_of(dataset, number_of_workers(workers), progress)
    return _rebuilt(log, dataset.path, path, meta, workers=workers, resume=path.exists(), progress=progress)


@checks_shared_arguments
def rebuild(
    log_path: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    view: View | None = None,
    size: Size | None = None,
    workers: int = 1,
    resume: bool = False,
    progress: Progress = automatic,
) -> Demonstrations:
    """Simulate an action log's episodes into a dataset folder.

    It is the original, bit for bit.

    No episode is written that differs from the action log's. In another view the frames are new, and everything else is
    the original, bit for bit: so one recording gives what every view shows of the same moments.

    Args:
        log_path: The file of the action log.
        path: The dataset folder.
        view: View of the frames, see `CarRacing`; the recording's by default.
        size: Width and height of the frames; the recording's by default, 96 x 96 in another view.
        workers: Processes; the dataset does not depend on their number.
        resume: Go on with an interrupted rebuild.
        progress: Called after every episode, in the order in which they end.

    Returns:
        The dataset.

    Raises:
        FileExistsError: If `path` exists and `resume` is off.
        FolderInUseError: If another process writes to `path`.
        WriteError: If the dataset cannot be written.
        DatasetError: The action log is bad, an episode comes out otherwise here (those before it are kept), `path`
            holds another episode (it is left alone), the disk has no room, or a worker died.
        ValueError: For a number of workers out of range.
    """
    log_path, path = path_of("log_path", log_path), path_of("path", path)
    log = read_action_log(log_path)
    workers, recorded = require_workers(workers), log.meta.env
    view = view or recorded.view
    size = size or (recorded.size if view == recorded.view else ABOVE)
    meta = replace(log.meta, env=replace(recorded, view=view, size=size))
    return _rebuilt(log, log_path, path, meta, workers=workers, resume=resume, progress=progress)


def _rebuilt(
    log: ActionLog, source: Path, path: Path, meta: Meta, *, workers: int, resume: bool, progress: Progress
) -> Demonstrations:
    """Simulate an action log, see `rebuild`."""
    same_view = meta.env == log.meta.env
    if resume and not path.exists():
        raise DatasetError(f"nothing to resume at {path}: there is no such folder; start without --resume.")
    if resume and not Demonstrations.vacant(path):
        _require_episodes_of(log, Demonstrations.open(path), meta, same_view)
    seeds = [episode.summary["seed"] for episode in log.episodes]
    with open_recording(path, meta, seeds, resume=resume) as dataset:
        episode = partial(_rebuild_episode, meta.env, same_view, source, _cause(log))
        add_missing(dataset, episode, list(enumerate(log.episodes)), workers, progress, f"rebuild ({source.name})")
    return dataset


def _rebuild_episode(
    env: EnvConfig, same_view: bool, log_path: Path, cause: str, task: tuple[int, EpisodeActions]
) -> EncodedEpisode:
    """Simulate episode `task[1]` again as episode `task[0]`."""
    index, episode = task
    seed = episode.summary["seed"]
    arrays, summary, _ = play_back(env, seed, episode.label, episode.action)
    summary |= {name: episode.summary[name] for name in OPTIONAL if name in episode.summary}
    if differences := EpisodeActions.from_arrays(arrays, summary).differences(episode, same_view=same_view):
        raise DatasetError(
            f"episode {index} (track {seed}) of {log_path} comes out otherwise here: {', '.join(differences)}; {cause}."
        )
    return EncodedEpisode.encode(index, arrays, summary)


def _cause(log: ActionLog) -> str:
    """Return why an episode may differ, and the fix."""
    made, here = log.document.get("versions", {}), installed_versions()
    changed = [
        f"{name} {made[name]} (here {here.get(name, 'none')})"
        for name in SIMULATOR
        if name in made and made[name] != here.get(name)
    ]
    if changed:
        return f"it was recorded with {', '.join(changed)}: install that and go on with --resume"
    return "the versions are the same: the action log was changed or made on another processor; fetch or make it again"


def _require_episodes_of(log: ActionLog, dataset: Demonstrations, meta: Meta, same_view: bool) -> None:
    """Raise DatasetError unless all episodes are the action log's.

    Whole episodes in `dataset` count, also without a row.
    """
    dataset.require_meta(meta)
    episodes = dict(enumerate(log.episodes))
    for index in sorted(episodes.keys() | {row["index"] for row in dataset.rows}):
        try:
            episode = EpisodeActions.from_arrays(*read_episode(dataset.path / episode_file(index), meta.env))
        except DatasetError:  # missing or damaged: it will be simulated again
            continue
        none = ["there is none in the action log"]
        differences = episode.differences(episodes[index], same_view=same_view) if index in episodes else none
        if differences:
            raise DatasetError(
                f"cannot resume {dataset.path}: its episode {index} is not the action log's "
                f"({', '.join(differences)}); rebuild into another folder."
            )
