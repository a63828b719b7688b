"""From episodes to ranked drivers.

They have the facts of their runs, and the time of one act.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from nac_drive.evaluation.evaluate import Evaluation, evaluate, with_holm
from nac_drive.evaluation.metric import NotNegative
from nac_drive.events import Event, Progress, silent
from nac_drive.experiments.driving import Driving, Episodes
from nac_drive.experiments.evaluation import save_summaries
from nac_drive.experiments.leaderboard import RankedDriver, save_results
from nac_drive.policies import load_driver
from nac_drive.storage.read import read_json
from nac_drive.storage.write import write_atomically
from nac_drive.training.run_folder import RunFolder

LATENCIES = "latencies.json"


def ranked(
    experiment: Driving, episodes: Episodes, folder: Path, progress: Progress, *, baseline: str
) -> list[RankedDriver]:
    """Return drivers without a training as they stand, then the trained ones, the best return first.

    Args:
        experiment: The grid, whose runs are folders in `folder`.
        episodes: Its episodes under one perturbation.
        folder: Gets the times of one `act`.
        progress: Called with every time that is measured.
        baseline: The entry that differences are taken against; the first one where it has no episode.
    """
    by_name = {name: rows for (name, _), rows in episodes.items()}
    baseline = baseline if baseline in by_name else next(iter(by_name))
    runs = {
        name: [
            folder / entry.label
            for entry in experiment.entries
            if entry.name == name and entry.training and entry.run in {row.run for row in rows}
        ]
        for name, rows in by_name.items()
    }
    latencies = measured_latencies(experiment, runs, folder, progress)
    evaluations = with_holm(
        [
            Evaluation.of(
                rows, None if name == baseline else by_name[baseline], experiment.entries[0].env.spec.solved_return
            )
            for name, rows in by_name.items()
        ]
    )
    drivers = []
    for name, measured in zip(by_name, evaluations, strict=True):
        evaluation = replace(measured, summary=measured.summary.with_metrics(latency_ms=latencies[name]))
        drivers.append(trained_driver(evaluation, runs[name]) if runs[name] else RankedDriver(evaluation))
    given = [driver for driver in drivers if driver.runs is None]
    trained = [driver for driver in drivers if driver.runs is not None]
    return [*given, *sorted(trained, key=lambda driver: -driver.summary.return_mean)]


def trained_driver(evaluation: Evaluation, runs: Sequence[Path]) -> RankedDriver:
    """Return a driver with the facts of its runs' folders."""
    driver = load_driver(runs[0])
    histories = [RunFolder(path).rows() for path in runs]
    bests = [max(rows, key=lambda row: row.get("score", float("-inf")), default={}) for rows in histories]
    accuracies = [best.get("validation") or {} for best in bests]

    def mean(values: Sequence[float | None]) -> float | None:
        measured = [value for value in values if value is not None]
        return sum(measured) / len(measured) if measured else None

    return RankedDriver(
        evaluation,
        runs=len(runs),
        parameters=sum(parameter.numel() for parameter in driver.parameters()),
        core_parameters=sum(parameter.numel() for parameter in driver.core.parameters()),
        neurons=driver.core.neurons,
        synapses=driver.core.synapses,
        has_memory=bool(driver.core.state_shapes()),
        validation_accuracy=mean([accuracy.get("accuracy") for accuracy in accuracies]),
        validation_at_changes=mean([accuracy.get("at_changes") for accuracy in accuracies]),
        learning_rate=RunFolder(runs[0]).config["optim"]["learning_rate"],
        training_seconds=mean([sum(row["seconds"] for row in rows) if rows else None for rows in histories]),
        histories=tuple(map(tuple, histories)),
    )


def measured_latencies(
    experiment: Driving, runs: Mapping[str, Sequence[Path]], folder: Path, progress: Progress
) -> dict[str, float]:
    """Return the time of one `act` with nothing else running, once measured in an episode of each name.

    Args:
        experiment: The grid.
        runs: Name -> folders of its finished runs; none for a driver that was there already.
        folder: The folder of the comparison.
        progress: Called with every measurement.
    """
    path = folder / LATENCIES
    measured: dict[str, float] = {}
    if path.exists():
        fix = "remove it and go on with --resume"
        measured = read_json(path, dict[str, NotNegative], "the latencies of a comparison", fix)
    for number, name in enumerate(runs, 1):
        if name not in measured:
            entry = next(entry for entry in experiment.entries if entry.name == name)
            driver = entry.driver or load_driver(runs[name][0])
            env = replace(entry.env, perturb=experiment.perturbations[0])
            (row,) = evaluate(
                driver, experiment.tracks[:1], name=name, env=env, crash=experiment.crash, progress=silent
            ).rows
            measured[name] = row.latency_ms
            write_atomically(path, (json.dumps(measured, indent=2) + "\n").encode())
        progress(Event("time of one act", number, len(runs), name))
    return {name: measured[name] for name in runs}


def save_tables(folder: Path, drivers: Sequence[RankedDriver]) -> None:
    """Write summary.json, table.md and results.json."""
    save_summaries(folder, [driver.evaluation for driver in drivers])
    save_results(folder, drivers)
