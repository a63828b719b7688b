"""NAC against LSTM and CfC as champions: the same encoder to start from, the same episodes of the expert, three seeds each.

    python benchmarks/baselines.py [--control continuous] [--out runs/baselines]

Every student starts with encoder and action head of the shipped expert, and with a core of its own, all of about the
same size, and without a residual path past it. It then learns by DAgger from the controller: 16 episodes of the expert and
three rounds of ten episodes in turns. For NAC, windows of 32 and 8 frames were tried before; nothing else was tuned for a
core. Prints a row per seed and the mean over seeds, on fast frames; finished trainings are kept.
"""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import numpy as np

from nac_drive.data_collection.experts import resolve_driver
from nac_drive.data_collection.processes import default_workers, worker_pool
from nac_drive.envs import EnvConfig, track_seeds
from nac_drive.evaluation.evaluate import evaluate
from nac_drive.policies import Driver
from nac_drive.training.dagger import DaggerConfig, dagger

CORES: dict[str, dict[str, Any]] = {
    "nac-exact": {"num_heads": 4, "window": 8},
    "lstm": {},
    "cfc": {"backbone_units": 80},
}
SEEDS = (0, 1, 2)


def main() -> None:
    parser = ArgumentParser(description="NAC, LSTM and CfC trained alike, three seeds each.")
    parser.add_argument("--control", choices=["discrete", "continuous"], default="continuous")
    parser.add_argument("--out", type=Path, default=Path("runs/baselines"))
    parser.add_argument("--tracks", default="test-30")
    parser.add_argument("--workers", type=int, default=default_workers())
    parser.add_argument("--init", default="expert", help="driver that gives encoder and action head")
    parser.add_argument("--precision", default="auto", help="such as bf16-mixed, where the CPU has it")
    options = parser.parse_args()
    env = EnvConfig(options.control, renderer="fast")
    print(
        "| core | parameters | seed | return | minimum | crashes/episode | ms/act |\n|---|---:|---|---:|---:|---:|---:|"
    )
    with worker_pool(options.workers) as pool:
        for core, core_args in CORES.items():
            means, returns = [], []
            for seed in SEEDS:
                config = DaggerConfig(
                    core=core, core_args=core_args, control=options.control, init=options.init, residual=False,
                    initial_episodes=16, initial_epochs=4, rounds=3, episodes=10, epochs=2, first_track=1000 * (1 + seed),
                    validation_tracks="val-10", precision=options.precision, seed=seed,
                )  # fmt: skip
                run = options.out / f"{core}-{seed}"
                best = dagger(config, run, expert="controller", resume=(run / "config.yaml").exists(), pool=pool)
                driver = resolve_driver(str(best), env)
                assert isinstance(driver, Driver)
                evaluation = evaluate(driver, track_seeds(options.tracks), env=env, renderer="fast", pool=pool)
                parameters, summary = sum(p.numel() for p in driver.parameters()), evaluation.summary
                means.append(summary.return_mean)
                returns += [row.episode_return for row in evaluation.rows]
                print(
                    f"| {core} | {parameters:,} | {seed} | {summary.return_mean:.1f} ± {summary.return_sd:.1f} "
                    f"| {summary.return_min:.0f} | {summary.crashes_per_episode:.2f} | {summary.latency_ms:.2f} |",
                    flush=True,
                )
            print(
                f"| {core} | | all | {np.mean(means):.1f}, seeds ± {np.std(means, ddof=1):.1f} "
                f"| {min(returns):.0f} | | |",
                flush=True,
            )


if __name__ == "__main__":
    main()
