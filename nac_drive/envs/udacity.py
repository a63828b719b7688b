"""The Udacity self-driving-car simulator: its frames and its logs.

It is a program that records logs and asks a server to steer.
"""

from __future__ import annotations

import struct
import zlib

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


_PNG, _JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8"
"""The first bytes of the two formats."""
_HEADER = b"\0\0\0\rIHDR"
"""Length and kind of the first chunk of a PNG."""
_PIXEL_CHUNKS = (b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND")
_MOST_PNG_BYTES = CAMERA_SHAPE[0] * CAMERA_SHAPE[1] * 8 + 1000
"""Unpacked pixels: four channels of 16 bits, and a byte for each row of seven interlaced passes."""
_SEGMENTS = frozenset((0xC4, 0xDB, 0xDD, 0xFE, *range(0xE0, 0xF0)))
"""Markers that may precede the size in a JPEG: tables, restarts, comments and application data. All have a length."""
_START_OF_FRAME = (0xC0, 0xC1, 0xC2)
"""Markers of the JPEG segments that hold the size: baseline, extended and progressive."""
_SCAN, _MOST_SCANS = b"\xff\xda", 100
"""Marker of a scan. Every scan passes over the whole image; a progressive encoder writes about ten."""


def image_size(content: bytes) -> tuple[int, int] | None:
    """Read height and width of an image from its header.

    Args:
        content: A PNG or JPEG file.

    Returns:
        (height, width), in pixels; None for anything else. Nothing is unpacked.
    """
    if content.startswith(_PNG + _HEADER) and len(content) >= 24:
        width, height = struct.unpack_from(">II", content, 16)
        return height, width
    position = 2
    while content.startswith(_JPEG) and position + 9 <= len(content) and content[position] == 0xFF:
        marker, length = content[position + 1], int.from_bytes(content[position + 2 : position + 4], "big")
        if marker in _START_OF_FRAME:
            return struct.unpack_from(">HH", content, position + 5)
        if marker == 0xFF:  # a marker may be padded with 0xFF
            position += 1
        elif marker in _SEGMENTS and length >= 2:
            position += 2 + length
        else:  # a decoder would take a marker without a length for something else
            return None
    return None


def decode_image(content: bytes) -> np.ndarray:
    """Decode an image of the simulator. Its size is read from the header first.

    The work is bounded too: a PNG is reduced to its pixels, which may not unpack to more than an image has, and a JPEG
    has at most 100 scans.

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
    if content.startswith(_PNG):
        content = _pixels_only(content)
    elif content.count(_SCAN) > _MOST_SCANS:
        raise ValueError(f"the image has more than {_MOST_SCANS} scans; record it again.")
    image = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR)
    if image is None or image.shape != CAMERA_SHAPE:
        raise ValueError("the image is damaged; record it again.")
    return cv2.cvtColor(image, cv2.COLOR_BGR2RGB)


def _pixels_only(content: bytes) -> bytes:
    """Return a PNG without its texts, profiles and animations.

    They may unpack to any size.
    """
    chunks, packed, position = [_PNG], [], len(_PNG)
    while position + 12 <= len(content):
        end = position + 12 + int.from_bytes(content[position : position + 4], "big")
        kind = content[position + 4 : position + 8]
        if kind in _PIXEL_CHUNKS:
            chunks.append(content[position:end])
        if kind == b"IDAT":
            packed.append(content[position + 8 : end - 4])
        position = end
    unpacking = zlib.decompressobj()
    try:
        unpacking.decompress(b"".join(packed), _MOST_PNG_BYTES)
    except zlib.error:
        raise ValueError("the image is damaged; record it again.") from None
    if not unpacking.eof:
        raise ValueError("the image is damaged, or has more pixels than its header says; record it again.")
    return b"".join(chunks)


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
