"""A comparison: trained once, driven on the same tracks, told in a table and a figure."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import cv2
import pytest
import torch

from data_collection.controller import Controller
from data_collection.dataset import Demonstrations
from data_collection.drivers import resolve_driver
from envs import EnvConfig
from nac_drive.compare import compare
from nac_drive.evaluation import Evaluation
from nac_drive.metrics import EpisodeResult, summarise
from nac_drive.report import COLUMNS, Contestant, cells, markdown_table, save_results, terminal_table
from tests.data_collection.recordings import contents
from tests.killing import Killed
from tests.nac_drive.small import config, results

SEEDS = [900_000, 900_001]
CORES = ("cnn", "lstm")
SETTINGS = config(epochs=2, window=16)


@pytest.fixture(autouse=True)
def the_controller_is_the_expert(monkeypatch):
    def resolve(spec: str, env: EnvConfig) -> Any:
        return Controller(env.control) if spec == "expert" else resolve_driver(spec, env)

    monkeypatch.setattr(import_module("nac_drive.compare"), "resolve_driver", resolve)


def run(dataset: Demonstrations, folder: Path, told: list[tuple[str, dict[str, Any]]], **keywords: Any):
    def report(job: str, row: dict[str, Any]) -> None:
        told.append((job, row))
        if keywords.get("stop") == (job, row.get("step")):
            raise Killed

    arguments = {key: value for key, value in keywords.items() if key != "stop"}
    return compare(CORES, dataset, SEEDS, folder, config=SETTINGS, device="cpu", report=report, **arguments)


def trained(told: list[tuple[str, dict[str, Any]]]) -> list[tuple[str, int]]:
    return [(job, row["step"]) for job, row in told if "step" in row]


def timeless(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**row, "latency_ms": 0, "training_seconds": 0} for row in results]


def test_it_is_restartable_and_trains_nothing_twice(dataset, tmp_path):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    whole, told = tmp_path / "whole", []
    contestants = run(dataset, whole, told)
    assert trained(told) == [("cnn", 1), ("cnn", 2), ("lstm", 1), ("lstm", 2)]
    assert [c.summary.driver for c in contestants] == ["expert", "cnn", "lstm"]
    episodes = [(job, row["episode"].seed) for job, row in told if "episode" in row]
    assert episodes == [(name, seed) for name in ("expert", *CORES) for seed in SEEDS]
    assert {path.name for path in whole.iterdir()} == {
        *CORES, "rows.jsonl", "summary.json", "table.md", "results.json", "figure.png"
    }  # fmt: skip
    picture = cv2.imread(str(whole / "figure.png"))
    assert picture is not None
    assert picture.shape[0] > 300
    assert picture.std() > 5  # something is drawn
    assert len((whole / "rows.jsonl").read_text().splitlines()) == 6

    for contestant in contestants[1:]:
        assert contestant.summary.versus == "expert"
        assert contestant.summary.agreement is not None
        assert contestant.summary.return_difference is not None
        difference = contestant.summary.return_mean - contestants[0].summary.return_mean
        assert contestant.summary.return_difference.mean == pytest.approx(difference)
        assert len(contestant.history) == 2
        assert contestant.training_seconds == sum(row["seconds"] for row in contestant.history)
        driver: Any = resolve_driver(str(whole / contestant.summary.driver), dataset.meta.env)
        assert contestant.parameters == sum(p.numel() for p in driver.parameters())
        best = contestant.history[driver.meta["epoch"] - 1]
        assert contestant.held_out_accuracy == best["held_out"]["accuracy"]

    before = contents(whole)
    with pytest.raises(FileExistsError, match="--resume"):
        run(dataset, whole, [])
    assert contents(whole) == before
    again: list[tuple[str, dict[str, Any]]] = []
    run(dataset, whole, again, resume=True)
    assert trained(again) == []
    assert timeless(json.loads((whole / "results.json").read_text())) == timeless(
        json.loads(before["results.json"])
    )  # fmt: skip

    interrupted = tmp_path / "interrupted"
    with pytest.raises(Killed):
        run(dataset, interrupted, [], stop=("lstm", 1))
    later: list[tuple[str, dict[str, Any]]] = []
    run(dataset, interrupted, later, resume=True)
    assert trained(later) == [("lstm", 2)]
    for core in CORES:
        assert results(interrupted / core) == results(whole / core)
    torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("cores", "told"), [((), "got none"), (("lstm", "transformer"), r"got \['transformer'\]"), (("LSTM",), "LSTM")]
)
def test_unknown_cores_are_refused_before_anything_is_trained(cores, told, dataset, tmp_path):
    with pytest.raises(ValueError, match=f"drivers must be names of .*nac-exact.*{told}"):
        compare(cores, dataset, SEEDS, tmp_path / "comparison", config=SETTINGS, device="cpu")
    assert not (tmp_path / "comparison").exists()


def test_other_settings_are_not_resumed(dataset, tmp_path):
    arguments: dict[str, Any] = {"device": "cpu", "resume": True}
    compare(("cnn",), dataset, SEEDS[:1], tmp_path / "c", config=config(epochs=1), device="cpu")
    with pytest.raises(ValueError, match="epochs: run has 1, asked for 2"):
        compare(("cnn",), dataset, SEEDS[:1], tmp_path / "c", config=config(epochs=2), **arguments)


# The table


def result(driver: str, seed: int, episode_return: float, **values: Any) -> EpisodeResult:
    row = EpisodeResult(
        driver=driver, seed=seed, crash_mode="ignore", perturbation="", renderer="gymnasium",
        episode_return=episode_return, length=900, completion=0.987,
        lap_finished=False, lap_time=None, off_road_events=0, off_road_share=0.034, crashes=1, crash_kinds=["off_road"],
        first_crash_time=1.0, interventions=0, autonomy=1.0, driving_score=62.0, lateral_mean=0.1, lateral_rms=0.1,
        lateral_p95=0.2, heading_rms=0.1, steering_rate_rms=1.0, steering_reversals=2.0, agreement=None, latency_ms=2.5,
    )  # fmt: skip
    return replace(row, **values)


def contestants() -> list[Contestant]:
    expert = [result("expert", seed, value) for seed, value in ((1, 900.0), (2, 920.0))]
    mine = [result("mine", seed, value, agreement=0.75) for seed, value in ((1, 880.0), (2, 900.0))]
    return [
        Contestant(Evaluation(expert, summarise(expert))),
        Contestant(Evaluation(mine, summarise(mine, expert)), 12_345, 0.9, 61.2, ({"step": 1},)),
    ]


def parse(markdown: str) -> list[dict[str, str]]:
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in markdown.strip().split("\n")]
    headings, rule, *rows = lines
    assert all(set(cell) <= set("-:") for cell in rule)
    assert {len(line) for line in lines} == {len(headings)}
    return [dict(zip(headings, row, strict=True)) for row in rows]


def test_the_markdown_table_says_what_was_measured():
    expert, mine = parse(markdown_table(contestants()))
    assert list(mine) == [name for name in COLUMNS if name in mine]
    assert (expert["driver"], expert["return"], expert["min"]) == ("expert", "910 ± 14", "900")
    assert (mine["driver"], mine["return"], mine["vs baseline [95 %]"]) == ("mine", "890 ± 14", "-20 [-20, -20]")
    assert (mine["completion %"], mine["off road %"], mine["crashes/lap"]) == ("98.7", "3.4", "1.00")
    assert (mine["agreement %"], mine["held-out %"], mine["parameters"]) == ("75.0", "90.0", "12,345")
    assert (mine["ms/act"], mine["trained s"]) == ("2.50", "61")
    empty = {expert[name] for name in ("parameters", "agreement %", "vs baseline [95 %]", "held-out %", "trained s")}
    assert len(empty) == 1
    assert not any(character.isalnum() for character in empty.pop())


def test_columns_that_nobody_fills_are_left_out():
    headings, rows = cells(contestants()[:1])
    assert set(COLUMNS) - set(headings) == {
        "vs baseline [95 %]", "agreement %", "held-out %", "parameters", "trained s"
    }  # fmt: skip
    assert [len(row) for row in rows] == [len(headings)]
    assert cells(contestants())[0] == list(COLUMNS)


def test_the_terminal_shows_the_same_cells():
    table = terminal_table(contestants(), "title")
    headings, rows = cells(contestants())
    assert [column.header for column in table.columns] == headings
    assert list(zip(*(column.cells for column in table.columns), strict=True)) == [tuple(row) for row in rows]


def test_results_are_saved_as_numbers(tmp_path):
    save_results(tmp_path, contestants())
    saved = json.loads((tmp_path / "results.json").read_text())
    assert saved[1]["parameters"] == 12_345
    assert saved[0]["return_interval"] == asdict(contestants()[0].summary.return_interval)
    assert (tmp_path / "table.md").read_text() == markdown_table(contestants())
