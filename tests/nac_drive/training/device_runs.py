"""Small runs on both devices.

They have a process for themselves: torch starts its threads of the backward pass with the first one, for the devices
that it then knows.

`python -m tests.nac_drive.training.device_runs FOLDER` writes FOLDER/results.json.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from lightning_fabric import Fabric
from lightning_fabric.accelerators.cpu import CPUAccelerator
from lightning_fabric.strategies.single_device import SingleDeviceStrategy

from nac_drive.analysis.saliency import grad_cam, input_gradient, visual_backprop
from nac_drive.policies import load_driver
from nac_drive.policies.ops.threads import one_thread
from nac_drive.training import dagger as dagger_module
from nac_drive.training import plan
from nac_drive.training import train as train_module
from nac_drive.training.trainer import Trainer
from tests.nac_drive.small import checkpoint, config, dagger_config, demonstrations, rows, train, train_dagger
from tests.python_device import NAME, python_device, register, transfers
from tests.recorded_loops import recorded_loops

TRAININGS: dict[str, dict[str, Any]] = {
    "flipped": {"core": "nac-exact", "ema_decay": 0.9, "horizontal_flip": True},
    "augmented": {"core": "cfc", "augment": ("brightness:2", "frame-drop:1:zero")},
}


class ToyAccelerator(CPUAccelerator):
    """Lets torch's strategies take the device."""

    def setup_device(self, device: torch.device) -> None:
        """Do nothing."""


@contextmanager
def on_device() -> Iterator[list[dict[str, int]]]:
    """Train on the device. Yield the transfers of every update."""
    counts: list[dict[str, int]] = []
    epoch = Trainer.epoch

    def counted(self: Trainer, data: Any, number: int, progress: Any) -> dict[str, float]:
        seen: list[dict[str, int]] = []
        row = epoch(self, data, number, lambda event: seen.append(dict(transfers)))
        counts.extend(
            {kind: later.get(kind, 0) - earlier.get(kind, 0) for kind in ("up", "down")}
            for earlier, later in pairwise(seen)
        )
        return row

    with python_device() as device, patch.object(plan, "choose_device", lambda name: device):
        strategy = SingleDeviceStrategy(device, ToyAccelerator())

        def fabric(*settings: Any) -> Fabric:
            return Fabric(strategy=strategy)

        with (
            patch.object(train_module, "build_fabric", fabric),
            patch.object(dagger_module, "build_fabric", fabric),
            patch.object(Trainer, "epoch", counted),
        ):
            yield counts


def both(run: Callable[[Path], Any], folder: Path) -> dict[str, Any]:
    """Return the rows of a run on both devices."""
    run(folder / "cpu")
    with on_device() as counts:
        run(folder / "device")
    return {"cpu": rows(folder / "cpu"), "device": rows(folder / "device"), "transfers": counts}


def trainings(folder: Path) -> dict[str, Any]:
    """Run every verb that trains."""
    dataset, results = demonstrations(folder / "dataset"), {}
    for name, settings in TRAININGS.items():
        small = config(**{"epochs": 2, "dropout": 0.0, **settings})
        results[name] = both(lambda path, small=small: train(small, dataset, path), folder / name)

    def interrupted(path: Path) -> None:
        train(config("ct-rnn", epochs=1, dropout=0.0, ema_decay=0.5), dataset, path)
        train(config("ct-rnn", epochs=2, dropout=0.0, ema_decay=0.5), dataset, path, resume=True)

    results["resumed"] = both(interrupted, folder / "resumed")
    with recorded_loops(NAME) as repeated:  # on the device alone
        results["dagger"] = both(lambda path: train_dagger(dagger_config("cfc", dropout=0.0), path), folder / "dagger")
    results["dagger"]["repeated"] = len(repeated)
    return results


def analyses(folder: Path) -> dict[str, float]:
    """Return the largest differences of saliency maps."""
    driver = load_driver(checkpoint(folder / "flipped" / "cpu", "best"))
    frames = torch.randint(0, 256, (3, *driver.config.frame_shape), dtype=torch.uint8)
    dt = torch.full((3,), 0.02)
    ours = [visual_backprop(driver, frames), input_gradient(driver, frames, dt), grad_cam(driver, frames, dt)]
    state, actions = driver.begin(), []
    for frame in frames.numpy():
        action, state = driver.act(frame, state, 0.02)
        actions.append(action)
    with python_device() as device:
        driver.to(device)
        there = [
            visual_backprop(driver, frames.to(device)),
            input_gradient(driver, frames.to(device), dt.to(device)),
            grad_cam(driver, frames.to(device), dt.to(device)),
        ]
        state = driver.begin()
        for number, frame in enumerate(frames.numpy()):
            action, state = driver.act(frame, state, 0.02)
            assert action == actions[number]
        names = ("visual_backprop", "input_gradient", "grad_cam")
        return {
            name: float((one - other.cpu()).abs().max()) for name, one, other in zip(names, ours, there, strict=True)
        }


def main() -> None:
    """Run everything."""
    register()
    folder = Path(sys.argv[1])
    with one_thread():
        results = {"trainings": trainings(folder), "analyses": analyses(folder)}
    (folder / "results.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main()
