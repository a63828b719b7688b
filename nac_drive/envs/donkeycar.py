"""The donkeycar, a small car with a camera: its frames.

Its recordings are tubs, see `nac_drive.data_collection.interchange.tub`.
"""

from __future__ import annotations

import cv2
import numpy as np

from nac_drive.envs.image_file import image_size, unpack_image
from nac_drive.envs.spec import ENVIRONMENTS, EnvSpec

DONKEYCAR = "donkeycar"
SHAPE = (120, 160, 3)
"""Frames of a driver: the size that donkeycar's own settings have."""
LARGEST_SIDE = 4096
"""Pixels of the longest side of an image."""


def donkeycar_frame(content: bytes, shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    """Decode an image of a tub. One of another size is scaled.

    Args:
        content: A PNG or JPEG file, grey or in colours.
        shape: Shape of the frame.

    Returns:
        (120, 160, 3) uint8, RGB, or `shape`.

    Raises:
        ValueError: For anything else, and for an image that is damaged or cut off.
    """
    size = image_size(content)
    if size is None:
        raise ValueError("it is no JPEG or PNG image; record it again.")
    if max(size) > LARGEST_SIDE or min(size) < 1:
        raise ValueError(
            f"the image is {size[1]} x {size[0]} pixels, expected 1 to {LARGEST_SIDE:,} a side; shrink it."
        )
    image = unpack_image(content, size)
    if image.shape == shape:
        return image
    return cv2.resize(image, shape[1::-1], interpolation=cv2.INTER_AREA)


ENVIRONMENTS.ship(
    DONKEYCAR,
    EnvSpec(
    None, SHAPE, frames_per_second=20, controls=("continuous",), bar_top=None, flipped_bar_columns=None,
    ),
)  # fmt: skip
