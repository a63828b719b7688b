"""Speed of every driver, beside the best public PyTorch version of its core.

python benchmarks/speed/drivers.py                # every core, about five minutes
python benchmarks/speed/drivers.py lstm cfc ltc

Protocol: one thread. `ms/act`: the least of eight medians of 100 calls of `Driver.act` each, with the compact
encoder, discrete control, on one frame at a time, once windows are full. `sequences/s`: forward and backward through
the core alone, 64 features in and out, batches of 16 sequences of 64 frames. A baseline is measured in turns with ours;
each time belongs to the fastest run that fits the budget. A ratio of 2 means that ours takes half the time. Baselines:
ncps (its cells step through time in Python), torch.nn.MultiheadAttention under the mask of the window.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence

import ncps.torch
import ncps.wirings
import numpy as np
import torch
from torch import Tensor, nn

from nac_drive.envs import EnvConfig, make_env
from nac_drive.policies import CORES, Driver, DriverConfig, build_core

D_MODEL, LENGTH, BATCH, WINDOW = 64, 64, 16, 32
MEDIANS, ACTS = 8, 100
BUDGET = 0.5
"""Seconds of repetition per measurement; at least three runs."""

Forward = Callable[[Tensor], Tensor]


def ncps_forward(model: nn.Module) -> Forward:
    return lambda x: model(x)[0]


def attention(heads: int) -> Forward:
    model = nn.MultiheadAttention(D_MODEL, heads, batch_first=True)
    age = torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)
    masked = (age < 0) | (age >= WINDOW)
    return lambda x: model(x, x, x, attn_mask=masked, need_weights=False)[0]


def ncp_wiring(core: str) -> ncps.wirings.Wiring:
    if core == "cfc-ncp":
        return ncps.wirings.AutoNCP(build_core(core, D_MODEL, D_MODEL).wiring.units, D_MODEL)  # type: ignore[union-attr]
    return ncps.wirings.NCP(
        inter_neurons=12, command_neurons=6, motor_neurons=3, sensory_fanout=4, inter_fanout=4,
        recurrent_command_synapses=4, motor_fanin=4,
    )  # fmt: skip


BASELINES: dict[str, tuple[str, Callable[[], Forward]]] = {
    "ltc": ("ncps LTC", lambda: ncps_forward(ncps.torch.LTC(D_MODEL, D_MODEL))),
    "ncp": ("ncps LTC, NCP wiring", lambda: ncps_forward(ncps.torch.LTC(D_MODEL, ncp_wiring("ncp")))),
    "cfc": ("ncps CfC", lambda: ncps_forward(ncps.torch.CfC(D_MODEL, D_MODEL))),
    "cfc-no-gate": ("ncps CfC, no_gate", lambda: ncps_forward(ncps.torch.CfC(D_MODEL, D_MODEL, mode="no_gate"))),
    "cfc-pure": ("ncps CfC, pure", lambda: ncps_forward(ncps.torch.CfC(D_MODEL, D_MODEL, mode="pure"))),
    "cfc-ncp": ("ncps CfC, NCP wiring", lambda: ncps_forward(ncps.torch.CfC(D_MODEL, ncp_wiring("cfc-ncp")))),
    "rnn": ("torch RNN", lambda: ncps_forward(nn.RNN(D_MODEL, D_MODEL, batch_first=True))),
    "lstm": ("torch LSTM", lambda: ncps_forward(nn.LSTM(D_MODEL, D_MODEL, batch_first=True))),
    "gru": ("torch GRU", lambda: ncps_forward(nn.GRU(D_MODEL, D_MODEL, batch_first=True))),
    "attention": ("torch MHA, 1 head", lambda: attention(1)),
    "mha": ("torch MHA, 4 heads", lambda: attention(4)),
}


def forward(model: Forward, x: Tensor) -> Callable[[], object]:
    def run() -> None:
        with torch.no_grad():
            model(x)

    return run


def training(model: Forward, x: Tensor) -> Callable[[], object]:
    return lambda: model(x).square().sum().backward()


def seconds(calls: Sequence[Callable[[], object]]) -> list[float]:
    """The fastest run of each call. They take turns, so that a slow moment of the machine hits all."""
    times: list[list[float]] = [[] for _ in calls]
    for call in calls:
        call()  # memory is fetched, libraries are loaded
    while len(times[0]) < 3 or sum(map(sum, times)) < BUDGET * len(calls):
        for call, found in zip(calls, times, strict=True):
            started = time.perf_counter()
            call()
            found.append(time.perf_counter() - started)
    return [min(found) for found in times]


def milliseconds_per_act(name: str, frames: Sequence[np.ndarray]) -> float:
    driver = Driver(DriverConfig(core=name, encoder="compact")).eval()
    state, times = driver.initial_state(1), []
    for frame in frames:
        started = time.perf_counter()
        _, state = driver.act(frame, state, 0.02)
        times.append(time.perf_counter() - started)
    return 1e3 * np.median(np.reshape(times[-MEDIANS * ACTS :], (MEDIANS, ACTS)), axis=1).min()


def row(name: str, frames: Sequence[np.ndarray]) -> list[str]:
    torch.manual_seed(0)
    core = build_core(name, D_MODEL, D_MODEL)

    def ours(x: Tensor) -> Tensor:
        return core(x, torch.full(x.shape[:2], 0.02), core.initial_state(len(x)))[0]

    title, make = BASELINES.get(name, ("", None))
    models = [ours] if make is None else [ours, make()]
    ratios, trained = [], 0.0
    for measure in (forward, training):
        for batch in (1, BATCH):
            x = torch.randn(batch, LENGTH, D_MODEL)
            mine, *theirs = seconds([measure(model, x) for model in models])
            ratios.append(f"{theirs[0] / mine:.1f}" if theirs else "")
            trained = batch / mine
    parameters = sum(parameter.numel() for parameter in core.parameters())
    return [name, f"{parameters:,}", f"{milliseconds_per_act(name, frames):.2f}", f"{trained:.0f}", title, *ratios]


def some_frames(count: int) -> list[np.ndarray]:
    """Frames of a car that starts from rest: the zoom, and full gas after it."""
    env = make_env(EnvConfig())
    env.reset(seed=0)
    frames = [env.step(3)[0] for _ in range(count)]
    env.close()
    return frames


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cores", nargs="*", default=list(CORES), help="names in policies.CORES")
    options = parser.parse_args()
    if unknown := set(options.cores) - set(CORES):
        parser.error(f"cores: must be of {sorted(CORES)}, got {sorted(unknown)}.")
    torch.set_num_threads(1)
    frames = some_frames(2 * WINDOW + MEDIANS * ACTS)
    print(
        f"torch {torch.__version__}, one CPU thread; ratios for batches of 1 and {BATCH} sequences of {LENGTH} frames\n"
    )
    print("| core | parameters | ms/act | sequences/s | baseline | forward, 1 | 16 | training, 1 | 16 |")
    print("|---|---:|---:|---:|---|---:|---:|---:|---:|")
    for name in options.cores:
        print("| " + " | ".join(row(name, frames)) + " |", flush=True)


if __name__ == "__main__":
    main()
