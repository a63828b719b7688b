"""The state of a training: the optimizer's and some numbers.

Weights are saved elsewhere.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import msgspec
import torch
from safetensors.torch import save_file
from torch.optim import Optimizer

from nac_drive.policies.tensors import read_tensors, tensor_names
from nac_drive.storage.checkpoints import step_of
from nac_drive.storage.read import FileError, read_json

_MOMENTS, _STATE = "optimizer.safetensors", "state.json"
_FIX = "start a new run"

StepCount = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]


class _State(msgspec.Struct):
    """The keys of state.json that every reader uses."""

    step: StepCount
    averaged: StepCount = 0


def save_training_state(path: Path, optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Write `path/optimizer.safetensors`, the moments of every parameter, and `path/state.json`.

    Args:
        path: The folder; it is made.
        optimizer: Adam.
        state: Anything JSON-able; `step` is the number of the step.
    """
    path.mkdir(parents=True, exist_ok=True)
    tensors = {
        f"{index}.{name}": value.detach().cpu().contiguous()
        for index, values in optimizer.state_dict()["state"].items()
        for name, value in values.items()
    }
    save_file(tensors, path / _MOMENTS)
    (path / _STATE).write_text(json.dumps(state) + "\n")


def load_training_state(path: Path, optimizer: Optimizer) -> dict[str, Any]:
    """Load the saved moments into `optimizer`.

    Args:
        path: The folder that `save_training_state` wrote.
        optimizer: Adam, made from the same parameters.

    Returns:
        The rest of the state.

    Raises:
        FileError: A file is damaged, or the moments do not belong to these parameters.
    """
    state = read_json(path / _STATE, dict[str, Any], "the state of a training", _FIX)
    try:
        msgspec.convert(state, _State)
    except msgspec.ValidationError as error:
        raise FileError(f"{path / _STATE} is not the state of a training: {error}; {_FIX}.") from None
    if step_of(path.parent) not in (None, state["step"]):
        raise FileError(f"{path / _STATE} is that of step {state['step']}, which is not its checkpoint; {_FIX}.")
    file = path / _MOMENTS
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    # A frozen parameter, or one that no step has changed, has no moments.
    saved = {name.partition(".")[0] for name in tensor_names(file)}
    expected = {}
    for index, parameter in enumerate(parameters):
        if str(index) in saved:
            expected |= {f"{index}.{name}": parameter for name in ("exp_avg", "exp_avg_sq")}
            expected[f"{index}.step"] = torch.zeros((), device="meta")
    moments: dict[int, dict[str, torch.Tensor]] = {}
    for key, value in read_tensors(file, expected, "the weights").items():
        index, name = key.split(".")
        if (name == "step" and value < 1) or (name == "exp_avg_sq" and (value < 0).any()):
            raise FileError(f"{file}: {key!r} is out of range; {_FIX}.")
        moments.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict({"state": moments, "param_groups": optimizer.state_dict()["param_groups"]})
    return state
