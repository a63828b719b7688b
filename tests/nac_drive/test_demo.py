"""The demo, on episodes of 60 frames: it leaves what it promises, goes on where it stopped, and tells what it measured."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.demo import DemoConfig, demo
from nac_drive.envs import SPLITS, track_seeds
from tests.nac_drive.small import dagger_config

CONFIG = DemoConfig(training=dagger_config(rounds=1), tracks="900005")


def test_the_demo_leaves_a_report_videos_and_a_driver_and_goes_on_after_an_interruption(tmp_path, monkeypatch):
    told: list[tuple[str, dict[str, Any]]] = []

    def interrupt(job: str, row: dict[str, Any]) -> None:
        told.append((job, row))
        if job == "controller":
            raise KeyboardInterrupt

    monkeypatch.setattr("nac_drive.demo.EnvConfig", lambda **settings: CONFIG.training.env)  # short episodes here, too
    folder = tmp_path / "demo"
    with pytest.raises(KeyboardInterrupt):
        demo(CONFIG, folder, device="cpu", pool=None, report=interrupt)
    assert {job for job, _ in told} == {"dagger", "controller"}
    weights = (folder / "lstm" / "checkpoints" / "best" / "model.safetensors").read_bytes()
    told.clear()
    report = demo(CONFIG, folder, device="cpu", pool=None, report=lambda job, row: told.append((job, row)))
    assert [job for job, _ in told] == ["controller", "lstm", "video", "video"], "what was done is not done again"
    assert (folder / "lstm" / "checkpoints" / "best" / "model.safetensors").read_bytes() == weights

    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    assert [(row["driver"], row["seed"]) for row in rows] == [("controller", 900_005), ("lstm", 900_005)]
    text = report.read_text()
    assert f"DAgger, {Demonstrations.open(folder / 'lstm' / 'dataset').info()['frames']:,} frames" in text
    assert f"| lstm | {rows[1]['episode_return']:.0f} ± 0 |" in text
    for name in re_links(text):
        assert (folder / name).stat().st_size > 1000, name


def re_links(text: str) -> list[str]:
    """The files that a markdown text points to."""
    return [part.split(")")[0] for part in text.split("](")[1:]]


def test_the_demo_races_on_tracks_that_nobody_has_learned_from_or_chosen_by():
    config = DemoConfig()
    learned = {track for number in range(config.training.rounds + 1) for _, track in config.training.tasks(number)}
    assert learned <= set(SPLITS["train"])
    assert set(track_seeds(config.training.validation_tracks)) <= set(SPLITS["val"])
    assert set(track_seeds(config.tracks)) <= set(SPLITS["test"])
