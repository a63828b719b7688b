"""The closed-loop validation of train, dagger and ppo.

Its score picks the best checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from nac_drive.envs import EnvConfig, track_seeds
from nac_drive.evaluation.evaluate import evaluate
from nac_drive.events import Progress, counting, silent
from nac_drive.parallel.processes import Pool
from nac_drive.policies import Driver


def closed_loop(driver: Driver, env: EnvConfig, tracks: str, pool: Pool | None, progress: Progress) -> dict[str, Any]:
    """Let `driver` drive the validation tracks.

    Args:
        driver: The driver, on any device; a copy of it on the CPU drives.
        env: Its environment.
        tracks: SPLIT-COUNT or a comma list of seeds.
        pool: Processes for the episodes, see `worker_pool`; no result depends on it.
        progress: Called after every episode.

    Returns:
        Keys of a row of metrics.jsonl: score, returns, return_mean, completion and crashes_per_episode.
    """
    seeds = track_seeds(tracks)
    finished = counting(progress, "validation", len(seeds))
    evaluation = evaluate(
        on_cpu(driver), seeds, name=driver.config.core, env=env, pool=pool,
        on_episode=lambda row: finished(f"return {row.episode_return:z.0f}"), progress=silent,
    )  # fmt: skip
    returns = [row.episode_return for row in evaluation.rows]
    return {
        "score": validation_score(returns),
        "returns": returns,
        "return_mean": evaluation.summary.return_mean,
        "completion": evaluation.summary.completion,
        "crashes_per_episode": evaluation.summary.crashes_per_episode,
    }


def returns_note(row: dict[str, Any]) -> str:
    """Return the returns in a row of `closed_loop` as text."""
    return f"return {row['return_mean']:z.1f}, min {min(row['returns']):z.1f}"


def validation_score(returns: Sequence[float]) -> float:
    """Return mean - 0.5 sd of the returns.

    One failed episode costs more than its part of the mean.
    """
    return float(np.mean(returns) - 0.5 * np.std(returns))


def on_cpu(driver: Driver) -> Driver:
    """Return a copy on the CPU, in evaluation mode.

    It is free of the hooks of a trainer: worker processes can load it.
    """
    with torch.random.fork_rng(devices=[]):  # building draws initial weights; copying must not move the generator
        copy = Driver(driver.config)
    copy.load_state_dict({name: tensor.cpu() for name, tensor in driver.state_dict().items()})
    return copy.eval()
