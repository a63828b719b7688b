"""The ranking of a comparison in several worlds."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import worlds
from worlds import (
    by_mean,
    from_baseline,
    groups_of,
    leads,
    merged,
    on_further_tracks,
    places_of,
    returns_of,
    shared_luck,
    table,
    verdicts,
    with_seat,
)

SPECS = ["gap:0", "blackouts:2"]


def comparison(folder: Path, offset: float, drivers: tuple[str, ...] = ("lstm", "cnn")) -> Path:
    """Write rows of a comparison.

    Two runs of each driver on four tracks, and a trial.
    """
    folder.mkdir()
    rows = [
        {"driver": name, "run": run, "seed": track, "episode_return": 100.0 * number + offset + run}
        for number, name in enumerate(drivers)
        for run in (0, 1)
        for track in range(4)
    ]
    rows.append({"driver": "lstm", "run": None, "seed": None, "trial": "learning_rate=0.001", "epochs": 1})
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return folder


def test_the_seat_has_columns_of_its_own(tmp_path):
    above = returns_of(comparison(tmp_path / "above", 500, ("lstm", "cnn", "gru")))
    seat = returns_of(comparison(tmp_path / "seat", 300), seat=True)
    both = with_seat(above, seat)
    assert set(both) == {"lstm", "cnn"}, "gru did not drive from the seat"
    places = places_of(both["lstm"], SPECS)
    assert places == {
        "gap:0": [0, 2], "blackouts:2": [1, 3], "gap:0, seat": [~0, ~2], "blackouts:2, seat": [~1, ~3],
    }  # fmt: skip
    heading, _, first, last = table(both, SPECS, from_baseline(both, SPECS)).splitlines()
    worlds = "undisturbed | blackouts | gap:0, seat | blackouts:2, seat"
    assert heading == f"| group | driver | family | runs | {worlds} | all |"
    assert first.startswith("| 1 | cnn | no memory | 2 | 600 (+100")
    assert last == "| 2 | lstm | recurrent | 2 | 500 | 500 | 300 | 300 | 400 |"


def test_a_run_that_is_not_finished_is_left_out(tmp_path):
    folder = comparison(tmp_path / "above", 500)
    whole = returns_of(folder)
    rows = [
        {"driver": name, "run": run, "seed": track, "episode_return": 0.0}
        for name, run, tracks in (("lstm", 2, 3), ("gru", 0, 1))
        for track in range(tracks)
    ]
    with (folder / "rows.jsonl").open("a") as file:
        file.writelines(f"{json.dumps(row)}\n" for row in rows)
    assert returns_of(folder) == whole
    seat = returns_of(comparison(tmp_path / "seat", 300), seat=True)
    seat = {driver: {track: [*values, 0.0] for track, values in tracks.items()} for driver, tracks in seat.items()}
    assert {len(values) for values in with_seat(whole, seat)["cnn"].values()} == {2}, "the runs that both have"


def test_runs_that_drive_again_have_more_tracks(tmp_path):
    first = returns_of(comparison(tmp_path / "first", 500))
    again = {f"{name}-{run}": {9: [10.0 * run]} for name in first for run in (1, 0)}
    both = on_further_tracks(
        {**first, "expert": {0: [7.0]}, "gru": {0: [1.0]}}, {**again, "expert": {9: [8.0]}, "a-b": {9: [1.0]}}
    )
    assert set(both) == {"lstm", "cnn", "expert"}, "gru did not drive again"
    assert both["lstm"] == {**first["lstm"], 9: [0.0, 10.0]}
    assert both["expert"] == {0: [7.0], 9: [8.0]}
    for wrong in ({"lstm-0": {9: [0.0]}}, {**again, "cnn-2": {9: [0.0]}}):
        with pytest.raises(ValueError, match="--again must hold every run of"):
            on_further_tracks(first, wrong)


def test_every_comparison_has_a_folder_of_further_tracks(tmp_path):
    """The same names there are its own runs."""
    folders = [comparison(tmp_path / "one", 500), comparison(tmp_path / "two", 300)]
    again = []
    for offset, folder in enumerate(folders):
        rows = [
            {"driver": f"{name}-{run}", "run": None, "seed": 9, "episode_return": 10.0 * run + offset}
            for name in ("lstm", "cnn")
            for run in (0, 1)
        ]
        again.append(tmp_path / f"{folder.name}-again")
        again[-1].mkdir()
        (again[-1] / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    both = merged(folders, again)
    assert set(both) == {"lstm", "cnn", "lstm (two)", "cnn (two)"}
    assert (both["lstm"][9], both["lstm (two)"][9], both["lstm (two)"][0]) == ([0.0, 10.0], [1.0, 11.0], [300.0, 301.0])


def test_a_lead_is_the_difference_in_every_world_and_in_the_broken_ones(tmp_path):
    returns = merged([comparison(tmp_path / "one", 500, ("lstm", "cnn", "gru"))])
    specs = ["gap:0", "blackouts:2", "action-delay:4+frame-drop:3:zero", "frame-drop:3:zero+frame-rate:3"]
    heading, _, *lines = leads(returns, "gru", specs).splitlines()
    assert heading == "| gru ahead of | undisturbed | blackouts | late | irregular | broken |"
    assert [line.split(" | ")[0] for line in lines] == ["| cnn", "| lstm"]
    assert [line.count("+100") for line in lines] == [5, 0]
    assert [line.count("+200") for line in lines] == [0, 5]


def test_drivers_that_agree_on_good_seeds_share_luck():
    """Of n drivers that rank three seeds alike the p-value is exp(-n)."""
    agree = {str(n): [np.array([1.0, 5.0, 9.0]) + n, np.roll([1.0, 5.0, 9.0], n)] for n in range(3)}
    fewer = {"two runs": [np.array([1.0, 2.0])] * 2}
    assert shared_luck({**agree, **fewer}) == f"3 drivers with 3 runs: p = {math.exp(-3):.2g}, 1"
    assert shared_luck(fewer) == ""


def test_drivers_that_cannot_be_told_from_the_best_of_a_group_are_in_it():
    runs = {"first": [9.9, 10.0], "level": [9.5, 10.3], "behind": [5.0, 5.0], "last": [4.9, 5.05]}
    returns = {
        name: {track: [value + track for value in values] for track in range(4)} for name, values in runs.items()
    }
    assert by_mean(returns) == ["first", "level", "behind", "last"]
    assert groups_of(returns) == {"first": 1, "level": 1, "behind": 2, "last": 2}


def test_an_interval_of_two_runs_is_no_difference_where_the_test_sees_none():
    """Two runs that differ may both lie low by chance."""
    lstm = {track: [800.0 + track, 810.0 - track] for track in range(20)}
    cfc = {track: [790.0 + 3 * track % 7, 600.0 + 5 * track % 11] for track in range(20)}
    cnn = {track: [500.0 + track, 505.0] for track in range(20)}
    returns = {"lstm": lstm, "cfc": cfc, "cnn": cnn}
    tracks = sorted(lstm)
    cfc_verdict, cnn_verdict = verdicts(returns, [("cfc", "lstm"), ("cnn", "lstm")], tracks)
    assert cfc_verdict.difference.high < 0
    assert cfc_verdict.p_value is not None
    assert cfc_verdict.p_value > 0.05
    assert cnn_verdict.p_value is not None
    assert cnn_verdict.p_holm == 2 * cnn_verdict.p_value
    assert groups_of(returns) == {"lstm": 1, "cfc": 1, "cnn": 2}
    cells = [
        line.rpartition(" | ")[2]
        for line in table(returns, ["gap:0"], from_baseline(returns, ["gap:0"])).splitlines()[2:]
    ]
    assert [cell.endswith(" *) |") for cell in cells] == [False, False, True]


def call(monkeypatch, *words: str) -> None:
    """Run the script on a dataset under `SPECS`."""
    meta = SimpleNamespace(meta=SimpleNamespace(env=SimpleNamespace(perturb=",".join(SPECS))))
    monkeypatch.setattr(worlds.Demonstrations, "open", lambda folder: meta)
    monkeypatch.setattr("sys.argv", ["worlds.py", *words, "--dataset", "d"])
    worlds.main()


def test_the_page_keeps_its_text_around_the_table(tmp_path, monkeypatch, capsys):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- table -->\nold\n<!-- end of the table -->\nafter\n")
    folders = [comparison(tmp_path / name, offset) for name, offset in (("one", 500), ("two", 300))]
    call(monkeypatch, *map(str, folders), "--driver", "cnn", "--page", str(page))
    lines = page.read_text().splitlines()
    assert (lines[:2], lines[-2:]) == (["before", "<!-- table -->"], ["<!-- end of the table -->", "after"])
    assert "old" not in lines
    drivers = [line.split(" | ")[1] for line in lines if line.startswith("| ") and "driver" not in line]
    assert drivers == ["cnn", "lstm", "cnn (two)", "lstm (two)"]
    printed = capsys.readouterr().out
    assert "\n3 of 3 drivers differ from lstm over all tracks.\n" in printed
    assert "| cnn ahead of | undisturbed | blackouts | broken |" in printed
    with pytest.raises(SystemExit):
        call(monkeypatch, *map(str, folders), "--again", str(folders[0]))
    assert "--again must name 2 folders" in capsys.readouterr().err


def test_a_comparison_without_nac_sharp_has_its_table_and_a_driver_that_is_not_there_an_error(
    tmp_path, monkeypatch, capsys
):
    folder = str(comparison(tmp_path / "one", 500))
    call(monkeypatch, folder)
    printed = capsys.readouterr().out
    assert "mean of every run:\nlstm: gap:0 500 501, blackouts:2 500 501, all 500 501\ncnn: gap:0 600 601" in printed
    assert "median standard deviation over runs: gap:0 1, blackouts:2 1, all 1\n" in printed
    assert "ahead of" not in printed
    with pytest.raises(SystemExit):
        call(monkeypatch, folder, "--driver", "gru")
    assert "--driver must be one of lstm, cnn, got 'gru'" in capsys.readouterr().err
