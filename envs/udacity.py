"""The Udacity self-driving-car simulator: a program of its own, which records logs and asks a server to steer."""

from __future__ import annotations

import struct

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


_PNG, _JPEG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", b"\xff\xd8\xff"
"""The first bytes of the two formats."""
_START_OF_FRAME = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Markers of the JPEG segments that hold the size."""


def image_size(content: bytes) -> tuple[int, int] | None:
    """Read height and width of an image from its header.

    Args:
        content: A PNG or JPEG file.

    Returns:
        (height, width), in pixels; None for anything else. Nothing is unpacked.
    """
    if content.startswith(_PNG) and len(content) >= 24:
        width, height = struct.unpack_from(">II", content, 16)
        return height, width
    position = 2
    while content.startswith(_JPEG) and position + 9 <= len(content) and content[position] == 0xFF:
        marker, length = content[position + 1], int.from_bytes(content[position + 2 : position + 4], "big")
        if marker in _START_OF_FRAME:
            return struct.unpack_from(">HH", content, position + 5)
        position += 1 if marker == 0xFF else 2 + length  # a marker may be padded with 0xFF
    return None


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
    image = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR)
    if image is None:
        raise ValueError("the image is damaged; record it again.")
    return cv2.cvtColor(image, cv2.COLOR_BGR2RGB)


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
