"""The cores without memory."""

from __future__ import annotations

import torch

from nac_drive.policies.cores.base import Core
from nac_drive.policies.cores.memoryless import Bojarski, Feedforward
from tests.contracts import CoreContract


class TestFeedforward(CoreContract):
    def make_core(self) -> Core:
        return Feedforward(5, 8)


class TestBojarski(CoreContract):
    def make_core(self) -> Core:
        return Bojarski(5, 8)

    def test_has_the_layers_of_the_table(self) -> None:
        linear = [layer for layer in Bojarski(64, 1).layers if isinstance(layer, torch.nn.Linear)]
        assert [(layer.in_features, layer.out_features) for layer in linear] == [(64, 1000), (1000, 100), (100, 1)]

    def test_is_the_formula_of_the_docstring(self) -> None:
        torch.manual_seed(0)
        core, x = Bojarski(5, 8).double(), torch.randn(2, 6, 5, dtype=torch.float64)
        w1, b1, w2, b2, w3, b3 = (parameter.detach() for parameter in core.parameters())
        y, _ = core(x, torch.zeros(2, 6, dtype=torch.float64), ())
        expected = (((x @ w1.T + b1).clamp(min=0) @ w2.T + b2).clamp(min=0)) @ w3.T + b3
        torch.testing.assert_close(y, expected)
        assert (y < 0).any()  # the last layer has no activation

    def test_shuffled_frames_give_shuffled_answers(self) -> None:
        torch.manual_seed(0)
        core, x, order = Bojarski(5, 8), torch.randn(1, 9, 5), torch.randperm(9)
        y, _ = core(x, torch.rand(1, 9), ())
        shuffled, _ = core(x[:, order], torch.rand(1, 9), ())
        torch.testing.assert_close(shuffled, y[:, order])
