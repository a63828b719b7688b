"""Run time and memory of every core, beside Table 5 of the NAC paper.

python benchmarks/layer/cores.py                     # every core at its own window
python benchmarks/layer/cores.py --window 1024       # the cores with a window, over the whole sequence
python benchmarks/layer/cores.py nac-pw mha --device cuda

Protocol of the paper (appendix D.4): one sequence of 1024 steps, 64 features, 4 heads, forward without gradients.
Ours: milliseconds of the fastest pass that fits two seconds, after a first one, on one thread; MB by which the peak of
resident memory (CUDA: of allocated memory) rises above what was there before the first pass. On a CPU each core has a
process of its own. A core that fails costs no other. The paper: the mean of ten passes on a T4 GPU, and the peak. Its
attention, NAC included, sees the whole sequence; ours the core's window.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from pathlib import Path

import torch

from nac_drive.policies import CORES, build_core
from nac_drive.policies.cores.window import WindowBase

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks.layer.nac_layer import milliseconds, peak

LENGTH, D_MODEL, HEADS = 1024, 64, 4

PAPER: dict[str, tuple[str, float, float]] = {
    "nac-exact": ("NAC-Exact/05s/8k", 7.4101, 151.50),
    "nac-euler": ("NAC-Euler", 7.3367, 152.22),
    "nac-steady": ("NAC-Steady", 7.2942, 150.86),
    "nac-2k": ("NAC-2k", 7.3071, 44.75),
    "nac-32k": ("NAC-32k", 7.2313, 549.86),
    "nac-pw": ("NAC-PW", 8.5649, 5042.09),
    "nac-02s": ("NAC-02s", 7.252, 151.54),
    "nac-09s": ("NAC-09s", 7.222, 150.85),
    "nac-phi-linear": ("NAC-φ linear", 7.223, 150.85),
    "nac-phi-tanh": ("NAC-φ tanh", 7.232, 151.54),
    "nac-fc": ("NAC-FC", 0.0588, 24.57),
    "nac-09sfc": ("NAC-09sFC", 0.0521, 24.34),
    "nac-05sfc": ("NAC-05sFC", 0.0516, 24.09),
    "nac-02sfc": ("NAC-02sFC", 0.0495, 24.34),
    "rnn": ("RNN", 1.8392, 0.29),
    "lstm": ("LSTM", 2.6241, 0.42),
    "gru": ("GRU", 3.216, 0.54),
    "ct-rnn": ("CT-RNN", 7.1097, 0.67),
    "gru-ode": ("GRU-ODE", 12.2498, 0.64),
    "phased-lstm": ("PhasedLSTM", 4.9812, 0.80),
    "mmrnn": ("mmRNN", 7.5852, 0.96),
    "ltc": ("LTC", 14.643, 0.99),
    "cfc": ("CfC", 6.0988, 0.76),
    "deepstate": ("DeepState", 0.6246, 2.10),
    "s4d": ("S4", 0.0182, 66.98),
    "attention": ("Attention", 0.0016, 16.86),
    "mha": ("MHA", 0.0041, 69.05),
    "relu-attention": ("Linear Attention", 0.0088, 43.7),
    "performer": ("Performer", 0.0097, 18.57),
    "mtan": ("mTAN", 0.0272, 790.16),
    "cta": ("CTA", 8.5275, 1.43),
    "odeformer": ("ODEFormer", 0.0317, 67.71),
    "contiformer": ("ContiFormer", 0.066, 67.71),
}
"""Core -> name, seconds and MB in Table 5."""


def measure(name: str, window: int | None, device: str) -> tuple[int, int | None, float, float]:
    """Return the parameters of a core, its window in frames, milliseconds and MB, measured in this process."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    settings = {"num_heads": HEADS, "window": window}
    accepted = {key: value for key, value in settings.items() if key in CORES[name].accepted and value is not None}
    core = build_core(name, D_MODEL, D_MODEL, **accepted).to(device).eval()
    x, dt = torch.randn(1, LENGTH, D_MODEL, device=device), torch.full((1, LENGTH), 0.02, device=device)
    state = core.initial_state(1)
    with torch.no_grad():
        core(x[:, :8], dt[:, :8], state)  # libraries are loaded
        peak(device)
        before = peak(device)
        core(x, dt, state)
        memory = peak(device) - before
        time = milliseconds(lambda: core(x, dt, state), device)
    parameters = sum(parameter.numel() for parameter in core.parameters())
    frames = next((part.window for part in core.modules() if isinstance(part, WindowBase)), None)
    return parameters, frames, time, memory


def machine(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else "one CPU thread"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cores", nargs="*", help="names in CORES (default: all, or with --window those that have one)")
    parser.add_argument("--window", type=int, help="window in frames of the cores that have one")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    options = parser.parse_args()
    if unknown := set(options.cores) - set(CORES):
        parser.error(f"cores: must be of {sorted(CORES)}, got {sorted(unknown)}.")
    having = [name for name in CORES if options.window is None or "window" in CORES[name].accepted]
    # a forked process need not load torch again, but cannot use CUDA, where one process measures all
    on_cpu = options.device == "cpu"
    context = multiprocessing.get_context("fork" if on_cpu else "spawn")
    with context.Pool(1, maxtasksperchild=1 if on_cpu else None) as pool:
        where = pool.apply(machine, (options.device,))
        print(f"{where}, torch {torch.__version__}; batch 1, T = {LENGTH}, {D_MODEL} features, {HEADS} heads\n")
        print("| core | parameters | window | ms | peak MB | Table 5 | its ms | its MB |")
        print("|:--|--:|--:|--:|--:|:--|--:|--:|")
        for name in options.cores or having:
            title, seconds, megabytes = PAPER.get(name, ("", 0.0, 0.0))
            theirs = f"{title} | {1e3 * seconds:,.1f} | {megabytes:,.1f}" if title else " | | "
            try:
                parameters, window, time, memory = pool.apply(measure, (name, options.window, options.device))
                ours = f"{parameters:,} | {window or ''} | {time:.2f} | {memory:.0f}"
            except RuntimeError as error:  # too little memory on the card, for example
                ours = f" | | {type(error).__name__} | "
            print(f"| `{name}` | {ours} | {theirs} |", flush=True)


if __name__ == "__main__":
    main()
