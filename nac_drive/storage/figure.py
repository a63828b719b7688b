"""Figures as files, drawn so that none costs a result.

Text is drawn as it is.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

from nac_drive.storage.names import shown
from nac_drive.storage.read import one_line
from nac_drive.storage.style import styled
from nac_drive.storage.write import WriteError, write_atomically, writing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

P = ParamSpec("P")

DPI = 150
"""Dots per inch of every figure."""
_MANY = 1e5
"""Ratio of the ends of a logarithmic axis from which on decades alone are labelled."""


def write_figure(path: Path, figure: Figure, *, tight: bool = False) -> None:
    """Write a figure as a PNG of `DPI`. Names in it may hold any characters: none is read as math or TeX.

    Args:
        path: The file; an existing one is replaced.
        figure: The figure. Its layout must not be computed before, which would read its texts.
        tight: Compute its tight layout.

    Raises:
        WriteError: The file cannot be written.
    """
    from matplotlib import rc_context
    from matplotlib.text import Text

    buffer = BytesIO()
    plain_text: dict[Any, Any] = {"text.parse_math": False, "text.usetex": False}
    with styled(), rc_context(plain_text), warnings.catch_warnings():  # some ticks are made while a figure is drawn
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        for text in figure.findobj(Text):
            assert isinstance(text, Text)
            text.set_parse_math(False)
            text.set_usetex(False)
        _write_powers_in_full(figure)
        if tight:
            figure.tight_layout()
        figure.savefig(buffer, format="png", dpi=DPI)
    with writing(path):
        write_atomically(path, buffer.getvalue())


def _write_powers_in_full(figure: Figure) -> None:
    """Label logarithmic axes in plain numbers.

    They stand at 1, 2 and 5 of each decade, or at decades where there are many. matplotlib writes powers as math.
    """
    from matplotlib.ticker import LogFormatterMathtext, LogLocator, NullLocator

    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            if isinstance(axis.get_major_formatter(), LogFormatterMathtext):
                low, high = axis.get_view_interval()
                if high / low < _MANY:
                    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
                axis.set_minor_locator(NullLocator())
                axis.set_major_formatter("{x:g}")


def try_to_draw(draw: Callable[Concatenate[Path, P], None], path: Path, *args: P.args, **keywords: P.kwargs) -> bool:
    """Draw a figure of results that are on disk already.

    Args:
        draw: Draws the file.
        path: The file. One of before is removed if the figure cannot be drawn.
        *args: Arguments of `draw` after the path.
        **keywords: Its keywords.

    Returns:
        Whether it was drawn.

    Raises:
        WriteError: The file cannot be written.

    Warns:
        UserWarning: If it cannot be drawn.
    """
    try:
        draw(path, *args, **keywords)
    except (WriteError, FileExistsError):
        raise
    except Exception as error:  # of matplotlib and what it stands on, which have no common base
        with writing(path):
            path.unlink(missing_ok=True)
        warnings.warn(f"{shown(path)} could not be drawn: {one_line(error)}; the results are kept.", stacklevel=2)
        return False
    return True
