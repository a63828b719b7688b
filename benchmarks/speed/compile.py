"""Does torch.compile pay in training? Time of an update, and of the first one, with and without it.

python benchmarks/speed/compile.py              # two minutes on a CPU; it needs a C++ compiler there
python benchmarks/speed/compile.py --cores lstm --device cuda
"""

from __future__ import annotations

import argparse
import time
from statistics import median
from typing import Any

import torch

from nac_drive.policies import Driver, DriverConfig

BATCH, FRAMES, UPDATES = 8, 32, 15


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cores", nargs="+", default=["nac-exact", "cnn"])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    options = parser.parse_args()
    for core in options.cores:
        (_, eager), (first, compiled) = (updates(core, options.device, use) for use in (False, True))
        times = f"{1e3 * eager:.0f} ms an update, compiled {1e3 * compiled:.0f} ms"
        print(f"{core}: {times}, after {first:.0f} s for the first")


def updates(core: str, device: str, compiled: bool) -> tuple[float, float]:
    """Return the seconds of the first update of a driver, and the median of later ones."""
    torch.manual_seed(0)
    driver = Driver(DriverConfig(core=core, residual=True)).to(device)
    encoder: Any
    memory: Any
    encoder, memory = (torch.compile(part) if compiled else part for part in (driver.encoder, driver.core))
    optimizer = torch.optim.Adam(driver.parameters(), 1e-3)
    frames = torch.randint(256, (BATCH, FRAMES, 96, 96, 3), dtype=torch.uint8, device=device)
    dt, labels = torch.full((BATCH, FRAMES), 0.02, device=device), torch.randint(5, (BATCH, FRAMES), device=device)
    seconds = []
    for _ in range(4 + UPDATES):
        started = time.perf_counter()
        features = encoder(frames)
        y, _ = memory(features, dt, driver.initial_state(BATCH))
        loss = driver.action_head.loss(driver.action_head(y + features), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()  # waits for a GPU
        seconds.append(time.perf_counter() - started)
    return seconds[0], median(seconds[4:])


if __name__ == "__main__":
    main()
