"""Training in several processes, each on its part of batches.

lightning-fabric's data-parallel strategy joins them.

The parts make up the batch of one process, and the gradients of the parts are averaged by their weights: loss and
weights equal one process's, up to rounding and the random masks of dropout.
"""

from __future__ import annotations

import logging
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from nac_drive.policies.device import choose_device
from nac_drive.training.data.sequences import Sequences

if TYPE_CHECKING:  # slow to import: `build_fabric` does when a run starts
    from lightning_fabric import Fabric

_PATIENCE = timedelta(days=7)
"""Time that the other processes wait for the main one, which validates and, in `dagger`, collects."""


def build_fabric(device: str, precision: str, devices: int, nodes: int, batch_size: int) -> Fabric:
    """Return a fabric whose processes are not launched yet.

    Args:
        device: `auto`, `cpu` or `cuda`.
        precision: `auto` (bf16-mixed on a GPU that has it, else 32-true), or a precision of lightning-fabric.
        devices: Processes on each machine, each with a GPU of its own or, on the CPU, some of its cores.
        nodes: Machines.
        batch_size: Sequences of a batch; each process needs one.

    Raises:
        ValueError: If a number is out of range, or the device is not there.

    Warns:
        UserWarning: If the processor has no bfloat16 of its own, so that training in it is many times slower.
    """
    from lightning_fabric import Fabric
    from lightning_fabric.strategies.ddp import DDPStrategy

    accelerator = choose_device(device).type
    if precision == "auto":
        native = accelerator == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        precision = "bf16-mixed" if native else "32-true"
    if accelerator == "cpu":
        warn_of_emulation(precision)
    if min(devices, nodes) < 1:
        raise ValueError(f"devices and nodes must be at least 1, got {devices} and {nodes}.")
    if devices * nodes == 1:
        return Fabric(accelerator=accelerator, devices=1, precision=precision)  # type: ignore[arg-type]
    there = torch.cuda.device_count() if accelerator == "cuda" else os.cpu_count() or 1
    if devices > there:
        raise ValueError(f"devices must not exceed those of this machine ({there} {accelerator}), got {devices}.")
    if devices * nodes > batch_size:
        raise ValueError(
            f"batch_size must be at least devices x nodes, one sequence for each process, got {batch_size} for "
            f"{devices} x {nodes}."
        )
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # it announces every process on stderr
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # its processes print stack traces where a connection ends
    strategy = DDPStrategy(timeout=_PATIENCE)  # every weight gets a gradient: a contract of the cores
    return Fabric(accelerator=accelerator, devices=devices, num_nodes=nodes, strategy=strategy, precision=precision)  # type: ignore[arg-type]


def warn_of_emulation(precision: str) -> None:
    """Warn of a precision that this processor does not have."""
    if precision.startswith("bf16") and not _has_bfloat16():
        warnings.warn(
            f"precision: this processor only emulates {precision}, which takes about nine times as long as 32-true; "
            "leave it out.",
            stacklevel=3,
        )


def _has_bfloat16() -> bool:
    """Return whether the CPU's convolutions take bfloat16 without emulation (AVX-512, or ARM with BF16)."""
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


@contextmanager
def deaths_in_one_line(fabric: Fabric) -> Iterator[None]:
    """Turn a lost connection into a ChildProcessError of one line."""
    try:
        yield
    except RuntimeError as error:  # of gloo, NCCL and the store of torch.distributed alike
        if fabric.world_size == 1 or not re.search(r"connection|gloo|nccl|broken pipe", str(error), re.IGNORECASE):
            raise
        raise ChildProcessError(
            f"one of {fabric.world_size} training processes died or cannot be reached; go on with --resume."
        ) from None


def own_rows(batch: int, fabric: Fabric) -> np.ndarray:
    """Return the rows of a batch for this process.

    The batch has `batch` sequences.

    A process for which a short last batch has no row gets one that `of_the_batch` gives no weight.
    """
    rank = fabric.global_rank
    return np.arange(rank, batch, fabric.world_size) if rank < batch else np.zeros(1, dtype=np.int64)


def of_the_batch(
    loss: Tensor, fraction: Tensor, sequences: Sequences, batch: int, fabric: Fabric
) -> tuple[Tensor, Tensor, Tensor]:
    """Turn this process's results into the whole batch's.

    Args:
        loss: Weighted mean over the frames of the rows, ().
        fraction: Fraction of those frames with the right action, ().
        sequences: The rows.
        batch: Number of sequences of the whole batch.
        fabric: Its processes.

    Returns:
        The loss to differentiate, whose gradients the processes average to the batch's; the loss of the batch,
        and its fraction of right actions.
    """
    if fabric.world_size == 1:
        return loss, loss, fraction
    labels, weight = sequences.labels, sequences.weight
    weight = loss.new_ones(labels.shape[:2]) if weight is None else weight  # (B, T)
    takes_part = float(fabric.global_rank < batch)
    own, rows = takes_part * weight.sum(), loss.new_tensor(takes_part * len(labels))
    total = fabric.all_reduce(torch.stack([own, own * loss.detach(), rows, rows * fraction]), reduce_op="sum")
    assert isinstance(total, Tensor)
    return loss * (fabric.world_size * own / total[0]), total[1] / total[0], total[3] / total[2]
