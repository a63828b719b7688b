"""The page and the figures of a stress test."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from rich.table import Table

from nac_drive.data_collection.drivers import driver_name, env_for, resolve_driver
from nac_drive.envs import Control, CrashMode, EnvConfig, track_seeds
from nac_drive.evaluation.metrics import EMPTY, number
from nac_drive.evaluation.video import record_video, side_by_side
from nac_drive.robustness.plan import CLEAN
from nac_drive.robustness.statistics import Cell, survival
from nac_drive.robustness.stress import Stress
from nac_drive.storage.figure import try_to_draw, write_figure
from nac_drive.storage.names import markdown
from nac_drive.storage.write import write_atomically

PAGE, HEATMAP, CURVES, SURVIVAL = "stress.md", "heatmap.png", "curves.png", "survival.png"
_BEST, _WORST = 1.0, 0.0


def save_page(folder: Path, result: Stress) -> Path:
    """Write stress.md and its figures.

    Returns:
        The page.
    """
    parts = [stress_table(result)]
    figures: list[tuple[Callable[[Path, Stress], None], str, str]] = [
        (draw_heatmap, HEATMAP, "Fraction of the own undisturbed return"),
        (draw_curves, CURVES, "Returns"),
    ]
    if any(each.first_crash_time is not None for each in result.cells.values()):
        figures.append((draw_survival, SURVIVAL, "Fraction of episodes without a crash, over time"))
    for draw, name, caption in figures:
        if try_to_draw(draw, folder / name, result):
            parts.append(f"![{caption}]({name})")
    write_atomically(folder / PAGE, "\n\n".join(["# Stress test", *parts, ""]).encode())
    return folder / PAGE


def stress_table(result: Stress) -> str:
    """Return every driver under every perturbation, in Markdown."""
    first = result.drivers[0]
    headings = ["return [95 %]", "min", "kept % [95 %]", "area %", "crashes", "interventions"]
    headings += [f"vs {markdown(first)} [95 %]", "p", "d", "wins"]
    lines = [f"| perturbation | driver | {' | '.join(headings)} |", "|---|---|" + "---:|" * len(headings)]
    rows = [(CLEAN, None), *((spec, family) for family in result.families for spec in family.specs)]
    for spec, family in rows:
        for name in result.drivers:
            cell = result.cells[name, spec]
            area = number(result.area(name, family), 0, 100) if family and spec == family.specs[-1] else ""
            kept = EMPTY if cell.fraction_kept is None else cell.fraction_kept.text(".0f", 100.0)
            place = f"`{spec}`" if spec else "none"
            crashes = f"{cell.crashes_per_episode:.2f} | {cell.interventions_per_episode:.2f}"
            lines.append(
                f"| {place} | {markdown(name)} | {cell.return_mean.text('.0f')} | {cell.return_min:.0f} | "
                f"{kept} | {area} | {crashes} | {_versus(cell)} |"
            )
    return "\n".join(lines)


def _versus(cell: Cell) -> str:
    if cell.versus is None:
        return "| | | "
    p, d = cell.versus.p_value, cell.versus.effect_size
    numbers = "" if p is None else f"{p:.3f}", "" if d is None else f"{d:+.2f}"
    return f"{cell.versus.difference.text('+.0f')} | {numbers[0]} | {numbers[1]} | {100 * cell.versus.win_rate:.0f} %"


def terminal_stress(result: Stress) -> Table:
    """Return the return that every driver keeps, for the terminal."""
    table = Table(title="Return kept, % of the driver's own undisturbed return (mean return)", title_justify="left")
    table.add_column("perturbation")
    for name in result.drivers:
        table.add_column(name, justify="right")
    for spec in (CLEAN, *(spec for family in result.families for spec in family.specs)):
        cells = [result.cells[name, spec] for name in result.drivers]
        texts = [f"{_kept(cell)} ({cell.return_mean.mean:.0f})" for cell in cells]
        table.add_row(spec or "none", *texts)
    return table


def _kept(cell: Cell) -> str:
    return number(cell.fraction_kept and cell.fraction_kept.mean, 0, 100)


def video_of(
    path: Path,
    drivers: Sequence[str | os.PathLike[str]],
    tracks: str | Sequence[int],
    spec: str,
    control: Control | None = None,
    crash: CrashMode = "ignore",
) -> Path:
    """Write a video of up to four drivers on the first track under one perturbation.

    The episodes are those that `stress` measures.

    Args:
        path: The new file; an existing one is replaced.
        drivers: Names or folders, see `resolve_driver`.
        tracks: See `track_seeds`.
        spec: The perturbation, see `envs.perturb`.
        control: Control of shipped drivers.
        crash: The effect of a crash, see `CarRacing`.

    Returns:
        `path`.
    """
    with tempfile.TemporaryDirectory() as folder:
        videos = []
        for number, name in enumerate(drivers[:4]):
            videos.append(Path(folder) / f"{number}.mp4")
            driver = resolve_driver(name, EnvConfig(control=control) if control else None)
            env = env_for(driver, control, spec)
            record_video(videos[-1], driver, track_seeds(tracks)[0], name=driver_name(name), env=env, crash=crash)
        side_by_side(path, videos, columns=2 if len(videos) > 2 else None)
    return path


def draw_heatmap(path: Path, result: Stress) -> None:
    """Draw the fraction of its own undisturbed return that every driver keeps, and its return."""
    specs = [spec for family in result.families for spec in family.specs]
    cells = [[result.cells[name, spec] for spec in specs] for name in result.drivers]
    fractions = [[cell.fraction_kept.mean if cell.fraction_kept else np.nan for cell in row] for row in cells]
    figure = Figure(figsize=(2.4 + 0.62 * len(specs), 1.9 + 0.5 * len(result.drivers)), layout="constrained")
    axis = figure.subplots()
    image = axis.imshow(np.array(fractions), cmap="RdYlGn", vmin=_WORST, vmax=_BEST, aspect="auto")
    for (row, column), value in np.ndenumerate(fractions):
        dark = value < 0.25 or value > 0.85
        text = f"{_kept(cells[row][column])}\n({cells[row][column].return_mean.mean:.0f})"
        axis.text(column, row, text, ha="center", va="center", fontsize=7, color="white" if dark else "black")
    axis.set_xticks(range(len(specs)), specs, rotation=45, ha="right", fontsize=8)
    labels = [f"{name} ({result.cells[name, CLEAN].return_mean.mean:.0f})" for name in result.drivers]
    axis.set_yticks(range(len(labels)), labels, fontsize=8)
    axis.set_title("Return kept, % of the driver's own undisturbed return (return)", fontsize=9)
    figure.colorbar(image, ax=axis, shrink=0.8, format=PercentFormatter(1.0))
    write_figure(path, figure)


def draw_curves(path: Path, result: Stress) -> None:
    """Draw the returns over the levels of every perturbation, with intervals."""
    figure, axes = _grid(len(result.families))
    ends = [end for each in result.cells.values() for end in (each.return_mean.low, each.return_mean.high)]
    for axis, family in zip(axes, result.families, strict=True):
        axis.set_ylim(min(0.0, 1.05 * min(ends)), 1.05 * max(ends) if max(ends) > 0 else 1.0)
        for color, name in enumerate(result.drivers):
            intervals = [result.cells[name, spec].return_mean for spec in (CLEAN, *family.specs)]
            levels, means = np.arange(len(intervals)), [each.mean for each in intervals]
            axis.plot(levels, means, "o-", ms=4, color=f"C{color}", label=name)
            axis.fill_between(
                levels, [each.low for each in intervals], [each.high for each in intervals],
                color=f"C{color}", alpha=0.15, linewidth=0,
            )  # fmt: skip
        axis.set_title(family.name, fontsize=9)
        axis.set_xticks(range(1 + len(family.specs)))
        axis.set_xlabel("level" if len(family.specs) > 1 else "without (0), with (1)", fontsize=8)
        axis.set_ylabel("return", fontsize=8)
    _finish(figure, axes, path)


def draw_survival(path: Path, result: Stress) -> None:
    """Draw the fraction of episodes without a crash over time, at the highest level of every perturbation."""
    figure, axes = _grid(len(result.families))
    times = np.linspace(0.0, 20.0, 401)
    for axis, family in zip(axes, result.families, strict=True):
        for color, name in enumerate(result.drivers):
            crashes = [row.first_crash_time for row in result.rows[name, family.specs[-1]]]
            axis.step(times, survival(crashes, times), where="post", color=f"C{color}", label=name)
        axis.set_title(family.specs[-1], fontsize=9)
        axis.set_ylim(-0.03, 1.03)
        axis.set_xlabel("seconds", fontsize=8)
        axis.set_ylabel("episodes without a crash", fontsize=8)
    _finish(figure, axes, path)


def _grid(panels: int) -> tuple[Figure, list[Any]]:
    columns = min(4, panels)
    lines = -(-panels // columns)
    figure = Figure(figsize=(max(4.0, 3.0 * columns), 0.5 + 2.6 * lines), layout="constrained")
    axes = figure.subplots(lines, columns, squeeze=False).flatten().tolist()
    for axis in axes[panels:]:
        axis.remove()
    return figure, axes[:panels]


def _finish(figure: Figure, axes: list[Any], path: Path) -> None:
    for axis in axes:
        axis.grid(color="0.92")
        axis.tick_params(labelsize=8)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    write_figure(path, figure)
