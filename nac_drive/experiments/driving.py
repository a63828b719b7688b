"""Entries x perturbations x tracks in closed loop: what `evaluate`, `stress`, `compare` and `demo` measure.

An entry is a driver, or a run that is trained first. All entries meet the same tracks and the same random numbers, so
their episodes can be compared track by track.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.data_collection.own_code import with_own_code
from nac_drive.envs import CrashMode, EnvConfig, Policy
from nac_drive.evaluation.evaluate import drive, tracks_at_a_time
from nac_drive.evaluation.results import EpisodeResult, episode_of
from nac_drive.experiments.experiment import Experiment, Results, Row, Task
from nac_drive.markdown import number_text
from nac_drive.policies import load_driver
from nac_drive.training.config import TrainConfig
from nac_drive.training.train import Splits, train

EXPERT = "expert"
"""Name of the entry whose driver labels, whatever driver it is: tables and pages have one name for it."""
UNDISTURBED = None
"""The perturbation of the undisturbed world."""
_PARTS_A_PROCESS = 2
"""Parts for every process at least, as drivers are not equally fast."""
_LONGEST_NAME = 100
"""Characters of the longest `folder_name` without a hash; a file system takes 255 bytes."""


@dataclass(frozen=True)
class Training:
    """A run of behaviour cloning that makes the driver of an entry."""

    config: TrainConfig
    dataset: Path
    device: str
    splits: Splits | None = None
    """The data, where it is loaded already."""

    def driver(self, folder: Path) -> Policy:
        """Train in `folder`, or go on there, and return the best checkpoint's driver."""
        resume = (folder / "config.yaml").exists()
        best = train(
            self.config, Demonstrations.open(self.dataset), folder, device=self.device, resume=resume,
            splits=self.splits,
        )  # fmt: skip
        return load_driver(best)


@dataclass(frozen=True)
class Entry:
    """A driver, or one of the runs of a core."""

    name: str
    """Name in the tables; all runs of a core have the same."""
    sha256: str
    """Identity of what decides its episodes: see `driver_hash`; of a run, its settings."""
    env: EnvConfig
    """Its environment, without the perturbation of a task."""
    driver: Policy | None = None
    """The driver; None for a run, which is trained first."""
    expert: Policy | None = None
    """A driver that is queried at every decision, see `evaluate`."""
    training: Training | None = None
    run: int | None = None
    """Seed of the run."""

    @property
    def label(self) -> str:
        """Name that no other entry has; the folder of a run."""
        return self.name if self.run is None else f"{folder_name(self.name)}-{self.run}"


@dataclass(frozen=True)
class Driving(Experiment):
    """Every entry on every track under every perturbation."""

    entries: tuple[Entry, ...]
    tracks: tuple[int, ...]
    perturbations: tuple[str | None, ...] = (UNDISTURBED,)
    """Specifications, see `envs.perturb`."""
    crash: CrashMode = "ignore"
    kind: str = "an evaluation"
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What else the rows depend on, for conditions.json."""
    device: str = "cpu"
    """Where networks drive, see `driving_device`."""

    grows = ("entries", "tracks", "perturbations")

    @property
    def isolated(self) -> bool:  # type: ignore[override]
        """Runs are trained, each in a process."""
        return any(entry.training for entry in self.entries)

    @property
    def gpus(self) -> int:  # type: ignore[override]
        """GPUs that each run has to itself on a cluster."""
        return int(any(entry.training and entry.training.device != "cpu" for entry in self.entries))

    def conditions(self) -> dict[str, Any]:
        hashes = {id(entry.driver): {"expert": entry.sha256} for entry in self.entries if entry.driver}
        entries = [
            {"name": entry.label, "sha256": entry.sha256, "env": asdict(entry.env)}
            | (hashes.get(id(entry.expert), {}) if entry.expert else {})  # rows have the agreement with it
            for entry in self.entries
        ]
        elsewhere = {} if self.device == "cpu" else {"device": self.device}  # its episodes differ
        return {
            "crash": self.crash, **self.settings, **elsewhere, "entries": entries, "tracks": list(self.tracks),
            "perturbations": [with_own_code(spec) for spec in self.perturbations],
        }  # fmt: skip

    def tasks(self) -> list[Task]:
        return [
            Task(entry.label, {"driver": entry.name, "run": entry.run, "perturbation": spec, "seed": track})
            for entry in self.entries
            for spec in self.perturbations
            for track in self.tracks
        ]

    def parts(self, tasks: Sequence[Task], processes: int) -> list[list[Task]]:
        """Return the tracks of an entry under one perturbation in batches; all tasks of a run are one part."""
        if self.isolated:
            return [list(of_entry) for _, of_entry in groupby(tasks, lambda task: task.entry)]
        entries = {entry.label: entry for entry in self.entries}
        share = -(-len(tasks) // (_PARTS_A_PROCESS * processes))
        parts = []
        for (label, _), cell in groupby(tasks, lambda task: (task.entry, task.coordinates["perturbation"])):
            batch, entry = list(cell), entries[label]
            assert entry.driver is not None
            size = min(tracks_at_a_time(entry.driver, entry.env), share)
            parts += [batch[start : start + size] for start in range(0, len(batch), size)]
        return parts

    def for_part(self, tasks: Sequence[Task]) -> Driving:
        """Return the experiment of one entry: drivers are large."""
        return replace(self, entries=tuple(entry for entry in self.entries if entry.label == tasks[0].entry))

    def trained_as(self, configs: Mapping[str, TrainConfig], splits: Splits | None) -> Driving:
        """Return the experiment with final settings of its runs.

        Args:
            configs: Name of a trained entry -> its settings; each run keeps its seed.
            splits: The data, where it is loaded already.
        """
        entries = [
            entry if entry.training is None
            else replace(
                entry,
                training=replace(
                    entry.training, config=replace(configs[entry.name], seed=entry.run or 0), splits=splits
                ),
            )
            for entry in self.entries
        ]  # fmt: skip
        return replace(self, entries=tuple(entries))

    def measure(self, folder: Path | None, tasks: Sequence[Task]) -> Iterator[Row]:
        (entry,) = self.for_part(tasks).entries
        driver = entry.driver
        if entry.training is not None:
            assert folder is not None
            (folder / entry.label / "failed.txt").unlink(missing_ok=True)
            driver = entry.training.driver(folder / entry.label)
        assert driver is not None
        for spec, of_world in groupby(tasks, lambda task: task.coordinates["perturbation"]):
            tracks = [task.coordinates["seed"] for task in of_world]
            rows = drive(
                driver, entry.expert, replace(entry.env, perturb=spec), tracks, name=entry.name, crash=self.crash,
                run=entry.run, batch_size=tracks_at_a_time(driver, entry.env), device=self.device,
            )  # fmt: skip
            for row in rows:
                yield row.to_dict()

    def check(self, task: Task, row: Row) -> None:
        episode = episode_of(row)
        if episode.crash_mode != self.crash:
            raise ValueError(f"crash_mode must be {self.crash!r}, got {episode.crash_mode[:100]!r}")

    def note(self, rows: Sequence[Row]) -> str:
        last = rows[-1]
        under = f", {last['perturbation']}" if last["perturbation"] else ""
        mean = sum(row["episode_return"] for row in rows) / len(rows)
        name = last["driver"] if last["run"] is None else f"{last['driver']}-{last['run']}"
        track = f" track {last['seed']}" if len(rows) == 1 else ""
        return f"{name}{under}:{track} return {number_text(mean, '.0f')}"


Episodes = dict[tuple[str, str | None], list[EpisodeResult]]
"""(entry, perturbation) -> episodes, run by run, each in the order of the tracks."""


def episodes_of(results: Results) -> Episodes:
    """Return the rows of `Driving` by entry and perturbation."""
    found: Episodes = {}
    for row in results.rows:
        found.setdefault((row["driver"], row["perturbation"]), []).append(episode_of(row))
    return found


def folder_name(core: str) -> str:
    """Return the folder of a core's runs, without the seed.

    It is the core with its settings as they are written, such as `nac-exact,window=8`. Where they have characters other
    than letters, digits and `._=,-`, or are long, a hash keeps the names of different settings different.
    """
    name = re.sub(r"[^A-Za-z0-9._=,-]", "_", core)[:_LONGEST_NAME]
    if name == core:
        return name
    return f"{name}-{hashlib.sha256(os.fsencode(core)).hexdigest()[:12]}"
