"""Closed-loop tests: drivers learn from the same episodes, several runs each, and drive under perturbations."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import torch

from nac_drive.data_collection.collect import collect
from nac_drive.data_collection.dart import NoiseConfig
from nac_drive.data_collection.drivers import driver_hash
from nac_drive.envs import SPLITS, Control, CrashMode, EnvConfig, track_seeds
from nac_drive.envs.perturbations.registry import parse_all
from nac_drive.envs.views import View
from nac_drive.evaluation.evaluate import evaluate
from nac_drive.evaluation.intervals import bootstrap, clearly_positive
from nac_drive.evaluation.metric import EMPTY, Count, Number
from nac_drive.events import silent
from nac_drive.experiments.driving import folder_name
from nac_drive.experiments.paper import (
    Map,
    PaperExperiment,
    PaperTask,
    Place,
    ResultColumn,
    Row,
    Whole,
    list_of,
    record_of,
)
from nac_drive.experiments.recorded import RecordedEvaluation, evaluate_recorded
from nac_drive.experiments.stress import stress
from nac_drive.markdown import markdown_table
from nac_drive.policies import ENCODERS, Driver, DriverConfig
from nac_drive.policies.checkpoint import load_driver
from nac_drive.policies.cores.pdna import Pulse
from nac_drive.training.config import DataConfig, EvalConfig, OptimConfig, TrainConfig
from nac_drive.training.dagger import dagger
from nac_drive.training.dagger_config import DaggerConfig
from nac_drive.training.settings import changed_by_words
from nac_drive.training.train import load_splits, train, train_plan

DATASET, RECORDED, RUNS = "dataset", "recorded", "runs"


@dataclass(frozen=True)
class Cloning(PaperExperiment):
    """Behaviour cloning, then `stress`, as `compare` and `stress` do it. Fields are settings of a protocol."""

    perturbations: list[str]
    """Specifications, see `perturb`; every driver also drives undisturbed."""
    control: Control = "continuous"
    view: View = "above"
    """View that the networks see; the expert sees the view of its own training."""
    expert: str = "controller"
    noise: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.15
    """Fraction of recorded frames with a random action; the label stays the expert's."""
    episodes: Whole = 40
    runs: Whole = 5
    """Trainings of every entry, with the seeds 0, 1, ..."""
    tracks: str = "test-2"
    crash: CrashMode = "ignore"
    encoder: str = "compact"
    encoder_from: str | None = "expert"
    """Driver whose encoder is frozen; None: every run trains its own."""
    features: int | None = None
    """Features of the encoder where they differ from d_model."""
    d_model: Whole = 64
    epochs: Whole = 12
    sequence_length: Whole = 32
    batch_size: Whole = 8
    learning_rate: float = 2e-3
    recipe: list[str] = field(default_factory=list)
    """Further settings of the training, in the words of `--set`, such as optim.ema_decay=0."""
    rounds: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Rounds of DAgger: each run then learns from episodes of its own, the first `episodes` of them the expert's; 0 for
    behaviour cloning on the same episodes."""
    round_episodes: Whole = 12
    round_epochs: Whole = 8
    """Epochs of each round, over all episodes so far."""
    validation_tracks: str = "val-1"
    """Tracks that pick the best round."""
    recorded_tracks: str | None = None
    """Tracks on which the expert is recorded. Every driver predicts its actions there, undisturbed and with the frames
    under every perturbation."""
    zero_lost_frames: bool = False
    """A lost frame reaches the core as zeros."""
    clamp: str = ""
    """A perturbation under which drivers with a pulse drive once more, their frequencies kept below the Nyquist limit
    (PDNA, section 7.4)."""

    def check(self) -> None:
        for tracks in filter(None, (self.tracks, self.recorded_tracks)):
            track_seeds(tracks)
        for perturbation in filter(None, (*self.perturbations, self.clamp)):
            parse_all(perturbation)
        ENCODERS.require(self.encoder)
        self._config("cnn", {}, 0).check()

    def drivers(self) -> dict[str, str]:
        env = EnvConfig(self.control, view=self.view)
        optim = self._config("cnn", {}, 0).optim
        names = [str(name) for name in (self.expert, optim.freeze_encoder_from, optim.init_from) if name]
        return {f"{name}, {self.control}": driver_hash(name, env) for name in names}

    def prepare(self, folder: Path, each: Map) -> Iterator[str]:
        """Record the episodes, and compute the features of a frozen encoder; DAgger does both itself."""
        env = EnvConfig(self.control, view=self.view)
        if self.recorded_tracks:
            recorded, seeds = folder / RECORDED, track_seeds(self.recorded_tracks)
            collect(recorded, self.expert, env=env, seeds=seeds, workers=0, resume=recorded.exists())
            yield f"{len(seeds)} recorded tracks"
        if self.rounds:
            return
        dataset = folder / DATASET
        recorded = collect(
            dataset, self.expert, env=env, seeds=SPLITS["train"][: self.episodes], noise=NoiseConfig(self.noise),
            workers=0, resume=dataset.exists(),
        )  # fmt: skip
        yield f"{self.episodes} episodes"
        if self.encoder_from:
            load_splits(train_plan(self.training("cnn", {}, 0), recorded, self.device), recorded)
            yield "features"

    def places(self) -> list[Place]:
        return [(("run", run),) for run in range(self.runs)]

    def measure(self, folder: Path, task: PaperTask) -> Row:
        """Return return_SPEC, interventions_SPEC, lost_SPEC, accuracy_SPEC (means), `episodes`, and costs."""
        run = dict(task.place)["run"]
        path = self.run_folder(folder, task)
        config, resume = self._config(task.core, dict(task.core_args), run), (path / "config.yaml").exists()
        if isinstance(config, DaggerConfig):
            best = dagger(config, path, expert=self.expert, device=self.device, resume=resume)
        else:
            best = train(config, folder / DATASET, path, device=self.device, resume=resume)
        driver = load_driver(best)
        tested = stress([best], self.perturbations, self.tracks, crash=self.crash)
        episodes = {
            spec or "": {
                "return": [row.episode_return for row in rows],
                "interventions": [row.interventions for row in rows],
            }
            for (_, spec), rows in tested.rows.items()
        }  # fmt: skip
        predicted = self._predicted(best, folder) if self.recorded_tracks else {}
        for spec, result in predicted.items():
            episodes[spec]["accuracy"] = [each.accuracy for each in result.episodes.values()]
        undisturbed = np.array(episodes[""]["return"])
        row: Row = {"episodes": episodes, "parameters": sum(each.numel() for each in driver.core.parameters())}
        for spec, measured in episodes.items():
            row |= {f"{metric}_{spec}": float(np.mean(values)) for metric, values in measured.items()}
            if spec in predicted:
                row[f"accuracy_{spec}"] = predicted[spec].accuracy.accuracy  # over frames
            if spec:
                kept = row[f"return_{spec}"] / float(undisturbed.mean()) if clearly_positive(undisturbed) else None
                row[f"lost_{spec}"] = None if kept is None else 1 - kept
        return row | self._pulse(driver)

    def _predicted(self, driver: Path, folder: Path) -> dict[str, RecordedEvaluation]:
        """Return how well a driver predicts the recorded actions, under every perturbation."""
        return {
            spec: evaluate_recorded(
                driver, folder / RECORDED, episodes="all", perturbation=spec, progress=silent
            )[0]
            for spec in ("", *self.perturbations)
        }  # fmt: skip

    def run_folder(self, folder: Path, task: PaperTask) -> Path:
        """Return the folder of a training."""
        return folder / RUNS / f"{folder_name(task.entry)}-{dict(task.place)['run']}"

    def training(self, core: str, args: dict[str, Any], run: int) -> TrainConfig:
        """Return the settings of a training by behaviour cloning, with the seed `run`."""
        config = TrainConfig(**self._common(core, args, run), epochs=self.epochs, validate_every=self.epochs)
        return changed_by_words(config, self.recipe, {})

    def _config(self, core: str, args: dict[str, Any], run: int) -> TrainConfig | DaggerConfig:
        return self._dagger(core, args, run) if self.rounds else self.training(core, args, run)

    def _dagger(self, core: str, args: dict[str, Any], run: int) -> DaggerConfig:
        config = DaggerConfig(
            **self._common(core, args, run), rounds=self.rounds, initial_episodes=self.episodes,
            episodes=self.round_episodes, initial_epochs=self.epochs, epochs=self.round_epochs, noise=self.noise,
            final_learning_rate=self.learning_rate / 5, view=self.view,
        )  # fmt: skip
        return changed_by_words(config, self.recipe, {})

    def _common(self, core: str, args: dict[str, Any], run: int) -> dict[str, Any]:
        driver = DriverConfig(
            core, args, encoder=self.encoder, features=self.features, d_model=self.d_model, control=self.control,
            zero_lost_frames=self.zero_lost_frames,
        )  # fmt: skip
        return {
            "driver": driver,
            "data": DataConfig(self.sequence_length, self.batch_size),
            "optim": OptimConfig(self.learning_rate, freeze_encoder_from=self.encoder_from),
            "validation": EvalConfig(self.validation_tracks), "seed": run,
        }  # fmt: skip

    def _pulse(self, driver: Driver) -> Row:
        """Return the numbers of a pulse, if the core has one (PDNA, sections 6.4 and 7.4)."""
        pulse = next((each for each in driver.core.modules() if isinstance(each, Pulse)), None)
        if pulse is None:
            return {}
        omega = pulse.omega.detach()
        row: Row = {
            "gate": abs(pulse.gate.item()), "strength": abs(pulse.gate.item()) * pulse.amplitude.norm().item(),
            "omega_median": omega.median().item(), "above_nyquist": (omega > math.pi).float().mean().item(),
        }  # fmt: skip
        if self.clamp:
            with torch.no_grad():
                pulse.omega.clamp_(max=math.pi)
            driven = evaluate(driver, self.tracks, perturbation=self.clamp, crash=self.crash, progress=silent)
            row["clamped_return"] = driven.summary.return_mean
        return row

    def numbers(self, task: PaperTask) -> dict[str, Any]:
        specs, metrics = ["", *self.perturbations], ("return", "interventions")
        lists = dict.fromkeys(metrics, list_of(Number, len(track_seeds(self.tracks))))
        if self.recorded_tracks:
            lists["accuracy"] = list_of(Number, len(track_seeds(self.recorded_tracks)))
        accuracies = [f"accuracy_{spec}" for spec in specs] if self.recorded_tracks else []
        pulse = dict.fromkeys(("gate", "strength", "omega_median", "above_nyquist", "clamped_return"), Number | None)
        return {
            "episodes": record_of(dict.fromkeys(specs, record_of(lists))), "parameters": Count,
            **dict.fromkeys(accuracies, Number),
            **{f"{metric}_{spec}": Number for metric in metrics for spec in specs},
            **{f"lost_{spec}": Number | None for spec in self.perturbations},
            **pulse,
        }  # fmt: skip

    def columns(self) -> list[ResultColumn]:
        specs = ["", *self.perturbations]
        columns = [ResultColumn(f"return_{spec}", f"return, {_name(spec)}", f"return_{spec}", {}, 0) for spec in specs]
        if self.recorded_tracks:
            headings = {f"accuracy_{spec}": f"accuracy, %, {_name(spec)}" for spec in specs}
            columns = [ResultColumn(key, heading, key, {}, 1, 100) for key, heading in headings.items()] + columns
        if self.crash == "intervene":
            heading = "interventions an episode"
            columns += [
                ResultColumn(f"interventions_{spec}", f"{heading}, {_name(spec)}", f"interventions_{spec}", {}, 1)
                for spec in specs
            ]
        else:
            columns += [
                ResultColumn(f"lost_{spec}", f"lost, %, {_name(spec)}", f"lost_{spec}", {}, 1, 100)
                for spec in self.perturbations
            ]
        return [*columns, ResultColumn("parameters", "parameters of the core", "parameters", {}, 0)]

    def describe(self) -> str:
        if self.rounds:
            learned = (
                f"DAgger: {self.episodes} episodes of {self.expert}, then {self.rounds} rounds of "
                f"{self.round_episodes} episodes by a mixture policy, with labels of {self.expert} ({self.control} "
                f"control); {self.epochs} epochs at first, {self.round_epochs} in each round; "
                f"{self.validation_tracks} picks the best round."
            )
        else:
            learned = (
                f"{self.expert} drove {self.episodes} training tracks ({self.control} control, "
                f"{100 * self.noise:g} % of the frames with a random action); {self.epochs} epochs over them."
            )
        recipe = f", with {', '.join(f'`{word}`' for word in self.recipe)}" if self.recipe else ""
        predicted = (
            f" Accuracy is the percentage of frames of {self.expert} on {self.recorded_tracks} with {self.expert}'s "
            "action (docs/metrics.md), which every driver sees, undisturbed and under every perturbation."
            if self.recorded_tracks else ""
        )  # fmt: skip
        encoder = f"the frozen encoder of {self.encoder_from}" if self.encoder_from else f"{self.encoder}, of each run"
        return (
            f"{learned} Encoder: {encoder}. Runs of each: {self.runs}, {self.batch_size} sequences of "
            f"{self.sequence_length} frames an update, Adam at {self.learning_rate:g}{recipe}. Each run drove the "
            f"tracks {self.tracks} undisturbed and under every perturbation (docs/perturbations.md). "
            f"Crashes: {self.crash}. ± is the standard deviation "
            "over runs. Lost is the part of the run's own undisturbed return; a run whose undisturbed return is not "
            f"clearly positive (docs/metrics.md) is left out of it.{predicted}"
        )

    def conclude(self, folder: Path, rows: Sequence[Row]) -> str:
        """Return paired differences from the first entry, and what became of the pulses."""
        entries = list(dict.fromkeys(row["entry"] for row in rows))
        metrics = ["interventions" if self.crash == "intervene" else "return"]
        if self.recorded_tracks:
            metrics.insert(0, "accuracy")
        parts = [self._differences(rows, entries, metric) for metric in metrics]
        parts += [self._runs(rows, entries), self._pulses(rows)]
        return "\n\n".join(part for part in parts if part)

    def _runs(self, rows: Sequence[Row], entries: Sequence[str]) -> str:
        """Return the accuracy of every run under the last perturbation (PDNA, Table 8)."""
        if not self.recorded_tracks or not rows:
            return ""
        spec = self.perturbations[-1] if self.perturbations else ""
        runs = sorted({row["run"] for row in rows})
        accuracy = {(row["entry"], row["run"]): row[f"accuracy_{spec}"] for row in rows}
        lines = []
        for entry in entries:
            pairs = [(accuracy.get((entry, run)), accuracy.get((entries[0], run))) for run in runs]
            both = [own > first for own, first in pairs if own is not None and first is not None]
            cells = [EMPTY if own is None else f"{100 * own:.1f}" for own, _ in pairs]
            lines.append([entry, *cells, "" if entry == entries[0] else f"{sum(both)} of {len(both)}"])
        table = markdown_table(["printed as", *(f"run {run}" for run in runs), f"above {entries[0]}"], lines)
        return f"Accuracy of every run, %, {_name(spec)}:\n\n{table}"

    def _differences(self, rows: Sequence[Row], entries: Sequence[str], metric: str) -> str:
        if len(entries) < 2:
            return ""
        specs = ["", *self.perturbations]
        lines, apart = [], []
        for entry in entries[1:]:
            found = {
                spec: bootstrap(_grid(rows, entry, spec, metric), _grid(rows, entries[0], spec, metric))
                for spec in specs
            }
            lines.append([entry, *(interval.text("+.3g") for interval in found.values())])
            apart += [f"{entry}, {_name(spec)}" for spec, each in found.items() if each.low > 0 or each.high < 0]
        which = f": {'; '.join(apart)}" if apart else ""
        count = (len(entries) - 1) * len(specs)
        table = markdown_table(["printed as", *map(_name, specs)], lines)
        return (
            f"Differences in {metric} from {entries[0]}, paired on tracks, with 95 % bootstrap intervals over runs and "
            f"tracks:\n\n{table}\n\n**{len(apart)} of {count} differences lie in an interval without zero**{which}."
        )

    def _pulses(self, rows: Sequence[Row]) -> str:
        names = {
            "gate": "gate (new: 0.01)", "strength": "gate x norm of A", "omega_median": "median omega",
            "above_nyquist": "omega above pi, of all",
        }  # fmt: skip
        if self.clamp:
            names |= {f"return_{self.clamp}": f"return, {_name(self.clamp)}", "clamped_return": "with omega at most pi"}
        rows = [row for row in rows if all(row.get(key) is not None for key in names)]
        entries = list(dict.fromkeys(row["entry"] for row in rows))
        if not entries:
            return ""
        lines = [
            [entry, *(f"{np.mean([row[key] for row in rows if row['entry'] == entry]):.3g}" for key in names)]
            for entry in entries
        ]
        table = markdown_table(["printed as", *names.values()], lines)
        return f"The pulses after training:\n\n{table}"


def _name(spec: str) -> str:
    return f"`{spec}`" if spec else "undisturbed"


def _grid(rows: Sequence[Row], entry: str, spec: str, metric: str) -> np.ndarray:
    """Return a metric of every run on every track (runs, tracks)."""
    return np.array([row["episodes"][spec][metric] for row in rows if row["entry"] == entry], dtype=float)
