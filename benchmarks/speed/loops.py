"""Time of recurrences over time: step by step, and as a CUDA graph.

python benchmarks/speed/loops.py --device cuda
python benchmarks/speed/loops.py --cores ltc --lengths 16     # on a CPU: step by step alone

Milliseconds of the fastest forward pass without gradients and of the fastest training step, for a core with 64
features. The batch is 32 at T = 16, as in the NAC paper's training, and 1 beyond. `first` is the time of the calls that
record. Training and driving use graphs: `CAPTURES` of `nac_drive/policies/ops/graphed.py` has CUDA.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import torch

from nac_drive.policies import build_core
from nac_drive.policies.ops.graphed import CAPTURES

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks.layer.nac_layer import D_MODEL, milliseconds, peak


def measure(name: str, length: int, device: str) -> dict[str, float]:
    """Return the milliseconds of a core, and the MB that its calls take."""
    torch.manual_seed(0)
    batch = 32 if length <= 16 else 1
    core = build_core(name, D_MODEL, D_MODEL).to(device)
    x, dt = torch.randn(batch, length, D_MODEL, device=device), torch.full((batch, length), 0.02, device=device)
    state = core.initial_state(batch)

    def forward() -> None:
        with torch.no_grad():
            core(x, dt, state)

    def step() -> None:
        core.zero_grad()
        core(x, dt, state)[0].square().sum().backward()

    peak(device)
    before = peak(device)
    first = _seconds(lambda: [call() for call in (forward, step) for _ in range(2)])
    times = {"forward": milliseconds(forward, device), "training": milliseconds(step, device)}
    return {**times, "first": 1e3 * first, "memory": peak(device) - before}


def _seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


@contextmanager
def step_by_step() -> Iterator[None]:
    """Record no loops."""
    with patch.dict(CAPTURES, clear=True):
        yield


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cores", nargs="+", default=["cfc", "ltc"])
    parser.add_argument("--lengths", nargs="+", type=int, default=[16, 64, 1024])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    options = parser.parse_args()
    machine = torch.cuda.get_device_name() if options.device == "cuda" else f"{torch.get_num_threads()} CPU threads"
    print(f"{machine}, torch {torch.__version__}; {D_MODEL} features\n")
    print("| core | T | loop | forward ms | training step ms | first ms | peak MB |")
    print("|:--|--:|:--|--:|--:|--:|--:|")
    for name in options.cores:
        for length in options.lengths:
            with step_by_step():
                rows = {"step by step": measure(name, length, options.device)}
            if options.device == "cuda":
                rows["CUDA graph"] = measure(name, length, options.device)
            for loop, row in rows.items():
                print(
                    f"| `{name}` | {length} | {loop} | {row['forward']:.3f} | {row['training']:.3f} "
                    f"| {row['first']:.0f} | {row['memory']:.0f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
