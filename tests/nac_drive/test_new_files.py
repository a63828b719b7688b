"""No command replaces a file that came while it worked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import nac_drive as nd
from nac_drive.data_collection.replay import save_action_log
from nac_drive.policies import Driver, DriverConfig, export, save_driver

ENV = nd.EnvConfig("discrete", max_steps=3)

Come = Callable[..., None]
"""Another process writes the file. It takes any arguments."""


def _export(path: Path, come: Come, monkeypatch: pytest.MonkeyPatch, **_: Any) -> None:
    monkeypatch.setattr(export, "_onnx", lambda step: come() or b"ours")
    export.export_step(Driver(DriverConfig("cnn")), path)


def _action_log(path: Path, come: Come, dataset: nd.Demonstrations, **_: Any) -> None:
    save_action_log(dataset, path, progress=come)


def _mp4(path: Path, come: Come, dataset: nd.Demonstrations, **_: Any) -> None:
    nd.export_dataset(dataset, path.parent, "mp4", progress=come)


def _watch(path: Path, come: Come, driver: Path, **_: Any) -> None:
    nd.watch(driver, html=path, on_step=come)


def _inspect(path: Path, come: Come, driver: Path, **_: Any) -> None:
    nd.inspect(driver, folder=path.parent, on_step=come)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("driver") / "cnn"
    return save_driver(path, Driver(DriverConfig("cnn")), env=asdict(ENV))


@pytest.mark.parametrize(
    ("write", "name"),
    [
        (_export, "step.onnx"),
        (_action_log, "log.npz"),
        (_mp4, "any"),
        (_watch, "page.html"),
        (_inspect, "cnn.npz"),
        (_inspect, "episode.html"),
    ],
)
def test_a_file_that_came_meanwhile_is_kept(write, name, dataset, driver, tmp_path, monkeypatch):
    path = tmp_path / "out" / name

    def come(*_: object) -> None:
        path.parent.mkdir(exist_ok=True)
        path.write_text("theirs")

    with pytest.raises(FileExistsError, match="already exists; choose another"):
        write(path, come, dataset=dataset, driver=driver, monkeypatch=monkeypatch)
    assert path.read_text() == "theirs"
    assert [file.name for file in tmp_path.iterdir()] == ["out"]
    assert [file.name for file in path.parent.iterdir()] == [name]
