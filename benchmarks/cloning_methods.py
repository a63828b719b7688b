"""Plain cloning, DART and DAgger on the same budget of labelled frames and updates, for several cores.

    python benchmarks/cloning_methods.py [--expert expert] [--out runs/cloning_methods]

Behaviour cloning learns from the expert's own episodes; DART (Laskey et al., arXiv 1703.09327) from episodes whose executed
actions are disturbed; DAgger (Ross et al., arXiv 1011.0686) from episodes in which the driver takes turns with the expert.
Every driver is then asked offline, on episodes of the expert on other tracks, and in closed loop with the expert asked at
every frame. The difference of the two accuracies is the covariate-shift gap (docs/metrics.md). Discrete actions, fast
frames. Finished trainings are kept: run it again to go on. Writes table.md, results.json and figure.png.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from nac_drive.data_collection.collect import record
from nac_drive.data_collection.dart import NoiseConfig
from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.data_collection.experts import resolve_driver
from nac_drive.data_collection.processes import Pool, default_workers, worker_pool
from nac_drive.envs import EnvConfig, track_seeds
from nac_drive.evaluation.evaluate import evaluate
from nac_drive.policies import Driver
from nac_drive.training.dagger import DaggerConfig, dagger
from nac_drive.training.offline import offline_accuracy
from nac_drive.training.run_folder import RunFolder
from nac_drive.training.train import CloneConfig, clone

ENV = EnvConfig(renderer="fast")
CORES: dict[str, dict[str, Any]] = {"nac-exact": {"num_heads": 4, "window": 8}, "lstm": {}, "cfc": {}}
METHODS = ("plain", "DART", "DAgger")
FIRST_LAPS, ROUNDS, LAPS = 12, 5, 6
FIRST_EPOCHS, EPOCHS = 3, 2
CLONE_EPOCHS = 7
"""About as many updates as DAgger's, whose passes go over few episodes at first."""
COMMON: dict[str, Any] = {
    "encoder": "compact", "residual": True, "dropout": 0.0, "mirror": True, "batch_size": 8, "average": 0.999,
    "learning_rate": 1e-3, "validation_tracks": "val-10",
}  # fmt: skip


@dataclass(frozen=True)
class Result:
    """A driver of one method."""

    core: str
    method: str
    frames: int
    """Labelled frames it learned from."""
    returns: list[float]
    crashes_per_episode: float
    offline: float
    """Accuracy on the expert's own episodes on other tracks."""
    on_policy: float
    """Accuracy on the states that it brings about itself."""


def datasets(folder: Path, expert: str, budget: int, workers: int) -> tuple[dict[str, Demonstrations], Demonstrations]:
    """Episodes for plain cloning and for DART, of about `budget` frames each, and episodes on which accuracy is measured."""
    found = {}
    for method, noise in (("plain", None), ("DART", NoiseConfig(0.15, 4.0))):
        path, episodes = folder / method, 8
        while True:
            found[method] = record(
                path, expert, env=ENV, seeds=range(episodes), noise=noise, workers=workers, resume=path.exists()
            )
            frames = sum(row["length"] for row in found[method].rows)
            if frames >= budget:
                break
            episodes += max(1, round((budget - frames) * episodes / frames))
    validation = folder / "validation"
    return found, record(
        validation, expert, env=ENV, seeds=track_seeds("val-10"), workers=workers, resume=validation.exists()
    )


def train(
    core: str, method: str, folder: Path, expert: str, episodes: dict[str, Demonstrations], precision: str,
    pool: Pool | None,
) -> Path:  # fmt: skip
    """The folder of the run, new or gone on with."""
    run = folder / f"{core}-{method}"
    settings: dict[str, Any] = {**COMMON, "core": core, "core_args": CORES[core], "precision": precision}
    resume = (run / "config.yaml").exists()
    if method == "DAgger":
        config = DaggerConfig(
            **settings,
            initial_episodes=FIRST_LAPS,
            rounds=ROUNDS,
            episodes=LAPS,
            initial_epochs=FIRST_EPOCHS,
            epochs=EPOCHS,
        )
        dagger(config, run, expert=expert, resume=resume, pool=pool)
    else:
        clone(
            CloneConfig(**settings, epochs=CLONE_EPOCHS, validate_every=2, validation_fraction=0.02), episodes[method], run,
            resume=resume, pool=pool,
        )  # fmt: skip
    return run


def measure(
    core: str, method: str, run: Path, expert: str, validation: Demonstrations, tracks: str, frames: int,
    pool: Pool | None,
) -> Result:  # fmt: skip
    driver = resolve_driver(str(run), ENV)
    assert isinstance(driver, Driver)
    evaluation = evaluate(
        driver, track_seeds(tracks), env=ENV, renderer="fast", expert=resolve_driver(expert, ENV), pool=pool
    )
    agreement = evaluation.summary.agreement
    assert agreement is not None
    return Result(
        core, method, frames, [row.episode_return for row in evaluation.rows], evaluation.summary.crashes_per_episode,
        offline_accuracy(driver, validation.load(), ENV).accuracy, agreement,
    )  # fmt: skip


def table(results: list[Result]) -> str:
    lines = [
        "| core | method | frames | return | minimum | crashes/episode | offline % | on-policy % | gap |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {r.core} | {r.method} | {r.frames:,} | {np.mean(r.returns):.0f} ± {np.std(r.returns, ddof=1):.0f} "
        f"| {min(r.returns):.0f} | {r.crashes_per_episode:.2f} | {100 * r.offline:.1f} | {100 * r.on_policy:.1f} "
        f"| {100 * (r.offline - r.on_policy):+.1f} |"
        for r in results
    ]
    return "\n".join(lines) + "\n"


def draw(path: Path, results: list[Result]) -> None:
    """Returns of every episode by core and method, and the two accuracies."""
    figure = Figure(figsize=(10, 4))
    left, right = figure.subplots(1, 2)
    cores = list(dict.fromkeys(r.core for r in results))
    for r in results:
        i, j = cores.index(r.core), METHODS.index(r.method)
        x, color = i + 0.27 * (j - 1), f"C{j}"
        spread = np.linspace(-0.09, 0.09, len(r.returns))
        left.scatter(x + spread, r.returns, s=12, alpha=0.45, color=color, linewidths=0)
        left.plot(x, np.mean(r.returns), "D", color=color, markeredgecolor="black", label=r.method if i == 0 else None)
        right.plot([x, x], [100 * r.offline, 100 * r.on_policy], "-", color=color)
        right.plot(x, 100 * r.offline, "o", color=color, label=f"{r.method}, offline" if i == 0 else None)
        right.plot(
            x, 100 * r.on_policy, "o", markerfacecolor="white", color=color,
            label=f"{r.method}, on its own states" if i == 0 else None,
        )  # fmt: skip
    left.axhline(900, color="grey", linewidth=0.8, linestyle="--")
    left.set_ylabel("return of a episode")
    right.set_ylabel("actions equal to the expert's, %")
    for axis in (left, right):
        axis.set_xticks(range(len(cores)), cores)
        axis.set_xlim(-0.5, len(cores) - 0.5)
        axis.legend(fontsize=8, loc="lower right" if axis is left else "best")
    figure.tight_layout()
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = ArgumentParser(description="Plain cloning, DART and DAgger on the same budget of frames.")
    parser.add_argument("--expert", default="expert", help="who drives and labels, see nac-drive dagger --expert")
    parser.add_argument("--out", type=Path, default=Path("runs/cloning_methods"))
    parser.add_argument("--tracks", default="test-30", help="of the closed loop")
    parser.add_argument("--precision", default="auto", help="such as bf16-mixed, where the CPU has it")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    results: list[Result] = []
    with worker_pool(default_workers()) as pool:
        # DAgger first: how many frames it took is the budget of the others
        runs = {core: train(core, "DAgger", options.out, options.expert, {}, options.precision, pool) for core in CORES}
        frames = {core: RunFolder.open(run).rows()[-1]["frames"] for core, run in runs.items()}
        episodes, validation = datasets(
            options.out, options.expert, round(np.mean(list(frames.values()))), default_workers()
        )
        for core in CORES:
            for method in METHODS:
                run, seen = runs[core], frames[core]
                if method != "DAgger":
                    run = train(core, method, options.out, options.expert, episodes, options.precision, pool)
                    seen = sum(row["length"] for row in episodes[method].rows)
                results.append(measure(core, method, run, options.expert, validation, options.tracks, seen, pool))
                print(table(results[-1:]).splitlines()[-1], flush=True)
    (options.out / "table.md").write_text(table(results))
    (options.out / "results.json").write_text(json.dumps([vars(r) for r in results], indent=2) + "\n")
    draw(options.out / "figure.png", results)


if __name__ == "__main__":
    main()
