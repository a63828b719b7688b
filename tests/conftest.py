"""Every test process uses one thread, so that parallel ones do not compete for the cores."""

from __future__ import annotations

import os

import cv2
import torch

if not torch.cuda.is_available():  # kernels of triton then run on the CPU; it must be set before triton is imported
    os.environ.setdefault("TRITON_INTERPRET", "1")
torch.set_num_threads(1)
cv2.setNumThreads(1)
