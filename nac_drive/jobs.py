"""What the library reports while it works, turned into meters and notes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from rich.console import Console

from nac_drive.progress import Meter, progress


class Jobs:
    """Shows a chain of jobs, one meter after the other."""

    def __init__(self, console: Console):
        self._console = console
        self._stack = ExitStack()
        self._name = ""
        self._meter: Meter | None = None
        self._done = 0

    def __enter__(self) -> Jobs:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _to(self, name: str, total: float) -> Meter:
        if name != self._name or self._meter is None:
            self._stack.close()
            self._stack = ExitStack()
            self._name, self._done = name, 0
            self._meter = self._stack.enter_context(progress(self._console, name, total))
        return self._meter

    def _next(self, name: str, total: float, note: str) -> None:
        meter = self._to(name, total)
        self._done += 1
        meter.update(self._done, note)

    def demo_reporter(self) -> Any:
        """For `demo`."""
        dagger = self.dagger_reporter()

        def report(job: str, row: dict[str, Any]) -> None:
            if job == "dagger":
                dagger(row)
            elif job == "video":
                self._to(f"video ({row['name']}, track {row['track']})", 1)
            else:
                self._next(f"evaluate {job}", row["tracks"], episode_note(row["episode"]))

        return report

    def compare_reporter(self, runs: int) -> Any:
        """For `compare`."""

        def report(name: str, row: dict[str, Any]) -> None:
            if "failed" in row:
                note = f"failed: {row['failed']}"
            elif "rows" in row:
                note = f"return {sum(lap['episode_return'] for lap in row['rows']) / len(row['rows']):.0f}"
            else:
                note = "trained"
            self._next("runs", runs, f"{name} {note}")

        return report

    def dagger_reporter(self) -> Any:
        """For `dagger`."""

        def report(row: dict[str, Any]) -> None:
            if "lap" in row:
                meter = self._to(f"round {row['round']}: laps", row["laps"])
                meter.update(row["lap"], f"track {row['seed']} return {row['return']:.0f}")
            elif "batch" in row:
                meter = self._to(f"round {row['round']}: training", row["passes"])
                meter.update(row["pass"] + row["batch"] / row["batches"], f"loss {row['loss']:.3f}")
            else:
                agreement = f", agreement {100 * row['agreement']:.1f} %" if "agreement" in row else ""
                self._console.print(
                    f"round {row['step']}: {row['frames']} frames, closed loop {row['return_mean']:.0f}, "
                    f"min {min(row['returns']):.0f}{agreement}",
                    highlight=False,
                )

        return report

    def expert_reporter(self) -> Any:
        """For `train_expert`."""

        def report(row: dict[str, Any]) -> None:
            if row["phase"] == "ppo":
                note = "" if row["return"] is None else f"return {row['return']:.0f}"
                self._to("ppo", row["steps"]).update(row["step"], note)
            else:
                self._console.print(
                    f"validation at step {row['step']}: {row['mean']:.1f} ± {row['sd']:.1f}, min {row['minimum']:.1f}",
                    highlight=False,
                )

        return report


def show_training(meter: Meter, row: dict[str, Any]) -> None:
    """A batch or an epoch that `clone` reports."""
    if "batch" in row:
        meter.update(row["epoch"] - 1 + row["batch"] / row["batches"], f"loss {row['loss']:.3f}")
        return
    note = f"loss {row['loss']:.3f}"
    if row.get("held_out"):
        note += f" held-out {100 * row['held_out']['accuracy']:.1f} %"
    if "return_mean" in row:
        note += f" closed loop {row['return_mean']:.0f}"
    meter.update(row["step"], note)


def count_episodes(meter: Meter, note: Callable[[Any], str]) -> Callable[[Any], None]:
    """A callback that moves `meter` by one for every episode."""
    done = 0

    def one_more(row: Any) -> None:
        nonlocal done
        done += 1
        meter.update(done, note(row))

    return one_more


def episode_note(row: Any) -> str:
    """Track and return of an `EpisodeResult`."""
    return f"track {row.seed} return {row.episode_return:.0f}"
