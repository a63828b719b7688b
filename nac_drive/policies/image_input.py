"""The form in which a foreign model wants its frames.

It is the last k of them, channels first or last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nac_drive.storage.names import shown


class UnfitError(ValueError):
    """A model and an environment do not fit. The message is one line."""


MOST_FRAMES = 64
"""Frames of the largest stack."""
OWN_FUNCTION = "write a function drive(observation) in mine.py that prepares them, and pass mine.py:drive"
"""The advice for every form that cannot be recognised."""


@dataclass(frozen=True)
class ImageInput:
    """The frames that a model takes, without the batch axis."""

    frame_shape: tuple[int, int, int]
    """Height, width and 3 of one frame."""
    frames: int = 1
    """Number of frames that are stacked along the channels, the oldest first."""
    channels_first: bool = False
    dtype: str = "uint8"
    largest: float = 255
    """Value of white: 255, or 1 for a model that takes frames divided by 255."""

    @classmethod
    def of(cls, shape: Sequence[int], source: str, dtype: str = "uint8", largest: float = 255) -> ImageInput:
        """Recognise the form by the shape of the model's input.

        Args:
            shape: (H, W, 3 k) or (3 k, H, W). The channels are the axis that is shorter than the others.
            source: Name of the model, for the error.
            dtype: Type of the input.
            largest: Value of white.

        Raises:
            UnfitError: It is no stack of colour frames.
        """
        shape = tuple(shape)
        if len(shape) == 3 and min(shape) > 0 and (shape[0] < min(shape[1:]) or shape[2] < min(shape[:2])):
            first = shape[0] < shape[2]
            channels, height, width = shape if first else (shape[2], *shape[:2])
            if channels % 3 == 0 and channels <= 3 * MOST_FRAMES:
                return cls((height, width, 3), channels // 3, first, dtype, largest)
        raise UnfitError(
            f"driver {shown(source)!r}: its input must be colour frames, (3 k, H, W) or (H, W, 3 k) for the last k of "
            f"them, got {shape}; {OWN_FUNCTION}."
        )

    def require(self, frame_shape: Sequence[int], source: str) -> None:
        """Check that the frames of an environment fit.

        Raises:
            UnfitError: They have another size.
        """
        if tuple(frame_shape) != self.frame_shape:
            height, width, _ = self.frame_shape
            raise UnfitError(
                f"driver {shown(source)!r}: its frames must be {width} x {height} pixels, the environment's are "
                f"{frame_shape[1]} x {frame_shape[0]}; drive where it was trained, or {OWN_FUNCTION}."
            )

    def start(self) -> np.ndarray:
        """Return the stack before the first frame.

        It is black, as in VecFrameStack.
        """
        height, width, _ = self.frame_shape
        return np.zeros((height, width, 3 * self.frames), np.uint8)

    def push(self, stack: np.ndarray, frame: np.ndarray) -> np.ndarray:
        """Return the stack with a new frame (H, W, 3).

        It replaces the oldest.
        """
        return np.concatenate([stack[..., 3:], frame], axis=-1)

    def array(self, stack: np.ndarray) -> np.ndarray:
        """Return the model's input, of its shape and dtype."""
        array = np.ascontiguousarray(np.moveaxis(stack, -1, 0)) if self.channels_first else stack
        if self.dtype == "uint8":
            return array
        array = array.astype(self.dtype)
        return array if self.largest == 255 else array / array.dtype.type(255)
