"""Several drivers, one protocol: the same demonstrations, the same tracks, one table. Restartable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from data_collection.dataset import Demonstrations
from data_collection.drivers import driver_name, resolve_driver
from data_collection.processes import Pool
from data_collection.run_folder import RunFolder
from envs import CrashMode
from nac_drive.cloning import CloneConfig, clone
from nac_drive.evaluation import evaluate, save_evaluations
from nac_drive.report import Contestant, draw_figure, save_results
from policies import CORES, Driver

Report = Callable[[str, dict[str, Any]], None]


def compare(
    cores: Sequence[str],
    dataset: Demonstrations,
    seeds: Sequence[int],
    folder: Path,
    *,
    config: CloneConfig,
    expert: str = "expert",
    crash: CrashMode = "ignore",
    device: str = "auto",
    resume: bool = False,
    pool: Pool | None = None,
    report: Report = lambda job, row: None,
) -> list[Contestant]:
    """Train a driver with each core on `dataset`, then evaluate them and the expert on the tracks `seeds`.

    config: of every training, its `core` replaced in turn.  expert: the baseline and advisor, see `resolve_driver`;
    it sees the status bar even where the drivers do not.  report: called with the name of the driver and the rows of
    `clone` or finished episodes (key `episode`).  The run of a core is `folder/NAME`; with `resume`, finished trainings
    are kept and others go on. Writes rows.jsonl, summary.json, table.md, results.json and figure.png into `folder`.
    Raises ValueError for an unknown core, FileExistsError when `folder` holds anything and `resume` is off.
    """
    unknown = [core for core in cores if core not in CORES]
    if unknown or not cores:
        raise ValueError(f"drivers must be names of {sorted(CORES)}, got {unknown or 'none'}.")
    if folder.exists() and any(folder.iterdir()) and not resume:
        raise FileExistsError(f"{folder} already exists; choose another folder, or continue with --resume.")
    expert_env = replace(dataset.meta.env, mask_bar=False)
    advisor = resolve_driver(expert, expert_env)  # a bad one fails here, before anything is trained
    drivers: dict[str, Driver] = {}
    for core in cores:
        run = folder / core
        settings = replace(config, core=core)
        best = clone(
            settings, dataset, run, device=device, resume=(run / "config.yaml").exists(), pool=pool,
            report=lambda row, core=core: report(core, row),
        )  # fmt: skip
        drivers[core] = resolve_driver(str(best), dataset.meta.env)  # type: ignore[assignment]
    baseline = evaluate(
        advisor, seeds, name=driver_name(expert), env=expert_env, crash=crash, pool=pool, on_episode=_tell(report)
    )
    contestants = [Contestant(baseline)]
    for core, driver in drivers.items():
        env = replace(dataset.meta.env, mask_bar=driver.env_config["mask_bar"])
        evaluation = evaluate(
            driver, seeds, name=core, env=env, crash=crash, advisor=advisor, baseline=baseline, pool=pool,
            on_episode=_tell(report),
        )  # fmt: skip
        history = RunFolder.open(folder / core).rows()
        contestants.append(
            Contestant(
                evaluation,
                parameters=sum(parameter.numel() for parameter in driver.parameters()),
                held_out_accuracy=_at_best(history),
                training_seconds=sum(row["seconds"] for row in history),
                history=tuple(history),
            )
        )
    save_evaluations(folder, [contestant.evaluation for contestant in contestants])
    save_results(folder, contestants)
    draw_figure(folder / "figure.png", contestants)
    return contestants


def _tell(report: Report) -> Callable[[Any], None]:
    return lambda row: report(row.driver, {"episode": row})


def _at_best(history: Sequence[dict[str, Any]]) -> float | None:
    """Held-out accuracy of the checkpoint that the closed-loop validation chose."""
    best = max(history, key=lambda row: row.get("score", float("-inf")))
    return best["held_out"]["accuracy"] if best.get("held_out") else None
