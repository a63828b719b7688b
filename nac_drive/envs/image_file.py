"""Image files of unknown origin, JPEG or PNG.

Their size is read before a pixel is unpacked, and the work is bounded.
"""

from __future__ import annotations

import struct
import zlib

import cv2
import numpy as np

_PNG, _JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8"
"""The first bytes of the two formats."""
_HEADER = b"\0\0\0\rIHDR"
"""Length and kind of the first chunk of a PNG."""
_PIXEL_CHUNKS = (b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND")
_PNG_PIXEL_BYTES, _PNG_ROW_BYTES = 8, 7
"""Unpacked bytes at most: four channels of 16 bits for a pixel, a byte for each row of seven interlaced passes."""
_SEGMENTS = frozenset((0xC4, 0xDB, 0xDD, 0xFE, *range(0xE0, 0xF0)))
"""Markers that may precede the size in a JPEG: tables, restarts, comments and application data. All have a length."""
_START_OF_FRAME = (0xC0, 0xC1, 0xC2)
"""Markers of the JPEG segments that hold the size: baseline, extended and progressive."""
_END = b"\xff\xd9"
"""Marker at the end of a JPEG."""
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


def unpack_image(content: bytes, size: tuple[int, int]) -> np.ndarray:
    """Decode an image of a known size.

    A PNG is reduced to its pixels, which may not unpack to more than an image has, and a JPEG has at most 100 scans.
    Pixels stay where they are stored, whatever orientation a camera noted.

    Args:
        content: A PNG or JPEG file.
        size: (height, width) by its header, see `image_size`.

    Returns:
        (height, width, 3) uint8, RGB.

    Raises:
        ValueError: If it is damaged, cut off, or of another size.
    """
    if content.startswith(_PNG):
        content = _pixels_only(content, size)
    elif content.count(_SCAN) > _MOST_SCANS:
        raise ValueError(f"the image has more than {_MOST_SCANS} scans; record it again.")
    elif _END not in content[content.rfind(_SCAN) :]:  # OpenCV would fill the rest with grey
        raise ValueError("the image is damaged: it is cut off; record it again.")
    image = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
    if image is None or image.shape != (*size, 3):
        raise ValueError("the image is damaged; record it again.")
    return cv2.cvtColor(image, cv2.COLOR_BGR2RGB)


def _pixels_only(content: bytes, size: tuple[int, int]) -> bytes:
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
    most = size[0] * (size[1] * _PNG_PIXEL_BYTES + _PNG_ROW_BYTES) + 1000
    unpacking = zlib.decompressobj()
    try:
        unpacking.decompress(b"".join(packed), most)
    except zlib.error:
        raise ValueError("the image is damaged; record it again.") from None
    if not unpacking.eof:
        raise ValueError("the image is damaged, or has more pixels than its header says; record it again.")
    return b"".join(chunks)
