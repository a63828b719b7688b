"""Speed and memory of the NAC layer, beside attention and recurrence.

python benchmarks/layer/nac_layer.py                      # every row, T = 256, 1024, 4096, then one streaming step
python benchmarks/layer/nac_layer.py nac-exact mha -T 1024
python benchmarks/layer/nac_layer.py --device cuda
python benchmarks/layer/nac_layer.py nac-pw naive mha -T 1024   # naive: nac-pw, query by query

Protocol of the NAC paper's Table 5: batch 1, 64 features, 4 heads, forward without gradients; then a training step
(forward and backward). Each cell runs in its own process: milliseconds of the fastest run, and how far the peak
of resident memory (CUDA: of allocated memory) rises above what was there before the first call. The last column is the
training step over the forward.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from nac_drive.policies import NAC, NAC_VARIANTS, NACCore
from nac_drive.policies.nac.naive import naive_nac

D_MODEL, HEADS, WINDOW = 64, 4, 32
NAC_ROWS = ["nac-exact", "nac-block", "nac-2k", "nac-32k", "nac-pw", "nac-steady", "nac-euler", "nac-fc"]
ROWS = [*NAC_ROWS, "mha", "lstm", "gru", "cfc (ncps)", "ltc (ncps)"]
NAMED = [*ROWS, "naive"]
"""Rows that may be named. `naive` takes minutes at T = 4096."""
BUDGET, BUDGET_ON_CUDA = 2.0, 0.5
"""Seconds of repetition per measurement; at least one run. A GPU repeats its times more closely."""


def build(name: str) -> tuple[nn.Module, Callable[[nn.Module, Tensor], Tensor]]:
    """The model of a row, and how to call it."""
    if name == "mha":
        attention = nn.MultiheadAttention(D_MODEL, HEADS, batch_first=True)
        return attention, lambda model, x: model(x, x, x, need_weights=False)[0]
    if name in ("lstm", "gru"):
        return {"lstm": nn.LSTM, "gru": nn.GRU}[name](D_MODEL, D_MODEL, batch_first=True), lambda model, x: model(x)[0]
    if name.endswith("(ncps)"):
        from ncps.torch import LTC, CfC

        return {"cfc": CfC, "ltc": LTC}[name[:3]](D_MODEL, D_MODEL), lambda model, x: model(x)[0]
    if name == "naive":
        layer: nn.Module = NAC(D_MODEL, HEADS, **NAC_VARIANTS["nac-pw"])
        return layer, naive_nac  # type: ignore[return-value]
    return NAC(D_MODEL, HEADS, **NAC_VARIANTS[name]), lambda model, x: model(x)


def milliseconds(call: Callable[[], object], device: str) -> float:
    """The fastest of the runs that fit the budget, after a first one: what else the machine does only adds."""

    def timed() -> float:
        started = time.perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        return 1e3 * (time.perf_counter() - started)

    budget = 1e3 * (BUDGET_ON_CUDA if device == "cuda" else BUDGET)
    for _ in range(3 if device == "cuda" else 0):  # kernels are compiled, and the third call repeats recorded loops
        call()
    spent = [timed()]
    times = [] if spent[0] < budget / 2 else spent  # too slow to throw the first run away
    while not times or (sum(times) < budget and len(times) < 200):
        times.append(timed())
    return min(times)


def peak(device: str) -> float:
    """MB: the high-water mark since the last call of this function, which resets it."""
    if device == "cuda":
        megabytes = torch.cuda.max_memory_allocated() / 2**20
        torch.cuda.reset_peak_memory_stats()
        return megabytes
    status = Path("/proc/self/status")
    if not status.exists():  # not Linux
        return float("nan")
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    Path("/proc/self/clear_refs").write_text("5")
    return int(line.split()[1]) / 1024


def measure(name: str, length: int, device: str) -> dict[str, float]:
    """One cell, in this process."""
    torch.manual_seed(0)
    model, call = build(name)
    model, x = model.to(device), torch.randn(1, length, D_MODEL, device=device)
    warm = torch.randn(1, 8, D_MODEL, device=device)
    with torch.no_grad():
        call(model, warm)  # threads and libraries are loaded
        peak(device)
        before = peak(device)
        call(model, x)
        memory = peak(device) - before
        forward = milliseconds(lambda: call(model, x), device)

    def step() -> None:
        model.zero_grad()
        call(model, x).square().sum().backward()

    peak(device)
    before = peak(device)
    training = milliseconds(step, device)
    return {"forward": forward, "memory": memory, "training": training, "training_memory": peak(device) - before}


def measure_stream(device: str) -> dict[str, float]:
    """Milliseconds of one streaming step on one thread: torch's LSTMCell, and NAC with 16 heads over 32 frames."""
    torch.set_num_threads(1)
    x, dt = torch.randn(1, D_MODEL, device=device), torch.full((1, 1), 0.02, device=device)
    cell = nn.LSTMCell(D_MODEL, D_MODEL).to(device)
    core = NACCore(D_MODEL, D_MODEL, num_heads=16, window=WINDOW).to(device).eval()
    state = core.initial_state(1)
    with torch.no_grad():
        for _ in range(WINDOW):
            _, state = core(x[:, None], dt, state)
        hidden = (torch.zeros_like(x), torch.zeros_like(x))
        return {
            "lstm cell": milliseconds(lambda: [cell(x, hidden) for _ in range(100)], device) / 100,
            "nac-exact": milliseconds(lambda: [core(x[:, None], dt, state) for _ in range(100)], device) / 100,
        }


def in_a_process(*arguments: str) -> dict[str, float]:
    """`measure` or `measure_stream` in a fresh process."""
    command = [sys.executable, __file__, "--cell", *arguments]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", default=ROWS, help=f"of {', '.join(NAMED)}")
    parser.add_argument("-T", "--lengths", nargs="+", type=int, default=[256, 1024, 4096])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--cell", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cell:
        name, *length = options.cell
        device = options.device
        print(json.dumps(measure(name, int(length[0]), device) if length else measure_stream(device)))
        return
    unknown = set(options.rows) - set(NAMED)
    if unknown:
        parser.error(f"rows: must be of {NAMED}, got {sorted(unknown)}.")
    machine = torch.cuda.get_device_name() if options.device == "cuda" else f"{torch.get_num_threads()} CPU threads"
    print(f"{machine}, torch {torch.__version__}; batch 1, {D_MODEL} features, {HEADS} heads\n")
    print("| T | model | parameters | forward ms | x MHA | peak MB | training step ms | peak MB | step / forward |")
    print("|--:|:--|--:|--:|--:|--:|--:|--:|--:|")
    for length in options.lengths:
        reference = in_a_process("mha", str(length), "--device", options.device)["forward"]
        for name in options.rows:
            cell = in_a_process(name, str(length), "--device", options.device)
            parameters = sum(p.numel() for p in build(name)[0].parameters())
            print(
                f"| {length} | {name} | {parameters:,} | {cell['forward']:.2f} | {cell['forward'] / reference:.1f} "
                f"| {cell['memory']:.0f} | {cell['training']:.1f} | {cell['training_memory']:.0f} "
                f"| {cell['training'] / cell['forward']:.1f} |",
                flush=True,
            )
    stream = in_a_process("stream", "--device", options.device)
    print(f"\none streaming step (d = {D_MODEL}, 16 heads, window {WINDOW}, one thread): ", end="")
    print(", ".join(f"{name} {ms:.3f} ms" for name, ms in stream.items()), end="")
    print(f", ratio {stream['nac-exact'] / stream['lstm cell']:.1f}")


if __name__ == "__main__":
    main()
