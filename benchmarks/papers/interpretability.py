"""What drivers look at and what their neurons do, on clean episodes: the tables of docs/interpretability.md.

    python benchmarks/papers/interpretability.py --drivers champion expert ppo-expert --tracks val-3

Saliency by region of the frame, beside the area of the region; principal components and steepness of the core's output;
and, for drivers with attention, how well phi, omega, t and the logits tell bends from straights. Then saliency and
steering under noise.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass

import numpy as np
import torch
import tyro
from activity import lipschitz, manoeuvres, principal_components, separation
from pictures import after_zoom, noisy_frames, similarities

import nac_drive as nd
from nac_drive.analysis.recording import SALIENCY, SIGNALS, Recording, record
from nac_drive.analysis.saliency import steering
from nac_drive.data_collection.trained_env import env_for
from nac_drive.envs import PERTURBATIONS, Control
from nac_drive.policies.cores.ct_rnn import CTRNN
from nac_drive.policies.cores.ltc import LiquidCore


@dataclass
class Options:
    """Drivers and tracks."""

    drivers: tuple[str, ...] = ("champion", "expert", "ppo-expert")
    control: Control = "continuous"
    tracks: str = "val-3"


def main(options: Options) -> None:
    """Print the tables."""
    torch.set_num_threads(1)
    for name in options.drivers:
        driver = nd.resolve_driver(name, nd.EnvConfig(control=options.control))
        episodes: list[Recording] = []
        for track in nd.track_seeds(options.tracks):
            config = env_for(driver, options.control)
            with closing(nd.make_env(config)) as env:
                episodes.append(record(env, driver, track, name=name, spec=config.spec))
        print(f"\n### {name}\n")
        saliency(episodes)
        neurons(episodes)
        attention(episodes)
        if isinstance(driver, nd.Driver):
            time_constants(driver, episodes)
            noise(driver, episodes)


def mean(episodes: list[Recording], series: str) -> float:
    """Mean of a series over all decisions after the zoom-in."""
    return float(np.mean(np.concatenate([after_zoom(each.series[series]) for each in episodes])))


def saliency(episodes: list[Recording]) -> None:
    """Mean fraction of the saliency in each region."""
    regions = [name.removeprefix("area on ") for name in episodes[0].series if name.startswith("area on ")]
    if not regions:
        return
    print(f"| method | {' | '.join(regions)} |\n|---|{'---:|' * len(regions)}")
    for method in ("area", *SALIENCY):
        cells = [f"{100 * mean(episodes, f'{method} on {region}'):.1f}" for region in regions]
        print(f"| {method} | {' | '.join(cells)} |")


def neurons(episodes: list[Recording]) -> None:
    """Principal components and steepness of the output of the core."""
    if "output" not in episodes[0].activity:
        return
    explained, needed, steepest = [], [], []
    for each in episodes:
        activity = after_zoom(each.activity["output"])
        components = principal_components(activity).explained
        explained.append(components[0])
        needed.append(int(np.searchsorted(components.cumsum(), 0.9)) + 1)
        steepest.append(np.median(lipschitz(activity)))
    each = ", ".join(f"{100 * value:.0f}" for value in explained)
    print(
        f"\nOutput of the core: the first component explains {100 * np.mean(explained):.0f} % (each episode: {each}), "
        f"90 % need {max(needed)}; the median neuron's steepest change per frame is {np.mean(steepest):.2f}."
    )


def attention(episodes: list[Recording]) -> None:
    """How well the signals of attention tell manoeuvres apart: the best head of each."""
    if not episodes[0].signals:
        return
    labels = np.concatenate([after_zoom(manoeuvres(each.series["curvature"])) for each in episodes])
    print("\n| signal | variance between manoeuvres, % | left against right | mean left / straight / right |")
    print("|---|---:|---:|---|")
    for name in (*SIGNALS, "steer"):
        if name == "steer":
            rows = np.concatenate([after_zoom(each.series[name])[:, None] for each in episodes])
        else:
            rows = np.concatenate([after_zoom(each.signals[name]) for each in episodes])
        heads = [separation(rows[:, head], labels) for head in range(rows.shape[1])]
        best = max(heads, key=lambda each: abs(each.left_or_right - 0.5))
        means = " / ".join(f"{value:.3f}" for value in best.means)
        print(f"| {name} | {100 * best.explained:.0f} | {best.left_or_right:.2f} | {means} |")


def time_constants(driver: nd.Driver, episodes: list[Recording]) -> None:
    """Print in how many seconds neurons follow their inputs.

    The core is liquid (thesis, Eq. 3.7) or a CT-RNN.
    """
    core = driver.core
    with torch.no_grad():
        if isinstance(core, LiquidCore):
            rows = []
            for each in episodes:
                x, v = driver.features(torch.from_numpy(each.frames)), torch.from_numpy(each.activity["v"])
                rows.append(after_zoom(core.coupling_sensitivity(x, (v,)).numpy()))
            tau = np.concatenate(rows)  # (decisions, N)
        elif isinstance(core, CTRNN):
            tau = core.log_tau.exp().unsqueeze(0).numpy()
        else:
            return
    medians, spread = np.median(tau, axis=0), tau.max(axis=0) / tau.min(axis=0)
    print(f"\nTime constants of {len(medians)} neurons: medians from {medians.min():.3f} to {medians.max():.3f} s.")
    if len(tau) > 1:
        print(
            f"Along the drive they change {np.median(spread):.2f}-fold in the median, {spread.max():.2f}-fold at most."
        )


def noise(driver: nd.Driver, episodes: list[Recording]) -> None:
    """Similarity of the saliency maps of clean and of noisy frames (thesis, Fig. 6.4b), and the change of steering.

    The driver sees the frames of the clean episode under noise; it does not drive by them.
    """
    print("\n| noise of variance | similarity of VisualBackProp | mean change of steer |\n|---:|---:|---:|")
    for level in PERTURBATIONS["gaussian-noise"]:
        similar, changes = [], []
        for each in episodes:
            noisy = noisy_frames(driver, each, level)
            similar += similarities(driver, each, noisy)
            steer = [steering_of(driver, frames, each.series["dt"]) for frames in (each.frames, noisy)]
            changes += after_zoom(np.abs(steer[1] - steer[0])).tolist()
        print(f"| {level.variance} | {np.mean(similar):.2f} | {np.mean(changes):.2f} |")  # type: ignore[attr-defined]


def steering_of(driver: nd.Driver, frames: np.ndarray, dt: np.ndarray) -> np.ndarray:
    """The steering (T,) of a driver along the frames of an episode."""
    with torch.no_grad():
        prediction, _ = driver(torch.from_numpy(frames)[None], torch.from_numpy(dt)[None])
    return steering(prediction[0]).numpy()


if __name__ == "__main__":
    main(tyro.cli(Options))
