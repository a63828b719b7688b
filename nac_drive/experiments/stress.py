"""Drive several drivers under perturbations, level by level, on the same tracks.

FOLDER/conditions.json  rows.jsonl (one row per finished episode)  summary.json  table.md  report.html  heatmap.png
curves.png  survival.png
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from nac_drive.arguments import checks_shared_arguments, path_of
from nac_drive.data_collection.dataset.sources import one_or_several
from nac_drive.data_collection.drivers import (
    AnyDriver,
    driver_hash,
    driver_names,
    driving_device,
    each_accepted,
    resolve_together,
    sendable,
)
from nac_drive.data_collection.trained_env import env_for, env_of_first, require_environment
from nac_drive.envs import Control, CrashMode, EnvConfig, Policy, track_seeds
from nac_drive.envs.perturbations.registry import parse
from nac_drive.evaluation.intervals import Interval, area_under_curve, bootstrap, ratio
from nac_drive.evaluation.metric import TableColumn, mean, number
from nac_drive.evaluation.results import EpisodeResult
from nac_drive.evaluation.statistics import grid
from nac_drive.evaluation.verdict import Verdict, corrected, paired
from nac_drive.events import Progress, message
from nac_drive.experiments.driving import UNDISTURBED, Driving, Entry, Episodes, episodes_of
from nac_drive.experiments.evaluation import SUMMARY
from nac_drive.experiments.experiment import open_experiment, run
from nac_drive.experiments.families import DEFAULT_PERTURBATIONS, Family, families
from nac_drive.experiments.headline import over_worlds
from nac_drive.experiments.table import Table
from nac_drive.notebook import automatic, paragraph
from nac_drive.parallel.processes import Pool
from nac_drive.storage.write import write_atomically

FILES = (SUMMARY, "table.md", "report.html", "heatmap.png", "curves.png", "survival.png")
"""Files beside conditions.json and rows.jsonl."""

KEPT = "Return kept, % of the driver's own undisturbed return (mean return)"


@dataclass(frozen=True)
class StressCell:
    """One driver under one perturbation."""

    driver: str
    perturbation: str | None
    """Specification; None for the undisturbed world."""
    tracks: int
    return_mean: Interval
    return_min: float
    fraction_kept: Interval | None
    """Mean return over the driver's own mean return undisturbed, with its 95 % bootstrap interval; None unless the
    latter is `clearly_positive`."""
    degradation: Interval
    """Own return undisturbed - return (PDNA, Eq. 7, of returns in place of accuracies)."""
    crashes_per_episode: float | None
    """None where the environment reports no crashes, as the next two."""
    interventions_per_episode: float | None
    crash_free: float | None
    """Fraction of episodes without a crash."""
    first_crash_time: float | None
    """Median seconds until the first crash, of the episodes with one; None without any."""
    versus: Verdict | None
    """Against the first driver; None for the first driver itself."""


def stress_cell(
    rows: Sequence[EpisodeResult], clean: Sequence[EpisodeResult], baseline: Sequence[EpisodeResult] | None
) -> StressCell:
    """Summarise one driver under one perturbation.

    Args:
        rows: Its episodes, as many for every track.
        clean: Its episodes in the undisturbed world.
        baseline: The episodes of the first driver under the same perturbation; None for the first driver itself.

    Raises:
        ValueError: Unless all have the same tracks: the comparison is paired.
    """
    tracks = {row.seed for row in rows}
    for others in (clean, baseline or rows):
        if {row.seed for row in others} != tracks:
            raise ValueError("rows must hold the same tracks for every driver and perturbation: they are compared.")
    returns, undisturbed = (grid(episodes, "episode_return") for episodes in (rows, clean))
    first_crashes = [row.first_crash_time for row in rows if row.first_crash_time is not None]
    return StressCell(
        driver=rows[0].driver,
        perturbation=rows[0].perturbation,
        tracks=len(tracks),
        return_mean=bootstrap(returns),
        return_min=float(returns.min()),
        fraction_kept=ratio(returns, undisturbed),
        degradation=bootstrap(undisturbed, returns),
        crashes_per_episode=mean([row.crashes for row in rows]),
        interventions_per_episode=mean([row.interventions for row in rows]),
        crash_free=None if rows[0].crashes is None else 1.0 - len(first_crashes) / len(rows),
        first_crash_time=float(np.median(first_crashes)) if first_crashes else None,
        versus=None
        if baseline is None
        else paired(returns, grid(baseline, "episode_return"), (rows[0].driver, baseline[0].driver)),
    )


def stress_cells(rows: Episodes) -> dict[tuple[str, str | None], StressCell]:
    """Summarise every driver under every perturbation.

    Differences are taken against the first driver, with Holm's correction for all of them.
    """
    first = next(iter(rows))[0]
    cells = {
        (name, spec): stress_cell(episodes, rows[name, UNDISTURBED], None if name == first else rows[first, spec])
        for (name, spec), episodes in rows.items()
    }
    verdicts = iter(corrected([cell.versus for cell in cells.values() if cell.versus]))
    return {
        key: replace(cell, versus=next(verdicts)) if cell.versus else cell for key, cell in cells.items()
    }  # fmt: skip


@dataclass(frozen=True)
class StressResult:
    """Episodes and statistics of a stress test."""

    drivers: list[str]
    """Names, in their order; differences are taken against the first."""
    families: list[Family]
    rows: Episodes
    """(driver, specification) -> its episodes, in the order of the tracks; the specification None is undisturbed."""
    cells: dict[tuple[str, str | None], StressCell]
    """(driver, specification) -> statistics."""
    env: EnvConfig = field(default_factory=EnvConfig)
    """Where the first driver drove, undisturbed."""

    def __repr__(self) -> str:
        count = len(self.specs)
        return f"StressResult({', '.join(self.drivers)} under {count} perturbation{'s' * (count != 1)})"

    def _repr_html_(self) -> str:
        """The return that every driver keeps, and the verdicts."""
        return self.kept().html() + "".join(map(paragraph, self.verdicts))

    def kept(self) -> Table:
        """Return the table of what every driver keeps."""
        columns = [
            TableColumn("perturbation", lambda spec: spec or "none"),
            *(TableColumn(name, lambda spec, name=name: self._kept(self.cells[name, spec])) for name in self.drivers),
        ]
        return Table.of(columns, (UNDISTURBED, *self.specs), KEPT)

    @staticmethod
    def _kept(cell: StressCell) -> str:
        fraction = number(cell.fraction_kept and cell.fraction_kept.mean, 0, 100)
        return f"{fraction} ({number(cell.return_mean.mean, 0)})"

    @property
    def specs(self) -> list[str]:
        """Specifications of all perturbations."""
        return [spec for family in self.families for spec in family.specs]

    def area(self, driver: str, family: Family) -> float | None:
        """Return the mean fraction of the return that a driver keeps over the levels, see `area_under_curve`.

        Returns:
            None where it cannot be said what a driver keeps, see `StressCell.fraction_kept`.
        """
        kept = [self.cells[driver, spec].fraction_kept for spec in family.specs]
        fractions = [fraction.mean for fraction in kept if fraction is not None]
        return area_under_curve(fractions) if len(fractions) == len(kept) else None

    @property
    def verdicts(self) -> list[str]:
        """One sentence for each driver but the first."""
        return [
            over_worlds({spec or "no perturbation": self._versus(name, spec) for spec in (UNDISTURBED, *self.specs)})
            for name in self.drivers[1:]
        ]

    def _versus(self, name: str, spec: str | None) -> Verdict:
        verdict = self.cells[name, spec].versus
        assert verdict is not None
        return verdict

    def to_dict(self) -> dict[str, Any]:
        """The content of summary.json."""
        return {
            "drivers": self.drivers,
            "families": [asdict(family) for family in self.families],
            "cells": [asdict(cell) for cell in self.cells.values()],
            "areas": {
                name: {family.name: self.area(name, family) for family in self.families} for name in self.drivers
            },
        }


@checks_shared_arguments
def stress(
    drivers: AnyDriver | Sequence[AnyDriver],
    perturbations: str | Sequence[str] = DEFAULT_PERTURBATIONS,
    tracks: str | Sequence[int] = "test-10",
    *,
    control: Control | None = None,
    crash: CrashMode = "ignore",
    device: str = "cpu",
    folder: str | os.PathLike[str] | None = None,
    resume: bool = False,
    pool: Pool | None = None,
    progress: Progress = automatic,
) -> StressResult:
    """Drive every driver under every perturbation, and undisturbed.

    All drivers meet the same tracks and the same random numbers, so their returns can be compared track by track.

    Args:
        drivers: A driver or several, their names or folders, see `resolve_driver`. The first is the baseline of
            differences.
        perturbations: One or several of NAME (all levels), NAME:MISSING, and specifications, see `families`. Other
            environments leave out what needs CarRacing's tyres and car, which `progress` reports.
        tracks: Named tracks such as "test-10" (see `track_seeds`), or their seeds.
        control: Control of shipped drivers and the controller; a cloned driver knows its own.
        crash: The effect of a crash. With intervene, interventions per episode are counted.
        device: See `evaluate`.
        folder: Gets rows.jsonl row by row as episodes end, then summary.json, the page and its figures; None keeps
            nothing.
        resume: Go on with the missing episodes in `folder`. Drivers, perturbations and tracks may have grown.
        pool: See `evaluate`; no result depends on it, latencies aside.
        progress: Called with an event for every episode.

    Returns:
        Rows and statistics.

    Raises:
        FileNotFoundError: If there is no such driver, or nothing to resume.
        FileExistsError: If `folder` holds anything and `resume` is off.
        ValueError: For a bad argument, two drivers of one name or of different environments, and if `folder` was begun
            under other conditions, is damaged, in use, or cannot be written.
    """
    folder = None if folder is None else path_of("folder", folder)
    words = one_or_several("perturbations", perturbations, (str,), "a perturbation", "such as 'gap' or 'gap:1'")
    chosen, seeds, device = families(words), track_seeds(tracks), driving_device(device)
    drivers = each_accepted(drivers)
    names = driver_names([_run_folder(spec) for spec in drivers])
    loaded = resolve_together(drivers, control)
    home = env_of_first(loaded)
    entries = tuple(_entry(*each, control, home) for each in zip(drivers, loaded, names, strict=True))
    if not names or len(set(names)) < len(names):
        raise ValueError(f"drivers must be at least one, each with a name of its own, got {names}; rename a folder.")
    for entry in entries:  # differences to the first would compare two worlds
        assert entry.driver is not None
        require_environment(f"driver {entry.name!r}", entry.driver, entries[0].env)
    chosen = _possible(chosen, entries[0].env, progress)
    specs = [UNDISTURBED, *(spec for family in chosen for spec in family.specs)]
    if not all(sendable(entry.driver, pool is not None) for entry in entries):
        pool = None
    experiment = Driving(entries, tuple(seeds), tuple(specs), crash, "a stress test", device=device)
    with open_experiment(experiment, folder, files=FILES, resume=resume) as journal:
        rows = episodes_of(run(experiment, journal, pool=pool, job="stress", progress=progress))
        result = StressResult(names, chosen, rows, stress_cells(rows), entries[0].env)
        if journal.folder:
            write_atomically(journal.folder / SUMMARY, (json.dumps(result.to_dict(), indent=2) + "\n").encode())
    return result


def _possible(chosen: list[Family], env: EnvConfig, progress: Progress) -> list[Family]:
    """Return the possible families, and report the others.

    Raises:
        ValueError: There is none.
    """
    if env.environment == EnvConfig.environment:
        return chosen
    of_car_racing = [
        family for family in chosen
        if any(part.perturbation.needs_car_racing for spec in family.specs for part in parse(spec))
    ]  # fmt: skip
    if not of_car_racing:
        return chosen
    names = ", ".join(family.name for family in of_car_racing)
    if len(of_car_racing) == len(chosen):
        raise ValueError(f"perturb: {names} needs CarRacing's car and tyres, got {env.environment!r}; choose others.")
    progress(message("stress", f"left out, as CarRacing alone has them: {names}"))
    return [family for family in chosen if family not in of_car_racing]


def _entry(spec: AnyDriver, driver: Policy, name: str, control: Control | None, home: EnvConfig | None) -> Entry:
    env = env_for(driver, control, beside=home)
    return Entry(name, driver_hash(spec, env), env, driver)


def _run_folder(spec: AnyDriver) -> AnyDriver:
    """Return the folder of the run, if a driver is a checkpoint of one."""
    if isinstance(spec, str | os.PathLike) and Path(spec).parent.name == "checkpoints":
        return Path(spec).parent.parent
    return spec
