"""Files that an older version wrote: each is refused in one line that says so, and stays as it is."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nac_drive as nd
from nac_drive.data_collection.dataset.action_log import read_action_log
from nac_drive.policies import Driver, DriverConfig, load_driver, save_driver
from nac_drive.training.run_folder import RunFolder
from tests.data_collection.recordings import collect_small
from tests.nac_drive.small import config, train

SHIPPED = Path(__file__).parents[2] / "action_logs"


@pytest.fixture(scope="module")
def files(dataset, trained, tmp_path_factory) -> Path:
    """A driver, a run, a dataset and an action log of today."""
    folder = tmp_path_factory.mktemp("files")
    save_driver(folder / "driver", Driver(DriverConfig(core="cnn")), env=asdict(nd.EnvConfig()))
    shutil.copytree(trained, folder / "run")
    collect_small(folder / "dataset", env=nd.EnvConfig(max_steps=5), seeds=[5])
    shutil.copy(SHIPPED / "expert-20.npz", folder / "log.npz")
    return folder


def edit(file: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    document = json.loads(file.read_text())
    change(document)
    file.write_text(json.dumps(document))


def renamed_settings(folder: Path) -> None:
    edit(folder / "driver" / "config.json", lambda c: c["driver"].update(vision=c["driver"].pop("encoder")))


def fewer_settings(folder: Path) -> None:
    edit(folder / "driver" / "config.json", lambda c: c["driver"].pop("clockless"))


def flat_config(folder: Path) -> None:
    (folder / "run" / "config.yaml").write_text("core: cnn\nvision: paper\nepochs: 3\n")


def linked_checkpoints(folder: Path) -> None:
    record = folder / "run" / "checkpoints" / "checkpoints.json"
    for name, step in json.loads(record.read_text()).items():
        (record.parent / name).symlink_to(step)
    record.unlink()


def copied_checkpoints(folder: Path) -> None:
    """Links that became folders, as in some copies."""
    linked_checkpoints(folder)
    for name in ("last", "best"):
        path = folder / "run" / "checkpoints" / name
        step = path.resolve()
        path.unlink()
        shutil.copytree(step, path)


def renderer(folder: Path) -> None:
    edit(folder / "dataset" / "meta.json", lambda meta: meta["env"].update(renderer="fast"))


def recipe(folder: Path) -> None:
    with np.load(folder / "log.npz") as log:
        np.savez(folder / "log.npz", recipe=log["action_log"], action=log["action"], label=log["label"])


CASES: list[tuple[Callable[[Path], None], Callable[[Path, Any], Any], str]] = [
    (
        renamed_settings,
        lambda folder, _: load_driver(folder / "driver"),
        r"unknown \['vision'\], missing \['encoder'\]",
    ),
    (fewer_settings, lambda folder, _: load_driver(folder / "driver"), r"missing \['clockless'\]; train it again"),
    (flat_config, lambda folder, data: train(config("cnn"), data, folder / "run", resume=True), "start a new run"),
    (linked_checkpoints, lambda folder, _: load_driver(folder / "run"), "train it again"),
    (copied_checkpoints, lambda folder, _: load_driver(folder / "run"), "train it again"),
    (
        linked_checkpoints,
        lambda folder, data: train(config("cnn"), data, folder / "run", resume=True),
        "without a record of its checkpoints; train it again",
    ),
    (linked_checkpoints, lambda folder, _: RunFolder.open(folder / "run").rewind(), "train it again"),
    (renderer, lambda folder, _: nd.Demonstrations.open(folder / "dataset"), r"the settings \['renderer'\]"),
    (recipe, lambda folder, _: read_action_log(folder / "log.npz"), "pass a file of `nac-drive dataset action-log`"),
]


@pytest.mark.parametrize(("change", "read", "advice"), CASES, ids=lambda value: getattr(value, "__name__", None))
def test_a_file_of_an_older_version_is_refused_in_one_line_and_stays(change, read, advice, files, dataset, tmp_path):
    folder = Path(shutil.copytree(files, tmp_path / "files"))
    change(folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}
    with pytest.raises((ValueError, OSError), match=advice) as error:
        read(folder, dataset)
    assert "older version" in str(error.value)
    assert "\n" not in str(error.value)
    assert {path: path.read_bytes() for path in before} == before
    assert os.path.lexists(folder)
