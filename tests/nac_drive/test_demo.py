"""The demo, on episodes of 60 frames: its results are complete, it can be resumed, and it reports what it measured."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.demo import DemoConfig, demo
from nac_drive.envs import SPLITS, track_seeds
from nac_drive.storage.checkpoints import checkpoint_folder
from nac_drive.storage.lock import FolderInUseError, locked
from tests.data_collection.recordings import contents
from tests.nac_drive.small import dagger_config

CONFIG = DemoConfig("controller", dagger_config("cnn", rounds=1, initial_epochs=1, max_steps=52), "900005")


def best_weights(run: Path) -> bytes:
    best = checkpoint_folder(run, "best")
    assert best is not None
    return (best / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A demo that was interrupted before the evaluation and resumed: its folder, and the reports of both parts."""
    folder = tmp_path_factory.mktemp("demo") / "demo"
    before: list[tuple[str, dict[str, Any]]] = []
    after: list[tuple[str, dict[str, Any]]] = []

    def interrupt(job: str, row: dict[str, Any]) -> None:
        before.append((job, row))
        if job == "controller":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        demo(CONFIG, folder, device="cpu", pool=None, report=interrupt)
    weights = best_weights(folder / "cnn")
    report = demo(CONFIG, str(folder), device="cpu", pool=None, report=lambda job, row: after.append((job, row)))
    assert report == folder / "report.md"
    return folder, before, after, weights


def test_finished_jobs_are_not_repeated(finished):
    folder, before, after, weights = finished
    assert {job for job, _ in before} == {"dagger", "controller"}
    assert list(dict.fromkeys(job for job, _ in after)) == ["controller", "cnn", "video"]
    assert best_weights(folder / "cnn") == weights


def test_every_frame_of_a_video_is_reported(finished):
    rows = [row for job, row in finished[2] if job == "video"]
    frames = CONFIG.training.max_steps
    for name in ("controller", "cnn"):
        reported = [(row["frame"], row["frames"]) for row in rows if row["name"] == name]
        assert reported == [(frame, frames) for frame in range(1, frames + 1)]
    assert [row["frame"] for row in rows if row["name"] == "side by side"] == [0, 1]


def test_the_reports_show_the_results_and_their_links_lead_somewhere(finished):
    folder = finished[0]
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    assert [(row["driver"], row["seed"]) for row in rows] == [("controller", 900_005), ("cnn", 900_005)]
    frames = f"DAgger, {Demonstrations.open(folder / 'cnn' / 'dataset').info()['frames']:,} frames"
    cell = f"{rows[1]['episode_return']:.0f} ± 0"
    markdown, page = (folder / "report.md").read_text(), (folder / "report.html").read_text()
    assert f"| cnn | {cell} |" in markdown
    assert f"<td>{cell}</td>" in page
    links = re.findall(r"\]\(([^)]+)\)", markdown)
    assert len(links) == 2
    for name in (*links, *re.findall(r'<video [^>]*src="([^"]+)"', page)):
        assert (folder / name).stat().st_size > 1000, name
    for text in (markdown, page):
        assert frames in text
        assert "Baseline: controller, on the same tracks." in text


def test_the_tracks_of_the_demo_serve_one_purpose_each():
    config = DemoConfig()
    learned = {track for number in range(config.training.rounds + 1) for _, track in config.training.tasks(number)}
    assert learned <= set(SPLITS["train"])
    assert set(track_seeds(config.training.validation.validation_tracks)) <= set(SPLITS["val"])
    assert set(track_seeds(config.tracks)) <= set(SPLITS["test"])


def test_a_start_that_is_refused_touches_nothing(finished, tmp_path):
    bad = {
        "seed must be": replace(CONFIG, training=replace(CONFIG.training, seed=-1)),
        "no folder typo": replace(CONFIG, expert="typo"),
        "tracks must be": replace(CONFIG, tracks="x"),
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
