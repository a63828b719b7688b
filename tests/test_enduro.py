"""The example of docs/enduro.md, where ale-py is installed."""

from __future__ import annotations

from pathlib import Path

import pytest

import nac_drive as nd
from nac_drive import plugins
from tests.documented import ROOT, lines
from tests.own_parts import forgotten


def test_no_extra_brings_ale_py_and_nothing_imports_it():
    project = (ROOT / "pyproject.toml").read_text()
    assert [line for line in project.splitlines() if "ale-py" in line or "enduro" in line] == [
        'enduro = ["ale-py>=0.12"]  # GPL-2.0: part of no other extra'
    ]
    assert not [path for path in (ROOT / "nac_drive").rglob("*.py") if "ale_py" in path.read_text()]


def test_a_driver_passes_cars_at_every_hour(tmp_path: Path):
    pytest.importorskip("ale_py")
    (block, *_) = [line.text for line in lines((ROOT / "docs" / "enduro.md").read_text()) if line.kind == "file"]
    (tmp_path / "enduro.py").write_text(block)
    with forgotten():
        plugins.load_plugin(tmp_path / "enduro.py")
        for hour in ("day", "night"):
            env = nd.EnvConfig(environment=f"enduro-{hour}", max_steps=300)
            (row,) = nd.evaluate("enduro.Middle", [0], env=env).rows
            assert row.episode_return > 0
            assert row.metrics["completion"] == pytest.approx(row.episode_return / 200, abs=0.05)
            assert row.metrics["off_road_events"] is None
            assert row.metrics["crashes"] is None
