"""Type checkers know what users write: mypy --strict and pyright."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "tests/typed/user_script.py"
MISTAKES = """from pathlib import Path

import nac_drive as nd

evaluation = nd.evaluate("champion", "test-2", crash="explode")
text: str = evaluation.summary.return_mean
print(evaluation.rows[0].crahses)
nd.TrainConfig(epoch=3)
nd.compare(["lstm"], Path("demos"), 5, Path("out"))
"""
"""A mode that is none, a number as a text, a metric and a setting that are none, and a number of tracks."""
LINES = [5, 6, 7, 8, 9]


def checked(command: list[str], folder: Path, place: str) -> tuple[list[int], str]:
    """Return the reported lines of the mistakes, and the report."""
    (folder / "mistakes.py").write_text(MISTAKES)
    (folder / "user_script.py").write_text(SCRIPT.read_text())
    command = [sys.executable, "-m", *command, "user_script.py", "mistakes.py"]
    environment = {**os.environ, "MYPYPATH": str(ROOT)}
    report = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True).stdout
    assert "user_script.py:" not in report, report
    return sorted({int(line) for line in re.findall(place, report, re.MULTILINE)}), report


@pytest.mark.slow
def test_mypy_knows_the_types_of_a_user(tmp_path: Path):
    """Mypy reads the package alone, ten times as fast. pyright reads what it stands on, too."""
    settings = ("strict = True", "follow_imports = silent", "ignore_missing_imports = True")
    (tmp_path / "mypy.ini").write_text("\n".join(("[mypy]", *settings)))
    lines, report = checked(["mypy", "--no-site-packages"], tmp_path, r"^mistakes\.py:(\d+): error")
    assert lines == LINES, report


@pytest.mark.slow
def test_pyright_knows_the_types_of_a_user(tmp_path: Path):
    (tmp_path / "pyrightconfig.json").write_text(
        json.dumps({"extraPaths": [str(ROOT)], "typeCheckingMode": "standard"})
    )
    command = ["pyright", "--pythonpath", sys.executable]
    lines, report = checked(command, tmp_path, r"mistakes\.py:(\d+):\d+ - error")
    assert lines == LINES, report
