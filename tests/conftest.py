"""Every test process uses one thread, so that parallel ones do not compete for the cores."""

from __future__ import annotations

import functools
import gc
import os
from collections.abc import Iterator

import cv2
import pytest
import torch
from tyro._docstrings import _ClassTokenization

if not torch.cuda.is_available():  # kernels of triton then run on the CPU; it must be set before triton is imported
    os.environ.setdefault("TRITON_INTERPRET", "1")
torch.set_num_threads(1)
cv2.setNumThreads(1)
# Each command reads the options' sources anew, which is half of the time of a refused command. Here it is once.
_ClassTokenization.make = staticmethod(functools.cache(_ClassTokenization.make.__wrapped__))  # type: ignore


def pytest_collection_finish() -> None:
    """Leave modules and tests out of garbage collection from now on: some libraries collect after every call."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def _modules_of_a_file_are_left_out_too() -> Iterator[None]:
    yield
    gc.collect(1)
    gc.freeze()


@pytest.fixture(autouse=True)
def _no_curve(monkeypatch: pytest.MonkeyPatch):
    """No figure at the end of every small run: it takes longer than the run. tests/nac_drive/training/test_curve.py."""
    monkeypatch.setattr("nac_drive.training.plan.draw_curve", lambda *_: None)
