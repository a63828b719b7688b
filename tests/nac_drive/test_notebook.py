"""Results and bars in the cells of a notebook."""

from __future__ import annotations

import base64
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nac_drive import notebook
from nac_drive.analysis.inspect import Inspection, inspect
from nac_drive.analysis.watch import WatchedEpisode, watch
from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.envs import EnvConfig, Episode, make_env, rollout
from nac_drive.evaluation.evaluate import Evaluation, evaluate, with_holm
from nac_drive.events import Event, message
from nac_drive.experiments.compare import Comparison
from nac_drive.experiments.families import families
from nac_drive.experiments.leaderboard import RankedDriver
from nac_drive.experiments.stress import StressResult, stress_cells
from nac_drive.notebook import automatic
from nac_drive.policies.checkpoint import save_driver
from nac_drive.policies.config import DriverConfig
from nac_drive.policies.driver import Driver
from tests.nac_drive.evaluation.rows import row

WORST = "<script>alert('x')</script>&\x1b[31m"
"""A name that must not be a mark of HTML or of a terminal."""
BYTES = 60_000
"""Most HTML of a result; players and pictures aside."""


@pytest.fixture
def kernel(monkeypatch) -> Any:
    """A notebook that keeps all updates of every display."""
    displays: list[list[str]] = []
    shell = SimpleNamespace(kernel=object(), execution_count=1)

    def display(shown: str, display_id: bool) -> Any:
        displays.append([shown])
        return SimpleNamespace(update=displays[-1].append)

    fake = SimpleNamespace(get_ipython=lambda: shell, display=SimpleNamespace(display=display, HTML=str))
    monkeypatch.setitem(sys.modules, "IPython", fake)
    monkeypatch.setattr(notebook, "_BARS", notebook._Bars())
    return SimpleNamespace(displays=displays, shell=shell)


@pytest.fixture
def no_display(monkeypatch) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setattr(sys, "platform", "linux")


def evaluations() -> list[Evaluation]:
    baseline = [row(seed, driver=f"one {WORST}", episode_return=900.0 + seed) for seed in range(3)]
    other = [row(seed, driver=f"two {WORST}", episode_return=880.0 - seed**2) for seed in range(3)]
    return with_holm([Evaluation.of(baseline), Evaluation.of(other, baseline)])


def stressed() -> StressResult:
    rows = {
        (name, spec): [row(seed, driver=name, perturbation=spec, episode_return=value + seed) for seed in range(3)]
        for name, value in ((f"one {WORST}", 900.0), (f"two {WORST}", 850.0))
        for spec in (None, "gap:3")
    }
    return StressResult([f"one {WORST}", f"two {WORST}"], families(["gap:3"]), rows, stress_cells(rows))


def results() -> list[Any]:
    one, two = evaluations()
    assert two.verdict is not None
    episode = Episode(7, 912.34, 880, True, {"completion": 1.0, "crashes": 0})
    compared = Comparison([RankedDriver(one), RankedDriver(two)], {WORST: f"ValueError: {WORST}"})
    return [two, two.summary, two.rows[0], two.verdict, compared, stressed(), episode]


def test_a_result_is_one_short_line():
    for result in results():
        text = repr(replace(result, driver="two") if hasattr(result, "driver") else result)
        assert text.startswith(f"{type(result).__name__}(")
        assert "\n" not in text
        assert len(text) < 400, text


@pytest.mark.parametrize(
    ("terminated", "outcome", "end"),
    [
        (True, {"lap_finished": True, "crash": None}, "the lap is finished"),
        (True, {"lap_finished": False, "crash": "off_road"}, "a crash: off_road"),
        (True, {}, "a rule of the environment"),
        (False, {"lap_finished": False, "crash": "off_road"}, "the time limit"),
    ],
)
def test_an_episode_says_why_it_ended(terminated, outcome, end):
    assert f", end {end}" in repr(Episode(7, 912.3, 880, terminated, outcome))


def test_html_is_small_and_nobody_writes_marks_into_it():
    for result in (each for each in results() if hasattr(each, "_repr_html_")):
        html = result._repr_html_()
        assert len(html) < BYTES
        assert "<script" not in html
        assert "\x1b" not in html
        assert html.count("<table") <= 1
        assert html.count("<div") == html.count("</div>")
    comparison = next(each for each in results() if isinstance(each, Comparison))
    html = comparison._repr_html_()
    assert html.index(notebook.escaped(comparison.headline)) < html.index("<table") < html.index("ValueError")


def test_a_dataset_shows_frames_and_a_damaged_one_its_table(dataset, tmp_path):
    html = dataset._repr_html_()
    assert html.count("data:image/png") == 5
    assert len(html) < BYTES
    assert repr(dataset).startswith(f"Demonstrations('{dataset.path}', driver controller, control discrete, episodes 3")
    missing = Demonstrations(tmp_path / WORST, dataset.meta, dataset.rows, cut_off=False)
    assert missing._repr_html_().count("data:image/png") == 0
    assert "&lt;script&gt;" in missing._repr_html_()


def test_without_a_display_an_episode_holds_its_video(tmp_path, no_display):
    network = Driver(DriverConfig("cnn", control="continuous", d_model=16, dense=8))
    save_driver(tmp_path / "mine", network, env={"control": "continuous", "mask_bar": False, "max_steps": 12})
    episode = watch(tmp_path / "mine", 900_001)
    assert isinstance(episode, WatchedEpisode)
    plain = rollout(make_env(EnvConfig("continuous", max_steps=12)), network, 900_001)
    assert (episode.episode_return, episode.length, repr(episode).partition("(")[2]) == (
        plain.episode_return, 12, repr(plain).partition("(")[2],
    )  # fmt: skip
    video = re.search(r'src="data:video/mp4;base64,([^"]+)"', episode._repr_html_())
    assert video is not None
    assert base64.b64decode(video[1])[4:8] == b"ftyp"
    assert "too large" in notebook.player(b"x" * 4_000_001, ".mp4")


def test_an_inspection_is_its_page_with_a_frame_of_each_driver(tmp_path):
    network = Driver(DriverConfig("lstm", control="continuous", d_model=16, dense=8))
    save_driver(tmp_path / "mine", network, env={"control": "continuous", "mask_bar": False, "max_steps": 5})
    inspection = inspect([tmp_path / "mine", "controller"], folder=tmp_path / "seen", control="continuous")
    assert isinstance(inspection, Inspection)
    assert Path(inspection).read_text() == inspection.page.read_text()
    html = inspection._repr_html_()
    assert html.count("data:image/png") == 3, "two frames, and the saliency of the network"
    assert len(html) < BYTES
    assert len(repr(inspection)) < 400
    assert len(repr(inspection.recordings[0])) < 200


def test_a_cell_has_one_display_with_a_line_for_each_job(kernel):
    for event in (Event("train", 1, 4, "loss 3"), Event("validation", 1, 2), Event("validation", 2, 2, WORST)):
        automatic(event)
    automatic(message("round 1", "closed loop 900"))
    automatic(Event("train", 4, 4))
    (updates,) = kernel.displays
    assert "train: <progress" in updates[0]
    assert "1 of 4" in updates[0]
    assert "validation" not in updates[-1], "a job inside of another one goes when it ends"
    assert "4 of 4" in updates[-1]
    assert "loss 3" in updates[-1], "the last note stays"
    assert not any("<script" in update for update in updates)
    kernel.shell.execution_count = 2
    automatic(Event("train", 1, 4))
    assert len(kernel.displays) == 2


def test_jobs_that_ended_long_ago_go(kernel):
    for number in range(9):
        automatic(Event(f"epoch {number}", 1, 1))
    (updates,) = kernel.displays
    assert re.findall(r"epoch \d", updates[-1]) == ["epoch 6", "epoch 7", "epoch 8"]


def test_functions_show_bars_in_a_notebook_and_nothing_in_a_script(kernel, dataset, monkeypatch, capsys):
    evaluate("controller", [5, 6], env=EnvConfig(max_steps=3))
    assert dataset.verify() == []
    (updates,) = kernel.displays
    assert "evaluate (controller): <progress" in updates[-1]
    assert "2 of 2" in updates[-1]
    assert "track 6: return" in updates[-1]
    monkeypatch.setattr(kernel.shell, "kernel", None)
    assert not notebook.in_notebook()
    evaluate("controller", [5], env=EnvConfig(max_steps=3))
    assert len(kernel.displays) == 1
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(kernel.shell, "kernel", object())
    monkeypatch.setattr(notebook, "parent_process", object)
    assert not notebook.in_notebook(), "a worker process shows nothing"
