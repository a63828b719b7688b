"""Results as one self-contained HTML page: a protocol, a sortable table, and a figure inside the file."""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from pathlib import Path

from nac_drive.analysis.page import assemble
from nac_drive.envs import Control
from nac_drive.evaluation.evaluate import Evaluation
from nac_drive.evaluation.results import EpisodeResult
from nac_drive.leaderboard.figures import draw_figure
from nac_drive.leaderboard.tables import Entry, cells, columns, legend
from nac_drive.storage.figure import try_to_draw
from nac_drive.storage.names import shell_path, shell_word
from nac_drive.storage.write import write_atomically

CAPTION = "Return of every episode, mean and 95 % interval."


def save_report(
    folder: str | os.PathLike[str],
    entries: Sequence[Entry],
    *,
    title: str,
    protocol: str,
    figure: str | None = "figure.png",
    caption: str = CAPTION,
    curves: str | None = None,
    curves_caption: str = "",
    video: str | None = None,
    video_caption: str = "",
    episode: str | None = None,
    episode_caption: str = "",
    commands: str = "",
) -> Path:
    """Write `report.html`.

    Args:
        folder: An existing folder.
        entries: The drivers, in the order of the table.
        title: Title of the page.
        protocol: One paragraph: the drivers, the tracks and the conditions.
        figure: A PNG in `folder`, which the page embeds; None for none.
        caption: Caption of the figure.
        curves: A PNG of learning curves in `folder`, which the page embeds; None for none.
        curves_caption: Caption of the learning curves.
        video: A video in `folder`, which the page plays from there; None for none.
        video_caption: Caption of the video.
        episode: A page of `save_episode_page` in `folder`, which the report links; None for none.
        episode_caption: Its drivers and track, in one sentence.
        commands: Commands to go on with, one a line.

    Returns:
        The page.
    """
    folder = Path(folder)
    headings, rows = cells(entries)
    every = columns()
    page = assemble(
        "nac_drive.leaderboard", "report", panels=False, title=title, protocol=protocol, legend=legend(entries),
        columns=[every[heading] for heading in headings], rows=rows,
        figure=_data_uri(folder / figure) if figure else None, caption=caption,
        curves=_data_uri(folder / curves) if curves else None, curves_caption=curves_caption, video=video,
        video_caption=video_caption, episode=episode, episode_caption=episode_caption, commands=commands,
    )  # fmt: skip
    write_atomically(folder / "report.html", page.encode())
    return folder / "report.html"


def _data_uri(png: Path) -> str:
    return f"data:image/png;base64,{base64.b64encode(png.read_bytes()).decode()}"


def save_evaluation_report(
    folder: str | os.PathLike[str],
    evaluations: Sequence[Evaluation],
    tracks: str | Sequence[int],
    driver: str,
    control: Control | None = None,
    mask_bar: bool | None = None,
) -> Path:
    """Write `report.html` and its `figure.png` of drivers that were evaluated on the same tracks.

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
    entries = [Entry(evaluation) for evaluation in evaluations]
    folder = Path(folder)
    drawn = try_to_draw(draw_figure, folder / "figure.png", entries)
    names = [entry.summary.driver for entry in entries]
    expert = ""
    if len(names) > 1:
        expert = f" {names[0]} drove the same tracks and was queried at every frame of {names[-1]}."
    row, worst = evaluations[-1].rows[0], min(evaluations[-1].rows, key=lambda row: row.episode_return)
    return save_report(
        folder, entries, title=f"Evaluation of {names[-1]}", figure="figure.png" if drawn else None,
        protocol=f"{names[-1]} drove the tracks {track_names(tracks)} once each. "
        f"{conditions(row.crash_mode, row.perturbation)}{expert}",
        commands=inspect_command([driver], worst, control, as_trained=mask_bar is None),
    )  # fmt: skip


def inspect_command(
    drivers: Sequence[str], worst: EpisodeResult, control: Control | None = None, *, as_trained: bool = True
) -> str:
    """Return the command that shows the worst episode frame by frame.

    `inspect` hides the status bar as in training. Of an episode under other conditions it shows the track alone, and
    the text says so.

    Args:
        drivers: Drivers as a command takes them, the one that drove the episode first.
        worst: The episode.
        control: The control that a command chooses; None for the driver's own.
        as_trained: Whether the status bar was hidden as in the driver's training.
    """
    words = " ".join(map(shell_path, drivers))
    chosen = f"--driver {words}" if len(drivers) == 1 else f"--compare {words}"
    options = f" --control {control}" if control else ""
    options += f" --perturb {shell_word(worst.perturbation)}" if worst.perturbation else ""
    options += f" --crash {worst.crash_mode}" if worst.crash_mode != "ignore" else ""
    command = f"nac-drive inspect {chosen} --track {worst.seed}{options} --out seen"
    return f"# the {'' if as_trained else 'track of the '}worst episode, frame by frame\n{command}"


def conditions(crash: str, perturbation: str = "", max_steps: int | None = None) -> str:
    """The conditions of an evaluation in one or two sentences."""
    effect = {"ignore": "crashes are counted", "terminate": "a crash ends the episode"}
    longest = f" of at most {max_steps} frames" if max_steps else ""
    text = (
        f"Every episode is a deterministic drive{longest} with the native reward; "
        f"{effect.get(crash, 'after a crash the car restarts on the road')}."
    )
    return f"{text} Perturbation: {perturbation}." if perturbation else text


def track_names(tracks: str | Sequence[int]) -> str:
    """Tracks as text."""
    return tracks if isinstance(tracks, str) else ", ".join(map(str, tracks))
