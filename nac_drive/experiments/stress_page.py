"""The page, the tables and the video of a stress test."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from nac_drive.data_collection.drivers import AnyDriver, driver_names, driving_device, on_device, resolve_together
from nac_drive.data_collection.trained_env import env_for, env_of_first
from nac_drive.envs import Control, CrashMode, track_seeds
from nac_drive.evaluation.intervals import Interval
from nac_drive.evaluation.metric import EMPTY, TableColumn, number
from nac_drive.evaluation.video import record_video, side_by_side
from nac_drive.experiments.driving import UNDISTURBED
from nac_drive.experiments.figures import (
    HEAT_MAP_CAPTION,
    STRESS_CURVES_CAPTION,
    SURVIVAL_CAPTION,
    draw_heat_map,
    draw_stress_curves,
    draw_survival,
)
from nac_drive.experiments.page import Page, PageFigure, conditions, inspect_command, track_names
from nac_drive.experiments.stress import KEPT, StressCell, StressResult
from nac_drive.experiments.table import Table, TerminalTables
from nac_drive.markdown import number_text
from nac_drive.storage.figure import try_to_draw
from nac_drive.storage.names import markdown
from nac_drive.storage.write import write_atomically


def stress_table(result: StressResult) -> Table:
    """Return every driver under every perturbation."""
    first = result.drivers[0]
    intervene = any(row.crash_mode == "intervene" for rows in result.rows.values() for row in rows)
    areas = {
        (name, family.specs[-1]): number(result.area(name, family), 0, 100)
        for name in result.drivers
        for family in result.families
    }
    columns = [
        TableColumn("perturbation", lambda cell: cell.perturbation or "none", "Perturbation and its level."),
        TableColumn("driver", lambda cell: cell.driver, "Name of the driver."),
        TableColumn(
            "return [95 %]", lambda cell: cell.return_mean.text(".0f"),
            "Mean return with its 95 % bootstrap interval over tracks.",
        ),
        TableColumn("min", lambda cell: number(cell.return_min, 0), "Smallest return."),
        TableColumn(
            "kept % [95 %]", lambda cell: _text(cell.fraction_kept, ".0f", 100),
            "Percentage of the driver's own undisturbed mean return, with its interval.",
        ),
        TableColumn(
            "area %", lambda cell: areas.get((cell.driver, cell.perturbation), EMPTY),
            "Mean of the percentage kept over all levels, at the highest one.",
        ),
        TableColumn("crashes", lambda cell: number(cell.crashes_per_episode, 2), "Crashes per episode."),
        TableColumn(
            "interventions", lambda cell: number(cell.interventions_per_episode, 2) if intervene else EMPTY,
            "Times per episode that the car was put back on the road.",
        ),
        TableColumn(
            "vs first [95 %]", _difference,
            f"Mean difference of returns from {first} on the same tracks, with its 95 % bootstrap interval. A star "
            "marks a difference that is there after Holm's correction for all comparisons of the table.",
        ),
        TableColumn(
            "p", lambda cell: number(cell.versus and cell.versus.p_value, 3),
            "Of the paired t-test of these differences, two-sided.",
        ),
        TableColumn(
            "d", lambda cell: EMPTY if not cell.versus or cell.versus.effect_size is None
            else number_text(cell.versus.effect_size, "+.2f"),
            "Cohen's d of these differences: mean over standard deviation.",
        ),
        TableColumn(
            "wins %", lambda cell: number(cell.versus and cell.versus.win_rate, 0, 100),
            f"Percentage of tracks with a larger return than {first}; a draw counts one half.",
        ),
    ]  # fmt: skip
    cells: list[StressCell] = [
        result.cells[name, spec] for spec in (UNDISTURBED, *result.specs) for name in result.drivers
    ]
    return Table.of(
        columns, cells, f"Differences are taken from the first driver, {first}, on the same tracks.", names=2
    )


def _text(interval: Interval | None, spec: str, scale: float = 1.0) -> str:
    return EMPTY if interval is None else interval.text(spec, scale)


def save_stress_page(
    folder: Path,
    result: StressResult,
    tracks: str | Sequence[int],
    crash: CrashMode = "ignore",
    drivers: Sequence[str | os.PathLike[str]] = (),
    control: Control | None = None,
) -> Path:
    """Write table.md, the figures and report.html.

    Args:
        folder: The folder of the stress test.
        result: Its result.
        tracks: Named tracks, or their seeds.
        crash: The effect of a crash.
        drivers: The drivers as a command takes them, in the order of `result.drivers`.
        control: The control that a command chose; None for the drivers' own.

    Returns:
        The page.
    """
    table = stress_table(result)
    parts = [table.markdown(), *map(markdown, result.verdicts)]
    write_atomically(folder / "table.md", ("\n\n".join(parts) + "\n").encode())
    figures = []
    drawings = [
        (draw_heat_map, PageFigure("heatmap.png", "Return kept", HEAT_MAP_CAPTION)),
        (draw_stress_curves, PageFigure("curves.png", "Level by level", STRESS_CURVES_CAPTION)),
        (draw_survival, PageFigure("survival.png", "First crashes", SURVIVAL_CAPTION)),
    ]
    if all(cell.first_crash_time is None for cell in result.cells.values()):
        drawings.pop()
    for draw, figure in drawings:
        if try_to_draw(draw, folder / figure.file, result):
            figures.append(figure)
    worst = min((row for rows in result.rows.values() for row in rows), key=lambda row: row.episode_return)
    paths = {name: os.fspath(path) for name, path in zip(result.drivers, drivers, strict=bool(drivers))}
    page = Page(
        "Stress test",
        f"{', '.join(result.drivers)} drove once on every track ({track_names(tracks)}), undisturbed and under "
        f"every perturbation (docs/perturbations.md). {conditions(crash)} All drivers met the same tracks and the same "
        "random numbers.",
        table, figures, headline=" ".join(result.verdicts[:1]), verdicts=result.verdicts,
        commands=inspect_command([paths[worst.driver]], worst, control) if paths else "",
    )  # fmt: skip
    return page.save_html(folder)


def terminal_stress(result: StressResult) -> TerminalTables:
    """Return the return that every driver keeps, for the terminal."""
    return replace(result.kept(), legend="").terminal(KEPT)


def _difference(cell: StressCell) -> str:
    if cell.versus is None:
        return EMPTY
    return f"{cell.versus.difference.text('+.0f')}{' *' * cell.versus.apart}"


def video_of(
    path: Path,
    drivers: Sequence[AnyDriver],
    tracks: str | Sequence[int],
    spec: str,
    control: Control | None = None,
    crash: CrashMode = "ignore",
    device: str = "cpu",
) -> Path:
    """Write a video of up to four drivers on the first track under one perturbation.

    The episodes are those that `stress` measures.

    Args:
        path: The new file; an existing one is replaced.
        drivers: Drivers, names or folders, see `resolve_driver`.
        tracks: See `track_seeds`.
        spec: The perturbation, see `envs.perturb`.
        control: Control of shipped drivers.
        crash: The effect of a crash, see `CarRacing`.
        device: See `evaluate`.

    Returns:
        `path`.
    """
    with tempfile.TemporaryDirectory() as folder:
        videos, first = [], drivers[:4]
        loaded = resolve_together(first, control)
        for number, (name, driver) in enumerate(zip(driver_names(first), loaded, strict=True)):
            videos.append(Path(folder) / f"{number}.mp4")
            env = env_for(driver, control, spec, beside=env_of_first(loaded))
            driver = on_device(driver, driving_device(device))
            record_video(videos[-1], driver, track_seeds(tracks)[0], name=name, env=env, crash=crash)
        side_by_side(path, videos, columns=2 if len(videos) > 2 else None)
    return path
