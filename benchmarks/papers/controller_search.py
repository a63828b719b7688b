"""The search that found the numbers of the shipped controller, and a measurement of how they drive.

python benchmarks/papers/controller_search.py --control discrete          # the search
python benchmarks/papers/controller_search.py --tracks test-100           # drive the shipped numbers

See docs/controller.md. The search prints the mean of each generation with its results on that generation's
training tracks, and at the end the numbers that it found with their results on val-25.
"""

from __future__ import annotations

from functools import partial
from typing import get_args

import numpy as np
import tyro
from cross_entropy import SearchConfig, drive, numbers, score_note, search

from nac_drive.data_collection.controller.controller import Controller
from nac_drive.envs import Control, EnvConfig, Episode, make_env, rollout, track_seeds
from nac_drive.events import Event
from nac_drive.parallel.processes import Pool, default_workers, worker_pool


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


def show(event: Event) -> None:
    print(f"{event.done:3.0f} of {event.total:.0f}  {event.note}", flush=True)


def main(settings: SearchConfig, tracks: str = "", workers: int = 0) -> None:
    """Search, or with `--tracks` only drive the shipped numbers, in every control."""
    with worker_pool(workers or default_workers()) as pool:
        if tracks:
            for control in get_args(Control):
                print(f"{control}, {tracks}: {shipped_results(control, track_seeds(tracks), pool)}", flush=True)
            return
        found = search(settings, pool=pool, progress=show)
        episodes = list((pool.imap if pool else map)(partial(drive, settings.control, found), track_seeds("val-25")))
        print(f"found, on val-25: {score_note(episodes)}\n{numbers(settings.control, found)}")


if __name__ == "__main__":
    tyro.cli(main, config=(tyro.conf.OmitArgPrefixes,))
