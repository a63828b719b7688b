"""Trackers get the rows; their failures cost a warning."""

from __future__ import annotations

import json
import struct
import sys
import threading
import warnings
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from nac_drive.envs import EnvConfig
from nac_drive.training import tracking
from nac_drive.training.plan import TrainingPlan, open_run
from nac_drive.training.run_folder import RunFolder
from nac_drive.training.tracking import TrackedRun, numbers
from tests.nac_drive.small import config, nested, score_of_weights, train

ROWS: list[dict[str, Any]] = [
    {"step": 1, "loss": 1.5, "validation": {"accuracy": 0.5, "steering_mse": None}, "returns": [1.0, 2.0]},
    {"step": 2, "loss": 1.0, "validation": None, "score": -3.0},
    {"step": 3, "loss": 0.5, "score": 4.0},
]
NUMBERS = {
    1: {"loss": 1.5, "validation/accuracy": 0.5},
    2: {"loss": 1.0, "score": -3.0},
    3: {"loss": 0.5, "score": 4.0},
}


def log_rows(folder: Path, rows: list[dict[str, Any]], *track: str, resume: bool = False) -> None:
    """A run that has these rows, each with a checkpoint."""
    plan = TrainingPlan.resolve(nested(config("cnn"), track=track), EnvConfig(), device="cpu")
    with open_run(folder, plan, resume=resume) as run:
        for row in rows:
            run.finish_step(row, lambda path: path.mkdir())


def scalars(folder: Path) -> dict[int, dict[str, float]]:
    """Step -> numbers, as TensorBoard's own reader has them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"), purge_orphaned_data=True).Reload()
    steps: dict[int, dict[str, float]] = {}
    for name in events.Tags()["scalars"]:
        for event in events.Scalars(name):
            steps.setdefault(event.step, {})[name] = event.value
    return steps


def offline_records(file: Path) -> Iterator[Any]:
    """The records of a run that W&B has not uploaded: a log of LevelDB, as `wandb sync` reads it."""
    from wandb.proto import wandb_internal_pb2

    messages: Any = wandb_internal_pb2

    content, place, parts = file.read_bytes(), 7, []
    while place + 7 <= len(content):
        left = -place % 2**15 or 2**15
        if left < 7:  # no header fits into the rest of a block
            place += left
            continue
        _, length, kind = struct.unpack("<IHB", content[place : place + 7])
        parts.append(content[place + 7 : place + 7 + length])
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield messages.Record.FromString(b"".join(parts))
            parts = []


def test_numbers_are_those_of_the_row():
    assert {row["step"]: numbers(row) for row in ROWS} == NUMBERS


def test_tensorboard_reads_the_rows_back_and_forgets_those_that_the_run_lost(tmp_path):
    run = tmp_path / "run"
    log_rows(run, ROWS[:2], "tensorboard")
    assert scalars(run) == {step: NUMBERS[step] for step in (1, 2)}
    with (run / "metrics.jsonl").open("a") as file:  # a row without its checkpoint, as of a killed process
        file.write(json.dumps({"step": 3, "loss": 99.0}) + "\n")
    with tracking.tracked(["tensorboard"], TrackedRun(run, {}, 2)) as log:
        log({"step": 3, "loss": 99.0})
    log_rows(run, ROWS[2:], "tensorboard", resume=True)
    assert scalars(run) == NUMBERS
    assert RunFolder.open(run).rows() == ROWS


@pytest.mark.slow
def test_weights_and_biases_keeps_the_rows_offline(tmp_path, monkeypatch):
    import wandb

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path / "offline"))
    (tmp_path / "offline").mkdir()
    run = tmp_path / "my run"
    monkeypatch.setattr(tracking, "_PATIENCE", 300)  # its process starts slowly on a busy machine
    monkeypatch.setenv("WANDB_X_SERVICE_WAIT", "300")
    wandb.teardown()  # the package reads its variables once in a process
    log_rows(run, ROWS, "wandb")
    wandb.teardown()  # its process closes the file after the run has finished; the end of the process waits for that
    history: dict[int, dict[str, float]] = {}
    starts: list[Any] = []
    for path in sorted((tmp_path / "offline").rglob("*.wandb")):
        for record in offline_records(path):
            if record.HasField("run"):
                starts.append(record.run)
            if record.HasField("history"):
                items = {
                    "/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item
                }
                row = {name: value for name, value in items.items() if not name.startswith("_")}
                history.setdefault(int(items["_step"]), {}).update(row)
    assert history == NUMBERS
    assert {(start.project, start.display_name) for start in starts} == {("nac-drive", "my run")}
    assert {start.run_id for start in starts} == {TrackedRun(run, {}, None).identity}
    (seed,) = [item for item in starts[0].config.update if item.key == "seed"]
    assert json.loads(seed.value_json) == 0


def test_trackio_is_called_in_its_order(tmp_path, monkeypatch):
    """The package is a stand-in with the calls of trackio 0.2 and later."""
    calls: list[Any] = []

    class Run:
        def log(self, metrics: dict[str, float], step: int | None = None) -> None:
            calls.append(("log", step, metrics))

        def finish(self) -> None:
            calls.append("finish")

    def init(project: str, name: str | None = None, config: dict[str, Any] | None = None, resume: str = "never") -> Run:
        assert config is not None
        calls.append(("init", project, name, config["epochs"], resume))
        return Run()

    trackio = ModuleType("trackio")
    trackio.__spec__, trackio.init = ModuleSpec("trackio", None), init  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "trackio", trackio)
    run = tmp_path / "run"
    log_rows(run, ROWS[:2], "trackio")
    name = f"run-{TrackedRun(run, {}, None).identity}"
    start = ("init", "nac-drive", name, 3, "allow")
    assert calls == [start, *(("log", step, NUMBERS[step]) for step in (1, 2)), "finish"]
    calls.clear()
    log_rows(run, ROWS[2:], "trackio", resume=True)
    assert calls == [start, ("log", 3, NUMBERS[3]), "finish"]


@pytest.mark.parametrize("broken", ["__init__", "log", "close", "hangs"])
def test_a_tracker_that_fails_costs_one_warning_and_nothing_of_the_training(broken, dataset, tmp_path, monkeypatch):
    monkeypatch.setattr("nac_drive.training.trainer.closed_loop", score_of_weights)
    monkeypatch.setattr(tracking, "_PATIENCE", 0.2 if broken == "hangs" else 600.0)
    seen: list[int] = []
    released = threading.Event()

    class Broken:
        def __init__(self, run: TrackedRun):
            self._fail("__init__")

        def log(self, metrics: dict[str, float], step: int) -> None:
            seen.append(step)
            self._fail("log")
            if broken == "hangs":
                released.wait(600)

        def close(self) -> None:
            self._fail("close")

        def _fail(self, name: str) -> None:
            if broken == name:
                raise OSError("the network\nis down.")

    monkeypatch.setitem(tracking.TRACKERS, "wandb", Broken)
    message = "it did not finish within 0.2 s" if broken == "hangs" else "the network is down"
    torch.manual_seed(0)
    train(config("cnn", epochs=2), dataset, tmp_path / "alone")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(config("cnn", epochs=2, track=("wandb",)), dataset, tmp_path / "tracked")
    released.set()
    texts = [str(warning.message) for warning in caught if "track" in str(warning.message)]
    assert texts == [f"track: wandb failed: {message}; metrics.jsonl has every row."]
    assert seen == {"__init__": [], "log": [1], "close": [1, 2], "hangs": [1]}[broken]
    weights = [
        run / "checkpoints" / "step_2" / "model.safetensors" for run in (tmp_path / "alone", tmp_path / "tracked")
    ]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_who_is_not_logged_in_is_told_so_and_not_asked(tmp_path, monkeypatch):
    import wandb

    monkeypatch.delenv("WANDB_MODE", raising=False)
    asked: list[bool] = []
    monkeypatch.setattr(wandb, "login", lambda *, prompt: asked.append(prompt) or False)
    with pytest.warns(UserWarning, match="wandb failed: nobody is logged in; run `wandb login`, or set WANDB_MODE"):
        log_rows(tmp_path / "run", ROWS[:1], "wandb")
    assert asked == [False]
