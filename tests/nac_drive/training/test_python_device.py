"""Commands on the device of Python."""

from __future__ import annotations

import json
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from nac_drive.experiments.driving import Driving
from tests.nac_drive.training.device_runs import ACTIONS, RUNS, main
from tests.python_device import supported
from tests.slow import slow_but

pytestmark = pytest.mark.skipif(not supported(), reason="torch has another private interface")


@pytest.fixture(scope="module", params=slow_but([], ["small runs"]))
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Results of `device_runs`."""
    folder: Path = tmp_path_factory.mktemp("device")
    process = get_context("spawn").Process(target=main, args=(folder,))
    process.start()
    process.join()
    assert process.exitcode == 0
    return json.loads((folder / "results.json").read_text())


@pytest.mark.parametrize("name", RUNS)
def test_a_run_has_the_numbers_of_the_cpu(name: str, results: dict[str, Any]) -> None:
    run = results["runs"][name]
    assert run["cpu"]
    assert run["device"] == run["cpu"]


def test_an_update_sends_the_flipped_rows_and_waits_twice(results: dict[str, Any]) -> None:
    """The rows that are flipped go up. The check of dt comes down, and the loss with the accuracy."""
    assert {tuple(count) for count in results["transfers"]["train"]} == {(0, 2), (1, 2)}
    for up, down in results["transfers"]["augmented"]:  # images change on the CPU where there is no CUDA
        assert up + down <= 10


def test_an_update_of_ppo_sends_the_places_of_its_actions_and_waits_for_nothing(results: dict[str, Any]) -> None:
    """Frames and states of a rollout stay on the device. Values and metrics are read once for all updates."""
    transfers = results["transfers"]
    assert {tuple(count) for count in transfers["ppo_step"]} == {(1, 0)}
    steps = len(transfers["ppo_step"]) // len(transfers["ppo_update"])
    assert {tuple(count) for count in transfers["ppo_update"]} == {(8 + steps, 2)}


def test_an_action_of_a_rollout_sends_frames_and_times_and_waits_once(results: dict[str, Any]) -> None:
    """The end of an episode sends the rows to reset."""
    for up, down in results["transfers"]["ppo_rollout"]:
        assert 0 <= up - 2 * ACTIONS <= 1
        assert down == ACTIONS


def test_a_decision_sends_frames_and_times_and_waits_once(results: dict[str, Any]) -> None:
    """One car and a batch alike. Before its first batch a driver compares it with single rows."""
    first, *others = results["transfers"]["decisions"]
    assert first[1] > 2
    assert {tuple(count) for count in [*others, *results["transfers"]["decision"]]} == {(2, 1)}


def test_a_recorded_decision_reads_all_neurons_at_once(results: dict[str, Any]) -> None:
    assert {tuple(count) for count in results["transfers"]["recorded"]} == {(2, 2)}


def test_the_conditions_of_an_evaluation_name_a_gpu() -> None:
    """A folder never mixes episodes of two devices."""
    assert "device" not in Driving((), ()).conditions()
    assert Driving((), (), device="cuda").conditions()["device"] == "cuda"
