"""The device of networks."""

from __future__ import annotations

import os

import torch


def choose_device(device: str) -> torch.device:
    """Return the device of this process's networks.

    Args:
        device: `auto` (the GPU where there is one), `cpu` or `cuda`.

    Raises:
        ValueError: For another name, and for cuda without a GPU.
    """
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(f"device must be auto, cpu or cuda, got {device!r}.")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is cuda, but torch sees no GPU here; pass --device cpu or auto.")
    if device == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
