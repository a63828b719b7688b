"""Draw the images of the score with pygame, and store them for the compiled simulator.

    python scripts/make_scores.py

It writes envs/native/scores.npz: the scores "-000", -1000, -999, ..., 1100, as gymnasium draws them.
"""

from pathlib import Path

import numpy as np

from nac_drive.envs.native.library import LOWEST_SCORE
from nac_drive.envs.score import score_image

HIGHEST_SCORE = 1100

if __name__ == "__main__":
    texts = ["-000", *(f"{score:04.0f}" for score in range(LOWEST_SCORE, HIGHEST_SCORE + 1))]
    images = np.stack([score_image(text) for text in texts])
    assert (images == images[..., :1]).all(), "the text is grey"
    folder = Path(__file__).parents[1] / "envs" / "native"
    np.savez_compressed(folder / "scores.npz", images=images[..., 0])
    print(f"{len(images)} images of {images.shape[1:]}, {(folder / 'scores.npz').stat().st_size / 1000:.0f} KB")
