"""Projections that the NAC layer computes once per token.

A pair then only adds two rows.

Shapes: B batch, T time, F features, P gates, H heads, D features of a head, E neurons of the backbone's input group.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nac_drive.policies.nac.circuit import SensoryGate


@dataclass(frozen=True)
class Tokens:
    """Projections of queries and keys, from which a pair is computed. First axes (B, H, T)."""

    query: Tensor
    """(..., D), the query for scoring."""
    query_logit_inputs: Tensor
    """(..., E + 2), the query's summand of the backbone drive and of t_a, t_b, biases included."""
    kv: Tensor
    """(..., D + E + 2 + D): the key for scoring, its summand of the drive, t_a and t_b, and its gated value, if any."""
    inputs: Tensor | None = None
    """(B, T, F): the inputs of the keys, where they are the values; None for gated values."""


@dataclass(frozen=True, eq=False)
class TokenProjection:
    """Two affine maps with s = sigmoid(2 z) between them.

    They are a sensory gate, and the linear maps after it.
    """

    weight: Tensor
    """(F, H P D)"""
    bias: Tensor
    """(H P D,)"""
    linear: Tensor
    """(H, P D, R)"""
    shift: Tensor
    """(H, 1, R)"""

    def __call__(self, x: Tensor) -> Tensor:
        """Project x (B, T, F) to (B, H, T, R)."""
        batch, length, _ = x.shape
        s = torch.addmm(self.bias, x.flatten(0, 1), self.weight).sigmoid_()  # (B T, H P D)
        heads = self.linear.shape[0]
        if length == 1 and batch > 1 and not torch.is_grad_enabled():  # several drives: each with the bits of one alone
            s = s.view(batch * heads, 1, -1)  # (B H, 1, P D)
            shift, linear = (tensor.expand(batch, -1, -1, -1).flatten(0, 1) for tensor in (self.shift, self.linear))
            return torch.baddbmm(shift, s, linear).view(batch, heads, 1, -1)  # (B, H, 1, R)
        s = s.view(batch * length, heads, -1).transpose(0, 1)  # (H, B T, P D)
        y = torch.baddbmm(self.shift, s, self.linear)  # (H, B T, R)
        return y.view(heads, batch, length, -1).transpose(0, 1)


def token_projection(gate: SensoryGate, linear: Tensor, shift: Tensor | float = 0.0) -> TokenProjection:
    """Return the gate followed by y -> y linear + shift. Linear (H, P D, R), shift broadcastable to (H, 1, R)."""
    heads = linear.shape[0]
    weight, bias, out_scale, out_shift = (
        tensor.unflatten(-1, (heads, -1)).transpose(-3, -2).flatten(-3)  # (..., H P D)
        for tensor in gate.fuse()
    )
    shift = shift + out_shift.view(heads, 1, -1) @ linear  # (H, 1, R)
    return TokenProjection(weight, bias, out_scale.view(heads, -1, 1) * linear, shift)
