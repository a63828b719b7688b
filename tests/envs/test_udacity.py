"""Images of the Udacity simulator: their size is known before a pixel is unpacked."""

from __future__ import annotations

import struct
import zlib

import cv2
import numpy as np
import pytest

from nac_drive.envs import decode_image, image_size

FORMATS: dict[str, list[int]] = {
    ".png": [],
    ".jpg": [],
    ".jpeg": [cv2.IMWRITE_JPEG_PROGRESSIVE, 1, cv2.IMWRITE_JPEG_RST_INTERVAL, 3],
}


def encoded(image: np.ndarray, suffix: str = ".png") -> bytes:
    return cv2.imencode(suffix, image[..., ::-1], FORMATS[suffix])[1].tobytes()


def huge_png(side: int = 30_000) -> bytes:
    """A bilevel PNG of `side` pixels a side in some kilobytes."""
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)),
        (b"IDAT", zlib.compress(bytes((side // 8 + 1) * side), 9)),
        (b"IEND", b""),
    ]
    packed = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


@pytest.mark.parametrize("suffix", FORMATS)
def test_the_size_of_an_image_is_read_from_its_header(suffix):
    rng = np.random.default_rng(0)
    for size in ((1, 1), (160, 320), (320, 160), (7, 300)):
        content = encoded(rng.integers(256, size=(*size, 3), dtype=np.uint8), suffix)
        assert image_size(content) == size
        for cut in range(min(len(content), 40)):
            assert image_size(content[:cut]) in (None, size)
    assert image_size(b"\xff\xd8\xff" + b"\xff" * 1000) is None
    assert image_size(b"\xff\xd8" + bytes([0xFF, 0xE1, 0, 0]) * 1000) is None


def test_an_image_is_decoded_if_it_is_one_of_the_simulator():
    image = np.random.default_rng(0).integers(256, size=(160, 320, 3), dtype=np.uint8)
    np.testing.assert_array_equal(decode_image(encoded(image)), image)
    assert decode_image(encoded(image, ".jpg")).shape == (160, 320, 3)
    with pytest.raises(ValueError, match="the image is damaged"):
        decode_image(encoded(image)[:60])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (huge_png(), "30000 x 30000 pixels, expected 320 x 160; record at 320 x 160"),
        (encoded(np.zeros((320, 160, 3), np.uint8)), "160 x 320 pixels, expected 320 x 160"),
        (b"", "no JPEG or PNG"),
        (b"BM" + bytes(100), "no JPEG or PNG"),
        (b"GIF89a" + bytes(100), "no JPEG or PNG"),
    ],
)
def test_no_pixel_of_another_image_is_unpacked(content, message, monkeypatch):
    monkeypatch.setattr(cv2, "imdecode", lambda *arguments: pytest.fail("unpacked"))
    with pytest.raises(ValueError, match=message):
        decode_image(content)
