"""Collect demonstrations: any driver, many tracks, many processes, one dataset."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import cloudpickle
import gymnasium as gym
import numpy as np

from nac_drive.arguments import checks_shared_arguments, path_of, require_kind, require_text
from nac_drive.data_collection.corrections import Corrections
from nac_drive.data_collection.dart import ActionNoise, NoiseConfig
from nac_drive.data_collection.dataset.create import remove_empty
from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.data_collection.dataset.episode_arrays import EpisodeArrays, summarize
from nac_drive.data_collection.dataset.episode_file import EncodedEpisode
from nac_drive.data_collection.dataset.limits import DatasetError
from nac_drive.data_collection.dataset.meta import Meta
from nac_drive.data_collection.dataset.rows import CORRECTIONS, ROUND, DatasetRow, row_note
from nac_drive.data_collection.dataset.sources import seeds_of
from nac_drive.data_collection.dataset.space import require_space
from nac_drive.data_collection.drivers import AnyDriver, accepted, driver_hash, driver_name, resolve_driver, sendable
from nac_drive.data_collection.frame_count import FrameCount, FrameReports, frame_count
from nac_drive.data_collection.human import Human
from nac_drive.data_collection.mixture import MixtureConfig, MixturePolicy
from nac_drive.data_collection.trained_env import require_environment, seen_by, trained_env
from nac_drive.envs import EnvConfig, Episode, Policy, Step, make_env, rollout, trained_view
from nac_drive.events import Event, Progress, counting
from nac_drive.notebook import automatic
from nac_drive.parallel.processes import Workers, number_of_workers, require_workers, worker_pool
from nac_drive.plain import whole
from nac_drive.storage.lock import locked

_BYTES_PER_FRAME = 3000
"""Upper bound; 1.8 to 2.3 KB are usual."""


@dataclass(frozen=True)
class EpisodeJob:
    """Everything that a worker process needs to record episodes."""

    driver: bytes
    """The pickled driver: its folder may be out of the worker's reach."""
    meta: Meta
    """The dataset's settings."""
    round: int | None = None
    """Round of a DAgger run; None outside of one."""


@checks_shared_arguments
def collect(
    path: str | os.PathLike[str],
    driver: AnyDriver = "expert",
    *,
    env: EnvConfig | None = None,
    seeds: str | Sequence[int],
    noise: NoiseConfig | None = None,
    seed: int = 0,
    workers: int = 1,
    cluster: str | None = None,
    resume: bool = False,
    progress: Progress = automatic,
) -> Demonstrations:
    """Collect one episode of a driver on each track.

    The episodes are written to a dataset folder.

    The folder is a sound dataset after every episode and after a kill at any moment.

    Args:
        path: The dataset folder.
        driver: A driver, its name or its folder, see `resolve_driver`. It sees the status bar as in its training, or
            if it was not trained here, whether or not `env` masks it in the recorded frames. Under perturbations it
            sees the true frames, and the recorded ones are perturbed.
        env: The environment; `EnvConfig()` by default.
        seeds: Tracks, one episode each: named ones such as "train-20" (see `track_seeds`), or their seeds.
        noise: Noise in the executed actions; the label stays the driver's action. None by default.
        seed: Seed of the noise, together with the track's seed.
        workers: Processes, 0 for one per core; the dataset does not depend on their number. A person drives in this
            process.
        cluster: Collect on a Ray cluster, see `worker_pool`; the dataset is the same, and is written by this process.
        resume: Go on with an interrupted recording, or add tracks at the end of `seeds`.
        progress: Called after every episode, in the order in which they end, and every second with the frames so far.

    Returns:
        The dataset.

    Raises:
        FileExistsError: If `path` exists and `resume` is off.
        FolderInUseError: If another process writes to `path`.
        WriteError: If the dataset cannot be written.
        DatasetError: If the disk has no room for it, it was recorded with other settings, or a worker died.
        ValueError: If an argument is bad, or the driver was made for another control or trained in another environment.
        FileNotFoundError: If there is no such driver.
    """
    path, seeds, seed = path_of("path", path), seeds_of(seeds), whole("seed", seed, 0)
    require_kind("noise", noise, NoiseConfig, optional=True)
    noise = noise if noise and noise.probability else None
    if cluster is not None:
        require_text("cluster", cluster, "pass 'auto' or HOST:PORT")
    require_workers(workers, cluster)
    env, driver = env or EnvConfig(), accepted(driver)
    loaded = resolve_driver(driver, env)  # a bad driver fails here, before there is a folder
    fix = "pass its environment, or a driver of this one"
    require_environment(f"driver {driver_name(driver)!r}", loaded, env, fix)
    if isinstance(loaded, Human) or not sendable(loaded, workers != 1 or cluster is not None):  # one window
        workers, cluster = 1, None
    pickled = cloudpickle.dumps(loaded)
    meta = Meta(env, driver_name(driver), driver_hash(driver, env), noise, seed)
    if resume and not path.exists():
        raise DatasetError(f"nothing to resume at {path}: there is no such folder; start without --resume.")
    job = f"collect ({meta.driver})"
    with open_recording(path, meta, seeds, resume=resume) as dataset, frame_count() as count:
        episode = partial(collect_episode, EpisodeJob(pickled, meta), count=count)
        add_missing(dataset, episode, list(enumerate(seeds)), workers, progress, job, cluster, count)
    return dataset


@contextmanager
def open_recording(path: Path, meta: Meta, seeds: Sequence[int], *, resume: bool) -> Iterator[Demonstrations]:
    """Hold a dataset while missing episodes are added.

    It is held for a `with` block.

    It is a new one, or a recovered one if `resume` is on. What can be checked is checked before anything is touched.

    Args:
        path: The dataset folder.
        meta: Its settings.
        seeds: `seeds[i]` is the track of episode i.
        resume: Go on with an interrupted recording.

    Raises:
        FolderInUseError: If another process writes to the dataset.
        FileExistsError, WriteError, DatasetError: As `collect` does.
    """
    if resume and not Demonstrations.vacant(path):
        left = len(seeds) - len(_recorded(path, meta, seeds))
    else:
        Demonstrations.require_vacant(path, "choose another folder, or add to it with --resume")
        left = len(seeds)
    fix = "choose another folder or collect fewer episodes"
    require_space(path, left * meta.env.max_steps * _BYTES_PER_FRAME, fix)
    with locked(path):
        if resume and not Demonstrations.vacant(path):
            dataset = _recorded(path, meta, seeds)
            dataset.recover(seeds)
        else:
            dataset = Demonstrations.create(path, meta)
        try:
            yield dataset
        except Exception:
            with suppress(OSError):
                remove_empty(path)  # a driver that failed at once is mended, and recorded here again
            raise


def _recorded(path: Path, meta: Meta, seeds: Sequence[int]) -> Demonstrations:
    """Open a dataset and check its settings and tracks."""
    dataset = Demonstrations.open(path)
    dataset.require_meta(meta)
    dataset.require_seeds(seeds)
    if len(dataset) > len(seeds):
        raise DatasetError(
            f"{path} has {len(dataset)} episodes, more than the {len(seeds)} asked for; ask for as many."
        )
    return dataset


def add_missing(
    dataset: Demonstrations,
    episode: Callable[[tuple[int, Any]], EncodedEpisode],
    tasks: Sequence[tuple[int, Any]],
    workers: int,
    progress: Progress,
    job: str,
    cluster: str | None = None,
    count: FrameCount | None = None,
) -> None:
    """Add the episodes that are missing.

    Args:
        dataset: The dataset.
        episode: Called with a task, perhaps in another process; returns episode `task[0]`.
        tasks: One per episode, those that are there included.
        workers: Processes.
        progress: Called after every episode.
        job: The job's name.
        cluster: See `worker_pool`.
        count: The frames that `episode` counts, which `progress` hears of every second.
    """
    there = {row["index"] for row in dataset.rows}
    missing = [task for task in tasks if task[0] not in there]
    finished = counting(progress, job, len(tasks), len(tasks) - len(missing))
    local = max(1, min(number_of_workers(workers), len(missing)))
    with worker_pool(workers if cluster else local, cluster) as pool:
        if count:
            reports = FrameReports(count, lambda note: progress(Event(job, len(dataset), len(tasks), note)))
            if isinstance(pool, Workers):
                pool.while_waiting = reports
            elif pool is None:
                count.counted = reports
        for row in append_episodes(dataset, (pool.imap_unordered if pool else map)(episode, missing)):
            finished(row_note(row))


def append_episodes(dataset: Demonstrations, episodes: Iterable[EncodedEpisode]) -> Iterator[DatasetRow]:
    """Write arriving episodes, append their rows, and yield them.

    Raises:
        DatasetError: If a worker process dies.
    """
    try:
        for episode in episodes:
            row = episode.write(dataset.path)
            dataset.append(row)
            yield row
    except ChildProcessError as error:
        reason = f"{str(error).rstrip('.')}{', and go on with --resume' if dataset.rows else ''}"
        raise DatasetError(f"collecting into {dataset.path} stopped: {reason}.") from None


class _SeesAsTrained:
    """A driver that gets the true frame at every query.

    It sees the status bar as in its training.
    """

    def __init__(self, driver: Policy):
        self._driver = driver
        self._view = trained_view(driver)

    def begin(self, env: gym.Env) -> tuple[Any, Any]:
        return env.unwrapped, self._driver.begin(env)

    def act(self, observation: np.ndarray, state: tuple[Any, Any], dt: float) -> tuple[Any, tuple[Any, Any]]:
        car_racing, inner = state
        action, inner = self._driver.act(self._view(car_racing), inner, dt)
        return action, (car_racing, inner)


def collect_episode(job: EpisodeJob, task: tuple[int, int], count: FrameCount | None = None) -> EncodedEpisode:
    """Drive episode `task[0]` on track `task[1]`, and count its frames."""
    index, track = task
    meta = job.meta
    driver = pickle.loads(job.driver)
    trained = trained_env(driver)
    seen = seen_by(trained or replace(meta.env, mask_bar=False))
    if meta.env.perturb or seen != seen_by(meta.env):
        driver = _SeesAsTrained(driver)
    wanted = meta.noise or NoiseConfig(0.0)
    steps: list[Step] = []
    with closing(make_env(meta.env)) as env:
        noise = ActionNoise(wanted.probability, wanted.hold, env.action_space, (meta.seed, track))
        episode = rollout(env, driver, track, execute=noise, subscribers=[steps.append, *([count] if count else [])])
    return _encode(job, index, steps, episode)


def collect_mixture_episode(
    job: EpisodeJob, mixture: MixtureConfig, learner: bytes, task: tuple[int, int]
) -> EncodedEpisode:
    """Drive episode `task[0]` on track `task[1]` with the mixture policy.

    Args:
        job: Its driver is the expert; its meta holds the seed of the mixture.
        mixture: Settings of the mixture policy.
        learner: A pickled `Driver`.
        task: Number of the episode, and its track.
    """
    index, track = task
    policy = MixturePolicy(
        pickle.loads(job.driver), mixture.learner_frames(job.meta.env.max_steps, (job.meta.seed, track))
    )
    steps: list[Step] = []
    with closing(make_env(job.meta.env)) as env:
        episode = rollout(
            env, pickle.loads(learner), track, expert=policy, execute=policy.execute, subscribers=[steps.append]
        )
    return _encode(job, index, steps, episode)


def collect_corrected_episode(job: EpisodeJob, learner: bytes, task: tuple[int, int]) -> EncodedEpisode:
    """Let a learner drive while a person corrects it.

    It drives episode `task[0]` on track `task[1]`.

    Args:
        job: Its driver is the person.
        learner: A pickled `Driver`.
        task: Number of the episode, and its track.
    """
    index, track = task
    person = pickle.loads(job.driver)
    assert isinstance(person, Human)
    policy = Corrections(person)
    with closing(make_env(job.meta.env)) as env:
        episode = rollout(
            env, pickle.loads(learner), track, expert=policy, execute=policy.execute, subscribers=[policy.keep]
        )
    return _encode(job, index, policy.steps, episode, {CORRECTIONS: policy.frames})


def _encode(
    job: EpisodeJob, index: int, steps: Sequence[Step], episode: Episode, more: Mapping[str, Any] = MappingProxyType({})
) -> EncodedEpisode:
    summary = summarize(episode) | ({} if job.round is None else {ROUND: job.round}) | dict(more)
    return EncodedEpisode.encode(index, EpisodeArrays.from_steps(steps, episode.last_observation), summary)
