"""Export of a driver: one step as ONNX or torch program.

A step is (frame, dt, state) -> (prediction, action, state).
"""

from __future__ import annotations

import copy
import io
import os
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from nac_drive.arguments import path_of
from nac_drive.policies.cores.base import NOMINAL_DT, State
from nac_drive.policies.driver import Driver
from nac_drive.policies.onnx_driver import FORMAT, HEADER, Header, Interface, OnnxDriver, StateTensor, require
from nac_drive.policies.ops.quiet import quiet_exporters
from nac_drive.policies.ops.threads import one_thread
from nac_drive.policies.ops.weight_cache import WeightCache
from nac_drive.storage.read import one_line
from nac_drive.storage.write import require_new, require_writable, write_atomically, writing

SUFFIXES = (".onnx", ".pt2")
TOLERANCE = 1e-4
"""Largest difference between the predictions of an exported driver and of the driver itself."""
_DTYPES: dict[torch.dtype, Literal["float32", "float64", "int64", "bool"]] = {
    torch.float32: "float32", torch.float64: "float64", torch.int64: "int64", torch.bool: "bool"
}  # fmt: skip


def require_new_file(path: str | os.PathLike[str]) -> Path:
    """Return the path of a file to export to.

    Raises:
        FileExistsError: It exists.
        ValueError: It has another suffix, or is no path.
        WriteError: It cannot be written.
    """
    path = path_of("out", path)
    if path.suffix not in SUFFIXES:
        raise ValueError(f"out: the file must end with {' or '.join(SUFFIXES)}, got {path}.")
    require_new(path)
    require_writable(path)
    return path


def export_step(driver: Driver, path: str | os.PathLike[str], interface: Interface | None = None) -> Path:
    """Write one step of a driver to one file.

    Args:
        driver: The driver.
        path: The new file.
        interface: What its environment must be told.

    Returns:
        The file.

    Raises:
        FileExistsError, ValueError: See `require_new_file`; or a package is not installed, or the core cannot be
            exported.
        WriteError: The file cannot be written.
    """
    path = require_new_file(path)
    step = _Step(copy.deepcopy(driver).cpu().float().eval(), interface)
    with quiet_exporters(), torch.no_grad(), one_thread():
        step.freeze()
        content = _onnx(step) if path.suffix == ".onnx" else _pt2(step)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content, new=True)
    return path


class _Step(nn.Module):
    """One decision of a driver as a function of tensors."""

    def __init__(self, driver: Driver, interface: Interface | None) -> None:
        super().__init__()
        self.driver, self.interface = driver, interface

    def forward(self, observation: Tensor, dt: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        """Return prediction, action and new state of one step.

        The inputs are observation (1, H, W, 3), dt (1,) and the state.
        """
        driver = self.driver
        prediction, after = driver.decide(driver.features(observation.unsqueeze(1)), dt.unsqueeze(1), state)
        prediction = prediction.squeeze(1)  # (1, A)
        action = prediction.argmax(dim=1) if driver.config.control == "discrete" else prediction.clone()
        return prediction, action, *after

    def freeze(self) -> None:
        """Compute the derived weights once for all."""
        self(*self.inputs())
        for module in self.driver.modules():
            for part in vars(module).values():
                if isinstance(part, WeightCache):
                    part.freeze()

    def inputs(self) -> tuple[Tensor, ...]:
        """Return the inputs of the first step of an episode."""
        frame = torch.zeros(1, *self.driver.config.frame_shape, dtype=torch.uint8)
        return frame, torch.full((1,), NOMINAL_DT), *self.driver.initial_state(1)

    def header(self) -> Header:
        """Return the header of the file."""
        states = tuple(
            StateTensor(f"state_{index}", tuple(tensor.shape), _DTYPES[tensor.dtype])
            for index, tensor in enumerate(self.driver.initial_state(1))
        )
        driver = self.driver
        return Header(
            FORMAT, version("nac-drive"), driver.config, driver.env_config, driver.meta, states, self.interface
        )

    def traced(self) -> torch.export.ExportedProgram:
        """Return the step as a program of torch.

        Raises:
            ValueError: torch cannot export the core.
        """
        try:
            return torch.export.export(self, self.inputs(), strict=False)
        except Exception as error:  # torch.export's errors have no common base
            raise _not_exportable(self.driver, error) from error


def _onnx(step: _Step) -> bytes:
    """Return the step as an ONNX file.

    It was compared with torch.
    """
    onnxscript = require("onnxscript", "onnxscript.optimizer", "onnx", "onnxruntime")
    traced, header = step.traced(), step.header()
    inputs, outputs = ([name for name, _, _ in part] for part in (header.inputs(), header.outputs()))
    try:
        program: Any = torch.onnx.export(
            traced, input_names=inputs, output_names=outputs, optimize=False, verbose=False
        )
        # The rules that `optimize` adds take an epsilon of 1e-8 for 0, and leave it out.
        onnxscript.optimizer.fold_constants(program.model, onnx_shape_inference=True)
        onnxscript.optimizer.remove_unused_nodes(program.model)
    except Exception as error:  # the exporter's errors have no common base
        raise _not_exportable(step.driver, error) from error
    model = program.model_proto
    for part in (*model.graph.node, *model.graph.input, *model.graph.output, *model.graph.initializer, model.graph):
        part.doc_string = ""
        del part.metadata_props[:]  # places in the source code of this machine
    del model.graph.value_info[:]
    model.metadata_props.add(key=HEADER, value=msgspec.json.encode(header).decode())
    content = model.SerializeToString(deterministic=True)
    exported = OnnxDriver(content, "the exported driver")
    _compare(step, exported.step, exported.begin())
    return content


def _pt2(step: _Step) -> bytes:
    """Return the step as a file of torch.export.

    It was loaded and compared with the driver.
    """
    program = step.traced()
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # places in the source code of this machine
    file = io.BytesIO()
    torch.export.save(program, file, extra_files={f"{HEADER}.json": msgspec.json.encode(step.header()).decode()})
    content = file.getvalue()
    loaded = torch.export.load(io.BytesIO(content)).module()

    def exported(frame: np.ndarray, state: State, dt: float) -> tuple[np.ndarray, np.ndarray, State]:
        prediction, action, *after = loaded(torch.from_numpy(frame)[None], torch.tensor([dt]), *state)
        return prediction[0].numpy(), action[0].numpy(), tuple(after)

    _compare(step, exported, step.driver.initial_state(1))
    return content


def _compare(
    step: _Step, exported: Callable[[np.ndarray, Any, float], tuple[np.ndarray, Any, Any]], state: Any
) -> None:
    """Compare the exported driver's predictions with the driver's.

    Frames of noise fill its window, some of them black, some after a gap.

    Args:
        step: The driver's step.
        exported: Prediction, action and new state of a frame, a state and seconds since the frame before.
        state: The exported driver's state at the start of an episode.

    Raises:
        ValueError: They differ.
    """
    rng, ours = np.random.default_rng(0), step.driver.initial_state(1)
    for number in range(max(12, getattr(step.driver.core, "window", 0) + 4)):
        frame = rng.integers(0, 256, step.driver.config.frame_shape, np.uint8) * np.uint8(number % 5 != 3)
        dt = 0.0 if number == 0 else 1.0 if number == 5 else NOMINAL_DT * (1 + number % 3)
        prediction, _, state = exported(frame, state, dt)
        expected, _, *after = step(torch.from_numpy(frame)[None], torch.tensor([dt]), *ours)
        ours: State = tuple(after)
        difference = np.abs(prediction - expected[0].numpy()).max()
        if not difference <= TOLERANCE:
            reason = f"its predictions differ by {difference:.1e}, more than {TOLERANCE}"
            raise _not_exportable(step.driver, ValueError(reason))


def _not_exportable(driver: Driver, error: Exception) -> ValueError:
    reason = one_line(error.__cause__ or error)[:300]
    return ValueError(f"driver: a driver with the core {driver.config.core!r} cannot be exported: {reason}.")
