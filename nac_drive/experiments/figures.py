"""Figures of the results of several drivers, in one style."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure  # pyplot would change the backend of a notebook
from matplotlib.ticker import MaxNLocator, PercentFormatter

from nac_drive.evaluation.intervals import Interval, survival
from nac_drive.experiments.driving import UNDISTURBED
from nac_drive.experiments.leaderboard import RankedDriver
from nac_drive.experiments.stress import StressResult
from nac_drive.storage.figure import write_figure
from nac_drive.storage.style import HEAT_MAP, PALETTE, SMALL, SOFT, colour_of, ink_on, looks_of, styled

EPISODES_CAPTION = "Return of every episode, mean and 95 % interval."
LEADERBOARD_CAPTION = (
    "Left: returns of all episodes, mean of each run (|), mean and 95 % interval. Right: agreement with the expert."
)
LEARNING_CAPTION = (
    "Learning curves, mean over the runs of a core and their range. Left: loss on the training sequences. "
    "Right: return on the validation tracks."
)
HEAT_MAP_CAPTION = "Return kept, % of the driver's own undisturbed return, and the return in brackets."
STRESS_CURVES_CAPTION = "Return at every level of every perturbation, with 95 % intervals."
SURVIVAL_CAPTION = "Fraction of episodes without a crash over time, at the highest level of every perturbation."

_ONE_COLUMN = 20
"""Most lines of a legend in one column."""
_MOST_PANELS = 4
"""Panels in a line of a figure."""
_LONGEST = 32
"""Characters of a name. A longer one is drawn without its middle."""
_TICK = 13
"""Characters of a line below an axis."""
_LETTER, _LINE = 0.075, 0.19
"""Width of a letter and height of a line, inches."""


@styled()
def draw_episodes(path: Path, drivers: Sequence[RankedDriver]) -> None:
    """Draw returns on every track with mean and interval; beside them, for drivers trained by DAgger, their rounds.

    Args:
        path: The new PNG.
        drivers: The drivers, from left to right.
    """
    trained = [driver for driver in drivers if any(map(_rounds, driver.histories))]
    width = max(5.5, 1.4 * len(drivers))
    figure = Figure(figsize=(width + 5 if trained else width, 4), layout="constrained")
    axes = figure.subplots(1, 2 if trained else 1, squeeze=False)
    _draw_returns(axes[0, 0], drivers)
    axes[0, 0].set_ylabel("return of an episode")
    axes[0, 0].set_title("Every track, mean, 95 % interval")
    if trained:
        _draw_rounds(axes[0, 1], trained)
    write_figure(path, figure)


@styled()
def draw_races(path: Path, races: Mapping[str, Sequence[RankedDriver]]) -> None:
    """Draw the returns of several races, side by side.

    Args:
        path: The new PNG.
        races: Title of each race -> its drivers.
    """
    widths = [len(drivers) for drivers in races.values()]
    figure = Figure(figsize=(1.2 * sum(widths), 4), layout="constrained")
    panels = figure.subplots(1, len(races), sharey=True, squeeze=False, width_ratios=widths)[0]
    for axis, (title, drivers) in zip(panels, races.items(), strict=True):
        _draw_returns(axis, drivers)
        axis.set_title(title)
    panels[0].set_ylabel("return of an episode")
    write_figure(path, figure)


def _draw_returns(axis: Any, drivers: Sequence[RankedDriver]) -> None:
    """Draw returns on every track, mean and interval."""
    looks = looks_of(driver.summary.driver for driver in drivers)
    for place, driver in enumerate(drivers):
        returns = [row.episode_return for row in driver.evaluation.rows]
        interval, color = driver.summary.return_interval, looks[driver.summary.driver].color
        spread = place + np.linspace(-0.15, 0.15, len(returns))
        axis.scatter(spread, returns, s=22, alpha=0.5, color=color, linewidths=0)
        axis.errorbar(
            place, interval.mean, _ends(interval), fmt="D", color=color, markeredgecolor="black", capsize=5, zorder=3
        )
        axis.annotate(f"{interval.mean:z.0f}", (place + 0.2, interval.mean), va="center", fontsize=SMALL)
    _solved(axis.axhline, drivers)
    names = [_shortened(driver.summary.driver).split(",") for driver in drivers]
    axis.set_xticks(range(len(drivers)), ["\n".join(textwrap.fill(part, _TICK) for part in parts) for parts in names])
    axis.set_xlim(-0.5, len(drivers) - 0.3)
    axis.grid(axis="x", visible=False)


def _rounds(history: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the rows of rounds of DAgger, which collected episodes and were validated."""
    return [row for row in history if {"episodes_return_mean", "frames", "returns"} <= row.keys()]


def _draw_rounds(axis: Any, trained: Sequence[RankedDriver]) -> None:
    """Draw the validation of every round of DAgger over the labelled frames."""
    for driver in trained:
        name = driver.summary.driver
        rows = _rounds(driver.histories[0])
        frames = [row["frames"] / 1000 for row in rows]
        returns = np.array([row["returns"] for row in rows])  # (rounds, tracks)
        axis.plot(frames, returns, ".", color=colour_of(name), alpha=0.4, markersize=6, markeredgewidth=0)
        axis.plot(frames, returns.mean(axis=1), "o-", color=colour_of(name), label=f"{_shortened(name)}, mean")
    _solved(axis.axhline, trained)
    axis.set_xlabel("labelled frames, thousands")
    axis.set_ylabel("return of an episode")
    axis.set_title("Validation after every round")
    axis.legend(loc="lower right")


@styled()
def draw_leaderboard(path: Path, drivers: Sequence[RankedDriver]) -> None:
    """Draw one line per driver: returns of all episodes, means of the runs, mean and interval, and accuracies.

    Args:
        path: The new PNG.
        drivers: The drivers, the first on top.
    """
    figure = Figure(figsize=(11, 1.6 + 0.27 * len(drivers)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=[3, 2])
    blue, green = PALETTE[:2]
    for line, driver in enumerate(drivers):
        summary, returns = driver.summary, [row.episode_return for row in driver.evaluation.rows]
        interval, color = summary.return_interval, colour_of(summary.driver)
        left.scatter(returns, np.full(len(returns), line), s=14, alpha=0.35, color=color, linewidths=0)
        means = summary.run_returns if driver.runs else []
        left.plot(means, [line] * len(means), "|", ms=11, mew=1.5, color="black", zorder=4)
        left.errorbar(
            interval.mean, line, xerr=_ends(interval), fmt="D", ms=5, color=color, mec="black", capsize=3, zorder=3
        )
        for fraction, mark, color, fill in (
            (driver.validation_accuracy, "o", blue, blue), (driver.validation_at_changes, "^", green, green),
            (summary.agreement, "o", blue, "white"),
        ):  # fmt: skip
            if fraction is not None:
                right.plot(100 * fraction, line, mark, ms=5, color=color, markerfacecolor=fill)
    _solved(left.axvline, drivers)
    left.set_yticks(range(len(drivers)), [_shortened(driver.summary.driver) for driver in drivers])
    left.set_ylim(len(drivers) - 0.4, -0.6)
    left.set_xlabel("return of an episode")
    right.set_xlabel("actions equal to the expert's, %")
    for label, mark, color, fill in (
        ("validation tracks", "o", blue, blue), ("validation, where the action changes", "^", green, green),
        ("on its own states", "o", blue, "white"),
    ):  # fmt: skip
        right.plot([], [], mark, ms=5, color=color, markerfacecolor=fill, label=label)
    figure.legend(loc="outside upper right", ncols=3, columnspacing=1)
    for axis in (left, right):
        axis.grid(axis="x", visible=False)
    write_figure(path, figure)


@styled()
def draw_learning_curves(path: Path, drivers: Sequence[RankedDriver]) -> None:
    """Draw training loss and mean validation return by epoch: one line per driver, the range of its runs shaded.

    Args:
        path: The new PNG.
        drivers: Trained drivers; the legend has their order.
    """
    names = [driver.summary.driver for driver in drivers]
    looks = looks_of(names)
    lines = -(-len(names) // 2) if len(names) > _ONE_COLUMN else len(names)
    figure = Figure(figsize=(11, max(4.0, 0.6 + _LINE * lines)), layout="constrained")
    axes = figure.subplots(1, 2, sharex=True)
    for axis, key, label in zip(axes, ("loss", "return_mean"), ("training loss", "validation return"), strict=True):
        for name, driver in zip(names, drivers, strict=True):
            epochs, values = _by_epoch(driver.histories, key)
            look = looks[name]
            style = {"color": look.color, "linestyle": look.linestyle, "label": _shortened(name)}
            axis.plot(epochs, [np.mean(runs) for runs in values], marker="o", ms=2.5, lw=1.3, **style)
            low, high = ([end(runs) for runs in values] for end in (min, max))
            axis.fill_between(epochs, low, high, color=look.color, alpha=0.12, linewidth=0)
        axis.set_xlabel("epoch")
        axis.set_ylabel(label)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    low, high = axes[0].dataLim.intervaly
    if 0 < low < high / 5:
        axes[0].set_yscale("log")
    _solved(axes[1].axhline, drivers)
    figure.legend(
        *axes[0].get_legend_handles_labels(), loc="outside right upper", ncols=1 + (lines < len(names)), handlelength=3
    )
    write_figure(path, figure)


def _by_epoch(runs: Sequence[Sequence[Mapping[str, Any]]], key: str) -> tuple[list[int], list[list[float]]]:
    """Return the epochs in which `key` was measured, and its values in each of them, one per run."""
    values: dict[int, list[float]] = {}
    for row in (row for rows in runs for row in rows if key in row):
        values.setdefault(row["step"], []).append(row[key])
    epochs = sorted(values)
    return epochs, [values[epoch] for epoch in epochs]


@styled()
def draw_heat_map(path: Path, result: StressResult) -> None:
    """Draw the fraction of its own undisturbed return that every driver keeps, and its return."""
    cells = [[result.cells[name, spec] for name in result.drivers] for spec in result.specs]
    drivers = [
        f"{_shortened(name)} ({result.cells[name, UNDISTURBED].return_mean.mean:z.0f})" for name in result.drivers
    ]
    lines, columns = result.specs, drivers
    if len(columns) > len(lines):  # a tall figure fits a page, a wide one does not
        cells, lines, columns = [list(line) for line in zip(*cells, strict=True)], columns, lines
    fractions = [[cell.fraction_kept.mean if cell.fraction_kept else np.nan for cell in line] for line in cells]
    width = max(2.6, 1.4 + _LETTER * max(map(len, lines)) + len(columns))
    slanted = 0.7 * _LETTER * max(map(len, columns))
    figure = Figure(figsize=(width, 1.0 + slanted + 0.34 * len(lines)), layout="constrained")
    axis = figure.subplots()
    image = axis.imshow(np.array(fractions), cmap=HEAT_MAP, vmin=0.0, vmax=1.0, aspect="auto")
    for (line, column), value in np.ndenumerate(fractions):
        percent = "-" if np.isnan(value) else f"{100 * value:.0f}"
        text = f"{percent} ({cells[line][column].return_mean.mean:z.0f})"
        ink = "black" if np.isnan(value) else ink_on(colormaps[HEAT_MAP](float(np.clip(value, 0, 1))))
        axis.text(column, line, text, ha="center", va="center", fontsize=SMALL, color=ink)
    axis.grid(visible=False)
    axis.set_xticks(range(len(columns)), columns, rotation=45, ha="right")
    axis.set_yticks(range(len(lines)), lines)
    axis.set_title("Return kept, % (return)")
    figure.colorbar(image, ax=axis, shrink=0.8, format=PercentFormatter(1.0))
    write_figure(path, figure)


@styled()
def draw_stress_curves(path: Path, result: StressResult) -> None:
    """Draw the returns over the levels of every perturbation, with intervals."""
    figure, axes = _panels(len(result.families))
    looks = looks_of(result.drivers)
    ends = [end for cell in result.cells.values() for end in (cell.return_mean.low, cell.return_mean.high)]
    for axis, family in zip(axes, result.families, strict=True):
        axis.set_ylim(min(0.0, 1.05 * min(ends)), 1.05 * max(ends) if max(ends) > 0 else 1.0)
        for number, (name, look) in enumerate(looks.items()):
            intervals = [result.cells[name, spec].return_mean for spec in (UNDISTURBED, *family.specs)]
            apart = 0.2 * ((number + 0.5) / len(looks) - 0.5)  # equal curves lie beside each other
            levels = np.arange(len(intervals)) + apart
            axis.plot(
                levels, [interval.mean for interval in intervals], marker=look.marker, color=look.color,
                linestyle=look.linestyle, label=_shortened(name),
            )  # fmt: skip
            axis.fill_between(
                levels, [interval.low for interval in intervals], [interval.high for interval in intervals],
                color=look.color, alpha=0.15, linewidth=0,
            )  # fmt: skip
        axis.set_title(family.name)
        axis.set_xticks(range(1 + len(family.specs)))
        axis.set_xlabel("level" if len(family.specs) > 1 else "without (0), with (1)")
        axis.set_ylabel("return")
    _finish(path, figure, axes)


@styled()
def draw_survival(path: Path, result: StressResult) -> None:
    """Draw the fraction of episodes without a crash over time, at the highest level of every perturbation."""
    figure, axes = _panels(len(result.families))
    looks = looks_of(result.drivers)
    first_crashes = {
        (name, family.specs[-1]): [row.first_crash_time for row in result.rows[name, family.specs[-1]]]
        for name in looks for family in result.families
    }  # fmt: skip
    crash_times = [time for crashes in first_crashes.values() for time in crashes if time is not None]
    times = np.unique([0.0, result.env.max_steps / result.env.spec.frames_per_second, *crash_times])
    for axis, family in zip(axes, result.families, strict=True):
        for name, look in looks.items():
            crashes = first_crashes[name, family.specs[-1]]
            axis.step(
                times, survival(crashes, times), where="post", color=look.color, linestyle=look.linestyle,
                label=_shortened(name),
            )  # fmt: skip
        axis.set_title(family.specs[-1])
        axis.set_ylim(-0.03, 1.03)
        axis.set_xlabel("seconds")
        axis.set_ylabel("episodes without a crash")
    _finish(path, figure, axes)


def _panels(count: int) -> tuple[Figure, list[Any]]:
    columns = min(_MOST_PANELS, count)
    lines = -(-count // columns)
    figure = Figure(figsize=(max(4.0, 3.2 * columns), 0.6 + 2.7 * lines), layout="constrained")
    axes = figure.subplots(lines, columns, squeeze=False).flatten().tolist()
    for axis in axes[count:]:
        axis.set_visible(False)
    return figure, axes[:count]


def _finish(path: Path, figure: Figure, axes: Sequence[Any]) -> None:
    """Write panels with one legend for all."""
    handles, labels = axes[0].get_legend_handles_labels()
    fitting = int(figure.get_figwidth() / (0.6 + _LETTER * max(map(len, labels))))
    columns = max(1, min(len(labels), fitting, _MOST_PANELS))
    lines = -(-len(labels) // columns)
    figure.set_figheight(figure.get_figheight() + _LINE * max(0, lines - 2))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns)
    write_figure(path, figure)


def _shortened(name: str) -> str:
    half = _LONGEST // 2
    return name if len(name) <= _LONGEST else f"{name[: half - 1]}…{name[-half:]}"


def _solved(line: Any, drivers: Sequence[RankedDriver]) -> None:
    """Draw the return that counts as solved.

    `line` is `axhline` or `axvline`.
    """
    for solved in {driver.evaluation.solved_return for driver in drivers} - {None}:
        line(solved, color=SOFT, linewidth=0.8, linestyle="--")


def _ends(interval: Interval) -> list[list[float]] | None:
    """Return the lengths of an error bar; None for a point, as of one value."""
    if interval.low == interval.high:
        return None
    return [[interval.mean - interval.low], [interval.high - interval.mean]]
