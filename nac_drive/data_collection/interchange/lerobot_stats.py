"""Statistics of features as LeRobot defines them.

Episodes come one after the other.

Statistics of images are per channel, (3, 1, 1), of values from 0 to 1. Statistics of other features are per element,
(d,).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Stats = dict[str, NDArray[Any]]
"""min, max, mean, std and count; count is (1,), the number of frames."""


def vector_stats(values: NDArray[Any]) -> Stats:
    """Return the statistics of a feature.

    Args:
        values: (N,) or (N, d).
    """
    values = values.reshape(len(values), -1).astype(np.float64)  # (N, d)
    return {
        "min": values.min(axis=0),
        "max": values.max(axis=0),
        "mean": values.mean(axis=0),
        "std": values.std(axis=0),
        "count": np.array([len(values)]),
    }


def image_stats(frames: NDArray[np.uint8]) -> Stats:
    """Return the statistics of all pixels, without a copy of them.

    Args:
        frames: (N, H, W, C).
    """
    levels = np.arange(256) / 255
    per_channel = []
    for channel in range(frames.shape[-1]):
        counts = np.bincount(frames[..., channel].ravel(), minlength=256)
        seen = levels[counts > 0]
        mean = counts @ levels / counts.sum()
        variance = counts @ (levels - mean) ** 2 / counts.sum()
        per_channel.append([seen[0], seen[-1], mean, np.sqrt(variance)])
    low, high, mean, std = np.array(per_channel).T.reshape(4, -1, 1, 1)
    return {"min": low, "max": high, "mean": mean, "std": std, "count": np.array([len(frames)])}


def merged(one: Stats, other: Stats) -> Stats:
    """Return the statistics of two sets of frames together.

    The variance is the mean of the variances plus the variance of the means, each weighted with the number of frames.
    """
    count = one["count"] + other["count"]
    fraction, rest = one["count"] / count, other["count"] / count
    mean = fraction * one["mean"] + rest * other["mean"]
    variance = sum(
        weight * (part["std"] ** 2 + (part["mean"] - mean) ** 2) for weight, part in ((fraction, one), (rest, other))
    )
    return {
        "min": np.minimum(one["min"], other["min"]),
        "max": np.maximum(one["max"], other["max"]),
        "mean": mean,
        "std": np.sqrt(variance),
        "count": count,
    }
