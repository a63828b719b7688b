"""The page of an evaluation."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from nac_drive.envs import Control
from nac_drive.evaluation.evaluate import Evaluation
from nac_drive.experiments.figures import EPISODES_CAPTION, draw_episodes
from nac_drive.experiments.headline import headline
from nac_drive.experiments.leaderboard import RankedDriver, leaderboard, verdicts
from nac_drive.experiments.page import Page, PageFigure, conditions, inspect_command, track_names
from nac_drive.storage.figure import try_to_draw

_FIGURE = "figure.png"


def save_evaluation_page(
    folder: str | os.PathLike[str],
    evaluations: Sequence[Evaluation],
    tracks: str | Sequence[int],
    driver: str,
    control: Control | None = None,
    mask_bar: bool | None = None,
) -> Path:
    """Write report.html and its figure.png of drivers that were evaluated on the same tracks.

    Args:
        folder: An existing folder.
        evaluations: The baseline, if any, then the driver.
        tracks: Named tracks, or their seeds.
        driver: The driver as a command takes it.
        control: The control that a command chooses; None for the driver's own.
        mask_bar: Whether the status bar was hidden; None for as in the driver's training.

    Returns:
        The page.
    """
    drivers, folder = [RankedDriver(evaluation) for evaluation in evaluations], Path(folder)
    has_figure = try_to_draw(draw_episodes, folder / _FIGURE, drivers)
    names = [driver.summary.driver for driver in drivers]
    row, worst = evaluations[-1].rows[0], min(evaluations[-1].rows, key=lambda row: row.episode_return)
    expert = f" {names[0]} drove the same tracks and was queried at every frame of {names[-1]}." * (len(names) > 1)
    page = Page(
        f"Evaluation of {names[-1]}",
        f"{names[-1]} drove once on every track ({track_names(tracks)}). "
        f"{conditions(row.crash_mode, row.perturbation)}{expert}",
        leaderboard(drivers), [PageFigure(_FIGURE, "Figure", EPISODES_CAPTION)] * has_figure,
        headline=headline(drivers), verdicts=verdicts(drivers),
        commands=inspect_command([driver], worst, control, as_trained=mask_bar is None),
    )  # fmt: skip
    return page.save_html(folder)
