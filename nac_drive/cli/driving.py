"""Commands that drive: collect, evaluate, stress, watch and inspect.

The work of a command is imported when it runs: help and errors in options come at once, without torch.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

import nac_drive as nd
from nac_drive.cli.datasets import print_info
from nac_drive.cli.progress import ProgressMode, print_sentences, show_progress
from nac_drive.cli.typed import Device, typed
from nac_drive.envs import SPLITS, Control, CrashMode, EnvConfig
from nac_drive.envs.views import ABOVE, Size, VideoView, View
from nac_drive.events import Event
from nac_drive.experiments.families import DEFAULT_PERTURBATIONS
from nac_drive.markdown import number_text
from nac_drive.notebook import opens_windows
from nac_drive.parallel.processes import Pool, worker_pool


@dataclass(frozen=True)
class Collect:
    """Collect demonstrations: frames, actions, rewards and telemetry of a driver, one file per episode."""

    out: Path
    """Folder of the new dataset."""
    driver: str = "expert"
    """The driver: expert, champion, controller, the folder of a driver or run, an .onnx or .zip file, or your own as
    FILE.py:NAME."""
    episodes: int = 20
    """Episodes, each on another training track."""
    first_track: int = 0
    """Seed of the first track."""
    environment: str = EnvConfig.environment
    """The track environment: car-racing, or an id that is registered with gymnasium (docs/your-own-road.md)."""
    noise: float = 0.0
    """Fraction of frames whose executed action is random while the label stays the driver's (DART)."""
    noise_hold: float = 4.0
    """Mean number of frames that one random action is held."""
    control: Control = "discrete"
    """discrete (nothing, right, left, gas, brake), continuous (steer, gas, brake), or pulsed (the same three numbers,
    carried out by the discrete actions)."""
    view: View = "above"
    """View of the recorded frames: above, gymnasium's, or seat, from the driver's seat (docs/simulator.md). A trained
    driver sees the view of its training."""
    size: Size = ABOVE
    """Width and height of the recorded frames from the seat, in pixels."""
    mask_bar: bool = False
    """Hide the status bar in the recorded frames (a trained driver sees it as in its training)."""
    perturb: str | None = None
    """Perturbations of the recorded frames and of the actions, such as gap:2+frame-rate:1 (docs/perturbations.md); the
    driver sees the true frames."""
    workers: int = 0
    """Parallel processes; 0: one per core."""
    cluster: str | None = None
    """Ray cluster that does the work in place of this machine: auto (the one this machine belongs to) or HOST:PORT."""
    seed: int = 0
    """Seed of the noise."""
    resume: bool = False
    """Go on with an interrupted recording; the episodes may have grown."""
    progress: ProgressMode = "auto"
    """auto: bars in a terminal, lines elsewhere; json: a line of JSON for every event, on stderr."""

    def run(self, console: Console) -> None:
        if self.episodes < 1 or not 0 <= self.first_track <= len(SPLITS["train"]) - self.episodes:
            raise ValueError(
                f"episodes and first-track must name tracks 0 to {len(SPLITS['train']) - 1}, "
                f"got {self.episodes} from {self.first_track}."
            )
        with show_progress(console, self.progress) as progress:
            dataset = nd.collect(
                self.out,
                typed(self.driver),
                env=EnvConfig(
                    self.control,
                    self.mask_bar,
                    environment=self.environment,
                    perturb=self.perturb,
                    view=self.view,
                    size=self.size,
                ),
                seeds=list(SPLITS["train"][self.first_track : self.first_track + self.episodes]),
                noise=nd.NoiseConfig(self.noise, self.noise_hold) if self.noise else None,
                seed=self.seed,
                workers=self.workers,
                cluster=self.cluster,
                resume=self.resume,
                progress=progress,
            )
        print_info(console, dataset.info())


@dataclass(frozen=True)
class Evaluate:
    """Drive named tracks in closed loop and report returns, completion, crashes and agreement with the expert."""

    driver: str = "champion"
    """The driver: champion, expert, controller, the folder of a driver or run, an .onnx or .zip file, or your own as
    FILE.py:NAME."""
    tracks: str = "test-10"
    """Tracks: SPLIT-COUNT (train, val, test, holdout, challenge) or a comma list of seeds."""
    crash: CrashMode = "ignore"
    """The effect of a crash: nothing (ignore), the end of the episode (terminate), or a restart on the road
    (intervene)."""
    perturb: str | None = None
    """Perturbations of driver and baseline, such as shadows:2+frame-drop:1:skip (docs/perturbations.md). Changed
    images, and lost frames that are held or black, also count with --dataset."""
    baseline: str | None = "expert"
    """Driver that drives the same tracks for paired differences, and is queried at every frame for the agreement; none:
    no baseline."""
    control: Control | None = None
    """Control of a shipped driver or the controller; a cloned driver knows its own."""
    mask_bar: bool | None = None
    """Show or hide the status bar other than in the driver's training."""
    dataset: Path | None = None
    """A dataset: driver and baseline are compared with its labels, frame by frame, and nothing is driven."""
    episodes: str = "validation"
    """Episodes of --dataset: validation (the tracks that `train` keeps out by default), all, or numbers such as 0,3."""
    device: Device = "cpu"
    """Device of the drivers: the GPU where there is one (auto), cpu or cuda."""
    out: Path | None = None
    """Folder for report.html, rows.jsonl and summary.json. Episodes are kept there as they end, with several processes
    up to sixteen at a time. With --dataset it gets offline.json."""
    resume: bool = False
    """Go on with the missing episodes of an interrupted evaluation in --out."""
    workers: int = 0
    """Parallel processes; 0: one per core. The result does not depend on it."""
    cluster: str | None = None
    """Ray cluster that does the work in place of this machine: auto (the one this machine belongs to) or HOST:PORT."""
    progress: ProgressMode = "auto"
    """auto: bars in a terminal, lines elsewhere; json: a line of JSON for every step, on stderr."""

    def run(self, console: Console) -> None:
        from nac_drive.experiments.leaderboard import RankedDriver, leaderboard, verdicts

        if self.dataset is not None:
            self._compare_with(self.dataset, console)
            return
        if self.episodes != Evaluate.episodes:
            raise ValueError(
                f"episodes must be left out without --dataset, got {self.episodes!r}; --tracks names tracks."
            )
        with _pool(self.workers, self.cluster, self.device) as pool, show_progress(console, self.progress) as progress:
            evaluations = nd.evaluate_with_baseline(
                typed(self.driver), self.tracks,
                baseline=None if self.baseline in (None, "none") else typed(self.baseline),
                control=self.control, mask_bar=self.mask_bar, crash=self.crash, perturbation=self.perturb,
                device=self.device, folder=self.out, resume=self.resume, pool=pool, progress=progress,
            )  # fmt: skip
        if self.out:
            from nac_drive.experiments.evaluation_page import save_evaluation_page

            save_evaluation_page(self.out, evaluations, self.tracks, self.driver, self.control, self.mask_bar)
        setting = f"{self.tracks}, crash={self.crash}" + (f", perturbation={self.perturb}" if self.perturb else "")
        drivers = [RankedDriver(evaluation) for evaluation in evaluations]
        console.print(leaderboard(drivers).terminal(setting))
        print_sentences(console, verdicts(drivers))
        if self.out:
            console.print(f"report: {self.out / 'report.html'}", highlight=False, soft_wrap=True)

    def _compare_with(self, dataset: Path, console: Console) -> None:
        """Print the offline metrics of driver and baseline."""
        from nac_drive.data_collection.drivers import DEFAULT_EXPERT, known_there
        from nac_drive.experiments.recorded import evaluate_recorded, recorded_table

        for option in ("tracks", "crash", "control", "mask_bar", "resume", "workers", "cluster"):
            if (value := getattr(self, option)) != getattr(Evaluate, option):
                raise ValueError(f"{option} must be left out with --dataset, where nothing is driven, got {value!r}.")
        data = nd.Demonstrations.open(dataset)
        drivers, baseline = [typed(self.driver)], self.baseline or "none"
        sees_it = data.meta.env.view == EnvConfig.view and known_there(baseline, data.meta.env)
        if baseline == DEFAULT_EXPERT and not sees_it:
            console.print(f"no baseline: {baseline} was trained on other frames.")
        elif baseline not in ("none", self.driver):
            drivers.append(typed(baseline))
        with show_progress(console, self.progress) as progress:
            results = evaluate_recorded(
                drivers, data, episodes=self.episodes, perturbation=self.perturb, device=self.device, folder=self.out,
                progress=progress,
            )  # fmt: skip
        under = f", perturbation={self.perturb}" if self.perturb else ""
        console.print(recorded_table(results).terminal(f"{dataset}, episodes: {self.episodes}{under}"))
        if self.out:
            console.print(f"results: {self.out / 'offline.json'}", highlight=False, soft_wrap=True)


@dataclass(frozen=True)
class Stress:
    """Drive several drivers under perturbations, level by level, on the same tracks: table, heat map, curves."""

    out: Path
    """Folder for report.html, its figures, rows.jsonl and summary.json. Episodes are kept there as they end, with
    several processes up to sixteen at a time."""
    drivers: tuple[str, ...] = ("champion", "expert")
    """Drivers: champion, expert, controller, folders of drivers or runs, .onnx or .zip files, or your own as
    FILE.py:NAME. Differences are taken against the first."""
    perturb: tuple[str, ...] = DEFAULT_PERTURBATIONS
    """Perturbations: NAME (all levels), NAME:MISSING, or a specification such as gap:2+frame-rate:1
    (docs/perturbations.md)."""
    tracks: str = "test-10"
    """Tracks: SPLIT-COUNT (train, val, test, holdout, challenge) or a comma list of seeds."""
    crash: CrashMode = "ignore"
    """The effect of a crash: nothing (ignore), the end of the episode (terminate), or a restart on the road
    (intervene), which counts interventions."""
    control: Control | None = None
    """Control of shipped drivers and the controller; a cloned driver knows its own."""
    device: Device = "cpu"
    """Device of the drivers: the GPU where there is one (auto), cpu or cuda."""
    video: str | None = None
    """Also write OUT/video.mp4: the first four drivers on the first track, side by side, under this perturbation."""
    resume: bool = False
    """Go on with the missing episodes in --out; drivers, perturbations and tracks may have grown."""
    workers: int = 0
    """Parallel processes; 0: one per core. The result does not depend on it."""
    cluster: str | None = None
    """Ray cluster that does the work in place of this machine: auto (the one this machine belongs to) or HOST:PORT."""
    progress: ProgressMode = "auto"
    """auto: bars in a terminal, lines elsewhere; json: a line of JSON for every step, on stderr."""

    def run(self, console: Console) -> None:
        from nac_drive.experiments.stress_page import save_stress_page, terminal_stress, video_of

        EnvConfig(perturb=self.video)  # a bad one fails before the episodes
        drivers = [typed(driver) for driver in self.drivers]
        with _pool(self.workers, self.cluster, self.device) as pool, show_progress(console, self.progress) as progress:
            result = nd.stress(
                drivers, self.perturb, self.tracks, control=self.control, crash=self.crash, device=self.device,
                folder=self.out, resume=self.resume, pool=pool, progress=progress,
            )  # fmt: skip
        page = save_stress_page(self.out, result, self.tracks, self.crash, self.drivers, self.control)
        console.print(terminal_stress(result))
        print_sentences(console, result.verdicts)
        console.print(f"report: {page}", highlight=False, soft_wrap=True)
        if self.video is not None:
            video = video_of(
                self.out / "video.mp4", drivers, self.tracks, self.video, self.control, self.crash, self.device
            )
            console.print(f"video: {video}", highlight=False, soft_wrap=True)


@dataclass(frozen=True)
class Watch:
    """Watch a driver: in a live window where there is a display, or in a video."""

    driver: str = "champion"
    """The driver: champion, expert, controller, the folder of a driver or run, an .onnx or .zip file, or your own as
    FILE.py:NAME."""
    track: int = SPLITS["test"][0]
    """Seed of the track."""
    video: Path | None = None
    """Write a video (600x400 .mp4 or .webm, 300x200 .gif; both views side by side) instead of opening a window."""
    view: VideoView | None = None
    """What the video shows: above, seat, or both side by side; none: what the driver sees. A page shows it beside the
    driver's own view."""
    html: Path | None = None
    """Write a page for the browser instead: frames with saliency, neurons and attention on one time slider."""
    crash: CrashMode = "ignore"
    """The effect of a crash: nothing (ignore), the end of the episode (terminate), or a restart on the road
    (intervene)."""
    perturb: str | None = None
    """Perturbations, such as shadows:2+frame-drop:1:skip (docs/perturbations.md)."""
    control: Control | None = None
    """Control of a shipped driver or the controller; a cloned driver knows its own."""
    device: Device = "cpu"
    """Device of the drivers: the GPU where there is one (auto), cpu or cuda."""

    def run(self, console: Console) -> None:
        from nac_drive.data_collection.drivers import driver_name, resolve_driver

        driver = typed(self.driver)
        name = driver_name(driver)
        if not self.video and not self.html and not opens_windows():
            resolve_driver(driver, EnvConfig(control=self.control) if self.control else None)  # its fault comes first
            raise ValueError(
                "there is no display here to open a window on; pass --video episode.mp4 or --html episode.html."
            )
        with show_progress(console) as progress:
            job = f"{name} on track {self.track}"
            episode = nd.watch(
                driver, self.track, video=self.video, html=self.html, control=self.control, crash=self.crash,
                perturbation=self.perturb, device=self.device, view=self.view,
                on_step=lambda step: progress(Event(job, step.index + 1, EnvConfig.max_steps)),
            )  # fmt: skip
        outcome = episode.outcome
        reported = [f"completion {100 * outcome['completion']:.1f} %"] if "completion" in outcome else []
        reported += [f"{episode.length} frames"]
        reported += [f"{outcome['crashes']} crash(es)"] if "crashes" in outcome else []
        console.print(
            f"{name} on track {self.track}: return {number_text(episode.episode_return, '.1f')}, {', '.join(reported)}",
            highlight=False,
        )
        if self.video:
            console.print(f"video: {self.video}", highlight=False, soft_wrap=True)
        if self.html:
            console.print(f"page: {self.html}", highlight=False, soft_wrap=True)


@dataclass(frozen=True)
class Inspect:
    """See what a driver sees and does: frames, saliency, neurons, attention and the track, on one page in a browser."""

    out: Path
    """Folder for episode.html, which opens without a network, and the arrays of every driver as NAME.npz."""
    driver: str = "champion"
    """The driver: champion, expert, controller, the folder of a driver or run, an .onnx or .zip file, or your own as
    FILE.py:NAME."""
    compare: tuple[str, ...] = ()
    """Drivers beside each other, in place of --driver."""
    track: int = SPLITS["test"][0]
    """Seed of the track."""
    crash: CrashMode = "ignore"
    """The effect of a crash: nothing (ignore), the end of the episode (terminate), or a restart on the road
    (intervene)."""
    perturb: str | None = None
    """Perturbations, such as shadows:2+frame-drop:1:skip (docs/perturbations.md)."""
    view: VideoView | None = None
    """above, seat or both: shown beside the view that the driver sees, if it is another one."""
    control: Control | None = None
    """Control of shipped drivers and the controller; a cloned driver knows its own."""
    device: Device = "cpu"
    """Device of the drivers: the GPU where there is one (auto), cpu or cuda."""
    dataset: Path | None = None
    """A dataset: the drivers see one of its episodes as it was recorded, without a simulator."""
    episode: int = 0
    """Number of the episode in --dataset."""
    rerun: Path | None = None
    """Also write a file .rrd for the rerun viewer (needs the extra `rerun`)."""

    def run(self, console: Console) -> None:
        from nac_drive.data_collection.drivers import driver_name

        drivers = [typed(driver) for driver in self.compare or (self.driver,)]
        places = {driver_name(driver): place for place, driver in enumerate(drivers)}
        with show_progress(console) as progress:

            def on_step(name: str, step: Any) -> None:
                done = places[name] + (step.index + 1) / EnvConfig.max_steps
                progress(Event("inspect", done, len(drivers), name))

            inspection = nd.inspect(
                drivers, self.track, folder=self.out, control=self.control, crash=self.crash,
                perturbation=self.perturb, device=self.device, view=self.view, rerun=self.rerun, dataset=self.dataset,
                episode=self.episode, on_step=on_step,
            )  # fmt: skip
        console.print(f"page: {inspection.page}", highlight=False, soft_wrap=True)


def _pool(workers: int, cluster: str | None, device: Device) -> AbstractContextManager[Pool | None]:
    """Return the processes of drivers, see `worker_pool`.

    Raises:
        ValueError: A cluster gives its episodes no GPU.
    """
    if cluster is not None and device != "cpu":
        raise ValueError(
            f"device must be cpu with --cluster, whose episodes have no GPU, got {device!r}; leave --device out."
        )
    return worker_pool(workers, cluster)
