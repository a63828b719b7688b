"""The fraction of saliency in each region of a frame."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def fractions(saliency: np.ndarray, labels: np.ndarray, names: Sequence[str]) -> dict[str, float]:
    """Return the fraction of a saliency map in each region.

    Args:
        saliency: (H, W), nowhere negative.
        labels: (H, W) indices of `names`.
        names: Names of the regions, see `EnvSpec.region_names`.

    Returns:
        Name of a region -> fraction; they sum to 1, or are all 0 for a map of zeros.
    """
    sums = np.bincount(labels.ravel(), weights=saliency.ravel().astype(np.float64), minlength=len(names))
    total = sums.sum()
    return dict(zip(names, (sums / total if total > 0 else sums).tolist(), strict=True))
