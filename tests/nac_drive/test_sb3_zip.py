"""The weights in a .zip of stable-baselines3 drive.

Its pickles are never read.
"""

from __future__ import annotations

import base64
import io
import json
import os
import pickle
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from stable_baselines3 import PPO

from nac_drive.data_collection.drivers import driver_hash, resolve_driver
from nac_drive.envs import EnvConfig
from nac_drive.evaluation.evaluate import evaluate
from nac_drive.storage.read import FileError
from tests.commands import refused
from tests.own_drivers import trained, worlds

ENV = EnvConfig(max_steps=30)


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    """A saved PPO; read only."""
    path = tmp_path_factory.mktemp("saved") / "ppo.zip"
    trained("ppo", ENV).save(path)
    return path


@pytest.mark.parametrize(("algorithm", "control", "frames", "settings"), [
    ("ppo", "continuous", 2, {"net_arch": [8]}), ("a2c", "discrete", 1, {}), ("dqn", "discrete", 3, {"net_arch": [4]}),
])  # fmt: skip
def test_the_weights_alone_drive_as_the_model(algorithm, control, frames, settings, tmp_path, monkeypatch):
    env = EnvConfig(control, max_steps=30)
    model = trained(algorithm, env, frames, **settings)
    model.save(tmp_path / "model.zip")
    monkeypatch.setattr(pickle, "loads", lambda *_: pytest.fail("unpickled"))
    driver = resolve_driver(tmp_path / "model.zip", env)
    monkeypatch.undo()
    ours, theirs = (evaluate(one, [900_001, 5], name="driver", env=env) for one in (driver, model))
    assert [row.with_metrics(latency_ms=0) for row in ours.rows] == [
        row.with_metrics(latency_ms=0) for row in theirs.rows
    ]
    assert driver_hash(tmp_path / "model.zip", env) != driver_hash(model, env)


class Evil:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def changed(saved: Path, path: Path, name: str, change: Callable[[bytes], bytes]) -> Path:
    """A copy of a file with one part changed."""
    with zipfile.ZipFile(saved) as before, zipfile.ZipFile(path, "w") as after:
        for part in before.namelist():
            content = before.read(part)
            after.writestr(part, change(content) if part == name else content)
    return path


def test_no_pickle_in_the_file_is_run(saved, tmp_path):
    evil = base64.b64encode(pickle.dumps(Evil(tmp_path / "ran"))).decode()

    def everywhere(content: bytes) -> bytes:
        data = json.loads(content)
        for value in data.values():
            if isinstance(value, dict) and ":serialized:" in value:
                value[":serialized:"] = evil
        return json.dumps(data).encode()

    path = changed(saved, tmp_path / "data.zip", "data", everywhere)
    assert evaluate(path, [5], env=ENV).rows[0].driver == "data.zip"
    for number, dump in enumerate((pickle.dumps, saved_by_torch)):
        path = changed(
            saved, tmp_path / f"{number}.zip", "policy.pth", lambda _, dump=dump: dump(Evil(tmp_path / "ran"))
        )
        with pytest.raises(FileError, match="Its pickles are never read here"):
            resolve_driver(path)
    assert not (tmp_path / "ran").exists()
    with suppress(Exception):
        PPO.load(tmp_path / "data.zip")
    # stable-baselines3 itself has run it
    assert (tmp_path / "ran").exists()


def saved_by_torch(value: Any) -> bytes:
    file = io.BytesIO()
    torch.save({"features_extractor.linear.0.weight": value}, file)
    return file.getvalue()


def json_with(**changes: Any) -> Callable[[bytes], bytes]:
    def change(content: bytes) -> bytes:
        data = json.loads(content)
        for name, values in changes.items():
            data[name] = {**data[name], **values}
        return json.dumps(data).encode()

    return change


@pytest.mark.parametrize(("part", "change", "message"), [
    ("data", json_with(policy_class={"__module__": "mine"}), "its policy is of the module 'mine'"),
    ("data", json_with(policy_kwargs={"activation_fn": "x"}), "the setting 'activation_fn'"),
    ("data", json_with(observation_space={"_shape": "[3, 96, 90000]"}), "do not fit its weights"),
    ("data", json_with(observation_space={"_shape": "[1, 96, 96]"}), "colour frames"),
    ("data", json_with(observation_space={"_shape": "__import__('os').getcwd()"}), "malformed node"),
    ("data", json_with(policy_kwargs={"net_arch": [10**9]}), "its net_arch is too large"),
    ("data", json_with(policy_kwargs={"net_arch": {"pi": [-1]}}), "its net_arch must be at most 16 sizes"),
    ("data", lambda content: b"[1]", "has none"),
    ("policy.pth", lambda content: b"", "has none"),
    ("policy.pth", lambda content: content[:1000], "has none"),
])  # fmt: skip
def test_another_file_is_refused_in_one_line(part, change, message, saved, tmp_path, capsys):
    path = changed(saved, tmp_path / "other.zip", part, change)
    error = refused(capsys, "evaluate", "--driver", str(path))
    assert "only the weights of a CnnPolicy of PPO, A2C or DQN are read" in error
    with pytest.raises(FileError, match=message):
        resolve_driver(path)


def test_what_is_no_zip_of_stable_baselines3_is_refused(tmp_path, capsys):
    assert "there is no file" in refused(capsys, "evaluate", "--driver", str(tmp_path / "no.zip"))
    (tmp_path / "text.zip").write_text("text")
    assert "File is not a zip file" in refused(capsys, "evaluate", "--driver", str(tmp_path / "text.zip"))
    PPO("MlpPolicy", worlds(ENV), n_steps=4, batch_size=4, policy_kwargs={"net_arch": [2]}).save(tmp_path / "mlp.zip")
    assert "features_extractor.linear.0.weight" in refused(capsys, "evaluate", "--driver", str(tmp_path / "mlp.zip"))
