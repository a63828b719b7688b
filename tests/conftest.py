"""Every test process uses one thread, so that parallel ones do not compete for the cores."""

from __future__ import annotations

import cv2
import torch

torch.set_num_threads(1)
cv2.setNumThreads(1)
