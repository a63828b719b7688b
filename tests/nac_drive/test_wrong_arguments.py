"""Arguments of a wrong type are refused in one line.

The line names argument, value and fix. Nothing is left on disk.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import nac_drive as nd
from nac_drive.data_collection.dataset.meta import Meta
from tests.nac_drive.evaluation.rows import row

DAGGER, TRAIN, PPO = nd.DaggerConfig(), nd.TrainConfig(), nd.PPOConfig()
OWN_POOL = nd.worker_pool(2)
"""A pool that was not entered by `with`."""

PLAIN: dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], str]] = {
    "config: text": (nd.make_env, ("car-racing",), {}, "config .* 'car-racing'; pass EnvConfig(environment='car"),
    "config: control": (nd.make_env, ("continuous",), {}, "pass EnvConfig(control='continuous')"),
    "perturb: list": (nd.EnvConfig, (), {"perturb": ["gap:1"]}, "perturb must be a text, got ['gap:1']; pass 'gap:1'"),
    "environment: list": (nd.EnvConfig, (), {"environment": []}, "environment must be a text, got []"),
    "mask_bar: number": (nd.EnvConfig, (), {"mask_bar": 1}, "mask_bar must be True or False, got 1."),
    "mask_bar: text": (nd.EnvConfig, (), {"mask_bar": "no"}, "mask_bar must be True or False, got 'no'."),
    "probability": (nd.NoiseConfig, ("0.1",), {}, "noise probability must be a number, got '0.1'"),
    "hold": (nd.NoiseConfig, (0.1, True), {}, "noise hold must be a number, got True"),
    "pool": (nd.evaluate, ("controller", [1]), {"pool": 3}, "pool .* processes, got 3; use `with worker_pool(3) as"),
    "pool: unused": (nd.evaluate, ("controller", [1]), {"pool": OWN_POOL}, "got a _GeneratorContextManager; use `with"),
    "baseline": (nd.evaluate, ("controller", [1]), {"baseline": "x"}, "baseline .* an Evaluation or None, got 'x'"),
    "perturbation": (nd.evaluate, ("controller", [1]), {"perturbation": ["gap:1"]}, "perturbation must be a text"),
    "env": (nd.evaluate, ("controller", [1]), {"env": "car-racing"}, "env .* got 'car-racing'; pass EnvConfig(envir"),
    "parts: driver": (nd.TrainConfig, ("lstm",), {}, "driver .* got 'lstm'; pass DriverConfig('lstm')"),
    "parts: validation": (nd.TrainConfig, (), {"validation": "val-5"}, "validation .* pass EvalConfig('val-5')"),
    "parts: optim": (nd.TrainConfig, (), {"optim": {"seed": 1}}, "optim .* pass OptimConfig(**{'seed': 1})"),
    "parts: dagger": (nd.DaggerConfig, (), {"data": 32}, "data must be a DataConfig, got 32"),
    "init_from": (nd.OptimConfig(init_from=3).check, (), {}, "init_from must be a text, got 3; pass the name"),  # type: ignore[arg-type]
    "Driver": (nd.Driver, ("lstm",), {}, "config must be a DriverConfig, got 'lstm'; pass DriverConfig('lstm')"),
    "frame_shape": (nd.DriverConfig, (), {"frame_shape": 96}, "frame_shape: must be (H, W, 3), got 96"),
    "part_ranges": (nd.DriverConfig, (), {"part_ranges": (1, 2)}, "part_ranges: must be pairs of numbers, got (1, 2)"),
    "as_policy": (nd.as_policy, ("expert",), {}, "driver .* got the name 'expert'; pass resolve_driver('expert')"),
    "rollout: env": (nd.rollout, (nd.EnvConfig(), "x", 1), {}, "env .* got an EnvConfig; pass make_env(...)"),
    "create": (nd.Demonstrations.create, (1, Meta(nd.EnvConfig(), "expert", "", None, 0)), {}, "path must be a path"),
    "rebuild": (nd.rebuild, (1, "x"), {}, "log_path must be a path, got 1"),
    "load_driver": (nd.load_driver, (1,), {}, "source must be a path, got 1; pass text or a Path."),
    "from_pretrained": (nd.from_pretrained, (1,), {}, "source must be a path, got 1"),
    "open": (nd.Demonstrations.open, (["a", "b"],), {}, "dataset path must be a path, got ['a', 'b']"),
    "stress: word": (nd.stress, ("controller", [1], [1]), {}, "perturbations .* got 1; such as 'gap'"),
    "stress: spec": (nd.stress, ("controller", "gap:9", [1]), {}, "perturbation 'gap' has the levels 1 to 3"),
}
"""A function, its arguments, and its message.

In a message, .* stands for any text.
"""

FILES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], str]] = {
    "collect: noise": (nd.collect, ("x",), {"seeds": [1], "noise": 0.1}, "noise .* got 0.1; pass NoiseConfig(0.1)."),
    "collect: seeds": (nd.collect, ("x",), {"seeds": 5}, "seeds must be SPLIT-COUNT .* got 5; pass [5] for this seed"),
    "collect: split": (nd.collect, ("x",), {"seeds": "x-2"}, "seeds must be SPLIT-COUNT .* got 'x-2'"),
    "collect: env": (nd.collect, ("x",), {"seeds": [1], "env": "seat"}, "env must be an EnvConfig or None, got 'seat'"),
    "collect: cluster": (nd.collect, ("x",), {"seeds": [1], "cluster": 3}, "cluster must be a text, got 3; pass"),
    "collect: path": (nd.collect, (0,), {"seeds": [1]}, "path must be a path, got 0"),
    "own data": (nd.Demonstrations.from_episodes, ("x", [{}]), {"env": "seat"}, "env must be an EnvConfig or None"),
    "train: config": (nd.train, (DAGGER, "demos", "x"), {}, "got a DaggerConfig; pass TrainConfig(...), or call da"),
    "train: class": (nd.train, (nd.TrainConfig, "demos", "x"), {}, "got the class TrainConfig; pass TrainConfig()"),
    "train: core": (nd.train, ("lstm", "demos", "x"), {}, "pass TrainConfig(DriverConfig('lstm'))"),
    "train: folder": (nd.train, (TRAIN, "demos", None), {}, "folder must be a path, got None"),
    "dagger: config": (nd.dagger, (TRAIN, "x"), {}, "got a TrainConfig; pass DaggerConfig(...), or call train"),
    "ppo: config": (nd.ppo, (TRAIN, "x"), {}, "config .* got a TrainConfig; pass PPOConfig(...), or call train"),
    "ppo: driver": (nd.PPOConfig, ("cnn",), {}, "driver .* pass DriverConfig('cnn')"),  # type: ignore[arg-type]
    "compare: config": (nd.compare, ("lstm", "d", [1], "x"), {"config": DAGGER}, "config .* got a DaggerConfig"),
    "merge": (nd.Demonstrations.merge, ("x", [1]), {}, "datasets must be the folder of a dataset, or several, got 1"),
    "compare: folder": (nd.compare, ("lstm", "d", [1], 0), {}, "folder must be a path, got 0"),
    "save_driver": (nd.save_driver, ("x", "champion"), {}, "driver .* got 'champion'; pass load_driver('champion')."),
    "save_pretrained": (nd.save_pretrained, ("champion", "x"), {}, "driver .* got 'champion'; pass load_driver('cham"),
    "export: driver": (nd.export, (nd.TrainConfig(), "x.onnx"), {}, "driver must be a Driver, got a TrainConfig"),
    "export: path": (nd.export, ("champion", 3), {}, "out must be a path, got 3"),
    "side_by_side: none": (nd.side_by_side, ("x.mp4", []), {}, "videos must name at least one, got none"),
    "side_by_side: columns": (nd.side_by_side, ("x.mp4", ["a"], -1), {}, "columns must be at least 1, got -1"),
    "video: seed": (nd.record_video, ("x.mp4", "controller", "a"), {"name": "me"}, "seed must be a whole number"),
    "video: codec": (
        nd.record_video, ("x.mp4", "controller", 1), {"name": "me", "options": {"crf": 30}},
        "options must be texts by name, got {'crf': 30}; such as {'crf': '30'}.",
    ),
}  # fmt: skip
"""As PLAIN, of functions that write."""


def refused(expected: str, call: Callable[..., Any], *arguments: Any, **keywords: Any) -> None:
    """Assert that a call is refused in one line.

    The line has the parts of `expected`.
    """
    with pytest.raises(ValueError, match=r"\A.*\Z") as error:  # one line
        call(*arguments, **keywords)
    message, start = str(error.value), 0
    for part in expected.split(" .* "):
        assert part in message[start:], message
        start = message.index(part, start) + len(part)


@pytest.mark.parametrize(("call", "arguments", "keywords", "expected"), PLAIN.values(), ids=PLAIN.keys())
def test_a_wrong_type_is_refused(call, arguments, keywords, expected):
    refused(expected, call, *arguments, **keywords)


@pytest.mark.parametrize(("call", "arguments", "keywords", "expected"), FILES.values(), ids=FILES.keys())
def test_a_wrong_type_leaves_nothing_on_disk(call, arguments, keywords, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused(expected, call, *arguments, **keywords)
    assert not list(tmp_path.iterdir())


SHARED = {
    "pool": (3, "pool must be a pool of processes, got 3; use `with worker_pool(3) as pool:`."),
    "resume": ("no", "resume must be True or False, got 'no'."),
    "progress": ("json", "progress must be a function, got 'json'; leave it out for none, or pass one."),
    "on_step": (1, "on_step must be a function, got 1; leave"),
    "on_episode": (None, "on_episode must be a function, got None; leave"),
}
"""Shared argument -> a wrong value and its message."""


def public_functions() -> dict[str, Callable[..., Any]]:
    """Return the functions, and the methods of datasets."""
    public = {name: getattr(nd, name) for name in nd.__all__} | dict(inspect.getmembers(nd.Demonstrations))
    return {
        name: member
        for name, member in public.items()
        if callable(member) and not inspect.isclass(member) and not name.startswith("_")
    }


SHARING = [
    (name, argument)
    for name, function in public_functions().items()
    for argument in SHARED
    if argument in inspect.signature(function).parameters
]


def test_many_functions_share_arguments():
    assert len(SHARING) >= 40, SHARING


@pytest.mark.parametrize(("name", "argument"), SHARING)
def test_a_shared_argument_is_checked_before_all_else(name, argument):
    value, message = SHARED[argument]
    refused(message, public_functions()[name], **{argument: value})


@pytest.fixture(scope="module")
def driver() -> nd.Driver:
    return nd.Driver(nd.DriverConfig(core="cnn", encoder="pooled", d_model=4, dense=4))


def test_settings_and_results_of_a_saved_driver_are_dicts(driver, tmp_path):
    refused("meta must be a dict or None, got 3", nd.save_driver, tmp_path / "x", driver, meta=3)
    refused("env must be a dict .* an EnvConfig", nd.save_driver, tmp_path / "x", driver, env=nd.EnvConfig())
    refused("metrics must be a dict, got 900", nd.save_pretrained, driver, tmp_path / "x", metrics=900)
    refused("path must be a path, got a Driver", nd.save_driver, driver, tmp_path / "x")
    assert not list(tmp_path.iterdir())


def test_a_driver_takes_tensors(driver):
    frames, dt = np.zeros((1, 2, 96, 96, 3), np.uint8), np.full((1, 2), 0.02)
    refused("frames: must be a tensor, got an array .* pass torch.from_numpy(frames)", driver, frames, dt)
    refused("dt: must be a tensor, got an array .* pass torch.from_numpy(dt)", driver, torch.from_numpy(frames), dt)
    assert driver(torch.from_numpy(frames), torch.from_numpy(dt))[0].shape == (1, 2, 5)


def test_a_rollout_takes_no_names():
    with nd.make_env() as env:
        refused("driver .* got 'expert'; pass resolve_driver('expert')", nd.rollout, env, "expert", 1)
        refused("expert .* pass resolve_driver", nd.rollout, env, nd.Controller("discrete"), 1, expert="expert")
        refused("driver .* got a function; pass as_policy(driver)", nd.rollout, env, lambda observation: 0, 1)


VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 96, 1.5, float("nan"), "no", "", b"x", [], ["gap:1"], {}, (96, 96), [96, 96.0],
    (96, True), np.bool_(True), np.int64(96), np.array([96, 96]), (np.int64(96), np.int64(96)), object(), str,
]  # fmt: skip


def test_what_an_environment_accepts_can_be_read_again(tmp_path):
    """Every dataset that is written opens again."""
    accepted = 0
    for name in (setting.name for setting in fields(nd.EnvConfig)):
        for value in VALUES:
            try:
                env = nd.EnvConfig(**{name: value})
            except ValueError:
                continue
            folder = tmp_path / str(accepted)
            nd.Demonstrations.create(folder, Meta(env, "expert", "", None, 0))
            assert nd.Demonstrations.open(folder).meta.env == env, (name, value)
            accepted += 1
    assert accepted > len(fields(nd.EnvConfig)) / 2


def test_what_noise_accepts_can_be_read_again(tmp_path):
    for name in (setting.name for setting in fields(nd.NoiseConfig)):
        for number, value in enumerate(VALUES):
            try:
                noise = nd.NoiseConfig(**{name: value})
            except ValueError:
                continue
            folder = tmp_path / f"{name}{number}"
            nd.Demonstrations.create(folder, Meta(nd.EnvConfig(), "expert", "", noise, 0))
            assert nd.Demonstrations.open(folder).meta.noise == noise, (name, value)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> nd.Demonstrations:
    """Own data of the tracks 0 and 1."""
    episode = {"observations": np.zeros((2, 96, 96, 3), np.uint8), "actions": np.zeros(2, np.int64)}
    return nd.Demonstrations.from_episodes(tmp_path_factory.mktemp("wrong") / "data", [episode] * 2)


def test_a_dataset_reads_named_tracks(data):
    for read in (data.load, data.stream):
        refused("seeds must be SPLIT-COUNT .* got 0; pass [0] for this seed", read, 0)
        refused("seeds must be SPLIT-COUNT .* got 'x'", read, "x")
        refused("has no episode on tracks [2]", read, "train-3")
        assert [*read("train-2").seeds] == [*read([0, 1]).seeds] == [0, 1]


def test_collect_takes_named_tracks(tmp_path):
    env = nd.EnvConfig(max_steps=2)
    assert nd.collect(tmp_path / "a", "controller", env=env, seeds="val-2").seeds == nd.track_seeds("val-2")
    assert nd.collect(tmp_path / "b", "controller", env=env, seeds=list(np.array([7, 3]))).seeds == [7, 3]


def test_a_baseline_on_other_tracks_is_refused_at_once():
    baseline = nd.Evaluation.of([row(1)])
    refused("baseline must hold the same tracks", nd.evaluate, "no_such_driver", [2], baseline=baseline)


def test_one_text_is_one_of_several(tmp_path):
    refused("drivers must be names of CORES .* got 'lstn'. Did you mean 'lstm'?", nd.compare, "lstn", *_rest(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"videos: there is no file v1\.mp4; pass videos of record_video\."):
        nd.side_by_side(tmp_path / "z.mp4", "v1.mp4")
    assert not (tmp_path / "z.mp4").exists()


def _rest(folder: Path) -> tuple[Any, ...]:
    """The other arguments of `compare`."""
    episode: Any = {"observations": np.zeros((2, 96, 96, 3), np.uint8), "actions": np.zeros(2, np.int64)}
    return nd.Demonstrations.from_episodes(folder / "data", [episode]), [900_000], folder / "comparison"
