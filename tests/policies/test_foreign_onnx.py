"""A foreign ONNX file drives as its network."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn

from nac_drive.policies import OnnxDriver
from nac_drive.policies.foreign_onnx import ForeignOnnx, load_any_onnx
from nac_drive.storage.read import FileError

pytestmark = pytest.mark.usefixtures("quick_exports")
FRAME = (8, 8, 3)


class Network(nn.Module):
    """A small network of frames (N, C, H, W) or (N, H, W, C)."""

    def __init__(self, channels: int, outputs: int, *, last: bool = False, scale: float = 1.0, action: bool = False):
        super().__init__()
        self.convolution = nn.Conv2d(channels, 4, 3, stride=2)
        self.linear = nn.Linear(36, outputs)
        self.last, self.scale, self.action = last, scale, action

    def forward(self, frames: torch.Tensor) -> Any:
        frames = frames.permute(0, 3, 1, 2) if self.last else frames
        frames = frames.float() / self.scale if self.scale != 1 else frames.float()
        outputs = self.linear(self.convolution(frames).relu().flatten(1))
        if self.action:
            return outputs.argmax(dim=1), outputs
        return outputs


def exported(path: Path, network: nn.Module, example: torch.Tensor, **options: Any) -> Path:
    """Write a network as anybody would."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(network.eval(), (example,), path, dynamo=True, external_data=False, verbose=False, **options)
    return path


FORMS: dict[str, tuple[dict[str, Any], tuple[int, ...], torch.dtype]] = {
    "bytes, channels last": ({"channels": 3, "outputs": 5, "last": True, "scale": 255.0}, (1, 8, 8, 3), torch.uint8),
    "bytes, two frames": ({"channels": 6, "outputs": 3, "scale": 255.0}, (1, 6, 8, 8), torch.uint8),
    "floats to 255": ({"channels": 3, "outputs": 5, "scale": 255.0}, (1, 3, 8, 8), torch.float32),
    "floats to 1": ({"channels": 6, "outputs": 3, "last": True}, (1, 8, 8, 6), torch.float32),
    "an action": ({"channels": 3, "outputs": 5, "scale": 255.0, "action": True}, (1, 3, 8, 8), torch.uint8),
}


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.filterwarnings("ignore:driver .* its float input gets frames from 0 to 1")
def test_it_acts_as_the_network_on_the_last_frames(name, tmp_path):
    settings, shape, dtype = FORMS[name]
    torch.manual_seed(0)
    network = Network(**settings)
    network.linear.weight.data *= 30
    path = exported(tmp_path / "foreign.onnx", network, torch.zeros(shape, dtype=dtype))
    driver = load_any_onnx(path)
    assert isinstance(driver, ForeignOnnx)
    again = pickle.loads(pickle.dumps(driver))
    count, first = settings["channels"] // 3, not settings.get("last")
    rng, state, frames, chosen = np.random.default_rng(0), driver.begin(), [np.zeros(FRAME, np.uint8)] * count, []
    for _ in range(12):
        frame = rng.integers(256, size=FRAME, dtype=np.uint8)
        frames = [*frames, frame][-count:]
        stacked = torch.from_numpy(np.concatenate(frames, axis=-1))[None]
        stacked = stacked.permute(0, 3, 1, 2) if first else stacked
        scaled = stacked.to(dtype) / 255 if "to 1" in name else stacked.to(dtype)
        with torch.no_grad():
            expected = network(scaled)
        expected = expected[0] if isinstance(expected, tuple) else expected
        action, after = driver.act(frame, state, 0.02)
        assert np.array_equal(action, again.act(frame, state, 0.02)[0])
        state = after
        if settings.get("action"):
            assert action == expected.item()
        elif settings["outputs"] == 5:
            assert action == expected.argmax().item()
        else:
            assert np.allclose(action, expected[0], atol=1e-4)
        chosen.append(np.asarray(action).tolist())
    assert driver.control == ("continuous" if settings["outputs"] == 3 else "discrete")
    assert any(action != chosen[0] for action in chosen)


def test_frames_from_0_to_1_are_said_in_one_line(tmp_path):
    path = exported(tmp_path / "foreign.onnx", Network(3, 5), torch.zeros(1, 3, 8, 8))
    with pytest.warns(UserWarning, match="its float input gets frames from 0 to 1, as its graph does not divide by"):
        load_any_onnx(path)


@pytest.mark.parametrize("constant_first", [True, False])
@pytest.mark.filterwarnings("error")
def test_a_product_has_its_constant_on_either_side(constant_first, tmp_path):
    path = exported(tmp_path / "divides.onnx", Network(3, 5, scale=255.0), torch.zeros(1, 3, 8, 8))
    model = onnx.load(path)
    (division,) = (node for node in model.graph.node if node.op_type == "Div")
    frames = division.input[0]
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(1 / 255, np.float32), "a 255th"))
    division.op_type = "Mul"
    del division.input[:]
    division.input.extend(["a 255th", frames] if constant_first else [frames, "a 255th"])
    onnx.save(model, tmp_path / "multiplies.onnx")
    frame = np.random.default_rng(0).integers(256, size=FRAME, dtype=np.uint8)
    drivers: list[Any] = [load_any_onnx(tmp_path / f"{name}.onnx") for name in ("divides", "multiplies")]
    assert drivers[0].act(frame, drivers[0].begin(), 0.0)[0] == drivers[1].act(frame, drivers[1].begin(), 0.0)[0]


def test_weights_beside_the_file_are_refused_with_the_option_that_keeps_them_inside(tmp_path):
    path = exported(tmp_path / "foreign.onnx", Network(3, 5), torch.zeros(1, 3, 8, 8))
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="foreign.onnx.data", size_threshold=0)
    with pytest.raises(FileError, match=r"torch\.onnx\.export keeps them inside by external_data=False"):
        load_any_onnx(path)


def test_a_batch_of_any_size_is_driven_with_a_batch_of_1(tmp_path):
    batch = torch.export.Dim("batch")
    network, example = Network(3, 5, scale=255.0), torch.zeros(2, 3, 8, 8)
    path = exported(tmp_path / "foreign.onnx", network, example, dynamic_shapes={"frames": {0: batch}})
    driver = load_any_onnx(path)
    assert isinstance(driver, ForeignOnnx)
    frame = np.full(FRAME, 200, np.uint8)
    with torch.no_grad():
        expected = network(torch.from_numpy(frame).permute(2, 0, 1)[None].float()).argmax().item()
    assert driver.act(frame, driver.begin(), 0.0)[0] == expected


def graph(inputs: dict[str, tuple[Any, int]], output: tuple[Any, int], *nodes: Any) -> bytes:
    """A model of given inputs and one output."""
    values = [helper.make_tensor_value_info(name, kind, shape) for name, (shape, kind) in inputs.items()]
    made = helper.make_graph(
        nodes or [helper.make_node("Identity", [next(iter(inputs))], ["y"])], "g", values,
        [helper.make_tensor_value_info("y", output[1], output[0])],
    )  # fmt: skip
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=9).SerializeToString()


BYTES, FLOAT = TensorProto.UINT8, TensorProto.FLOAT
IMAGE = ((1, 3, 8, 8), BYTES)
REFUSED: dict[str, tuple[bytes, str]] = {
    "no ONNX": (b"\x08" * 99, "it is damaged, or no ONNX file"),
    "two inputs": (graph({"x": IMAGE, "dt": ((1,), FLOAT)}, IMAGE), r"one input, the frames, it has \['x', 'dt'\]"),
    "a vector": (
        graph({"x": ((1, 12), FLOAT)}, ((1, 12), FLOAT)),
        r"frames with a batch axis of 1, got float32 \(1, 12\)",
    ),
    "integers": (graph({"x": ((1, 3, 8, 8), TensorProto.INT64)}, ((1, 3, 8, 8), TensorProto.INT64)), "got int64"),
    "grey": (graph({"x": ((1, 1, 8, 8), BYTES)}, ((1, 1, 8, 8), BYTES)), "must be colour frames"),
    "any size": (graph({"x": ((1, 3, None, None), BYTES)}, ((1, 3, None, None), BYTES)), "is not fixed"),
    "an image out": (graph({"x": IMAGE}, IMAGE), r"its first output must be int64 \(1,\), .* got uint8 \(1, 3, 8, 8\)"),
    "random": (
        graph({"x": IMAGE}, ((1, 5), FLOAT), helper.make_node("RandomNormal", [], ["y"], shape=[1, 5])),
        "its operator RandomNormal is none that a driver needs",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_recognised_is_refused_with_what_to_do(name, tmp_path):
    content, message = REFUSED[name]
    (tmp_path / "foreign.onnx").write_bytes(content)
    with pytest.raises(FileError, match=message) as caught:
        load_any_onnx(tmp_path / "foreign.onnx")
    assert "\n" not in str(caught.value)
    assert name == "no ONNX" or "write a function drive(observation) in mine.py" in str(caught.value)


def test_a_file_of_ours_is_ours(tmp_path):
    from tests.policies.test_export_hostile import model

    (tmp_path / "ours.onnx").write_bytes(model().SerializeToString())
    assert isinstance(load_any_onnx(tmp_path / "ours.onnx"), OnnxDriver)
