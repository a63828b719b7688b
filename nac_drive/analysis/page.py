"""One self-contained HTML page of recorded episodes, without a network."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Sequence
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, StrictUndefined
from PIL import Image

from nac_drive.analysis.moments import moments
from nac_drive.analysis.recording import Recording
from nac_drive.storage.names import shown
from nac_drive.storage.write import write_atomically, writing

_SIDE = 4096
"""Largest side of an image that holds frames. A WebP image has at most 16,383 pixels."""
_QUALITY = 80
"""Quality of the images (WebP)."""


def save_episode_page(path: str | os.PathLike[str], recordings: Sequence[Recording], title: str) -> Path:
    """Write episodes as one page with a time slider.

    It opens at the first of their `moments`.

    Args:
        path: The new file; an existing one is replaced, a missing folder is made.
        recordings: Episodes, from left to right.
        title: Title of the page.

    Returns:
        The page.

    Raises:
        WriteError: If it cannot be written.
    """
    shown_moments = [{"name": shown(moment.name), "seconds": moment.seconds} for moment in moments(recordings)]
    content = {"episodes": [_packed(recording) for recording in recordings], "moments": shown_moments}
    data = json.dumps(content).replace("<", "\\u003c")  # ends no script element
    page = assemble("nac_drive.analysis", "episode", title=title, recordings=data)
    with writing(Path(path)):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(Path(path), page.encode())
    return Path(path)


def assemble(package: str, name: str, *, panels: bool = True, **values: Any) -> str:
    """Return a page of one file: HTML, style, panels and script.

    Args:
        package: The package whose folder `web` holds NAME.html and NAME.js.
        name: Its name.
        panels: Whether its script uses the common panels, which draw plots with uPlot.
        **values: What the HTML names.
    """
    common, own = files("nac_drive.analysis") / "web", files(package) / "web"
    styles, scripts = ["style.css"], [(own / f"{name}.js").read_text(encoding="utf-8")]
    if panels:
        styles.append("uPlot.min.css")
        scripts[:0] = [_uplot(), (common / "panels.js").read_text(encoding="utf-8")]
    style = "\n".join((common / file).read_text(encoding="utf-8") for file in styles)
    template = Environment(autoescape=True, undefined=StrictUndefined, finalize=_printing).from_string(
        (own / f"{name}.html").read_text(encoding="utf-8")
    )
    return template.render(style=style, script="\n".join(scripts), **values)


def _uplot() -> str:
    """Return the script of uPlot under its licence.

    The licence replaces a comment with an address: a page names no network.
    """
    folder = files("nac_drive.analysis") / "web"
    _, code = (folder / "uPlot.iife.min.js").read_text(encoding="utf-8").split("*/", 1)
    licence = (folder / "uPlot.LICENSE.txt").read_text(encoding="utf-8")
    return f"/* uPlot 1.6.32\n\n{licence}*/{code}"


def _printing(value: Any) -> Any:
    """Return a plain text without characters that do not print. The page's own HTML stays as it is."""
    return shown(value, keep="\n") if type(value) is str else value


def _packed(recording: Recording) -> dict[str, Any]:
    road = recording.road if len(recording.road) and len(recording.position) else recording.position
    neurons = recording.activity | recording.signals
    return {
        "title": shown(recording.title),
        "size": recording.frames.shape[1:3],
        "frames": _tiles(recording.frames),
        "other": None
        if recording.other_frames is None
        else {
            "view": recording.other_view,
            "size": recording.other_frames.shape[1:3],
            "frames": _tiles(recording.other_frames),
        },
        "saliency": {name: _tiles(maps) for name, maps in recording.saliency.items()},
        "road": _array(road.astype(np.float32)) if len(road) else None,
        "position": _array(recording.position.astype(np.float32)) if len(recording.position) else None,
        "actions": recording.actions,
        "series": {name: _array(values.astype(np.float32)) for name, values in recording.series.items()},
        "neurons": {name: _array(values.astype(np.float32)) for name, values in neurons.items()},
        "attention": None
        if recording.attention is None
        else _array(np.rint(255 * recording.attention).astype(np.uint8)),
    }


def _array(values: np.ndarray) -> dict[str, Any]:
    data = base64.b64encode(np.ascontiguousarray(values).tobytes()).decode()
    return {"type": str(values.dtype), "shape": list(values.shape), "data": data}


def _tiles(images: np.ndarray) -> list[str]:
    """Return images as tiles of larger ones, line by line.

    Args:
        images: (T, H, W) or (T, H, W, 3).

    Returns:
        Data URIs of the larger images. Each but the last one holds as many tiles as fit.
    """
    height, width = images.shape[1:3]
    rows, columns = max(1, _SIDE // height), max(1, _SIDE // width)
    return [_tiled(images[first : first + rows * columns], columns) for first in range(0, len(images), rows * columns)]


def _tiled(images: np.ndarray, columns: int) -> str:
    missing = -len(images) % columns
    images = np.concatenate((images, np.zeros((missing, *images.shape[1:]), images.dtype)))
    lines = images.reshape(-1, columns, *images.shape[1:]).swapaxes(1, 2)  # (R, H, C, W, ...)
    image = lines.reshape(lines.shape[0] * lines.shape[1], -1, *images.shape[3:])
    buffer = BytesIO()
    Image.fromarray(image).save(buffer, "WEBP", quality=_QUALITY)
    return f"data:image/webp;base64,{base64.b64encode(buffer.getvalue()).decode()}"
