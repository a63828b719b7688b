"""Distil an encoder into itself, under augmentations.

For an augmented frame it learns to give the features that the driver's encoder has of the clean one. The driver keeps
its core and its action head, so that it drives as before where its encoder reaches the old features. Frames come from
any dataset; labels are not needed.

    python benchmarks/protocols/distil_encoder.py FRAMES --driver robust-champion-continuous --minutes 30 \
        --augment random-convolution:3 random-overlay:2 cut-out:2 --out runs/distilled

With `--encoder chroma` the driver gets an encoder that sees other pixels, and weights of the same shapes.

Every minute it prints the loss, and the steering error under `--probe`: how far the driver steers otherwise than the
old driver on clean frames of the last episodes, which it does not learn from. A run that was cut off goes on from its
folder.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

from nac_drive import Demonstrations
from nac_drive.data_collection.drivers import resolve_driver
from nac_drive.envs import BAR_TOP, Augmentation, draw_effect, parse_corruptions
from nac_drive.envs.perturbations.images import FrameSize
from nac_drive.policies import Driver, save_driver

SIZE = FrameSize(96, 96, BAR_TOP)
BATCH = 64
PROBED = 4
"""Episodes kept out for the probes, at most half of all."""
BLACK = 1 / 64
"""Fraction of frames that are black, as lost ones are."""


def parsed(argv: list[str] | None = None) -> argparse.Namespace:
    """Return the arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("frames", nargs="+", help="datasets")
    parser.add_argument("--driver", default="robust-champion-continuous")
    parser.add_argument("--encoder", help="encoder that learns, of equal weights; by default the driver's")
    parser.add_argument("--init-from", help="driver whose encoder it starts from; by default the driver itself")
    parser.add_argument("--augment", nargs="+", required=True, help="perturbations, one of them or none per frame")
    parser.add_argument("--probe", nargs="*", default=["colour:2", "occlusion-bars:2", "occlusion-blobs:2"])
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", required=True)
    return parser.parse_args(argv)


def network(name: str) -> Driver:
    """Return a driver in evaluation mode.

    Raises:
        TypeError: It has no encoder.
    """
    driver = resolve_driver(name)
    if not isinstance(driver, Driver):
        raise TypeError(f"driver {name!r} must be a network with an encoder, got {type(driver).__name__}.")
    return driver.eval()


def main(argv: list[str] | None = None) -> None:
    """Distil, probe and save."""
    args = parsed(argv)
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    out, rng = Path(args.out), np.random.default_rng(args.seed)
    teacher = network(args.driver)
    student = Driver(replace(teacher.config, encoder=args.encoder or teacher.config.encoder)).eval()
    student.load_state_dict(teacher.state_dict())
    if args.init_from:
        student.encoder.load_state_dict(network(args.init_from).encoder.state_dict())
    datasets = [Demonstrations.open(path) for path in args.frames]
    apart = min(PROBED, min(len(dataset.seeds) for dataset in datasets) // 2)
    if not apart:
        raise SystemExit("frames: each dataset needs two episodes, one of them for the probes; record more.")
    learned = np.concatenate([dataset.load(dataset.seeds[:-apart]).frames for dataset in datasets])
    held = datasets[0].load(datasets[0].seeds[-apart:])
    augmentation = Augmentation(args.augment)
    optimizer = torch.optim.Adam(student.encoder.parameters(), args.learning_rate)
    spent, step = 0.0, 0
    if (state := out / "state.pt").exists():
        saved = torch.load(state, weights_only=True)
        student.encoder.load_state_dict(saved["encoder"])
        optimizer.load_state_dict(saved["optimizer"])
        spent, step = saved["spent"], saved["step"]
    out.mkdir(parents=True, exist_ok=True)
    black = np.zeros_like(learned[:1])
    with torch.no_grad():
        wanted = torch.cat([teacher.encoder(torch.from_numpy(part)) for part in [*np.array_split(learned, 100), black]])
    begun, losses = time.monotonic() - spent, []
    next_report = spent + 60.0
    while (spent := time.monotonic() - begun) < 60 * args.minutes:
        for group in optimizer.param_groups:
            group["lr"] = args.learning_rate * (0.02 + 0.49 * (1 + math.cos(math.pi * spent / (60 * args.minutes))))
        rows = np.where(rng.random(BATCH) < BLACK, len(learned), rng.integers(len(learned), size=BATCH))
        shown = [
            black[0] if row == len(learned) else augmentation.draw(rng, SIZE).effect(learned[row])
            for row in rows.tolist()
        ]
        loss = (student.encoder(torch.from_numpy(np.stack(shown))) - wanted[torch.from_numpy(rows)]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        step += 1
        if spent >= next_report:
            next_report = spent + 60.0
            report(out, student.eval(), teacher, held, args, spent, step, float(np.mean(losses)), optimizer)
            student.train()
            losses = []
    report(out, student.eval(), teacher, held, args, spent, step, float(np.mean(losses or [math.nan])), optimizer)


def report(out, student, teacher, held, args, spent, step, loss, optimizer) -> None:
    """Save the driver, and print loss and probes."""
    state = {"encoder": student.encoder.state_dict(), "optimizer": optimizer.state_dict(), "spent": spent, "step": step}
    torch.save(state, out / "new.pt")
    (out / "new.pt").replace(out / "state.pt")
    save_driver(out / "driver", student, env=teacher.env_config, meta={**teacher.meta, "distilled": vars(args)})
    errors = {spec: steering_error(student, teacher, held, spec) for spec in ["", *args.probe]}
    row = {"minutes": round(spent / 60, 1), "step": step, "loss": round(loss, 4), "steering_error": errors}
    print(json.dumps(row), flush=True)
    with (out / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")


@torch.no_grad()
def steering_error(student: Driver, teacher: Driver, held, spec: str, length: int = 200) -> float:
    """Return the mean error in steering under `spec`."""
    errors = []
    for episode, (first, end) in enumerate(pairwise(held.offsets.tolist())):
        middle = (first + end) // 2
        rows = slice(max(middle - length // 2, first), min(middle + length // 2, end))
        effect = draw_effect(parse_corruptions(spec), np.random.default_rng(episode), SIZE)
        dt = torch.from_numpy(held.dt[rows])[None]
        frames = held.frames[rows]
        wanted, found = (
            driver(torch.from_numpy(seen)[None], dt)[0][0, :, 0]
            for driver, seen in ((teacher, frames), (student, effect(frames)))
        )
        errors.append((wanted - found).abs().mean().item())
    return round(float(np.mean(errors)), 4)


if __name__ == "__main__":
    main()
