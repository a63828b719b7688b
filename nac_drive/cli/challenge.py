"""The command challenge: drive its worlds, or verify a result."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console
from tyro.conf import Positional

from nac_drive.cli.progress import ProgressMode, show_progress
from nac_drive.cli.typed import typed
from nac_drive.envs import SPLITS, Control
from nac_drive.parallel.processes import worker_pool


@dataclass(frozen=True)
class Challenge:
    """Drive a fixed list of worlds, or verify a result."""

    task: Positional[Literal["drive", "verify"]] = "drive"
    """drive: drive all worlds and write --out. verify: check a result, and drive some of its rows again."""
    result: Positional[Path | None] = None
    """The result to verify."""
    driver: str | None = None
    """The driver: a name, the folder of a driver or run, an .onnx or .zip file, or your own as FILE.py:NAME. To
    verify a shipped driver's result it may be left out."""
    out: Path | None = None
    """The new result, such as result.json. A folder without `.json` gets the journal and report.html."""
    tracks: int = len(SPLITS["challenge"])
    """Tracks of each world. Fewer are a rehearsal, and the result says so."""
    control: Control | None = None
    """Control of a shipped driver; a cloned driver knows its own."""
    sample: int = 3
    """Rows that verify drives again."""
    resume: bool = False
    """Go on with an interrupted run."""
    workers: int = 0
    """Parallel processes; 0: one per core. The result does not depend on it."""
    progress: ProgressMode = "auto"
    """auto: bars in a terminal, lines elsewhere; json: a line of JSON for every step, on stderr."""

    @property
    def folder(self) -> Path | None:
        """The folder of the journal."""
        return self.out and self.out.with_suffix("")

    def run(self, console: Console) -> None:
        """Drive or verify, and print the outcome."""
        if self.task == "verify":
            self._verify(console)
        else:
            self._drive(console)

    def _drive(self, console: Console) -> None:
        from nac_drive.experiments.challenge import challenge
        from nac_drive.experiments.challenge_result import challenge_table

        if self.driver is None or self.out is None or self.result is not None:
            raise ValueError("challenge needs --driver and --out; `challenge verify RESULT` checks a result.")
        if self.sample != Challenge.sample:
            raise ValueError(f"sample must be left out without verify, which drives rows again, got {self.sample}.")
        with worker_pool(self.workers) as pool, show_progress(console, self.progress) as progress:
            result = challenge(
                typed(self.driver), self.out, tracks=self.tracks, control=self.control, resume=self.resume, pool=pool,
                progress=progress,
            )  # fmt: skip
        rehearsal = "" if result.official else f", a rehearsal on {self.tracks} tracks"
        console.print(challenge_table(result).terminal(f"{result.driver.name}: score {result.score:.1f}{rehearsal}"))
        console.print(f"result: {self.out}", highlight=False, soft_wrap=True)

    def _verify(self, console: Console) -> None:
        from nac_drive.experiments.challenge_check import verify_challenge

        if self.result is None:
            raise ValueError("challenge verify needs a result, got none; pass result.json.")
        for option in ("out", "tracks", "control", "resume", "workers"):
            if (value := getattr(self, option)) != getattr(Challenge, option):
                raise ValueError(
                    f"{option} must be left out with verify, which drives rows of the result, got {value!r}."
                )
        with show_progress(console, self.progress) as progress:
            driver = None if self.driver is None else typed(self.driver)
            check = verify_challenge(self.result, driver, sample=self.sample, progress=progress)
        for note in check.notes:
            console.print(f"note: {note}", highlight=False, soft_wrap=True)
        if check.faults:
            raise ValueError(f"{self.result} does not hold: {'; '.join(check.faults)}.")
        console.print(f"{self.result} holds, {check.driven} rows driven again", highlight=False, soft_wrap=True)
