"""Training on the device of Python."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.nac_drive.training.device_runs import TRAININGS
from tests.python_device import supported

pytestmark = pytest.mark.skipif(not supported(), reason="torch has another private interface")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Results of `device_runs`."""
    folder = tmp_path_factory.mktemp("device")
    subprocess.run([sys.executable, "-m", "tests.nac_drive.training.device_runs", str(folder)], check=True)
    return json.loads((folder / "results.json").read_text())


@pytest.mark.parametrize("name", [*TRAININGS, "resumed", "dagger"])
def test_a_training_has_the_numbers_of_the_cpu(name: str, results: dict[str, Any]) -> None:
    assert results["trainings"][name]["device"] == results["trainings"][name]["cpu"]


def test_loops_over_time_were_recorded_in_dagger(results: dict[str, Any]) -> None:
    assert results["trainings"]["dagger"]["repeated"] > 0


def test_an_update_sends_the_flipped_rows_and_waits_twice(results: dict[str, Any]) -> None:
    """The rows that are flipped go up. The check of dt comes down, and the loss with the accuracy."""
    updates = results["trainings"]["flipped"]["transfers"]
    assert max(update["up"] for update in updates) <= 1
    assert max(update["down"] for update in updates) == 2
    for update in results["trainings"]["augmented"]["transfers"]:  # images change on the CPU where there is no CUDA
        assert update["up"] + update["down"] <= 11


def test_saliency_has_the_numbers_of_the_cpu(results: dict[str, Any]) -> None:
    assert results["analyses"] == {"visual_backprop": 0.0, "input_gradient": 0.0, "grad_cam": 0.0}
