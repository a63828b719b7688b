"""Images of the Udacity simulator: their size is known before a pixel is unpacked."""

from __future__ import annotations

import struct
import zlib
from functools import cache, partial

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


def png(*chunks: tuple[bytes, bytes]) -> bytes:
    packed = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


@cache
def huge_png(side: int) -> bytes:
    """A bilevel PNG of `side` pixels a side in some kilobytes."""
    pixels = zlib.compress(bytes((side // 8 + 1) * side), 9)
    return png((b"IHDR", struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)), (b"IDAT", pixels), (b"IEND", b""))


HEADER = (b"IHDR", struct.pack(">IIBBBBB", 320, 160, 8, 2, 0, 0, 0))
PIXELS = (b"IDAT", zlib.compress(bytes((3 * 320 + 1) * 160), 9))
TEXT = zlib.compress(b"a" * 7_900_000, 9)


def two_sizes(marker: int) -> bytes:
    """A JPEG of 2000 x 2000 pixels, which is one of 320 x 160 if `marker` has a length."""
    content = encoded(np.zeros((2000, 2000, 3), np.uint8), ".jpg")
    start = content.index(b"\xff\xc0")
    size = content[start : start + 2 + int.from_bytes(content[start + 2 : start + 4], "big")]
    begin = b"\xff\xd8\xff" + bytes([marker]) + size
    other = b"\xff\xc0" + struct.pack(">HBHHB", 17, 8, 160, 320, 3) + bytes(9)
    gap = 4 + 0xFFC0 - len(begin) - 4  # 0xFFC0 is the length that would be read
    comment = b"\xff\xfe" + struct.pack(">H", 2 + gap + len(other)) + bytes(gap) + other
    return begin + comment + content[2:start] + content[start + len(size) :]


def many_scans(count: int) -> bytes:
    content = cv2.imencode(".jpg", np.zeros((160, 320), np.uint8), [cv2.IMWRITE_JPEG_PROGRESSIVE, 1])[1].tobytes()
    return content[:-2] + content[content.rindex(b"\xff\xda") : -2] * count + content[-2:]


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
        (partial(huge_png, 30_000), "30000 x 30000 pixels, expected 320 x 160; record at 320 x 160"),
        (partial(huge_png, 8_000), "8000 x 8000 pixels, expected 320 x 160"),
        (partial(two_sizes, 0x01), "no JPEG or PNG"),
        (partial(two_sizes, 0x00), "no JPEG or PNG"),
        (partial(two_sizes, 0xD0), "no JPEG or PNG"),
        (many_scans(20_000), "more than 100 scans"),
        (png(HEADER, (b"IDAT", zlib.compress(bytes(5_000_000))), (b"IEND", b"")), "more pixels than its header says"),
        (png(HEADER, (b"IDAT", b"no pixels"), (b"IEND", b"")), "damaged"),
        (encoded(np.zeros((320, 160, 3), np.uint8)), "160 x 320 pixels, expected 320 x 160"),
        (b"", "no JPEG or PNG"),
        (b"BM" + bytes(100), "no JPEG or PNG"),
        (b"GIF89a" + bytes(100), "no JPEG or PNG"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_no_pixel_of_another_image_is_unpacked(content, message, monkeypatch):
    monkeypatch.setattr(cv2, "imdecode", lambda *arguments: pytest.fail("unpacked"))
    with pytest.raises(ValueError, match=message):
        decode_image(content if isinstance(content, bytes) else content())


def test_nothing_but_the_pixels_of_a_png_is_unpacked(monkeypatch):
    plain = png(HEADER, PIXELS, (b"IEND", b""))
    texts = [(b"zTXt", b"name\0\0" + TEXT), (b"iTXt", b"name\0\1\0\0\0" + TEXT), (b"iCCP", b"name\0\0" + TEXT)]
    seen: list[bytes] = []
    decode = cv2.imdecode
    monkeypatch.setattr(cv2, "imdecode", lambda data, flags: seen.append(data.tobytes()) or decode(data, flags))
    image = decode_image(png(HEADER, *texts, (b"acTL", struct.pack(">II", 2, 0)), PIXELS, *texts, (b"IEND", b"")))
    assert not image.any()
    assert seen == [plain]


@pytest.mark.parametrize("depth", [8, 16])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_every_kind_of_png_is_decoded(depth, channels):
    pixels = np.random.default_rng(0).integers(256, size=(160, 320, channels), dtype=np.uint8)
    content = cv2.imencode(".png", pixels.astype(np.uint16) * 257 if depth == 16 else pixels)[1].tobytes()
    expected = np.broadcast_to(pixels, (160, 320, 3)) if channels == 1 else pixels[..., 2::-1]
    np.testing.assert_array_equal(decode_image(content), expected)
