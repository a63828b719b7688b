"""One comparison in a terminal, in markdown and as JSON."""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from dataclasses import asdict, replace
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from nac_drive.evaluation.evaluate import Evaluation
from nac_drive.evaluation.results import EpisodeResult
from nac_drive.evaluation.statistics import summarise
from nac_drive.experiments.leaderboard import SHORT, RankedDriver, columns, leaderboard, save_results
from nac_drive.experiments.table import Table
from tests.nac_drive.evaluation.rows import row


def result(driver: str, seed: int, episode_return: float, **values: Any) -> EpisodeResult:
    measured = {"completion": 0.987, "off_road_fraction": 0.034, "crashes": 1, "driving_score": 62.0, "latency_ms": 2.5}
    return row(seed, driver=driver, episode_return=episode_return, **{**measured, **values})


def ranked() -> list[RankedDriver]:
    expert = [result("expert", seed, value) for seed, value in ((1, 900.0), (2, 920.0))]
    mine = [
        result("mine", seed, value, agreement=0.75, steering_mae=0.0625, steering_mse=0.005, crash_mode="intervene")
        for seed, value in ((1, 870.0), (2, 890.0), (1, 890.0), (2, 910.0))
    ]
    return [
        RankedDriver(Evaluation(expert, summarise(expert))),
        RankedDriver(
            Evaluation(mine, summarise(mine, expert)),
            runs=2,
            parameters=12_345,
            core_parameters=5_432,
            neurons=64,
            synapses=5_120,
            validation_accuracy=0.9,
            validation_at_changes=0.456,
            learning_rate=0.0014,
            training_seconds=61.2,
        ),
    ]


UNFILLED = {
    "vs baseline [95 %]", "agreement %", "steering error", "squared", "validation %", "changes %",
    "neurons", "synapses", "core", "parameters", "each run", "rate", "trained s", "interventions/episode",
}  # fmt: skip
"""Columns that stay empty for a driver that was not trained here and was not put back on the road."""


def parse(markdown: str) -> list[dict[str, str]]:
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in markdown.strip().split("\n")]
    headings, rule, *rows = lines
    assert all(set(cell) <= set("-:") for cell in rule)
    assert {len(line) for line in lines} == {len(headings)}
    return [dict(zip(headings, row, strict=True)) for row in rows]


def test_the_markdown_table_shows_the_results():
    expert, mine = parse(leaderboard(ranked()).markdown())
    assert list(mine) == [column.heading for column in columns()]
    assert (expert["driver"], expert["return ± sd"], expert["min"]) == ("expert", "910 ± 14", "900")
    assert (mine["driver"], mine["return ± sd"], mine["vs baseline [95 %]"]) == ("mine", "890 ± 16", "-20 [-30, -10]")
    assert (mine["completion %"], mine["off road %"], mine["crashes/episode"]) == ("98.7", "3.4", "1.00")
    assert (expert["interventions/episode"], mine["interventions/episode"]) == ("-", "0.00")
    assert (mine["agreement %"], mine["validation %"], mine["parameters"]) == ("75.0", "90.0", "12,345")
    assert (mine["steering error"], mine["squared"]) == ("0.062", "0.0050")
    assert (mine["ms/act"], mine["rate"], mine["trained s"]) == ("2.50", "0.0014", "61")
    assert (mine["changes %"], mine["core"], mine["each run"]) == ("45.6", "5,432", "880 900")
    assert (mine["neurons"], mine["synapses"]) == ("64", "5,120")
    assert (expert["solved %"], mine["solved %"]) == ("100", "25")
    empty = {expert[name] for name in UNFILLED}
    assert len(empty) == 1
    assert not any(character.isalnum() for character in empty.pop())


def test_empty_columns_are_left_out():
    table, every = leaderboard(ranked()[:1]), [column.heading for column in columns()]
    assert set(every) - set(table.headings) == UNFILLED
    assert [len(row) for row in table.rows] == [len(table.headings)]
    assert leaderboard(ranked()).headings == every


def test_the_terminal_shows_the_same_cells():
    texts = leaderboard(ranked())
    (table,) = texts.terminal("title").within(1000)
    assert [column.header for column in table.columns] == texts.headings
    assert list(zip(*(column.cells for column in table.columns), strict=True)) == [tuple(row) for row in texts.rows]
    assert texts.legend == "Return: mean ± standard deviation over episodes. Baseline: expert, on the same tracks."
    (short,) = leaderboard(ranked(), SHORT).terminal("title").within(1000)
    assert [column.header for column in short.columns] == list(SHORT)
    assert list(short.columns[1].cells) == [row[1] for row in texts.rows]


@pytest.mark.parametrize("width", [40, 60, 80, 120, 160])
@pytest.mark.parametrize("names", [1, 2])
def test_no_number_is_cut_in_a_narrow_terminal(width, names):
    texts = leaderboard(ranked())
    rows = [[*["a_driver_with_a_name_of_more_than_forty_letters"] * names, *row[1:]] for row in texts.rows]
    table = replace(texts, columns=[texts.columns[0]] * (names - 1) + [*texts.columns], rows=rows, names=names)
    stream = io.StringIO()
    Console(file=stream, width=width).print(table.terminal("title"))
    lines = stream.getvalue().splitlines()
    assert max(map(cell_len, lines)) <= width
    cells = Counter(cell.strip() for line in lines for cell in re.split("[│┃]", line))
    for cell, count in Counter(cell for line in rows for cell in line[names:] if cell != "-").items():
        assert cells[cell] >= count, cell
    assert texts.legend in " ".join(stream.getvalue().split())
    letters = "".join(cell.strip() for line in lines for cell in line.split("│")[1:2])
    assert rows[0][0] in letters, "a name is folded"


@pytest.mark.parametrize("width", [5, 200])
def test_a_table_without_rows_is_printed(width):
    for headed in ([], leaderboard(ranked()).columns):
        (*_, last) = Table(headed, []).terminal("title").within(width)
        assert last.row_count == 0


def test_results_are_saved_as_numbers(tmp_path):
    save_results(tmp_path, ranked())
    saved = json.loads((tmp_path / "results.json").read_text())
    assert saved[1]["parameters"] == 12_345
    assert [(row["neurons"], row["synapses"]) for row in saved] == [(None, None), (64, 5_120)]
    assert (saved[1]["runs"], saved[1]["run_returns"]) == (2, [880.0, 900.0])
    assert saved[0]["return_interval"] == asdict(ranked()[0].summary.return_interval)
    assert (tmp_path / "table.md").read_text().startswith(leaderboard(ranked()).markdown())
