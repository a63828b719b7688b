"""The search that found the numbers of the shipped controller, and a measurement of how they drive.

python benchmarks/papers/controller_search.py --control discrete          # the search
python benchmarks/papers/controller_search.py --tracks test-100           # drive the shipped numbers

See docs/controller.md. The search prints the mean of each generation with its results on that generation's
training tracks, and at the end the numbers that it found with their results on val-25.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import get_args

import numpy as np
import tyro
from cross_entropy import EpisodeScore, SearchConfig, drive, numbers, search

from nac_drive.data_collection.controller.controller import Controller, ControllerConfig
from nac_drive.envs import Control, EnvConfig, Episode, make_env, rollout, track_seeds
from nac_drive.parallel.processes import Pool, default_workers, worker_pool


def results(episodes: list[EpisodeScore]) -> str:
    returns = np.array([episode.episode_return for episode in episodes])
    frames, grass, off = (
        np.mean([getattr(episode, name) for episode in episodes]) for name in ("frames", "touching_grass", "off_road")
    )
    return (
        f"return {returns.mean():.1f} +- {returns.std():.1f}, minimum {returns.min():.1f}; an episode: "
        f"{frames:.0f} frames, {grass:.1f} with a wheel on the grass, {off:.2f} off-road"
    )


def shipped_results(control: Control, seeds: list[int], pool: Pool | None) -> str:
    """Through the public environment and the rollout loop, with the crashes of docs/metrics.md."""
    episodes = list((pool.imap if pool else map)(partial(shipped_episode, control), seeds))
    returns = np.array([episode.episode_return for episode in episodes])
    crashes = sum(episode.outcome["crashes"] for episode in episodes)
    finished = sum(episode.outcome["lap_finished"] for episode in episodes)
    return (
        f"return {returns.mean():.1f} +- {returns.std():.1f}, minimum {returns.min():.1f}, 10th percentile "
        f"{np.percentile(returns, 10):.1f}; {finished} of {len(seeds)} laps finished, {crashes} crashes, "
        f"{np.mean([episode.length for episode in episodes]):.0f} frames an episode"
    )


def shipped_episode(control: Control, seed: int) -> Episode:
    env = make_env(EnvConfig(control))
    env.unwrapped.observe = False  # type: ignore[attr-defined]
    return rollout(env, Controller(control), seed)


def report(control: Control) -> Callable[[int, ControllerConfig, list[EpisodeScore]], None]:
    started = time.monotonic()

    def show(generation: int, mean: ControllerConfig, episodes: list[EpisodeScore]) -> None:
        seconds = time.monotonic() - started
        print(f"{generation:3d}  {seconds:5.0f} s  {results(episodes)}\n     {numbers(control, mean)}", flush=True)

    return show


def main(settings: SearchConfig, tracks: str = "", workers: int = 0) -> None:
    """Search, or with `--tracks` only drive the shipped numbers, in every control."""
    with worker_pool(workers or default_workers()) as pool:
        if tracks:
            for control in get_args(Control):
                print(f"{control}, {tracks}: {shipped_results(control, track_seeds(tracks), pool)}", flush=True)
            return
        found = search(settings, pool=pool, report=report(settings.control))
        episodes = list((pool.imap if pool else map)(partial(drive, settings.control, found), track_seeds("val-25")))
        print(f"found, on val-25: {results(episodes)}\n{numbers(settings.control, found)}")


if __name__ == "__main__":
    tyro.cli(main, config=(tyro.conf.OmitArgPrefixes,))
