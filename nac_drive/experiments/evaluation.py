"""Evaluate a driver and its baseline on the same tracks, kept in a folder episode by episode."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from nac_drive.arguments import checks_shared_arguments
from nac_drive.data_collection.drivers import (
    AnyDriver,
    accepted,
    driver_hash,
    driver_name,
    driving_device,
    known_there,
    resolve_driver,
    sendable,
)
from nac_drive.data_collection.trained_env import env_for, require_environment
from nac_drive.envs import Control, CrashMode, EnvConfig, Policy, track_seeds
from nac_drive.envs.perturbations.registry import parse_all
from nac_drive.evaluation.evaluate import Evaluation, warn_of_other_env
from nac_drive.events import Progress
from nac_drive.experiments.driving import Driving, Entry, episodes_of
from nac_drive.experiments.experiment import open_experiment, run
from nac_drive.notebook import automatic
from nac_drive.parallel.processes import Pool
from nac_drive.storage.write import write_atomically

SUMMARY = "summary.json"


@checks_shared_arguments
def evaluate_with_baseline(
    driver: AnyDriver,
    tracks: str | list[int] = "test-10",
    *,
    baseline: AnyDriver | None = "expert",
    control: Control | None = None,
    mask_bar: bool | None = None,
    crash: CrashMode = "ignore",
    perturbation: str | None = None,
    device: str = "cpu",
    folder: str | os.PathLike[str] | None = None,
    resume: bool = False,
    pool: Pool | None = None,
    progress: Progress = automatic,
) -> list[Evaluation]:
    """Evaluate a baseline, then the driver with paired differences, see `evaluate`.

    Args:
        driver: The driver, its name or its folder, see `resolve_driver`.
        tracks: Named tracks such as "test-10" (see `track_seeds`), or their seeds.
        baseline: A second driver, which drives the same tracks and is queried at every frame of the first one; None
            for no baseline. The driver itself, by its `driver_hash`, is none either, nor is the shipped expert in
            another environment than CarRacing.
        control: Control of a shipped driver or the controller; a cloned driver knows its own.
        mask_bar: Hide the status bar or not; as in the driver's training by default.
        crash: The effect of a crash, see `CarRacing`.
        perturbation: See `envs.perturb`.
        device: See `evaluate`.
        folder: Gets conditions.json, rows.jsonl, row by row as episodes end, and summary.json; None keeps nothing.
        resume: Go on with the missing episodes in `folder`: the results are those without the interruption, latencies
            aside, which are measured. Tracks may have been added.
        pool: See `evaluate`.
        progress: Called with an event for every episode.

    Returns:
        The evaluation of the baseline, if any, and the evaluation of the driver.

    Raises:
        FileNotFoundError: If there is no such driver, or nothing to resume.
        FileExistsError: If `folder` holds anything and `resume` is off.
        ValueError: For a bad argument, a baseline that was trained in another environment, and if `folder` was begun
            under other conditions, is damaged, in use, or cannot be written.
    """
    seeds, device = track_seeds(tracks), driving_device(device)
    if perturbation is not None:
        parse_all(perturbation)
    driver, baseline = accepted(driver), None if baseline is None else accepted(baseline)
    loaded, env = _driver_and_env(driver, control)
    if mask_bar is not None:
        env = replace(env, mask_bar=mask_bar)
    warn_of_other_env(loaded, driver_name(driver), env)
    sha256 = driver_hash(driver, env)
    entries = [Entry(driver_name(driver), sha256, env, loaded)]
    if (baseline := known_there(baseline, env)) is not None:
        expert, expert_env = _driver_and_env(baseline, env.control, env)
        if (expert_sha256 := driver_hash(baseline, env)) != sha256:
            fix = "pass one that was trained there, or no baseline (--baseline none)"
            require_environment(f"baseline {driver_name(baseline)!r}", expert, env, fix)
            name = driver_name(baseline)
            name = f"{name} (baseline)" if name == entries[0].name else name
            expert_env = replace(expert_env, max_steps=env.max_steps)  # episodes of one length are paired
            entries = [Entry(name, expert_sha256, expert_env, expert), replace(entries[0], expert=expert)]
    if not all(sendable(entry.driver, pool is not None) for entry in entries):
        pool = None
    experiment = Driving(tuple(entries), tuple(seeds), (perturbation,), crash, device=device)
    with open_experiment(experiment, folder, files=(SUMMARY, "report.html"), resume=resume) as journal:
        results = run(experiment, journal, pool=pool, job="evaluate", progress=progress)
        evaluations: list[Evaluation] = []
        for rows in episodes_of(results).values():
            baseline_rows = evaluations[0].rows if evaluations else None
            evaluations.append(Evaluation.of(rows, baseline_rows, env.spec.solved_return))
        if journal.folder:
            save_summaries(journal.folder, evaluations)
    return evaluations


def save_summaries(folder: Path, evaluations: Sequence[Evaluation]) -> None:
    """Write summary.json.

    Raises:
        WriteError: If it cannot be written.
    """
    summaries = json.dumps([evaluation.to_dict() for evaluation in evaluations], indent=2) + "\n"
    write_atomically(folder / SUMMARY, summaries.encode())


def _driver_and_env(
    spec: AnyDriver, control: Control | None, beside: EnvConfig | None = None
) -> tuple[Policy, EnvConfig]:
    """Return the driver and its environment, see `env_for`."""
    environment = EnvConfig.environment if beside is None else beside.environment
    driver = resolve_driver(spec, EnvConfig(control, environment=environment) if control else None)
    return driver, env_for(driver, control, beside=beside)
