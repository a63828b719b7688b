"""An evaluation in a folder: killed anywhere and resumed, it is the one without a kill; nothing else is let in."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from nac_drive.envs import EnvConfig
from nac_drive.evaluation import evaluate as evaluation
from nac_drive.evaluation import folder as module
from nac_drive.evaluation import paired
from nac_drive.evaluation.evaluate import Evaluation, evaluate
from nac_drive.evaluation.folder import Conditions, evaluation_folder
from nac_drive.evaluation.paired import evaluate_with_baseline
from nac_drive.evaluation.results import EpisodeResult, read_results
from nac_drive.evaluation.statistics import summarise
from nac_drive.policies import Driver, DriverConfig, save_driver
from nac_drive.storage.lock import FolderInUseError, locked
from nac_drive.storage.read import FileError
from tests.data_collection.recordings import contents
from tests.killing import Fuse, Killed
from tests.nac_drive.evaluation.rows import row
from tests.nac_drive.forged import forged

TRACKS = "900001,5,7"
ENV = {"control": "discrete", "mask_bar": False, "max_steps": 3}


@pytest.fixture(scope="module")
def drivers(tmp_path_factory) -> Path:
    """Two drivers of three frames, in folders of the same name."""
    path = tmp_path_factory.mktemp("drivers")
    for name in ("one", "two"):
        save_driver(path / name / "cnn", Driver(DriverConfig(core="cnn")), env=ENV)
    return path


def run(drivers: Path, folder: Path, **changed: Any) -> list[Evaluation]:
    arguments: dict[str, Any] = {"baseline": drivers / "two" / "cnn", **changed}
    return evaluate_with_baseline(drivers / "one" / "cnn", TRACKS, folder=folder, **arguments)


@pytest.fixture
def constant_latency(monkeypatch) -> None:
    """Latencies are measured; everything else is the same in every run."""
    real = paired.evaluate

    def constant(*arguments: Any, on_episode: Callable[[EpisodeResult], None], baseline: Any, **others: Any) -> Any:
        def report(result: EpisodeResult) -> None:
            on_episode(result.with_metrics(latency_ms=1.5))

        result = real(*arguments, on_episode=report, baseline=baseline, **others)
        rows = [each.with_metrics(latency_ms=1.5) for each in result.rows]
        return Evaluation(rows, summarise(rows, baseline.rows if baseline else None))

    monkeypatch.setattr(paired, "evaluate", lambda *a, baseline=None, **k: constant(*a, baseline=baseline, **k))


def test_killed_at_every_operation_and_resumed_the_files_are_those_without_a_kill(drivers, tmp_path, monkeypatch):
    driven: list[int] = []

    def drive(
        _: bytes, name: str, config: EnvConfig, crash: str, batch_size: int, seeds: Sequence[int]
    ) -> Iterator[EpisodeResult]:
        for seed in seeds:
            driven.append(seed)
            conditions = {"driver": name, "crash_mode": crash}
            yield row(seed, **conditions, episode_return=seed / 7)

    monkeypatch.setattr(evaluation, "_drive", drive)
    run(drivers, tmp_path / "whole")
    whole = contents(tmp_path / "whole")
    assert {path.name for path in (tmp_path / "whole").iterdir()} == {
        "conditions.json", "rows.jsonl", "summary.json", ".lock"
    }  # fmt: skip
    monkeypatch.setattr("nac_drive.storage.write.process_runs", lambda process: False)  # the killed process is this one
    fuse = Fuse()
    real = {name: getattr(os, name) for name in ("replace", "fsync")}
    for moment in range(100):
        path, fuse.left = tmp_path / f"killed {moment}", moment
        driven.clear()
        with monkeypatch.context() as patch:
            for name, call in real.items():
                patch.setattr(os, name, fuse.deadly(call))
            try:
                run(drivers, path)
                break
            except Killed:
                pass
        run(drivers, path, resume=path.exists())
        assert contents(path) == whole, f"killed at operation {moment}"
        assert len(driven) <= 6 + 1, "more than the episode that was not written is driven again"
    assert moment > 12


def test_a_row_that_is_cut_off_is_driven_again(drivers, tmp_path, constant_latency):
    run(drivers, tmp_path / "e")
    whole = contents(tmp_path / "e")
    rows = tmp_path / "e" / "rows.jsonl"
    (tmp_path / "e" / "summary.json").unlink()
    rows.write_bytes(rows.read_bytes()[:-100])
    run(drivers, tmp_path / "e", resume=True)
    assert contents(tmp_path / "e") == whole


def test_finished_rows_are_not_driven_again():
    tracks = [5, 900_001]
    whole = evaluate("controller", tracks, env=EnvConfig(max_steps=2))
    driven: list[int] = []
    again = evaluate(
        "controller", tracks, env=EnvConfig(max_steps=2), done=whole.rows[1:],
        on_episode=lambda result: driven.append(result.seed),
    )  # fmt: skip
    assert driven == [5]
    assert [result.seed for result in again.rows] == tracks
    assert again.rows[1] is whole.rows[1]


@pytest.mark.parametrize("written", ["one/../one/cnn", "copy"])
def test_the_driver_itself_is_no_baseline_however_it_is_written(written, drivers, tmp_path):
    shutil.copytree(drivers / "one" / "cnn", drivers / "copy", dirs_exist_ok=True)
    alone = run(drivers, tmp_path / "alone", baseline=None)
    both = run(drivers, tmp_path / "e", baseline=drivers / written)
    assert [evaluation.summary.driver for evaluation in both] == ["cnn"]
    assert both[0].summary.versus is None
    assert [row.with_metrics(latency_ms=0) for row in both[0].rows] == [
        row.with_metrics(latency_ms=0) for row in alone[0].rows
    ]
    assert len((tmp_path / "e" / "rows.jsonl").read_text().splitlines()) == 3


CHANGED: dict[str, dict[str, Any]] = {
    "baseline: it has 'cnn', got None": {"baseline": None},
    "crash: it has 'ignore', got 'terminate'": {"crash": "terminate"},
    "perturbation: it has '', got 'shadows:1'": {"perturbation": "shadows:1"},
    "env.mask_bar: it has False, got True": {"mask_bar": True},
}


def test_other_conditions_are_named_and_nothing_is_touched(drivers, tmp_path):
    run(drivers, tmp_path / "e")
    before = contents(tmp_path / "e")
    for message, changed in CHANGED.items():
        with pytest.raises(FileError) as caught:
            run(drivers, tmp_path / "e", resume=True, **changed)
        assert message in str(caught.value)
    with pytest.raises(FileError, match=r"driver_sha256: it has .*; tracks: it has \[900001, 5, 7\], got \[5\]"):
        evaluate_with_baseline(
            drivers / "two" / "cnn", "5", baseline=drivers / "two" / ".." / "two" / "cnn",
            folder=tmp_path / "e", resume=True,
        )  # fmt: skip
    with pytest.raises(FileExistsError, match="already exists; choose another folder, or go on with --resume"):
        run(drivers, tmp_path / "e")
    assert contents(tmp_path / "e") == before


def conditions(*tracks: int) -> Conditions:
    return Conditions("d", "0", None, None, EnvConfig(), list(tracks), "ignore", "")


def test_only_the_folder_of_an_evaluation_is_resumed(tmp_path):
    with (
        pytest.raises(FileNotFoundError, match="nothing to resume"),
        evaluation_folder(tmp_path / "no", conditions(5), resume=True),
    ):
        pass
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "rows.jsonl").write_text("mine")
    with (
        pytest.raises(FileError, match=r"conditions\.json is missing"),
        evaluation_folder(tmp_path / "mine", conditions(5), resume=True),
    ):
        pass
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["rows.jsonl"]
    with pytest.raises(ValueError, match="resume needs the folder"):
        evaluate_with_baseline("controller", "5", resume=True)


def test_a_start_without_a_row_leaves_nothing(tmp_path):
    with pytest.raises(RuntimeError), evaluation_folder(tmp_path / "a" / "b", conditions(5)):
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "killed").mkdir()
    (tmp_path / "killed" / ".lock").touch()
    (tmp_path / "killed" / "conditions.json.123.tmp").touch()
    with evaluation_folder(tmp_path / "killed", conditions(5)) as held:
        held.append(row(5, driver="d"))
        with pytest.raises(FolderInUseError), locked(tmp_path / "killed"):
            pass
    with evaluation_folder(tmp_path / "killed", conditions(5), resume=True) as held:
        assert [result.seed for result in held.rows_of(0)] == [5]


def test_rows_that_do_not_belong_here_are_refused_in_one_line(tmp_path):
    good = row(5, driver="d").to_dict()
    bad: list[Any] = [
        {**good, "driver": "other"}, {**good, "seed": 6}, {**good, "seed": -1}, {**good, "seed": 2**70},
        {**good, "crash_mode": "x"}, {**good, "episode_return": "many"}, {**good, "episode_return": None},
        {**good, "episode_return": 1e300}, {**good, "crash_kinds": {}}, {**good, "more": 1}, {"seed": 5}, None, [], 3,
        {**good, "length": -1}, {**good, "lap_finished": 1},
    ]  # fmt: skip
    bad += [{**good, name: -7} for name, value in good.items() if isinstance(value, float) and name != "episode_return"]
    bad += [{**good, name: -7.5} for name in ("agreement", "first_crash_time", "lateral_p95", "latency_ms")]
    bad += [{**good, name: 1.5} for name in ("completion", "autonomy", "off_road_fraction", "agreement")]
    lines = [json.dumps(each) for each in bad] + ["{", "\x00", "[" * 100_000, json.dumps(good).replace("900.0", "NaN")]
    for number, line in enumerate(lines):
        path = tmp_path / str(number)
        with evaluation_folder(path, conditions(5, 7)) as held:
            held.append(row(7, driver="d"))
        with (path / "rows.jsonl").open("a") as file:
            file.write(line + "\n")
        before = contents(path)
        with pytest.raises(FileError) as caught, evaluation_folder(path, conditions(5, 7), resume=True):
            pass
        assert "line 2 is no" in str(caught.value)
        assert "\n" not in str(caught.value)
        assert contents(path) == before


OTHERS: list[dict[str, Any]] = [
    {"driver": "other"}, {"seed": 6}, {"seed": -1}, {"seed": 2**70}, {"crash_mode": "terminate"},
    {"perturbation": "gap:3"}, {"renderer": 1}, {"completion": -7}, {"completion": 1.5},
    {"latency_ms": -7}, {"lateral_mean": -7.0}, {"autonomy": 2}, {"lap_time": -1.0}, {"agreement": -0.5},
    {"crashes": 1.5}, {"lap_finished": 1}, {"length": None},
]  # fmt: skip


def test_damaged_rows_give_the_same_files_or_are_refused_in_one_line(drivers, tmp_path, monkeypatch):
    def drive(
        _: bytes, name: str, config: EnvConfig, crash: str, batch_size: int, seeds: Sequence[int]
    ) -> Iterator[EpisodeResult]:
        for seed in seeds:
            yield row(seed, driver=name, crash_mode=crash, episode_return=seed / 7)

    monkeypatch.setattr(evaluation, "_drive", drive)
    run(drivers, tmp_path / "whole")
    whole, outcomes = contents(tmp_path / "whole"), {True: 0, False: 0}
    lines = whole["rows.jsonl"].decode().splitlines(keepends=True)
    for seed in range(40):
        folder = Path(shutil.copytree(tmp_path / "whole", tmp_path / str(seed)))
        (folder / "rows.jsonl").write_text("".join(forged(seed, lines, OTHERS)))
        before = contents(folder)
        try:
            run(drivers, folder, resume=True)
        except FileError as error:
            message = str(error)
            assert message.startswith(f"{folder / 'rows.jsonl'}, line ")
            assert message.isprintable(), message
            assert contents(folder) == before
            outcomes[False] += 1
        else:
            assert contents(folder) == whole, seed
            outcomes[True] += 1
    assert min(outcomes.values()) > 2


def test_damaged_conditions_are_refused_in_one_line(tmp_path):
    with evaluation_folder(tmp_path / "e", conditions(5)) as held:
        held.append(row(5, driver="d"))
    file = tmp_path / "e" / module.CONDITIONS
    document = json.loads(file.read_text())
    for content in ("", "[]", "{}", '"x"', json.dumps({**document, "env": {"max_steps": 0}}), "[" * 100_000):
        file.write_text(content)
        with (
            pytest.raises(FileError, match=r"conditions\.json is not the conditions of an evaluation"),
            evaluation_folder(tmp_path / "e", conditions(5), resume=True),
        ):
            pass


def test_all_values_survive_the_file(tmp_path):
    rows = evaluate("controller", [5], env=EnvConfig(max_steps=60)).rows
    with evaluation_folder(tmp_path / "e", conditions(5)) as held:
        held.append(rows[0])
    assert read_results(tmp_path / "e" / "rows.jsonl") == (rows, False)
