"""The GIF of the README, from a video of the champion.

    python benchmarks/figures/readme_gif.py episode.mp4 docs/champion.gif

Half the size, every third frame, some seconds of the episode at true speed; at most 3 MB.
"""

from __future__ import annotations

import sys
from pathlib import Path

import cv2
import imageio.v3 as iio
from PIL import Image

FROM, SECONDS, EVERY, COLOURS = 1, 15, 3, 48
MOST_BYTES = 3_000_000


def main(video: Path, gif: Path) -> None:
    rate = iio.immeta(video, plugin="pyav")["fps"]
    images = []
    for i, frame in enumerate(iio.imiter(video, plugin="pyav")):
        if FROM * rate <= i < (FROM + SECONDS) * rate and i % EVERY == 0:
            half = cv2.resize(frame, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA)
            images.append(Image.fromarray(half))
    palette = images[len(images) // 2].quantize(COLOURS, Image.Quantize.MAXCOVERAGE)  # the car is small and red
    first, *others = [image.quantize(palette=palette, dither=Image.Dither.NONE) for image in images]
    first.save(gif, save_all=True, append_images=others, duration=1000 * EVERY / rate, loop=0, optimize=True)
    size = gif.stat().st_size
    print(f"{gif}: {len(images)} images, {size / 1e6:.2f} MB")
    if size > MOST_BYTES:
        sys.exit(f"more than {MOST_BYTES / 1e6:.0f} MB; take fewer seconds, images or colours.")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
