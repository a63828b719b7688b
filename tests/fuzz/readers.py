"""Every reader of a file that a user may have downloaded, with a sound file to change."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
import yaml
from hypothesis.strategies import SearchStrategy
from torch import nn

from nac_drive.data_collection.controller.controller import Controller
from nac_drive.data_collection.dataset.action_log import encode_action_log, read_action_log
from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.data_collection.dataset.limits import DatasetError
from nac_drive.data_collection.driver_file import export
from nac_drive.envs import EnvConfig
from nac_drive.evaluation.evaluate import evaluate
from nac_drive.evaluation.results import EpisodeResult, episode_of
from nac_drive.evaluation.statistics import summarise
from nac_drive.events import silent
from nac_drive.experiments.driving import Driving, Entry
from nac_drive.experiments.experiment import open_experiment
from nac_drive.experiments.ranking import measured_latencies
from nac_drive.policies import Driver, DriverConfig, load_driver, save_driver
from nac_drive.policies.onnx_driver import load_onnx
from nac_drive.training.data.features import frozen_features
from nac_drive.training.run_folder import RunFolder
from nac_drive.training.training_state import load_training_state, save_training_state
from tests.fuzz import mutations
from tests.fuzz.mutations import Content

FRAMES = 20


@dataclass(frozen=True)
class Target:
    """A reader, and the file that is changed before it reads."""

    make: Callable[[Path], None]
    """Fills an empty folder."""
    file: str
    """The file to change, relative to that folder; the first that this pattern matches."""
    change: Callable[[bytes], SearchStrategy[bytes]]
    """The changed contents of a sound one."""
    read: Callable[[Path], None]
    """Reads the folder, and asserts that what it accepts is sound."""
    refuses: bool = True
    """False where the reader makes an unsound file again."""
    writes: bool = False
    """The reader may write into the folder, so that every input needs a new one."""


# Datasets


def dataset(folder: Path) -> None:
    """Two short episodes of own data, on which no simulator spends time."""
    frames = np.full((FRAMES + 1, 96, 96, 3), 100, np.uint8)
    episodes = [
        {"observations": frames + shade, "actions": (np.arange(FRAMES) + shade) % 5, "rewards": np.arange(FRAMES) / 7}
        for shade in range(2)
    ]
    Demonstrations.from_episodes(folder / "data", episodes)


def read_dataset(folder: Path) -> None:
    data = Demonstrations.open(folder / "data")
    data.info()
    data.fingerprint()
    data.split(0.5 if len(set(data.seeds)) > 1 else 0.0)
    require_sound_frames(data)


def require_sound_frames(data: Demonstrations) -> None:
    frames = data.load()
    assert frames.frames.shape == (len(frames), 96, 96, 3)
    assert frames.frames.dtype == np.uint8
    assert frames.labels.dtype == np.int64
    assert ((frames.labels >= 0) & (frames.labels < 5)).all()
    assert frames.dt.dtype == frames.rewards.dtype == np.float32
    assert np.isfinite(frames.rewards).all()
    assert (np.isfinite(frames.dt) & (frames.dt >= 0)).all()
    assert frames.offsets[-1] == len(frames) > 0


def resume_dataset(folder: Path) -> None:
    data = Demonstrations.open(folder / "data")
    data.recover([0, 1])
    if problems := data.verify():
        raise DatasetError(problems[0])


def fitted(folder: Path) -> None:
    """Read a dataset whose rows have been given the hash of the changed episode."""
    rows = folder / "data" / "episodes.jsonl"
    lines = [json.loads(line) for line in rows.read_text().splitlines()]
    content = (folder / "data" / "episodes" / "000000.h5").read_bytes()
    lines[0]["sha256"] = hashlib.sha256(content).hexdigest()
    rows.write_text("".join(json.dumps(line) + "\n" for line in lines))
    Demonstrations.open(folder / "data").verify()
    read_dataset(folder)


def action_log(folder: Path) -> None:
    shutil.copy(Path(__file__).parents[2] / "action_logs" / "expert-20-dart.npz", folder / "log.npz")


def read_log(folder: Path) -> None:
    log = read_action_log(folder / "log.npz")
    assert len(log.episodes) > 0
    for episode in log.episodes:
        assert len(episode.action) == len(episode.label) == episode.summary["length"]
        assert ((episode.action >= 0) & (episode.action < 5)).all()
    encode_action_log(log)


# Drivers and runs


def small_driver() -> Driver:
    torch.manual_seed(0)
    return Driver(DriverConfig(core="nac-2k", core_args={"num_heads": 2, "window": 4}, d_model=4, dense=4))


def driver(folder: Path) -> None:
    save_driver(folder / "driver", small_driver(), env={"control": "discrete"}, meta={"epoch": 3})


def read_driver(folder: Path) -> None:
    found = load_driver(folder / "driver")
    assert all(torch.isfinite(tensor).all() for tensor in found.state_dict().values() if tensor.is_floating_point())
    parameters = sum(tensor.numel() for tensor in found.state_dict().values())
    assert parameters * 4 <= 2 * (folder / "driver" / "model.safetensors").stat().st_size
    action, _ = found.act(np.zeros(found.config.frame_shape, np.uint8), found.initial_state(1), 0.02)
    assert np.isfinite(action).all()


CONFIG = {"driver": {"core": "cnn"}, "epochs": 3, "dataset": "data"}


def run(folder: Path) -> None:
    learner = small_driver()
    optimizer = torch.optim.Adam(learner.parameters())
    for parameter in learner.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()

    def write(checkpoint: Path) -> None:
        save_driver(checkpoint, learner, env={}, meta={})
        save_training_state(checkpoint / "training_state", optimizer, {"step": 1})

    created = RunFolder.create(folder / "run", CONFIG)
    created.finish_step({"step": 1, "score": 3.0, "seconds": 0.5, "returns": [1.0, 5.0]}, write)


def resume_run(folder: Path) -> None:
    found = RunFolder.open(folder / "run")
    found.require_config(CONFIG, moved=("dataset",), grown=("epochs",))
    last = found.rewind()
    if last is None:  # no checkpoint counts, so the run begins again
        return
    learner = small_driver()
    learner.load_state_dict(load_driver(last).state_dict())
    state = load_training_state(last / "training_state", torch.optim.Adam(learner.parameters()))
    assert state["step"] == 1
    found.rows()
    found.last_row_is_best()
    load_driver(folder / "run")


# Evaluations and comparisons

ENV = EnvConfig(max_steps=5)


@lru_cache(maxsize=1)
def results() -> list[EpisodeResult]:
    """Two short episodes."""
    return evaluate("controller", [3, 4], name="lstm", env=ENV).rows


def experiment() -> Driving:
    return Driving((Entry("lstm", "0" * 64, ENV, Controller()),), (3, 4))


def evaluation(folder: Path) -> None:
    """An experiment that was interrupted after its last episode, with its times."""
    with open_experiment(experiment(), folder / "results") as journal:
        for row in results():
            journal.append(row.to_dict())
    (folder / "results" / "latencies.json").write_text('{"lstm": 0.5}')


def resume_evaluation(folder: Path) -> None:
    with open_experiment(experiment(), folder / "results", resume=True) as journal:
        rows = [episode_of(row) for row in journal.rows.values()]
        summarise(rows) if rows else None
        assert {row.seed for row in rows} <= {3, 4}
    (seconds,) = measured_latencies(experiment(), {"lstm": []}, folder / "results", silent).values()
    assert np.isfinite(seconds)


# Features of a frozen encoder, and exported drivers


@lru_cache(maxsize=1)
def onnx_content() -> bytes:
    """A small driver as an ONNX file."""
    torch.manual_seed(0)
    model = Driver(DriverConfig(core="cnn", d_model=4, dense=4))
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "driver.onnx"
        export(model, path)
        return path.read_bytes()


def exported(folder: Path) -> None:
    (folder / "driver.onnx").write_bytes(onnx_content())


def read_exported(folder: Path) -> None:
    found = load_onnx(folder / "driver.onnx")
    state = found.begin()
    for _ in range(2):
        action, state = found.act(np.zeros((96, 96, 3), np.uint8), state, 0.02)
        assert 0 <= int(action) < 5


@lru_cache(maxsize=1)
def encoder() -> nn.Module:
    torch.manual_seed(0)
    return Driver(DriverConfig(core="cnn", d_model=4, dense=4)).encoder.eval()


def features(folder: Path, kept: bool) -> torch.Tensor:
    data = Demonstrations.open(folder / "data")
    beside = data.path if kept else None
    return frozen_features(encoder(), data.load(), data.meta.env, torch.device("cpu"), dataset=beside)[0]


def featured(folder: Path) -> None:
    """A dataset with the features of its episodes."""
    dataset(folder)
    features(folder, kept=True)


def read_features(folder: Path) -> None:
    """Features of a file that is not sound are computed again."""
    assert torch.equal(features(folder, kept=True), features(folder, kept=False))


def yaml_file(content: bytes) -> SearchStrategy[bytes]:
    """A YAML document, damaged or with other values."""
    return mutations.damaged(content) | mutations.other_document(yaml.safe_load(content)).map(
        lambda document: yaml.safe_dump(document).encode("utf-8", "surrogatepass")
    )


LAST = "run/checkpoints/step_1"
TARGETS: dict[str, Target] = {
    "dataset-meta": Target(dataset, "data/meta.json", mutations.json_file, read_dataset),
    "dataset-rows": Target(dataset, "data/episodes.jsonl", mutations.json_lines, read_dataset),
    "dataset-rows-resumed": Target(dataset, "data/episodes.jsonl", mutations.json_lines, resume_dataset, writes=True),
    "episode": Target(dataset, "data/episodes/000000.h5", mutations.hdf5, read_dataset),
    "episode-with-its-hash": Target(dataset, "data/episodes/000000.h5", mutations.hdf5, fitted, writes=True),
    "action-log": Target(action_log, "log.npz", mutations.npz, read_log),
    "driver-config": Target(driver, "driver/config.json", mutations.json_file, read_driver),
    "driver-weights": Target(driver, "driver/model.safetensors", mutations.safetensors, read_driver),
    "run-config": Target(run, "run/config.yaml", yaml_file, resume_run, writes=True),
    "run-metrics": Target(run, "run/metrics.jsonl", mutations.json_lines, resume_run, writes=True),
    "run-checkpoints": Target(run, "run/checkpoints/checkpoints.json", mutations.json_file, resume_run, writes=True),
    "run-state": Target(run, f"{LAST}/training_state/state.json", mutations.json_file, resume_run, writes=True),
    "run-optimizer": Target(
        run, f"{LAST}/training_state/optimizer.safetensors", mutations.safetensors, resume_run, writes=True
    ),
    "evaluation-conditions": Target(
        evaluation, "results/conditions.json", mutations.json_file, resume_evaluation, writes=True
    ),
    "evaluation-rows": Target(evaluation, "results/rows.jsonl", mutations.json_lines, resume_evaluation, writes=True),
    "comparison-latencies": Target(evaluation, "results/latencies.json", mutations.json_file, resume_evaluation),
    "features": Target(
        featured, "data/features/*/*.safetensors", mutations.safetensors, read_features, refuses=False, writes=True
    ),
    "exported-driver": Target(exported, "driver.onnx", mutations.damaged, read_exported),
}
"""Name -> reader."""


def sound_content(target: Target, folder: Path) -> Content:
    """Make the sound folder of a target. Return the file that is changed."""
    target.make(folder)
    return Content(changed_file(target, folder).read_bytes())


def changed_file(target: Target, folder: Path) -> Path:
    """Return the file of a target that is changed."""
    return sorted(folder.glob(target.file))[0]
