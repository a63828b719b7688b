"""Does the attention of NAC drivers select frames? Its weights are measured, then replaced.

    python benchmarks/attention.py            # writes docs/runs/attention.json, prints the tables of docs/attention.md
    python benchmarks/attention.py --drivers runs/nac --perturb blackouts:2 --tracks test-30 --out attention.json

Every driver drives every track five times: with its own weights, with uniform weights, with a window of the newest
frame alone, with weights that are given to the wrong frames, and with the nominal time step instead of the true one.
The differences are paired by track. Native reward, 1000 frames at most.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch

import nac_drive as nd
from nac_drive.analysis.attention import (
    AttentionStep,
    constant_clock,
    largest_weight,
    mean_age,
    nac_core,
    newest_frame_only,
    normalised_entropy,
    recorded_attention,
    shuffled_keys,
    uniform_weights,
)
from nac_drive.evaluation.intervals import bootstrap

CHAMPIONS = ("champion-continuous", "champion-discrete")
WEIGHTS: dict[str, Callable[[nd.Driver], AbstractContextManager[Any]]] = {
    "own": nullcontext,
    "uniform": uniform_weights,
    "newest frame only": newest_frame_only,
    "shuffled": shuffled_keys,
    "constant clock": constant_clock,
}
RESULT = Path(__file__).parents[1] / "docs" / "runs" / "attention.json"


def measure(name: str, tracks: list[int], perturb: str | None) -> dict[str, Any]:
    """Attention and returns of one driver."""
    driver = nd.load_driver(name)
    env = nd.make_env(nd.EnvConfig(**{**driver.env_config, "perturb": perturb}))
    returns: dict[str, list[float]] = {weights: [] for weights in WEIGHTS}
    episodes = []
    for track in tracks:
        for weights, replaced in WEIGHTS.items():
            with replaced(driver), recorded_attention(driver) if weights == "own" else nullcontext() as steps:
                episode = nd.rollout(env, driver, track)
            returns[weights].append(episode.episode_return)
            print(f"{name}, track {track}, {weights}: {episode.episode_return:.1f}", flush=True)
            if steps is not None:
                episodes.append(stacked(steps[nac_core(driver).window - 1 :]))  # where the window is full
    env.close()
    own = np.array([returns["own"]])  # (1, tracks)
    return {
        "tracks": tracks,
        "perturb": perturb,
        "window": nac_core(driver).window,
        "heads": per_head(*(torch.cat(parts) for parts in zip(*episodes, strict=True))),
        "returns": returns,
        "differences": {
            weights: vars(bootstrap(np.array([values]), own)) for weights, values in returns.items() if weights != "own"
        },
    }


def stacked(steps: list[AttentionStep]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """N decisions -> weights of the keys, their ages in frames, movements of t, (N, H, K) each."""
    alpha = torch.stack([step.record.alpha[0, :, 0] for step in steps])
    age = torch.stack([50.0 * step.age[0, :, 0] for step in steps])
    return alpha, age, torch.stack([step.t_movement[0, :, 0] for step in steps])


def per_head(alpha: torch.Tensor, age: torch.Tensor, moved: torch.Tensor) -> dict[str, list[float]]:
    """Means over all decisions, and the largest weight of all, of every head."""
    largest = largest_weight(alpha)  # (N, H)
    measures = {
        "normalised_entropy": normalised_entropy(alpha),
        "largest_weight": largest,
        "mean_age_frames": mean_age(alpha, age),
        "t_movement": moved.mean(dim=2),
    }
    means = {key: values.double().mean(dim=0).tolist() for key, values in measures.items()}
    return {**means, "largest_weight_of_all": largest.amax(dim=0).tolist()}


def tables(found: dict[str, Any]) -> str:
    """Both tables as GitHub markdown."""
    lines = [
        "| driver | head | normalised entropy | largest weight, mean | largest weight, maximum | mean age, frames "
        "| movement of t by age |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, result in found.items():
        for head, values in enumerate(zip(*result["heads"].values(), strict=True)):
            entropy, largest, age, moved, peak = values
            lines.append(f"| {name} | {head} | {entropy:.4f} | {largest:.3f} | {peak:.3f} | {age:.2f} | {moved:.3f} |")
    lines += [
        "",
        "| driver | weights | return of each track | mean | difference from own weights [95 %] |",
        "| --- | --- | --- | ---: | ---: |",
    ]
    for name, result in found.items():
        for weights, returns in result["returns"].items():
            difference = result["differences"].get(weights)
            interval = (
                f"{difference['mean']:+.1f} [{difference['low']:+.1f}, {difference['high']:+.1f}]"
                if difference
                else "-"
            )
            each = " ".join(f"{value:.1f}" for value in returns)
            lines.append(f"| {name} | {weights} | {each} | {np.mean(returns):.1f} | {interval} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Attention of NAC drivers, and returns without it.")
    parser.add_argument("--drivers", nargs="+", help="names or folders; needs --out (default: both champions)")
    parser.add_argument("--perturb", help="perturbations, such as blackouts:2 (default: none)")
    parser.add_argument("--tracks", default="val-8", help="tracks, such as val-4 (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="the JSON file (default: docs/runs/attention.json)")
    options = parser.parse_args()
    if (options.drivers or options.perturb) and not options.out:
        parser.error("--drivers and --perturb need --out: docs/runs/attention.json is the undisturbed champions'")
    torch.set_num_threads(1)
    tracks = nd.track_seeds(options.tracks)
    found = {Path(name).name: measure(name, tracks, options.perturb) for name in options.drivers or CHAMPIONS}
    (options.out or RESULT).write_text(json.dumps(found, indent=1) + "\n")
    print(tables(found))


if __name__ == "__main__":
    main()
