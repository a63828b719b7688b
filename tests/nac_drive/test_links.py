"""Links inside of folders: no command reads or writes through one, and what it points to stays as it was."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nac_drive.data_collection.collect import collect
from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.data_collection.drivers import resolve_driver
from nac_drive.data_collection.replay import rebuild, save_action_log
from nac_drive.experiments.compare import compare
from nac_drive.experiments.demo import DemoConfig, demo
from nac_drive.experiments.evaluation import evaluate_with_baseline
from nac_drive.experiments.reproduce import reproduce
from nac_drive.experiments.stress import stress
from nac_drive.policies import CheckpointError, Driver, DriverConfig, load_driver, save_driver
from nac_drive.storage.links import require_own_files
from nac_drive.storage.lock import locked
from nac_drive.storage.read import FileError
from nac_drive.training.ppo.config import PPOConfig
from nac_drive.training.ppo.run import ppo
from tests.commands import refused
from tests.nac_drive.small import config, dagger_config, train, train_dagger
from tests.slow import slow_but

RESULTS = ("conditions.json", "rows.jsonl", "summary.json", "figure.png", "report.html", ".lock")
FILES = {
    "evaluate": RESULTS,
    "stress": (*RESULTS, "heatmap.png", "curves.png", "survival.png", "table.md", "video.mp4"),
    "compare": (
        *RESULTS, "latencies.json", "learning_curves.png", "table.md", "results.json", "cnn-0/config.yaml",
        "cnn-0/failed.txt", "cnn-0/metrics.jsonl",
        "cnn-0/checkpoints/checkpoints.json", "cnn-0/checkpoints/step_1/model.safetensors",
    ),
    "reproduce": ("conditions.json", "rows.jsonl", "thesis-6.6.md", "learning_curves.png", "runs/lstm-0/config.yaml"),
    "demo": (
        "nac-exact/config.yaml", "nac-exact/dataset/meta.json", "report.md", "lstm.mp4", "comparison/conditions.json",
    ),
}  # fmt: skip
"""Files of folders that commands go on in."""


@pytest.fixture
def folder(request, trained, dataset, tmp_path) -> Path:
    """A folder that the command `request.param` goes on in."""
    path = tmp_path / "own"
    if request.param in FILES:
        for name in FILES[request.param]:
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_text("{}\n")
        return path
    if request.param in ("train", "dagger", "ppo"):
        shutil.copytree(trained, path)
    if request.param in ("dagger", "collect", "rebuild"):
        shutil.copytree(dataset.path, path / "dataset" if request.param == "dagger" else path)
    return path


def goes_on(command: str, dataset: Demonstrations) -> Callable[[Path], object]:
    """The call by which a command goes on in a folder."""
    log = dataset.path.parent / "log.npz"
    if command == "rebuild" and not log.exists():
        save_action_log(dataset, log)
    seeds = [row["seed"] for row in dataset.rows]
    calls: dict[str, Callable[[Path], object]] = {
        "train": lambda path: train(config("cnn"), dataset, path, resume=True),
        "dagger": lambda path: train_dagger(dagger_config(), path, resume=True),
        "ppo": lambda path: ppo(PPOConfig(), path, resume=True),
        "compare": lambda path: compare(("cnn",), dataset, [5], path, config=config(), device="cpu", resume=True),
        "evaluate": lambda path: evaluate_with_baseline("controller", [5], baseline=None, folder=path, resume=True),
        "stress": lambda path: stress(["controller"], ["gap:1"], [5], folder=path, resume=True),
        "reproduce": lambda path: reproduce("thesis-6.6", path, resume=True),
        "demo": lambda path: demo(DemoConfig(), path, device="cpu", pool=None),
        "collect": lambda path: collect(
            path, "controller", env=dataset.meta.env, noise=dataset.meta.noise, seeds=seeds, resume=True
        ),
        "rebuild": lambda path: rebuild(log, path, resume=True),
    }
    return calls[command]


def state(path: Path) -> dict[str, Any]:
    """Every file, folder and link in a folder, with its content."""
    return {
        str(file.relative_to(path)): os.readlink(file) if file.is_symlink() else file.is_file() and file.read_bytes()
        for file in path.rglob("*")
    }


COMMANDS = ("train", "dagger", "ppo", "compare", "evaluate", "stress", "reproduce", "demo", "collect", "rebuild")


@pytest.mark.parametrize(
    ("folder", "command"),
    slow_but([(name, name) for name in COMMANDS[::3]], [(name, name) for name in COMMANDS]),
    indirect=["folder"],
)
def test_no_command_goes_on_through_a_link(folder, command, dataset, tmp_path):
    go_on, outside = goes_on(command, dataset), tmp_path / "outside"
    for path in sorted(folder.rglob("*")):
        path.rename(outside)
        for target in (outside, tmp_path / "nothing"):
            path.symlink_to(target)
            before = state(tmp_path)
            with pytest.raises(FileError, match=r"is a link, which .*; replace it by|is no plain file") as caught:
                go_on(folder)
            assert str(caught.value).startswith(str(path)) or path.name in str(caught.value)
            assert state(tmp_path) == before
            path.unlink()
        outside.rename(path)


def test_the_command_line_says_so_in_one_line(dataset, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in FILES["stress"]:
        (tmp_path / "own" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "own" / name).write_text("{}\n")
    (tmp_path / "own" / "heatmap.png").unlink()
    (tmp_path / "own" / "heatmap.png").symlink_to("../victim")
    message = "nac-drive: own/heatmap.png is a link, which may lead out of its folder; replace it by a copy.\n"
    for command in (("stress", "--drivers", "controller"), ("evaluate", "--driver", "controller")):
        assert refused(capsys, *command, "--out", "own", "--resume", "--workers", "1") == message
    assert not (tmp_path / "victim").exists()


# New files and folders


NEW = {
    "collect": ("collect", "--driver", "controller", "--out", "new"),
    "train": ("train", "data", "--core", "cnn", "--out", "new"),
    "dagger": ("dagger", "--core", "cnn", "--out", "new"),
    "ppo": ("ppo", "--out", "new"),
    "compare": ("compare", "data", "--drivers", "cnn", "--out", "new"),
    "evaluate": ("evaluate", "--driver", "controller", "--tracks", "5", "--out", "new"),
    "stress": ("stress", "--drivers", "controller", "--tracks", "5", "--out", "new"),
    "reproduce": ("reproduce", "thesis-6.6", "--out", "new"),
    "demo": ("demo", "--out", "new"),
    "inspect": ("inspect", "--driver", "controller", "--out", "new"),
    "video": ("watch", "--driver", "controller", "--video", "new.mp4"),
    "page": ("watch", "--driver", "controller", "--html", "new"),
    "ONNX": ("export", "--driver", "expert", "--out", "new.onnx"),
    "merge": ("dataset", "merge", "data", "--out", "new"),
    "action log": ("dataset", "action-log", "data", "--out", "new"),
    "rebuild": ("dataset", "rebuild", "log.npz", "--out", "new"),
    "mp4": ("dataset", "export", "data", "--to", "mp4", "--out", "new"),
}


@pytest.fixture(scope="module")
def work(dataset, tmp_path_factory) -> Path:
    """A folder with a dataset, and links to nothing where commands are to write."""
    path = tmp_path_factory.mktemp("work")
    shutil.copytree(dataset.path, path / "data")
    save_action_log(dataset, path / "log.npz")
    for name in ("new", "new.mp4", "new.onnx"):
        (path / name).symlink_to(path / "victim")
    return path


@pytest.mark.parametrize("command", NEW)
def test_a_link_to_nothing_is_not_replaced(command, work, monkeypatch, capsys):
    monkeypatch.chdir(work)
    before = state(work)
    line = refused(capsys, *NEW[command])
    assert "new" in line
    assert "already exists" in line or "is a link to nothing" in line
    assert "Errno" not in line
    assert state(work) == before


def test_a_folder_of_the_user_may_be_a_link(tmp_path):
    (tmp_path / "other disk").mkdir()
    (tmp_path / "own").symlink_to("other disk")
    with locked(tmp_path / "own"):
        (tmp_path / "own" / "row").touch()
    assert (tmp_path / "other disk" / "row").exists()


def test_pipes_and_links_of_any_depth_are_refused(tmp_path):
    deep = tmp_path / "a" / "checkpoints"
    deep.mkdir(parents=True)
    (deep / "step_1").mkdir()
    require_own_files(tmp_path)
    require_own_files(tmp_path / "missing")
    (deep / "last").symlink_to("../../..")
    with pytest.raises(FileError, match="checkpoints/last is a link"):
        require_own_files(tmp_path)
    (deep / "last").unlink()
    os.mkfifo(deep / "pipe")
    with pytest.raises(FileError, match="checkpoints/pipe is no plain file; remove it"):
        require_own_files(tmp_path)


# Drivers of others


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_driver_whose_file_is_a_link_is_refused(name, tmp_path):
    folder = save_driver(tmp_path / "driver", Driver(DriverConfig(core="cnn")))
    (folder / name).rename(tmp_path / "outside")
    (folder / name).symlink_to(tmp_path / "outside")
    for call in (load_driver, resolve_driver):
        with pytest.raises(CheckpointError, match=rf"driver/{name} is a link, which may lead out of its folder"):
            call(folder)
    with pytest.raises(FileError, match=rf"driver/{name} is a link"):
        save_driver(folder, Driver(DriverConfig(core="cnn")))


@pytest.mark.parametrize("name", ["checkpoints", "checkpoints/checkpoints.json", "checkpoints/step"])
def test_a_run_whose_checkpoint_is_a_link_is_refused(name, trained, tmp_path):
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    name = name.replace("step", load_step(run))
    (run / name).rename(tmp_path / "outside")
    (run / name).symlink_to(tmp_path / "outside")
    with pytest.raises(CheckpointError, match=rf"run/{name} is a link, which may lead out of its folder"):
        load_driver(run)


def load_step(run: Path) -> str:
    """The name of the best checkpoint."""
    return next(path.name for path in (run / "checkpoints").glob("step_*"))


def test_a_cache_of_the_hub_is_followed_to_its_own_files_alone(tmp_path):
    snapshot, blobs = tmp_path / "hub" / "snapshots" / "0", tmp_path / "hub" / "blobs"
    save_driver(snapshot, Driver(DriverConfig(core="cnn")))
    blobs.mkdir()
    for file in ("config.json", "model.safetensors"):
        (snapshot / file).rename(blobs / file)
        (snapshot / file).symlink_to(f"../../blobs/{file}")
    load_driver(snapshot)
    (blobs / "config.json").rename(tmp_path / "outside")
    (blobs / "config.json").symlink_to(tmp_path / "outside")
    with pytest.raises(CheckpointError, match=r"0/config\.json is a link"):
        load_driver(snapshot)
    (blobs / "config.json").unlink()
    (tmp_path / "outside").rename(blobs / "config.json")
    blobs.rename(tmp_path / "all outside")
    blobs.symlink_to(tmp_path / "all outside")
    with pytest.raises(CheckpointError, match=r"0/config\.json is a link"):
        load_driver(snapshot)


def test_a_driver_saved_over_a_link_to_a_driver_leaves_that_driver(tmp_path):
    theirs = save_driver(tmp_path / "theirs", Driver(DriverConfig(core="cnn")))
    before = state(theirs)
    (tmp_path / "mine").symlink_to("theirs")
    save_driver(tmp_path / "mine", Driver(DriverConfig(core="lstm")))
    assert state(theirs) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "theirs"]
    assert load_driver(tmp_path / "mine").config.core == "lstm"
