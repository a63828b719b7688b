"""Masks, against answers written out."""

from __future__ import annotations

import torch

from nac_drive.policies.nac.masks import Mask

CPU = torch.device("cpu")


def rows(mask: Mask, start: int = 0, stop: int | None = None) -> list:
    """1 where a key may be seen."""
    masked = mask.masked(slice(start, mask.queries if stop is None else stop), CPU)
    assert masked is not None
    return (~masked).int().tolist()


def test_causal_counts_from_the_last_key() -> None:
    assert rows(Mask(2, 4, causal=True)) == [[1, 1, 1, 0], [1, 1, 1, 1]]


def test_a_sliding_window_sees_itself_and_the_past() -> None:
    assert rows(Mask(4, 4, window=2)) == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]
    assert rows(Mask(2, 4, window=3)) == [[1, 1, 1, 0], [0, 1, 1, 1]]


def test_some_rows_are_those_rows_of_all() -> None:
    mask = Mask(5, 7, window=3)
    assert rows(mask, 1, 3) == rows(mask)[1:3]


def test_where_everything_is_allowed_there_is_no_mask() -> None:
    assert Mask(3, 5).masked(slice(0, 3), CPU) is None
    assert Mask(1, 32, window=32).masked(slice(0, 1), CPU) is None  # a full stream: nothing to hide
    assert rows(Mask(1, 32, window=31)) == [[0] + [1] * 31]


def test_masks_combine() -> None:
    mask = Mask(3, 3, causal=True, valid=torch.tensor([[False, True, True], [True] * 3]))
    assert rows(mask) == [[[[0, 0, 0], [0, 1, 0], [0, 1, 1]]], [[[1, 0, 0], [1, 1, 0], [1, 1, 1]]]]
