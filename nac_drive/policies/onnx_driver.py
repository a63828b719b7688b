"""A driver in one ONNX file, which onnxruntime drives.

It needs onnx and onnxruntime, and no torch.

An ONNX file of another person is a program. `read_onnx` checks it before anything of it runs: no files beside it, no
loops and branches, no operator that a driver does not need, a known size of every tensor, and a bounded work.
"""

from __future__ import annotations

import os
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from nac_drive.policies.config import DriverConfig
from nac_drive.policies.onnx_work import MOST_NODES, require_bounded_work
from nac_drive.policies.ranges import seconds
from nac_drive.storage.names import shell_path
from nac_drive.storage.read import FileError, decode_json, one_line

HEADER = "nac_drive"
"""Key of the header in the metadata of the file."""
FORMAT = 2
"""Format 1 had no `Interface`."""
LARGEST_FILE = 2**28
"""Bytes of the largest file that is read. Ours have less than one megabyte."""
LARGEST_STEP = 2**26
"""Numbers in all tensors of one step together, weights included. Ours have less than a million."""
_WHAT, _FIX = "a driver that `nac-drive export` wrote", "export the driver again"

OnnxState = tuple[np.ndarray, ...]
Signature = tuple[str, tuple[int, ...], str]
"""Name, shape and dtype of a tensor."""
Dimension = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_STEP)]


class StateTensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One tensor of the state: the input `name`, and the output `next_name`."""

    name: str
    shape: tuple[Dimension, ...]
    """With the batch axis, which is 1."""
    dtype: Literal["float32", "float64", "int64", "bool"]
    initial: Literal[0] = 0
    """Value of all its elements at the start of an episode: 0, by the contract of cores."""

    def start(self) -> np.ndarray:
        """Return the tensor at the start of an episode."""
        return np.full(self.shape, self.initial, self.dtype)


class Interface(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Facts of an environment, for a program without the package."""

    frame: str
    """The order of a frame's numbers, in words."""
    black_from_row: int | None
    """First row that was black in the training, down to the last one; None for none."""
    frames_per_second: int
    """Frames of the simulator. The driver may see fewer, and is told the time between them."""
    actions: tuple[str, ...] | None
    """A name of each discrete action; None for continuous control."""
    parts: tuple[str, ...] | None
    """A name of each number of a continuous action; None for discrete control."""


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that a caller must know to drive with the file, as JSON in its metadata."""

    format: Literal[1, 2]
    nac_drive: str
    """Version of the package that wrote it."""
    driver: DriverConfig
    env: dict[str, Any]
    """The EnvConfig of its training."""
    meta: dict[str, Any]
    """Notes saved with the driver."""
    states: tuple[StateTensor, ...]
    interface: Interface | None = None
    """Facts of that environment; None in files of format 1, and of a driver that was trained in none."""

    def inputs(self) -> list[Signature]:
        """Return name, shape and dtype of every input."""
        states = [(state.name, state.shape, state.dtype) for state in self.states]
        return [("observation", (1, *self.driver.frame_shape), "uint8"), ("dt", (1,), "float32"), *states]

    def outputs(self) -> list[Signature]:
        """Return name, shape and dtype of every output."""
        states = [(f"next_{state.name}", state.shape, state.dtype) for state in self.states]
        if self.driver.control == "discrete":
            return [("prediction", (1, self.driver.num_actions), "float32"), ("action", (1,), "int64"), *states]
        parts = len(self.driver.part_ranges)
        return [("prediction", (1, parts), "float32"), ("action", (1, parts), "float32"), *states]


class OnnxDriver:
    """A driver that onnxruntime computes, on one thread: the protocol of `envs.rollout.Driver`.

    Args:
        content: The ONNX file.
        source: The name of the file, for error messages.

    Raises:
        FileError: It is not a driver that `nac-drive export` wrote.
        ValueError: onnx or onnxruntime is not installed.
    """

    def __init__(self, content: bytes, source: str = "driver.onnx") -> None:
        self._content, self._source = content, source
        self.header = read_onnx(content, source)
        self.config = self.header.driver
        self.env_config, self.meta = self.header.env, self.header.meta
        self._session = session(content, source, _WHAT, _FIX)
        self._names = [state.name for state in self.header.states]

    def __reduce__(self) -> tuple[type[OnnxDriver], tuple[bytes, str]]:
        return OnnxDriver, (self._content, self._source)  # a session cannot be pickled

    def begin(self, env: object = None) -> OnnxState:
        """Return the state at the start of an episode. `env` has no effect."""
        return tuple(state.start() for state in self.header.states)

    def act(self, observation: np.ndarray, state: OnnxState, dt: float) -> tuple[int | np.ndarray, OnnxState]:
        """Choose one action.

        Args:
            observation: One frame, (H, W, 3) uint8.
            state: The state before this frame.
            dt: Seconds since the previous observation.

        Returns:
            The action, an int (discrete) or float32 (3,) (continuous), and the new state.

        Raises:
            ValueError: The observation or dt breaks these rules, or the file computes no valid action.
        """
        _, action, state = self.step(observation, state, dt)
        return action, state

    def step(
        self, observation: np.ndarray, state: OnnxState, dt: float
    ) -> tuple[np.ndarray, int | np.ndarray, OnnxState]:
        """Do `act`, and return the prediction before the action too: logits (A,), or the continuous action (3,)."""
        observation, dt = np.asarray(observation), seconds(dt)
        if observation.shape != self.config.frame_shape or observation.dtype != np.uint8:
            raise ValueError(
                f"observation: must be uint8 {self.config.frame_shape}, got {observation.dtype} {observation.shape}; "
                "drive in the environment of the driver's training."
            )
        if not 0.0 <= dt < np.inf:
            raise ValueError(f"dt: must be finite seconds >= 0 since the previous frame, got {dt}.")
        feed = dict(zip(self._names, state, strict=True))
        feed |= {"observation": observation[None], "dt": np.array([dt], np.float32)}
        try:
            prediction, action, *after = self._session.run(None, feed)
        except Exception as error:  # onnxruntime's errors have no common base
            raise ValueError(f"{self._source}: onnxruntime cannot compute a step: {reason(error)}; {_FIX}.") from error
        if not np.isfinite(prediction).all() or not np.isfinite(action).all():
            raise ValueError(f"{self._source}: its prediction must be finite, got {prediction[0]}; {_FIX}.")
        if self.config.control != "discrete":
            return prediction[0], action[0], tuple(after)
        if not 0 <= action[0] < self.config.num_actions:
            raise ValueError(
                f"{self._source}: its action must be below {self.config.num_actions}, got {action[0]}; {_FIX}."
            )
        return prediction[0], int(action[0]), tuple(after)


def load_onnx(path: str | os.PathLike[str]) -> OnnxDriver:
    """Load a driver that `nac-drive export` wrote as ONNX. The file may come from anybody.

    Args:
        path: The file.

    Returns:
        The driver.

    Raises:
        FileNotFoundError: There is no such file.
        FileError: It is not a driver that `nac-drive export` wrote.
        ValueError: onnx or onnxruntime is not installed.
    """
    return OnnxDriver(read_file(Path(path)), str(path))


def read_file(path: Path) -> bytes:
    """Return the content of an ONNX file.

    Raises:
        FileNotFoundError: There is no such file.
        FileError: It is too large.
    """
    if path.is_dir():
        raise FileError(f"{path} is not {_WHAT}: it is a folder; pass a file, or rename the folder of a driver.")
    if not path.is_file():
        raise FileNotFoundError(
            f"driver: there is no file {path}; `nac-drive export --out {shell_path(path.name)}` writes one."
        )
    if path.stat().st_size > LARGEST_FILE:
        raise FileError(f"{path} is not {_WHAT}: it is larger than {LARGEST_FILE:,} bytes; {_FIX}.")
    if not (content := path.read_bytes()):
        raise FileError(f"{path} is not {_WHAT}: it is empty; {_FIX}.")
    return content


def read_onnx(content: bytes, source: str) -> Header:
    """Check an ONNX file without running anything of it, and return its header.

    Args:
        content: The file.
        source: Its name, for error messages.

    Raises:
        FileError: It is not a driver that `nac-drive export` wrote.
        ValueError: onnx or onnxruntime is not installed.
    """
    onnx = require("onnx")
    try:
        model = onnx.load_model_from_string(content)
    except Exception as error:  # protobuf's errors have no public base
        raise FileError(f"{source} is not {_WHAT}: it is damaged, or no ONNX file; {_FIX}.") from error
    if not model.HasField("graph"):
        raise FileError(f"{source} is not {_WHAT}: it is damaged, or no ONNX file; {_FIX}.")
    text = {entry.key: entry.value for entry in model.metadata_props}.get(HEADER)
    if text is None:
        raise FileError(
            f"{source} is not {_WHAT}: it is a model of another program, without the metadata {HEADER!r}; pass a file "
            "of `nac-drive export`."
        )
    text = text.encode() if isinstance(text, str) else text  # protobuf returns bytes where it is not UTF-8
    header = decode_json(text, Header, source, _WHAT, _FIX)
    try:
        header.driver.check()
        _check_graph(onnx, model, header)
    except Exception as error:  # onnx's own errors have no common base
        raise FileError(f"{source} is not {_WHAT}: {reason(error)}; {_FIX}.") from error
    return header


def _check_graph(onnx: Any, model: Any, header: Header) -> None:
    """Check that the model is closed, straight and bounded, and has the inputs and outputs of its header.

    Raises:
        Exception: Several kinds, with the reason.
    """
    derived = derived_graph(onnx, model)
    for values, expected in ((derived.input, header.inputs()), (derived.output, header.outputs())):
        found = [signature(onnx, value) for value in values]
        if found != expected:
            raise ValueError(f"its header promises {expected}, it has {found}")
    require_bounded(onnx, model, derived)


def derived_graph(onnx: Any, model: Any) -> Any:
    """Check that a model is closed and straight, and return its graph with the shapes that follow from its inputs.

    Raises:
        Exception: Several kinds, with the reason.
    """
    graph = model.graph
    if len(graph.node) > MOST_NODES:
        raise ValueError(f"it must have at most {MOST_NODES:,} operators, it has {len(graph.node):,}")
    if model.functions or model.training_info or graph.sparse_initializer:
        raise ValueError("it has functions, training steps or sparse tensors")
    for node in graph.node:
        if node.domain not in ("", "ai.onnx"):
            raise ValueError(f"its operator {node.op_type} is of the domain {node.domain!r}, not of the standard")
        for attribute in node.attribute:
            if attribute.HasField("g") or attribute.graphs:
                raise ValueError(f"it has a loop or a branch, the operator {node.op_type}")
            if attribute.HasField("sparse_tensor") or attribute.sparse_tensors:
                raise ValueError("it has sparse tensors")
    if any(tensor.external_data or tensor.data_location == tensor.EXTERNAL for tensor in _weights(graph)):
        raise ValueError("its weights are in another file: torch.onnx.export keeps them inside by external_data=False")
    onnx.checker.check_model(model)
    del graph.value_info[:]  # sizes are derived, not believed
    # Not from computed values (data_prop): onnx would hold every number of a list, before its size is checked here.
    return onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True).graph


def require_bounded(onnx: Any, model: Any, derived: Any) -> None:
    """Check that a step has tensors of known sizes and bounded work.

    Args:
        onnx: The package.
        model: The model.
        derived: Its `derived_graph`.

    Raises:
        Exception: Several kinds, with the reason.
    """
    graph = model.graph
    values = [signature(onnx, value) for value in (*derived.value_info, *derived.output)]
    if texts := [name for name, _, dtype in values if dtype == "object"]:
        raise ValueError(f"its tensor {texts[0]!r} holds texts")
    shapes = {name: shape for name, shape, _ in values}
    unknown = {name for node in graph.node for name in node.output if name} - shapes.keys()
    if unknown:
        raise ValueError(f"the size of its tensor {min(unknown)!r} is not fixed")
    total = sum(map(prod, shapes.values())) + sum(prod(map(abs, tensor.dims)) for tensor in _weights(graph))
    if total > LARGEST_STEP:
        raise ValueError(f"a step must have at most {LARGEST_STEP:,} numbers, it has {total:,}")
    shapes |= {name: shape for name, shape, _ in (signature(onnx, value) for value in derived.input)}
    shapes |= {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    require_bounded_work(graph.node, shapes)


def _weights(graph: Any) -> list[Any]:
    """Return the tensors that a graph holds."""
    attributes = [attribute for node in graph.node for attribute in node.attribute]
    return [*graph.initializer, *(tensor for one in attributes for tensor in (one.t, *one.tensors))]


def signature(onnx: Any, value: Any) -> Signature:
    """Return name, shape and dtype of a tensor.

    Raises:
        ValueError: It has no fixed shape.
    """
    kind = value.type.tensor_type
    if not kind.HasField("shape") or not all(
        axis.HasField("dim_value") and axis.dim_value >= 0 for axis in kind.shape.dim
    ):
        raise ValueError(f"the size of its tensor {value.name!r} is not fixed")
    shape = tuple(axis.dim_value for axis in kind.shape.dim)
    return value.name, shape, onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type).name


def session(content: bytes, source: str, what: str, fix: str) -> Any:
    """Start onnxruntime with a file that was checked, on one thread.

    Args:
        content: The file.
        source: Its name, for error messages.
        what: What it should be, for error messages.
        fix: The advice of an error.

    Raises:
        FileError: onnxruntime refuses it.
        ValueError: onnxruntime is not installed.
    """
    onnxruntime = require("onnxruntime")
    onnxruntime.disable_telemetry_events()  # its wheels can report to Microsoft
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4  # errors are raised, not printed
    try:
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's errors have no common base
        raise FileError(f"{source} is not {what}: onnxruntime refuses it: {reason(error)}; {fix}.") from error


def require(*names: str) -> Any:
    """Import packages of the extra `export`, and return the first.

    Raises:
        ValueError: One is not installed.
    """
    try:
        first, *_ = [import_module(name) for name in names]
    except ImportError as error:
        raise ValueError(f"{error.name} is not installed; run `pip install 'nac-drive[export]'`.") from error
    return first


def reason(error: BaseException) -> str:
    """Return the reason of an error, in one line."""
    return one_line(error)[:300]
