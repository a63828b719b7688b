"""Wirings of Neuronal Circuit Policies: who is connected to whom, as an immutable value.

A wiring says nothing about weights. Its neurons are numbered in reading order: sensory, inter, command, motor.
Source: NAC paper, Algorithm 1 and Section 4; fan-outs as in ncps' AutoNCP (Lechner et al. 2020).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

GROUPS = ("sensory", "inter", "command", "motor")


@dataclass(frozen=True, eq=False)
class Wiring:
    """Two binary masks over four groups of neurons, checked for reachability when it is built.

    Signals enter at `input_group` and leave at `output_group`; groups outside that range are disabled (they count
    as neurons, as in the paper, but carry no synapse of any active neuron).

    Raises ValueError if a mask has the wrong shape, an active neuron cannot be reached from the inputs, an input
    reaches nothing, or (when there are layers between them) an output neuron is not reached from every input.
    """

    sensory: int
    inter: int
    command: int
    motor: int
    input_group: str
    output_group: str
    input_mask: np.ndarray
    """(inputs, neurons) bool, |A_in| of Alg. 1."""
    recurrent_mask: np.ndarray
    """(neurons, neurons) bool, |A_rec| of Alg. 1: row = source, column = target."""

    def __post_init__(self) -> None:
        for name in ("input_mask", "recurrent_mask"):
            mask = np.array(getattr(self, name), dtype=bool)
            mask.setflags(write=False)
            object.__setattr__(self, name, mask)
        _check_groups(self)
        _check_reachability(self)

    @property
    def inputs(self) -> int:
        """Number of inputs."""
        return self.input_mask.shape[0]

    @property
    def units(self) -> int:
        """Number of neurons, disabled ones included."""
        return self.sensory + self.inter + self.command + self.motor

    @property
    def active_groups(self) -> tuple[str, ...]:
        """The groups from `input_group` to `output_group`."""
        return GROUPS[GROUPS.index(self.input_group) : GROUPS.index(self.output_group) + 1]

    def group(self, name: str) -> slice:
        """The neurons of one group, as a slice of the masks' neuron axes."""
        sizes = [getattr(self, group) for group in GROUPS]
        start = sum(sizes[: GROUPS.index(name)])
        return slice(start, start + getattr(self, name))

    def to_config(self) -> dict[str, Any]:
        """A JSON-able dict; each mask row is a string of 0 and 1."""
        config: dict[str, Any] = {name: getattr(self, name) for name in (*GROUPS, "input_group", "output_group")}
        for name in ("input_mask", "recurrent_mask"):
            config[name] = ["".join("01"[bit] for bit in row) for row in getattr(self, name).astype(int)]
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Wiring:
        """The inverse of `to_config`. Raises ValueError on missing or unknown keys."""
        known = {*GROUPS, "input_group", "output_group", "input_mask", "recurrent_mask"}
        if set(config) != known:
            raise ValueError(f"wiring config: keys must be exactly {sorted(known)}, got {sorted(config)}.")
        values = dict(config)
        for name in ("input_mask", "recurrent_mask"):
            values[name] = np.array([[bit == "1" for bit in row] for row in config[name]], dtype=bool)
        return cls(**values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Wiring) and self.to_config() == other.to_config()

    def __hash__(self) -> int:
        return hash((self.input_mask.tobytes(), self.recurrent_mask.tobytes()))


def ncp_wiring(
    inputs: int,
    *,
    sensory: int,
    inter: int,
    command: int,
    motor: int,
    sparsity: float,
    seed: int,
    input_group: str = "sensory",
    output_group: str = "motor",
) -> Wiring:
    """The four-layer NCP graph: inputs -> (sensory ->) inter -> command -> motor, and command -> command.

    With density = 1 - sparsity, each source has max(1, floor(density * targets)) synapses, each motor neuron
    max(1, floor(density * command)) incoming ones, and max(1, floor(2 * density * command)) synapses are drawn
    among the command neurons (with repetition). Neurons left out by chance are connected afterwards, and synapses into
    the last layer are added until every input reaches every output neuron in one step per layer.

    Raises ValueError if sparsity is outside [0, 1).
    """
    density = _density(sparsity)
    rng = np.random.default_rng(seed)
    sizes = {"sensory": sensory, "inter": inter, "command": command, "motor": motor}
    masks = _Masks(inputs, sizes, input_group, output_group)
    masks.input[:, masks.group(input_group)] = _fan_out(rng, inputs, sizes[input_group], density)
    layers = masks.active_groups
    for source, target in pairwise(layers):
        if target == "motor":  # this layer is drawn by fan-in
            block = _fan_out(rng, motor, sizes[source], density).T
        else:
            block = _fan_out(rng, sizes[source], sizes[target], density)
        masks.recurrent[masks.group(source), masks.group(target)] = block
    if len(layers) > 1:
        _complete(rng, masks)
    if "command" in layers:
        ends = rng.integers(command, size=(2, max(1, int(2 * density * command))))
        masks.recurrent[masks.group("command"), masks.group("command")][ends[0], ends[1]] = True
    return masks.freeze()


def random_wiring(
    inputs: int,
    *,
    sensory: int,
    inter: int,
    command: int,
    motor: int,
    sparsity: float,
    seed: int,
    input_group: str = "sensory",
    output_group: str = "motor",
) -> Wiring:
    """Synapses drawn among all pairs of active neurons, and from inputs to the input group, each with probability
    1 - sparsity; drawn again until every input reaches every output neuron in one step per group.

    Raises ValueError if sparsity is outside [0, 1), or so high that 100 draws all fail.
    """
    density = _density(sparsity)
    rng = np.random.default_rng(seed)
    sizes = {"sensory": sensory, "inter": inter, "command": command, "motor": motor}

    error: object = "an input needs more than one step per group to reach an output neuron"
    for _ in range(100):
        masks = _Masks(inputs, sizes, input_group, output_group)
        for block in (masks.input[:, masks.group(input_group)], masks.recurrent[masks.active, masks.active]):
            block[:] = rng.random(block.shape) < density
        try:
            wiring = masks.freeze()
        except ValueError as invalid:
            error = invalid
            continue
        steps = len(masks.active_groups)
        if steps == 1 or reached(wiring, steps)[:, masks.group(output_group)].all():
            return wiring
    raise ValueError(f"sparsity: 100 graphs drawn at sparsity={sparsity} all failed ({error}); lower the sparsity.")


def fully_connected_wiring(
    inputs: int,
    *,
    sensory: int,
    inter: int,
    command: int,
    motor: int,
    input_group: str = "sensory",
    output_group: str = "motor",
) -> Wiring:
    """Every input to every neuron of the input group, every active neuron to every active neuron."""
    sizes = {"sensory": sensory, "inter": inter, "command": command, "motor": motor}
    masks = _Masks(inputs, sizes, input_group, output_group)
    masks.input[:, masks.group(input_group)] = True
    masks.recurrent[masks.active, masks.active] = True
    return masks.freeze()


def sensory_gate_wiring(inputs: int, d_model: int, sparsity: float, seed: int) -> Wiring:
    """The wiring of a q, k or v gate (Eq. 13): ceil((d - 0.5) / 0.6) units, the first d of them sensory."""
    units = int(np.ceil((d_model - 0.5) / 0.6))
    inter, command, motor = _split(units - d_model, motor=0)
    return ncp_wiring(
        inputs,
        sensory=d_model,
        inter=inter,
        command=command,
        motor=motor,
        sparsity=sparsity,
        seed=seed,
        output_group="sensory",
    )


def backbone_wiring(inputs: int, d_model: int, sparsity: float, seed: int) -> Wiring:
    """The wiring of a head's backbone (Eq. 14): d + floor(d / 0.6) units, two of them motor neurons.

    Of the others 60 % are sensory (disabled here); the rest splits one third inter, two thirds command. For
    d_model = 64: 101 sensory, 22 inter, 45 command, 2 motor.
    """
    units = d_model + int(d_model / 0.6)
    hidden = max(2, int(0.4 * (units - 2)))
    inter, command, motor = _split(hidden + 2, motor=2)
    return ncp_wiring(
        inputs,
        sensory=max(0, units - 2 - hidden),
        inter=inter,
        command=command,
        motor=motor,
        sparsity=sparsity,
        seed=seed,
        input_group="inter",
    )


def reached(wiring: Wiring, steps: int) -> np.ndarray:
    """(inputs, neurons) bool: whether an input, held from the start, has reached a neuron after `steps` updates."""
    reach = wiring.input_mask
    synapses = wiring.recurrent_mask.astype(np.float32)
    for _ in range(steps - 1):
        further = wiring.input_mask | (reach.astype(np.float32) @ synapses > 0)
        if (further == reach).all():
            break
        reach = further
    return reach


def _split(units: int, motor: int) -> tuple[int, int, int]:
    """Inter (one third, at least one if there are two), command and motor neurons out of `units`."""
    hidden = units - motor
    inter = max(min(1, hidden), hidden // 3)
    return inter, hidden - inter, motor


class _Masks:
    """Two masks being drawn; `freeze` makes a Wiring of them."""

    def __init__(self, inputs: int, sizes: dict[str, int], input_group: str, output_group: str) -> None:
        _check_names(input_group, output_group)
        if inputs < 1:
            raise ValueError(f"inputs: must be at least 1, got {inputs}.")
        self.sizes, self.input_group, self.output_group = sizes, input_group, output_group
        self.active_groups = GROUPS[GROUPS.index(input_group) : GROUPS.index(output_group) + 1]
        _check_sizes(sizes, self.active_groups)
        units = sum(sizes.values())
        self.input = np.zeros((inputs, units), dtype=bool)
        self.recurrent = np.zeros((units, units), dtype=bool)
        self.active = slice(self.group(input_group).start, self.group(output_group).stop)

    def group(self, name: str) -> slice:
        start = sum(self.sizes[group] for group in GROUPS[: GROUPS.index(name)])
        return slice(start, start + self.sizes[name])

    def freeze(self) -> Wiring:
        return Wiring(
            **self.sizes,
            input_group=self.input_group,
            output_group=self.output_group,
            input_mask=self.input,
            recurrent_mask=self.recurrent,
        )


def _complete(rng: np.random.Generator, masks: _Masks) -> None:
    """Add synapses into the last layer until a path of one synapse per layer joins every input to every output."""
    layers = masks.active_groups
    reach = masks.input[:, masks.group(layers[0])]
    for source, target in pairwise(layers[:-1]):
        block = masks.recurrent[masks.group(source), masks.group(target)]
        reach = reach.astype(int) @ block > 0  # (inputs, target neurons)
    last = masks.recurrent[masks.group(layers[-2]), masks.group(layers[-1])]
    for neuron in range(last.shape[1]):
        for sources in reach:
            if not last[sources, neuron].any():
                last[rng.choice(np.flatnonzero(sources)), neuron] = True


def _density(sparsity: float) -> float:
    if not 0.0 <= sparsity < 1.0:
        raise ValueError(f"sparsity: must be in [0, 1), got {sparsity}; 0 keeps every synapse, 0.5 is the default.")
    return 1.0 - sparsity


def _fan_out(rng: np.random.Generator, sources: int, targets: int, density: float) -> np.ndarray:
    """A (sources, targets) mask: each source has max(1, floor(density * targets)) targets, no target is left out."""
    count = max(1, int(density * targets))
    mask = np.zeros((sources, targets), dtype=bool)
    for row in mask:
        row[rng.choice(targets, size=count, replace=False)] = True
    forgotten = np.flatnonzero(~mask.any(axis=0))
    fan_in = int(np.clip(sources * count // targets, 1, sources))
    for target in forgotten:
        mask[rng.choice(sources, size=fan_in, replace=False), target] = True
    return mask


def _check_names(input_group: str, output_group: str) -> None:
    for name, group in (("input_group", input_group), ("output_group", output_group)):
        if group not in GROUPS:
            raise ValueError(f"{name}: must be one of {GROUPS}, got {group!r}.")
    if GROUPS.index(input_group) > GROUPS.index(output_group):
        raise ValueError(f"output_group: must not come before input_group={input_group!r}, got {output_group!r}.")


def _check_sizes(sizes: dict[str, int], active: tuple[str, ...]) -> None:
    for name, size in sizes.items():
        if size < 0:
            raise ValueError(f"{name}: a group size must be at least 0, got {size}.")
        if size == 0 and name in active:
            raise ValueError(f"{name}: an active group must hold at least one neuron, got 0; give it neurons.")


def _check_groups(wiring: Wiring) -> None:
    _check_names(wiring.input_group, wiring.output_group)
    _check_sizes({name: getattr(wiring, name) for name in GROUPS}, wiring.active_groups)
    units = wiring.units
    if wiring.input_mask.ndim != 2 or wiring.input_mask.shape[1] != units or wiring.input_mask.shape[0] == 0:
        raise ValueError(f"input_mask: shape must be (inputs >= 1, {units}), got {wiring.input_mask.shape}.")
    if wiring.recurrent_mask.shape != (units, units):
        raise ValueError(f"recurrent_mask: shape must be ({units}, {units}), got {wiring.recurrent_mask.shape}.")
    disabled = np.ones(units, dtype=bool)
    disabled[wiring.group(wiring.input_group).start : wiring.group(wiring.output_group).stop] = False
    if wiring.recurrent_mask[disabled].any() or wiring.recurrent_mask[:, disabled].any():
        raise ValueError(f"wiring: a disabled neuron (outside {wiring.active_groups}) has synapses; clear its rows.")
    outside = np.ones(units, dtype=bool)
    outside[wiring.group(wiring.input_group)] = False
    if wiring.input_mask[:, outside].any():
        raise ValueError(f"input_mask: inputs may only reach the input group {wiring.input_group!r}; clear the rest.")


def _check_reachability(wiring: Wiring) -> None:
    reach = reached(wiring, wiring.units + 1)
    for name in wiring.active_groups:
        neurons = wiring.group(name)
        lost = np.flatnonzero(~reach[:, neurons].any(axis=0))
        if lost.size:
            raise ValueError(f"wiring: {name} neurons {lost[:8].tolist()} are reached from no input; add synapses.")
    output = reach[:, wiring.group(wiring.output_group)]
    enough = output.any(axis=1) if wiring.input_group == wiring.output_group else output.all(axis=1)
    if not enough.all():
        lost = np.flatnonzero(~enough)
        raise ValueError(
            f"wiring: inputs {lost[:8].tolist()} do not reach the {wiring.output_group} neurons; add paths."
        )
