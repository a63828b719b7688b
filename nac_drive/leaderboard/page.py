"""Results as one self-contained HTML page: a protocol, a sortable table, and a figure inside the file."""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, StrictUndefined

from nac_drive.evaluation.evaluate import Evaluation
from nac_drive.leaderboard.figures import draw_figure
from nac_drive.leaderboard.tables import Entry, cells, columns, legend
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
    video: str | None = None,
    video_caption: str = "",
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
        video: A video in `folder`, which the page plays from there; None for none.
        video_caption: Caption of the video.
        commands: Commands to go on with, one a line.

    Returns:
        The page.
    """
    folder = Path(folder)
    headings, rows = cells(entries)
    every = columns()
    template = (files("nac_drive.leaderboard") / "report.html").read_text(encoding="utf-8")
    page = Environment(autoescape=True, undefined=StrictUndefined).from_string(template).render(
        title=title, protocol=protocol, legend=legend(entries), columns=[every[heading] for heading in headings],
        rows=rows, figure=_data_uri(folder / figure) if figure else None, caption=caption, video=video,
        video_caption=video_caption, commands=commands,
    )  # fmt: skip
    write_atomically(folder / "report.html", page.encode())
    return folder / "report.html"


def _data_uri(png: Path) -> str:
    return f"data:image/png;base64,{base64.b64encode(png.read_bytes()).decode()}"


def save_evaluation_report(
    folder: str | os.PathLike[str], evaluations: Sequence[Evaluation], tracks: str | Sequence[int]
) -> Path:
    """Write `report.html` and its `figure.png` of drivers that were evaluated on the same tracks.

    Args:
        folder: An existing folder.
        evaluations: The baseline, if any, then the driver.
        tracks: Named tracks, or their seeds.

    Returns:
        The page.
    """
    entries = [Entry(evaluation) for evaluation in evaluations]
    folder = Path(folder)
    draw_figure(folder / "figure.png", entries)
    names = [entry.summary.driver for entry in entries]
    expert = ""
    if len(names) > 1:
        expert = f" {names[0]} drove the same tracks and was queried at every frame of {names[-1]}."
    row = evaluations[-1].rows[0]
    return save_report(
        folder, entries, title=f"Evaluation of {names[-1]}",
        protocol=f"{names[-1]} drove the tracks {track_names(tracks)} once each. "
        f"{conditions(row.crash_mode, row.renderer, row.perturbation)}{expert}",
    )  # fmt: skip


def conditions(crash: str, renderer: str, perturbation: str = "", max_steps: int | None = None) -> str:
    """The conditions of an evaluation in one or two sentences."""
    effect = {"ignore": "crashes are counted", "terminate": "a crash ends the episode"}
    longest = f" of at most {max_steps} frames" if max_steps else ""
    text = (
        f"Every episode is a deterministic drive{longest} on CarRacing-v3 with its native reward; the {renderer} "
        f"renderer draws the frames; {effect.get(crash, 'after a crash the car restarts on the road')}."
    )
    return f"{text} Perturbation: {perturbation}." if perturbation else text


def track_names(tracks: str | Sequence[int]) -> str:
    """Tracks as text."""
    return tracks if isinstance(tracks, str) else ", ".join(map(str, tracks))
