"""Structural similarity, beside scikit-image."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from similarity import ssim
from skimage.metrics import structural_similarity

RNG = np.random.default_rng(0)
CLEAN = RNG.random((40, 37))


@pytest.mark.parametrize("data_range", [1.0, 255.0])
@pytest.mark.parametrize("other", [CLEAN**2, 1 - CLEAN, RNG.random((40, 37)), np.zeros((40, 37)), CLEAN + 0.1])
def test_the_same_as_scikit_image(other, data_range):
    x, y = CLEAN * data_range, other * data_range
    expected: Any = structural_similarity(
        x, y, data_range=data_range, gaussian_weights=True, sigma=1.5, use_sample_covariance=False
    )
    assert ssim(x, y, data_range) == pytest.approx(float(expected), abs=1e-12)


def test_equal_images_are_equal():
    assert ssim(CLEAN, CLEAN) == 1.0
    assert ssim(np.zeros((11, 11)), np.zeros((11, 11))) == 1.0


def test_images_of_other_sizes_are_refused():
    for x, y in ((CLEAN, CLEAN[1:]), (CLEAN[:10], CLEAN[:10])):
        with pytest.raises(ValueError, match="images of one size, at least 11 x 11"):
            ssim(x, y)
