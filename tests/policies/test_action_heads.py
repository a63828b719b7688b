"""The losses of the action heads, by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nac_drive.policies import ContinuousActionHead, DiscreteActionHead


def test_cross_entropy_by_hand() -> None:
    logits, target = (
        torch.log(torch.tensor([[0.5, 0.2, 0.1, 0.1, 0.1], [0.1, 0.6, 0.1, 0.1, 0.1]])),
        torch.tensor([0, 1]),
    )
    loss = DiscreteActionHead.loss
    first, second = -np.log(0.5), -np.log(0.6)
    assert float(loss(logits, target)) == pytest.approx((first + second) / 2)
    assert float(loss(logits, target, torch.tensor([1.0, 3.0]))) == pytest.approx((first + 3 * second) / 4)
    assert float(loss(logits[None], target[None], torch.tensor([[1.0, 0.0]]))) == pytest.approx(first)


def test_squared_error_by_hand() -> None:
    prediction, target = (
        torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]),
        torch.tensor([[0.3, 1.0, 0.0], [1.0, 0.0, 0.6]]),
    )
    assert float(ContinuousActionHead.loss(prediction, target)) == pytest.approx((0.03 + 0.12) / 2)
    weighted = ContinuousActionHead.loss(prediction, target, torch.tensor([1.0, 0.0]))
    assert float(weighted) == pytest.approx(0.03)
