"""Every place that shows an episode shows the one that `evaluate` measured."""

from __future__ import annotations

import html
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import nac_drive as nd
from nac_drive.analysis import recording
from nac_drive.envs import CORRUPTIONS, PERTURBATIONS, Episode, Step
from nac_drive.evaluation.results import EpisodeMeter, EpisodeResult
from nac_drive.experiments import stress_page as page
from nac_drive.live.race import Race
from nac_drive.policies import Driver, DriverConfig, save_driver
from tests.commands import call
from tests.slow import slow_but

TRACK, FRAMES = 900_001, 16
TRAINED = {"control": "continuous", "mask_bar": True, "max_steps": FRAMES}
"""Everything that may differ from the defaults does."""
TIMED = [f"{name}:{len(levels)}" for name, levels in PERTURBATIONS.items() if name not in CORRUPTIONS]
SEVERAL = "gap:2,frame-rate:3"
Show = Callable[[Path, str, Any, Path, Callable[[Step], None]], Any]
"""(driver, perturbation, crash, empty folder, called with every step): show an episode."""


@pytest.fixture(scope="module")
def driver(tmp_path_factory) -> Path:
    """A driver that was trained with a short time limit and a masked status bar."""
    torch.manual_seed(0)
    network = Driver(DriverConfig("lstm", d_model=16, dense=8, control="continuous"))
    with torch.no_grad():
        network.action_head.out.weight.mul_(20)  # its actions depend on what it sees
    path = tmp_path_factory.mktemp("same") / "mine"
    save_driver(path, network, env=TRAINED)
    return path


@pytest.fixture(autouse=True)
def _without_maps(monkeypatch):
    """Leave out the saliency maps: they take the time, and change no episode."""
    monkeypatch.setattr(recording, "_add_saliency", lambda *_: None)
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")


def row_of(driver: Path, spec: str | None = None, **settings: Any) -> EpisodeResult:
    (row,) = nd.evaluate(driver, [TRACK], perturbation=spec, **settings).rows
    return row.with_metrics(latency_ms=0.0)


def shown(show: Show, driver: Path, spec: str, crash: Any, folder: Path) -> dict[str, Any]:
    """Return the metrics of the episode that a place shows."""
    meter, steps = EpisodeMeter(), []

    def note(step: Step) -> None:
        meter(step)
        steps.append(step)

    show(driver, spec, crash, folder, note)
    last = steps[-1]
    episode = Episode(TRACK, sum(step.reward for step in steps), len(steps), last.terminated, last.outcome)
    return meter.result("mine", episode, crash_mode=crash).with_metrics(latency_ms=0.0).metrics


def inspected(driver: Path, spec: str, crash: Any, folder: Path, note: Callable[[Step], None]) -> Any:
    nd.inspect(
        driver, TRACK, folder=folder / "seen", perturbation=spec, crash=crash, on_step=lambda _, step: note(step)
    )


def on_a_page(driver: Path, spec: str, crash: Any, folder: Path, note: Callable[[Step], None]) -> Any:
    nd.watch(driver, TRACK, html=folder / "seen.html", perturbation=spec, crash=crash, on_step=note)


def in_a_window(driver: Path, spec: str, crash: Any, folder: Path, note: Callable[[Step], None]) -> Any:
    nd.watch(driver, TRACK, perturbation=spec, crash=crash, on_step=note)


def in_a_video(driver: Path, spec: str, crash: Any, folder: Path, note: Callable[[Step], None]) -> Any:
    nd.watch(driver, TRACK, video=folder / "seen.mp4", perturbation=spec, crash=crash, on_step=note)


def recorded(driver: Path, spec: str, crash: Any, folder: Path, note: Callable[[Step], None]) -> Any:
    loaded = nd.resolve_driver(driver)
    nd.record_video(folder / "x.mp4", loaded, TRACK, name="x", perturbation=spec, crash=crash, on_step=note)


@pytest.mark.parametrize("spec", slow_but([*TIMED[::4], SEVERAL], [None, *TIMED, SEVERAL]))
def test_every_place_shows_the_episode_that_was_measured(driver, spec, tmp_path):
    expected = row_of(driver, spec).metrics
    slow = (in_a_window, in_a_video, recorded) if spec == "gap:3" else ()
    for show in (inspected, on_a_page, *slow):
        assert shown(show, driver, spec, "ignore", tmp_path) == expected, show.__name__


@pytest.mark.parametrize("spec", slow_but([None, *TIMED[::4]], [None, *TIMED]))
def test_a_race_drives_the_episode_that_was_measured(driver, spec, monkeypatch):
    expected = row_of(driver, spec)
    race = Race({"mine": driver}, ["mine"], TRACK)
    if spec:
        name, level = spec.split(":")
        race.perturb(name, int(level))
        race.restart()
    (car,), meter = race.cars, EpisodeMeter()
    before, index = car.outcome, 0
    while not race.over:
        seconds = car.seconds
        race.tick()
        if car.decisions > index:  # the car has taken a decision
            action = np.array(car.command, np.float32)
            meter(
                Step(index, car.observation, before, car.seconds - seconds, action, action, None, 0.0, False, False,
                     car.outcome, 0.0)
            )  # fmt: skip
            before, index = car.outcome, car.decisions
    race.close()
    assert car.result
    driven = meter.result("mine", car.result, crash_mode="ignore").with_metrics(latency_ms=0.0)
    assert driven.metrics == expected.metrics


def test_the_video_of_a_stress_test_shows_an_episode_of_it(driver, tmp_path, monkeypatch):
    meters: list[tuple[str, dict[str, Any]]] = []

    def record(*arguments: Any, **settings: Any) -> None:
        meter = EpisodeMeter()
        episode = nd.record_video(*arguments, **settings, on_step=meter)
        result = meter.result("mine", episode, crash_mode=settings["crash"])
        meters.append((settings["crash"], result.with_metrics(latency_ms=0.0).metrics))

    monkeypatch.setattr(page, "record_video", record)
    monkeypatch.setattr(nd, "stress", lambda *_, **__: SimpleNamespace(verdicts=[]))  # its figures take the time
    for name in ("save_stress_page", "terminal_stress"):
        monkeypatch.setattr(page, name, lambda *_: "")
    (tmp_path / "out").mkdir()
    command = ("stress", "--drivers", str(driver), "--tracks", str(TRACK), "--crash", "terminate")
    assert call(*command, "--workers", "1", "--video", "gap:3", "--out", str(tmp_path / "out")) == 0
    assert meters == [("terminate", row_of(driver, "gap:3", crash="terminate").metrics)]


@pytest.mark.parametrize(
    ("options", "same"),
    [
        (("--perturb", "gap:3+frame-rate:1", "--crash", "terminate"), True),
        (("--mask-bar", "False"), False),
    ],
)
def test_the_command_of_a_report_shows_the_worst_episode(driver, options, same, tmp_path):
    """Where no option of `inspect` stands for a condition of the evaluation, the report promises the track alone."""
    tracks = ",".join(str(TRACK + i) for i in range(3))
    command = ("evaluate", "--driver", str(driver), "--tracks", tracks, "--baseline", "none", "--workers", "1")
    assert call(*command, *options, "--out", str(tmp_path / "out")) == 0
    text = html.unescape((tmp_path / "out" / "report.html").read_text())
    printed = re.search(r"<pre[^>]*># (.*), frame by frame\nnac-drive (inspect .*) --out seen</pre>", text)
    assert printed
    assert printed[1] == ("the worst episode" if same else "the track of the worst episode")
    rows = [json.loads(line) for line in (tmp_path / "out" / "rows.jsonl").read_text().splitlines()]
    worst = min(rows, key=lambda row: row["episode_return"])
    assert f" --track {worst['seed']}" in printed[2]
    assert ("--crash terminate" in printed[2]) == ("--crash" in options)
    if same:
        assert call(*shlex.split(printed[2]), "--out", str(tmp_path / "seen")) == 0
        with np.load(tmp_path / "seen" / "mine.npz") as arrays:
            returns = arrays["series/return"]
        assert (len(returns), returns[-1]) == (worst["length"], pytest.approx(worst["episode_return"], rel=1e-5))
