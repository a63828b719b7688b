"""One style for all figures: colours, sizes and grid.

Colour-blind readers tell the colours apart.

The colours follow Okabe and Ito (2008), darkened where they were too pale for lines on white.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAC = "#D55E00"
"""The colour of Neuronal Attention Circuits in every figure; nothing else has it."""
BASELINE = "#222222"
"""The colour of the controller, which reads the track."""
NO_MEMORY = "#8A8A8A"
"""The colour of drivers without memory, the shipped experts among them."""
SOFT, GRID = "#9A9A9A", "#E6E6E6"
"""Colours of marks that are no data: reference lines and commanded values; and of the grid."""
PALETTE = ("#0072B2", "#009E73", "#CC79A7", "#E69F00", "#3FA0D8", "#7A5C1E")
"""The other colours, in the order in which names outside of every family take them."""
HEAT_MAP = "cividis"
"""The colour map of heat maps: from dark to bright, never red against green."""
SMALL, NORMAL, LARGE = 8.5, 10.0, 12.0
"""Sizes of text in points: numbers and legends, labels, titles."""

_FAMILIES: tuple[tuple[str, str, str], ...] = (
    ("NAC", NAC, r"nac([-_]|\b)|champion"),
    ("expert", BASELINE, r"controller|steady-controller|cautious-controller|human"),
    ("no memory", NO_MEMORY, r"cnn|expert|bojarski"),
    ("PDNA", "#CC79A7", r"pdna"),
    ("CircuitNet", "#7A5C1E", r"circuitnet"),
    ("state space", "#E69F00", r"s4|deepstate|lds"),
    (
        "attention", "#3FA0D8",
        r"attention|mha|transformer|relu-attention|linear-attention|performer|mtan|cta|odeformer|contiformer",
    ),
    ("continuous time", "#009E73", r"cfc|ltc|lrc|ncp|ct-rnn|ct-gru|gru-ode|ode-rnn|phased-lstm|mmrnn|tap-withdrawal"),
    ("recurrent", "#0072B2", r"lstm|gru|rnn|rin|tdnn|narx"),
)  # fmt: skip
"""Family, colour, pattern of the names: the first match counts."""
_LINES: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)))
_MARKERS = ("o", "s", "^", "D", "v", "P")
_TOP = 1000.0
"""Above every return of CarRacing, which pays 1000 for all tiles and takes 0.1 per frame."""
_RETURN_TICKS = (0, 400, 700, 800, 850, 900, 920, 940)

_SETTINGS: dict[str, Any] = {
    "font.size": NORMAL,
    "axes.titlesize": LARGE,
    "axes.titleweight": "bold",
    "axes.labelsize": NORMAL,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "legend.fontsize": SMALL,
    "legend.frameon": False,
    "figure.titlesize": LARGE,
    "figure.titleweight": "bold",
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#555555",
    "axes.linewidth": 0.8,
    "xtick.color": "#555555",
    "ytick.color": "#555555",
    "xtick.labelcolor": "black",
    "ytick.labelcolor": "black",
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
}


@dataclass(frozen=True)
class Look:
    """How the line of one name is drawn."""

    color: str
    linestyle: Any
    """A value that matplotlib takes."""
    marker: str


@contextmanager
def styled() -> Iterator[None]:
    """Draw in this style, as a context or as a decorator.

    The settings of the caller's matplotlib stay as they are.
    """
    from cycler import cycler  # a part of matplotlib
    from matplotlib import rc_context

    settings: dict[Any, Any] = {**_SETTINGS, "axes.prop_cycle": cycler(color=[NAC, *PALETTE])}
    with rc_context(settings):
        yield


def colour_of(name: str) -> str:
    """Return the colour of a driver or a core.

    Args:
        name: Its name, such as "nac-exact", "runs/lstm" or "champion". A core is found anywhere in it.

    Returns:
        The colour of its family: the same in every figure. A name of no family has the first colour of `PALETTE`.
    """
    return _family(name)[1] or PALETTE[0]


def family_of(name: str) -> str:
    """Return the family of a driver or a core.

    In words, such as "attention"; "" for a name of no family.
    """
    return _family(name)[0]


def looks_of(names: Iterable[str]) -> dict[str, Look]:
    """Return a look for every name, no two alike.

    Args:
        names: Names as `colour_of` takes them. Names of one family share its colour and differ in their lines, then in
            the depth of the colour.

    Returns:
        Name -> look, in the order of the names.
    """
    used: dict[str, int] = {}
    looks = {}
    for name in dict.fromkeys(names):
        color = _family(name)[1] or min(PALETTE, key=lambda colour: used.get(colour, 0))
        count = used[color] = used.get(color, 0) + 1
        depth, line = divmod(count - 1, len(_LINES))
        looks[name] = Look(_mixed(color, depth), _LINES[line], _MARKERS[(count - 1) % len(_MARKERS)])
    return looks


def ink_on(colour: Sequence[float]) -> str:
    """Return black or white, whichever reads better on a colour.

    Args:
        colour: Red, green, blue from 0 to 1; more values, such as the opacity, are ignored.
    """
    linear = np.array(colour[:3]) ** 2.2
    return "black" if linear @ (0.2126, 0.7152, 0.0722) > 0.18 else "white"


def stretch_returns(axis: Axes, low: float, high: float = 955.0) -> None:
    """Stretch the vertical axis towards the top, where good drivers differ.

    Equal distances are equal ratios of what is missing to 1000. From -100 to 955, half of the height is for returns
    above 780, where a linear axis would spend a sixth.

    Args:
        axis: The axis; its limits are set.
        low: The lowest return that is shown.
        high: The highest one.
    """
    axis.set_yscale("function", functions=(_stretched, _unstretched))
    axis.set_ylim(low, high)
    axis.set_yticks([tick for tick in _RETURN_TICKS if low <= tick <= high])
    axis.minorticks_off()


def _stretched(returns: Any) -> Any:
    return -np.log(np.maximum(_TOP - np.asarray(returns, float), 1.0))


def _unstretched(values: Any) -> Any:
    return _TOP - np.exp(-np.asarray(values, float))


def _family(name: str) -> tuple[str, str]:
    """Return a name's family and its colour.

    It is found at the start of a word. A name of no family has empty texts.
    """
    lower = name.lower()
    families = (family for *family, names in _FAMILIES if re.search(rf"(?<![a-z0-9])(?:{names})", lower))
    word, colour = next(families, ("", ""))
    return word, colour


def _mixed(colour: str, depth: int) -> str:
    """Return a colour that is darker or lighter the more often it was used."""
    from matplotlib.colors import to_hex, to_rgb

    if not depth:
        return colour
    amount = min(0.85, 0.3 * -(-depth // 2) + 0.01 * depth)
    red, green, blue = ((1 - amount) * value + amount * (depth % 2 == 0) for value in to_rgb(colour))
    return to_hex((red, green, blue))
