"""ONNX files of other people: each is refused in one line before anything of it runs."""

from __future__ import annotations

import json
import random
import resource
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from nac_drive.policies import load_onnx, onnx_driver
from nac_drive.policies.onnx_driver import HEADER, LARGEST_STEP, OnnxDriver
from nac_drive.storage.read import FileError
from tests.commands import call

DRIVER = {"control": "discrete", "num_actions": 5, "frame_shape": [4, 4, 3], "core": "mine"}
STATES = [{"name": "state_0", "shape": [1, 2], "dtype": "float32", "initial": 0}]


def header(**changes: Any) -> str:
    fields = {"format": 1, "nac_drive": "0", "driver": DRIVER, "env": {}, "meta": {}, "states": STATES}
    return json.dumps(fields | changes)


def value(name: str, kind: int, *shape: int | str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def model() -> onnx.ModelProto:
    """A driver that always chooses the action 3, and counts the seconds in its state."""
    logits = numpy_helper.from_array(np.array([[0, 0, 0, 1, 0]], np.float32), "logits")
    nodes = [
        helper.make_node("Identity", ["logits"], ["prediction"]),
        helper.make_node("ArgMax", ["logits"], ["action"], axis=1, keepdims=0),
        helper.make_node("Add", ["state_0", "dt"], ["next_state_0"]),
    ]
    inputs = [
        value("observation", TensorProto.UINT8, 1, 4, 4, 3),
        value("dt", TensorProto.FLOAT, 1),
        value("state_0", TensorProto.FLOAT, 1, 2),
    ]
    outputs = [
        value("prediction", TensorProto.FLOAT, 1, 5),
        value("action", TensorProto.INT64, 1),
        value("next_state_0", TensorProto.FLOAT, 1, 2),
    ]
    graph = helper.make_graph(nodes, "step", inputs, outputs, [logits])
    made = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 20)])
    made.metadata_props.add(key=HEADER, value=header())
    return made


def with_header(text: str) -> Callable[[onnx.ModelProto], None]:
    def change(made: onnx.ModelProto) -> None:
        made.metadata_props[0].value = text

    return change


def with_node(operator: str, inputs: list[str], **attributes: Any) -> Callable[[onnx.ModelProto], None]:
    def change(made: onnx.ModelProto) -> None:
        made.graph.node.append(helper.make_node(operator, inputs, ["more"], **attributes))

    return change


def external(tensor: TensorProto) -> None:
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="/etc/passwd")


def external_weights(made: onnx.ModelProto) -> None:
    external(made.graph.initializer[0])


def external_constant(made: onnx.ModelProto) -> None:
    tensor = numpy_helper.from_array(np.zeros(5, np.float32), "constant")
    external(tensor)
    with_node("Constant", [], value=tensor)(made)


def huge(made: onnx.ModelProto) -> None:
    shape = numpy_helper.from_array(np.array([2**40, 2**20], np.int64), "shape")
    made.graph.initializer.append(shape)
    with_node("ConstantOfShape", ["shape"])(made)


def many(made: onnx.ModelProto) -> None:
    """Tensors of which each is small enough."""
    shape = numpy_helper.from_array(np.array([LARGEST_STEP // 4], np.int64), "shape")
    made.graph.initializer.append(shape)
    made.graph.node.extend(helper.make_node("ConstantOfShape", ["shape"], [f"more{i}"]) for i in range(5))


def negative(made: onnx.ModelProto) -> None:
    """A size below zero would make room for another."""
    huge(made)
    made.graph.initializer[0].dims[:] = [-(2**61)]


def loop(made: onnx.ModelProto) -> None:
    body = helper.make_graph([], "body", [], [])
    with_node("Loop", ["", ""], body=body)(made)


def function(made: onnx.ModelProto) -> None:
    made.functions.append(helper.make_function("mine", "f", [], [], [], []))


def sparse(made: onnx.ModelProto) -> None:
    made.graph.sparse_initializer.add(dims=[2**60])


def unknown_size(made: onnx.ModelProto) -> None:
    with_node("NonZero", ["state_0"])(made)


def free_size(made: onnx.ModelProto) -> None:
    made.graph.input[2].CopyFrom(value("state_0", TensorProto.FLOAT, 1, "many"))


def lying_size(made: onnx.ModelProto) -> None:
    made.graph.output[2].CopyFrom(value("next_state_0", TensorProto.FLOAT, 1, 1))


def renamed(made: onnx.ModelProto) -> None:
    made.graph.input[1].name = made.graph.node[2].input[1] = "seconds"


def cyclic(made: onnx.ModelProto) -> None:
    made.graph.node[2].input[0] = "next_state_0"


def constant_of(made: onnx.ModelProto, name: str, *shape: int) -> None:
    """A large tensor in a small file."""
    made.graph.initializer.append(numpy_helper.from_array(np.array(shape, np.int64), f"{name}_shape"))
    made.graph.node.append(helper.make_node("ConstantOfShape", [f"{name}_shape"], [name]))


def wide_convolution(made: onnx.ModelProto) -> None:
    constant_of(made, "image", 1, 1, 2_020, 2_050)
    constant_of(made, "kernel", 1, 1, 2_001, 2_001)
    with_node("Conv", ["image", "kernel"])(made)


def wide_product(made: onnx.ModelProto) -> None:
    constant_of(made, "matrix", 2_000, 2_000)
    with_node("MatMul", ["matrix", "matrix"])(made)


def transposed_product(made: onnx.ModelProto) -> None:
    """The sum runs over its first axis."""
    constant_of(made, "matrix", 20_000, 500)
    with_node("Gemm", ["matrix", "matrix"], transA=1)(made)


def wide_einsum(made: onnx.ModelProto) -> None:
    constant_of(made, "matrix", 1_000, 1_000)
    constant_of(made, "batch", 2, 1_000, 1_000)
    with_node("Einsum", ["batch", "matrix"], equation="...ij, jk -> ...ik")(made)


def long_recurrence(made: onnx.ModelProto) -> None:
    """Its first output, of all steps, is left out."""
    constant_of(made, "sequence", 20_000, 1, 8)
    constant_of(made, "weights", 1, 1_024, 8)
    constant_of(made, "recurrent", 1, 1_024, 256)
    made.graph.node.append(
        helper.make_node("LSTM", ["sequence", "weights", "recurrent"], ["", "more"], hidden_size=256)
    )


def wide_pool(made: onnx.ModelProto) -> None:
    constant_of(made, "image", 1, 1, 2_020, 2_300)
    with_node("MaxPool", ["image"], kernel_shape=[2_001, 2_001])(made)


def many_operators(made: onnx.ModelProto) -> None:
    made.graph.node.extend(helper.make_node("Neg", ["dt"], [f"more{i}"]) for i in range(20_000))


def long_list(made: onnx.ModelProto) -> None:
    """A list that could be a shape: onnx would hold 150 bytes for each of its numbers."""
    constant_of(made, "list", 2**23)
    with_node("Add", ["list", "dt"])(made)


def computed_size(made: onnx.ModelProto) -> None:
    made.graph.initializer.append(numpy_helper.from_array(np.array([2**12], np.int64), "length"))
    made.graph.node.append(helper.make_node("Add", ["length", "length"], ["double"]))
    made.graph.node.append(helper.make_node("Mul", ["length", "double"], ["product"]))
    made.graph.node.append(helper.make_node("ConstantOfShape", ["product"], ["list"]))
    with_node("Add", ["list", "dt"])(made)


def texts(made: onnx.ModelProto) -> None:
    with_node("Cast", ["dt"], to=TensorProto.STRING)(made)


RANDOM: list[tuple[str, list[str], dict[str, Any]]] = [
    ("RandomNormalLike", ["state_0"], {}), ("RandomUniformLike", ["state_0"], {}), ("Bernoulli", ["state_0"], {}),
    ("RandomNormal", [], {"shape": [1, 2]}), ("RandomUniform", [], {"shape": [1, 2]}),
    ("Multinomial", ["state_0"], {}), ("Dropout", ["state_0"], {}),
]  # fmt: skip


HOSTILE: dict[str, tuple[Callable[[onnx.ModelProto], None], str]] = {
    "external weights": (external_weights, "its weights are in another file"),
    "external constant": (external_constant, "its weights are in another file"),
    "huge": (huge, "a step must have at most"),
    "many": (many, "a step must have at most"),
    "negative": (negative, "is not a driver"),
    "loop": (loop, "a loop or a branch, the operator Loop"),
    "function": (function, "functions, training steps or sparse tensors"),
    "sparse": (sparse, "functions, training steps or sparse tensors"),
    "foreign operator": (with_node("Shell", [], domain="mine"), "its operator Shell is of the domain 'mine'"),
    "unknown operator": (with_node("Shell", []), "No Op registered for Shell"),
    "wide convolution": (wide_convolution, "at most 1,073,741,824 multiply-adds, it has 4,004,001,000"),
    "wide product": (wide_product, "at most 1,073,741,824 multiply-adds"),
    "transposed product": (transposed_product, "at most 1,073,741,824 multiply-adds"),
    "wide sum of products": (wide_einsum, "at most 1,073,741,824 multiply-adds"),
    "long recurrence": (long_recurrence, "at most 1,073,741,824 multiply-adds"),
    "wide pool": (wide_pool, "at most 1,073,741,824 multiply-adds"),
    "many operators": (many_operators, "at most 16,384 operators, it has 20,003"),
    **{
        name: (with_node(name, inputs, **attributes), f"its operator {name} is none that a driver needs")
        for name, inputs, attributes in RANDOM
    },
    "computed size": (computed_size, "the size of its tensor 'list' is not fixed"),
    "texts": (texts, "its tensor 'more' holds texts"),
    "unknown size": (unknown_size, "the size of its tensor 'more' is not fixed"),
    "free size": (free_size, "the size of its tensor 'state_0' is not fixed"),
    "lying size": (lying_size, "is not a driver"),
    "renamed": (renamed, "its header promises"),
    "cyclic": (cyclic, "is not a driver"),
    "no header": (with_header(""), "is not a driver that `nac-drive export` wrote"),
    "no JSON": (with_header("{"), "is not a driver"),
    "deep": (with_header("[" * 100_000), "is not a driver"),
    "other format": (with_header(header(format=3)), r"\$\.format"),
    "unknown key": (with_header(header(more=1)), "unknown field `more`"),
    "other control": (with_header(header(driver=DRIVER | {"control": "wish"})), "Invalid enum value 'wish'"),
    "other actions": (with_header(header(driver=DRIVER | {"num_actions": 6})), "its header promises"),
    "huge state": (with_header(header(states=[STATES[0] | {"shape": [1, 2**62]}])), r"\$\.states\[0\]\.shape"),
    "other dtype": (with_header(header(states=[STATES[0] | {"dtype": "object"}])), r"\$\.states\[0\]\.dtype"),
    "other start": (with_header(header(states=[STATES[0] | {"initial": 1}])), r"\$\.states\[0\]\.initial"),
    "more states": (with_header(header(states=STATES * 2)), "its header promises"),
}


def test_the_model_of_these_tests_drives():
    driver = OnnxDriver(model().SerializeToString())
    state, frame = driver.begin(), np.zeros((4, 4, 3), np.uint8)
    for _ in range(2):
        action, state = driver.act(frame, state, 0.5)
        assert action == 3
    assert state[0].tolist() == [[1.0, 1.0]]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_before_it_runs(name, tmp_path, monkeypatch):
    change, message = HOSTILE[name]
    made = model()
    change(made)
    path = tmp_path / "driver.onnx"
    path.write_bytes(made.SerializeToString())
    monkeypatch.setattr(onnx_driver, "session", lambda *_: pytest.fail("it was given to onnxruntime"))
    with pytest.raises(FileError, match=message) as caught:
        load_onnx(path)
    assert str(caught.value).startswith(f"{path} is not a driver that `nac-drive export` wrote")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("change", [long_list, computed_size])
def test_sizes_are_derived_in_little_memory(change):
    made = model()
    change(made)
    content = made.SerializeToString()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with suppress(FileError):
        onnx_driver.read_onnx(content, "driver.onnx")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**16  # kilobytes


def test_a_model_of_another_program_is_called_so(tmp_path):
    made = model()
    del made.metadata_props[:]
    (tmp_path / "foreign.onnx").write_bytes(made.SerializeToString())
    with pytest.raises(FileError, match="a model of another program, without the metadata 'nac_drive'; pass a file of"):
        load_onnx(tmp_path / "foreign.onnx")


def outcome(content: bytes) -> str:
    """The error of loading a file and driving one step with it, empty for none."""
    try:
        driver = OnnxDriver(content)
        driver.act(np.zeros(driver.config.frame_shape, np.uint8), driver.begin(), 0.02)
    except ValueError as error:
        return str(error)
    return ""


def test_damaged_bytes_are_refused_or_drive():
    """Bit flips, cuts and repetitions: a driver, or one line."""
    content, rng, refused = model().SerializeToString(), random.Random(0), 0
    for _ in range(400):
        changed = bytearray(content)
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(changed))
            match rng.randrange(3):
                case 0:
                    changed[at] ^= 1 << rng.randrange(8)
                case 1:
                    del changed[at : at + rng.randrange(1, 30)]
                case _:
                    changed[at:at] = changed[at : at + rng.randrange(1, 30)]
        error = outcome(bytes(changed))
        assert "\n" not in error
        refused += bool(error)
    assert refused > 200


def test_an_action_that_does_not_exist_ends_the_episode():
    made = model()
    made.graph.node[1].CopyFrom(helper.make_node("Constant", [], ["action"], value_ints=[5]))
    driver = OnnxDriver(made.SerializeToString())
    with pytest.raises(ValueError, match="its action must be below 5, got 5"):
        driver.act(np.zeros((4, 4, 3), np.uint8), driver.begin(), 0.0)


def test_a_prediction_that_is_not_finite_ends_the_episode():
    made = model()
    made.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.full((1, 5), np.nan, np.float32), "logits"))
    driver = OnnxDriver(made.SerializeToString())
    with pytest.raises(ValueError, match="its prediction must be finite, got "):
        driver.act(np.zeros((4, 4, 3), np.uint8), driver.begin(), 0.0)


def test_an_error_of_the_runtime_is_one_line():
    made = model()
    made.graph.initializer.append(numpy_helper.from_array(np.array([7], np.int64), "at"))
    made.graph.node[0].CopyFrom(helper.make_node("Gather", ["state_0", "at"], ["column"], axis=1))
    made.graph.node.append(helper.make_node("Add", ["column", "logits"], ["prediction"]))
    error = outcome(made.SerializeToString())
    assert "onnxruntime" in error
    assert "\n" not in error


def test_a_file_that_is_too_large_is_not_read(tmp_path):
    path = tmp_path / "driver.onnx"
    with path.open("wb") as file:
        file.truncate(onnx_driver.LARGEST_FILE + 1)
    with pytest.raises(FileError, match="it is larger than 268,435,456 bytes"):
        load_onnx(path)


def test_the_command_line_refuses_in_one_line(tmp_path, capsys):
    path = tmp_path / "driver.onnx"
    for content, message in ((None, "there is no file"), (b"", "is not a driver"), (b"\x08" * 99, "is not a driver")):
        if content is not None:
            path.write_bytes(content)
        assert call("evaluate", "--driver", str(path)) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
