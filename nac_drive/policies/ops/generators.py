"""Torch's random generators."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def own_generators() -> Iterator[None]:
    """Leave torch's generators as they were.

    What is drawn inside the `with` block, or the function that is decorated, moves none of the caller's.
    """
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices=gpus):
        yield
