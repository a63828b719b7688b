"""Loops of small kernels, recorded once and repeated by one call.

A recurrence over time starts a few small kernels a step. A GPU waits for their starts longer than it computes. A CUDA
graph holds the kernels of a whole loop and starts them together.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import Any

import torch
from torch import Tensor

Outputs = tuple[Tensor, ...]
Capture = Callable[[Callable[[], Outputs]], tuple[Callable[[], None], Outputs]]
"""Records the work of a function. Returns a call that repeats the work in the same memory, and the outputs there."""

SHORTEST = 8
"""Steps of the shortest loop that is recorded: inputs and outputs are copied, which takes kernels too."""
LARGEST = 2**22
"""Numbers in the inputs of the largest loop that is recorded: a larger one keeps the device busy by itself."""
MOST = 32
"""Loops that are kept. Each holds its memory."""


def graphed(steps: int, function: Callable[..., Outputs], *inputs: Any) -> Outputs:
    """Call a function, or repeat its recorded work where the device can.

    The first call with some shapes computes. The second records, and compares the recorded outputs with the computed
    ones. Later calls repeat.

    Args:
        steps: Steps of the loop in it.
        function: A pure function of tensors, called without gradients. Its work must not depend on their values.
        inputs: Tensors, and settings that can be hashed.

    Returns:
        The function's outputs, bit for bit.

    Warns:
        RuntimeWarning: If recording fails. The device is then left alone.
    """
    if not CAPTURES or torch.compiler.is_compiling():
        return function(*inputs)
    tensors = [part for part in inputs if isinstance(part, Tensor)]
    device = tensors[0].device
    capture = CAPTURES.get(device.type)
    if capture is None or device in _refused or steps < SHORTEST or sum(map(Tensor.numel, tensors)) > LARGEST:
        return function(*inputs)
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return function(*inputs)
    with _lock, torch.inference_mode(mode=False), torch.no_grad(), torch.cuda.device_of(tensors[0]):
        key = _key(function, inputs, device)
        seen, loop = key in _loops, _loops.pop(key, None)
        if loop is None:
            outputs = function(*inputs)
            if seen:
                loop = _recorded(capture, function, inputs, outputs, device)
        else:
            outputs = loop(tensors)
        _loops[key] = loop  # the latest comes last
        if len(_loops) > MOST:
            _loops.popitem(last=False)
        return outputs


def cuda_graph(function: Callable[[], Outputs]) -> tuple[Callable[[], None], Outputs]:
    """Record a function as a CUDA graph, see `Capture`."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        function()  # libraries fetch their memory
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):  # others may use the device
        outputs = function()
    return graph.replay, outputs


CAPTURES: dict[str, Capture] = {"cuda": cuda_graph}
"""Type of device -> how loops are recorded there."""


class _Loop:
    """Recorded work of a function for inputs of one form."""

    def __init__(self, capture: Capture, function: Callable[..., Outputs], inputs: tuple[Any, ...]) -> None:
        places = [torch.empty_like(part).copy_(part) if isinstance(part, Tensor) else part for part in inputs]
        self._places = [place for place in places if isinstance(place, Tensor)]
        self._repeat, self._outputs = capture(lambda: function(*places))

    def __call__(self, tensors: list[Tensor]) -> Outputs:
        """Repeat the work on other inputs. The outputs are copies."""
        for place, tensor in zip(self._places, tensors, strict=True):
            place.copy_(tensor)
        self._repeat()
        return tuple(output.clone() for output in self._outputs)


def _recorded(
    capture: Capture,
    function: Callable[..., Outputs],
    inputs: tuple[Any, ...],
    expected: Outputs,
    device: torch.device,
) -> _Loop | None:
    """Return the loop, or None if it cannot be recorded or gives other outputs."""
    try:
        loop = _Loop(capture, function, inputs)
        outputs = loop([part for part in inputs if isinstance(part, Tensor)])
        pairs = zip(outputs, expected, strict=True)
        if all(torch.allclose(one, other, rtol=0.0, atol=0.0, equal_nan=True) for one, other in pairs):
            return loop
        reason = "its outputs differ"
    except Exception as error:  # what a driver refuses has no common class
        reason = f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), 'no message')}"
    _refused.add(device)
    warnings.warn(
        f"a loop over time cannot be recorded on {device} ({reason}). It runs step by step, which gives the same "
        "numbers and is slower.",
        RuntimeWarning,
        stacklevel=3,
    )
    return None


def _key(function: Callable[..., Outputs], inputs: tuple[Any, ...], device: torch.device) -> tuple[Any, ...]:
    """Return everything that the work depends on, values aside."""
    forms = (
        (part.shape, part.stride(), part.dtype, part.device) if isinstance(part, Tensor) else part for part in inputs
    )
    stream = torch.cuda.current_stream(device) if device.type == "cuda" else None  # one stream keeps calls in order
    return function, stream, torch.get_float32_matmul_precision(), torch.is_autocast_enabled(device.type), *forms


_lock = Lock()
_refused: set[torch.device] = set()
"""Devices on which recording has failed."""
_loops: OrderedDict[tuple[Any, ...], _Loop | None] = OrderedDict()
"""Form of a call -> its loop; None after a first call. The latest comes last."""
