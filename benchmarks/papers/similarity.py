"""Structural similarity of two images, such as the saliency maps of a clean and a perturbed frame."""

from __future__ import annotations

from functools import partial

import numpy as np

SIGMA = 1.5
"""Standard deviation of the window, in pixels."""
RADIUS = 5
"""Its radius: 11 x 11 pixels."""


def ssim(x: np.ndarray, y: np.ndarray, data_range: float = 1.0) -> float:
    """Mean structural similarity (thesis, Eq. 6.5 and 6.6; Wang et al., IEEE Trans. Image Processing 13(4), 2004).

    All exponents are 1 and C3 = C2 / 2, C1 = (0.01 L)^2, C2 = (0.03 L)^2, so that luminance, contrast and structure
    multiply to one fraction. Means and variances are taken in a Gaussian window. Pixels whose window leaves the image
    do not count.

    Args:
        x: (H, W), at least 11 x 11.
        y: (H, W).
        data_range: L, the difference of the largest and the smallest value that there can be.

    Returns:
        1 for equal images, less otherwise.

    Raises:
        ValueError: The images differ in shape or are smaller than the window.
    """
    if x.shape != y.shape or min(x.shape) <= 2 * RADIUS or x.ndim != 2:
        raise ValueError(f"x and y must be images of one size, at least 11 x 11, got {x.shape} and {y.shape}.")
    from scipy.ndimage import gaussian_filter  # slow to import

    x, y = x.astype(np.float64), y.astype(np.float64)
    mean = partial(gaussian_filter, sigma=SIGMA, radius=RADIUS)
    mean_x, mean_y = mean(x), mean(y)
    variance_x, variance_y = mean(x * x) - mean_x**2, mean(y * y) - mean_y**2
    covariance = mean(x * y) - mean_x * mean_y
    c1, c2 = (0.01 * data_range) ** 2, (0.03 * data_range) ** 2
    luminance = (2 * mean_x * mean_y + c1) / (mean_x**2 + mean_y**2 + c1)
    contrast_and_structure = (2 * covariance + c2) / (variance_x + variance_y + c2)
    inside = slice(RADIUS, -RADIUS)
    return float((luminance * contrast_and_structure)[inside, inside].mean())
