"""Files of earlier versions, which had a renderer: they are read as before, and nothing is added to `fast` frames."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nac_drive.data_collection.dataset.action_log import encode_action_log, read_action_log
from nac_drive.data_collection.dataset.demonstrations import DatasetError, Demonstrations
from nac_drive.data_collection.drivers import trained_env
from nac_drive.data_collection.replay import rebuild, save_action_log
from nac_drive.envs import EnvConfig
from nac_drive.evaluation.evaluate import Evaluation
from nac_drive.evaluation.paired import evaluate_with_baseline
from nac_drive.policies import Driver, DriverConfig, load_driver, save_driver
from nac_drive.robustness.stress import stress
from nac_drive.storage.read import FileError
from nac_drive.training.run_folder import RunFolder
from tests.data_collection.recordings import collect_small, contents

ENV = {"control": "discrete", "mask_bar": False, "max_steps": 3}
RENDERERS = ("gymnasium", "fast")
GONE = r"an approximate renderer of earlier versions drew its frames \(renderer: fast\), and they cannot be drawn again"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Path:
    return collect_small(tmp_path_factory.mktemp("recorded") / "data", env=EnvConfig(max_steps=5)).path


@pytest.fixture
def driver(tmp_path) -> Path:
    return save_driver(tmp_path / "cnn", Driver(DriverConfig(core="cnn")), env=ENV)


def old(dataset: Path, copy: Path, renderer: str) -> Path:
    """Copy a dataset as an earlier version would have written it."""
    shutil.copytree(dataset, copy)
    document = json.loads((copy / "meta.json").read_text())
    document["env"]["renderer"] = renderer
    (copy / "meta.json").write_text(json.dumps(document))
    return copy


@pytest.mark.parametrize("renderer", RENDERERS)
def test_a_driver_loads_without_it(renderer, tmp_path):
    saved = save_driver(tmp_path / "cnn", Driver(DriverConfig(core="cnn")), env={**ENV, "renderer": renderer})
    driver = load_driver(saved)
    assert driver.env_config == ENV
    assert trained_env(driver) == EnvConfig(max_steps=3)


@pytest.mark.parametrize("renderer", RENDERERS)
def test_a_dataset_loads_without_it(renderer, recorded, tmp_path):
    dataset = Demonstrations.open(old(recorded, tmp_path / "old", renderer))
    assert dataset.meta.env == EnvConfig(max_steps=5)
    np.testing.assert_array_equal(dataset.load().frames, Demonstrations.open(recorded).load().frames)
    assert dataset.fingerprint() == Demonstrations.open(recorded).fingerprint()
    assert dataset.verify() == []


def test_a_dataset_of_gymnasiums_frames_is_one_of_today(recorded, tmp_path):
    dataset, new = Demonstrations.open(old(recorded, tmp_path / "old", "gymnasium")), Demonstrations.open(recorded)
    assert dataset.meta == new.meta
    assert dataset.verify(replay=True) == []
    save_action_log(dataset, tmp_path / "log.npz")
    assert read_action_log(tmp_path / "log.npz").document["env"]["renderer"] == "gymnasium"
    assert contents(rebuild(tmp_path / "log.npz", tmp_path / "rebuilt").path) == contents(recorded)
    collect_small(dataset.path, env=EnvConfig(max_steps=5), seeds=[*dataset.seeds, 20], resume=True)


REFUSED: dict[str, Callable[[Path, Path], Any]] = {
    "cannot be replayed": lambda dataset, out: Demonstrations.open(dataset).verify(replay=True),
    "cannot be simulated again": lambda dataset, out: save_action_log(dataset, out),
    "approximate_frames: dataset has True, got False": lambda dataset, out: collect_small(
        dataset, env=EnvConfig(max_steps=5), resume=True
    ),
    "approximate_frames: dataset has False, got True": lambda dataset, out: Demonstrations.merge(
        out, [dataset, collect_small(out.with_name("new"), env=EnvConfig(max_steps=5), seeds=[20])]
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_fast_frames_are_not_replayed_and_get_no_exact_ones_beside_them(message, recorded, tmp_path):
    dataset = old(recorded, tmp_path / "old", "fast")
    before = contents(dataset)
    with pytest.raises(DatasetError, match=message) as caught:
        REFUSED[message](dataset, tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert contents(dataset) == before
    assert not (tmp_path / "out").exists()


def test_merged_fast_frames_stay_fast_frames(recorded, tmp_path):
    merged = Demonstrations.merge(tmp_path / "merged", [old(recorded, tmp_path / "old", "fast")])
    assert json.loads((merged.path / "meta.json").read_text())["env"]["renderer"] == "fast"
    assert merged.meta.approximate_frames


def test_own_data_was_drawn_elsewhere(recorded, tmp_path):
    frames = Demonstrations.open(recorded).load()
    episodes = [{"observations": frames.frames[:5], "actions": frames.actions[:5]}]
    own = Demonstrations.from_episodes(tmp_path / "own", episodes)
    assert Demonstrations.open(old(own.path, tmp_path / "old", "fast")).meta == own.meta


def test_an_action_log_of_fast_frames_is_read_and_not_rebuilt(recorded, tmp_path):
    save_action_log(recorded, tmp_path / "new.npz")
    log = read_action_log(tmp_path / "new.npz")
    document = {**log.document, "env": {**log.document["env"], "renderer": "fast"}}
    (tmp_path / "old.npz").write_bytes(encode_action_log(replace(log, document=document)))
    assert len(read_action_log(tmp_path / "old.npz").episodes) == len(log.episodes)
    with pytest.raises(DatasetError, match=rf"old\.npz cannot be simulated again: {GONE}; collect its episodes again"):
        rebuild(tmp_path / "old.npz", tmp_path / "rebuilt")
    assert not (tmp_path / "rebuilt").exists()


def evaluated(driver: Path, folder: Path, resume: bool) -> list[Evaluation]:
    return evaluate_with_baseline(driver, [5, 7], baseline=None, folder=folder, resume=resume)


def stressed(driver: Path, folder: Path, resume: bool) -> list[Any]:
    return list(stress([driver], ["gap:3"], [5, 7], folder=folder, resume=resume).rows.values())


def as_before(folder: Path, renderer: str, keep: int) -> None:
    """Turn the folder of an evaluation or a stress test into one of an earlier version with `keep` rows."""
    conditions = json.loads((folder / "conditions.json").read_text())
    for config in (conditions, *conditions.get("drivers", ())):
        if "env" in config:
            config["env"]["renderer"] = renderer
    conditions["renderer"] = renderer
    (folder / "conditions.json").write_text(json.dumps(conditions))
    rows = [json.loads(line) | {"renderer": renderer} for line in (folder / "rows.jsonl").read_text().splitlines()]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:keep]))


@pytest.mark.parametrize("drive", [evaluated, stressed])
def test_results_of_gymnasiums_frames_go_on_and_results_of_fast_frames_do_not(drive, driver, tmp_path):
    drive(driver, tmp_path / "new", False)
    for renderer in RENDERERS:
        shutil.copytree(tmp_path / "new", tmp_path / renderer)
        as_before(tmp_path / renderer, renderer, keep=1)
    drive(driver, tmp_path / "gymnasium", True)
    rows = [json.loads(line) for line in (tmp_path / "gymnasium" / "rows.jsonl").read_text().splitlines()]
    expected = [json.loads(line) for line in (tmp_path / "new" / "rows.jsonl").read_text().splitlines()]
    assert [row | {"latency_ms": 0} for row in rows] == [row | {"latency_ms": 0} for row in expected]
    before = contents(tmp_path / "fast")
    with pytest.raises(FileError, match=rf"rows\.jsonl cannot be added to: {GONE}; evaluate into another folder"):
        drive(driver, tmp_path / "fast", True)
    assert contents(tmp_path / "fast") == before


def test_a_run_of_gymnasiums_frames_goes_on_and_a_run_of_fast_frames_does_not(tmp_path):
    for renderer in RENDERERS:
        run = RunFolder.create(tmp_path / renderer, {"seed": 3, "renderer": renderer, "perturb": None})
        assert run.config == {"seed": 3, "perturb": None}
    RunFolder.open(tmp_path / "gymnasium").require_config({"seed": 3, "perturb": None})
    with pytest.raises(ValueError, match=rf"fast cannot be resumed: {GONE}; its driver still loads and drives"):
        RunFolder.open(tmp_path / "fast").require_config({"seed": 3, "perturb": None})
