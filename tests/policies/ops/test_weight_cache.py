"""Cached weights never lag behind the parameters that they are computed from."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch

from nac_drive.policies import NAC


def make(seed: int = 0) -> NAC:
    torch.manual_seed(seed)
    return NAC(8, 2, input_size=5, top_k=3)


def step(layer: NAC) -> None:
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1)
    with torch.enable_grad():
        layer(torch.ones(1, 4, 5)).sum().backward()
    optimizer.step()


def load(layer: NAC) -> None:
    layer.load_state_dict(make(1).state_dict())


def replace(layer: NAC) -> None:
    layer.load_state_dict(make(1).state_dict(), assign=True)


def remask(layer: NAC) -> None:
    layer.backbone.in_mask.logical_not_()


@pytest.mark.parametrize("change", [step, load, replace, remask])
def test_without_gradients_every_change_is_seen(change: Callable[[NAC], None]) -> None:
    layer, x = make(), torch.randn(2, 6, 5)
    with torch.no_grad():
        before = layer(x)
        change(layer)
        after = layer(x)
    assert (after - before).abs().max() > 1e-3
    torch.testing.assert_close(after, layer(x).detach(), atol=0.0, rtol=0.0)  # not from the cache


def test_a_copy_and_a_change_of_dtype_are_seen() -> None:
    layer, x = make(), torch.randn(2, 6, 5)
    with torch.no_grad():
        y = layer(x)
        torch.testing.assert_close(copy.deepcopy(layer)(x), y, atol=0.0, rtol=0.0)
        double = layer.double()(x.double())
    assert double.dtype == torch.float64
    torch.testing.assert_close(double.float(), y, atol=1e-5, rtol=1e-5)


def test_nothing_is_computed_twice_while_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x, calls = make(), torch.randn(2, 6, 5), []
    fuse = layer.backbone._fuse
    monkeypatch.setattr(layer.backbone, "_fuse", lambda: calls.append(1) or fuse())
    with torch.no_grad():
        layer(x)
        layer(x)
        assert len(calls) == 1
    layer(x)
    layer(x)
    assert len(calls) == 3
