"""Commands of recorded demonstrations.

The work of a command is imported when it runs: help and errors in options come at once, without torch.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from tyro.conf import Positional

import nac_drive as nd
from nac_drive.cli.interchange import DatasetExport, DatasetImport, DatasetImportTub, DatasetImportUdacity
from nac_drive.cli.progress import show_progress
from nac_drive.envs.views import Size, View


@dataclass(frozen=True)
class DatasetInfo:
    """Show what is in a dataset."""

    path: Positional[Path]
    """Folder of the dataset."""
    json: bool = False
    """Print JSON."""

    def run(self, console: Console) -> None:
        info = nd.Demonstrations.open(self.path).info()
        if self.json:
            print(json.dumps(info, indent=2))
        else:
            print_info(console, info)


@dataclass(frozen=True)
class DatasetVerify:
    """Check hashes, shapes and values of every file."""

    path: Positional[Path]
    """Folder of the dataset."""
    replay: bool = False
    """Simulate every episode again and compare frames and rewards bit for bit."""
    workers: int = 0
    """Parallel processes; 0: one per core."""

    def run(self, console: Console) -> None:
        dataset = nd.Demonstrations.open(self.path)
        with show_progress(console) as progress:
            problems = dataset.verify(replay=self.replay, workers=self.workers, progress=progress)
        for problem in problems:
            console.print(problem, highlight=False, soft_wrap=True)
        if problems:
            raise ValueError(f"{self.path} has {len(problems)} problem(s), each listed above with its fix.")
        replayed = ", replayed frame by frame" if self.replay else ""
        console.print(f"{self.path}: {len(dataset)} episodes, all sound{replayed}", highlight=False)


@dataclass(frozen=True)
class DatasetActionLog:
    """Write the actions of a dataset to one small file, from which `rebuild` simulates all frames again."""

    path: Positional[Path]
    """Folder of the dataset."""
    out: Path
    """The new file."""
    workers: int = 0
    """Parallel processes; 0: one per core."""

    def run(self, console: Console) -> None:
        dataset = nd.Demonstrations.open(self.path)
        with show_progress(console) as progress:
            nd.save_action_log(dataset, self.out, workers=self.workers, progress=progress)
        size = self.out.stat().st_size
        console.print(f"{self.out}: {len(dataset)} episodes in {size:,} bytes", highlight=False, soft_wrap=True)


@dataclass(frozen=True)
class DatasetRebuild:
    """Simulate the episodes of an action log again: the same dataset bit for bit, or what another view shows of it."""

    log: Positional[Path]
    """The action log."""
    out: Path
    """Folder of the new dataset."""
    view: View | None = None
    """View of the frames, above or seat; none: the recording's."""
    size: Size | None = None
    """Width and height of the frames, in pixels; none: the recording's, or 96 x 96 in another view."""
    workers: int = 0
    """Parallel processes; 0: one per core."""
    resume: bool = False
    """Go on with an interrupted rebuild."""

    def run(self, console: Console) -> None:
        with show_progress(console) as progress:
            dataset = nd.rebuild(
                self.log, self.out, view=self.view, size=self.size, workers=self.workers, resume=self.resume,
                progress=progress,
            )  # fmt: skip
        print_info(console, dataset.info())


@dataclass(frozen=True)
class DatasetMerge:
    """Join datasets that were recorded with the same settings, on different tracks."""

    paths: Positional[tuple[Path, ...]]
    """Folders of the datasets."""
    out: Path
    """Folder of the new dataset."""

    def run(self, console: Console) -> None:
        datasets = [nd.Demonstrations.open(path) for path in self.paths]
        with show_progress(console) as progress:
            dataset = nd.Demonstrations.merge(self.out, datasets, progress=progress)
        print_info(console, dataset.info())


@dataclass(frozen=True)
class Dataset:
    """Datasets: info, verify, merge, publish (action-log) and rebuild, exchange with others (export, import)."""

    action: (
        Annotated[DatasetInfo, tyro.conf.subcommand("info")]
        | Annotated[DatasetVerify, tyro.conf.subcommand("verify")]
        | Annotated[DatasetMerge, tyro.conf.subcommand("merge")]
        | Annotated[DatasetActionLog, tyro.conf.subcommand("action-log")]
        | Annotated[DatasetRebuild, tyro.conf.subcommand("rebuild")]
        | Annotated[DatasetExport, tyro.conf.subcommand("export")]
        | Annotated[DatasetImport, tyro.conf.subcommand("import")]
        | Annotated[DatasetImportTub, tyro.conf.subcommand("import-tub")]
        | Annotated[DatasetImportUdacity, tyro.conf.subcommand("import-udacity")]
    )

    def run(self, console: Console) -> None:
        self.action.run(console)


def print_info(console: Console, info: dict[str, Any]) -> None:
    """Print a summary of demonstrations, a line each."""
    from nac_drive.data_collection.dataset.info import describe

    for name, value in describe(info):
        console.print(f"{name:>16}  {value}", highlight=False, soft_wrap=True)
