"""The learning curves of the shipped drivers, from the metrics of their runs.

    python benchmarks/figures/curves.py docs/runs docs/figures

curves.png, left: DAgger, returns on the validation tracks after every round against labelled frames. Middle: PPO of a
clone, against the frames that it drove. Right: the same against the time that driving and learning took on one core,
where the run recorded it. ppo_in_minutes.png: PPO from random weights with growing penalties, and with full ones from
the start. ppo_from_scratch.png: the runs of the shipped ppo-experts. ppo_ablation.png: the same with one setting
changed. A dot is an episode, a line the mean. The axis of returns is stretched towards the top.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from nac_drive.storage.style import SOFT, Look, colour_of, looks_of, stretch_returns, styled

DAGGER = (
    "clone-discrete",
    "champion-discrete",
    "clone-continuous",
    "champion-continuous-first",
    "champion-continuous",
    "champion-continuous-window-32",
    "champion-continuous-residual",
)
PPO = (
    "expert-discrete-first",
    "expert-discrete-second",
    "expert-discrete",
    "expert-discrete-scratch",
    "expert-continuous-ppo",
)
MINUTES = tuple(f"ppo-minutes-seed-{seed}" for seed in range(5))
MINUTES_DISCRETE = tuple(f"ppo-minutes-discrete-seed-{seed}" for seed in range(5))
PENALTIES = (
    "ppo-penalties-grow-seed-0",
    "ppo-penalties-grow-seed-1",
    "ppo-penalties-full-seed-0",
    "ppo-penalties-full-float32",
)
SCRATCH = (
    "ppo-continuous-scratch",
    "ppo-continuous-no-missed-tile-penalty",
    "ppo-continuous-scratch-seed-1",
    "ppo-continuous-scratch-seed-2",
    "ppo-discrete-scratch",
)
ABLATION = (
    "ppo-ablation-none",
    "ppo-ablation-native-reward",
    "ppo-ablation-gaussian",
    "ppo-ablation-repeat-8",
    "ppo-ablation-repeat-1",
)
ABLATION_OF_LEARNING = (
    "ppo-ablation-none",
    "ppo-ablation-patience-0",
    "ppo-ablation-discount-0.998",
    "ppo-ablation-lambda-0.9",
    "ppo-ablation-entropy-0.01",
    "ppo-ablation-no-average",
    "ppo-ablation-constant-rate",
)
LABELS = {
    "champion-continuous-first": "champion-continuous, first stage, expert's encoder",
    "champion-continuous": "champion-continuous, second stage, slower expert",
    "champion-continuous-window-32": "first stage with a window of 32 frames, constant rate",
    "champion-continuous-residual": "the same with a residual path past the core",
    "expert-continuous-ppo": "continuous (val-25)",
    "expert-discrete-first": "discrete, no penalty off the road (val-10)",
    "expert-discrete-second": "discrete, with the penalty (val-25)",
    "expert-discrete": "discrete, from a better clone: shipped (val-25)",
    "expert-discrete-scratch": "discrete, from random weights (val-5)",
    **{name: f"continuous, seed {seed}" for seed, name in enumerate(MINUTES)},
    **{name: f"discrete, seed {seed}" for seed, name in enumerate(MINUTES_DISCRETE)},
    "ppo-penalties-grow-seed-0": "growing penalties, seed 0",
    "ppo-penalties-grow-seed-1": "growing penalties, seed 1",
    "ppo-penalties-full-seed-0": "full penalties from the start, seed 0",
    "ppo-penalties-full-float32": "the same in float32",
    "ppo-continuous-scratch": "continuous, seed 0: shipped",
    "ppo-continuous-no-missed-tile-penalty": "continuous, no penalty of missed tiles",
    "ppo-continuous-scratch-seed-1": "continuous, seed 1",
    "ppo-continuous-scratch-seed-2": "continuous, seed 2, slower core",
    "ppo-discrete-scratch": "discrete: shipped",
    "ppo-ablation-none": "nothing changed",
    "ppo-ablation-native-reward": "gymnasium's reward alone",
    "ppo-ablation-gaussian": "Gaussian actions",
    "ppo-ablation-repeat-8": "actions held for eight frames",
    "ppo-ablation-repeat-1": "actions held for one frame",
    "ppo-ablation-patience-0": "no early end",
    "ppo-ablation-discount-0.998": "discount 0.998",
    "ppo-ablation-lambda-0.9": "advantage decay 0.9",
    "ppo-ablation-entropy-0.01": "entropy bonus 0.01",
    "ppo-ablation-no-average": "no average of weights",
    "ppo-ablation-constant-rate": "rate nearly constant",
}
Panel = tuple[tuple[str, ...], str, float, str, int]
"""Runs, what to draw them against, its unit, the title of the axis, the lowest return."""
FIGURES: dict[str, tuple[Panel, ...]] = {
    "curves.png": (
        (DAGGER, "frames", 1000, "labelled frames, thousands", 350),
        (PPO, "step", 1000, "frames of PPO, thousands", -100),
        (PPO, "seconds", 60, "minutes of PPO on one core", -100),
    ),
    "ppo_in_minutes.png": (
        (MINUTES, "step", 1e6, "frames, millions", 700),
        (MINUTES_DISCRETE, "step", 1e6, "frames, millions", 700),
        (PENALTIES, "step", 1e6, "frames, millions", -100),
    ),
    "ppo_from_scratch.png": (
        (SCRATCH, "seconds", 60, "minutes of driving and learning on at most one core", -100),
        (SCRATCH, "step", 1e6, "frames, millions", -100),
    ),
    "ppo_ablation.png": (
        (ABLATION, "step", 1e6, "frames, millions", -100),
        (ABLATION_OF_LEARNING, "step", 1e6, "frames, millions", -100),
    ),
}


def main(runs: Path, folder: Path) -> None:
    for name, panels in FIGURES.items():
        plot(runs, panels).savefig(folder / name, dpi=150)


@styled()
def plot(runs: Path, panels: tuple[Panel, ...]) -> Figure:
    figure = Figure(figsize=(1 + 4 * len(panels), 5.6), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, (names, key, unit, title, low) in zip(axes, panels, strict=True):
        for name, look in looks(names).items():
            rows = [json.loads(line) for line in (runs / f"{name}.jsonl").read_text().splitlines()]
            if key in rows[0]:
                rows = [row for row in rows if "returns" in row]  # the others are rollouts of ppo
                at, returns = [row[key] / unit for row in rows], [row["returns"] for row in rows]
                draw(axis, at, returns, look, LABELS.get(name, name))
        axis.axhline(900, color=SOFT, linewidth=1, linestyle="--")
        stretch_returns(axis, low)
        axis.set_xlabel(title)
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), handlelength=3)
    axes[0].set_ylabel("validation return (stretched scale)")
    return figure


def looks(names: tuple[str, ...]) -> dict[str, Look]:
    """The look of every run: by family, or one colour each if all are of one family."""
    if len({colour_of(name) for name in names}) > 1:
        return looks_of(names)
    return dict(zip(names, looks_of(map(str, range(len(names)))).values(), strict=True))


def draw(axis: Any, at: list[float], returns: list[list[float]], look: Look, label: str) -> None:
    for x, episodes in zip(at, returns, strict=True):
        axis.plot([x] * len(episodes), episodes, ".", color=look.color, alpha=0.3, markersize=4, markeredgewidth=0)
    means = [sum(episodes) / len(episodes) for episodes in returns]
    axis.plot(at, means, look.marker, linestyle=look.linestyle, color=look.color, label=label)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
