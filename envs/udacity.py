"""The Udacity self-driving-car simulator: a program of its own, which records logs and asks a server to steer."""

from __future__ import annotations

import cv2
import numpy as np

from nac_drive.envs.spec import ENVIRONMENTS, EnvSpec

UDACITY = "udacity"
CAMERA_SHAPE = (160, 320, 3)
"""Images of the simulator's cameras."""
SHAPE = (66, 120, 3)
"""Frames of a driver (NAC paper, D.3.3)."""
_SKY, _BONNET = 60, 25
"""Rows at the top and at the bottom that show no road."""


def udacity_frame(image: np.ndarray) -> np.ndarray:
    """Crop an image of a camera to the road and shrink it.

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


ENVIRONMENTS[UDACITY] = EnvSpec(
    None, SHAPE, frames_per_second=10, bar_top=None, flipped_bar_columns=None,
)  # fmt: skip
