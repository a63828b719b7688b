"""The further races of the demo.

In their worlds memory may pay.

Every race is a comparison: cores with and without memory learn from the learner's episodes, and drive the same tracks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.data_collection.drivers import driver_name
from nac_drive.events import Progress
from nac_drive.experiments.compare import Comparison, compare
from nac_drive.experiments.headline import over_baseline
from nac_drive.experiments.journal import CONDITIONS
from nac_drive.experiments.leaderboard import leaderboard
from nac_drive.experiments.page import PageSection, conditions
from nac_drive.training.config import EvalConfig, TrainConfig


@dataclass(frozen=True)
class DemoRace:
    """A world of the demo."""

    name: str
    """Folder of the comparison."""
    where: str
    """The world in words, as a sentence begins with it."""
    perturb: str
    """Perturbation of the training and of the race."""
    epochs: int
    """Epochs of every run."""


LOST_FRAMES = DemoRace("lost-frames", "Where half of the frames are black", perturb="blackouts:2", epochs=4)
WITHOUT_MEMORY = "cnn"
"""The core that the others are compared with."""
BEST_NAC = "nac-transformer"
"""The NAC with the highest mean where frames get lost (docs/leaderboard.md)."""


@dataclass(frozen=True)
class FinishedRace:
    """A race that was driven."""

    race: DemoRace
    comparison: Comparison
    config: TrainConfig

    @property
    def sentence(self) -> str:
        """The drivers that score more than the one without memory."""
        return f"{self.race.where}, {over_baseline(self.comparison.drivers, 'which has no memory')}"

    def section(self, tracks: str) -> PageSection:
        """Return the table of the race for a page.

        Args:
            tracks: The tracks of the race.
        """
        source = driver_name(self.config.optim.freeze_encoder_from or "")
        text = (
            "Cores with and without memory learned from the learner's episodes by behaviour cloning in "
            f"{self.config.epochs} epochs on the frozen encoder of {source}. One run of each. The tracks: {tracks}. "
            f"{conditions('ignore', self.race.perturb)} {self.race.name}/report.html has all columns."
        )
        return PageSection(self.race.where, text, leaderboard(self.comparison.drivers, _COLUMNS))


_COLUMNS = ("driver", "return ± sd", "min", "vs baseline [95 %]", "solved %", "crashes/episode", "off road %", "rate")


def race(
    world: DemoRace,
    cores: Sequence[str],
    dataset: Demonstrations,
    config: TrainConfig,
    tracks: str,
    folder: Path,
    *,
    expert: str,
    device: str,
    workers: int,
    progress: Progress,
) -> FinishedRace:
    """Let cores learn and drive in a world; an interrupted race goes on.

    Args:
        world: The world.
        cores: Cores to train, `WITHOUT_MEMORY` among them.
        dataset: Episodes from above.
        config: Settings of every run.
        tracks: Tracks of the race.
        folder: The folder of the demo.
        expert: Drives the same tracks.
        device: `auto`, `cpu` or `cuda`.
        workers: Processes, each of which trains and drives in one; 0 for one per core.
        progress: Called with the events of the comparison.
    """
    config = replace(
        config, perturb=world.perturb, epochs=world.epochs, validation=EvalConfig("val-1"), validate_every=world.epochs
    )
    path = folder / world.name
    comparison = compare(
        cores, dataset, tracks, path, config=config, expert=expert, baseline=WITHOUT_MEMORY,
        device=device, workers=workers, resume=(path / CONDITIONS).exists(), progress=progress,
    )  # fmt: skip
    if comparison.failures:
        name, reason = next(iter(comparison.failures.items()))
        raise ValueError(f"{name} failed: {reason}; run the demo again to go on.")
    return FinishedRace(world, comparison, config)
