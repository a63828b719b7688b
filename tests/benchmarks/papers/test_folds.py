"""Lines of a table, compared fold by fold."""

from __future__ import annotations

import json
import re

import folds
import pytest
from folds import table, values_of

from tests.documented import ROOT


def test_a_line_is_compared_with_the_baseline_on_the_same_folds():
    hard = {0: 0.01, 1: 0.01, 2: 0.5}
    more = {fold: value + 0.02 for fold, value in hard.items()}
    less = {fold: value - 0.01 * fold for fold, value in hard.items()}
    *_, first, last = table({"base": hard, "more": more, "less": less}, "base").splitlines()
    assert re.fullmatch(r"\| less \| -1\.000 \[-2\.000, 0\.000\] \| 0 of 3 \|", first)
    assert last == "| more | +2.000 [+2.000, +2.000] | 3 of 3 |", "a hard fold does not widen the interval of a pair"


@pytest.mark.parametrize("split", ["frames", "tracks"])
def test_the_page_of_table_1_has_its_tables(split):
    rows = ROOT / "docs/runs/nac-table1-five-folds.jsonl"
    values = values_of(rows, "accuracy", split)
    assert table(values, "LSTM") in (ROOT / "docs/papers/nac-table1-five-folds.md").read_text()
    assert all(set(of_line) == set(range(5)) for of_line in values.values())


def test_the_page_has_the_table_of_its_rows(monkeypatch, capsys):
    rows = ROOT / "docs/runs/thesis-6.1-ten-folds.jsonl"
    page = (ROOT / "docs/papers/thesis-6.1-ten-folds.md").read_text()
    assert table(values_of(rows, "squared_error"), "LSTM (64 units)") in page
    assert {json.loads(line)["fold"] for line in rows.read_text().splitlines()} == set(range(10))
    monkeypatch.setattr("sys.argv", ["folds.py", str(rows), "squared_error", "--baseline", "lstm"])
    with pytest.raises(SystemExit):
        folds.main()
    assert "--baseline must be one of Vanilla RNN, " in capsys.readouterr().err
