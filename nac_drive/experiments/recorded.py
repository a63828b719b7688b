"""Offline metrics of any driver on recorded episodes."""

from __future__ import annotations

import itertools
import json
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nac_drive.arguments import checks_shared_arguments
from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.data_collection.dataset.limits import DatasetError
from nac_drive.data_collection.dataset.recorded_episode import (
    RecordedEpisode,
    driver_of_recording,
    open_dataset,
)
from nac_drive.data_collection.drivers import (
    AnyDriver,
    driver_hash,
    driver_names,
    driving_device,
    each_accepted,
    on_device,
)
from nac_drive.envs import EnvSpec, EpisodeSetup, Policy, Step, rollouts
from nac_drive.envs.perturbations.frames import FrameLoss
from nac_drive.envs.perturbations.images import Corruption
from nac_drive.envs.perturbations.registry import parse_all, perturb
from nac_drive.evaluation.evaluate import tracks_at_a_time
from nac_drive.evaluation.metric import EMPTY, TableColumn
from nac_drive.events import Progress, counting
from nac_drive.experiments.table import Table
from nac_drive.notebook import automatic
from nac_drive.plain import whole
from nac_drive.policies import Driver
from nac_drive.policies.onnx_driver import OnnxDriver
from nac_drive.storage.write import require_new, require_writable, write_atomically
from nac_drive.training.offline import Accuracy, action_changes, measure_accuracy
from nac_drive.training.train import TrainConfig

RESULTS = "offline.json"
VALIDATION = "validation"
"""The episodes that `train` keeps out, by its default fraction."""
_EPISODES = 4
"""Episodes in memory at a time."""


@dataclass(frozen=True)
class RecordedEvaluation:
    """A driver on recorded episodes."""

    driver: str
    sha256: str
    """See `driver_hash`."""
    accuracy: Accuracy
    """Over the frames of all episodes."""
    episodes: dict[int, Accuracy]
    """Number of an episode -> its metrics. One without a labelled frame has none."""
    frames: int
    """Frames that count: they have a label, and lie after the zoom."""

    def __repr__(self) -> str:
        return f"RecordedEvaluation({self.driver}: {self.accuracy}, {self.frames:,} frames)"

    def _repr_html_(self) -> str:
        return recorded_table([self]).html()

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able description."""
        return {
            "driver": self.driver, "sha256": self.sha256, "frames": self.frames, **asdict(self.accuracy),
            "episodes": {str(number): asdict(accuracy) for number, accuracy in self.episodes.items()},
        }  # fmt: skip


@checks_shared_arguments
def evaluate_recorded(
    drivers: AnyDriver | Sequence[AnyDriver],
    dataset: Demonstrations | str | os.PathLike[str],
    *,
    episodes: str | Sequence[int] = VALIDATION,
    perturbation: str | None = None,
    device: str = "cpu",
    folder: str | os.PathLike[str] | None = None,
    progress: Progress = automatic,
) -> list[RecordedEvaluation]:
    """Compare drivers with what was recorded, frame by frame.

    A driver sees the recorded frames with their times. It never moves the car, so these numbers say nothing of how it
    recovers.

    Args:
        drivers: A driver or several, their names or folders (see `resolve_driver`), which were trained on such frames.
        dataset: The dataset, or its folder.
        episodes: `validation`, the tracks that `train` keeps out by default, without those that a driver learned from;
            `all`; or numbers of episodes.
        perturbation: Perturbations of the recorded frames, such as gap:2 (docs/perturbations.md): images change, or
            frames are lost, and are held or black. The labels stay.
        device: Of a network, `auto`, `cpu` or `cuda`.
        folder: A new folder for offline.json; None keeps nothing.
        progress: Called after every episode.

    Returns:
        The metrics of each driver (docs/metrics.md).

    Raises:
        DatasetError: If there is no such episode, one is damaged, or no frame has a label.
        FileExistsError: If `folder` exists.
        WriteError: If `folder` cannot be made.
        UserWarning: If a driver learned from another dataset, and `validation` is asked for: that one may hold the same
            episodes.
        ValueError: For a driver that was trained elsewhere, or that reads the simulator, a device that is not there, or
            a perturbation that recorded frames cannot have.
    """
    _require_recordable(perturbation)
    dataset = open_dataset(dataset)
    env, specs, device = dataset.meta.env, each_accepted(drivers), driving_device(device)
    if folder is not None:
        require_new(folder, "choose another folder")
        require_writable(Path(folder))
    loaded = [on_device(driver_of_recording(spec, env), device) for spec in specs]
    policies = dict(zip(driver_names(specs), loaded, strict=True))
    chosen = _chosen(dataset, episodes, policies)
    for name, driver in policies.items():
        RecordedEpisode.read(dataset, chosen[0]).road(driver, f"driver {name!r}")
    finished = counting(progress, "evaluate", len(chosen) * len(loaded))
    results = []
    for name, spec, driver in zip(driver_names(specs), specs, loaded, strict=True):
        noted = lambda number, name=name: finished(f"{name}: episode {number}")  # noqa: E731
        parts = dict(_driven(driver, dataset, chosen, perturbation, noted))
        results.append(_measured(name, driver_hash(spec, env), {number: parts[number] for number in chosen}, env.spec))
    if folder is not None:
        Path(folder).mkdir(parents=True)
        content = {"dataset_sha256": dataset.fingerprint(), "perturbation": perturbation}
        content["drivers"] = [result.to_dict() for result in results]
        write_atomically(Path(folder) / RESULTS, (json.dumps(content, indent=2) + "\n").encode())
    return results


def recorded_table(results: Sequence[RecordedEvaluation]) -> Table:
    """Return the metrics of drivers as a table."""
    columns: list[Any] = [
        TableColumn("driver", lambda result: result.driver),
        TableColumn("agreement %", lambda result: f"{100 * result.accuracy.accuracy:.1f}"),
        TableColumn("macro F1", lambda result: _number(result.accuracy.macro_f1)),
        TableColumn("at changes %", lambda result: _number(result.accuracy.at_changes, 100, 1)),
        TableColumn("steering error", lambda result: _number(result.accuracy.steering_mae)),
        TableColumn("squared", lambda result: _number(result.accuracy.steering_mse, digits=5)),
        TableColumn("frames", lambda result: f"{result.frames:,}"),
    ]
    return Table.of(columns, results)


def _number(value: float | None, scale: float = 1.0, digits: int = 4) -> str:
    return EMPTY if value is None else f"{scale * value:.{digits}f}"


def _kept_out(dataset: Demonstrations, drivers: Mapping[str, Policy]) -> list[int]:
    """Return the validation tracks of a dataset.

    Tracks that a driver learned from are left out.
    """
    kept_out = set(dataset.split(TrainConfig.validation_fraction)[1])
    for name, driver in drivers.items():
        match driver.meta.get("training") if isinstance(driver, Driver | OnnxDriver) else None:
            case {"dataset_sha256": sha256, "validation_fraction": fraction} if sha256 == dataset.fingerprint():
                kept_out &= set(dataset.split(fraction)[1])
            case {"dataset_sha256": _}:
                warnings.warn(
                    f"driver {name!r} learned from another dataset. If that has episodes of {dataset.path}, they count "
                    "here; pass the numbers of other episodes.",
                    stacklevel=5,
                )
    if not kept_out:
        raise ValueError(f"episodes: a driver learned from all tracks of {dataset.path}; pass all (--episodes all).")
    return sorted(kept_out)


def _chosen(dataset: Demonstrations, episodes: str | Sequence[int], drivers: Mapping[str, Policy]) -> list[int]:
    """Return numbers of episodes, at least one."""
    indices = [row["index"] for row in dataset.rows]
    if not indices:
        raise DatasetError(f"dataset {dataset.path} holds no finished episode; {dataset.meta.repair}.")
    if isinstance(episodes, str) and episodes == VALIDATION:
        if len(set(dataset.seeds)) < 2:
            raise ValueError(
                f"episodes: {dataset.path} has one track, and none was kept out; pass all (--episodes all)."
            )
        kept_out = set(_kept_out(dataset, drivers))
        return [row["index"] for row in dataset.rows if row["seed"] in kept_out]
    if isinstance(episodes, str) and episodes == "all":
        return indices
    try:
        numbers = [*map(int, episodes.split(","))] if isinstance(episodes, str) else [whole("it", n) for n in episodes]
    except (TypeError, ValueError):
        numbers = []
    if not numbers or len(set(numbers)) < len(numbers):
        raise ValueError(
            f"episodes must be {VALIDATION}, all, or different numbers such as 0,3, got {episodes!r}; `dataset info` "
            "says how many there are."
        )
    for number in numbers:
        if number not in indices:
            RecordedEpisode.read(dataset, number)
    return numbers


def _require_recordable(perturbation: str | None) -> None:
    """Check that recorded frames can have a perturbation.

    Raises:
        ValueError: A part of it acts on the car, or leaves frames out.
    """
    for part in itertools.chain.from_iterable(parse_all(perturbation or "")):
        loses = isinstance(part.perturbation, FrameLoss)
        if isinstance(part.perturbation, FrameLoss) and part.perturbation.missing != "skip":
            continue
        if not isinstance(part.perturbation, Corruption):
            fix = f"write {part.name}:{part.level}:zero or :hold" if loses else "drive under it instead"
            raise ValueError(
                f"perturb must change images, or lose frames that are held or black, on recorded frames, got "
                f"{part.name!r}, which {'skips them' if loses else 'acts on the car'}; {fix}."
            )


_Actions = tuple[np.ndarray, RecordedEpisode]
"""The actions of a driver, and the recording."""


def _driven(
    driver: Policy,
    dataset: Demonstrations,
    chosen: Sequence[int],
    perturbation: str | None,
    finished: Callable[[int], None],
) -> Iterator[tuple[int, _Actions]]:
    """Yield number and actions of each episode, as they end."""
    running: dict[int, tuple[list[Any], RecordedEpisode]] = {}

    def setups() -> Iterator[EpisodeSetup]:
        for number in chosen:
            episode = RecordedEpisode.read(dataset, number)
            actions: list[Any] = []
            running[number] = actions, episode

            def note(step: Step, actions: list[Any] = actions) -> None:
                actions.append(step.intended)

            length, bar_top = len(episode.arrays.frames), episode.env.spec.bar_top
            road = perturb(episode.road(driver), perturbation or "", episode_frames=length, bar_top=bar_top)
            yield EpisodeSetup(road, driver, number, subscribers=[note])

    for setup, _ in rollouts(setups(), tracks_at_a_time(driver, dataset.meta.env, _EPISODES)):
        actions, episode = running.pop(setup.seed)
        finished(setup.seed)
        yield setup.seed, (np.array(actions, episode.arrays.label.dtype), episode)


def _measured(name: str, sha256: str, parts: dict[int, _Actions], spec: EnvSpec) -> RecordedEvaluation:
    """Return the metrics of episodes, and of all their frames."""
    columns: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    episodes: dict[int, Accuracy] = {}
    for number, (predicted, episode) in parts.items():
        labels, counted = episode.arrays.label, episode.counted
        changes = action_changes(labels, np.array([0, len(labels)]))
        if counted.any():
            columns.append((predicted[counted], labels[counted], changes[counted]))
            episodes[number] = measure_accuracy(*columns[-1], spec)
    if not columns:
        raise DatasetError("episodes: no frame has an expert's label; pass other episodes.")
    pooled = [np.concatenate(column) for column in zip(*columns, strict=True)]
    predicted, labels, changes = pooled
    return RecordedEvaluation(name, sha256, measure_accuracy(predicted, labels, changes, spec), episodes, len(labels))
