"""Commands that exchange datasets with other programs: dataset export and dataset import."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from tyro.conf import Positional

import nac_drive as nd
from nac_drive.cli.progress import show_progress
from nac_drive.data_collection.interchange import ExportFormat
from nac_drive.data_collection.interchange.tub_file import is_tub
from nac_drive.data_collection.interchange.udacity import EPISODE_FRAMES, STEERING_OFFSET


@dataclass(frozen=True)
class DatasetExport:
    """Write a dataset for other programs or as videos."""

    path: Positional[Path]
    """Folder of the dataset."""
    to: ExportFormat
    """minari: a folder for MINARI_DATASETS_PATH. lerobot: a LeRobotDataset v3.0. mp4: videos to look at, lossy.
    tub: a tub of donkeycar, with JPEG images."""
    out: Path
    """The new folder."""

    def run(self, console: Console) -> None:
        """Write the export and print its size."""
        dataset = nd.Demonstrations.open(self.path)
        with show_progress(console) as progress:
            nd.export_dataset(dataset, self.out, self.to, progress=progress)
        size = sum(file.stat().st_size for file in self.out.rglob("*") if file.is_file())
        console.print(f"{self.out}: {len(dataset)} episodes in {size:,} bytes", highlight=False, soft_wrap=True)


@dataclass(frozen=True)
class DatasetImport:
    """Read a dataset of Minari: one that was exported comes back as it was, any other becomes own data."""

    source: Positional[str]
    """Folder of the dataset, or its id, such as nac-drive/car-racing-discrete-v0."""
    out: Path
    """Folder of the new dataset."""

    def run(self, console: Console) -> None:
        """Write the dataset and print its size."""
        if is_tub(Path(self.source)):
            raise ValueError(
                f"{self.source} is a tub of donkeycar, no dataset of Minari; pass it to `nac-drive dataset import-tub`."
            )
        with show_progress(console) as progress:
            dataset = nd.Demonstrations.from_minari(self.out, self.source, progress=progress)
        frames = sum(row["length"] for row in dataset.rows)
        console.print(f"{self.out}: {len(dataset)} episodes, {frames:,} frames", highlight=False, soft_wrap=True)


@dataclass(frozen=True)
class DatasetImportUdacity:
    """Read recordings of the Udacity simulator: driving_log.csv, and the images of three cameras in IMG beside it."""

    log: Positional[tuple[Path, ...]]
    """driving_log.csv of each recording."""
    out: Path
    """Folder of the new dataset."""
    steering_offset: float = STEERING_OFFSET
    """Added to the steering of the left camera, subtracted from the steering of the right one; 0 leaves both cameras
    out."""
    episode_frames: int = EPISODE_FRAMES
    """The recording is cut into episodes of so many frames, so that some can be kept out of training."""
    first_track: int = 0
    """Number of the first part of the recording; datasets of different numbers can be merged."""
    skip_missing: bool = False
    """Leave lines out whose images are missing or damaged."""

    def run(self, console: Console) -> None:
        """Write the dataset and print how many lines are used, and its size."""
        with show_progress(console) as progress:
            dataset = nd.import_udacity(
                self.log, self.out, steering_offset=self.steering_offset, episode_frames=self.episode_frames,
                first_track=self.first_track, skip_missing=self.skip_missing,
                progress=progress,
            )  # fmt: skip
        frames = sum(row["length"] for row in dataset.rows)
        console.print(f"{self.out}: {len(dataset)} episodes, {frames:,} frames", highlight=False, soft_wrap=True)


@dataclass(frozen=True)
class DatasetImportTub:
    """Read tubs of donkeycar, see docs/donkeycar.md."""

    tubs: Positional[tuple[Path, ...]]
    """Folder of each tub: manifest.json, catalogs and images."""
    out: Path
    """Folder of the new dataset."""
    episode_frames: int | None = None
    """A session is cut into episodes of so many frames, so that some can be kept out of training. By default 500; a
    session of an exported tub stays whole."""
    first_track: int = 0
    """Number of the first track; datasets of different numbers can be merged. An exported tub may name its own."""
    skip_missing: bool = False
    """Leave records out whose line is torn or wrong, or whose image is missing or damaged."""

    def run(self, console: Console) -> None:
        """Write the dataset and print how many records are used, and its size."""
        with show_progress(console) as progress:
            dataset = nd.import_tub(
                self.tubs, self.out, episode_frames=self.episode_frames, first_track=self.first_track,
                skip_missing=self.skip_missing, progress=progress,
            )  # fmt: skip
        frames = sum(row["length"] for row in dataset.rows)
        console.print(f"{self.out}: {len(dataset)} episodes, {frames:,} frames", highlight=False, soft_wrap=True)
