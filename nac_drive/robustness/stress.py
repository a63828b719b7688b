"""Drive several drivers under perturbations, level by level, on the same tracks.

FOLDER/conditions.json  rows.jsonl (one row per finished episode)  summary.json  stress.md  heatmap.png  curves.png
survival.png
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from nac_drive.data_collection.drivers import driver_hash, driver_name, env_for, require_environment, resolve_driver
from nac_drive.envs import Control, CrashMode, EnvConfig, Policy, track_seeds
from nac_drive.evaluation.evaluate import evaluate
from nac_drive.evaluation.results import EpisodeResult
from nac_drive.parallel.processes import Pool
from nac_drive.robustness.folder import Conditions, DriverUnderTest, stress_folder
from nac_drive.robustness.plan import CLEAN, DEFAULT_PERTURBATIONS, Family, families
from nac_drive.robustness.statistics import Cell, area_under_curve, cell

Report = Callable[[str, str, dict[str, Any]], None]


@dataclass(frozen=True)
class Stress:
    """Result of a stress test."""

    drivers: list[str]
    """Names, in their order; differences are taken against the first."""
    families: list[Family]
    rows: dict[tuple[str, str], list[EpisodeResult]]
    """(driver, specification) -> its episodes, in the order of the tracks; the specification "" is undisturbed."""
    cells: dict[tuple[str, str], Cell]
    """(driver, specification) -> statistics."""

    def area(self, driver: str, family: Family) -> float | None:
        """Return the mean fraction of the return that a driver keeps over the levels, see `area_under_curve`.

        Returns:
            None where it cannot be said what a driver keeps, see `Cell.fraction_kept`.
        """
        kept = [self.cells[driver, spec].fraction_kept for spec in family.specs]
        fractions = [fraction.mean for fraction in kept if fraction is not None]
        return area_under_curve(fractions) if len(fractions) == len(kept) else None

    def to_dict(self) -> dict[str, Any]:
        """The content of summary.json."""
        return {
            "drivers": self.drivers,
            "families": [asdict(family) for family in self.families],
            "cells": [asdict(each) for each in self.cells.values()],
            "areas": {name: {each.name: self.area(name, each) for each in self.families} for name in self.drivers},
        }


def stress(
    drivers: Sequence[str | os.PathLike[str]],
    perturbations: Sequence[str] = DEFAULT_PERTURBATIONS,
    tracks: str | Sequence[int] = "test-10",
    *,
    control: Control | None = None,
    crash: CrashMode = "ignore",
    folder: str | os.PathLike[str] | None = None,
    resume: bool = False,
    pool: Pool | None = None,
    report: Report = lambda driver, spec, row: None,
) -> Stress:
    """Drive every driver under every perturbation, and undisturbed.

    All drivers meet the same tracks and the same random numbers, so their returns can be compared track by track.

    Args:
        drivers: Names or folders, see `resolve_driver`. The first is the baseline of differences.
        perturbations: NAME (all levels), NAME:MISSING, or specifications, see `families`.
        tracks: Named tracks such as "test-10" (see `track_seeds`), or their seeds.
        control: Control of shipped drivers and the controller; a cloned driver knows its own.
        crash: The effect of a crash. With intervene, interventions per episode are counted.
        folder: Gets conditions.json, and rows.jsonl row by row as episodes end; None keeps nothing.
        resume: Go on with the missing episodes in `folder`. Drivers, perturbations and tracks may have grown.
        pool: See `evaluate`; no result depends on it, latencies aside.
        report: Called with driver, specification and {"episode": row, "done": number, "episodes": number}.

    Returns:
        Rows and statistics.

    Raises:
        FileNotFoundError: If there is no such driver, or nothing to resume.
        FileExistsError: If `folder` holds anything and `resume` is off.
        ValueError: For a bad argument, two drivers of one name or of different environments, and if `folder` was begun
            under other conditions, is damaged, in use, or cannot be written.
    """
    found, seeds = families(perturbations), track_seeds(tracks)
    if resume and folder is None:
        raise ValueError("resume needs the folder (--out) of the stress test that was interrupted.")
    entries = [_entry(spec, control) for spec in drivers]
    names = [tested.name for _, tested in entries]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"drivers must be at least one, each with a name of its own, got {names}; rename a folder.")
    for driver, tested in entries:  # differences to the first would compare two worlds
        require_environment(f"driver {tested.name!r}", driver, entries[0][1].env)
    specs = [CLEAN, *(spec for family in found for spec in family.specs)]
    conditions = Conditions([tested for _, tested in entries], seeds, specs, crash)
    rows: dict[tuple[str, str], list[EpisodeResult]] = {}
    total = len(names) * len(specs) * len(seeds)
    with nullcontext() if folder is None else stress_folder(folder, conditions, resume=resume) as kept:
        finished = kept.finished if kept else []
        done = len(finished)
        for driver, tested in entries:
            for spec in specs:

                def on_episode(row: EpisodeResult, name: str = tested.name, spec: str = spec) -> None:
                    nonlocal done
                    if kept:
                        kept.append(row)
                    done += 1
                    report(name, spec, {"episode": row, "done": done, "episodes": total})

                before = [row for row in finished if (row.driver, row.perturbation) == (tested.name, spec)]
                rows[tested.name, spec] = evaluate(
                    driver, seeds, name=tested.name, env=replace(tested.env, perturb=spec or None),
                    crash=crash, done=before, pool=pool, on_episode=on_episode,
                ).rows  # fmt: skip
        result = Stress(names, found, rows, _cells(names, specs, rows))
        if kept:
            kept.save(rows, json.dumps(result.to_dict(), indent=2) + "\n")
    return result


def _entry(spec: str | os.PathLike[str], control: Control | None) -> tuple[Policy, DriverUnderTest]:
    driver = resolve_driver(spec, EnvConfig(control=control) if control else None)
    env = env_for(driver, control)
    return driver, DriverUnderTest(_name(spec), driver_hash(spec, env), env)


def _name(spec: str | os.PathLike[str]) -> str:
    """Return the name of a driver in the tables: that of its run where its folder is a checkpoint of one."""
    path = Path(spec)
    return driver_name(path.parent.parent if path.parent.name == "checkpoints" else path)


def _cells(
    names: Sequence[str], specs: Sequence[str], rows: dict[tuple[str, str], list[EpisodeResult]]
) -> dict[tuple[str, str], Cell]:
    return {
        (name, spec): cell(rows[name, spec], rows[name, CLEAN], None if name == names[0] else rows[names[0], spec])
        for name in names
        for spec in specs
    }
