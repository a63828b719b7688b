"""Driving in closed loop on named tracks, in parallel processes, with the same result for any number of them."""

from __future__ import annotations

import json
import pickle
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from data_collection.drivers import trained_env
from data_collection.files import write_atomically
from data_collection.processes import Pool, one_thread
from envs import CrashMode, Driver, EnvConfig, RendererName, make_env, perturb, rollout
from envs.perturbations import parse
from nac_drive.metrics import EpisodeMeter, EpisodeResult, Summary, summarise


@dataclass(frozen=True)
class Evaluation:
    """The rows of one driver, in the order of the tracks, and their summary."""

    rows: list[EpisodeResult]
    summary: Summary


def evaluate(
    driver: Driver,
    seeds: Sequence[int],
    *,
    name: str = "driver",
    env: EnvConfig | None = None,
    crash: CrashMode = "ignore",
    perturbation: str = "",
    renderer: RendererName = "gymnasium",
    advisor: Driver | None = None,
    baseline: Evaluation | None = None,
    pool: Pool | None = None,
    on_episode: Callable[[EpisodeResult], None] = lambda row: None,
) -> Evaluation:
    """Drive each track of `seeds` once, deterministically, with the native reward.

    perturbation: see `envs.perturb`; the same disturbance for every driver on the same track.  renderer: who draws the
    frames, whatever `env` says; a score that is reported is measured with gymnasium's.  advisor: the expert that is
    asked at every decision and sees clean frames; `agreement` is the share where the driver does the same.
    baseline: an evaluation on the same tracks that paired differences are taken against.  pool: a `worker_pool`, a
    `multiprocessing.Pool` or ray's; the result does not depend on it, latencies aside.
    on_episode: called as rows come.

    Warns when `driver` was trained on another EnvConfig, renderer aside. Raises ValueError without seeds, for
    a track that is named twice and for a perturbation that there is not.
    """
    if not seeds:
        raise ValueError("seeds must name at least one track, got none.")
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds must name every track once, got {list(seeds)}.")
    parse(perturbation)  # a bad one fails here, not in a process
    env = replace(env or EnvConfig(), renderer=renderer)
    _warn_of_other_env(driver, name, env)
    task = partial(_drive, pickle.dumps((driver, advisor)), name, env, crash, perturbation)
    results = pool.imap(task, seeds) if pool else map(task, seeds)
    rows: list[EpisodeResult] = []
    for row in results:
        rows.append(row)
        on_episode(row)
    return Evaluation(rows, summarise(rows, baseline.rows if baseline else None))


def _drive(
    drivers: bytes, name: str, config: EnvConfig, crash: CrashMode, perturbation: str, seed: int
) -> EpisodeResult:
    driver, advisor = pickle.loads(drivers)  # a fresh copy each time: nothing carries over between episodes
    env = perturb(make_env(config, crash=crash), perturbation, episode_frames=config.max_steps)
    meter = EpisodeMeter()
    try:
        with one_thread():
            episode = rollout(env, driver, seed, advisor=advisor, subscribers=[meter])
    finally:
        env.close()
    return meter.result(name, episode, crash_mode=crash, perturbation=perturbation, renderer=config.renderer)


def _warn_of_other_env(driver: Driver, name: str, env: EnvConfig) -> None:
    trained = trained_env(driver)
    if trained and replace(trained, renderer=env.renderer) != env:
        before, now = asdict(trained) | {"renderer": env.renderer}, asdict(env)
        differing = ", ".join(f"{key} {before[key]!r} -> {now[key]!r}" for key in now if before[key] != now[key])
        warnings.warn(f"driver {name!r} was trained in another environment: {differing}", stacklevel=3)


def save_evaluations(folder: Path, evaluations: Sequence[Evaluation]) -> None:
    """`rows.jsonl` (one episode a line) and `summary.json` (one driver an entry) in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = "".join(json.dumps(asdict(row)) + "\n" for evaluation in evaluations for row in evaluation.rows)
    write_atomically(folder / "rows.jsonl", rows.encode())
    summaries = json.dumps([asdict(evaluation.summary) for evaluation in evaluations], indent=2) + "\n"
    write_atomically(folder / "summary.json", summaries.encode())
