"""The notebook of the docs runs, and holds its results."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/first_drive.ipynb"
SMALL = {"EPISODES, FRAMES, EPOCHS": "2, 60, 1", "CORES, RUNS, TRACKS": '["cnn"], 1, "test-2"'}
"""Values of the parameters that a test can afford."""


def results(notebook: Any) -> list[dict[str, str]]:
    """Return what the cells show: MIME type -> content. No cell prints, warns or fails."""
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert {output.output_type for output in outputs} <= {"display_data", "execute_result"}, outputs
    return [output.data for output in outputs]


def html_of(notebook: Any) -> str:
    return "".join(data.get("text/html", "") for data in results(notebook))


@pytest.mark.slow
def test_it_runs_in_an_empty_folder(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTHONWARNINGS", "ignore::UserWarning")  # an expert of 1000 frames drives 60
    notebook = nbformat.read(PAGE, as_version=4)
    (parameters,) = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    for names, values in SMALL.items():
        parameters.source, count = re.subn(rf"(?m)^{names} = .*$", f"{names} = {values}", parameters.source)
        assert count == 1
    for cell in notebook.cells:
        cell.source = cell.source.replace("workers=2", "workers=1")  # the comparison still has a process for each run
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert {"demos", "run", "comparison"} <= {path.name for path in tmp_path.iterdir()}
    html = html_of(notebook)
    bars = ("collect (expert): <progress", "train (nac-exact): <progress")
    for text in (*bars, "data:image/png", "vs baseline", "cnn"):
        assert text in html
    video = re.search(r"data:video/mp4;base64,([^\"]+)", html)
    assert video is not None
    assert base64.b64decode(video[1])[4:8] == b"ftyp"


def test_the_page_holds_a_whole_run_in_less_than_a_megabyte():
    text = PAGE.read_text()
    assert len(text) < 1e6
    assert not re.search(r"/(?:tmp|home|root|work|Users)/", text)
    notebook = nbformat.read(PAGE, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == [*range(1, len(cells) + 1)]
    html = html_of(notebook)
    assert html.count("<video") == 1
    assert "nac-exact" in html
    assert all(cell.outputs for cell in cells[1:])
