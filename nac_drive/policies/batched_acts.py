"""Decisions for several cars with the bits of one car."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch

from nac_drive import policies  # lazy: drivers import this module
from nac_drive.policies.cores.base import NOMINAL_DT, State, map_state
from nac_drive.policies.ops.batch_invariance import BatchInvariance
from nac_drive.policies.ranges import seconds

CarInput = tuple[np.ndarray, State, float]
"""Observation, state and dt of one car, as `Driver.act` takes them."""

LARGEST_BLOCK = 16
"""Rows that one pass takes: the maps of so many frames stay in a core's cache, and more rows gain nothing."""

STEPS_COMPARED = 5
"""Steps of the comparison of a block with single rows: then a window holds enough frames to show an order of sums."""


class BatchedActs:
    """`Driver.act_batch` in blocks of 16, 8, 4, 2 and 1 rows.

    Inside a block, `BatchInvariance` computes every row by the kernels of a single row. Before the first block of a
    size, made-up frames are driven both in such a block and one by one, and all predictions and states are compared,
    bit for bit. If any bit differs, there or in a block of 16, the rows of such blocks are driven one by one for good.
    The kernels that run depend on shapes and on the machine, not on values, so the comparison stands for every frame.
    It is made once in a process for all drivers of one structure.
    """

    def __init__(self) -> None:
        self._structure: Structure | None = None

    def __reduce__(self) -> tuple[type[BatchedActs], tuple[()]]:
        return BatchedActs, ()

    def __call__(
        self,
        driver: policies.Driver,
        observations: Sequence[np.ndarray],
        states: Sequence[State],
        dts: Sequence[float],
        *,
        alone: bool = False,
    ) -> tuple[list[Any], list[State]]:
        """Return the actions and the next states, see `Driver.act_batch`. `alone` queries `act` car by car."""
        cars = list(zip(observations, states, dts, strict=True))
        actions: list[Any] = []
        after: list[State] = []
        size = 1 if alone else LARGEST_BLOCK
        while cars:
            while size > len(cars):
                size //= 2
            block, cars = cars[:size], cars[size:]
            if size > 1 and _alike(block) and self.exact(driver, size):
                prediction, next_states = _predict(driver, block)
                chosen = driver.action_head.action(prediction)
                actions.extend(map(int, chosen) if driver.config.control == "discrete" else chosen)
                after.extend(next_states)
            else:
                for frame, state, dt in block:
                    action, next_state = driver.act(frame, _copy(state), dt)
                    actions.append(action)
                    after.append(next_state)
        return actions, after

    def exact(self, driver: policies.Driver, rows: int) -> bool:
        """Return whether a block has the bits of single rows."""
        if self._structure is None:
            self._structure = _structure(driver)
        weight = driver.action_head.out.weight
        key = self._structure, rows, weight.device, weight.dtype
        if key not in _EXACT:  # a large block shows rare differences better
            _EXACT[key] = (rows == LARGEST_BLOCK or self.exact(driver, LARGEST_BLOCK)) and _same_bits(driver, rows)
        return _EXACT[key]


Structure = tuple[Any, ...]
"""Everything that the choice of kernels depends on, but for the number of rows, the device and the dtype."""

_EXACT: dict[tuple[Any, ...], bool] = {}
"""Structure, rows, device and dtype -> whether such blocks have the bits of single rows in this process."""


def _structure(driver: policies.Driver) -> Structure:
    tensors = (*driver.named_parameters(), *driver.named_buffers())
    shapes = tuple((name, tuple(tensor.shape), tensor.stride()) for name, tensor in tensors)
    return repr(driver.config), tuple(type(module) for module in driver.modules()), shapes


def _predict(driver: policies.Driver, block: Sequence[CarInput]) -> tuple[torch.Tensor, list[State]]:
    """Return the predictions (B, A) and the next states of several cars, in one pass."""
    observations, states, dts = zip(*block, strict=True)
    frames = driver._frames(np.stack(observations))
    dt = torch.tensor([[seconds(dt)] for dt in dts])
    state = tuple(torch.cat(parts) for parts in zip(*states, strict=True))
    with BatchInvariance(len(block)) if len(block) > 1 else nullcontext():
        prediction, state = driver._infer(frames, dt, state)
    next_states = list(zip(*(part.split(1) for part in state), strict=True))
    return prediction[:, 0], next_states or [()] * len(block)


def _alike(block: Sequence[CarInput]) -> bool:
    """Return whether all frames have one shape and type.

    `act` finds the words for others.
    """
    return len({(frame.shape, frame.dtype) if isinstance(frame, np.ndarray) else None for frame, _, _ in block}) == 1


def _copy(state: State) -> State:
    """Return a copy of a row of a batch.

    Kernels of a single row may depend on its place in memory.
    """
    return map_state(torch.clone, state)


def _same_bits(driver: policies.Driver, rows: int) -> bool:
    """Drive made-up frames in a block and one by one. Return whether all predictions and states have the same bits."""
    rng = np.random.default_rng(0)
    shape = (STEPS_COMPARED, rows, *driver.config.frame_shape)
    frames = rng.integers(0, 256, shape, dtype=np.uint8)
    frames[2, 0] = 0  # a lost frame
    dts = rng.choice([NOMINAL_DT, 2 * NOMINAL_DT, 5 * NOMINAL_DT], (STEPS_COMPARED, rows))
    dts[0] = 0.0
    states: list[State] = [driver.begin() for _ in range(rows)]
    for observations, gaps in zip(frames, dts.tolist(), strict=True):
        block = list(zip(observations, states, gaps, strict=True))
        predictions, states = _predict(driver, block)
        for row, (frame, state, dt) in enumerate(block):
            (prediction,), (alone,) = _predict(driver, [(frame, _copy(state), dt)])
            results = zip((predictions[row], *states[row]), (prediction, *alone), strict=True)
            if any(_bits(ours) != _bits(theirs) for ours, theirs in results):
                return False
    return True


def _bits(tensor: torch.Tensor) -> bytes:
    return tensor.numpy(force=True).tobytes()
