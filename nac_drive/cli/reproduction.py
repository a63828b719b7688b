"""The command that measures tables of the papers again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from tyro.conf import Positional

import nac_drive as nd
from nac_drive.cli.progress import show_progress
from nac_drive.cli.typed import Device


@dataclass(frozen=True)
class Reproduce:
    """Measure a table of a paper again, and write a page with the printed figures beside ours."""

    name: Positional[str]
    """The table. Settings of its measurement may follow, such as nac-table1,tested_folds=5."""
    out: Path
    """Folder of the results and of the page."""
    full: bool = False
    """Measure at the paper's size, in place of what two cores do in about an hour."""
    only: tuple[str, ...] = ()
    """Lines of the table, by the paper's name or our core; all of them for none."""
    device: Device = "auto"
    """Device of the training: the GPU where there is one (auto), cpu or cuda."""
    resume: bool = False
    """Go on with an interrupted reproduction, or with other lines of it."""
    workers: int = 0
    """Parallel processes; 0: one per core. Run times are measured in one at a time."""

    @classmethod
    def description(cls) -> str:
        """Return what the command does, and every table."""
        from nac_drive.experiments.protocol import SCRIPTED, lines, listed

        scripted = "In a clone of the repository, `python benchmarks/papers/reproduce.py NAME --out FOLDER` measures"
        return "\n\n".join([str(cls.__doc__), listed(), scripted, lines(SCRIPTED)])

    def run(self, console: Console, **tables: Any) -> None:
        """Measure the table.

        Args:
            console: Of the progress and the path of the page.
            tables: `experiments`, `protocols` and `command` of `reproduce`, for tables of others.
        """
        with show_progress(console) as progress:
            page = nd.reproduce(
                self.name, self.out, full=self.full, only=self.only, resume=self.resume,
                workers=self.workers, device=self.device, progress=progress, **tables,
            )  # fmt: skip
        console.print(f"page: {page}", highlight=False, soft_wrap=True)
