"""A network driver under observation, with neurons to switch off."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from nac_drive.analysis.attention import constant_clock, nac_core, uniform_weights, watched_attention, zeroed_heads
from nac_drive.analysis.cells import Cells, watched_cells
from nac_drive.policies.cores.nac_transformer import nac_of
from nac_drive.policies.driver import Driver
from nac_drive.policies.nac.layer import AttentionRecord
from nac_drive.policies.ops.evaluation_mode import evaluation_mode
from nac_drive.policies.ops.threads import one_thread

FEATURES, OUTPUT = "features", "output"


class Probe:
    """Drives as a driver does, bit for bit while nothing is switched off, and keeps the neurons of each decision.

    Its switches may be set between any two decisions.

    Attributes:
        neurons: Group -> (N,) float32 of the last decision: `features` of the encoder, the tensors that the core names
            (see `Core.neuron_names`) after the decision, and `output`, the input of the action head.
        cells: Group -> values of the last decision: the cells inside the core, which have no switches (see
            `watched_cells`).
        attention: (H, window) float32 of the last decision: weights of each head on the present observation, the one
            before, and so on. None for a core without attention.
        zeroed: Pairs of a group and an index. Features and outputs are 0 before they are used, a neuron of the core's
            state is 0 from the next decision on.
        zeroed_heads: Heads of a NAC core that contribute nothing.
        uniform: All observations of the window of a NAC core get the same weight.
        clock: False gives the driver the nominal time step at every decision.

    Args:
        driver: The driver.
    """

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.neurons: dict[str, np.ndarray] = {}
        self.cells: dict[str, np.ndarray] = {}
        self.attention: np.ndarray | None = None
        self.zeroed: set[tuple[str, int]] = set()
        self.zeroed_heads: set[int] = set()
        self.uniform = False
        self.clock = True
        self._noted: dict[str, Tensor] = {}
        self._inside: Cells = {}
        self._weights: Tensor | None = None

    def begin(self, env: gym.Env) -> Any:
        return self.driver.begin(env)

    def act(self, observation: np.ndarray, state: Any, dt: float) -> tuple[Any, Any]:
        driver = self.driver
        with ExitStack() as stack:
            stack.enter_context(evaluation_mode(driver))
            stack.enter_context(torch.no_grad())
            stack.enter_context(one_thread())
            stack.enter_context(watched_cells(driver, self._note_cells))
            self._enter_switches(stack)
            features = driver.features(torch.from_numpy(observation.copy())[None, None].to(driver.device))
            features = self._note(FEATURES, features)
            y, after = driver.core_output(features, torch.tensor([[dt]], device=driver.device), state)
            named = zip(driver.core.neuron_names, after, strict=False)
            kept = tuple(self._note(name, values) for name, values in named)
            y = self._note(OUTPUT, y)
            action = driver.action_head.action(driver.action_head(y)[0, 0])
            self._read()
        return (int(action) if driver.config.control == "discrete" else action), (*kept, *after[len(kept) :])

    def switch_neuron(self, group: str, index: int, off: bool) -> None:
        """Hold a neuron at 0, or let it go.

        Raises:
            ValueError: If the last decision had no such neuron.
        """
        if group in self.cells:
            raise ValueError(f"{group} cannot be held at 0: only features, states and outputs can; turn off a head.")
        if group not in self.neurons or not 0 <= index < len(self.neurons[group]):
            sizes = ", ".join(f"{name} (0 to {len(values) - 1})" for name, values in self.neurons.items())
            raise ValueError(f"there is no neuron {group} {index}; there are {sizes or 'none before the first frame'}.")
        (self.zeroed.add if off else self.zeroed.discard)((group, index))

    def switch_head(self, index: int, off: bool) -> None:
        """Turn a head of a NAC core off, or on.

        Raises:
            ValueError: If the core has no such head.
        """
        nac = nac_of(self.driver.core)
        heads = nac.nac.num_heads if nac else 0
        if not 0 <= index < heads:
            raise ValueError(f"head must be 0 to {heads - 1}, got {index}." if heads else "this core has no heads.")
        (self.zeroed_heads.add if off else self.zeroed_heads.discard)(index)

    def _enter_switches(self, stack: ExitStack) -> None:
        driver = self.driver
        if not self.clock:
            stack.enter_context(constant_clock(driver))
        if nac_of(driver.core):
            stack.enter_context(watched_attention(driver, self._note_attention))
            if self.uniform:
                stack.enter_context(uniform_weights(driver))
            if self.zeroed_heads:
                stack.enter_context(zeroed_heads(driver, self.zeroed_heads))

    def _note(self, group: str, values: Tensor) -> Tensor:
        zeroed = [index for name, index in self.zeroed if name == group]
        if zeroed:
            values = values.clone()
            values.view(-1)[zeroed] = 0
        self._noted[group] = values
        return values

    def _read(self) -> None:
        """Read neurons, cells and attention of a decision in one transfer."""
        weights = [] if self._weights is None else [self._weights]
        tensors = [*self._noted.values(), *self._inside.values(), *weights]
        numbers = torch.cat([tensor.flatten().float() for tensor in tensors]).numpy(force=True)
        parts = iter(np.split(numbers, np.cumsum([tensor.numel() for tensor in tensors])))  # zip takes those it names
        self.neurons = dict(zip(self._noted, parts, strict=False))
        self.cells = dict(zip(self._inside, parts, strict=False))
        self.attention = next(parts).reshape(weights[0].shape) if weights else None

    def _note_cells(self, cells: Cells) -> None:
        self._inside = cells

    def _note_attention(self, record: AttentionRecord, age: Tensor, *_: Any) -> None:
        weights = by_age(record.alpha[:, :, 0], record.index[:, :, 0], nac_core(self.driver).window)
        self._weights = weights[0]


def by_age(alpha: Tensor, index: Tensor, window: int) -> Tensor:
    """Return the weights of a window, the present observation first.

    Args:
        alpha: (T, H, K), the weights of the keys that are kept.
        index: (T, H, K), their places in the window; the newest is window - 1.
        window: W.

    Returns:
        (T, H, W); 0 where a key is not kept.
    """
    return torch.zeros(*alpha.shape[:2], window, device=alpha.device).scatter(2, window - 1 - index, alpha)
