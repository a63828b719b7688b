"""Pairwise attention by the fused kernel, on a GPU.

The kernel of `nac.kernel` needs triton.

The kernel takes the common case: a backbone of three groups settled for three steps, float32, no gradients, no records.
`NAC.attend` computes everything else, and the same, in chunks of queries.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from nac_drive.policies.nac.circuit import FusedBackbone
from nac_drive.policies.nac.logits import OMEGA_FLOOR
from nac_drive.policies.nac.masks import Mask
from nac_drive.policies.nac.tokens import Tokens

LARGEST = 64, 128
"""Neurons of the input group and of the next, up to which a tile of pairs fits into the registers of a GPU."""


class Layers(NamedTuple):
    """A backbone as a perceptron.

    s = sigmoid(b_2 + W_2 sigmoid(b_1 + W_1 sigmoid(drive))), motor = shift + scale s.
    """

    w_1: Tensor
    """(H, E, C)"""
    b_1: Tensor
    """(H, 1, C)"""
    w_2: Tensor
    """(H, C, 2)"""
    b_2: Tensor
    """(H, 1, 2)"""
    scale: Tensor
    """(H, 2, 1)"""
    shift: Tensor
    """(H, 2, 1)"""


class KernelSettings(Protocol):
    """Settings of `NAC` that the kernel needs."""

    head_size: int
    mode: str
    phi_activation: str
    output: str
    euler_steps: int
    delta_t: float


def layers(backbone: FusedBackbone) -> Layers | None:
    """Return the backbone as a perceptron. None if it has more steps, more synapses or more neurons than the kernel."""
    steps, scale, shift = backbone
    if len(steps) != 3 or any(len(updates) != 1 for updates in steps):
        return None
    (entry,), (hidden,), (motor,) = steps
    if not entry.driven or entry.arrived or entry.constant is not None:
        return None
    for update, source in ((hidden, entry), (motor, hidden)):
        if update.driven or update.constant is None or [name for name, _ in update.arrived] != [source.target]:
            return None
    assert hidden.constant is not None
    assert motor.constant is not None
    if hidden.arrived[0][1].shape[1] > LARGEST[0] or hidden.constant.shape[2] > LARGEST[1]:
        return None
    return Layers(hidden.arrived[0][1], hidden.constant, motor.arrived[0][1], motor.constant, scale, shift)


def usable(query: Tensor) -> bool:
    """Report whether the kernel can run for such queries.

    No gradients are recorded.
    """
    return (
        query.is_cuda
        and query.dtype == torch.float32
        and not torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
        and find_spec("triton") is not None
    )


def fused_pairwise(layer: KernelSettings, tokens: Tokens, circuit: Layers, mask: Mask, times: Tensor | None) -> Tensor:
    """Attend from every query to all of its allowed keys.

    No tensor has the size of all pairs.

    Args:
        layer: The layer, of which only the settings are used.
        tokens: Projections of the Tq queries and the Tk keys.
        circuit: The backbones of the heads.
        mask: The keys that each query may see.
        times: t_sample, broadcastable to (B, 1, Tq, Tk); None for 1.

    Returns:
        y (B, H, Tq, D). Matrix products have the precision of `torch.get_float32_matmul_precision()`.
    """
    from nac_drive.policies.nac import kernel  # triton is loaded where it is used

    batch, heads, queries, width = tokens.query_logit_inputs.shape
    keys = tokens.kv[..., layer.head_size :]  # (B, H, Tk, E + 2 + D)
    count, inputs, features = keys.shape[2], width - 2, layer.head_size
    hidden = circuit.w_1.shape[2]
    wide, deep, values = (max(16, 1 << (size - 1).bit_length()) for size in (inputs, hidden, features))
    w_1 = F.pad(circuit.w_1, (0, deep - hidden, 0, wide - inputs)).contiguous()  # padding has no weight
    b_1 = F.pad(circuit.b_1, (0, deep - hidden)).contiguous()
    w_2 = F.pad(circuit.w_2.transpose(1, 2), (0, deep - hidden)).contiguous()
    b_2, scale, shift = (tensor.flatten().contiguous() for tensor in (circuit.b_2, circuit.scale, circuit.shift))
    q, k = (tensor if tensor.stride(3) == 1 else tensor.contiguous() for tensor in (tokens.query_logit_inputs, keys))
    y = q.new_empty(batch, heads, queries, features)
    ages = y if times is None else times.to(y.dtype).expand(batch, 1, queries, count)
    valid = y if mask.valid is None else mask.valid.to(torch.uint8).contiguous()
    precision = "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"
    attend: Any = kernel.attend
    attend[batch * heads, -(-queries // kernel.ROWS.value)](
        q, *q.stride()[:3], k, *k.stride()[:3], ages, ages.stride(0), ages.stride(2), ages.stride(3), valid,
        w_1, b_1, w_2, b_2, scale, shift, y,
        heads, queries, count, mask.window or 0, float(layer.euler_steps), layer.delta_t, OMEGA_FLOOR,
        E=inputs, EP=wide, CP=deep, D=features, DP=values,
        TIMES=times is not None, VALID=mask.valid is not None, CAUSAL=mask.forward_only, WINDOW=mask.window is not None,
        MODE=layer.mode, PHI=layer.phi_activation, QUADRATURE=layer.output == "quadrature", PRECISION=precision,
        num_warps=8,
    )  # fmt: skip
    return y
