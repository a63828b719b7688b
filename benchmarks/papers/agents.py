"""Small networks in numpy whose parameters are one vector: the agents of a search without gradients.

They step several rollouts side by side, and compute the same as the cores in torch whose parameters they take.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from scipy.special import expit
from torch import nn

from nac_drive.policies import build_core
from nac_drive.policies.cores.memoryless import Feedforward
from nac_drive.policies.cores.rnn import LSTM
from nac_drive.policies.cores.tap_withdrawal import SIGNS, VARIABLES, TapWithdrawal
from nac_drive.policies.ops.liquid import LiquidNetwork
from nac_drive.policies.wiring.tap_withdrawal import MOTOR, SENSORY

CELLS = 11
"""Neurons of every agent (thesis, Section 4.6.3)."""
SECONDS = 0.1
"""Time of a circuit in one step of a task: ten steps of 10 ms in the authors' published code."""


@dataclass(frozen=True)
class _Range:
    """Range of a parameter of a circuit. Searched is its fraction of the range."""

    least: float
    most: float
    softplus: bool = False
    """Whether the core stores a number whose softplus counts."""

    def fraction(self, stored: np.ndarray) -> np.ndarray:
        """Return the fraction, in [0, 1], of what a core stores."""
        value = _softplus(stored) if self.softplus else stored
        return np.clip((value - self.least) / (self.most - self.least), 0.0, 1.0)

    def stored(self, fraction: np.ndarray) -> np.ndarray:
        """Return what a core stores, of fractions."""
        value = self.least + fraction * (self.most - self.least)
        return np.log(np.expm1(value)) if self.softplus else value


_RANGES = {
    "weight": _Range(1e-3, 3.0, softplus=True), "capacitance": _Range(1e-3, 1.0, softplus=True),
    "conductance": _Range(0.05, 5.0, softplus=True), "leak": _Range(-0.4, 1.4), "gain": _Range(2.5, 25.0),
}  # fmt: skip
"""Ranges that are searched (Lechner et al. 2018, Table S4), with potentials in units of 50 mV above -70 mV."""

S = TypeVar("S")


class Agent(ABC, Generic[S]):
    """A network with parameters in a vector.

    Args:
        module: The network in torch, with its first parameters.
        kept: Names of parameters that are not searched.
    """

    def __init__(self, module: nn.Module, kept: tuple[str, ...] = ()) -> None:
        arrays = {name: tensor.detach().double().numpy() for name, tensor in module.named_parameters()}
        self._kept = {name: array for name, array in arrays.items() if name in kept}
        self._shapes = {name: array.shape for name, array in arrays.items() if name not in kept}
        self.start = np.concatenate([arrays[name].ravel() for name in self._shapes])
        """The first parameters, (D,)."""
        self.bounds = np.full(len(self.start), -np.inf), np.full(len(self.start), np.inf)
        """Least and largest value of each, (D,)."""

    def named(self, vector: np.ndarray) -> dict[str, np.ndarray]:
        """Return the parameters of the network by name, the kept ones included."""
        ends = np.cumsum([int(np.prod(shape)) for shape in self._shapes.values()])
        parts = zip(self._shapes.items(), np.split(vector, ends[:-1]), strict=True)
        return self._kept | {name: part.reshape(shape) for (name, shape), part in parts}

    @abstractmethod
    def load(self, vector: np.ndarray) -> None:
        """Take the parameters (D,)."""

    @abstractmethod
    def begin(self, rows: int) -> S:
        """Return the state of some rollouts at their start."""

    @abstractmethod
    def keep(self, state: S, rows: np.ndarray) -> S:
        """Return the state of some of the rollouts."""

    @abstractmethod
    def step(self, x: np.ndarray, state: S) -> tuple[np.ndarray, S]:
        """Return the outputs (R, A) and the next state, of observations (R, F)."""


class CircuitAgent(Agent[np.ndarray]):
    """`TapWithdrawal`. Polarities and centers of its synapses are kept, as in the thesis; the state is v (R, 7).

    Args:
        core: The circuit.
        direct: Its two inputs are the two variables, and its output is FWD - REV (Eq. 4.1 to 4.4), without linear
            layers.
    """

    def __init__(self, core: TapWithdrawal, *, direct: bool) -> None:
        _start_as_published(core.network)
        if direct:
            with torch.no_grad():
                core.encode.weight.copy_(torch.eye(2))
                core.readout.weight.copy_(torch.tensor([[1.0, -1.0]]))
                for layer in (core.encode, core.readout):
                    layer.bias.zero_()
        names = [name for name, _ in core.named_parameters()]
        linear = [name for name in names if direct and not name.startswith("network.")]
        super().__init__(core, (*linear, *(name for name in names if name.endswith(("reversal", "center")))))
        self._core, self._unfolds = core, core.network.unfolds
        self._ranges = {name: _RANGES[name.rpartition(".")[2]] for name in self._shapes if name.startswith("network.")}
        first, low, high = (super(CircuitAgent, self).named(vector) for vector in (self.start, *self.bounds))
        for name, part in self._ranges.items():
            first[name][...], low[name][...], high[name][...] = part.fraction(first[name]), 0.0, 1.0

    def named(self, vector: np.ndarray) -> dict[str, np.ndarray]:
        """Return the parameters of the core by name, the kept ones included."""
        named = super().named(vector)
        return named | {name: part.stored(named[name]) for name, part in self._ranges.items()}

    def load(self, vector: np.ndarray) -> None:
        """Take the parameters (D,)."""
        named = self.named(vector)
        self._encode = named["encode.weight"].T, named["encode.bias"]
        self._readout = named["readout.weight"].T, named["readout.bias"]
        network = self._core.network
        own = {name.removeprefix("network."): array for name, array in named.items() if name.startswith("network.")}
        electrical: Any = network.electrical
        self._inertia = _softplus(own["capacitance"]) * self._unfolds / SECONDS  # (7,)
        conductance = _softplus(own["conductance"])
        junctions = np.zeros(electrical.mask.shape)
        junctions[electrical.mask.numpy()] = _softplus(own["electrical.weight"])  # (7, 4)
        rest = np.concatenate((conductance * own["leak"], conductance + self._inertia + junctions.sum(axis=1)))  # (14,)
        sources, gain, shift, weight = _synapses(own, "sensory", network.sensory.mask.numpy())
        self._entering = sources, gain, shift, weight, np.pad(junctions.T, ((0, 0), (0, 7))), rest
        self._inner = _synapses(own, "recurrent", network.recurrent.mask.numpy())

    def begin(self, rows: int) -> np.ndarray:
        return np.zeros((rows, MOTOR.stop - SENSORY.stop))

    def keep(self, state: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return state[rows]

    def sense(self, x: np.ndarray) -> np.ndarray:
        """Return the potentials of the sensory neurons (R, 4)."""
        weight, bias = self._encode
        variables = x @ weight + bias
        return np.clip(variables[:, VARIABLES] * SIGNS, 0.0, 1.0)

    def step(self, x: np.ndarray, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        sources, gain, shift, weight, junctions, rest = self._entering
        sensed, v = self.sense(x), state
        constant = expit(sensed[:, sources] * gain + shift) @ weight + sensed @ junctions + rest  # (R, 14)
        sources, gain, shift, weight = self._inner
        for _ in range(self._unfolds):
            sums = constant + expit(v[:, sources] * gain + shift) @ weight
            v = (self._inertia * v + sums[:, :7]) / sums[:, 7:]
        readout, bias = self._readout
        return v[:, 5:] @ readout + bias, v


class LSTMAgent(Agent[tuple[np.ndarray, np.ndarray]]):
    """`LSTM` with a linear readout; the state is h and c (R, 11) each."""

    def load(self, vector: np.ndarray) -> None:
        """Take the parameters (D,)."""
        named = self.named(vector)
        self._weight = np.concatenate((named["core.cell.weight_ih_l0"].T, named["core.cell.weight_hh_l0"].T))
        self._bias = named["core.cell.bias_ih_l0"] + named["core.cell.bias_hh_l0"]
        self._readout = named["readout.weight"].T, named["readout.bias"]

    def begin(self, rows: int) -> tuple[np.ndarray, np.ndarray]:
        return np.zeros((rows, CELLS)), np.zeros((rows, CELLS))

    def keep(self, state: tuple[np.ndarray, np.ndarray], rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return state[0][rows], state[1][rows]

    def step(
        self, x: np.ndarray, state: tuple[np.ndarray, np.ndarray]
    ) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
        h, c = state
        gates = np.concatenate((x, h), axis=1) @ self._weight + self._bias  # (R, 44): input, forget, cell, output
        opened = expit(gates)
        new, hidden, forgotten = np.tanh(gates[:, 2 * CELLS : 3 * CELLS]), opened[:, 3 * CELLS :], opened[:, CELLS:]
        c = forgotten[:, :CELLS] * c + opened[:, :CELLS] * new
        h = hidden * np.tanh(c)
        readout, bias = self._readout
        return h @ readout + bias, (h, c)


class MLPAgent(Agent[None]):
    """`Feedforward`, one hidden layer, with a linear readout; there is no state."""

    def load(self, vector: np.ndarray) -> None:
        """Take the parameters (D,)."""
        self._named = self.named(vector)

    def begin(self, rows: int) -> None:
        return None

    def keep(self, state: None, rows: np.ndarray) -> None:
        return None

    def step(self, x: np.ndarray, state: None) -> tuple[np.ndarray, None]:
        named = self._named
        hidden = np.maximum(x @ named["core.linear.weight"].T + named["core.linear.bias"], 0.0)
        return hidden @ named["readout.weight"].T + named["readout.bias"], None


def make_agent(
    core: str, args: Mapping[str, Any], observations: int, actions: int, *, direct: bool, seed: int
) -> Agent[Any]:
    """Make an agent with fresh parameters.

    Args:
        core: "tap-withdrawal", "lstm" or "cnn".
        args: Settings of the core.
        observations: Number of inputs.
        actions: Number of outputs.
        direct: See `CircuitAgent`; the others ignore it.
        seed: Seed of the parameters.

    Raises:
        ValueError: For another core.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        circuit = core == "tap-withdrawal"
        network = build_core(core, observations, actions if circuit else CELLS, **args)
        if isinstance(network, TapWithdrawal):
            return CircuitAgent(network, direct=direct)
        module = nn.ModuleDict({"core": network, "readout": nn.Linear(CELLS, actions)})
        if isinstance(network, LSTM):
            return LSTMAgent(module)
        if isinstance(network, Feedforward):
            return MLPAgent(module)
    raise ValueError(f"core: must be tap-withdrawal, lstm or cnn, got {core!r}; others have no form in numpy.")


def _start_as_published(network: LiquidNetwork) -> None:
    """Set the first parameters that the authors' published code gives random circuits; w is uniform in [0, 2]."""
    with torch.no_grad():
        for part in (network.sensory, network.recurrent, network.electrical):
            if part is not None:
                part.weight.uniform_(1e-3, 2.0).expm1_().log_()
        for part in (network.sensory, network.recurrent):
            part.gain.fill_(5.0)  # 0.1 / mV
            part.center.fill_(0.6)  # -40 mV
        for parameter, value in ((network.capacitance, 0.05), (network.conductance, 1.0)):
            parameter.fill_(math.log(math.expm1(value)))
        network.leak.zero_()  # -70 mV


def _softplus(x: np.ndarray) -> np.ndarray:
    return np.logaddexp(0.0, x)


def _synapses(
    own: Mapping[str, np.ndarray], part: str, mask: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return sources, gains, -gain center (synapses,) and the matrix of w E and w (synapses, 14)."""
    targets, sources = np.nonzero(mask)
    weight, gain = _softplus(own[f"{part}.weight"]), own[f"{part}.gain"]
    matrix = np.zeros((len(sources), 2 * len(mask)))
    rows = np.arange(len(sources))
    matrix[rows, targets] = weight * own[f"{part}.reversal"]
    matrix[rows, len(mask) + targets] = weight
    return sources, gain, -gain * own[f"{part}.center"], matrix
