"""Results and progress in the cells of a notebook.

Everything that others named is escaped. HTML is small, has its styles inline, and takes the notebook's colours.
"""

from __future__ import annotations

import base64
import html
import os
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from io import BytesIO
from multiprocessing import parent_process
from typing import Any

from nac_drive.events import Event
from nac_drive.storage.names import shown

MOST_BYTES = 4_000_000
"""A larger video is not embedded."""
_SECONDS_BETWEEN_UPDATES = 0.2
_ENDED_JOBS = 3
"""Jobs of a cell that stay when they have ended, the last ones."""
_CELL = "padding:.2em .7em;white-space:nowrap;text-align:"


def escaped(text: object) -> str:
    """Return a text as HTML, without marks and unprintable characters."""
    return html.escape(shown(text))


def paragraph(text: str, *, strong: bool = False) -> str:
    """Return a paragraph of plain text."""
    weight = ";font-weight:600" if strong else ""
    return f'<p style="margin:.4em 0;max-width:46em{weight}">{escaped(text)}</p>'


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], names: int = 1) -> str:
    """Return a table of plain texts.

    Args:
        headings: Texts of the first line; none for a table without one.
        rows: Texts of the other lines.
        names: Columns at the left that hold text; the others hold numbers.
    """

    def line(tag: str, texts: Sequence[str]) -> str:
        sides = ["left" if place < names else "right" for place in range(len(texts))]
        cells = (
            f'<{tag} style="{_CELL}{side}">{escaped(text)}</{tag}>' for side, text in zip(sides, texts, strict=True)
        )
        return f"<tr>{''.join(cells)}</tr>"

    head = f"<thead>{line('th', headings)}</thead>" if headings else ""
    body = "".join(line("td", row) for row in rows)
    style = "border-collapse:collapse;font-variant-numeric:tabular-nums"
    return f'<div style="overflow-x:auto"><table style="{style}">{head}<tbody>{body}</tbody></table></div>'


def image(pixels: Any, caption: str, width: int) -> str:
    """Return an image of large pixels with its caption.

    Args:
        pixels: (H, W, 3) uint8.
        caption: Plain text below it.
        width: Width on the page.
    """
    from PIL import Image  # slow to import

    buffer = BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    source = f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
    style = f"width:{width}px;max-width:100%;image-rendering:pixelated"
    return (
        '<figure style="display:inline-block;margin:.3em .6em .3em 0">'
        f'<img style="{style}" src="{source}" alt="{escaped(caption)}">'
        f"<figcaption>{escaped(caption)}</figcaption></figure>"
    )


def player(video: bytes, kind: str) -> str:
    """Return a player of a video, which the page holds.

    Args:
        video: The content of the file.
        kind: Its suffix: .mp4, .webm or .gif.
    """
    if len(video) > MOST_BYTES:
        return paragraph(f"The video of {len(video) / 1e6:.0f} MB is too large for a notebook.")
    data = base64.b64encode(video).decode()
    style = "width:600px;max-width:100%"
    if kind == ".gif":
        return f'<img style="{style}" src="data:image/gif;base64,{data}" alt="the episode">'
    return f'<video controls loop style="{style}" src="data:video/{kind.removeprefix(".")};base64,{data}"></video>'


def in_notebook() -> bool:
    """Return whether this process runs the cells of a notebook."""
    return _kernel() is not None


def opens_windows() -> bool:
    """Return whether a window can open where the user is."""
    display = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    return not in_notebook() and (sys.platform in ("darwin", "win32") or bool(display))


def _kernel() -> Any:
    """Return the shell of the notebook; None outside of one."""
    module = sys.modules.get("IPython")
    if module is None or parent_process() is not None:  # a worker shows nothing
        return None
    shell = module.get_ipython()
    return shell if getattr(shell, "kernel", None) is not None else None


def automatic(event: Event) -> None:
    """Show an event as a bar, in a notebook alone."""
    shell = _kernel()
    if shell is not None:
        _BARS.show(event, shell.execution_count)


@dataclass
class _Bar:
    """A job of the cell."""

    started: float
    event: Event

    @property
    def ended(self) -> bool:
        return not self.event.total or self.event.done >= self.event.total


@dataclass
class _Bars:
    """The bars of one cell, drawn in one place."""

    cell: int | None = None
    jobs: dict[str, _Bar] = field(default_factory=dict)
    drawn: float = 0.0
    handle: Any = None

    def show(self, event: Event, cell: int) -> None:
        now = time.monotonic()
        if cell != self.cell:
            self.cell, self.jobs, self.drawn, self.handle = cell, {}, 0.0, None
        bar = self.jobs.get(event.job)
        if bar is None or event.done < bar.event.done:  # another run of the job
            bar = self.jobs[event.job] = _Bar(now, event)
        bar.event = event if event.note else replace(event, note=bar.event.note)
        if bar.ended:
            self._drop(event.job)
        elif now - self.drawn < _SECONDS_BETWEEN_UPDATES:
            return
        self.drawn = now
        text = "".join(_line(bar, now) for bar in self.jobs.values())
        from IPython import display  # type: ignore[import-not-found, unused-ignore]

        if self.handle is None:
            self.handle = display.display(display.HTML(text), display_id=True)
        else:
            self.handle.update(display.HTML(text))

    def _drop(self, job: str) -> None:
        """Remove a job inside of another one, and old ones."""
        ended = [name for name, bar in self.jobs.items() if bar.ended]
        old = [job] if len(ended) < len(self.jobs) else ended[:-_ENDED_JOBS]
        for name in old:
            del self.jobs[name]


def _line(bar: _Bar, now: float) -> str:
    """Return a job as a line."""
    event = bar.event
    note, middle = escaped(event.note), ""
    if event.total:
        meter = f'<progress style="vertical-align:middle" value="{event.done:g}" max="{event.total:g}"></progress>'
        done, total = (f"{value:,.0f}" for value in (event.done, event.total))
        middle = f"{meter} {done} of {total}, {now - bar.started:.0f} s "
    return f'<div style="font-variant-numeric:tabular-nums">{escaped(event.job)}: {middle}{note}</div>'


_BARS = _Bars()
