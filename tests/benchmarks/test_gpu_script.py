"""The command for a GPU, rehearsed on the CPU."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from benchmarks.speed.gpu import (
    BEGIN,
    DETAILS,
    END,
    MINUTES,
    PAGE,
    PARTS,
    TIMED_OUT,
    UNMEASURED,
    Part,
    details,
    fill,
    measured,
    overview,
)
from tests.readers_shell import run_script

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "speed" / "gpu.py"
RESULT = {"command": "python x.py", "status": 0, "seconds": 3.0}
PAIRWISE = [
    "A card, torch 2",
    "",
    "| T | model | parameters | forward ms |",
    "|--:|:--|--:|--:|",
    "| 1024 | nac-pw | 33,456 | 0.15 |",
    "one streaming step: 1 ms",
]


def written(page: str) -> str:
    """Return the part of a page that the command writes."""
    return page[page.index(BEGIN) : page.index(END)]


def pages(results: dict[str, Any]) -> tuple[str, str]:
    """Return both pages as the command writes them."""
    texts = []
    for path, lines in ((PAGE, overview), (DETAILS, details)):
        page = path.read_text()
        text = fill(page, lines(results))
        assert fill(text, lines(results)) == text
        assert text[: text.index(BEGIN)] == page[: page.index(BEGIN)]
        assert text[text.index(END) :] == page[page.index(END) :]
        require_well_formed(text)
        texts.append(written(text))
    return texts[0], texts[1]


def require_well_formed(text: str) -> None:
    """Check tables and blocks.

    Every row has as many cells, a table has an empty line around it, every block is closed.
    """
    blocks = re.split(r"^```(?:text)?$", text, flags=re.MULTILINE)
    assert len(blocks) % 2 == 1
    for block in blocks[::2]:
        assert "====" not in block
        for is_table, group in groupby(block.splitlines(), key=lambda line: line.startswith("|")):
            lines = list(group)
            if is_table:
                assert re.fullmatch(r"\|(:?-+:?\|)+", lines[1])
                assert len({line.count("|") for line in lines}) == 1
            elif lines[0].strip() and lines != block.splitlines()[: len(lines)]:
                raise AssertionError(f"text follows a table: {lines[0]}")


def row_of(part: str, page: str) -> str:
    """Return a part's row in the table of all parts."""
    goal = next(each.goal for each in PARTS if each.name == part)
    return next(line for line in page.splitlines() if line.startswith(f"| {goal} |"))


@pytest.mark.slow
def test_a_part_is_rehearsed_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, page = tmp_path / "gpu.json", PAGE.read_text()
    words = [str(SCRIPT), "--out", str(out), "--rehearse", "--device", "cpu", "--parts", "window"]
    first = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True).stdout
    assert first.startswith("window: status 0")
    results = json.loads(out.read_text())
    assert any("`mha`" in line for line in results["parts"]["window"]["output"])
    assert run_script(words) == 0
    assert capsys.readouterr().out == ""  # it is there already
    assert run_script([*words[:-1], "cores", "--minutes", "0.1"]) == 0
    assert capsys.readouterr().out == "cores: left out, the 0.1 minutes are over; run the command again\n"
    assert PAGE.read_text() == page
    table, output = pages(results)
    assert "a rehearsal on the CPU" in table
    assert "| measured |" in row_of("window", table)
    assert table.count(UNMEASURED) == output.count(UNMEASURED.capitalize()) == len(PARTS) - 1
    out.write_text(json.dumps({**results, "machine": "a card"}))
    assert run_script(words) == 2
    assert f"out: {out} has results of another machine (a card)" in " ".join(capsys.readouterr().err.split())


def test_the_page_has_results_failures_and_what_was_not_measured() -> None:
    training = "A card, torch 2, nac-exact: 9 frames/s, 0.8 s an epoch, 81 s for 100 epochs (measured)"
    parts = {
        "pairwise": {**RESULT, "output": PAIRWISE},
        "training": {**RESULT, "output": [training]},
        "kernels": {**RESULT, "status": 1, "output": ["..F", "===== FAILURES =====", "1 failed, 21 passed in 3.1s"]},
        "window": {**RESULT, "status": TIMED_OUT, "output": ["| core | ms |", "|:--|--:|", "| `mha` | 1 |"]},
        "cores": {**RESULT, "status": TIMED_OUT, "output": []},
        "compile": {**RESULT, "status": 1, "output": ["Traceback"]},
    }
    table, output = pages({"machine": "a card", "parts": parts})
    assert row_of("pairwise", table).endswith("| 0.2 ms forward at T = 1024 | 0.15 | 3.0 |")
    assert row_of("training", table).endswith("| 90 s | 81 s | 3.0 |")
    assert row_of("kernels", table).endswith("| 1 failed, 21 passed; it failed (status 1) | 3.0 |")
    assert row_of("window", table).endswith("| measured; it took too long | 3.0 |")
    assert row_of("cores", table).endswith(f"| {UNMEASURED}; it took too long | 3.0 |")
    assert row_of("compile", table).endswith(f"| {UNMEASURED}; it failed (status 1) | 3.0 |")
    assert row_of("ppo", table).endswith(f"| {UNMEASURED} |  |")
    assert "\n\n| core | ms |\n|:--|--:|\n| `mha` | 1 |\n\n" in output
    assert "```text\none streaming step: 1 ms\n```" in output
    assert "Traceback" not in output
    assert "=====" not in output
    assert output.count("Not measured") == len(PARTS) - len(parts) + 2  # and `cores`, `compile`


def test_the_pages_as_they_are_name_every_part() -> None:
    for path in (PAGE, DETAILS):
        require_well_formed(path.read_text())
        assert all(part.goal.lower() in written(path.read_text()).lower() for part in PARTS)


def test_every_part_has_a_budget_and_together_they_fit() -> None:
    assert sum(part.seconds for part in PARTS) <= 60 * MINUTES
    assert len({part.name for part in PARTS}) == len({part.goal for part in PARTS}) == len(PARTS)


def test_a_part_that_takes_too_long_ends_with_its_processes_and_keeps_its_lines() -> None:
    sleep = (
        "import subprocess, sys\nprint('| 1 |')\nsubprocess.run([sys.executable, '-c', 'import time; time.sleep(99)'])"
    )
    part = Part("slow", "a slow part", ("-c", sleep), (), (), 1, on_device=False)
    started = time.monotonic()
    result: dict[str, Any] = measured(part, "cpu", True, 60.0)
    assert time.monotonic() - started < 60
    assert (result["status"], result["output"]) == (TIMED_OUT, ["| 1 |"])


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_the_files_of_a_part_are_there(part: Part) -> None:
    words = [*part.command, *part.full, *part.tiny]
    assert all((SCRIPT.parents[2] / word).exists() for word in words if "/" in word)
