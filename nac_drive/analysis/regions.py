"""The fraction of saliency in each region of a frame."""

from __future__ import annotations

import numpy as np

from nac_drive.envs.regions import REGIONS


def fractions(saliency: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Return the fraction of a saliency map in each region.

    Args:
        saliency: (H, W), nowhere negative.
        labels: (H, W) indices of `REGIONS`.

    Returns:
        Name of a region -> fraction; they sum to 1, or are all 0 for a map of zeros.
    """
    sums = np.bincount(labels.ravel(), weights=saliency.ravel().astype(np.float64), minlength=len(REGIONS))
    total = sums.sum()
    return dict(zip(REGIONS, (sums / total if total > 0 else sums).tolist(), strict=True))
