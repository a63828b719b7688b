"""Runs that anybody may have written, and files of others in their folders: one line, and nothing is touched."""

from __future__ import annotations

import itertools
import json
import random

import pytest
import torch
from safetensors.torch import load_file, save_file

from nac_drive.policies import load_driver
from nac_drive.storage.read import FileError
from nac_drive.training.finite import DivergedError
from nac_drive.training.run_folder import RunFolder
from nac_drive.training.training_state import load_training_state, save_training_state
from tests.data_collection.recordings import contents
from tests.nac_drive.training.test_run_folder import CONFIG, checkpoints, make, read, train, write_text


@pytest.fixture
def run(tmp_path) -> RunFolder:
    return RunFolder.create(tmp_path / "run", CONFIG)


@pytest.mark.parametrize(
    "record",
    [
        {"last": "../../victim", "best": None}, {"last": "/etc", "best": None}, {"last": "step_1\n", "best": None},
        {"last": "step_1/../../victim", "best": None}, {"last": 1, "best": None}, {"last": "step_1"}, None, [],
        {"last": "step_1", "best": "step_1", "more": 1}, {"last": "step_7", "best": "step_1"},
    ],
)  # fmt: skip
def test_a_record_that_is_damaged_or_leads_outside_is_one_line(run, record, tmp_path):
    (tmp_path / "victim").mkdir()
    run.mark_best(run.checkpoint(1, write_text("one")))
    (run.path / "checkpoints" / "checkpoints.json").write_text(json.dumps(record))
    before = contents(tmp_path)
    for call in (run.rewind, lambda: run.checkpoint(2, write_text("two")), lambda: load_driver(run.path)):
        with pytest.raises((FileError, FileNotFoundError)) as caught:
            call()
        assert "\n" not in str(caught.value)
    assert contents(tmp_path) == before


def test_a_link_that_leads_outside_is_not_followed(run, tmp_path):
    run.checkpoint(1, write_text("one"))
    (run.path / "checkpoints" / "checkpoints.json").unlink()
    (tmp_path / "victim").mkdir()
    (run.path / "checkpoints" / "last").symlink_to(tmp_path / "victim")
    with pytest.raises(FileError, match="without a record of its checkpoints"):
        run.rewind()


# Files of others, and what killed processes left


def test_files_of_others_are_never_touched(run):
    theirs = ["step_4_keep", "step_4.tmp.mine", "notes.tmp", ".step_mine.tmp", "step_x.tmp", "last.tmp"]
    for name in theirs:
        (run.path / "checkpoints" / name).mkdir()
        (run.path / "checkpoints" / name / "thesis.tex").write_text("years of work")
    files = ["mine.tmp", "lap.tmp.mp4", "config.yaml.old.tmp", "metrics.jsonl.tmp"]
    for name in files:
        (run.path / name).write_text("years of work")
    run.rewind()
    for step in range(1, 7):
        run.finish_step({"step": step, "score": float(step)}, write_text(str(step)))
    run.rewind()
    assert all((run.path / "checkpoints" / name / "thesis.tex").exists() for name in theirs)
    assert all((run.path / name).exists() for name in files)


@pytest.mark.parametrize("name", ["env.json", "command.txt", "mine.tmp", "checkpoints", "step_4_keep"])
def test_a_folder_with_files_of_others_is_not_vacant(tmp_path, name):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).write_text("mine")
    with pytest.raises(FileExistsError):
        RunFolder.create(tmp_path / "run", CONFIG)
    assert contents(tmp_path) == {f"run/{name}": b"mine"}


def test_what_killed_processes_left_goes_on_resume(run):
    run.finish_step({"step": 1, "score": 1.0}, write_text("1"))
    dead = 4_194_305  # beyond the largest process number
    for name in (f"config.yaml.{dead}.tmp", f"metrics.jsonl.{dead}.tmp", f"env.json.{dead}.tmp"):
        (run.path / name).write_text("half")
    for name in ("step_2.tmp", f".step_2.tmp.{dead}.tmp", "step_2"):
        write_text("half")(run.path / "checkpoints" / name)
    (run.path / "checkpoints" / f"checkpoints.json.{dead}.tmp").write_text("half")
    (run.path / "env.json").unlink()  # killed before it was written
    run.rewind()
    assert checkpoints(run) == ["checkpoints.json", "step_1"]
    names = {"command.txt", "config.yaml", "env.json", "metrics.jsonl", "checkpoints"}
    assert {path.name for path in run.path.iterdir()} == names


# Numbers that are not finite


@pytest.mark.parametrize("name", ["score", "loss"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_row_that_is_not_finite_is_refused_and_never_becomes_the_best(run, name, value):
    run.finish_step({"step": 1, "score": 5.0}, write_text("one"))
    before = contents(run.path)
    with pytest.raises(DivergedError, match=f"has diverged: {name} of step 2 is .*; the last checkpoint is kept"):
        run.finish_step({"step": 2, "score": 6.0, "deep": {"list": [1.0]}, name: value}, write_text("two"))
    assert contents(run.path) == before
    assert (read(run, "last"), read(run, "best")) == ("one", "one")


# Files that anybody may have written

BOMB = "a: &a [x, x]\n" + "".join(
    f"{c}: &{c} [*{p}, *{p}]\n" for p, c in itertools.pairwise("abcdefghijklmnopqrstuvwxyz")
)


@pytest.mark.parametrize("text", [BOMB, "[" * 100_000, "{a: " * 50_000, "\x00", "1: 2\n", "null\n", "? [1]\n: 2\n"])
def test_a_hostile_config_is_one_line(run, text):
    (run.path / "config.yaml").write_text(text)
    with pytest.raises(FileError, match=r"config\.yaml") as caught:
        run.require_config(CONFIG)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", ["[3]", "null", "three", "{x: 1}", "{1: 2}"])
def test_a_number_that_became_something_else_is_a_difference(run, value):
    text = (run.path / "config.yaml").read_text()
    (run.path / "config.yaml").write_text(text.replace("epochs: 3", f"epochs: {value}"))
    with pytest.raises(ValueError, match="cannot resume") as caught:
        run.require_config(CONFIG, grown=["epochs"])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "line",
    ["null", "[]", "{}", '{"step": null}', '{"step": -1}', '{"step": 1.5}', '{"step": "1"}', "{", "[" * 100_000, "\x00",
     '{"step": 1, "seconds": "2"}', '{"step": 1, "seconds": -1}', '{"step": 1, "returns": []}',
     '{"step": 1, "returns": 3}', '{"step": 1, "returns": ["9"]}', '{"step": 1, "return_mean": []}',
     '{"step": 1, "loss": {}}',
     '{"step": 1, "score": null}', '{"step": 1, "score": NaN}', '{"step": 1, "score": 1e999}'],
)  # fmt: skip
def test_a_damaged_row_is_one_line(run, line):
    run.log({"step": 0, "score": 1.0})
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write(line + "\n")
    for call in (run.rows, run.rewind):
        with pytest.raises(FileError, match=r"metrics\.jsonl, line 2 is not a row of metrics") as caught:
            call()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("step", [0, 1, 2])
def test_a_step_counts_once(run, step):
    for number in (1, 2):
        run.log({"step": number, "score": 1.0})
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": step, "score": 9.0}) + "\n")
    for call in (run.rows, run.rewind):
        with pytest.raises(
            FileError, match=rf"metrics\.jsonl, line 3 holds step {step} after step 2; restore the file"
        ):
            call()


def test_a_run_that_lost_its_rows_is_not_resumed(run):
    run.finish_step({"step": 1, "score": 5.0}, write_text("one"))
    (run.path / "metrics.jsonl").write_text("")
    with pytest.raises(FileError, match=r"metrics\.jsonl has lost the row of step 1"):
        run.rewind()


def test_flipped_bits_are_one_line_or_harmless(run):
    for step in (1, 2):
        run.finish_step({"step": step, "score": 5.0 * step}, write_text("text"))
    rng, messages = random.Random(0), []
    for name in ("config.yaml", "metrics.jsonl", "checkpoints/checkpoints.json"):
        whole = (run.path / name).read_bytes()
        for bit in rng.sample(range(8 * len(whole)), 100):
            flipped = bytearray(whole)
            flipped[bit // 8] ^= 1 << bit % 8
            (run.path / name).write_bytes(flipped)
            try:
                run.require_config(CONFIG)
                run.rows()
                assert run.checkpoint_folder("last")
                assert run.checkpoint_folder("best")
            except ValueError as error:
                messages.append(str(error))
        (run.path / name).write_bytes(whole)
    assert len(messages) > 100
    assert not any("\n" in message for message in messages)


# The state of the optimizer

SPOILED = {
    "another shape": lambda tensors: {**tensors, "0.exp_avg": torch.zeros(2, 4)},
    "another dtype": lambda tensors: {**tensors, "0.exp_avg": torch.zeros(2, 3, dtype=torch.float64)},
    "another parameter": lambda tensors: {**tensors, "7.exp_avg": torch.zeros(2, 3)},
    "no parameter": lambda tensors: {**tensors, "x": torch.zeros(2, 3)},
    "a moment is missing": lambda tensors: {k: v for k, v in tensors.items() if k != "1.exp_avg_sq"},
    "NaN": lambda tensors: {**tensors, "0.exp_avg": torch.full((2, 3), torch.nan)},
    "a negative square": lambda tensors: {**tensors, "0.exp_avg_sq": torch.full((2, 3), -1.0)},
    "no step": lambda tensors: {**tensors, "0.step": torch.tensor(0.0)},
}


@pytest.mark.parametrize("name", SPOILED)
def test_moments_that_do_not_belong_to_the_weights_are_refused(tmp_path, name):
    model, optimizer = make()
    train(model, optimizer, range(2))
    save_training_state(tmp_path / "state", optimizer, {"step": 2})
    file = tmp_path / "state" / "optimizer.safetensors"
    save_file(SPOILED[name](load_file(file)), file)
    _, fresh = make()
    with pytest.raises(FileError, match=r"optimizer\.safetensors") as caught:
        load_training_state(tmp_path / "state", fresh)
    assert "\n" not in str(caught.value)
    assert not fresh.state_dict()["state"]


@pytest.mark.parametrize(
    "text", ["", "null", "[]", "{}", '{"step": -1}', '{"step": 1, "averaged": "x"}', "[" * 100_000]
)
def test_a_damaged_state_is_one_line(tmp_path, text):
    _, optimizer = make()
    save_training_state(tmp_path / "state", optimizer, {"step": 2})
    (tmp_path / "state" / "state.json").write_text(text)
    with pytest.raises(FileError, match=r"state\.json is not the state of a training") as caught:
        load_training_state(tmp_path / "state", optimizer)
    assert "\n" not in str(caught.value)
