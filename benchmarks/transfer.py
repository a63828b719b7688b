"""Do drivers that learned from fast frames drive the same on gymnasium's?

    python benchmarks/transfer.py runs/expert runs/clone [--tracks test-30]

Every driver drives every track twice, with frames of the fast renderer and with gymnasium's own (unmodified
CarRacing-v3). Prints the returns and their paired difference with its 95 % bootstrap interval.
"""

from __future__ import annotations

from argparse import ArgumentParser

from nac_drive.data_collection.experts import driver_name, resolve_driver, trained_env
from nac_drive.data_collection.processes import default_workers, worker_pool
from nac_drive.envs import track_seeds
from nac_drive.evaluation.evaluate import evaluate


def main() -> None:
    parser = ArgumentParser(description="Paired returns on fast frames and on gymnasium's.")
    parser.add_argument("drivers", nargs="+", help="expert, or folders of drivers or runs")
    parser.add_argument("--tracks", default="test-30")
    options = parser.parse_args()
    print(f"| driver | learned from | fast frames | gymnasium's frames | difference on {options.tracks} [95 %] |")
    print("|---|---|---:|---:|---:|")
    with worker_pool(default_workers()) as pool:
        for spec in options.drivers:
            driver = resolve_driver(spec)
            env = trained_env(driver)
            if env is None:
                parser.error(f"{spec!r} was not trained; pass the folder of a trained driver.")
            seeds, name = track_seeds(options.tracks), driver_name(spec)
            fast = evaluate(driver, seeds, name=name, env=env, renderer="fast", pool=pool)
            native = evaluate(driver, seeds, name=name, env=env, renderer="gymnasium", baseline=fast, pool=pool)
            change = native.summary.return_difference
            assert change is not None
            print(
                f"| {name} | {env.renderer} | {fast.summary.return_mean:.1f} ± {fast.summary.return_sd:.1f} "
                f"| {native.summary.return_mean:.1f} ± {native.summary.return_sd:.1f} "
                f"| {change.mean:+.1f} [{change.low:+.1f}, {change.high:+.1f}] |",
                flush=True,
            )


if __name__ == "__main__":
    main()
