"""An ONNX file of another program as a driver.

Its form follows from the shapes of its graph. It is checked as a file of `nac-drive export` is, before anything of it
runs.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from nac_drive.policies.image_input import OWN_FUNCTION, ImageInput, UnfitError
from nac_drive.policies.onnx_driver import (
    HEADER,
    OnnxDriver,
    derived_graph,
    read_file,
    reason,
    require,
    require_bounded,
    session,
    signature,
)
from nac_drive.storage.read import FileError

_WHAT = "a driver"
_FIX = (
    "export it with one input, frames (1, 3 k, H, W) or (1, H, W, 3 k), and an action or the logits as first output, "
    "or write a function drive(observation) in mine.py that calls onnxruntime, and pass mine.py:drive"
)
_FLOATS = ("float16", "float32", "float64")
_CARRIED = ("Cast", "Transpose", "Identity", "Reshape", "Squeeze", "Unsqueeze")
"""Operators that change no value."""


def load_any_onnx(path: str | os.PathLike[str]) -> OnnxDriver | ForeignOnnx:
    """Load an ONNX file as a driver.

    It may come from anybody and from any program.

    Args:
        path: The file.

    Raises:
        FileNotFoundError: There is no such file.
        FileError: It cannot drive.
        ValueError: onnx or onnxruntime is not installed.
    """
    content, onnx = read_file(Path(path)), require("onnx")
    try:
        ours = any(entry.key == HEADER for entry in onnx.load_model_from_string(content).metadata_props)
    except Exception as error:  # protobuf's errors have no public base
        raise FileError(f"{path} is not {_WHAT}: it is damaged, or no ONNX file; export it again.") from error
    return OnnxDriver(content, str(path)) if ours else ForeignOnnx(content, str(path))


class ForeignOnnx:
    """A policy in an ONNX file of another program.

    It runs on one thread. Its one input holds the last frames, uint8 or float, channels first or last. Its first output
    is the action, int64 or (1, 3) for steer, gas and brake, or the logits of the discrete actions, of which the largest
    wins.

    A float input gets frames from 0 to 255 if the graph divides by 255 itself, and frames from 0 to 1 if not.

    Args:
        content: The ONNX file.
        source: The name of the file, for error messages.

    Raises:
        FileError: It is none of these.
        ValueError: onnx or onnxruntime is not installed.
    """

    def __init__(self, content: bytes, source: str = "driver.onnx") -> None:
        self._content, self._source = content, source
        self.sha256 = hashlib.sha256(content).hexdigest()
        onnx = require("onnx")
        try:
            model = onnx.load_model_from_string(content)
            _fix_batch(model.graph)
            derived = derived_graph(onnx, model)
            require_bounded(onnx, model, derived)
            self.image_input = _image_input(onnx, model.graph, derived, source)
            self._is_action, self.control = _output(onnx, derived)
        except UnfitError as error:
            raise FileError(str(error)) from error
        except Exception as error:  # onnx's own errors have no common base
            raise FileError(f"{source} is not {_WHAT}: {reason(error).rstrip('.')}; {_FIX}.") from error
        self._session = session(model.SerializeToString(), source, _WHAT, _FIX)
        self._input = self._session.get_inputs()[0].name
        self._output = self._session.get_outputs()[0].name

    def __reduce__(self) -> tuple[type[ForeignOnnx], tuple[bytes, str]]:
        return ForeignOnnx, (self._content, self._source)  # a session cannot be pickled

    def begin(self, env: object = None) -> np.ndarray:
        """Return the stack of frames at an episode's start. `env` has no effect."""
        return self.image_input.start()

    def act(self, observation: np.ndarray, state: np.ndarray, dt: float) -> tuple[Any, np.ndarray]:
        """Choose one action from the last frames.

        Args:
            observation: One frame, (H, W, 3) uint8.
            state: The stack before this frame.
            dt: It has no effect.

        Returns:
            The action, an integer or (3,), and the new stack.
        """
        self.image_input.require(observation.shape, self._source)
        stack = self.image_input.push(state, observation)
        try:
            (output,) = self._session.run([self._output], {self._input: self.image_input.array(stack)[None]})
        except Exception as error:  # onnxruntime's errors have no common base
            raise UnfitError(f"{self._source}: onnxruntime cannot compute a step: {reason(error)}; {_FIX}.") from error
        if self._is_action:
            return (output.reshape(()) if self.control == "discrete" else output[0]), stack
        if not np.isfinite(output).all():
            raise UnfitError(f"{self._source}: its logits must be finite, got {output[0]}; {_FIX}.")
        return np.argmax(output[0]), stack


def _fix_batch(graph: Any) -> None:
    """Set the batch axis to 1.

    The shapes of the outputs follow from it.
    """
    weights = {tensor.name for tensor in graph.initializer}
    for value in graph.input:
        axes = value.type.tensor_type.shape.dim
        if value.name not in weights and axes and not axes[0].dim_value:
            axes[0].dim_value = 1
    for value in graph.output:
        for axis in value.type.tensor_type.shape.dim:
            axis.Clear()


def _image_input(onnx: Any, graph: Any, derived: Any, source: str) -> ImageInput:
    """Recognise the frames that the graph takes.

    Raises:
        ValueError: It takes something else.
    """
    weights = {tensor.name for tensor in graph.initializer}
    inputs = [signature(onnx, value) for value in derived.input if value.name not in weights]
    if len(inputs) != 1:
        raise ValueError(f"it must have one input, the frames, it has {[name for name, _, _ in inputs]}")
    ((name, shape, dtype),) = inputs
    if len(shape) != 4 or shape[0] != 1 or dtype not in ("uint8", *_FLOATS):
        raise ValueError(f"its input must be uint8 or float frames with a batch axis of 1, got {dtype} {shape}")
    largest = 255 if dtype == "uint8" or _divides(onnx, graph, name) else 1
    if largest == 1:
        warnings.warn(
            f"driver {source!r}: its float input gets frames from 0 to 1, as its graph does not divide by 255; if it "
            f"expects other values, {OWN_FUNCTION}.",
            stacklevel=2,
        )
    return ImageInput.of(shape[1:], source, dtype, largest)


def _divides(onnx: Any, graph: Any, name: str) -> bool:
    """Return whether the graph divides an input by 255 first."""
    constants = {tensor.name: tensor for tensor in graph.initializer}
    constants |= {
        node.output[0]: attribute.t
        for node in graph.node if node.op_type == "Constant"
        for attribute in node.attribute if attribute.name == "value"
    }  # fmt: skip
    names = {name}
    for node in graph.node:  # they are sorted
        first, other = (*node.input, "", "")[:2]
        if node.op_type == "Mul" and other in names:  # either may be the constant
            first, other = other, first
        if first not in names:
            continue
        if node.op_type in _CARRIED:
            names.add(node.output[0])
        elif node.op_type in ("Div", "Mul") and other in constants:
            factor = onnx.numpy_helper.to_array(constants[other])
            return bool(factor.size == 1 and np.isclose(factor.item(), 255 if node.op_type == "Div" else 1 / 255))
        else:
            return False
    return False


def _output(onnx: Any, derived: Any) -> tuple[bool, str]:
    """Return whether the output is an action, and the control.

    Raises:
        ValueError: It is neither an action nor logits.
    """
    _, shape, dtype = signature(onnx, derived.output[0])
    if dtype in ("int32", "int64") and shape in ((), (1,), (1, 1)):
        return True, "discrete"
    if dtype in _FLOATS and len(shape) == 2 and shape[0] == 1 and shape[1] > 1:
        return (True, "continuous") if shape[1] == 3 else (False, "discrete")
    raise ValueError(f"its first output must be int64 (1,), (1, 3), or logits (1, actions), got {dtype} {shape}")
