"""Directions of a car that one frame shows.

A car that was turned sees a road whose tiles it has visited. Those have lost their shade, a difference of 1 to 2 %, and
nothing else differs. A driver without memory can only turn back where its encoder shows that.

    python benchmarks/protocols/direction.py

The controller drives. At `POINTS` of every track the car is put on the road near the centre line, at a random speed, in
the direction of the lap and, from the same state, turned. After `SETTLED` frames without an action comes the picture. A
logistic regression learns from a driver's features of such pictures which way round the car stands, and is tested on
other tracks. *network of its own* is an encoder that is trained for nothing but this, end to end: what a picture holds.
"""

from __future__ import annotations

import argparse
import math
from typing import Any

import numpy as np
import torch
from scipy.stats import binomtest
from torch import nn
from torch.nn import functional

import nac_drive as nd
from nac_drive.data_collection.controller.controller import Controller
from nac_drive.data_collection.drivers import resolve_driver
from nac_drive.envs import EnvConfig, Step, make_env, rollout
from nac_drive.policies import Driver, DriverConfig

POINTS = (150, 210, 270, 330, 390, 450)
"""Frames of the controller's drive at which the car is put on the road."""
ASIDE, ANGLE, SPEED = 3.0, 0.3, 50.0
"""Largest distance from the centre line in units, largest error of the heading in radians, largest speed in units/s."""
SETTLED = 4
STILL = np.zeros(3, np.float32)
FIRST_TRACK, FIRST_TEST_TRACK = 40_000, 45_000
DRIVERS = ("expert", "ppo-expert", "champion")
BATCH = 64


def pictures(tracks: range, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return pictures (N, H, W, 3), and which are turned (N,)."""
    env, rng = make_env(EnvConfig("continuous", max_steps=max(POINTS) + 1)), np.random.default_rng(seed)
    simulator: Any = env.unwrapped
    frames, turned = [], []

    def both_ways(step: Step) -> None:
        if step.index not in POINTS:
            return
        state = simulator.save_state()
        line, place = simulator.centre_line, simulator.pose.index
        (x, y), road = line.points[place], line.angles[place]
        aside, error, speed = rng.uniform(-ASIDE, ASIDE), rng.uniform(-ANGLE, ANGLE), rng.uniform(0, SPEED)
        x, y = x + aside * math.cos(road), y + aside * math.sin(road)
        for way in (False, True):
            angle = road + error + math.pi * way
            simulator.place(angle, x, y, velocity=(-speed * math.sin(angle), speed * math.cos(angle)))
            for _ in range(SETTLED):
                simulator.step(STILL)
            frames.append(simulator.look())
            turned.append(way)
            simulator.restore_state(state)

    for track in tracks:
        rollout(env, Controller("continuous"), track, subscribers=[both_ways])
    return np.stack(frames), np.array(turned)


def features(driver: Driver, frames: np.ndarray) -> np.ndarray:
    """Return a driver's features (N, F)."""
    with torch.no_grad():
        parts = torch.from_numpy(frames)[:, None].split(BATCH)
        return torch.cat([driver.features(part)[:, 0] for part in parts]).numpy()


def probed(inputs: np.ndarray, turned: np.ndarray, tested: np.ndarray) -> np.ndarray:
    """Answer by a logistic regression.

    It learns from `inputs` (N, F), with the penalty |w|^2 / 2, and answers for `tested` (M, F).
    """
    mean, sd = inputs.mean(axis=0), inputs.std(axis=0) + 1e-6
    x, y = torch.from_numpy((inputs - mean) / sd), torch.from_numpy(turned.astype(np.float32))
    line = nn.Linear(x.shape[1], 1)
    optimizer = torch.optim.LBFGS(line.parameters(), max_iter=500, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        error = functional.binary_cross_entropy_with_logits(line(x)[:, 0], y, reduction="sum")
        total = error + line.weight.square().sum() / 2
        total.backward()
        return total

    optimizer.step(loss)
    with torch.no_grad():
        return (line(torch.from_numpy((tested - mean) / sd))[:, 0] > 0).numpy()


def trained_for_it(frames: np.ndarray, turned: np.ndarray, tested: np.ndarray, epochs: int) -> np.ndarray:
    """Answer for `tested` by an encoder of its own."""
    torch.manual_seed(0)
    driver = Driver(DriverConfig("cnn", control="discrete", num_actions=2, encoder="compact", residual=False))
    optimizer = torch.optim.Adam(driver.parameters(), lr=1e-3)
    rng, answers = np.random.default_rng(0), torch.from_numpy(turned.astype(np.int64))

    def logits(part: np.ndarray) -> torch.Tensor:
        return driver(torch.from_numpy(part)[:, None], torch.zeros(len(part), 1))[0][:, 0]

    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for _ in range(epochs):
        driver.train()
        for chosen in np.array_split(rng.permutation(len(frames)), math.ceil(len(frames) / BATCH)):
            loss = functional.cross_entropy(logits(frames[chosen]), answers[chosen])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(driver.parameters(), 1.0)
            optimizer.step()
        schedule.step()
    driver.eval()
    with torch.no_grad():
        parts = np.array_split(tested, math.ceil(len(tested) / BATCH))
        return torch.cat([logits(part) for part in parts]).argmax(dim=1).numpy().astype(bool)


def row(name: str, right: np.ndarray) -> str:
    """Return a row of the table.

    It has the percentage of right answers with Wilson's 95 % interval.
    """
    interval = binomtest(int(right.sum()), len(right)).proportion_ci(method="wilson")
    return f"| {name} | {100 * right.mean():.1f} [{100 * interval.low:.1f}, {100 * interval.high:.1f}] |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tracks", type=int, default=200, help="to learn from; half as many to test on")
    parser.add_argument("--epochs", type=int, default=30, help="of the network of its own")
    args = parser.parse_args()
    torch.set_num_threads(1)
    frames, turned = pictures(range(FIRST_TRACK, FIRST_TRACK + args.tracks), 0)
    tested, answers = pictures(range(FIRST_TEST_TRACK, FIRST_TEST_TRACK + args.tracks // 2), 1)
    print(f"{len(frames)} pictures of {args.tracks} tracks, tested on {len(tested)} of others\n")
    print("| features of | right, % |\n|---|---:|")
    for name in DRIVERS:
        for control in ("continuous", "discrete"):
            driver = resolve_driver(name, nd.EnvConfig(control))
            if not isinstance(driver, Driver):
                raise TypeError(f"{name} must be a network.")
            said = probed(features(driver, frames), turned, features(driver, tested))
            print(row(f"{name}, {control}", said == answers), flush=True)
    print(row("network of its own", trained_for_it(frames, turned, tested, args.epochs) == answers))


if __name__ == "__main__":
    main()
