"""Commands that drive: collect, dataset, evaluate and watch."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from tyro.conf import Positional

from data_collection.dataset import Demonstrations
from data_collection.drivers import driver_name, resolve_driver, trained_env
from data_collection.noise import NoiseConfig
from data_collection.processes import default_workers, worker_pool
from data_collection.recipe import rebuild, save_recipe
from data_collection.recipe_file import read_recipe
from data_collection.record import record
from envs import SPLITS, Control, CrashMode, EnvConfig, RendererName, make_env, perturb, rollout, track_seeds
from nac_drive.evaluation import evaluate, save_evaluations
from nac_drive.jobs import count_episodes, episode_note
from nac_drive.progress import progress
from nac_drive.report import Contestant, terminal_table
from nac_drive.video import record_video


@dataclass(frozen=True)
class Collect:
    """Record laps of a driver: frames, actions, rewards and telemetry, one file per lap."""

    out: Path
    """Folder of the new dataset."""
    driver: str = "expert"
    """Who drives: expert, controller, or the folder of a driver or run."""
    laps: int = 20
    """Laps, each on another training track."""
    first_track: int = 0
    """Seed of the first track."""
    noise: float = 0.0
    """Share of frames whose executed action is random while the label stays the driver's (DART)."""
    noise_hold: float = 4.0
    """Mean number of frames that one random action is held."""
    control: Control = "discrete"
    """Five actions, or continuous steer, gas and brake."""
    mask_bar: bool = False
    """Hide the status bar in the recorded frames (the driver then sees it masked, too)."""
    renderer: RendererName = EnvConfig.renderer
    """Who draws the frames: fast is several times faster; a replay then needs the same version of OpenCV."""
    workers: int = 0
    """Parallel processes; 0: one per core."""
    seed: int = 0
    """Seed of the noise."""
    resume: bool = False
    """Go on with an interrupted recording."""

    def run(self, console: Console) -> None:
        if self.laps < 1 or not 0 <= self.first_track <= len(SPLITS["train"]) - self.laps:
            raise ValueError(
                f"laps and first-track must name tracks 0 to {len(SPLITS['train']) - 1}, "
                f"got {self.laps} from {self.first_track}."
            )
        with progress(console, f"collect ({self.driver})", self.laps) as meter:
            dataset = record(
                self.out,
                self.driver,
                env=EnvConfig(control=self.control, mask_bar=self.mask_bar, renderer=self.renderer),
                seeds=list(SPLITS["train"][self.first_track : self.first_track + self.laps]),
                noise=NoiseConfig(self.noise, self.noise_hold) if self.noise else None,
                seed=self.seed,
                workers=self.workers or default_workers(),
                resume=self.resume,
                on_episode=count_episodes(meter, _lap_note),
            )
        _print_info(console, dataset.info())


@dataclass(frozen=True)
class Dataset:
    """Look at a dataset (info), check every file of it (verify), or publish it as a small file (recipe, rebuild)."""

    action: Positional[Literal["info", "verify", "recipe", "rebuild"]]
    """info: what is in it. verify: check hashes, shapes and values. recipe: write what was done, not seen, to a file.
    rebuild: simulate a recipe's laps again, the same dataset bit for bit."""
    path: Positional[Path]
    """Folder of the dataset; with rebuild: file of the recipe."""
    out: Path | None = None
    """With recipe: the new file. With rebuild: folder of the new dataset."""
    replay: bool = False
    """With verify: simulate every lap again and compare frames and rewards bit for bit."""
    workers: int = 0
    """Parallel processes; 0: one per core."""
    resume: bool = False
    """With rebuild: go on with an interrupted one."""

    def run(self, console: Console) -> None:
        dataset = self._rebuild(console) if self.action == "rebuild" else Demonstrations.open(self.path)
        if self.action == "verify":
            self._verify(console, dataset)
        elif self.action == "recipe":
            save_recipe(dataset, self._out, workers=self.workers or default_workers())
            told = f"{self._out}: {len(dataset)} laps in {self._out.stat().st_size:,} bytes"
            console.print(told, highlight=False, soft_wrap=True)
        else:
            _print_info(console, dataset.info())

    def _verify(self, console: Console, dataset: Demonstrations) -> None:
        problems = dataset.verify(replay=self.replay, workers=self.workers or default_workers())
        for problem in problems:
            console.print(problem, highlight=False, soft_wrap=True)
        if problems:
            raise ValueError(f"{self.path} has {len(problems)} problem(s), listed above; record those laps again.")
        replayed = ", replayed frame by frame" if self.replay else ""
        console.print(f"{self.path}: {len(dataset)} laps, all sound{replayed}", highlight=False)

    def _rebuild(self, console: Console) -> Demonstrations:
        with progress(console, f"rebuild ({self.path.name})", len(read_recipe(self.path).laps)) as meter:
            return rebuild(
                self.path, self._out, workers=self.workers or default_workers(), resume=self.resume,
                on_episode=count_episodes(meter, _lap_note),
            )  # fmt: skip

    @property
    def _out(self) -> Path:
        if self.out is None:
            raise ValueError(f"dataset {self.action} writes something new; say where with --out.")
        return self.out


@dataclass(frozen=True)
class Evaluate:
    """Drive named tracks in closed loop and report returns, completion, crashes and agreement with the expert."""

    driver: str = "expert"
    """Who drives: expert, controller, or the folder of a driver or run."""
    tracks: str = "test-10"
    """Tracks: SPLIT-COUNT (train, val, test) or a comma list of seeds."""
    crash: CrashMode = "ignore"
    """What a crash does: nothing, end the lap (terminate), or set the car back on the road (intervene)."""
    perturb: str = ""
    """Disturbances of driver and baseline, such as shadows:2+frame-drop:1:skip (docs/perturbations.md)."""
    renderer: RendererName = "gymnasium"
    """Who draws the frames; a score that is reported is measured with gymnasium's."""
    baseline: str | None = "expert"
    """Driver that is run on the same tracks, asked at every frame, and that paired differences are taken against."""
    control: Control | None = None
    """Control of expert and controller; a cloned driver knows its own."""
    mask_bar: bool | None = None
    """Show or hide the status bar other than in the driver's training."""
    out: Path | None = None
    """Folder for rows.jsonl and summary.json."""
    workers: int = 0
    """Parallel processes; 0: one per core. The result does not depend on it."""

    def run(self, console: Console) -> None:
        seeds = track_seeds(self.tracks)
        if self.out and self.out.exists() and any(self.out.iterdir()):
            raise FileExistsError(f"{self.out} already exists; choose another folder.")
        driver, env = _driver_and_env(self.driver, self.control)
        if self.mask_bar is not None:
            env = replace(env, mask_bar=self.mask_bar)
        name = driver_name(self.driver)
        conditions: dict[str, Any] = {"crash": self.crash, "perturbation": self.perturb, "renderer": self.renderer}
        evaluations = []
        with worker_pool(self.workers or default_workers()) as pool:
            baseline = advisor = None
            if self.baseline and self.baseline != self.driver:
                advisor, advisor_env = _driver_and_env(self.baseline, env.control)
                with progress(console, driver_name(self.baseline), len(seeds)) as meter:
                    baseline = evaluate(
                        advisor, seeds, name=driver_name(self.baseline), env=advisor_env, pool=pool,
                        on_episode=count_episodes(meter, episode_note), **conditions,
                    )  # fmt: skip
                evaluations.append(baseline)
            with progress(console, name, len(seeds)) as meter:
                evaluation = evaluate(
                    driver, seeds, name=name, env=env, advisor=advisor, baseline=baseline, pool=pool,
                    on_episode=count_episodes(meter, episode_note), **conditions,
                )  # fmt: skip
            evaluations.append(evaluation)
        told = ", ".join(f"{key}={value}" for key, value in conditions.items() if value)
        console.print(terminal_table([Contestant(e) for e in evaluations], f"{self.tracks}, {told}"))
        if self.out:
            save_evaluations(self.out, evaluations)


@dataclass(frozen=True)
class Watch:
    """Watch a driver: in a live window where there is a display, or in a video."""

    driver: str = "expert"
    """Who drives: expert, controller, or the folder of a driver or run."""
    track: int = SPLITS["test"][0]
    """Seed of the track."""
    video: Path | None = None
    """Write an mp4 (600x400) instead of opening a window."""
    crash: CrashMode = "ignore"
    """What a crash does."""
    perturb: str = ""
    """Disturbances, such as shadows:2+frame-drop:1:skip (docs/perturbations.md)."""
    control: Control | None = None
    """Control of expert and controller; a cloned driver knows its own."""

    def run(self, console: Console) -> None:
        driver, env = _driver_and_env(self.driver, self.control)
        name = driver_name(self.driver)
        if self.video:
            episode = record_video(
                self.video, driver, self.track, name=name, env=env, crash=self.crash, perturbation=self.perturb
            )
            console.print(f"video: {self.video}", highlight=False, soft_wrap=True)
        else:
            if not _has_display():
                raise ValueError("there is no display here to open a window on; pass --video lap.mp4 to get a video.")
            window = perturb(make_env(env, crash=self.crash, render_mode="human"), self.perturb)
            try:
                episode = rollout(window, driver, self.track)
            finally:
                window.close()
        outcome = episode.outcome
        console.print(
            f"{name} on track {self.track}: return {episode.episode_return:.1f}, completion "
            f"{100 * outcome['completion']:.1f} %, {episode.length} frames, {outcome['crashes']} crash(es)",
            highlight=False,
        )


def _driver_and_env(spec: str, control: Control | None) -> tuple[Any, EnvConfig]:
    """The driver and the environment that it was trained in."""
    driver = resolve_driver(spec, EnvConfig(control=control) if control else None)
    return driver, trained_env(driver) or EnvConfig(control=control or "discrete")


def _lap_note(row: dict[str, Any]) -> str:
    return f"track {row['seed']} return {row['return']:.0f}"


def _print_info(console: Console, info: dict[str, Any]) -> None:
    for key, value in info.items():
        if isinstance(value, dict):
            value = ", ".join(f"{k} {v:.3f}" if isinstance(v, float) else f"{k} {v}" for k, v in value.items())
        console.print(f"{key:>16}  {value:.2f}" if isinstance(value, float) else f"{key:>16}  {value}",
                      highlight=False, soft_wrap=True)  # fmt: skip


def _has_display() -> bool:
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
