"""A comparison: trained once, driven on the same tracks, told in a table and a figure."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import cv2
import pytest

from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.data_collection.experts import resolve_driver
from nac_drive.evaluation.evaluate import Evaluation
from nac_drive.evaluation.metrics import EpisodeResult
from nac_drive.evaluation.statistics import summarise
from nac_drive.leaderboard.compare import Comparison, compare
from nac_drive.leaderboard.tables import COLUMNS, SHORT, Entry, cells, markdown_table, save_results, terminal_table
from nac_drive.policies import Driver, load_driver
from nac_drive.training.train import clone
from tests.data_collection.recordings import contents
from tests.nac_drive.small import config, demonstrations

TRACKS = [900_000, 900_001]
CORES = ("cnn", "lstm")
SETTINGS = config(epochs=2, window=16)


def run(dataset: Demonstrations, folder: Path, **keywords: Any) -> tuple[Comparison, list[tuple[str, dict[str, Any]]]]:
    told: list[tuple[str, dict[str, Any]]] = []
    arguments = {"config": SETTINGS, "device": "cpu", "expert": "controller", **keywords}
    comparison = compare(
        arguments.pop("cores", CORES), dataset, TRACKS, folder, report=lambda *row: told.append(row), **arguments
    )
    return comparison, told


def timeless(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**row, "latency_ms": 0, "training_seconds": 0} for row in results]


def read(folder: Path) -> list[dict[str, Any]]:
    return timeless(json.loads((folder / "results.json").read_text()))


@pytest.fixture(scope="module")
def whole(dataset, tmp_path_factory) -> tuple[Path, Comparison, list[tuple[str, dict[str, Any]]]]:
    """A comparison that nothing interrupted; read only."""
    folder = tmp_path_factory.mktemp("compare") / "whole"
    return folder, *run(dataset, folder, repeats=2, workers=2)


def test_every_core_is_trained_from_every_seed_and_driven_on_every_track(whole, dataset):
    folder, comparison, told = whole
    names = [f"{core}-{seed}" for core in CORES for seed in (0, 1)]
    assert sorted(name for name, _ in told) == sorted(["expert", *names])
    assert comparison.failures == {}
    assert {path.name for path in folder.iterdir()} == {
        *names, "expert", "config.yaml", "command.txt", "env.json", "rows.jsonl", "summary.json", "table.md",
        "results.json", "figure.png",
    }  # fmt: skip
    expert, *trained = comparison.entries
    assert (expert.summary.driver, expert.trainings, expert.summary.tracks) == ("controller", None, 2)
    assert {c.summary.driver for c in trained} == set(CORES)
    returns = [c.summary.return_mean for c in trained]
    assert returns == sorted(returns, reverse=True)
    for entry in trained:
        assert entry.trainings == 2
        rows = entry.evaluation.rows
        assert [row.seed for row in rows] == [*TRACKS, *TRACKS]
        runs = [folder / f"{entry.summary.driver}-{seed}" for seed in (0, 1)]
        weights = [(path / "checkpoints" / "best" / "model.safetensors").read_bytes() for path in runs]
        assert weights[0] != weights[1]
        told_of = [json.loads((path / "metrics.jsonl").read_text().splitlines()[-1]) for path in runs]
        driver: Any = resolve_driver(str(runs[0]), dataset.meta.env)
        assert entry.parameters == sum(p.numel() for p in driver.parameters())
        assert entry.core_parameters == sum(p.numel() for p in driver.core.parameters())
        accuracy = [row["validation"]["accuracy"] for row in told_of]
        changes = [row["validation"]["at_changes"] for row in told_of]  # None where the expert changes nothing
        assert entry.validation_accuracy == pytest.approx(sum(accuracy) / 2)  # validated in the last epoch alone
        assert entry.validation_at_changes == (None if None in changes else pytest.approx(sum(changes) / 2))
        assert entry.summary.agreement is not None
        assert not (runs[1] / "latency.json").exists()  # one training of a core is timed, and once
        alone = json.loads((runs[0] / "latency.json").read_text())
        assert alone == {"latency_ms": entry.summary.latency_ms}
    picture = cv2.imread(str(folder / "figure.png"))
    assert picture is not None
    assert picture.std() > 5  # something is drawn


def test_all_are_paired_with_the_lstm_where_it_takes_part(whole):
    _, comparison, _ = whole
    lstm = next(c for c in comparison.entries if c.summary.driver == "lstm")
    for entry in comparison.entries:
        difference = entry.summary.return_difference
        if entry is lstm:
            assert difference is None
            continue
        assert entry.summary.versus == "lstm"
        assert difference is not None
        assert difference.mean == pytest.approx(entry.summary.return_mean - lstm.summary.return_mean)


def test_finished_runs_are_kept_and_others_may_be_added(whole, dataset, tmp_path):
    folder, _, _ = whole
    with pytest.raises(FileExistsError, match="--resume"):
        run(dataset, folder)
    grown = tmp_path / "grown"
    shutil.copytree(folder, grown, symlinks=True)
    shutil.rmtree(grown / "cnn-1")  # as if it had not been asked for
    (grown / "cnn-0" / "result.json").unlink()  # killed before its episodes were driven
    before = contents(grown / "lstm-0")
    _, told = run(dataset, grown, repeats=2, workers=2, resume=True)
    assert [name for name, _ in told[:3]] == ["expert", "lstm-0", "lstm-1"]  # what was done
    assert {name for name, _ in told[3:]} == {"cnn-0", "cnn-1"}
    assert contents(grown / "lstm-0") == before
    assert read(grown) == read(folder)
    with pytest.raises(ValueError, match="epochs: run has 2, asked for 3"):
        run(dataset, grown, config=replace(SETTINGS, epochs=3), resume=True)
    with pytest.raises(ValueError, match="dataset_sha256: run has"):
        run(demonstrations(tmp_path / "other", tracks=2), grown, resume=True)


def test_a_run_that_fails_costs_only_itself_and_is_tried_again(dataset, tmp_path):
    cores = ("nac-exact,window=0", "nac-exact,window=4,num_heads=2")
    comparison, told = run(dataset, tmp_path / "c", cores=cores)
    assert comparison.failures == {"nac-exact,window=0-0": "ValueError: window: must be at least 1 frame, got 0."}
    assert [c.summary.driver for c in comparison.entries] == ["controller", cores[1]]
    driver: Any = resolve_driver(str(tmp_path / "c" / f"{cores[1]}-0"), dataset.meta.env)
    assert (driver.config.core, driver.config.core_args) == ("nac-exact", {"window": 4, "num_heads": 2})
    assert [name for name, row in told if "failed" in row] == ["nac-exact,window=0-0"]
    again, told = run(dataset, tmp_path / "c", cores=cores, resume=True)
    assert again.failures == comparison.failures
    assert [name for name, _ in told] == ["expert", f"{cores[1]}-0", "nac-exact,window=0-0"]


def test_a_shared_vision_head_is_trained_once_and_stays(dataset, tmp_path):
    settings = replace(SETTINGS, augment=("colour:3",))  # of its pictures, which the cores do not see
    with pytest.raises(ValueError, match="a encoder of 'expert' and one to be trained were asked for"):
        run(dataset, tmp_path / "c", config=replace(SETTINGS, frozen="expert"), frozen=True)
    comparison, told = run(dataset, tmp_path / "c", cores=("lstm",), config=settings, frozen=True)
    assert [name for name, _ in told] == ["encoder", "expert", "lstm-0"]
    assert comparison.failures == {}
    seer, driver = (resolve_driver(str(tmp_path / "c" / name), dataset.meta.env) for name in ("encoder", "lstm-0"))
    assert isinstance(seer, Driver)
    assert isinstance(driver, Driver)
    weights = seer.encoder.state_dict()
    assert all(weight.equal(weights[name]) for name, weight in driver.encoder.state_dict().items())
    alone = replace(settings, core="lstm", frozen=str(tmp_path / "c" / "encoder"), augment=())
    other = load_driver(clone(alone, dataset, tmp_path / "alone", device="cpu"))  # which computes its features itself
    assert all(weight.equal(driver.state_dict()[name]) for name, weight in other.state_dict().items())


@pytest.mark.parametrize(
    ("cores", "told"), [((), "got none"), (("lstm", "transformer"), "got 'transformer'"), (("LSTM",), "LSTM")]
)
def test_unknown_cores_are_refused_before_anything_is_trained(cores, told, dataset, tmp_path):
    with pytest.raises(ValueError, match=f"drivers must be names of .*nac-exact.*{told}"):
        run(dataset, tmp_path / "comparison", cores=cores)
    assert not (tmp_path / "comparison").exists()


# The table


def result(driver: str, seed: int, episode_return: float, **values: Any) -> EpisodeResult:
    row = EpisodeResult(
        driver=driver, seed=seed, crash_mode="ignore", perturbation="", renderer="gymnasium",
        episode_return=episode_return, length=900, completion=0.987,
        lap_finished=False, lap_time=None, off_road_events=0, off_road_fraction=0.034, crashes=1, crash_kinds=["off_road"],
        first_crash_time=1.0, interventions=0, autonomy=1.0, driving_score=62.0, lateral_mean=0.1, lateral_rms=0.1,
        lateral_p95=0.2, heading_rms=0.1, steering_rate_rms=1.0, steering_reversals=2.0, agreement=None, latency_ms=2.5,
    )  # fmt: skip
    return replace(row, **values)


def entries() -> list[Entry]:
    expert = [result("expert", seed, value) for seed, value in ((1, 900.0), (2, 920.0))]
    mine = [
        result("mine", seed, value, agreement=0.75, crash_mode="intervene")
        for seed, value in ((1, 870.0), (2, 890.0), (1, 890.0), (2, 910.0))
    ]
    return [
        Entry(Evaluation(expert, summarise(expert))),
        Entry(
            Evaluation(mine, summarise(mine, expert)),
            trainings=2,
            parameters=12_345,
            core_parameters=5_432,
            validation_accuracy=0.9,
            validation_at_changes=0.456,
            training_seconds=61.2,
        ),
    ]


UNFILLED = {
    "vs baseline [95 %]", "agreement %", "validation %", "changes %", "core", "parameters", "each training", "trained s",
    "interventions/episode",
}  # fmt: skip
"""By one who was not trained here, and was not set back on the road."""


def parse(markdown: str) -> list[dict[str, str]]:
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in markdown.strip().split("\n")]
    headings, rule, *rows = lines
    assert all(set(cell) <= set("-:") for cell in rule)
    assert {len(line) for line in lines} == {len(headings)}
    return [dict(zip(headings, row, strict=True)) for row in rows]


def test_the_markdown_table_says_what_was_measured():
    expert, mine = parse(markdown_table(entries()))
    assert list(mine) == [name for name in COLUMNS if name in mine]
    assert (expert["driver"], expert["return"], expert["min"]) == ("expert", "910 ± 14", "900")
    assert (mine["driver"], mine["return"], mine["vs baseline [95 %]"]) == ("mine", "890 ± 16", "-20 [-30, -10]")
    assert (mine["completion %"], mine["off road %"], mine["crashes/episode"]) == ("98.7", "3.4", "1.00")
    assert (expert["interventions/episode"], mine["interventions/episode"]) == ("-", "0.00")
    assert (mine["agreement %"], mine["validation %"], mine["parameters"]) == ("75.0", "90.0", "12,345")
    assert (mine["ms/act"], mine["trained s"]) == ("2.50", "61")
    assert (mine["changes %"], mine["core"], mine["each training"]) == ("45.6", "5,432", "880 900")
    assert (expert[">= 900 %"], mine[">= 900 %"]) == ("100", "25")
    empty = {expert[name] for name in UNFILLED}
    assert len(empty) == 1
    assert not any(character.isalnum() for character in empty.pop())


def test_columns_that_nobody_fills_are_left_out():
    headings, rows = cells(entries()[:1])
    assert set(COLUMNS) - set(headings) == UNFILLED
    assert [len(row) for row in rows] == [len(headings)]
    assert cells(entries())[0] == list(COLUMNS)


def test_the_terminal_shows_the_same_cells():
    table = terminal_table(entries(), "title")
    headings, rows = cells(entries())
    assert [column.header for column in table.columns] == headings
    assert list(zip(*(column.cells for column in table.columns), strict=True)) == [tuple(row) for row in rows]
    short = terminal_table(entries(), "title", SHORT)
    assert [column.header for column in short.columns] == list(SHORT)
    assert list(short.columns[1].cells) == [row[1] for row in rows]


def test_results_are_saved_as_numbers(tmp_path):
    save_results(tmp_path, entries())
    saved = json.loads((tmp_path / "results.json").read_text())
    assert saved[1]["parameters"] == 12_345
    assert (saved[1]["trainings"], saved[1]["run_returns"]) == (2, [880.0, 900.0])
    assert saved[0]["return_interval"] == asdict(entries()[0].summary.return_interval)
    assert (tmp_path / "table.md").read_text() == markdown_table(entries())
