"""How a process that runs tests differs from a user's.

It has one thread, does not wait for the disk, forks its workers and draws small figures.
"""

from __future__ import annotations

import functools
import os
import sys

import cv2
import torch
from tyro._docstrings import _ClassTokenization

from nac_drive.storage import figure
from tests.forked import fork_workers

USERS_DPI = figure.DPI


def prepare() -> None:
    """Change this process for the tests that it runs."""
    if not torch.cuda.is_available():  # kernels of triton then run on the CPU; it must be set before triton is imported
        os.environ.setdefault("TRITON_INTERPRET", "1")
        if sys.platform == "linux":  # neither CUDA nor macOS's libraries survive a fork
            fork_workers()
    torch.set_num_threads(1)  # parallel processes do not compete for the cores
    cv2.setNumThreads(1)
    os.fsync = lambda descriptor: None  # no test cuts the power
    figure.DPI = 40
    # Each command reads the options' sources anew, which is half of the time of a refused command. Here it is once.
    _ClassTokenization.make = staticmethod(functools.cache(_ClassTokenization.make.__wrapped__))  # type: ignore


def read_translations_once() -> None:
    """Keep what torch reads for every export to ONNX, a third of its time."""
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    ONNXRegistry.from_torchlib = staticmethod(functools.cache(ONNXRegistry.from_torchlib))  # type: ignore
