"""The fast renderer's frames against gymnasium's, and a check that everything else is the same.

python benchmarks/figures/renderer_fidelity.py                # 20 tracks, about two minutes, docs/figures/renderer.png
python benchmarks/figures/renderer_fidelity.py 2 other.png    # fewer tracks, another figure

Both environments drive 300 frames with the same actions: 50 frames the shipped expert's, which sees gymnasium's frames,
50 frames random ones, in turns. Fails unless rewards, terminations and all positions, angles and velocities are equal
bit for bit.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import cv2
import gymnasium
import matplotlib as mpl
import numpy as np
import torch

from nac_drive.data_collection.experts import resolve_driver
from nac_drive.envs import BAR_TOP, EnvConfig, make_env
from nac_drive.envs.renderer.car import CAR_BOTTOM, CAR_LEFT, CAR_RIGHT, CAR_TOP
from nac_drive.envs.renderer.status_bar import SCORE_W

mpl.use("agg")
from matplotlib import pyplot as plt

FRAMES, TURN, ZOOM_FRAMES = 300, 50, 50
FAR = 16
"""A pixel with a channel that is off by more than this is counted."""
REGIONS = {
    "whole frame": np.s_[:, :],
    "above the bar": np.s_[:BAR_TOP, :],
    "around the car": np.s_[CAR_TOP:CAR_BOTTOM, CAR_LEFT:CAR_RIGHT],
    "indicators": np.s_[BAR_TOP:, SCORE_W:],
    "score": np.s_[BAR_TOP:, :SCORE_W],
}


def moving(env: Any) -> list[float]:
    """Position, angle, velocity and turning rate of the hull and the wheels, and how the wheels roll."""
    car = env.unwrapped.car
    bodies = [(*b.position, b.angle, *b.linearVelocity, b.angularVelocity) for b in (car.hull, *car.wheels)]
    return [*np.ravel(bodies), *(wheel.omega for wheel in car.wheels), *(wheel.phase for wheel in car.wheels)]


def drive(seed: int) -> Iterator[tuple[int, np.ndarray, np.ndarray, dict[str, Any]]]:
    """Frame number, our frame, gymnasium's frame and our info, from the reset on."""
    ours, theirs = make_env(EnvConfig(renderer="fast")), gymnasium.make("CarRacing-v3", continuous=False)
    (drawn, info), (observation, _) = ours.reset(seed=seed), theirs.reset(seed=seed)
    expert, rng, action = resolve_driver("expert"), np.random.default_rng(seed), np.int64(3)
    state = expert.begin(ours)
    for frame in range(FRAMES):
        yield frame, drawn, observation, info
        expert_action, state = expert.act(observation, state, info["dt"])
        if frame // TURN % 2 == 0:
            action = expert_action
        elif frame % 5 == 0:
            action = rng.choice(5, p=[0.1, 0.2, 0.2, 0.4, 0.1])
        drawn, *one, info = ours.step(action)
        observation, *other, _ = theirs.step(action)
        if one != other or moving(ours) != moving(theirs):
            raise AssertionError(f"track {seed}, frame {frame + 1}: {one}, {other} differ, or the cars do.")
        if one[1] or one[2]:
            return


def phases(frame: int) -> list[str]:
    return ["all frames", "zoom-in" if frame < ZOOM_FRAMES else "after it"]


def main(tracks: int, figure: str) -> None:
    errors: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    shown: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    frames, worst = 0, 0.0
    for seed in range(tracks):
        for frame, ours, theirs, info in drive(seed):
            frames += 1
            error = np.abs(ours.astype(np.int64) - theirs)
            for name, region in REGIONS.items():
                for phase in phases(frame):
                    far = (error[region].max(axis=-1) > FAR).mean()
                    errors[name, phase].append((error[region].mean(), 100 * far))
            if seed == 0 and frame in (5, 30):
                shown[f"zoom-in, frame {frame}"] = ours, theirs
            if frame > ZOOM_FRAMES and info["wheels_off_road"] == 0 and frame % 100 == 99:
                shown.setdefault("on the road", (ours, theirs))
            if frame > ZOOM_FRAMES and info["wheels_off_road"] == 4:
                shown.setdefault("on the grass", (ours, theirs))
            if error.mean() > worst:
                worst = error.mean()
                shown["the worst of all frames"] = ours, theirs
    print(f"{frames} frames on {tracks} tracks; rewards, terminations and cars are equal bit for bit")
    print("| region | frames | mean absolute error, of 255 | worst frame | off by more than 16 | worst frame |")
    print("|---|---|---:|---:|---:|---:|")
    for (name, phase), rows in sorted(errors.items(), key=lambda item: list(REGIONS).index(item[0][0])):
        (mean, far), (worst_mean, worst_far) = np.mean(rows, axis=0), np.max(rows, axis=0)
        print(f"| {name} | {phase} | {mean:.3f} | {worst_mean:.3f} | {far:.2f} % | {worst_far:.2f} % |")
    draw(shown, figure)


def draw(shown: dict[str, tuple[np.ndarray, np.ndarray]], path: str) -> None:
    """Draw our frame, gymnasium's and eight times the difference, one situation a column."""
    shown = dict(sorted(shown.items(), key=lambda item: item[0].startswith("the worst")))
    plot, axes = plt.subplots(3, len(shown), figsize=(2.6 * len(shown), 8.1), squeeze=False)
    for column, (name, (ours, theirs)) in enumerate(shown.items()):
        difference = np.minimum(8 * np.abs(ours.astype(np.int64) - theirs), 255).astype(np.uint8)
        for row, image in enumerate((ours, theirs, difference)):
            axes[row, column].imshow(image, interpolation="nearest")
            axes[row, column].set(xticks=[], yticks=[])
        axes[0, column].set_title(name)
    for row, name in enumerate(("fast", "gymnasium", "difference x 8")):
        axes[row, 0].set_ylabel(name, fontsize="large")
    plot.tight_layout()
    plot.savefig(path, dpi=110)
    plt.close(plot)


if __name__ == "__main__":
    cv2.setNumThreads(1)
    torch.set_num_threads(1)
    main(
        int(sys.argv[1]) if len(sys.argv) > 1 else 20, sys.argv[2] if len(sys.argv) > 2 else "docs/figures/renderer.png"
    )
