"""Exported drivers: the predictions of torch, whole episodes, and what is in a file."""

from __future__ import annotations

import hashlib
import logging
import pickle
import re
import shutil
import subprocess
import sys
import warnings
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import nac_drive as nd
from nac_drive.data_collection.driver_file import _stated
from nac_drive.data_collection.drivers import driver_hash, resolve_driver
from nac_drive.data_collection.trained_env import trained_env
from nac_drive.policies import Driver, DriverConfig, OnnxDriver, load_driver, load_onnx
from nac_drive.policies.cores import registry
from nac_drive.policies.cores.base import Core, CoreFactory, State, StateSpec
from nac_drive.policies.export import TOLERANCE
from nac_drive.policies.onnx_driver import Header, Interface
from nac_drive.policies.onnx_work import LARGEST_WORK, multiply_adds
from tests.commands import call
from tests.slow import slow_but

pytestmark = pytest.mark.usefixtures("quick_exports")
REPOSITORY = Path(__file__).parents[2]
FRAMES = 100
CORES = {
    "nac-2k": {"num_heads": 4, "window": 4},  # chooses keys
    "s4d": {"state_size": 4},  # complex numbers
    "cta": {},  # divides by a sum that is 0 at the first frame, and an epsilon
}
"""benchmarks/speed/export.py compares all cores; an export takes about two seconds."""


@pytest.fixture(scope="module", params=slow_but(["continuous"], ["discrete", "continuous"]))
def champion(request, tmp_path_factory) -> tuple[Driver, Path]:
    driver = load_driver("champion", request.param)
    return driver, nd.export(driver, tmp_path_factory.mktemp("exported") / f"{request.param}.onnx")


discrete = pytest.mark.parametrize("champion", ["discrete"], indirect=True)


def small(core: str, **settings: Any) -> Driver:
    torch.manual_seed(0)
    config = DriverConfig(core=core, core_args=settings, d_model=8, dense=8, frame_shape=(32, 32, 3))
    return Driver(config).eval()


def assert_same_predictions(driver: Driver, exported: OnnxDriver, frames: int = 20) -> None:
    rng, state, ours = np.random.default_rng(0), exported.begin(), driver.begin()
    for index in range(frames):
        frame = rng.integers(0, 256, driver.config.frame_shape, np.uint8)
        dt = float(rng.choice([0.02, 0.04, 0.3])) if index else 0.0
        prediction, action, state = exported.step(frame, state, dt)
        with torch.no_grad():
            expected, _ = driver(torch.from_numpy(frame)[None, None], torch.tensor([[dt]]), ours)
        expected_action, ours = driver.act(frame, ours, dt)
        np.testing.assert_allclose(prediction, expected[0, 0].numpy(), atol=TOLERANCE, rtol=0)
        np.testing.assert_allclose(action, expected_action, atol=TOLERANCE)
        assert type(action) is type(expected_action)
        assert [(x.shape, str(x.dtype)) for x in state] == [(x.shape, str(x.dtype)[6:]) for x in ours]


@pytest.mark.parametrize("core", slow_but(["s4d"], CORES))
def test_an_exported_core_predicts_what_torch_does(core, tmp_path):
    driver = small(core, **CORES[core])
    assert_same_predictions(driver, load_onnx(nd.export(driver, tmp_path / "driver.onnx")))


@pytest.mark.slow
@discrete
def test_the_bound_of_the_work_leaves_room_for_every_driver_of_the_package(champion):
    """docs/export.md says it as a multiple of the work of the largest one, which torch counts in its own way."""
    driver, path = champion
    with FlopCounterMode(display=False) as counted, torch.no_grad():
        driver.act(np.zeros((96, 96, 3), np.uint8), driver.begin(), 0.02)
    made = onnx.load(path)
    derived = onnx.shape_inference.infer_shapes(made, strict_mode=True, data_prop=True).graph
    values = (*derived.input, *derived.value_info, *derived.output)
    shapes = {value.name: tuple(axis.dim_value for axis in value.type.tensor_type.shape.dim) for value in values}
    shapes |= {tensor.name: tuple(tensor.dims) for tensor in made.graph.initializer}
    work = sum(multiply_adds(node, shapes) for node in made.graph.node)
    assert work == pytest.approx(counted.get_total_flops() / 2, rel=0.01)  # two operations each
    assert 140 < LARGEST_WORK / work < 160


def test_an_exported_champion_drives_the_same_episode(champion):
    driver, path = champion
    exported = resolve_driver(path)
    assert isinstance(exported, OnnxDriver)
    env = nd.make_env(nd.EnvConfig(**{**driver.env_config, "max_steps": FRAMES}))
    state, actions = exported.begin(), []

    def compare(step: nd.Step) -> None:
        nonlocal state
        action, state = exported.act(step.observation, state, step.dt)
        np.testing.assert_allclose(action, step.action, atol=TOLERANCE, rtol=0)
        actions.append(step.action)

    ours = nd.rollout(env, driver, 800_000, subscribers=[compare])
    assert ours.length == FRAMES
    if driver.config.control == "discrete":  # otherwise a difference of 1e-7 grows from frame to frame
        found: list[Any] = []
        theirs = nd.rollout(env, exported, 800_000, subscribers=[lambda step: found.append(step.action)])
        assert (found, theirs.episode_return) == (actions, ours.episode_return)


def test_the_file_alone_is_enough(champion, monkeypatch):
    driver, path = champion
    header = load_onnx(path).header
    assert (header.driver, header.meta) == (driver.config, driver.meta)
    assert nd.EnvConfig(**header.env) == trained_env(driver)
    assert header.interface == Interface(
        frame="RGB, 0 to 255, top row first", black_from_row=None, frames_per_second=50,
        actions=("nothing", "right", "left", "gas", "brake") if header.driver.control == "discrete" else None,
        parts=("steer", "gas", "brake") if header.driver.control == "continuous" else None,
    )  # fmt: skip
    assert header.nac_drive == version("nac-drive")
    exported = resolve_driver(path)
    assert trained_env(exported) == nd.EnvConfig(**driver.env_config)
    assert driver_hash(path, nd.EnvConfig()) == hashlib.sha256(path.read_bytes()).hexdigest()
    other = "continuous" if driver.config.control == "discrete" else "discrete"
    with pytest.raises(ValueError, match=f"made for {driver.config.control} control, the environment has {other}"):
        resolve_driver(path, nd.EnvConfig(control=other))  # type: ignore[arg-type]
    content = path.read_bytes()
    assert str(REPOSITORY).encode() not in content
    assert b"site-packages" not in content
    assert len(content) < 2 * sum(p.numel() * 4 for p in driver.parameters())


@discrete
@pytest.mark.filterwarnings("ignore:.*another environment")
def test_evaluate_and_collect_take_the_file(champion, tmp_path):
    driver, path = champion
    env = nd.EnvConfig(control=driver.config.control, max_steps=30)  # type: ignore[arg-type]
    ours, theirs = (nd.evaluate(one, [800_000], env=env).rows[0] for one in (driver, str(path)))
    assert theirs.driver == path.name
    assert theirs.episode_return == pytest.approx(ours.episode_return, abs=1e-6)
    dataset = nd.collect(tmp_path / "data", str(path), env=env, seeds=[0], workers=1)
    assert dataset.meta.driver_sha256 == driver_hash(path, env)
    again = pickle.loads(pickle.dumps(load_onnx(path)))
    assert_same_predictions(driver, again, 3)


def run_program_of_page(exported: Path, frames: int) -> subprocess.CompletedProcess[str]:
    """Run the program of docs/export.md.

    Neither torch nor the package can be imported there.
    """
    page = (REPOSITORY / "docs" / "export.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```python\n(import json\n.*?)```", page, re.DOTALL)
    assert len(program.splitlines()) <= 45
    blocked = "import sys; sys.modules['torch'] = sys.modules['nac_drive'] = None\n"
    words = [sys.executable, "-W", "ignore", "-c", blocked + program, str(exported), str(frames)]
    return subprocess.run(words, capture_output=True, text=True, check=False, cwd=exported.parent)


def assert_program_drives_like(driver: Driver, exported: Path, **env: Any) -> None:
    result = run_program_of_page(exported, 40)
    config = nd.EnvConfig(**{**driver.env_config, **env, "max_steps": 40})
    expected = nd.rollout(nd.make_env(config), driver, 900_000).episode_return
    returned = re.fullmatch(r"return (\S+) after 40 frames\n", result.stdout)
    assert returned, result.stderr
    assert float(returned[1]) == pytest.approx(expected, abs=1e-5)


def test_the_program_of_the_page_drives_without_torch(champion):
    assert_program_drives_like(*champion)


@pytest.mark.slow
def test_the_program_carries_out_pulses_and_hides_the_status_bar(tmp_path):
    driver = load_driver("champion", "continuous")
    shutil.copy(REPOSITORY / "nac_drive" / "envs" / "pulses.py", tmp_path)
    pulsed = nd.export("champion", tmp_path / "pulsed.onnx", control="pulsed")
    assert_program_drives_like(driver, pulsed, control="pulsed")
    assert trained_env(resolve_driver(pulsed)) == nd.EnvConfig("pulsed")
    driver.env_config["mask_bar"] = True
    assert_program_drives_like(driver, nd.export(driver, tmp_path / "masked.onnx"))


def test_what_the_program_cannot_drive_it_refuses(tmp_path):
    driver = small("cnn")
    driver.env_config = msgspec.to_builtins(nd.EnvConfig(view="seat", size=(32, 32), mask_bar=True))
    exported = nd.export(driver, tmp_path / "seat.onnx")
    result = run_program_of_page(exported, 3)
    assert (result.returncode, result.stderr.strip()) == (1, "gymnasium draws CarRacing from above")
    header = load_onnx(exported).header
    assert header.interface
    assert header.interface.black_from_row == nd.EnvConfig(view="seat", size=(32, 32)).spec.bar_top


def test_an_environment_without_views_says_nothing_of_them(tmp_path):
    driver = small("cnn")
    driver.env_config = msgspec.to_builtins(nd.EnvConfig("continuous", environment="donkeycar"))
    driver.config = replace(driver.config, control="continuous")
    with pytest.raises(ValueError, match="the driver has continuous control, got 'discrete'"):
        nd.export(driver, tmp_path / "x.onnx", control="discrete")
    assert not {"view", "size"} & _stated(nd.EnvConfig("continuous", environment="donkeycar")).keys()


@discrete
def test_the_runtime_loads_no_torch(champion):
    code = (
        "import sys; from nac_drive.policies.onnx_driver import load_onnx; import numpy as np\n"
        f"driver = load_onnx({str(champion[1])!r}); driver.act(np.zeros((96, 96, 3), np.uint8), driver.begin(), 0.0)\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, check=True)


def test_a_pt2_file_is_the_same_step(tmp_path):
    driver, extra = small("cfc", backbone_units=16), {"nac_drive.json": ""}
    program = torch.export.load(nd.export(driver, tmp_path / "driver.pt2"), extra_files=extra).module()
    header = msgspec.json.decode(extra["nac_drive.json"], type=Header)
    assert header.driver == driver.config
    assert [(s.name, s.shape, s.dtype) for s in header.states] == [("state_0", (1, 8), "float32")]
    frame, state, ours = torch.randint(0, 256, (1, 32, 32, 3), dtype=torch.uint8), driver.begin(), driver.begin()
    for dt in (0.0, 0.02, 0.5):
        with torch.no_grad():
            prediction, action, *state = program(frame, torch.tensor([dt]), *state)
            expected, ours = driver(frame[None], torch.tensor([[dt]]), ours)
        torch.testing.assert_close(prediction, expected[0])
        assert action == expected[0].argmax()


def test_a_pt2_file_is_no_driver_to_load(tmp_path, capsys):
    class Attack:
        def __reduce__(self) -> Any:
            return (tmp_path / "attacked").mkdir, ()

    path = tmp_path / "driver.pt2"
    torch.save(Attack(), path)
    assert call("evaluate", "--driver", str(path)) == 2
    assert "torch unpickles parts of a .pt2 file" in capsys.readouterr().err
    assert not (tmp_path / "attacked").exists()


def test_an_export_leaves_the_driver_as_it_is(tmp_path):
    driver = small("cfc", backbone_units=16).train()
    frame = np.zeros((32, 32, 3), np.uint8)
    before = {name: tensor.clone() for name, tensor in driver.state_dict().items()}
    generator, level, filters = torch.get_rng_state(), logging.root.manager.disable, list(warnings.filters)
    nd.export(driver, tmp_path / "driver.pt2")
    assert driver.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in driver.state_dict().items())
    assert torch.equal(torch.get_rng_state(), generator)
    assert (logging.root.manager.disable, list(warnings.filters)) == (level, filters)
    _, (first,) = driver.act(frame, driver.begin(), 0.02)
    with torch.no_grad():
        driver.core.heads.weight.mul_(2.0)  # type: ignore[union-attr]
    _, (second,) = driver.act(frame, driver.begin(), 0.02)
    assert not torch.equal(first, second)  # its weights are not frozen


class Choosy(Core):
    """A core whose program depends on the frame."""

    continuous_time = False

    def __init__(self, input_size: int, output_size: int) -> None:
        super().__init__()
        self.input_size, self.output_size = input_size, output_size
        self.linear = torch.nn.Linear(input_size, output_size)

    def state_shapes(self) -> StateSpec:
        return ()

    def forward(self, x: torch.Tensor, dt: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        return (self.linear(x) if x.sum() > 0.0 else x), ()


def test_what_cannot_be_exported_is_refused_and_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.setitem(registry.CORES, "choosy", CoreFactory(Choosy, "a core with a branch"))
    with pytest.raises(ValueError, match="a driver with the core 'choosy' cannot be exported: ") as caught:
        nd.export(small("choosy"), tmp_path / "driver.onnx")
    assert "\n" not in str(caught.value)
    assert not [*tmp_path.iterdir()]


def test_a_driver_is_exported_by_its_folder_too(tmp_path, monkeypatch):
    monkeypatch.setattr("nac_drive.policies.export._onnx", lambda step: str(step.driver.config).encode())
    driver = small("cnn")
    nd.export(driver, tmp_path / "one.onnx")
    nd.export(nd.save_driver(tmp_path / "driver", driver), tmp_path / "other.onnx")
    assert (tmp_path / "one.onnx").read_bytes() == (tmp_path / "other.onnx").read_bytes()
    with pytest.raises(FileNotFoundError, match="nobody"):
        nd.export("nobody", tmp_path / "third.onnx")


@pytest.mark.parametrize(
    ("name", "message"),
    [("driver.txt", "must end with .onnx or .pt2"), ("driver", "must end with"), ("there.onnx", "already exists")],
)
def test_a_bad_file_is_refused_before_the_export(name, message, tmp_path, capsys):
    (tmp_path / "there.onnx").write_bytes(b"mine")
    assert call("export", "--out", str(tmp_path / name)) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert (tmp_path / "there.onnx").read_bytes() == b"mine"


@pytest.mark.parametrize("missing", ["onnx", "onnxruntime", "onnxscript"])
def test_a_missing_package_is_named(missing, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ValueError, match=rf"{missing} is not installed; run `pip install 'nac-drive\[export\]'`"):
        nd.export(small("cnn"), tmp_path / "driver.onnx")


def test_a_wrong_prediction_is_not_written(tmp_path, monkeypatch):
    step = OnnxDriver.step

    def shifted(*arguments: Any) -> tuple[Any, ...]:
        prediction, *rest = step(*arguments)
        return (prediction + 1e-3, *rest)

    monkeypatch.setattr(OnnxDriver, "step", shifted)
    with pytest.raises(ValueError, match=r"its predictions differ by 1\.0e-03, more than 0\.0001"):
        nd.export(small("cnn"), tmp_path / "driver.onnx")
    assert not [*tmp_path.iterdir()]


class Counting(Choosy):
    """A core whose scale is no weight and no state."""

    def forward(self, x: torch.Tensor, dt: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        self.scale = getattr(self, "scale", 0) + 1
        return self.scale * self.linear(x), ()


@pytest.mark.parametrize("suffix", [".onnx", ".pt2"])
def test_a_step_that_keeps_its_past_elsewhere_is_not_written(suffix, tmp_path, monkeypatch):
    monkeypatch.setitem(registry.CORES, "counting", CoreFactory(Counting, "a core with a counter"))
    with pytest.raises(ValueError, match=r"its predictions differ by \S+, more than 0\.0001"):
        nd.export(small("counting"), tmp_path / f"driver{suffix}")
    assert not [*tmp_path.iterdir()]


@discrete
def test_a_step_refuses_other_frames_and_times(champion):
    exported = load_onnx(champion[1])
    frame = np.zeros((96, 96, 3), np.uint8)
    for observation, dt, message in (
        (frame[:80], 0.02, r"observation: must be uint8 \(96, 96, 3\), got uint8 \(80, 96, 3\)"),
        (frame.astype(np.float32), 0.02, "got float32"),
        (frame, -1.0, "dt: must be finite seconds >= 0"),
        (frame, float("nan"), "dt: must be finite"),
        (frame, None, "dt: must be a number of seconds .*got None"),
        (None, 0.02, r"observation: must be uint8 \(96, 96, 3\), got object"),
    ):
        with pytest.raises(ValueError, match=message):
            exported.act(observation, exported.begin(), dt)  # type: ignore[arg-type]
    dt: Any = np.array(0.02)
    assert exported.act(frame, exported.begin(), dt)[0] == exported.act(frame, exported.begin(), 0.02)[0]
