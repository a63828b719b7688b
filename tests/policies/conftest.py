"""These tests work on tiny tensors: one thread is fastest, and fair to whatever else runs on the machine."""

import torch

torch.set_num_threads(1)
