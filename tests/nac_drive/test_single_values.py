"""One value has no spread: no table, page, line or figure shows a deviation or an interval of it."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from rich.console import Console

from nac_drive.evaluation.evaluate import Evaluation
from nac_drive.evaluation.statistics import summarise
from nac_drive.experiments.cloning import Cloning
from nac_drive.experiments.cost import Cost
from nac_drive.experiments.evaluation import save_summaries
from nac_drive.experiments.evaluation_page import save_evaluation_page
from nac_drive.experiments.families import families
from nac_drive.experiments.figures import draw_leaderboard
from nac_drive.experiments.leaderboard import RankedDriver, leaderboard, save_results
from nac_drive.experiments.learning import Learning
from nac_drive.experiments.paper import PaperTask
from nac_drive.experiments.paper_page import save_page as save_reproduction
from nac_drive.experiments.protocol import PaperEntry as Line
from nac_drive.experiments.protocol import Protocol
from nac_drive.experiments.stress import StressResult, stress_cells
from nac_drive.experiments.stress_page import save_stress_page, stress_table, terminal_stress
from tests.nac_drive.evaluation.rows import row

SPREAD = re.compile(r"± [0-9]|[0-9] \[[-+]?[0-9]|\bnan\b")
"""A deviation or an interval of a number."""


def evaluations(tracks: int) -> list[Evaluation]:
    expert = [row(seed, driver="expert", episode_return=900.0 + seed) for seed in range(tracks)]
    mine = [row(seed, driver="mine", episode_return=923.0 - 2 * seed) for seed in range(tracks)]
    return [Evaluation(expert, summarise(expert)), Evaluation(mine, summarise(mine, expert))]


def stressed(tracks: int, undisturbed: float = 900.0) -> StressResult:
    """Two drivers under one perturbation; the second one scores `undisturbed` without it."""
    rows = {
        (name, spec): [
            row(seed, driver=name, perturbation=spec, episode_return=value + 7 * seed, first_crash_time=1.0)
            for seed in range(tracks)
        ]
        for name, clean in (("one", 900.0), ("two", undisturbed))
        for spec, value in ((None, clean), ("gap:3", clean / 2))
    }
    return StressResult(["one", "two"], families(["gap:3"]), rows, stress_cells(rows))


def printed(table: Any) -> str:
    text = io.StringIO()
    Console(file=text, width=200).print(table)
    return text.getvalue()


def reproduced(folder: Path, experiment: Any, tracks: int) -> str:
    """The page of an experiment with one run of each of two lines."""
    episodes = {
        spec: {"return": [800.0 + 9 * i for i in range(tracks)], "interventions": [0.0] * tracks}
        for spec in ("", "gap:3")
    }
    rows = [
        {
            "entry": entry, "run": 0, "curve": [[1000, [700.0 + scale * i for i in range(tracks)]]], "last": 700.0,
            "best": 700.0, "first": None, "parameters": 7, "episodes": episodes, "return_": 800.0,
            "return_gap:3": 800.0, "lost_gap:3": 0.0,
        }
        for entry, scale in (("A", 1), ("B", 3))
    ]  # fmt: skip
    table = Protocol("T", "S", "learning", "d", [Line("A", "cnn"), Line("B", "lstm")])
    return save_reproduction(folder / "page.md", table, experiment, rows, "command").read_text()


def shown(tracks: int, folder: Path) -> dict[str, str]:
    """Name of an output -> its text, for drivers of so many episodes."""
    measured = evaluations(tracks)
    entries = [RankedDriver(evaluation, runs=1) for evaluation in measured]
    save_results(folder, entries)
    save_summaries(folder, measured)
    stress = stressed(tracks)
    return {
        "terminal": printed(leaderboard(entries).terminal("title")),
        "table.md": (folder / "table.md").read_text(),
        "report.html": save_evaluation_page(folder, measured, list(range(tracks)), "mine").read_text(),
        "stress": stress_table(stress).markdown(),
        "stress.html": save_stress_page(folder, stress, list(range(tracks))).read_text(),
        "learning": reproduced(folder, Learning(runs=1), tracks),
        "driving": reproduced(folder, Cloning(["gap:3"], runs=1), tracks),
    }


def test_only_outputs_of_several_episodes_show_a_spread(tmp_path: Path):
    several = shown(3, tmp_path)
    assert [name for name, text in several.items() if not SPREAD.search(text)] == []
    one = shown(1, tmp_path)
    assert {name: SPREAD.findall(text) for name, text in one.items()} == {name: [] for name in one}
    assert "| 923 |" in one["table.md"]
    assert "| +23 |" in one["table.md"]
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert [driver["return_sd"] for driver in summary] == [None, None]
    assert not SPREAD.search(printed(terminal_stress(stressed(1))))


@pytest.mark.parametrize("tracks", [1, 3])
def test_only_bars_of_several_episodes_are_drawn(tracks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    drawn: list[bool] = []
    real: Callable[..., Any] = Axes.errorbar

    def errorbar(self: Axes, x: Any, y: Any, yerr: Any = None, xerr: Any = None, **style: Any) -> Any:
        drawn.append(yerr is not None or xerr is not None)
        return real(self, x, y, yerr=yerr, xerr=xerr, **style)

    monkeypatch.setattr(Axes, "errorbar", errorbar)
    save_evaluation_page(tmp_path, evaluations(tracks), list(range(tracks)), "mine")
    draw_leaderboard(tmp_path / "leaderboard.png", [RankedDriver(each) for each in evaluations(tracks)])
    assert drawn == [tracks > 1] * 4


def test_one_pass_has_no_deviation(monkeypatch: pytest.MonkeyPatch):
    from nac_drive.experiments import cost

    monkeypatch.setattr(cost, "_peak", lambda *arguments, **keywords: None)  # the system does not say
    measured = cost._measure(
        Cost(lengths=[4], d_model=4, passes=1), PaperTask("x", "gru", {}, (("length", 4), ("device", "cpu")))
    )
    assert (measured["seconds_sd"], measured["megabytes"]) == (None, None)


@pytest.mark.parametrize("undisturbed", [-42.0, 0.5, -900.0])
def test_what_a_driver_keeps_of_nothing_is_not_shown(
    undisturbed: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A return of -42 that falls to -85 is no 200 %, and a mean near 0 divides nothing."""
    result = stressed(3, undisturbed - 7.0)  # returns of undisturbed - 7, undisturbed, undisturbed + 7
    colors: list[np.ndarray] = []
    real: Callable[..., Any] = Axes.imshow
    monkeypatch.setattr(
        Axes, "imshow", lambda self, data, **k: (colors.append(np.asarray(data)), real(self, data, **k))[1]
    )
    save_stress_page(tmp_path, result, [0, 1, 2])
    lines = (tmp_path / "table.md").read_text().splitlines()
    kept = [[cell.strip() for cell in line.split("|")[5:7]] for line in lines if "| two |" in line]
    assert [cells[0] for cells in kept] == ["-", "-"]
    assert "area %" in lines[0]
    assert "| - (" in printed(terminal_stress(result)).replace("│", "|").replace("  ", " ")
    assert np.isnan(colors[0][1]).all()
    assert np.isfinite(colors[0][0]).all()
    assert json.loads(json.dumps(result.to_dict(), allow_nan=False))["areas"]["two"] == {"gap:3": None}
