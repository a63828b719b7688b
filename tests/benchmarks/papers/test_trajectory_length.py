"""Lengths of paths that are known."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from trajectory_length import arc_length, circle, latent_path, trajectory_length

from nac_drive.policies import Core
from nac_drive.policies.cores.base import State, StateSpec


class Fixed(Core):
    """y = M x, without memory; it keeps the times that it got."""

    continuous_time = False

    def __init__(self, matrix: Tensor) -> None:
        super().__init__()
        self.output_size, self.input_size = matrix.shape
        self.matrix = nn.Parameter(matrix)
        self.times: list[Tensor] = []

    def state_shapes(self) -> StateSpec:
        return ()

    def forward(self, x: Tensor, dt: Tensor, state: State) -> tuple[Tensor, State]:
        self.times.append(dt)
        return x @ self.matrix.T, state


@pytest.mark.parametrize("radius", [0.5, 3.0])
def test_a_circle_has_the_length_of_its_circumference(radius: float) -> None:
    path = radius * circle(2000).numpy()
    assert arc_length(path) == pytest.approx(2.0 * math.pi * radius, rel=1e-6)
    assert arc_length(radius * circle(6).numpy()) == pytest.approx(6.0 * radius)  # a hexagon
    np.testing.assert_allclose(path[[0, 500, 1000, 2000]] / radius, [[0, 1], [1, 0], [0, -1], [0, 1]], atol=1e-12)


def test_the_length_of_a_staircase() -> None:
    path = np.array([[0.0, 0.0, 0.0], [0.0, 2.0, 0.0], [1.0, 2.0, 0.0], [1.0, 4.0, 2.0]])
    assert arc_length(path) == pytest.approx(3.0 + 8.0**0.5)


def test_a_plane_path_keeps_its_length_in_the_latent_plane() -> None:
    rng = np.random.default_rng(0)
    path = rng.normal(size=(50, 2))
    basis, _ = np.linalg.qr(rng.normal(size=(7, 2)))
    assert arc_length(latent_path(path @ basis.T + rng.normal(size=7))) == pytest.approx(arc_length(path))
    noisy = path @ basis.T + 0.1 * rng.normal(size=(50, 7))
    assert latent_path(noisy).shape == (50, 2)
    assert arc_length(latent_path(noisy)) < arc_length(noisy)


def test_a_map_that_keeps_distances_keeps_the_length() -> None:
    orthogonal, _ = torch.linalg.qr(torch.randn(7, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
    for matrix, length in ((torch.eye(2).double(), 1.0), (orthogonal, 1.0), (3.0 * orthogonal, 3.0)):
        core = Fixed(matrix)
        found = trajectory_length(core, circle(1000), 0.25)
        assert found == pytest.approx(2.0 * math.pi * length, rel=1e-5)
        (dt,) = core.times
        assert dt.shape == (1, 1001)
        assert dt[0, 0] == 0.0
        assert (dt[0, 1:] == 0.25).all()


def test_a_map_on_a_line_goes_forth_and_back() -> None:
    matrix = torch.tensor([[2.0, 0.0], [0.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    assert trajectory_length(Fixed(matrix), circle(1000), 1.0) == pytest.approx(8.0, rel=1e-6)  # 2 sin t
