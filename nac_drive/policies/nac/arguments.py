"""Checks of the arguments of `NAC`, and of its calls."""

from __future__ import annotations

import math
from collections.abc import Collection

import torch
from torch import Tensor

from nac_drive.suggest import did_you_mean


def require_name(name: str, value: str, known: Collection[str]) -> None:
    """Raise ValueError unless a value is a known name."""
    if value not in known:
        raise ValueError(f"{name}: must be one of {sorted(known)}, got {value!r}.{did_you_mean(str(value), known)}")


def require_counts(**counts: int) -> None:
    """Raise ValueError unless all numbers are at least 1."""
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"{name}: must be at least 1, got {count}.")


def require_positive(**numbers: float | None) -> None:
    """Raise ValueError unless all numbers are positive, finite or None."""
    for name, number in numbers.items():
        if number is not None and not 0.0 < number < math.inf:
            raise ValueError(f"{name}: must be positive and finite, or None, got {number}.")


def require_call(
    input_size: int,
    context_size: int,
    x: Tensor,
    times: Tensor | None,
    context: Tensor | None,
    window: int | None,
    valid: Tensor | None,
) -> None:
    """Raise ValueError unless `NAC.forward` accepts the arguments."""
    for name, tensor, size in (("x", x, input_size), ("context", context, context_size)):
        if tensor is not None and (tensor.dim() != 3 or tensor.shape[2] != size or 0 in tensor.shape):
            raise ValueError(
                f"{name}: shape must be (B >= 1, T >= 1, {size}), got {tuple(tensor.shape)}; the last axis is "
                f"{'input_size' if name == 'x' else 'context_size'}."
            )
    batch, queries, _ = x.shape
    if context is None and context_size != input_size:
        raise ValueError(f"context: needed where context_size={context_size} is set, got None.")
    if context is not None and context.shape[0] != batch:
        raise ValueError(f"context: batch must be that of x, {batch}, got {context.shape[0]}.")
    keys = queries if context is None else context.shape[1]
    if times is not None and times.shape not in {(batch,), (batch, keys), (batch, queries, keys)}:
        raise ValueError(
            f"times: shape must be ({batch},), ({batch}, {keys}) or ({batch}, {queries}, {keys}), "
            f"got {tuple(times.shape)}."
        )
    if window is not None and window < 1:
        raise ValueError(f"window: must be at least 1 step, got {window}.")
    if valid is not None and (valid.shape != (batch, keys) or valid.dtype != torch.bool):
        raise ValueError(f"valid: must be bool ({batch}, {keys}), got {valid.dtype} {tuple(valid.shape)}.")
