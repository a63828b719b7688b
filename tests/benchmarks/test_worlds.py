"""The ranking of a comparison in several worlds."""

from __future__ import annotations

import json
from pathlib import Path

from worlds import places_of, returns_of, table, with_seat

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
    heading, _, first, last = table(both, SPECS).splitlines()
    assert heading == "| driver | runs | gap:0 | blackouts:2 | gap:0, seat | blackouts:2, seat | all |"
    assert first.startswith("| cnn | 2 | 600 (+100")
    assert last == "| lstm | 2 | 500 | 500 | 300 | 300 | 400 |"
