"""The Udacity self-driving-car simulator: its frames and its logs.

It is a program that records logs and asks a server to steer.
"""

from __future__ import annotations

import cv2
import numpy as np

from nac_drive.envs.image_file import image_size, unpack_image
from nac_drive.envs.spec import ENVIRONMENTS, EnvSpec

UDACITY = "udacity"
CAMERA_SHAPE = (160, 320, 3)
"""Images of the simulator's cameras."""
SHAPE = (66, 120, 3)
"""Frames of a driver (NAC paper, D.3.3)."""
_SKY, _BONNET = 60, 25
"""Rows at the top and at the bottom that show no road."""


def decode_image(content: bytes) -> np.ndarray:
    """Decode an image of the simulator. Its size is read from the header first.

    Args:
        content: A PNG or JPEG file.

    Returns:
        (160, 320, 3) uint8, RGB.

    Raises:
        ValueError: For anything else.
    """
    size = image_size(content)
    if size is None:
        raise ValueError("it is no JPEG or PNG image; record it again.")
    if size != CAMERA_SHAPE[:2]:
        raise ValueError(f"the image is {size[1]} x {size[0]} pixels, expected 320 x 160; record at 320 x 160.")
    return unpack_image(content, size)


def udacity_frame(image: np.ndarray) -> np.ndarray:
    """Crop a camera's image to the road and shrink it.

    Args:
        image: (160, 320, 3) uint8, RGB.

    Returns:
        (66, 120, 3) uint8.

    Raises:
        ValueError: For another shape or type.
    """
    if image.shape != CAMERA_SHAPE or image.dtype != np.uint8:
        raise ValueError(f"image must be uint8 {CAMERA_SHAPE}, got {image.dtype} {image.shape}; record at 320 x 160.")
    return cv2.resize(image[_SKY:-_BONNET], SHAPE[1::-1], interpolation=cv2.INTER_AREA)


ENVIRONMENTS.ship(
    UDACITY,
    EnvSpec(
    None, SHAPE, frames_per_second=10, bar_top=None, flipped_bar_columns=None,
    ),
)  # fmt: skip
