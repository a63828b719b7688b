"""An evaluation in a folder: the same rows with and without a kill, and the conditions that it names."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import nac_drive as nd
from nac_drive.data_collection.controller.controller import Controller
from nac_drive.envs import CrashMode, EnvConfig
from nac_drive.envs.perturbations.base import Perturbation
from nac_drive.evaluation.evaluate import Evaluation, evaluate
from nac_drive.evaluation.results import EpisodeResult, read_results
from nac_drive.experiments import driving
from nac_drive.experiments.driving import Driving, Entry
from nac_drive.experiments.evaluation import evaluate_with_baseline
from nac_drive.experiments.experiment import open_experiment, run
from nac_drive.policies import Driver, DriverConfig, save_driver
from nac_drive.storage.read import FileError
from tests.data_collection.recordings import contents
from tests.nac_drive.evaluation.rows import row
from tests.nac_drive.forged import require_the_same_or_a_refusal
from tests.nac_drive.small import ZOOM
from tests.own_parts import forgotten

TRACKS = "900001,5,7"
ENV = {"control": "discrete", "mask_bar": False, "max_steps": 3}


@pytest.fixture(scope="module")
def drivers(tmp_path_factory) -> Path:
    """Two drivers of three frames, in folders of the same name."""
    path = tmp_path_factory.mktemp("drivers")
    for name in ("one", "two"):
        save_driver(path / name / "cnn", Driver(DriverConfig(core="cnn")), env=ENV)
    return path


def evaluated(drivers: Path, folder: Path | None, **changed: Any) -> list[Evaluation]:
    arguments: dict[str, Any] = {"baseline": drivers / "two" / "cnn", **changed}
    return evaluate_with_baseline(drivers / "one" / "cnn", TRACKS, folder=folder, **arguments)


@pytest.fixture
def known_rows(monkeypatch) -> list[int]:
    """Episodes without cost, whose latency is the same in every run; the tracks that were driven."""
    driven: list[int] = []

    def drive(
        driver: Any, expert: Any, config: EnvConfig, seeds: Sequence[int], *, name: str, crash: CrashMode,
        run: int | None, batch_size: int, device: str,
    ) -> Iterator[EpisodeResult]:  # fmt: skip
        for seed in seeds:
            driven.append(seed)
            yield row(seed, driver=name, crash_mode=crash, perturbation=config.perturb, episode_return=seed / 7)

    monkeypatch.setattr(driving, "drive", drive)
    return driven


def test_the_baseline_drives_first_and_is_queried_at_every_frame(tmp_path):
    drivers = tmp_path / "drivers"
    for name in ("one", "two"):
        env = {**ENV, "max_steps": ZOOM + 3}  # three frames after the zoom
        save_driver(drivers / name / "cnn", Driver(DriverConfig(core="cnn")), env=env)
    baseline, driver = evaluated(drivers, tmp_path / "e")
    assert [each.summary.driver for each in (baseline, driver)] == ["cnn (baseline)", "cnn"]
    assert driver.summary.versus == "cnn (baseline)"
    assert baseline.summary.agreement is None
    assert driver.summary.agreement is not None
    assert read_results(tmp_path / "e" / "rows.jsonl") == [*baseline.rows, *driver.rows]
    alone = evaluate(drivers / "one" / "cnn", TRACKS, expert=drivers / "two" / "cnn")
    assert [each.with_metrics(latency_ms=0) for each in driver.rows] == [
        each.with_metrics(latency_ms=0) for each in alone.rows
    ]
    assert {path.name for path in (tmp_path / "e").iterdir()} == {
        "conditions.json", "rows.jsonl", "summary.json", ".lock"
    }  # fmt: skip


def test_only_missing_episodes_are_driven_and_tracks_may_be_added(drivers, tmp_path, known_rows):
    evaluated(drivers, tmp_path / "whole")
    rows = tmp_path / "whole" / "rows.jsonl"
    whole = contents(tmp_path / "whole")
    rows.write_bytes(rows.read_bytes()[:-100])  # the last row is cut off
    known_rows.clear()
    evaluated(drivers, tmp_path / "whole", resume=True)
    assert known_rows == [7]
    assert contents(tmp_path / "whole") == whole
    known_rows.clear()
    arguments: dict[str, Any] = {"baseline": drivers / "two" / "cnn", "folder": tmp_path / "whole", "resume": True}
    more = evaluate_with_baseline(drivers / "one" / "cnn", f"{TRACKS},9", **arguments)
    assert known_rows == [9, 9]
    assert [len(each.rows) for each in more] == [4, 4]


@pytest.mark.parametrize("written", ["one/../one/cnn", "copy"])
def test_the_driver_itself_is_no_baseline_however_it_is_written(written, drivers, tmp_path, known_rows):
    shutil.copytree(drivers / "one" / "cnn", drivers / "copy", dirs_exist_ok=True)
    alone = evaluated(drivers, None, baseline=None)
    both = evaluated(drivers, tmp_path / "e", baseline=drivers / written)
    assert both == alone
    assert both[0].summary.versus is None
    assert len((tmp_path / "e" / "rows.jsonl").read_text().splitlines()) == 3


CHANGED: dict[str, dict[str, Any]] = {
    r"entries: 'cnn \(baseline\)' of it is missing here": {"baseline": None},
    "crash: it has 'ignore', got 'terminate'": {"crash": "terminate"},
    "perturbations: None of it is missing here": {"perturbation": "shadows:1"},
    "cnn env.mask_bar: it has False, got True": {"mask_bar": True},
}


@pytest.mark.filterwarnings("ignore:driver 'cnn' was trained in another environment")
@pytest.mark.parametrize("message", CHANGED)
def test_other_conditions_are_named_and_nothing_is_touched(message, drivers, tmp_path, known_rows):
    evaluated(drivers, tmp_path / "e")
    before = contents(tmp_path / "e")
    with pytest.raises(FileError, match=message):
        evaluated(drivers, tmp_path / "e", resume=True, **CHANGED[message])
    assert contents(tmp_path / "e") == before


def test_a_baseline_that_comes_later_is_refused(drivers, tmp_path, known_rows):
    """The rows of before would lack the agreement with it."""
    evaluated(drivers, tmp_path / "e", baseline=None)
    with pytest.raises(FileError, match="cnn expert: it has None, got"):
        evaluated(drivers, tmp_path / "e", resume=True)


@dataclass(frozen=True)
class Darker(Perturbation):
    """A user's own perturbation."""

    factor: float

    def wrap(self, env: gym.Env, stream: Any, episode_frames: int, bar_top: int | None) -> gym.Env:
        return env


def test_an_own_perturbation_that_was_edited_is_refused(drivers, tmp_path, known_rows):
    """Rows of two codes were mixed."""
    settings: dict[str, Any] = {"perturbation": "darker:1", "folder": tmp_path / "e"}
    with forgotten():
        for factor in (0.5, 0.1):
            nd.PERTURBATIONS["darker"] = (Darker(factor),)
            if factor == 0.5:
                evaluated(drivers, **settings)
                evaluated(drivers, **settings, resume=True)
        with pytest.raises(FileError, match=r"darker:1 darker: it has '[0-9a-f]+\.\.\."):
            evaluated(drivers, **settings, resume=True)


def test_another_driver_of_the_name_is_refused(drivers, tmp_path, known_rows):
    evaluated(drivers, tmp_path / "e")
    with pytest.raises(FileError, match=r"cnn sha256: it has .*; tracks: 7 of it is missing here"):
        evaluate_with_baseline(
            drivers / "two" / "cnn", "900001,5", baseline=drivers / "one" / "cnn", folder=tmp_path / "e", resume=True
        )


OTHERS: list[dict[str, Any]] = [
    {"driver": "other"}, {"seed": 6}, {"seed": -1}, {"seed": 2**70}, {"crash_mode": "terminate"}, {"run": 3},
    {"perturbation": "gap:3"}, {"renderer": 1}, {"completion": -7}, {"completion": 1.5},
    {"latency_ms": -7}, {"lateral_mean": -7.0}, {"autonomy": 2}, {"lap_time": -1.0}, {"agreement": -0.5},
    {"crashes": 1.5}, {"lap_finished": 1}, {"length": None},
]  # fmt: skip


def test_damaged_rows_give_the_same_files_or_are_refused_in_one_line(drivers, tmp_path, known_rows):
    evaluated(drivers, tmp_path / "whole")
    require_the_same_or_a_refusal(
        tmp_path / "whole", tmp_path, OTHERS, lambda folder: evaluated(drivers, folder, resume=True), seeds=40, least=2
    )


def of_tracks(*tracks: int) -> Driving:
    return Driving((Entry("d", "0", EnvConfig()),), tracks)


def test_rows_that_are_no_episodes_are_refused_in_one_line(tmp_path):
    good = row(5, driver="d").to_dict()
    bad: list[Any] = [
        {**good, "driver": "other"}, {**good, "seed": 6}, {**good, "seed": -1}, {**good, "seed": 2**70},
        {**good, "crash_mode": "x"}, {**good, "episode_return": "many"}, {**good, "episode_return": None},
        {**good, "episode_return": 1e300}, {**good, "crash_kinds": {}}, {**good, "more": 1}, {"seed": 5}, None, [], 3,
        {**good, "length": -1}, {**good, "lap_finished": 1}, {**good, "run": 0}, {**good, "perturbation": ""},
    ]  # fmt: skip
    bad += [{**good, name: -7} for name, value in good.items() if isinstance(value, float) and name != "episode_return"]
    bad += [{**good, name: -7.5} for name in ("agreement", "first_crash_time", "lateral_p95", "latency_ms")]
    bad += [{**good, name: 1.5} for name in ("completion", "autonomy", "off_road_fraction", "agreement")]
    lines = [json.dumps(each) for each in bad] + ["{", "\x00", "[" * 100_000, json.dumps(good).replace("900.0", "NaN")]
    for number, line in enumerate(lines):
        path = tmp_path / str(number)
        with open_experiment(of_tracks(5, 7), path) as journal:
            journal.append(row(7, driver="d").to_dict())
        with (path / "rows.jsonl").open("a") as file:
            file.write(line + "\n")
        before = contents(path)
        with pytest.raises(FileError) as caught, open_experiment(of_tracks(5, 7), path, resume=True):
            pass
        assert "line 2" in str(caught.value), line
        assert "\n" not in str(caught.value)
        assert contents(path) == before


def test_all_values_survive_the_file(tmp_path):
    experiment = Driving((Entry("controller", "0", EnvConfig(max_steps=60), Controller()),), (5,))
    with open_experiment(experiment, tmp_path / "e") as journal:
        run(experiment, journal)
    (expected,) = evaluate("controller", [5], env=EnvConfig(max_steps=60)).rows
    (found,) = read_results(tmp_path / "e" / "rows.jsonl")
    assert found.with_metrics(latency_ms=0) == expected.with_metrics(latency_ms=0)
