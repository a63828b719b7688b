"""The command for a GPU, rehearsed on the CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.speed.gpu import BEGIN, END, PAGE, fill

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "speed" / "gpu.py"


def test_a_part_is_rehearsed_and_kept(tmp_path: Path) -> None:
    out, page = tmp_path / "gpu.json", PAGE.read_text()
    command = [sys.executable, str(SCRIPT), "--out", str(out), "--rehearse", "--device", "cpu", "--parts", "window"]
    first = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert first.startswith("window: status 0")
    results = json.loads(out.read_text())
    assert any("`mha`" in line for line in results["parts"]["window"]["output"])
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == ""  # it is there already
    assert PAGE.read_text() == page


def test_the_page_is_filled_between_its_marks() -> None:
    table = ["| core | ms |", "|:--|--:|", "| `mha` | 1 |"]
    result = {"command": "python x.py", "status": 0, "output": table, "seconds": 3.0}
    parts = {"window": result, "training": {**result, "status": 1}}
    page = fill(PAGE.read_text(), {"machine": "a card", "parts": parts})
    filled = page[page.index(BEGIN) : page.index(END)]
    assert "| `mha` | 1 |" in filled
    assert "It failed (status 1)" in filled
    assert fill(page, {"machine": "a card", "parts": parts}) == page
    assert page[: page.index(BEGIN)] == PAGE.read_text()[: page.index(BEGIN)]
