"""Reinforcement learning: learning curves of cores as the policy of PPO, from random weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
from matplotlib.figure import Figure
from msgspec import Meta

from nac_drive.envs import Control, track_seeds
from nac_drive.evaluation.formulas import CAR_RACING
from nac_drive.evaluation.intervals import bootstrap
from nac_drive.evaluation.metric import Count, Number
from nac_drive.experiments.driving import folder_name
from nac_drive.experiments.paper import PaperExperiment, PaperTask, Place, ResultColumn, Row, Whole, list_of
from nac_drive.parallel.processes import worker_pool
from nac_drive.policies import DriverConfig, load_driver
from nac_drive.storage.figure import try_to_draw, write_figure
from nac_drive.storage.style import SOFT, looks_of, styled
from nac_drive.training.config import EvalConfig
from nac_drive.training.ppo.config import PPOConfig, RolloutConfig
from nac_drive.training.ppo.run import ppo
from nac_drive.training.run_folder import RunFolder
from nac_drive.training.settings import changed_by_words

RUNS, FIGURE = "runs", "learning_curves.png"


@dataclass(frozen=True)
class Learning(PaperExperiment):
    """`nac-drive ppo` for every entry, several runs each. Fields are settings of a protocol."""

    control: Control = "continuous"
    runs: Whole = 2
    """Trainings of every entry, with the seeds 0, 1, ..."""
    total_timesteps: Whole = 750_000
    validate_every: Whole = 125_000
    validation_tracks: str = "val-5"
    dense: Whole = 64
    """Units of the action head's hidden layer."""
    recipe: list[str] = field(default_factory=list)
    """Further settings of the training, in the words of `--set`, such as optim.value_core=true."""
    threshold: float = 800.0
    """Return whose first time is reported."""

    alone: ClassVar[bool] = True

    def check(self) -> None:
        self._config("cnn", {}, 0).check()

    def places(self) -> list[Place]:
        return [(("run", run),) for run in range(self.runs)]

    def measure(self, folder: Path, task: PaperTask) -> Row:
        """Return `curve` ([frames, returns] of every validation), best, last, first (frames) and parameters."""
        run = dict(task.place)["run"]
        path = folder / RUNS / f"{folder_name(task.entry)}-{run}"
        config = self._config(task.core, dict(task.core_args), run)
        resume = (path / "config.yaml").exists()
        with worker_pool(0) as pool:
            best = load_driver(ppo(config, path, device=self.device, resume=resume, pool=pool))
        curve = [[row["step"], row["returns"]] for row in RunFolder.open(path).rows() if "returns" in row]
        means = [float(np.mean(returns)) for _, returns in curve]
        first = next((frames for (frames, _), mean in zip(curve, means, strict=True) if mean >= self.threshold), None)
        parts = (best.core, best.action_head)
        return {
            "curve": curve, "best": max(means), "last": means[-1], "first": first,
            "parameters": sum(each.numel() for part in parts for each in part.parameters()),
        }  # fmt: skip

    def _config(self, core: str, args: dict[str, Any], run: int) -> PPOConfig:
        driver = DriverConfig(core, args, encoder="pooled", d_model=128, dense=self.dense, control=self.control)
        config = PPOConfig(
            driver=driver, seed=run, total_timesteps=self.total_timesteps, validate_every=self.validate_every,
            validation=EvalConfig(self.validation_tracks),
        )  # fmt: skip
        return changed_by_words(config, self.recipe, {})

    def numbers(self, task: PaperTask) -> dict[str, Any]:
        count: Any = Count
        validation: Any = tuple[Count, list_of(Number, len(track_seeds(self.validation_tracks)))]
        curve = Annotated[list[validation], Meta(min_length=1)]
        return {"curve": curve, "best": Number, "last": Number, "first": count | None, "parameters": count}

    def columns(self) -> list[ResultColumn]:
        return [
            ResultColumn("parameters", "parameters of core and head", "parameters", {}, 0),
            ResultColumn("last", f"return after {self.total_timesteps / 1e6:g} M frames", "last", {}, 0),
            ResultColumn("best", "best validation", "best", {}, 0),
            ResultColumn("first", f"million frames to {self.threshold:g}", "first", {}, 2, 1e-6),
        ]

    def describe(self) -> str:
        recipe = f", {', '.join(f'`{word}`' for word in self.recipe)}" if self.recipe else ""
        return (
            f"PPO from random weights with the settings of `nac-drive ppo` ({self.control} control, actions held for "
            f"{RolloutConfig.action_repeat} frames{recipe}), runs of each: {self.runs}, validated on "
            f"{self.validation_tracks} every {self.validate_every:,} frames; the validated driver acts at every frame. "
            "± is the standard deviation over runs. Runs that never reach a return are left out of the mean of its "
            "column, and counted there."
        )

    def conclude(self, folder: Path, rows: Sequence[Row]) -> str:
        """Draw the learning curves, and compare the last returns with the first entry's."""
        if not rows:
            return ""
        drawn = try_to_draw(draw_curves, folder / FIGURE, rows)
        last = {
            entry: np.array([row["curve"][-1][1] for row in rows if row["entry"] == entry])  # (runs, tracks)
            for entry in dict.fromkeys(row["entry"] for row in rows)
        }
        baseline, *others = last
        found = {entry: bootstrap(last[entry], last[baseline]) for entry in others}
        differences = "; ".join(f"{entry} {difference.text('+.0f')}" for entry, difference in found.items())
        several = any(len(runs) > 1 for runs in last.values())
        caption = (
            "Mean over runs and tracks; the shade spans the runs." if several else "Mean over tracks of one run each."
        )
        parts = [f"![Learning curves]({FIGURE})", caption] * drawn
        if others:
            parts.append(f"**Last return, difference from {baseline}** (95 % over runs and tracks): {differences}.")
        return "\n\n".join(parts)


@styled()
def draw_curves(path: Path, rows: Sequence[Row]) -> None:
    """Draw the mean return over frames, one line per entry, with the range of the runs."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes: Any = figure.subplots()
    for entry, look in looks_of(row["entry"] for row in rows).items():
        curves = [row["curve"] for row in rows if row["entry"] == entry]
        length = min(map(len, curves))
        means = np.array([[np.mean(returns) for _, returns in curve[:length]] for curve in curves])  # (runs, points)
        frames = np.mean([[step for step, _ in curve[:length]] for curve in curves], axis=0) / 1e6
        axes.plot(frames, means.mean(axis=0), label=entry, color=look.color, linestyle=look.linestyle)
        axes.fill_between(frames, means.min(axis=0), means.max(axis=0), alpha=0.15, color=look.color, lw=0)
    axes.axhline(CAR_RACING.solved_return, color=SOFT, lw=1, ls="--")
    axes.set_xlabel("million frames")
    axes.set_ylabel("return on the validation tracks")
    axes.legend()
    write_figure(path, figure)
