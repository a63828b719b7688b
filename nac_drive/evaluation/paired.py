"""Evaluate a driver and its baseline on the same tracks, kept in a folder episode by episode."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from itertools import count
from typing import Any

from nac_drive.data_collection.drivers import driver_hash, driver_name, env_for, require_environment, resolve_driver
from nac_drive.envs import Control, CrashMode, EnvConfig, Policy, track_seeds
from nac_drive.envs.perturbations.registry import parse_all
from nac_drive.evaluation.evaluate import Evaluation, evaluate
from nac_drive.evaluation.folder import Conditions, evaluation_folder
from nac_drive.evaluation.results import EpisodeResult
from nac_drive.parallel.processes import Pool

Report = Callable[[str, dict[str, Any]], None]


def evaluate_with_baseline(
    driver: str | os.PathLike[str],
    tracks: str | list[int] = "test-10",
    *,
    baseline: str | os.PathLike[str] | None = "expert",
    control: Control | None = None,
    mask_bar: bool | None = None,
    crash: CrashMode = "ignore",
    perturbation: str = "",
    folder: str | os.PathLike[str] | None = None,
    resume: bool = False,
    pool: Pool | None = None,
    report: Report = lambda name, row: None,
) -> list[Evaluation]:
    """Evaluate a baseline, then the driver with paired differences, see `evaluate`.

    Args:
        driver: Its name or its folder, see `resolve_driver`.
        tracks: Named tracks such as "test-10" (see `track_seeds`), or their seeds.
        baseline: A second driver, which drives the same tracks and is queried at every frame of the first one; None
            for no baseline. The driver itself, by its `driver_hash`, is none either.
        control: Control of a shipped driver or the controller; a cloned driver knows its own.
        mask_bar: Hide the status bar or not; as in the driver's training by default.
        crash: The effect of a crash, see `CarRacing`.
        perturbation: See `envs.perturb`.
        folder: Gets rows.jsonl, row by row as episodes end, and summary.json; None keeps nothing.
        resume: Go on with the missing episodes in `folder`: the results are those without the interruption, latencies
            aside, which are measured.
        pool: See `evaluate`.
        report: Called with the name of a driver and {"episode": row, "done": number, "tracks": number}.

    Returns:
        The evaluation of the baseline, if any, and that of the driver.

    Raises:
        FileNotFoundError: If there is no such driver, or nothing to resume.
        FileExistsError: If `folder` holds anything and `resume` is off.
        ValueError: For a bad argument, a baseline that was trained in another environment, and if `folder` was begun
            under other conditions, is damaged, in use, or cannot be written.
    """
    seeds = track_seeds(tracks)
    if resume and folder is None:
        raise ValueError("resume needs the folder (--out) of the evaluation that was interrupted.")
    parse_all(perturbation)
    own, env = _driver_and_env(driver, control)
    if mask_bar is not None:
        env = replace(env, mask_bar=mask_bar)
    sha256 = driver_hash(driver, env)
    expert, expert_env = (None, env) if baseline is None else _driver_and_env(baseline, env.control)
    if baseline is not None and driver_hash(baseline, env) == sha256:
        baseline = expert = None
    if baseline is not None and expert is not None:
        fix = "pass one that was trained there, or no baseline (--baseline none)"
        require_environment(f"baseline {os.fspath(baseline)!r}", expert, env, fix)
    conditions = Conditions(
        driver=driver_name(driver), driver_sha256=sha256,
        baseline=driver_name(baseline) if baseline else None,
        baseline_sha256=driver_hash(baseline, env) if baseline else None,
        env=env, tracks=seeds, crash=crash, perturbation=perturbation,
    )  # fmt: skip
    evaluations: list[Evaluation] = []
    with nullcontext() if folder is None else evaluation_folder(folder, conditions, resume=resume) as kept:

        def drive(name: str, who: Policy, where: EnvConfig, **paired: Any) -> None:
            done = kept.rows_of(len(evaluations)) if kept else []
            number = count(len(done) + 1)

            def finished(row: EpisodeResult) -> None:
                if kept:
                    kept.append(row)
                report(name, {"episode": row, "done": next(number), "tracks": len(seeds)})

            evaluations.append(
                evaluate(
                    who, seeds, name=name, env=where, crash=crash, perturbation=perturbation, done=done, pool=pool,
                    on_episode=finished, **paired,
                )
            )  # fmt: skip

        if baseline and expert:
            drive(driver_name(baseline), expert, replace(expert_env, max_steps=env.max_steps))  # of one length: paired
            drive(driver_name(driver), own, env, expert=expert, baseline=evaluations[0])
        else:
            drive(driver_name(driver), own, env)
        if kept:
            kept.save(evaluations)
    return evaluations


def _driver_and_env(spec: str | os.PathLike[str], control: Control | None) -> tuple[Policy, EnvConfig]:
    """Return the driver and the environment that it was trained in."""
    driver = resolve_driver(spec, EnvConfig(control=control) if control else None)
    return driver, env_for(driver, control)
