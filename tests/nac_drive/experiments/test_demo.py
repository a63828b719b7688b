"""The demo, on short episodes.

Its results are complete, it can be resumed, and it reports what it measured.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import pytest
import torch
from rich.console import Console

from nac_drive.cli.training import Demo
from nac_drive.data_collection.controller.controller import Controller
from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.envs import SPLITS, EnvConfig, track_seeds
from nac_drive.events import Event, silent
from nac_drive.experiments import demo as module
from nac_drive.experiments import experiment
from nac_drive.experiments.demo import DemoConfig, _commands, demo, from_scratch
from nac_drive.experiments.demo_races import LOST_FRAMES
from nac_drive.policies import Driver, DriverConfig, load_driver
from nac_drive.storage.checkpoints import checkpoint_folder
from nac_drive.storage.lock import FolderInUseError, locked
from nac_drive.training.ppo.config import PPOConfig
from tests.data_collection.recordings import contents
from tests.hostile_names import WORST, words_of
from tests.nac_drive.small import ZOOM, dagger_config, each_here, nested

pytestmark = pytest.mark.filterwarnings("ignore:driver '(ppo-)?expert' was trained in another environment")  # max_steps

POLICY = DriverConfig("cnn", encoder="pooled", d_model=8, dense=8, control="continuous")
EXPERT = nested(
    PPOConfig(POLICY),
    total_timesteps=32,
    n_envs=1,
    n_steps=8,
    sequence_length=4,
    batch_size=8,
    validation_tracks="800000",
)
TRAINING = replace(
    dagger_config("nac-exact", rounds=1, initial_epochs=1, max_steps=ZOOM + 18),
    driver=replace(POLICY, core="nac-exact", core_args={"num_heads": 2}),
)
CONFIG = DemoConfig(
    training=TRAINING,
    baselines=("lstm",),
    baseline_epochs=1,
    tracks="900005",
    race_tracks="900005",
    ppo=EXPERT,
    races=(replace(LOST_FRAMES, epochs=1),),
)
RUNS = ("ppo-expert", "nac-exact", "comparison/lstm-0")
NAMES = ["expert", "nac-exact", "lstm"]


def best_weights(run: Path) -> bytes:
    best = checkpoint_folder(run, "best")
    assert best is not None
    return (best / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A demo that was interrupted and resumed.

    Its folder, and the reports of both parts.
    """
    folder = tmp_path_factory.mktemp("demo") / "demo"
    before: list[Event] = []
    after: list[Event] = []

    def interrupt(event: Event) -> None:
        before.append(event)
        if event.job == "time of one act":
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiment, "each_in_a_process", each_here)
        with pytest.raises(KeyboardInterrupt):
            demo(CONFIG, folder, device="cpu", pool=None, progress=interrupt)
        weights = [best_weights(folder / run) for run in RUNS]
        report = demo(CONFIG, str(folder), device="cpu", pool=None, progress=after.append)
    assert report == folder / "report.md"
    return folder, before, after, weights


def test_finished_jobs_are_not_repeated(finished):
    folder, before, after, weights = finished
    jobs = list(dict.fromkeys(event.job for event in before))
    assert "ppo" in jobs
    assert jobs[-2:] == ["runs", "time of one act"]
    jobs = [event.job.partition(" (")[0] for event in after]
    assert jobs[0] == "time of one act"
    assert not {"ppo", "dagger", "collect"} & set(jobs)
    assert list(dict.fromkeys(jobs))[-2:] == ["video", "record"]
    assert [event.note for event in after].count("lstm-0 started") == 1  # in the further race
    assert [best_weights(folder / run) for run in RUNS] == weights


def test_all_drivers_see_through_the_eyes_of_the_expert_and_are_compared_with_it(finished):
    folder, *_ = finished
    expert, learner, lstm = (load_driver(folder / run).encoder.state_dict() for run in RUNS)
    for name, weights in expert.items():
        assert torch.equal(learner[name], weights)
        assert torch.equal(lstm[name], weights)
    mine, *others = json.loads((folder / "comparison" / "summary.json").read_text())
    assert [each["versus"] for each in (mine, *others)] == [None, "expert", "expert"]
    for each in others:
        assert each["return_difference"]["mean"] == pytest.approx(each["return_mean"] - mine["return_mean"])


def test_every_frame_of_a_video_is_reported(finished):
    frames = CONFIG.training.max_steps
    for name in NAMES:
        events = [(event.done, event.total) for event in finished[2] if event.job == f"video ({name})"]
        assert events == [*((frame, frames) for frame in range(1, frames + 1)), (frames, frames)]
    assert Event("video (side by side)", 1, 1) in finished[2]


def test_the_reports_show_the_results_and_their_links_lead_somewhere(finished):
    folder = finished[0]
    rows = [json.loads(line) for line in (folder / "comparison" / "rows.jsonl").read_text().splitlines()]
    assert [(row["driver"], row["seed"]) for row in rows] == [(name, 900_005) for name in NAMES]
    frames = f"DAgger, {Demonstrations.open(folder / 'nac-exact' / 'dataset').info()['frames']:,} frames"
    assert cv2.imread(str(folder / "figure.png")) is not None
    markdown, page = (folder / "report.md").read_text(), (folder / "report.html").read_text()
    for row in rows:
        cell = f"{row['episode_return']:.0f}"  # one episode has no deviation
        assert f"| {row['driver']} | {cell} |" in markdown
        assert f"<td>{cell}</td>" in page
    links = re.findall(r"\]\(([^)]+)\)", markdown)
    assert len(links) == 4
    for name in (*links, *re.findall(r'<video [^>]*src="([^"]+)"', page)):
        assert (folder / name).stat().st_size > 1000, name
    for text in (markdown, page):
        assert frames in text
        assert "Baseline: expert, on the same tracks." in text


def test_cores_with_and_without_memory_race_where_memory_may_pay(finished):
    folder = finished[0]
    cores = ["nac-exact,num_heads=2", "nac-transformer", "lstm", "cnn"]
    markdown = (folder / "report.md").read_text()
    opening = markdown.split("\n\n")[1]
    assert opening.startswith("**From above: ")
    rows = [json.loads(line) for line in (folder / "lost-frames" / "rows.jsonl").read_text().splitlines()]
    assert [(row["driver"], row["seed"], row["perturbation"]) for row in rows] == [
        (name, 900_005, "blackouts:2") for name in ["expert", *cores]
    ]
    trained = load_driver(folder / "lost-frames" / "lstm-0")
    assert trained.env_config["perturb"] == "blackouts:2"
    assert trained.meta["training"]["epochs"] == 1
    expected = load_driver(folder / "ppo-expert").encoder.state_dict()
    assert all(torch.equal(weights, trained.encoder.state_dict()[name]) for name, weights in expected.items())
    for row in rows[1:]:
        assert f"| {row['driver']} | {row['episode_return']:.0f} |" in markdown
    assert "## Where half of the frames are black\n" in markdown
    assert "Where half of the frames are black, " in opening
    assert cv2.imread(str(folder / "races.png")) is not None


def test_a_core_races_once():
    config = replace(CONFIG, baselines=("nac-transformer", "cnn"))
    assert config.racing == ("nac-exact,num_heads=2", "nac-transformer", "cnn")


def test_every_driver_is_shown_with_the_status_bar_as_it_was_evaluated(tmp_path, monkeypatch):
    shown: dict[str, bool] = {}
    monkeypatch.setattr(module, "side_by_side", lambda *_, **__: None)
    monkeypatch.setattr(module, "save_episode_page", lambda *_: None)
    monkeypatch.setattr(module, "record_video", lambda *_, name, env, **__: shown.update({name: env.mask_bar}))
    monkeypatch.setattr(
        module, "record", lambda simulator, driver, *_, name, **__: shown.update({name: "Mask" in str(simulator)})
    )
    drivers: dict[str, Any] = {"expert": Driver(POLICY), "learner": Driver(POLICY), "controller": Controller()}
    for name, masked in (("expert", False), ("learner", True)):
        drivers[name].env_config = {"control": "continuous", "mask_bar": masked}
    for show in (module._videos, lambda folder, *rest: module._episode_page(folder / "page.html", *rest)):
        show(tmp_path, drivers, 5, EnvConfig("continuous", mask_bar=True), silent)
        assert shown == {"expert": False, "learner": True, "controller": False}
        shown.clear()


def test_the_tracks_of_the_demo_serve_one_purpose_each():
    config = from_scratch()
    assert config.ppo is not None
    assert replace(config, ppo=None) == DemoConfig()
    learned = {track for number in range(config.training.rounds + 1) for _, track in config.training.tasks(number)}
    assert learned <= set(SPLITS["train"])
    assert set(track_seeds(config.training.validation.tracks)) <= set(SPLITS["val"])
    assert set(track_seeds(config.ppo.validation.tracks)) <= set(SPLITS["val"])
    assert set(track_seeds(config.tracks)) <= set(SPLITS["test"])


def test_a_start_that_is_refused_touches_nothing(finished, tmp_path):
    bad = {
        "seed must be": replace(CONFIG, training=replace(CONFIG.training, seed=-1)),
        "no folder typo": replace(CONFIG, ppo=None, expert="typo"),
        "tracks must be": replace(CONFIG, tracks="x"),
        "must have different names, got 'nac-exact' twice": replace(CONFIG, baselines=("lstm", "nac-exact")),
        "must have different names, got 'expert' twice": replace(CONFIG, baselines=("expert",)),
    }
    for message, config in bad.items():
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            demo(config, tmp_path / "new", device="cpu", pool=None)
    with pytest.raises(ValueError, match="device must be"):
        demo(CONFIG, tmp_path / "new", device="tpu", pool=None)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "report.html").write_text("mine")
    with pytest.raises(FileExistsError, match=r"mine holds report\.html and no demo; choose another folder"):
        demo(CONFIG, tmp_path / "mine", device="cpu", pool=None)
    assert contents(tmp_path) == {"mine/report.html": b"mine"}
    with locked(finished[0]), pytest.raises(FolderInUseError, match="is in use by another process"):
        demo(CONFIG, finished[0], device="cpu", pool=None)


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_the_commands_of_the_report_have_every_folder_as_one_word():
    run, baseline = Path(WORST) / "nac-exact", Path(WORST) / "lstm-0"
    words = [words_of(line) for line in _commands(run, baseline, 5).splitlines()]
    assert [line[3:5] for line in words] == [
        [str(run), "--track"], [str(run), str(baseline)], [str(run), str(baseline)]
    ]  # fmt: skip


def test_the_command_prints_the_page_without_marks_of_markdown(tmp_path, monkeypatch, capsys):
    def written(settings: object, out: Path, **options: object) -> None:
        out.mkdir()
        (out / "report.md").write_text("mine\\* scores as much \\[+1, +2\\]\n")

    monkeypatch.setattr(module, "demo", written)
    Demo(out=tmp_path / "new", workers=1).run(Console())
    assert "mine* scores as much [+1, +2]\n" in capsys.readouterr().out
