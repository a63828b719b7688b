"""Pairwise attention by fused kernels on a GPU, with gradients.

The kernels of `nac.kernel` need triton.

They take the common case: a backbone of three groups settled for three steps, no records, no gradients of the times.
`NAC.attend` computes everything else, and the same, in chunks of queries. It also does where a kernel cannot be
launched, after one warning.
"""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from nac_drive.policies.nac.circuit import FusedBackbone
from nac_drive.policies.nac.logits import OMEGA_FLOOR
from nac_drive.policies.nac.masks import Mask
from nac_drive.policies.nac.tokens import Tokens

LARGEST = 32, 64
"""Neurons of the input group and of the next, up to which no tile spills registers on cards from a T4 to an H100.

A layer of 64 features has 22 and 45. `benchmarks/layer/kernel_registers.py` compiles the tiles.
"""


class Tile(NamedTuple):
    """Pairs of one program, and its warps."""

    rows: int
    columns: int
    num_warps: int = 8


FORWARD, BACKWARD = Tile(16, 8), Tile(8, 8)
"""The largest tiles that do not spill: the backward pass holds the neurons of all pairs and their gradients."""
PASSES = ("queries", "keys", "weights")
"""Passes of `kernel.attend_gradients`."""


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


class Launch(NamedTuple):
    """Numbers of a launch, and the constants of its kernels."""

    window: int
    euler_steps: float
    delta_t: float
    constants: dict[str, Any]

    def __call__(self, kernel: Any, q: Tensor, k: Tensor, *others: Any, part: str | None = None) -> None:
        """Launch a kernel: one program per head and block."""
        tile = FORWARD if part is None else BACKWARD
        blocks = -(-q.shape[2] // tile.rows) if part in (None, "queries") else -(-k.shape[2] // tile.columns)
        constants = self.constants if part is None else {**self.constants, "PASS": part}
        if part == "weights":  # the operands of tensor cores would spill
            constants["PRECISION"] = "ieee"
        kernel[q.shape[0] * q.shape[1], blocks](
            q, *q.stride()[:3], k, *k.stride()[:3], *others, q.shape[1], q.shape[2], k.shape[2],
            self.window, self.euler_steps, self.delta_t, OMEGA_FLOOR,
            ROWS=tile.rows, COLUMNS=tile.columns, **constants, num_warps=tile.num_warps, enable_fp_fusion=True,
        )  # fmt: skip


def usable(query: Tensor) -> bool:
    """Report whether the kernels can run for such queries."""
    return (
        query.is_cuda
        and query.dtype in (torch.float32, torch.bfloat16, torch.float16)
        and not torch.compiler.is_compiling()
        and find_spec("triton") is not None
        and query.device not in _refused
    )


def fused_pairwise(
    layer: KernelSettings, tokens: Tokens, circuit: Layers, mask: Mask, times: Tensor | None
) -> Tensor | None:
    """Attend from every query to all of its allowed keys.

    No tensor has the size of all pairs, neither here nor in the backward pass.

    Args:
        layer: The layer, of which only the settings are used.
        tokens: Projections of the Tq queries and the Tk keys.
        circuit: The backbones of the heads.
        mask: The keys that each query may see.
        times: t_sample, broadcastable to (B, 1, Tq, Tk); None for 1.

    Returns:
        y (B, H, Tq, D). Matrix products have the precision of `torch.get_float32_matmul_precision()`, and TF32's under
        autocast. None where the kernels cannot run: times with gradients, tensors of 2^31 numbers, and devices on
        which a launch has failed. The first failure warns.
    """
    q, k = (
        tensor if tensor.stride(3) == 1 else tensor.contiguous()
        for tensor in (tokens.query_logit_inputs.float(), tokens.kv[..., layer.head_size :].float())
    )
    batch, _, queries, width = q.shape
    keys, inputs, features, hidden = k.shape[2], width - 2, layer.head_size, circuit.w_1.shape[2]
    wide, deep, values = map(_padded, (inputs, hidden, features))
    if times is not None and times.requires_grad and torch.is_grad_enabled():
        return None
    if max(q.numel(), k.numel(), batch * queries * keys) >= 2**31:
        return None
    weights = (
        F.pad(circuit.w_1, (0, deep - hidden, 0, wide - inputs)),  # padding has no weight
        F.pad(circuit.b_1, (0, deep - hidden)),
        F.pad(circuit.w_2.transpose(1, 2), (0, deep - hidden)),
        circuit.b_2, circuit.scale, circuit.shift,
    )  # fmt: skip
    constants = {
        "E": inputs, "EP": wide, "CP": deep, "D": features, "DP": values,
        "TIMES": times is not None, "VALID": mask.valid is not None,
        "CAUSAL": mask.forward_only, "WINDOW": mask.window is not None,
        "MODE": layer.mode, "PHI": layer.phi_activation, "QUADRATURE": layer.output == "quadrature",
        "PRECISION": _precision(q.device),
    }  # fmt: skip
    launch = Launch(mask.window or 0, float(layer.euler_steps), layer.delta_t, constants)
    ages = q if times is None else times.float().expand(batch, 1, queries, keys)
    valid = q if mask.valid is None else mask.valid.to(torch.uint8).contiguous()
    try:
        return _Pairwise.apply(q, k, ages, valid, launch, *(weight.float().contiguous() for weight in weights)).to(
            tokens.kv.dtype
        )
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # no C compiler, an old card, too few registers: Triton has no common class for them
        _refused.add(q.device)
        reason = next(iter(str(error).strip().splitlines()), "no message")
        warnings.warn(
            f"pairwise attention: the kernel cannot run on {q.device} ({type(error).__name__}: {reason}). The form in "
            "chunks of queries takes its place, which gives the same numbers and is slower.",
            RuntimeWarning,
            stacklevel=2,
        )
        return None


class _Pairwise(torch.autograd.Function):
    """The two kernels as one differentiable function."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, times: Tensor, valid: Tensor, launch: Launch, *weights: Tensor
    ) -> Tensor:
        from nac_drive.policies.nac import kernel  # triton is loaded where it is used

        y = q.new_empty(*q.shape[:3], launch.constants["D"])
        total = q.new_empty(q.shape[:3])  # logarithm of the softmax's sum
        launch(kernel.attend, q, k, *_strided(times), valid, *weights, y, total)
        if any(ctx.needs_input_grad):
            ctx.save_for_backward(q, k, times, valid, *weights, y, total)
            ctx.launch = launch
            proven = q.device, *launch.constants.values()
            if proven not in _proven:  # a failure comes now, where the form in chunks can still take over
                _gradients(launch, torch.zeros_like(y), q, k, times, valid, *weights, y, total)
                _proven.add(proven)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        dq, dk, *of_weights = _gradients(ctx.launch, dy, *ctx.saved_tensors)
        return dq, dk, None, None, None, *of_weights


def _gradients(launch: Launch, dy: Tensor, *saved: Tensor) -> list[Tensor]:
    """Return the gradients of q, k and the weights."""
    from nac_drive.policies.nac import kernel

    q, k, times, valid, *weights, y, total = saved
    dy = dy.contiguous()
    dq, dk = q.new_empty(q.shape), k.new_empty(k.shape)
    batch, heads, keys, _ = k.shape
    blocks, sizes = -(-keys // BACKWARD.columns), [weight[0].numel() for weight in weights]
    of_weights = q.new_empty(batch, heads, blocks, sum(sizes))
    for part in PASSES:
        launch(
            kernel.attend_gradients, q, k, *_strided(times), valid, *weights, total, dy, (y * dy).sum(dim=3),
            dq, dk, of_weights, part=part,
        )  # fmt: skip
    of_heads = of_weights.sum(dim=(0, 2)).split(sizes, dim=1)  # (H, numbers of a head) each
    return [dq, dk, *(part.reshape(weight.shape) for part, weight in zip(of_heads, weights, strict=True))]


def _padded(size: int) -> int:
    """Return the next power of two, at least 16."""
    return max(16, 1 << (size - 1).bit_length())


def _strided(times: Tensor) -> tuple[Any, ...]:
    """Return times with the strides of batch, query and key."""
    return times, times.stride(0), times.stride(2), times.stride(3)


def _precision(device: torch.device) -> str:
    if torch.get_float32_matmul_precision() == "highest" and not torch.is_autocast_enabled(device.type):
        return "ieee"
    return "tf32"


_refused: set[torch.device] = set()
"""Devices on which a launch has failed."""
_proven: set[tuple[Any, ...]] = set()
"""Devices and constants for which the gradients were launched once."""
