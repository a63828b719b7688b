"""The curvature of a road whose curvature is known."""

from __future__ import annotations

import numpy as np
import pytest

from nac_drive.analysis.curvature import curvature
from nac_drive.envs.telemetry import Track


def circle(radius: float, clockwise: bool = False) -> Track:
    turn = np.linspace(0, 2 * np.pi, 200, endpoint=False) * (-1 if clockwise else 1)
    return Track(radius * np.stack((np.cos(turn), np.sin(turn)), axis=1), turn)  # angle 0 drives towards +y


def test_the_curvature_of_a_circle_is_one_over_its_radius():
    for index in (0, 3, 100, 199):
        assert curvature(circle(40), index) == pytest.approx(1 / 40, rel=1e-3)
        assert curvature(circle(40, clockwise=True), index) == pytest.approx(-1 / 40, rel=1e-3)
