"""Learning curves of the passive test (thesis, Fig. 6.3 and Table 6.5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nac_drive.evaluation.metric import Number
from nac_drive.experiments.offline import Offline
from nac_drive.experiments.paper import PaperTask, ResultColumn, Row
from nac_drive.storage.figure import try_to_draw, write_figure
from nac_drive.storage.style import looks_of, styled

FIGURE = "thesis-6.3.png"


@dataclass(frozen=True)
class LearningCurves(Offline):
    """The passive test, with the losses of every epoch.

    Fields are settings of a protocol.
    """

    def measure(self, folder: Path, task: PaperTask) -> Row:
        """Return the numbers of `Offline`, and both curves.

        The last three are the epoch where the stopping loss was least, and both losses there.
        """
        row, curve = self.trained(folder, task)
        training, stopping = np.array(curve).T
        best = int(np.argmin(stopping))
        return {
            **row, "training_curve": training.tolist(), "stopping_curve": stopping.tolist(), "stopping_epoch": best + 1,
            "loss_in_training": float(training[best]), "loss_at_stop": float(stopping[best]),
        }  # fmt: skip

    def numbers(self, task: PaperTask) -> dict[str, Any]:
        curves = dict.fromkeys(("training_curve", "stopping_curve"), list[Number])
        ends = dict.fromkeys(("stopping_epoch", "loss_in_training", "loss_at_stop"), Number)
        return super().numbers(task) | curves | ends

    def columns(self) -> list[ResultColumn]:
        return [
            ResultColumn("stopping_epoch", "stopping epoch", "stopping_epoch", {}, 0),
            ResultColumn("training", "training loss x 100", "loss_in_training", {}, 2, 100),
            ResultColumn("validation", "validation loss x 100", "loss_at_stop", {}, 2, 100),
        ]

    def conclude(self, folder: Path, rows: Sequence[Row]) -> str:
        if not try_to_draw(draw_curves, folder / FIGURE, rows):
            return ""
        return (
            f"![learning curves]({FIGURE})\n\nEvery fold has two lines, of its training loss (thin) and its validation"
            " loss (thick). It ends when the validation loss has not fallen for some epochs, and the dot is where it"
            " was least."
        )


@styled()
def draw_curves(path: Path, rows: Sequence[Row]) -> None:
    """Draw both losses over epochs, one panel an entry.

    Args:
        path: The new PNG.
        rows: Rows of `LearningCurves.measure`.
    """
    from matplotlib.figure import Figure

    looks = looks_of(row["entry"] for row in rows)
    figure = Figure(figsize=(3.1 * len(looks), 3.4), layout="constrained")
    axes = figure.subplots(1, len(looks), squeeze=False, sharey=True)[0]
    for axis, (entry, look) in zip(axes, looks.items(), strict=True):
        for fold in (row for row in rows if row["entry"] == entry):
            for key, width in (("training_curve", 1.0), ("stopping_curve", 2.2)):
                axis.plot(np.arange(1, len(fold[key]) + 1), fold[key], color=look.color, lw=width)
            axis.plot(fold["stopping_epoch"], fold["loss_at_stop"], "o", color=look.color)
        axis.set_title(entry)
        axis.set_xlabel("epoch")
        axis.set_yscale("log")
    axes[0].set_ylabel("loss")
    write_figure(path, figure)
