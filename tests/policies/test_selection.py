"""Selections and masks, against answers known by hand."""

from __future__ import annotations

import torch

from policies.selection import causal, pairwise, sliding_window, topk, valid_keys


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values).view(1, 1, -1, 1)


def test_topk_keeps_the_largest_dot_products() -> None:
    index, kept = topk(column(1.0, -1.0), column(3.0, 0.0, -2.0, 1.0), None, 2)
    assert kept is None
    assert index is not None
    assert [sorted(row) for row in index[0, 0].tolist()] == [[0, 3], [1, 2]]


def test_topk_prefers_allowed_keys_and_flags_the_rest() -> None:
    allowed = torch.tensor([[False, True, True, True], [False, True, False, False], [False] * 4])
    index, kept = topk(column(1.0, 1.0, 1.0), column(3.0, 0.0, -2.0, 1.0), allowed, 2)
    assert index is not None
    assert kept is not None
    chosen = [
        sorted(i for i, k in zip(*row, strict=True) if k)
        for row in zip(index[0, 0].tolist(), kept[0, 0].tolist(), strict=True)
    ]
    assert chosen == [[1, 3], [1], []]


def test_topk_with_no_more_keys_than_wanted_is_pairwise() -> None:
    q, k, allowed = column(1.0), column(1.0, 2.0), torch.tensor([[True, False]])
    assert topk(q, k, allowed, 2) == topk(q, k, allowed, 5) == pairwise(q, k, allowed, 1) == (None, allowed)


def test_causal_counts_from_the_last_key() -> None:
    assert causal(2, 4).int().tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]


def test_a_sliding_window_sees_itself_and_the_past() -> None:
    assert sliding_window(4, 4, 2).int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]
    assert sliding_window(2, 4, 3).int().tolist() == [[1, 1, 1, 0], [0, 1, 1, 1]]


def test_masks_combine() -> None:
    valid = torch.tensor([[False, True, True]])
    assert (causal(3, 3) & valid_keys(valid)).int().tolist() == [[[[0, 0, 0], [0, 1, 0], [0, 1, 1]]]]
