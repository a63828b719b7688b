"""The closed-loop validation of train, dagger and ppo: the score that picks the best checkpoint."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from nac_drive.envs import EnvConfig, track_seeds
from nac_drive.evaluation.evaluate import evaluate
from nac_drive.evaluation.results import EpisodeResult
from nac_drive.parallel.processes import Pool
from nac_drive.policies import Driver

Report = Callable[[dict[str, Any]], None]


def no_report(row: dict[str, Any]) -> None:
    """Report nothing: the report of a process beside the main one."""


def closed_loop(driver: Driver, env: EnvConfig, tracks: str, pool: Pool | None, report: Report) -> dict[str, Any]:
    """Let `driver` drive the validation tracks.

    Args:
        driver: The driver, on any device; a copy of it on the CPU drives.
        env: Its environment.
        tracks: SPLIT-COUNT or a comma list of seeds.
        pool: Processes for the episodes, see `worker_pool`; no result depends on it.
        report: Called after every episode with validation_episode, validation_episodes and return.

    Returns:
        Keys of a row of metrics.jsonl: score, returns, return_mean, completion and crashes_per_episode.
    """
    seeds, done = track_seeds(tracks), itertools.count(1)

    def on_episode(row: EpisodeResult) -> None:
        report({"validation_episode": next(done), "validation_episodes": len(seeds), "return": row.episode_return})

    evaluation = evaluate(
        on_cpu(driver), seeds, name=driver.config.core, env=env, pool=pool,
        on_episode=on_episode,
    )  # fmt: skip
    returns = [row.episode_return for row in evaluation.rows]
    return {
        "score": validation_score(returns),
        "returns": returns,
        "return_mean": evaluation.summary.return_mean,
        "completion": evaluation.summary.completion,
        "crashes_per_episode": evaluation.summary.crashes_per_episode,
    }


def validation_score(returns: Sequence[float]) -> float:
    """Mean - 0.5 sd of the returns, so that one failed episode costs more than its part of the mean."""
    return float(np.mean(returns) - 0.5 * np.std(returns))


def on_cpu(driver: Driver) -> Driver:
    """A copy on the CPU, in evaluation mode, free of the hooks of a trainer: worker processes can load it."""
    with torch.random.fork_rng(devices=[]):  # building draws initial weights; copying must not move the generator
        copy = Driver(driver.config)
    copy.load_state_dict({name: tensor.cpu() for name, tensor in driver.state_dict().items()})
    return copy.eval()
