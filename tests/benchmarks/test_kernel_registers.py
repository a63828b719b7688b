"""The pairwise kernels, compiled without a card."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="the kernel is written in triton")
SCRIPT = Path(__file__).parents[2] / "benchmarks" / "layer" / "kernel_registers.py"
SHARED = {75: 64, 80: 163, 90: 227}
"""Compute capability -> KB of shared memory of a program: CUDA C++ Programming Guide, table of technical specs."""


@pytest.mark.slow
def test_no_kernel_spills_and_every_one_fits_into_the_shared_memory_of_its_card() -> None:
    command = [sys.executable, str(SCRIPT), "--json"]
    rows = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert {(row["pass"], row["capability"], row["tf32"]) for row in rows} == {
        (name, capability, tf32)
        for name in ("forward", "queries", "keys", "weights")
        for capability in SHARED
        for tf32 in ([False, True] if capability >= 80 and name != "weights" else [False])
    }
    for row in rows:
        assert row["spill"] == 0, row
        assert row["registers"] <= 255, row
        assert row["shared"] <= 1024 * SHARED[row["capability"]], row
        assert (row["tensor_cores"] > 0) == row["tf32"], row
