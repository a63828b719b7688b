"""Cores as sets of cells: run one row per cell, with some cells held at 0.

A cell is one output of a core together with the part of the state that belongs to it, as the hidden unit of an LSTM.

Shapes: R rows, T frames, F features, U cells.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nac_drive.policies.cores.base import CellStep, Core, State


def count_cells(core: Core) -> int:
    """Return the number of cells of a core.

    Raises:
        ValueError: The core has no cells (`Core.has_cells`), such as attention and an NCP.
    """
    if not core.has_cells:
        raise ValueError(
            f"core: every tensor of the state must hold one cell for each of the {core.output_size} outputs, got "
            f"{type(core).__name__}; choose a core such as lstm, cfc or ltc."
        )
    return core.output_size


@torch.no_grad()
def stream_cells(step: CellStep, state: State, x: Tensor, dt: Tensor, keep: Tensor) -> Tensor:
    """Run frame by frame; after every frame the state and the output of some cells are set to 0.

    A core that takes several solver steps a frame lets these cells move within the frame.

    Args:
        step: A core, or `Driver.core_output`.
        state: The state before the first frame, of R rows.
        x: Features, (T, F), the same for all rows.
        dt: Seconds since the frame before, (T,).
        keep: (R, U); 0 holds a cell at 0, 1 lets it go.

    Returns:
        Outputs, (R, T, U).
    """
    rows, outputs = len(keep), []
    for features, seconds in zip(x, dt, strict=True):
        y, state = step(features.expand(rows, 1, -1), seconds.expand(rows, 1), state)  # (R, 1, U)
        state = tuple(part * keep.view(rows, *[1] * (part.dim() - 2), -1) for part in state)
        outputs.append(y[:, 0] * keep)
    return torch.stack(outputs, dim=1)
