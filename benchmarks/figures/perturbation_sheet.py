"""A sheet of all perturbations, level by level.

Images on the left; on the right the effects that images do not show, measured through the same wrappers that a driver
gets.

python benchmarks/figures/perturbation_sheet.py                  # seconds; writes docs/figures/perturbations.png
python benchmarks/figures/perturbation_sheet.py --out elsewhere
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import tyro
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nac_drive.envs import CORRUPTIONS, FRAMES_PER_SECOND, PERTURBATIONS, EnvConfig, make_env, perturb
from nac_drive.envs.perturbations.base import Perturbation
from nac_drive.envs.perturbations.frames import FrameLoss, IrregularRate
from nac_drive.envs.perturbations.published import PublishedTask
from nac_drive.storage.style import NORMAL, PALETTE, SMALL, SOFT, styled

TRACK, SEED, LEVELS = 3, 3, range(4)
HALVES = {"brightness": (5, 3), "line": (17, 29)}
"""Seeds of the left and of the right half of an image, where two draws are shown."""
DRIVES = tuple(
    name
    for name, (least, *_) in PERTURBATIONS.items()
    if name not in (*CORRUPTIONS, "mishaps") and not isinstance(least, PublishedTask)
)
"""Perturbations with a panel on the right; mishaps happen a few times in an episode, published tasks have one level."""
INK = PALETTE[0]

LABELS = {
    "gaussian-noise": "variance {0.variance}",
    "salt-and-pepper": "{0.fraction:.0%} of pixels",
    "brightness": "times or over {0.factor:g}",
    "shadows": "{0.lines} lines, {0.opacity:.0%} darker",
    "line": "{0.opacity:.0%} opaque",
    "occlusion-bars": "{0.bars} of {0.width:.0%} width",
    "occlusion-blobs": "{0.fraction:.0%} hidden",
    "colour": "moved by {0.distance:g}",
    "random-convolution": "{0.share:.0%} convolved",
    "tone-curves": "{0.share:.0%} toned",
    "random-overlay": "{0.opacity:.0%} opaque",
    "cut-out": "{0.fraction:.0%} hidden",
    "random-erasing": "{0.rectangles} of up to {0.fraction:.0%}",
    "frame-drop": "p = {0.probability}",
    "blackouts": "{0.fraction:.0%}, {0.frames} frames each",
    "gap": "{0.fraction:.0%}",
    "scattered-gaps": "4 gaps, {0.fraction:.0%} in all",
    "action-repeat": "every {0.frames} frames",
    "action-delay": "{0.frames}/50 s late",
    "action-noise": "sd {0.deviation}",
    "weak-tyres": "grip {0.grip}",
}


@styled()
def main(out: Path = Path("docs/figures")) -> None:
    """Write perturbations.png into `out`."""
    figure = Figure(figsize=(15.5, 21.0), layout="constrained")
    left, right = np.ravel(np.array(figure.subfigures(1, 2, width_ratios=(1, 1.35))))
    for side, names in ((left, CORRUPTIONS), (right, DRIVES)):
        grid = side.subplots(len(names), len(LEVELS))
        for row, name in zip(grid, names, strict=True):
            for level, axes in zip(LEVELS, row, strict=True):
                panel(axes, name, level)
            row[0].set_ylabel(name, fontsize=11.5, fontweight="bold")
    left.suptitle(
        "Images: the frame that the driver sees\nleft and right half: darker and brighter, a black and a white line",
        fontsize=NORMAL,
        fontweight="normal",
    )
    right.suptitle(
        "Effects on frames, actions and tyres\n"
        "strokes: frames that arrive; grey: steering commanded, braking on clean tyres; blue: what happens",
        fontsize=NORMAL,
        fontweight="normal",
    )
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / "perturbations.png", dpi=100)


def panel(axes: Axes, name: str, level: int) -> None:
    """One perturbation at one level. Level 0 is the clean drive."""
    spec = f"{name}:{level}"
    if name in CORRUPTIONS:
        axes.imshow(image(spec))
        axes.set(xticks=[], yticks=[])
    elif isinstance(PERTURBATIONS[name][0], FrameLoss):
        seconds = 20 if "gap" in name else 1
        arriving(axes, spec, seconds)
    elif name == "weak-tyres":
        braking(axes, spec)
    else:
        steering(axes, spec)
    axes.set_title(
        "clean" if level == 0 else f"{level}: {label(name, PERTURBATIONS[name][level - 1])}",
        fontsize=NORMAL,
        fontweight="normal",
    )
    axes.tick_params(labelsize=SMALL)
    axes.grid(visible=False)
    if name not in CORRUPTIONS and level:
        axes.set_yticklabels([])


def label(name: str, setting: Perturbation) -> str:
    if isinstance(setting, IrregularRate):
        return f"dt 20 to {20 * len(setting.weights)} ms"
    return LABELS[name].format(setting)


def image(spec: str) -> np.ndarray:
    """The frame after 1.6 s of driving, its halves by two draws where HALVES has them."""
    left, right = HALVES.get(spec.split(":")[0], (SEED, SEED))
    frame = seen(spec, right)
    if left != right:
        frame[:, :48] = seen(spec, left)[:, :48]
    return frame


def seen(spec: str, seed: int) -> np.ndarray:
    env = perturb(blind("discrete"), spec, seed)
    env.reset(seed=TRACK)
    for i in range(79):
        env.step(np.int64(3 if i % 4 else 2))
    env.unwrapped.observe = True  # type: ignore[attr-defined]
    return env.step(np.int64(3))[0]


def arriving(axes: Axes, spec: str, seconds: int) -> None:
    """A stroke for every frame that reaches the driver."""
    env = perturb(blind("continuous"), spec, SEED)
    _, info = env.reset(seed=TRACK)
    time, times = 0.0, [0.0]
    while time < seconds - 1.5 / FRAMES_PER_SECOND:
        info = env.step(np.zeros(3, np.float32))[-1]
        time += info["dt"]
        if not info.get("frame_lost"):
            times.append(time)
    axes.bar(times, 1.0, 0.6 / FRAMES_PER_SECOND if seconds == 1 else 1 / FRAMES_PER_SECOND, align="edge", color=INK)
    axes.set(xlim=(0, seconds), ylim=(0, 1), yticks=[])
    axes.set_xlabel("s", fontsize=SMALL)


def steering(axes: Axes, spec: str) -> None:
    """Steering as it is commanded and as the simulator gets it."""
    env = perturb(blind("continuous"), spec, SEED)
    env.reset(seed=TRACK)
    simulator: Any = env.unwrapped
    commanded = 0.5 * np.sign(np.sin(np.arange(25) * 2 * np.pi / 12.5))
    executed = []
    for steer in commanded:
        env.step(np.array([steer, 0, 0], np.float32))
        executed.append(-simulator.car.wheels[0].steer)
    time = np.arange(25) / FRAMES_PER_SECOND
    axes.step(time, commanded, where="post", color=SOFT, linewidth=2.5)
    axes.step(time, executed, where="post", color=INK, linewidth=1.2)
    axes.set(xlim=(0, 0.5), ylim=(-1.1, 1.1), yticks=[-1, 0, 1])
    axes.set_xlabel("s", fontsize=SMALL)


def braking(axes: Axes, spec: str) -> None:
    """Speed over distance with locked wheels, from 90 units/s. The clean car in grey."""
    for tyres, colour, width in (("weak-tyres:0", SOFT, 2.5), (spec, INK, 1.2)):
        env = perturb(blind("continuous"), tyres, SEED)
        env.reset(seed=TRACK)
        simulator: Any = env.unwrapped
        hull = simulator.car.hull
        ahead = (-90 * np.sin(hull.angle), 90 * np.cos(hull.angle))
        simulator.place(hull.angle, *hull.position, velocity=ahead)
        distance, speed = [0.0], [90.0]
        while speed[-1] > 0.5:
            speed.append(env.step(np.array([0, 0, 1], np.float32))[-1]["speed"])
            distance.append(distance[-1] + speed[-1] / FRAMES_PER_SECOND)
        axes.plot(distance, speed, color=colour, linewidth=width)
    axes.set(xlim=(0, 45), ylim=(0, 95), yticks=[0, 45, 90])
    axes.set_xlabel("units", fontsize=SMALL)


def blind(control: Any) -> gym.Env:
    env = make_env(EnvConfig(control))
    env.unwrapped.observe = False  # type: ignore[attr-defined]
    return env


if __name__ == "__main__":
    tyro.cli(main)
