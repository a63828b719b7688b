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


def bar_rows(size: Size) -> int:
    """Return the rows of the speed bar in the seat view."""
    return size[1] // 8


def other_frame(simulator: Any, size: Size = ABOVE) -> tuple[View, np.ndarray] | None:
    """Return the present frame in the other view.

    It is the view that the driver does not see.

    Args:
        simulator: `env.unwrapped`.
        size: Width and height of a frame from the seat.

    Returns:
        The name of the view and the frame. None where the simulator has one view alone.
    """
    view = getattr(simulator, "view", None)
    if view not in get_args(View):
        return None
    other: View = "seat" if view == "above" else "above"
    try:
        return other, simulator.frame_from(other, size if other == "seat" else ABOVE)
    except NotImplementedError:  # gymnasium's own simulator
        return None


def require_view(view: str, size: Size) -> None:
    """Check a view and its size.

    Raises:
        ValueError: For an unknown view, or a size that it does not have.
    """
    if view not in get_args(View):
        raise ValueError(f"view must be one of {get_args(View)}, got {view!r}.")
    two = isinstance(size, tuple | list) and len(size) == 2
    if not two or not all(isinstance(side, int | np.integer) and SMALLEST <= side <= LARGEST for side in size):
        raise ValueError(
            f"size must be a width and a height of {SMALLEST} to {LARGEST} pixels, got {size!r}; such as {ABOVE}."
        )
    if view == "above" and tuple(size) != ABOVE:
        raise ValueError(f"size must be {ABOVE} in the view from above, got {tuple(size)}; view='seat' has any size.")
