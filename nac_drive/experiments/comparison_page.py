"""The page of a comparison, and its figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from nac_drive.data_collection.drivers import driver_name, driver_names
from nac_drive.evaluation.results import EpisodeResult
from nac_drive.experiments.driving import EXPERT, Driving
from nac_drive.experiments.entrants import Entrants
from nac_drive.experiments.figures import (
    LEADERBOARD_CAPTION,
    LEARNING_CAPTION,
    draw_leaderboard,
    draw_learning_curves,
)
from nac_drive.experiments.headline import headline
from nac_drive.experiments.leaderboard import RankedDriver, leaderboard, verdicts
from nac_drive.experiments.page import Page, PageFigure, PageSection, conditions, inspect_command, track_names
from nac_drive.experiments.tuning import Tuned, tuning_table
from nac_drive.storage.figure import try_to_draw

_CURVES, _FIGURE = "learning_curves.png", "figure.png"


def save_comparison_page(
    folder: Path,
    entrants: Entrants,
    experiment: Driving,
    drivers: Sequence[RankedDriver],
    tracks: str | Sequence[int],
    *,
    failed: Sequence[str] = (),
    tuned: Sequence[Tuned] = (),
) -> None:
    """Write report.html with its figures.

    Args:
        folder: The folder of the comparison.
        entrants: What takes part.
        experiment: The grid.
        drivers: The ranking.
        tracks: The tracks as the user named them.
        failed: Names of runs that failed.
        tuned: What the tuning chose for each core, if there was one.
    """
    figures = []
    if try_to_draw(draw_leaderboard, folder / _FIGURE, drivers):
        figures.append(PageFigure(_FIGURE, "Figure", LEADERBOARD_CAPTION))
    trained = [driver for driver in drivers if driver.runs]
    if trained and try_to_draw(draw_learning_curves, folder / _CURVES, trained):
        figures.append(PageFigure(_CURVES, "Learning curves", LEARNING_CAPTION))
    sections = [_tuning_section(tuned, entrants.config.validation.tracks)] if tuned else []
    Page(
        "Comparison of drivers", _protocol(entrants, experiment, tracks, failed, bool(trained)), leaderboard(drivers),
        figures, headline=headline(drivers), verdicts=verdicts(drivers), sections=sections,
        commands=_commands(folder, experiment, trained) if trained else "",
    ).save_html(folder)  # fmt: skip


def _tuning_section(tuned: Sequence[Tuned], tracks: str) -> PageSection:
    text = (
        "Every core had the same budget of trials before its runs. The settings with the best score were chosen. "
        f"The trials drove the validation tracks {tracks}; none of them saw a track of the results above."
    )
    return PageSection("Tuning", text, tuning_table(tuned))


def _commands(folder: Path, experiment: Driving, trained: Sequence[RankedDriver]) -> str:
    """Return the command that shows the worst episode."""
    labels = {(entry.name, entry.run): entry.label for entry in experiment.entries}

    def path_of(episode: EpisodeResult) -> str:
        return str(folder / labels[episode.driver, episode.run])

    best, *others = trained[:2]
    worst = min(best.evaluation.rows, key=lambda row: row.episode_return)
    return inspect_command([path_of(worst), *(path_of(other.evaluation.rows[0]) for other in others)], worst)


def _protocol(
    entrants: Entrants, experiment: Driving, tracks: str | Sequence[int], failed: Sequence[str], trained: bool
) -> str:
    """Return the comparison in a few sentences."""
    config, dataset = entrants.config, entrants.dataset
    beside = ""
    if entrants.expert is not None:
        expert = driver_name(entrants.expert)
        subject = "The expert" if expert == EXPERT else f"The expert ({expert})"
        beside = f" {subject} drove the same tracks and was queried at every frame."
    measured = conditions(experiment.crash, entrants.env.perturb, entrants.env.max_steps)
    learned = "end to end"
    if entrants.shared_encoder:
        learned = "on the features of one encoder that they share"
    elif frozen := config.optim.freeze_encoder_from:
        learned = f"on the features of the encoder of {driver_name(frozen)}"
    residual = " The action head also saw the core's input (residual)." if config.driver.residual else ""
    left_out = f"Runs that failed are left out: {', '.join(failed)}. " if failed else ""
    training = (
        f"Every core was trained {learned} on {dataset.path.name} ({len(dataset)} episodes). Epochs: "
        f"{config.epochs}. Seeds: {entrants.num_seeds}.{residual} " if trained else ""
    )  # fmt: skip
    names = ", ".join(driver_names(entrants.given, [EXPERT]))
    given = f"Evaluated as they are: {names}. " if names else ""
    saw = {entry.env.view for entry in experiment.entries}
    views = "Every driver saw the view of its training, from above or from the seat. " if len(saw) > 1 else ""
    views = "All drivers saw the world from the seat. " if saw == {"seat"} else views
    return f"{training}{left_out}{given}{views}The tracks: {track_names(tracks)}. {measured}{beside}"
