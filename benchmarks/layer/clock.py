"""How much the clock of a new core moves its outputs: dt doubles, and everything else stays.

python benchmarks/layer/clock.py     # a minute; the table of docs/drivers.md

*Moved* is the root mean square of the change over the standard deviation of the outputs, the least of five seeds, on
64 frames of a normalised random walk with 64 features.
"""

from __future__ import annotations

import torch

from nac_drive.policies import CORES
from nac_drive.policies.cores.base import NOMINAL_DT

FRAMES, SIZE, SEEDS = 64, 64, 5


@torch.no_grad()
def moved(name: str, **settings: float) -> float:
    """Return the least change of the outputs of a core, over the seeds."""
    changes = []
    for seed in range(SEEDS):
        torch.manual_seed(seed)
        core = CORES[name](SIZE, SIZE, **settings).eval()
        x = torch.nn.functional.layer_norm(torch.randn(1, FRAMES, SIZE).cumsum(dim=1), (SIZE,))
        once, twice = (
            core(x, torch.full((1, FRAMES), dt), core.initial_state(1))[0] for dt in (NOMINAL_DT, 2 * NOMINAL_DT)
        )
        changes.append(((twice - once).square().mean() / once.var()).sqrt().item())
    return min(changes)


def main() -> None:
    print("| core | moved | with time_unit=1 |\n|---|---:|---:|")
    for name, factory in CORES.items():
        if not factory(SIZE, SIZE).continuous_time:
            continue
        seconds = f"{100 * moved(name, time_unit=1.0):.1f} %" if "time_unit" in factory.accepted else ""
        print(f"| `{name}` | {100 * moved(name):.1f} % | {seconds} |", flush=True)


if __name__ == "__main__":
    main()
