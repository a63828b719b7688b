"""Reports of the library while it works, as progress bars and notes."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from rich.console import Console

from nac_drive.cli.progress_bar import ProgressBar, progress


class Progress:
    """Shows a chain of jobs, one bar after the other."""

    def __init__(self, console: Console):
        self._console = console
        self._stack = ExitStack()
        self._name = ""
        self._bar: ProgressBar | None = None
        self._done = 0

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _to(self, name: str, total: float) -> ProgressBar:
        if name != self._name or self._bar is None:
            self._stack.close()
            self._stack = ExitStack()
            self._name, self._done = name, 0
            self._bar = self._stack.enter_context(progress(self._console, name, total))
        return self._bar

    def _next(self, name: str, total: float, note: str) -> None:
        bar = self._to(name, total)
        self._done += 1
        bar.update(self._done, note)

    def demo_reporter(self, baselines: int) -> Any:
        """Show the reports of `demo`; `baselines` is their number."""
        compare = self.compare_reporter(1 + baselines)  # with the expert

        def report(job: str, row: dict[str, Any]) -> None:
            if "event" in row and row["event"].total:
                event = row["event"]
                self._to(event.job, event.total).update(event.done, event.note)
            elif "event" in row:
                self._console.print(f"{row['event'].job}: {row['event'].note}", highlight=False)
            elif job == "compare":
                compare(row["run"], row)
            elif job == "video":
                self._to(f"video ({row['name']})", row["frames"]).update(row["frame"])
            else:
                self._next(f"evaluate {job}", row["tracks"], episode_note(row["episode"]))

        return report

    def inspection_reporter(self, frames: int) -> Any:
        """Show the steps of `inspect`, of at most `frames` an episode."""

        def report(name: str, step: Any) -> None:
            self._to(f"inspect ({name})", frames).update(step.index + 1)

        return report

    def reproduction_reporter(self) -> Any:
        """Show the reports of `reproduce`."""

        def report(row: dict[str, Any]) -> None:
            note = row["entry"] if "entry" in row else f"ready: {row['ready']}"
            self._to("reproduce", row["total"]).update(row.get("done", 0), note)

        return report

    def evaluation_reporter(self) -> Any:
        """Show the reports of `evaluate_with_baseline`."""

        def report(name: str, row: dict[str, Any]) -> None:
            self._to(name, row["tracks"]).update(row["done"], episode_note(row["episode"]))

        return report

    def stress_reporter(self) -> Any:
        """Show the reports of `stress`."""

        def report(driver: str, spec: str, row: dict[str, Any]) -> None:
            note = f"{driver}, {spec or 'undisturbed'}: {episode_note(row['episode'])}"
            self._to("stress", row["episodes"]).update(row["done"], note)

        return report

    def compare_reporter(self, runs: int) -> Any:
        """Show the reports of `compare`."""

        def report(name: str, row: dict[str, Any]) -> None:
            if "started" in row:
                self._to("runs", runs)
                self._console.print(f"{name}: started", highlight=False)
                return
            if "timed" in row:
                self._to("time of one act", row["of"]).update(row["timed"], name)
                return
            if "failed" in row:
                note = f"failed: {row['failed']}"
            elif "rows" in row:
                note = f"return {sum(episode['episode_return'] for episode in row['rows']) / len(row['rows']):.0f}"
            else:
                note = "trained"
            self._next("runs", runs, f"{name} {note}")

        return report


def episode_note(row: Any) -> str:
    """Track and return of an `EpisodeResult`."""
    return f"track {row.seed} return {row.episode_return:.0f}"
