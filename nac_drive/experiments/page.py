"""Results as one self-contained HTML page, and the same as Markdown."""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from PIL import Image

from nac_drive.analysis.page import assemble
from nac_drive.envs import Control
from nac_drive.evaluation.results import EpisodeResult
from nac_drive.evaluation.video import middle_image
from nac_drive.experiments.table import Table
from nac_drive.storage.names import markdown, shell_path, shell_word
from nac_drive.storage.write import write_atomically


@dataclass(frozen=True)
class PageFigure:
    """A PNG in the folder of the page, which the page holds."""

    file: str
    title: str
    caption: str


@dataclass(frozen=True)
class PageLink:
    """A video or a page in the folder of the page, which the page plays or links to."""

    file: str
    caption: str


@dataclass(frozen=True)
class PageSection:
    """A further table of a page, below the first one."""

    title: str
    text: str
    table: Table
    verdicts: Sequence[str] = ()
    """One sentence for each pair that is compared."""


@dataclass(frozen=True)
class Page:
    """Content of a page of results."""

    title: str
    protocol: str
    """One paragraph: the drivers, the tracks and the conditions."""
    table: Table
    figures: Sequence[PageFigure] = ()
    headline: str = ""
    """The result in one sentence; the page opens with it."""
    verdicts: Sequence[str] = ()
    """One sentence for each pair that is compared."""
    video: PageLink | None = None
    episode: PageLink | None = None
    """A page of `save_episode_page`."""
    commands: str = ""
    """Commands to go on with, one a line."""
    sections: Sequence[PageSection] = ()
    """Below the results, in this order."""

    def save_html(self, folder: str | os.PathLike[str], name: str = "report.html") -> Path:
        """Write the page.

        Args:
            folder: An existing folder, which holds the figures, and the video that the page shows an image of.
            name: Name of the file.

        Returns:
            The file.
        """
        folder = Path(folder)
        images = [(_data_uri(folder / figure.file), figure) for figure in self.figures]
        poster = _poster(folder / self.video.file) if self.video else None
        page = assemble("nac_drive.experiments", "report", panels=False, page=self, images=images, poster=poster)
        write_atomically(folder / name, page.encode())
        return folder / name

    def save_markdown(self, folder: str | os.PathLike[str], name: str) -> Path:
        """Write the same content in Markdown, see `save_html`."""
        parts = [f"# {self.title}", *([f"**{markdown(self.headline)}**"] if self.headline else [])]
        parts += [markdown(self.protocol), self.table.markdown()]
        parts.append(f"{markdown(self.table.legend)} docs/metrics.md explains the columns.")
        parts += map(markdown, self.verdicts)
        for section in self.sections:
            parts += [f"## {section.title}", markdown(section.text), section.table.markdown()]
            parts += [markdown(section.table.legend), *map(markdown, section.verdicts)]
        parts += [f"![{figure.caption}]({figure.file})" for figure in self.figures]
        if self.video:
            parts.append(f"Video: [{self.video.file}]({self.video.file}). {markdown(self.video.caption)}")
        if self.episode:
            parts.append(
                f"Frame by frame: [{self.episode.file}]({self.episode.file}). {markdown(self.episode.caption)}"
            )
        if self.commands:
            parts += ["Next steps:", "    " + self.commands.replace("\n", "\n    ")]
        path = Path(folder) / name
        write_atomically(path, ("\n\n".join(parts) + "\n").encode())
        return path


def _poster(video: Path) -> str | None:
    """Return an image of a video as a data URI. None if the video is not there."""
    if not video.is_file():
        return None
    image, buffer = middle_image(video), BytesIO()
    Image.fromarray(image).save(buffer, "WEBP", quality=75)
    return f"data:image/webp;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _data_uri(png: Path) -> str:
    return f"data:image/png;base64,{base64.b64encode(png.read_bytes()).decode()}"


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


def conditions(crash: str, perturbation: str | None = None, max_steps: int | None = None) -> str:
    """Return the conditions of an evaluation in one or two sentences."""
    effect = {"ignore": "crashes are counted", "terminate": "a crash ends the episode"}
    longest = f" of at most {max_steps} frames" if max_steps else ""
    text = (
        f"Every episode is a deterministic drive{longest} with the native reward; "
        f"{effect.get(crash, 'after a crash the car restarts on the road')}."
    )
    return f"{text} Perturbation: {perturbation}." if perturbation else text


def track_names(tracks: str | Sequence[int]) -> str:
    """Return tracks as text."""
    return tracks if isinstance(tracks, str) else ", ".join(map(str, tracks))
