"""Checks of the arguments of `NAC`, and of its calls."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nac_drive.arguments import require_number
from nac_drive.plain import whole
from nac_drive.policies.wiring.wiring import Wiring
from nac_drive.suggest import did_you_mean


def require_name(name: str, value: Any, known: Collection[str]) -> None:
    """Raise ValueError unless a value is a known name."""
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{name}: must be one of {sorted(known)}, got {value!r}.{did_you_mean(str(value), known)}")


def whole_numbers(least: int | None, **numbers: Any) -> list[int]:
    """Return whole numbers of at least `least` as Python's. Raise ValueError where one is none."""
    return [whole(f"{name}:", number, least) for name, number in numbers.items()]


def require_positive(**numbers: Any) -> None:
    """Raise ValueError unless all numbers are positive, finite or None."""
    for name, number in numbers.items():
        if number is None:
            continue
        require_number(f"{name}:", number)
        if not 0.0 < number < math.inf:
            raise ValueError(f"{name}: must be positive and finite, or None, got {number}.")


def require_backbone(wiring: Any, inputs: int) -> None:
    """Raise ValueError unless a backbone's wiring has these inputs."""
    _require_wiring("backbone", wiring, "backbone_wiring")
    outputs = wiring.groups.size(wiring.groups.output_group)
    if wiring.inputs != inputs or outputs != 2:
        raise ValueError(
            f"backbone: the wiring must take 2 d_model / num_heads = {inputs} inputs and have two output neurons "
            f"(phi, omega), got {wiring.inputs} inputs and {outputs} outputs."
        )


def require_gate_wirings(wirings: Any, inputs: Sequence[int], d_model: int) -> None:
    """Raise ValueError unless wirings fit their gates.

    Args:
        wirings: The wirings of the gates of q, k and v.
        inputs: Number of inputs of each gate; there are two where v has none.
        d_model: Number of sensory neurons of each gate.
    """
    names = "q, k, v" if len(inputs) == 3 else "q, k"
    if not isinstance(wirings, Sequence):
        raise ValueError(f"gate_wirings: must be the wirings of {names}, got {reprlib.repr(wirings)}.")
    for wiring in wirings:
        _require_wiring("gate_wirings", wiring, "sensory_gate_wiring")
    expected = [(size, d_model) for size in inputs]
    sizes = [(wiring.inputs, wiring.groups.sensory) for wiring in wirings]
    if sizes != expected:
        raise ValueError(
            f"gate_wirings: the wirings of {names} must have (inputs, sensory neurons) {expected} "
            f"(input_size or context_size, d_model), got {sizes}."
        )


def _require_wiring(name: str, wiring: Any, function: str) -> None:
    if not isinstance(wiring, Wiring):
        raise ValueError(f"{name}: must be a Wiring, got {reprlib.repr(wiring)}; {function} draws one.")


def require_call(
    input_size: int,
    context_size: int,
    weights: torch.dtype,
    x: Tensor,
    times: Tensor | None,
    context: Tensor | None,
    window: int | None,
    valid: Tensor | None,
) -> None:
    """Raise ValueError unless `NAC.forward` accepts the arguments."""
    for name, tensor in (("x", x), ("times", times), ("context", context), ("valid", valid)):
        if not isinstance(tensor, Tensor) and (tensor is not None or name == "x"):
            raise ValueError(f"{name}: must be a tensor, got {type(tensor).__name__}; torch.as_tensor makes one.")
    for name, tensor, size in (("x", x, input_size), ("context", context, context_size)):
        if tensor is None:
            continue
        if tensor.dim() != 3 or tensor.shape[2] != size or 0 in tensor.shape:
            raise ValueError(
                f"{name}: shape must be (B >= 1, T >= 1, {size}), got {tuple(tensor.shape)}; the last axis is "
                f"{'input_size' if name == 'x' else 'context_size'}."
            )
        if tensor.dtype != weights and not _mixed(tensor, weights):
            raise ValueError(
                f"{name}: dtype must be the weights', {weights}, got {tensor.dtype}; convert one of them by .to()."
            )
    batch, queries, _ = x.shape
    if context is None and context_size != input_size:
        raise ValueError(f"context: needed where context_size={context_size} is set, got None.")
    if context is not None and context.shape[0] != batch:
        raise ValueError(f"context: batch must be x's, {batch}, got {context.shape[0]}.")
    keys = queries if context is None else context.shape[1]
    if times is not None:
        if times.shape not in {(batch,), (batch, keys), (batch, queries, keys)}:
            raise ValueError(
                f"times: shape must be ({batch},), ({batch}, {keys}) or ({batch}, {queries}, {keys}), "
                f"got {tuple(times.shape)}."
            )
        if torch.promote_types(times.dtype, weights) != weights and not _mixed(times, weights):
            raise ValueError(
                f"times: dtype must be the weights', {weights}, got {times.dtype}; convert one of them by .to()."
            )
    if window is not None:
        if isinstance(window, bool) or not isinstance(window, int | np.integer | torch.SymInt):
            raise ValueError(f"window: must be a whole number of steps, or None, got {window!r}.")
        if window < 1:
            raise ValueError(f"window: must be at least 1 step, got {window}.")
    if valid is not None and (valid.shape != (batch, keys) or valid.dtype != torch.bool):
        raise ValueError(f"valid: must be bool ({batch}, {keys}), got {valid.dtype} {tuple(valid.shape)}.")


def _mixed(tensor: Tensor, weights: torch.dtype) -> bool:
    """Return whether autocast takes a tensor to the weights' dtype.

    It leaves float64 alone.
    """
    if torch.float64 in (tensor.dtype, weights) or not tensor.is_floating_point():
        return False
    return torch.is_autocast_enabled(tensor.device.type)
