"""torch's LSTM under mixed precision, on every processor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def run_lstm(lstm: Callable[..., Any], x: Tensor, *arguments: Tensor) -> Any:
    """Call an LSTM; on a CPU under autocast in float32.

    oneDNN has an LSTM in bfloat16 only for processors with AVX-512, and torch raises an error on all others.

    Args:
        lstm: Function of `x` and `arguments`.
        x: Inputs, (B, T, F).
        *arguments: Further tensors, such as the state.

    Returns:
        The result of `lstm`.
    """
    if x.device.type != "cpu" or not torch.is_autocast_enabled("cpu"):
        return lstm(x, *arguments)
    with torch.autocast("cpu", enabled=False):
        return lstm(*(tensor.float() for tensor in (x, *arguments)))
