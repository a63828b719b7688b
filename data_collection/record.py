"""Recording demonstrations: any driver, many tracks, many processes, one dataset."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from data_collection.dataset import Demonstrations, Meta
from data_collection.drivers import driver_hash, resolve_driver, trained_env
from data_collection.episode_file import DatasetError, EpisodeArrays, summarize, write_episode
from data_collection.noise import ActionNoise, NoiseConfig
from envs import Driver, EnvConfig, Step, make_env, rollout

Row = dict[str, Any]

_BYTES_PER_FRAME = 3000
"""Upper bound; 1.8 to 2.3 KB are usual."""


@dataclass(frozen=True)
class _Job:
    """What a worker process must know to record an episode."""

    path: Path
    driver: str
    meta: Meta


def record(
    path: Path,
    driver: str,
    *,
    env: EnvConfig,
    seeds: Sequence[int],
    noise: NoiseConfig | None = None,
    seed: int = 0,
    workers: int = 1,
    resume: bool = False,
    on_episode: Callable[[Row], None] | None = None,
) -> Demonstrations:
    """Let `driver` drive one episode on each track of `seeds` and store them in the dataset folder `path`.

    driver: see `resolve_driver`; one that was trained with the status bar in sight keeps seeing it, also where `env`
    masks it in the recording.  noise: in the executed actions; the label stays the driver's.  seed: of the noise,
    together with the track's seed.  workers: processes; the dataset does not depend on their number.
    resume: go on with an interrupted recording, or add tracks at the end of `seeds`.  on_episode: called with each new
    row (see `ROW`), in the order in which episodes end.

    The folder is a sound dataset after every episode and after a kill at any moment. Raises FileExistsError when `path`
    exists and `resume` is off; WriteError when it cannot be written; DatasetError when the disk has no room for it, it
    was recorded otherwise, or a worker died; ValueError for bad arguments; and what `resolve_driver` raises.
    """
    seeds = [int(track) for track in seeds]
    if not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0:
        raise ValueError(f"seeds must be distinct, at least 0 and at least one of them, got {seeds[:10]}.")
    if workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}.")
    resolve_driver(driver, env)  # a bad driver fails here, before there is a folder
    meta = Meta(env, Path(driver).name, driver_hash(driver, env), noise, seed)
    if resume and not path.exists():
        raise DatasetError(f"nothing to resume at {path}: there is no such folder; start without --resume.")
    if resume and not Demonstrations.vacant(path):
        dataset = Demonstrations.open(path)
        dataset.require_meta(meta)
        dataset.recover(seeds)
        recorded = {row["index"] for row in dataset.rows}
        _require_space(path, (len(seeds) - len(recorded)) * env.max_steps)
    else:
        _require_space(path, len(seeds) * env.max_steps)
        dataset = Demonstrations.create(path, meta)
        recorded = set()
    tasks = [(index, track) for index, track in enumerate(seeds) if index not in recorded]

    def finish(row: Row) -> None:
        dataset.append(row)
        if on_episode:
            on_episode(row)

    job = _Job(path, driver, meta)
    if workers == 1 or len(tasks) < 2:
        _record_here(job, tasks, finish)
    else:
        _record_in_processes(job, tasks, min(workers, len(tasks)), finish)
    return dataset


def _record_here(job: _Job, tasks: list[tuple[int, int]], finish: Callable[[Row], None]) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the order of a sum depends on it, so an argmax may
    try:
        for task in tasks:
            finish(_record_episode(job, task))
    finally:
        torch.set_num_threads(threads)


def _record_in_processes(job: _Job, tasks: list[tuple[int, int]], workers: int, finish: Callable[[Row], None]) -> None:
    with ProcessPoolExecutor(workers, get_context("spawn"), _start_worker) as pool:  # Pool would hang on a dead one
        rows = [pool.submit(_record_episode, job, task) for task in tasks]
        try:
            for row in as_completed(rows):
                finish(row.result())
        except BrokenProcessPool:
            raise DatasetError(
                f"recording into {job.path} stopped: a worker process died, perhaps out of memory; "
                f"go on with --resume and fewer workers than {workers}."
            ) from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    torch.set_num_threads(1)


class _SeesBar:
    """A driver trained with the status bar in sight, shown the clean frame where the environment masks the bar."""

    def __init__(self, driver: Driver):
        self._driver = driver

    def begin(self, env: gym.Env) -> tuple[Any, Any]:
        return env.unwrapped, self._driver.begin(env)

    def act(self, observation: np.ndarray, state: tuple[Any, Any], dt: float) -> tuple[Any, tuple[Any, Any]]:
        car_racing, inner = state
        action, inner = self._driver.act(car_racing.state, inner, dt)
        return action, (car_racing, inner)


@lru_cache(maxsize=1)
def _stage(driver: str, driver_sha256: str, env: EnvConfig) -> tuple[gym.Env, Driver]:
    """Environment and driver, made once per process. The hash keeps a changed driver out of the cache."""
    resolved = resolve_driver(driver, env)
    trained = trained_env(resolved)
    blinded = env.mask_bar and trained is not None and not trained.mask_bar
    return make_env(env), _SeesBar(resolved) if blinded else resolved


def _record_episode(job: _Job, task: tuple[int, int]) -> Row:
    index, track = task
    meta = job.meta
    env, driver = _stage(job.driver, meta.driver_sha256, meta.env)
    steps: list[Step] = []
    if meta.noise:
        noise = ActionNoise(meta.noise.probability, meta.noise.hold, env.action_space, (meta.seed, track))
        episode = rollout(env, driver, track, execute=noise, subscribers=[steps.append])
    else:
        episode = rollout(env, driver, track, subscribers=[steps.append])
    return write_episode(job.path, index, EpisodeArrays.from_steps(steps), summarize(episode))


def _require_space(path: Path, frames: int) -> None:
    """Raises DatasetError unless there is room for `frames` more frames at `path`, which need not exist."""
    disk = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())
    needed, free = frames * _BYTES_PER_FRAME, shutil.disk_usage(disk).free
    if free < needed:
        raise DatasetError(
            f"cannot write {path}: up to {needed / 1e6:,.1f} MB are needed, {free / 1e6:,.1f} MB are free; "
            "free some space, choose another folder or record fewer tracks."
        )
