"""The shipped drivers on the test tracks: unmodified CarRacing-v3, native reward, deterministic, 1000 frames at most.

    python benchmarks/champion.py [--control continuous] [--tracks test-100] [--rows champion expert] [--driver RUN]

Beside the controller, the expert and the champion of a control stand two that tell what the champion relies on: the
champion in front of a black status bar, and the champion without its core (what the core says is set to zero, so that
the action head reads the present frame alone). `--driver` puts another driver in the champion's place, `--out FOLDER`
keeps every episode.
"""

from __future__ import annotations

import warnings
from argparse import ArgumentParser
from pathlib import Path

from torch import Tensor, nn

from nac_drive.data_collection.experts import resolve_driver
from nac_drive.data_collection.processes import Pool, default_workers, worker_pool
from nac_drive.envs import Control, Driver, EnvConfig, track_seeds
from nac_drive.evaluation.evaluate import Evaluation, evaluate, save_evaluations
from nac_drive.leaderboard.tables import Entry, markdown_table


class _Silent(nn.Module):
    """A core that says nothing, and keeps the state of the one that it stands for."""

    def __init__(self, core: nn.Module):
        super().__init__()
        self.core = core

    def forward(self, x: Tensor, dt: Tensor, state: tuple) -> tuple[Tensor, tuple]:
        y, after = self.core(x, dt, state)
        return y * 0.0, after

    def initial_state(self, batch: int) -> tuple:
        return self.core.initial_state(batch)  # type: ignore[operator]


ROWS = ("controller", "expert", "champion", "masked", "silent")


def entry(row: str, control: Control, driver: str) -> tuple[Driver, EnvConfig]:
    """A driver and the environment that it drives in."""
    env = EnvConfig(control, mask_bar=row == "masked")
    if row in ("controller", "expert"):
        return resolve_driver(row, env), env
    champion = resolve_driver(driver, env)
    if row == "silent":
        champion.core = _Silent(champion.core)  # type: ignore[attr-defined]
    return champion, env


def drive(row: str, control: Control, champion: str, tracks: str, pool: Pool | None) -> Evaluation:
    driver, env = entry(row, control, champion)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it was trained with the bar in sight is the point
        return evaluate(driver, track_seeds(tracks), name=row, env=env, pool=pool)


def main() -> None:
    parser = ArgumentParser(description="The shipped drivers on the test tracks.")
    parser.add_argument("--control", choices=["discrete", "continuous"], default="discrete")
    parser.add_argument("--driver", default="champion", help="the champion, or whom to put in its place")
    parser.add_argument("--tracks", default="test-100")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=ROWS, help="masked, silent: the champion, see above")
    parser.add_argument("--workers", type=int, default=default_workers())
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with worker_pool(options.workers) as pool:
        evaluations = [drive(row, options.control, options.driver, options.tracks, pool) for row in options.rows]
    print(markdown_table([Entry(evaluation) for evaluation in evaluations]))
    if options.out:
        save_evaluations(options.out, evaluations)


if __name__ == "__main__":
    main()
