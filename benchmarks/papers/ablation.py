"""One-cell ablation: what a driver does without one of the cells of its core (Hasani's thesis, Section 7.5.3).

The state and the output of the cell are held at 0.
"""

from __future__ import annotations

import math

import torch
from cells import count_cells, stream_cells
from torch import Tensor

from nac_drive.analysis.probe import OUTPUT, Probe
from nac_drive.policies.driver import Driver


@torch.no_grad()
def ablated_predictions(driver: Driver, features: Tensor, dt: Tensor) -> Tensor:
    """Return the predictions over an episode without each cell in turn, and with all of them.

    Args:
        driver: A driver without a residual path, in evaluation mode, whose core keeps its state per output.
        features: Features of the encoder, (T, F).
        dt: Seconds since the frame before, (T,).

    Returns:
        (U + 1, T, A): without cell 0, 1, ..., U - 1, and intact.

    Raises:
        ValueError: The core does not keep its state per output, or there is a residual path.
    """
    cells = _cells(driver)
    keep = torch.cat((1.0 - torch.eye(cells), torch.ones(1, cells))).to(features)
    y = stream_cells(driver.core_output, driver.initial_state(cells + 1), features, dt, keep)  # (U + 1, T, U)
    return driver.action_head(y)


def without_cell(driver: Driver, cell: int) -> Probe:
    """Return a driver that drives as `driver` does without one cell of its core.

    Args:
        driver: A driver without a residual path, whose core keeps its state per output.
        cell: Index of the cell, from 0.

    Raises:
        ValueError: The core does not keep its state per output, there is a residual path, or no such cell.
    """
    if not 0 <= cell < _cells(driver):
        raise ValueError(f"cell: must be 0 to {driver.core.output_size - 1}, got {cell}.")
    probe, core = Probe(driver), driver.core
    probe.zeroed.add((OUTPUT, cell))
    for name, (shape, _) in zip(core.neuron_names, core.state_shapes(), strict=False):
        probe.zeroed |= {(name, index) for index in range(cell, math.prod(shape), shape[-1])}
    return probe


def _cells(driver: Driver) -> int:
    if driver.config.residual:
        raise ValueError(
            "driver: must have no residual path, through which features reach the output of a cell that is held at 0; "
            "train with residual=False."
        )
    return count_cells(driver.core)
