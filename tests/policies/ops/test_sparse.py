"""Matrices that are mostly zero."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nac_drive.policies.ops.sparse import SparseMatrix, sparse_mask


@pytest.mark.parametrize(("rows", "columns", "sparsity"), [(256, 64, 0.95), (64, 64, 0.95), (8, 5, 0.95), (3, 40, 0.9)])
def test_every_row_has_its_entries_and_no_column_is_left_out(rows: int, columns: int, sparsity: float) -> None:
    mask = sparse_mask(rows, columns, sparsity, np.random.default_rng(0))
    fan_in = max(1, round((1 - sparsity) * columns))
    assert (mask.sum(axis=1) >= fan_in).all()
    assert mask.any(axis=0).all()
    assert mask.sum() - rows * fan_in <= (mask.sum(axis=0) == 1).sum()  # more only for columns left out by chance


def test_the_seed_is_all_that_decides_the_mask() -> None:
    masks = [sparse_mask(64, 64, 0.95, np.random.default_rng(seed)) for seed in (0, 0, 1)]
    np.testing.assert_array_equal(masks[0], masks[1])
    assert (masks[0] != masks[2]).any()


def test_training_leaves_the_zeros_alone() -> None:
    torch.manual_seed(0)
    matrix = SparseMatrix(16, 40, 0.9, np.random.default_rng(0))
    before = matrix().detach()
    for _ in range(3):
        (gradient,) = torch.autograd.grad((matrix() - 1.0).square().sum(), matrix.values)
        with torch.no_grad():
            matrix.values.sub_(0.1 * gradient)
    after = matrix().detach()
    live = torch.from_numpy(sparse_mask(16, 40, 0.9, np.random.default_rng(0)))
    assert ((before != 0) == live).all()
    assert ((after != 0) == live).all()
    assert (after != before)[live].all()


def test_a_row_of_few_weights_sums_to_as_much_as_one_of_many() -> None:
    torch.manual_seed(0)
    x = torch.randn(2000, 64)
    spreads = [
        (x @ SparseMatrix(200, 64, sparsity, np.random.default_rng(0))().T).std().item() for sparsity in (0.0, 0.95)
    ]
    assert spreads[0] == pytest.approx(3**-0.5, rel=0.1)  # the variance of a uniform weight is 1 / (3 fan-in)
    assert spreads[1] == pytest.approx(spreads[0], rel=0.1)


def test_sparsity_zero_is_dense() -> None:
    torch.manual_seed(0)
    matrix = SparseMatrix(3, 4, 0.0, np.random.default_rng(0))
    assert torch.equal(matrix(), matrix.values.view(3, 4))


@pytest.mark.parametrize("sparsity", [1.0, -0.1])
def test_a_sparsity_out_of_range_is_refused(sparsity: float) -> None:
    with pytest.raises(ValueError, match=r"sparsity: must be in \[0, 1\), got"):
        SparseMatrix(3, 4, sparsity, np.random.default_rng(0))
