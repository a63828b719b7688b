"""Memory of this process: for frames, and in use."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import torch

from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.data_collection.dataset.frames import Frames

_ELSEWHERE = 8 * 2**30
"""Bytes of memory that are assumed where the system does not say."""
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Files with the limit of a container, of cgroup 2 and 1."""


def read_episodes(
    dataset: Demonstrations, seeds: Sequence[int], device: torch.device, *, stream: bool = False
) -> Frames:
    """Read episodes of a dataset, into memory if they fit.

    The frames of the whole dataset must fit into `frame_memory`.

    Args:
        dataset: The dataset.
        seeds: Track seeds of the episodes.
        device: Where frames in memory are going to be.
        stream: Leave the frames in their files in any case.
    """
    size = sum(row["length"] for row in dataset.rows) * math.prod(dataset.meta.env.spec.frame_shape)
    return dataset.stream(seeds) if stream or size > frame_memory(device) else dataset.load(seeds)


def frame_memory(device: torch.device) -> int:
    """Return how many bytes of decoded frames stay in memory.

    More are read from their files again and again.

    A quarter of the memory that this process may use: the machine's, the container's or `ulimit`'s, whichever is
    least. On a GPU at most half of its free memory.

    Args:
        device: Where the frames are kept.
    """
    budget = usable_memory() // 4
    if device.type == "cuda":
        budget = min(budget, torch.cuda.mem_get_info(device)[0] // 2)
    return budget


def usable_memory() -> int:
    """Return the bytes of memory that this process may use.

    It is the least of all limits.
    """
    limits = [_ELSEWHERE]
    with suppress(AttributeError, ValueError, OSError):  # not on Windows
        limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in _LIMITS:
        with suppress(OSError, ValueError):  # `max` is no number
            limits.append(int(Path(path).read_text()))
    with suppress(ImportError):
        import resource  # not on Windows

        of_process = [resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA)]
        limits += [limit for limit in of_process if limit != resource.RLIM_INFINITY]
    return min(limits)


def peak_memory_mb(device: torch.device) -> float | None:
    """Return the most memory so far, in megabytes (10^6 bytes).

    On a GPU it counts the tensors there, otherwise the resident memory of this process; None where the system does
    not say (it is Linux that does).
    """
    if device.type == "cuda":
        return round(torch.cuda.max_memory_allocated(device) / 1e6, 1)
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return round(int(line.split()[1]) * 1024 / 1e6, 1)
    return None
