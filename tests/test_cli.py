"""The command line: bad input gives exit status 2 and one line with cause and fix; what existed stays as it was."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from nac_drive.cli import datasets, driving
from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.envs import EnvConfig
from nac_drive.policies import Driver, DriverConfig, save_driver
from nac_drive.storage import write as files
from nac_drive.storage.lock import LOCK
from tests.bad_commands import BAD, BASE, DAGGER, SHORT, TRAIN
from tests.commands import call, refused
from tests.data_collection.recordings import collect_small, contents
from tests.nac_drive.small import FRAMES, checkpoint, config, demonstrations, short_zoom, train


@pytest.fixture(scope="module", autouse=True)
def _short_zoom():
    with short_zoom():
        yield


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A folder with datasets and drivers of both controls, a run, damaged copies of them, and foreign files."""
    path = tmp_path_factory.mktemp("made")
    data = demonstrations(path / "data")
    demonstrations(path / "continuous_data", "continuous", tracks=1)
    train(config("cnn", epochs=1), data, path / "run")
    for control in ("discrete", "continuous"):
        driver = Driver(DriverConfig(core="cnn", encoder="pooled", control=control))
        save_driver(path / f"{control}_driver", driver, env={"control": control, "mask_bar": False, "max_steps": 20})
    shutil.copytree(path / "data", path / "truncated_data")
    for file in (path / "truncated_data" / "episodes").iterdir():
        file.write_bytes(file.read_bytes()[:3000])
    shutil.copytree(path / "discrete_driver", path / "truncated_driver")
    weights = path / "truncated_driver" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:3000])
    (path / "foreign").mkdir()
    (path / "foreign" / "chapter.tex").write_text("all my work")
    (path / "foreign_config").mkdir()
    (path / "foreign_config" / "config.json").write_text('{"model": "llama"}')
    (path / "foreign_config" / "model.safetensors").write_text("")
    (path / "file").write_text("mine")
    (path / "film.mp4").write_text("mine")
    return path


@pytest.fixture
def here(made, tmp_path, monkeypatch) -> Path:
    """A copy of `made`, as the working directory."""
    shutil.copytree(made, tmp_path / "work", symlinks=True)
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    return tmp_path / "work"


@pytest.fixture(scope="module")
def untouched(made, tmp_path_factory) -> Path:
    """A copy of `made` for commands that touch nothing."""
    return shutil.copytree(made, tmp_path_factory.mktemp("untouched") / "work", symlinks=True)


def changes(folder: Path) -> dict[Path, tuple[int, ...]]:
    """Path -> inode, size and the time of the last change, which the system sets; of a folder, that it is there."""
    found = {path: path.lstat() for path in folder.rglob("*") if path.name != LOCK}
    return {
        path: () if path.is_dir() else (status.st_ino, status.st_size, status.st_ctime_ns)
        for path, status in found.items()
    }


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_in_one_line_and_nothing_is_touched(name, untouched, capsys, monkeypatch):
    monkeypatch.chdir(untouched)
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    arguments, message = BAD[name]
    before = changes(untouched)
    line = refused(capsys, *arguments)
    for part in message:
        assert part in line
    assert changes(untouched) == before


@pytest.mark.parametrize("arguments", [
    TRAIN, ("ppo", "--out", "new"), ("reproduce", "nac-table5", "--out", "new"),
    ("evaluate", "--out", "new"), ("evaluate", "--dataset", "data", "--out", "new"), ("stress", "--out", "new"),
    ("inspect", "--out", "new"), ("watch", "--video", "new"),
], ids=lambda arguments: arguments[0])  # fmt: skip
def test_without_a_gpu_cuda_is_refused(arguments, untouched, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.chdir(untouched)
    before = changes(untouched)
    line = refused(capsys, *arguments, "--device", "cuda")
    assert line == "nac-drive: device is cuda, but torch sees no GPU here; pass --device cpu or auto.\n"
    assert changes(untouched) == before


def test_malformed_options_exit_with_2_too(here, capsys):
    before = contents(here)
    for arguments in (
        ("train",),
        ("drive",),
        ("train", "data", "--out", "new", "--sequence-length", "many"),
        (*TRAIN, "--fast"),
    ):
        assert call(*arguments) == 2, arguments
        assert "Traceback" not in capsys.readouterr().err
    assert contents(here) == before


@pytest.mark.parametrize(
    ("code", "fix"), [(errno.ENOSPC, "free some space"), (errno.EROFS, "make the folder writable or choose another")]
)
def test_a_disk_that_fails_is_reported_in_one_line(here, capsys, monkeypatch, code, fix):
    def fails(*arguments: Any) -> None:
        raise OSError(code, os.strerror(code))

    before = contents(here)
    monkeypatch.setattr(files.os, "replace", fails)
    for arguments in (TRAIN, ("collect", "--out", "new", "--driver", "controller", "--episodes", "1", *BASE)):
        line = refused(capsys, *arguments)
        assert "cannot write new" in line
        assert fix in line
        shutil.rmtree(here / "new", ignore_errors=True)
    assert contents(here) == before


def test_a_disk_that_fills_while_training_leaves_a_run_to_resume(here, capsys, monkeypatch):
    calls, real = 0, os.replace

    def full(*arguments: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 5:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "replace", full)
        line = refused(capsys, *TRAIN, "--epochs", "2")
    assert "No space left on device; free some space" in line
    row = {"score": 1.0, "returns": [1.0], "return_mean": 1.0}
    monkeypatch.setattr("nac_drive.training.trainer.closed_loop", lambda *_: row)
    assert call(*TRAIN, "--epochs", "2", "--resume") == 0
    assert (checkpoint(here / "new", "best") / "model.safetensors").exists()


@pytest.fixture
def small_files():
    """The system refuses to write files beyond 100 kB, as a full disk would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_weights_that_do_not_fit_on_the_disk_are_reported_in_one_line(here, capsys, small_files):
    line = refused(capsys, *TRAIN)
    assert "cannot write new/checkpoints/step_1: File too large; " in line
    assert not list((here / "new" / "checkpoints").glob("step_*"))


@pytest.mark.parametrize("name", ["config.yaml", "training_state/optimizer.safetensors"])
def test_a_damaged_run_is_reported_in_one_line(here, capsys, name):
    file = here / "run" / name if name == "config.yaml" else checkpoint(here / "run", "last") / name
    file.write_bytes(b"[" + file.read_bytes()[:50])
    before = contents(here)
    settings = (
        "--learning-rate", "1e-3", "--batch-size", "2", "--set", "optim.ema_decay=0", "data.horizontal_flip=false",
        "driver.dropout=0.2", "validation_fraction=0.34", "--encoder", "pooled", "--validate-every", "1",
    )  # fmt: skip
    line = refused(
        capsys, "train", "data", "--out", "run", "--core", "cnn", "--no-residual", "--resume", *SHORT, *settings
    )
    assert Path(name).name in line
    assert contents(here) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes anywhere")
def test_a_read_only_folder_is_reported_in_one_line(here, capsys):
    (here / "locked").mkdir(mode=0o555)
    line = refused(capsys, "train", "data", "--out", "locked/new", "--core", "cnn", *SHORT)
    assert "Permission denied; make the folder writable" in line


def test_a_full_disk_is_seen_before_a_recording(here, capsys, monkeypatch):
    usage = shutil.disk_usage(here)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    line = refused(capsys, "collect", "--out", "new", "--driver", "controller", *BASE)
    assert "MB are needed" in line
    assert "free some space" in line
    assert not (here / "new").exists()


def test_an_interruption_is_reported_in_one_line(capsys, monkeypatch):
    def interrupt(self: Any, console: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(datasets.Dataset, "run", interrupt)
    assert call("dataset", "info", "x") == 130
    assert capsys.readouterr().err.count("\n") == 1


def test_a_traceback_is_shown_on_request(here, monkeypatch):
    monkeypatch.setenv("NAC_DRIVE_TRACEBACK", "1")
    with pytest.raises(ValueError, match="no dataset at typo"):
        call("dataset", "info", "typo")


# Happy paths


def test_a_dataset_is_described_and_verified(here, capsys):
    assert call("dataset", "info", "data") == 0
    message = capsys.readouterr().out
    assert "episodes  3" in message
    assert call("dataset", "info", "data", "--json") == 0
    assert json.loads(capsys.readouterr().out)["episodes"] == 3
    assert call("dataset", "verify", "data", "--replay", *BASE) == 0
    assert "3 episodes, all sound, replayed frame by frame" in capsys.readouterr().out


def test_a_dataset_goes_through_an_action_log(here, capsys):
    assert call("dataset", "action-log", "data", "--out", "episodes.npz", *BASE) == 0
    assert "episodes.npz: 3 episodes in " in capsys.readouterr().out
    assert call("dataset", "rebuild", "episodes.npz", "--out", "new", *BASE) == 0
    assert "episodes  3" in capsys.readouterr().out
    assert contents(here / "new") == contents(here / "data")
    assert call("dataset", "rebuild", "episodes.npz", "--out", "new", "--resume", *BASE) == 0


def test_datasets_are_merged_in_their_order(here, capsys):
    collect_small(here / "more", seeds=[7], env=EnvConfig(max_steps=FRAMES))
    assert call("dataset", "merge", "more", "data", "--out", "new") == 0
    assert "episodes  4" in capsys.readouterr().out
    assert Demonstrations.open(here / "new").seeds == [7, 0, 1, 2]
    assert call("dataset", "verify", "new", *BASE) == 0


def test_train_resume_evaluate_watch_and_inspect(here, capsys):
    assert call(*TRAIN) == 0
    assert "best checkpoint: new/checkpoints/step_1" in capsys.readouterr().out.replace(str(here) + "/", "")
    before = contents(here / "new")
    assert call(*TRAIN, "--resume") == 0
    assert contents(here / "new") == before
    arguments = ("evaluate", "--driver", "new", "--tracks", "900000,5", "--baseline", "discrete_driver", *BASE)
    assert call(*arguments, "--out", "scores") == 0
    rows = [json.loads(line) for line in (here / "scores" / "rows.jsonl").read_text().splitlines()]
    assert [(row["driver"], row["seed"]) for row in rows] == [
        ("discrete_driver", 900_000), ("discrete_driver", 5), ("new", 900_000), ("new", 5)
    ]  # fmt: skip
    assert rows[2]["agreement"] is not None
    assert "discrete_driver on average [" in capsys.readouterr().out, "the verdict"
    assert call("watch", "--driver", "new", "--track", "5", "--video", "episode.mp4") == 0
    assert f"{FRAMES} frames" in capsys.readouterr().out
    assert (here / "episode.mp4").stat().st_size > 1000
    assert call("inspect", "--compare", "new", "discrete_driver", "--track", "5", "--out", "seen") == 0
    assert "page: seen/episode.html" in capsys.readouterr().out
    assert {path.name for path in (here / "seen").iterdir()} == {"episode.html", "new.npz", "discrete_driver.npz"}


@pytest.mark.slow
def test_dagger(here, capsys):
    short = ("--set", "max_steps=55", "--sequence-length", "1", "--rounds", "1")
    short += ("--initial-episodes", "1", "--episodes", "1")
    arguments = (*DAGGER, *short, "--expert", "controller", "--validation-tracks", "800000", "--set", "first_track=7")
    assert call(*arguments) == 0
    message = capsys.readouterr().out.replace(str(here) + "/", "")
    assert "round 1: 110 frames, loss " in message
    assert "best checkpoint: new/checkpoints/step_" in message
    assert call("dataset", "verify", "new/dataset", "--replay", *BASE) == 0
    before = contents(here / "new")
    assert call(*arguments, "--resume") == 0
    assert contents(here / "new") == before


def test_collect(here, capsys, monkeypatch):
    monkeypatch.setattr(driving, "EnvConfig", lambda *values, **named: EnvConfig(*values, **named, max_steps=15))
    arguments = ("collect", "--out", "new", "--driver", "controller", "--noise", "0.2", *BASE)
    assert call(*arguments, "--episodes", "2", "--first-track", "7") == 0
    assert "action noise  20" in capsys.readouterr().out
    dataset = Demonstrations.open(here / "new")
    assert dataset.seeds == [7, 8]
    assert dataset.meta.noise is not None
    assert call(*arguments, "--episodes", "3", "--first-track", "7", "--resume") == 0
    assert Demonstrations.open(here / "new").seeds == [7, 8, 9]
