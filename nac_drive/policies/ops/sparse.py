"""Weight matrices whose entries are mostly fixed at zero."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from nac_drive.policies.ops.size_limit import count_mask


def sparse_mask(rows: int, columns: int, sparsity: float, rng: np.random.Generator) -> np.ndarray:
    """Draw a mask with equally many entries in every row.

    They are round((1 - sparsity) columns), at least one.

    A column that no row drew gets an entry as well, in a random row.

    Args:
        rows: Number of rows.
        columns: Number of columns.
        sparsity: Fraction of the entries that are False, in [0, 1).
        rng: Generator of the draw.

    Returns:
        (rows, columns) bool.

    Raises:
        ValueError: `sparsity` is outside [0, 1).
    """
    if not 0.0 <= sparsity < 1.0:
        raise ValueError(f"sparsity: must be in [0, 1), got {sparsity}.")
    count_mask(rows, columns)
    fan_in = max(1, round((1.0 - sparsity) * columns))
    order = rng.random((rows, columns)).argsort(axis=1)
    mask = np.zeros((rows, columns), dtype=bool)
    np.put_along_axis(mask, order[:, :fan_in], True, axis=1)
    missed = np.flatnonzero(~mask.any(axis=0))
    mask[rng.integers(rows, size=missed.size), missed] = True
    return mask


class SparseMatrix(nn.Module):
    """A matrix (rows, columns) whose entries outside a `sparse_mask` are zero. A call without arguments returns it.

    Only the other entries are parameters. They start uniform within +-1 / sqrt(fan-in), fan-in being the mean number of
    entries of a row, so that sums of inputs are as large as in a dense layer. Sparsity 0 is a dense matrix.
    """

    positions: Tensor

    def __init__(self, rows: int, columns: int, sparsity: float, rng: np.random.Generator) -> None:
        super().__init__()
        self.rows, self.columns = rows, columns
        mask = sparse_mask(rows, columns, sparsity, rng)
        self.register_buffer("positions", torch.from_numpy(np.flatnonzero(mask)))
        bound = (rows / mask.sum()) ** 0.5
        self.values = nn.Parameter(torch.empty(int(mask.sum())).uniform_(-bound, bound))

    def forward(self) -> Tensor:
        flat = self.values.new_zeros(self.rows * self.columns)
        return flat.index_copy(0, self.positions, self.values).view(self.rows, self.columns)
