"""Views of CarRacing's world: from above and from the seat."""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np

View = Literal["above", "seat"]
VideoView = Literal["above", "seat", "both"]
"""What a video shows."""
Size = tuple[int, int]
"""Width and height of a frame in pixels."""

FRAME_SHAPE = (96, 96, 3)
"""Height, width and channels of gymnasium's frames."""
ABOVE: Size = (96, 96)
"""The size of gymnasium's frames; the view from above has no other."""
SMALLEST, LARGEST = 32, 1024
"""Sides of a frame from the seat."""
_VIDEO: Size = (600, 400)
"""The size of gymnasium's images, and of videos from the seat."""


def bar_rows(size: Size) -> int:
    """Return the rows of the speed bar in the seat view."""
    return size[1] // 8


def require_view(view: str, size: Size) -> None:
    """Check a view and its size.

    Raises:
        ValueError: For an unknown view, or a size that it does not have.
    """
    if view not in get_args(View):
        raise ValueError(f"view must be one of {get_args(View)}, got {view!r}.")
    if view == "above" and tuple(size) != ABOVE:
        raise ValueError(f"size must be {ABOVE} in the view from above, got {tuple(size)}; view='seat' has any size.")
    if len(size) != 2 or not all(SMALLEST <= side <= LARGEST for side in size):
        raise ValueError(f"size must be a width and a height of {SMALLEST} to {LARGEST} pixels, got {tuple(size)}.")


def seat_facts(size: Size) -> dict[str, Any]:
    """Return the fields of `EnvSpec` that the seat view changes."""
    width, height = size
    return {
        "frame_shape": (height, width, 3),
        "bar_top": height - bar_rows(size),
        "flipped_bar_columns": tuple(range(width)),  # the speed alone: the same in a mirror
        "regions": None,
        "video_image": _seat_image,
    }


def _seat_image(simulator: Any) -> np.ndarray:
    return simulator.frame_from("seat", _VIDEO)
