"""The folder of a run: never overwritten, whole after a crash, and resumed bit for bit."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from nac_drive.storage.read import FileError
from nac_drive.storage.write import WriteError
from nac_drive.training import machine, run_folder
from nac_drive.training.machine import describe_machine
from nac_drive.training.run_folder import RunFolder
from nac_drive.training.training_state import load_training_state, save_training_state
from tests.data_collection.recordings import contents
from tests.hostile_names import NAMES, hidden, words_of
from tests.killing import Fuse, Killed

CONFIG = {
    "driver": {"core": "lstm", "core_args": {"top_k": 4}}, "epochs": 3, "perturb": None, "dataset": "demos",
    "device": None,
}  # fmt: skip


@pytest.fixture
def run(tmp_path) -> RunFolder:
    return RunFolder.create(tmp_path / "run", CONFIG)


def write_text(text: str):
    def write(folder: Path) -> None:
        (folder / "deep").mkdir(parents=True)
        (folder / "deep" / "weights").write_text(text)

    return write


def checkpoints(run: RunFolder) -> list[str]:
    return sorted(path.name for path in (run.path / "checkpoints").iterdir())


def read(run: RunFolder, name: str) -> str:
    folder = run.checkpoint_folder(name)
    assert folder is not None
    return (folder / "deep" / "weights").read_text()


def test_it_holds_config_command_and_versions(run):
    assert RunFolder.open(run.path).config == CONFIG
    assert (run.path / "config.yaml").read_text().startswith("format: 4\n")
    assert (run.path / "command.txt").read_text().strip()
    machine = json.loads((run.path / "env.json").read_text())
    assert machine["versions"].keys() >= {"torch", "numpy", "gymnasium"}
    assert machine["cpu_count"] >= 1


def test_a_run_begins_where_git_is_missing(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert describe_machine()["git_commit"] is None


def test_the_commit_is_that_of_nac_drive(tmp_path, monkeypatch):
    """An installation recorded the commit of a repository around it."""
    commit = describe_machine()["git_commit"]
    assert commit is None or re.fullmatch("[0-9a-f]{40}", commit)  # a source distribution has none
    elsewhere = tmp_path / "venv" / "site-packages" / "nac_drive" / "training" / "machine.py"
    elsewhere.parent.mkdir(parents=True)
    monkeypatch.setattr(machine, "__file__", str(elsewhere))
    if shutil.which("git"):
        for words in (
            ["init", "-q"],
            ["-c", "user.name=a", "-c", "user.email=b", "commit", "-qm", "c", "--allow-empty"],
        ):
            subprocess.run(["git", *words], cwd=tmp_path, check=True)
    assert describe_machine()["git_commit"] is None


def test_creating_never_overwrites(run, tmp_path):
    before = contents(run.path)
    with pytest.raises(FileExistsError, match="already exists; choose another folder, or continue with --resume"):
        RunFolder.create(run.path, {})
    assert contents(run.path) == before
    (tmp_path / "file").write_text("mine")
    with pytest.raises(FileExistsError):
        RunFolder.create(tmp_path / "file", {})
    assert (tmp_path / "file").read_text() == "mine"
    with pytest.raises(WriteError, match="cannot write"):
        RunFolder.create(tmp_path / "file" / "run", {})
    (tmp_path / "empty").mkdir()
    assert RunFolder.create(tmp_path / "empty", CONFIG).config == CONFIG


def test_a_creation_killed_halfway_can_be_repeated(tmp_path, monkeypatch):
    def killed(path, content):
        (path.parent / "config.yaml.1.tmp").write_bytes(content[:3])
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(run_folder, "write_atomically", killed)
        with pytest.raises(Killed):
            RunFolder.create(tmp_path / "run", CONFIG)
    assert RunFolder.create(tmp_path / "run", CONFIG).config == CONFIG


def test_a_folder_that_is_no_run_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nothing is not a run folder: config.yaml is missing"):
        RunFolder.open(tmp_path / "nothing")


def test_another_config_is_refused_with_the_keys_that_differ(run):
    run.require_config(dict(CONFIG))
    run.require_config({**CONFIG, "driver": {"core": "lstm", "core_args": {"top_k": 4}}})
    with pytest.raises(ValueError, match="cannot resume") as caught:
        run.require_config({**CONFIG, "epochs": 4, "driver": {"core": "lstm", "core_args": {"top_k": 5}}, "extra": 1})
    message = str(caught.value)
    assert "epochs: run has 3, got 4" in message
    assert "driver.core_args.top_k: run has 4, got 5" in message
    assert "extra: run has None, got 1" in message
    assert "driver.core:" not in message
    assert "\n" not in message
    assert run.config == CONFIG


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_the_command_is_kept_as_it_can_be_pasted(tmp_path, monkeypatch):
    words = ["nac-drive", "train", "data", "--out", *NAMES]
    monkeypatch.setattr("sys.argv", words)
    command = (RunFolder.create(tmp_path / "new", CONFIG).path / "command.txt").read_text()
    assert hidden(command) == set()
    assert words_of(command) == words


def test_a_folder_that_is_no_run_is_refused_before_it_is_searched(tmp_path, monkeypatch):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis").symlink_to(tmp_path)
    monkeypatch.setattr(run_folder, "require_own_files", lambda path: pytest.fail("it may hold millions of files"))
    with pytest.raises(FileExistsError, match="already exists"):
        RunFolder.require(tmp_path / "home", resume=False)
    with pytest.raises(FileNotFoundError, match="is not a run folder"):
        RunFolder.require(tmp_path / "home", resume=True)


def test_some_keys_may_move_and_others_grow(run):
    later = {**CONFIG, "epochs": 5, "dataset": "elsewhere"}
    run.require_config(later, moved=["dataset"], grown=["epochs"])
    assert run.config == CONFIG
    run.keep_config(later)
    assert run.config == later
    assert (run.path / "config.yaml").read_text().startswith("format: 4\n")
    with pytest.raises(ValueError, match="dataset: run has 'elsewhere', got 'demos'"):
        run.require_config({**later, "dataset": "demos"}, grown=["epochs"])
    with pytest.raises(ValueError, match=r"epochs: run has 5, got 4, but it may only grow\); keep it"):
        run.require_config({**later, "epochs": 4}, grown=["epochs"])
    assert run.config == later


@pytest.mark.parametrize("text", ["core: [", "- a list\n", ""])
def test_a_damaged_config_is_named(run, text):
    (run.path / "config.yaml").write_text(text)
    with pytest.raises(ValueError, match=r"config.yaml is not a run's config: .*; start a new run\."):
        run.require_config(CONFIG)


# Rows


def test_rows_survive_a_line_cut_off_anywhere(run):
    assert run.rows() == []
    rows = [{"step": step, "loss": 0.1 * step, "validation": {"accuracy": 0.5}} for step in (1, 2, 3)]
    for row in rows:
        run.log(row)
    path = run.path / "metrics.jsonl"
    whole = path.read_bytes()
    last = whole[:-1].rfind(b"\n") + 1
    for cut in range(last, len(whole) - 1):
        path.write_bytes(whole[:cut])
        assert run.rows() == rows[:2], cut
    path.write_bytes(whole)
    assert run.rows() == rows


def test_a_resumed_run_forgets_rows_after_its_checkpoint_and_a_cut_off_line(run):
    for step in (1, 2, 3):
        run.log({"step": step})
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "lo')
    run.drop_rows_after(2)
    run.log({"step": 3, "again": True})
    assert run.rows() == [{"step": 1}, {"step": 2}, {"step": 3, "again": True}]


# Checkpoints


def test_last_and_best_point_to_their_checkpoints_and_the_others_go(run):
    assert run.checkpoint_folder("last") is run.checkpoint_folder("best") is None
    first = run.checkpoint(1, write_text("one"))
    run.mark_best(first)
    for step, text in ((2, "two"), (3, "three")):
        run.checkpoint(step, write_text(text))
    assert (read(run, "last"), read(run, "best")) == ("three", "one")
    assert checkpoints(run) == ["checkpoints.json", "step_1", "step_3"]
    run.mark_best(run.checkpoint(4, write_text("four")))
    run.checkpoint(5, write_text("five"))
    assert checkpoints(run) == ["checkpoints.json", "step_4", "step_5"]
    assert (read(run, "last"), read(run, "best")) == ("five", "four")


def test_the_step_that_last_points_to_is_not_written_again(run):
    run.mark_best(run.checkpoint(1, write_text("one")))
    folder = run.checkpoint(1, write_text("other"))
    assert read(run, "last") == read(run, "best") == (folder / "deep" / "weights").read_text() == "one"


def test_a_run_can_be_moved(run, tmp_path):
    run.mark_best(run.checkpoint(1, write_text("one")))
    run.path.rename(tmp_path / "elsewhere")
    assert read(RunFolder(tmp_path / "elsewhere"), "best") == "one"


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt(), RuntimeError("bug")])
def test_a_write_that_raises_leaves_last_and_best_as_they_were(run, error):
    run.mark_best(run.checkpoint(1, write_text("one")))
    run.checkpoint(2, write_text("two"))

    def half(folder: Path) -> None:
        write_text("half")(folder)
        raise error

    with pytest.raises(WriteError if isinstance(error, OSError) else type(error)):
        run.checkpoint(3, half)
    assert (read(run, "last"), read(run, "best")) == ("two", "one")
    run.checkpoint(3, write_text("three"))
    assert read(run, "last") == "three"
    assert checkpoints(run) == ["checkpoints.json", "step_1", "step_3"]


def test_killed_at_any_moment_of_a_checkpoint_last_and_best_are_whole(run, monkeypatch):
    run.mark_best(run.checkpoint(1, write_text("one")))
    run.checkpoint(2, write_text("two"))
    fuse = Fuse()
    moment = 0
    while True:
        fuse.left = moment
        with monkeypatch.context() as patch:
            for name in ("replace", "fsync", "unlink", "rmdir"):
                patch.setattr(run_folder.os, name, fuse.deadly(getattr(run_folder.os, name)))
            try:
                run.mark_best(run.checkpoint(3, write_text("three")))
                break
            except Killed:
                pass
        assert read(run, "last") in ("two", "three"), moment
        assert read(run, "best") in ("one", "three"), moment
        moment += 1
    assert (read(run, "last"), read(run, "best")) == ("three", "three")
    assert moment > 5


# Steps


def test_a_step_is_logged_saved_and_marked_if_it_is_the_best(run):
    for step, score in ((1, 5.0), (2, 7.0), (3, 6.0)):
        run.finish_step({"step": step, "score": score}, write_text(str(step)))
    assert [row["step"] for row in run.rows()] == [1, 2, 3]
    assert (read(run, "last"), read(run, "best")) == ("3", "2")


def test_rewinding_drops_rows_without_a_checkpoint_and_marks_the_best(run):
    run.log({"step": 1, "score": 5.0})
    assert run.rewind() is None
    assert run.rows() == []
    run.finish_step({"step": 1, "score": 5.0}, write_text("one"))
    run.log({"step": 2, "score": 6.0})
    run.checkpoint(2, write_text("two"))  # killed before its mark
    run.log({"step": 3, "score": 7.0})  # killed before its checkpoint
    assert run.rewind() == run.checkpoint_folder("last")
    assert [row["step"] for row in run.rows()] == [1, 2]
    assert (read(run, "last"), read(run, "best")) == ("two", "two")


def test_no_links_are_on_the_disk_and_a_copy_without_links_is_the_same_run(run, tmp_path):
    run.mark_best(run.checkpoint(1, write_text("one")))
    run.checkpoint(2, write_text("two"))
    assert not any(path.is_symlink() for path in run.path.rglob("*"))
    assert json.loads((run.path / "checkpoints" / "checkpoints.json").read_text()) == {
        "last": "step_2",
        "best": "step_1",
    }
    shutil.make_archive(str(tmp_path / "run"), "zip", run.path)
    shutil.unpack_archive(tmp_path / "run.zip", tmp_path / "elsewhere")
    copy = RunFolder.open(tmp_path / "elsewhere")
    assert (read(copy, "last"), read(copy, "best")) == ("two", "one")


def test_a_run_without_its_record_of_checkpoints_is_refused_and_stays(run):
    for step in (1, 2):
        run.finish_step({"step": step, "score": 1.0 * step}, write_text(str(step)))
    (run.path / "checkpoints" / "checkpoints.json").unlink()
    before = contents(run.path)
    with pytest.raises(FileError, match=r"checkpoints\.json is missing or has lost the last checkpoint of this run"):
        run.rewind()
    assert contents(run.path) == before


# The state of the optimizer


def train(model: torch.nn.Linear, optimizer: torch.optim.Optimizer, steps: range) -> list[torch.Tensor]:
    weights = []
    for step in steps:
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()
        weights.append(model.weight.detach().clone())
    return weights


def make() -> tuple[torch.nn.Linear, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    return model, torch.optim.Adam(model.parameters(), 0.01)


def test_adam_goes_on_bit_for_bit(tmp_path):
    straight = train(*make(), range(8))
    model, optimizer = make()
    train(model, optimizer, range(4))
    save_training_state(tmp_path / "state", optimizer, {"step": 4, "note": "half"})
    other, fresh = make()
    other.load_state_dict(model.state_dict())
    assert load_training_state(tmp_path / "state", fresh) == {"step": 4, "note": "half"}
    assert all(torch.equal(a, b) for a, b in zip(train(other, fresh, range(4, 8)), straight[4:], strict=True))


def test_without_its_moments_adam_would_not_go_on_the_same():
    straight = train(*make(), range(8))
    model, optimizer = make()
    train(model, optimizer, range(4))
    forgetful = torch.optim.Adam(model.parameters(), 0.01)
    assert not torch.equal(train(model, forgetful, range(4, 8))[-1], straight[-1])


def test_an_optimizer_that_has_not_stepped_can_be_saved(tmp_path):
    _, optimizer = make()
    save_training_state(tmp_path / "state", optimizer, {"step": 0})
    model, fresh = make()
    assert load_training_state(tmp_path / "state", fresh) == {"step": 0}
    assert torch.equal(train(model, fresh, range(1))[0], train(*make(), range(1))[0])
