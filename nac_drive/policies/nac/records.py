"""Records of a call of the NAC layer.

They serve analysis and figures.

Shapes: B batch, H heads, Tq queries, Tk keys, K kept keys per query, D features of a head, L settling steps, n neurons
of a group.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class AttentionRecord:
    """Attention weights and all that they are computed from. All tensors are (B, H, Tq, K)."""

    index: Tensor
    """Positions of the kept keys."""
    alpha: Tensor
    """Softmax weights; exactly 0 for keys that are not allowed."""
    phi: Tensor
    """Drive of the logit, Eq. 15."""
    omega: Tensor
    """Decay rate of the logit, Eq. 16."""
    t: Tensor
    """Internal time, in 0..1."""
    a: Tensor
    """Logits before masking."""


@dataclass(frozen=True)
class CircuitRecord:
    """Every neuron of the layer, for interpretation."""

    q: Tensor
    """Outputs of the query gate, (B, H, Tq, D)."""
    k: Tensor
    """Outputs of the key gate, (B, H, Tk, D)."""
    v: Tensor
    """Outputs of the value gate, (B, H, Tk, D)."""
    neurons: dict[str, Tensor]
    """Neurons of the backbone by group ("inter", "command", "motor"), after each settling step, in -1..1:
    (L, B, H, Tq, K, n) each. phi and omega are computed from the last motor state, scaled and shifted."""
    attention: AttentionRecord
    """Attention of the same call."""
