"""How a neuron contributes to a motor neuron: the angles of their common path (Hasani's thesis, Definition 6).

Two neurons draw a path in the plane of their potentials. The slope between two consecutive points is positive where
both rise or both fall, and negative where one rises and the other falls. The slopes' angles arctan(d motor / d neuron)
lie in [-pi/2, pi/2]; the definition compares how many are positive and how many are negative.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

Contribution = Literal["positive", "negative", "phases", "none"]
MARGIN = 1.5
"""The larger count is more than this times the smaller one: it exceeds it by more than half."""


def slope_angles(neuron: np.ndarray, motor: np.ndarray) -> np.ndarray:
    """Return the angles of the slopes between consecutive points (neuron, motor).

    Args:
        neuron: Potentials of a neuron, (T,).
        motor: Potentials of a motor neuron, (T,).

    Returns:
        Radians in (-pi/2, pi/2), at most (T - 1,). Steps in which one of the two rests have no sign and are left out.
    """
    run, rise = np.diff(np.asarray(neuron, dtype=np.float64)), np.diff(np.asarray(motor, dtype=np.float64))
    moved = (run != 0) & (rise != 0)
    return np.arctan(rise[moved] / run[moved])


def angle_histogram(angles: np.ndarray, bins: int = 36) -> tuple[np.ndarray, np.ndarray]:
    """Return the counts (bins,) of angles, and the edges (bins + 1,) from -pi/2 to pi/2, one of which is 0.

    Raises:
        ValueError: `bins` is odd or less than 2.
    """
    if bins < 2 or bins % 2:
        raise ValueError(f"bins: must be even, so that none holds angles of both signs, got {bins}.")
    return np.histogram(angles, bins=bins, range=(-math.pi / 2, math.pi / 2))


def contribution(neuron: np.ndarray, motor: np.ndarray) -> Contribution:
    """Return the contribution of a neuron to a motor neuron (Definition 6).

    The printed rule, a sum of bin counts that "is more than half" of the other, would hold for both signs of most
    pairs. It is read as a sum that exceeds the other one by more than half of it: positive if there are more than 1.5
    times as many positive angles as negative ones, negative in the opposite case, otherwise "phases".

    Args:
        neuron: Potentials of a neuron, (T,).
        motor: Potentials of a motor neuron, (T,).

    Returns:
        "positive", "negative", "phases", or "none" if they never move together.
    """
    counts, edges = angle_histogram(slope_angles(neuron, motor))
    negative, positive = int(counts[edges[1:] <= 0].sum()), int(counts[edges[:-1] >= 0].sum())
    if positive == negative == 0:
        return "none"
    if positive > MARGIN * negative:
        return "positive"
    return "negative" if negative > MARGIN * positive else "phases"


def contributions(potentials: np.ndarray, names: Sequence[str], motors: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the contribution of every neuron to every motor neuron.

    Args:
        potentials: (T, N).
        names: Names of the N neurons.
        motors: Names of those that are motor neurons.

    Returns:
        Motor neuron -> every neuron that is none -> its contribution.
    """
    paths = dict(zip(names, np.asarray(potentials).T, strict=True))
    others = [name for name in names if name not in motors]
    return {motor: {name: contribution(paths[name], paths[motor]) for name in others} for motor in motors}
