"""Wirings of Neuronal Circuit Policies, as immutable values.

A wiring holds no weights. Its neurons are numbered in reading order: sensory, inter, command, motor.
Source: NAC paper, Algorithm 1. `wiring.graphs` draws wirings.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

GROUPS = ("sensory", "inter", "command", "motor")


@dataclass(frozen=True)
class Groups:
    """Sizes of the groups of neurons, and their signals.

    Signals run between two of the groups.

    Signals enter at `input_group` and leave at `output_group`. Groups outside that range are disabled: they count as
    neurons, as in the paper, but carry no synapse.

    Raises:
        ValueError: A size is negative, an active group is empty, a name is unknown, or the output is before the input.
    """

    sensory: int = 0
    inter: int = 0
    command: int = 0
    motor: int = 0
    input_group: str = "sensory"
    output_group: str = "motor"

    def __post_init__(self) -> None:
        for name in ("input_group", "output_group"):
            if getattr(self, name) not in GROUPS:
                raise ValueError(f"{name}: must be one of {GROUPS}, got {getattr(self, name)!r}.")
        if not self.active:
            raise ValueError(
                f"output_group: must not come before input_group={self.input_group!r}, got {self.output_group!r}."
            )
        for name in GROUPS:
            if self.size(name) < 0:
                raise ValueError(f"{name}: a group size must be at least 0, got {self.size(name)}.")
            if self.size(name) == 0 and name in self.active:
                raise ValueError(f"{name}: an active group must hold at least one neuron, got 0; give it neurons.")

    @property
    def active(self) -> tuple[str, ...]:
        """The groups from `input_group` to `output_group`."""
        return GROUPS[GROUPS.index(self.input_group) : GROUPS.index(self.output_group) + 1]

    @property
    def units(self) -> int:
        """Number of neurons, disabled ones included."""
        return sum(self.size(name) for name in GROUPS)

    def size(self, name: str) -> int:
        """Return the number of neurons of one group."""
        return getattr(self, name)

    def slice(self, first: str, last: str | None = None) -> slice:
        """Return a slice of the neurons of one group.

        It may run from one group to another, on the masks' neuron axes.
        """
        start = sum(self.size(name) for name in GROUPS[: GROUPS.index(first)])
        names = GROUPS[GROUPS.index(first) : GROUPS.index(last or first) + 1]
        return slice(start, start + sum(self.size(name) for name in names))


@dataclass(frozen=True, eq=False)
class Wiring:
    """Two binary masks over four groups of neurons.

    Reachability is checked when they are built.

    Raises:
        ValueError: A mask has the wrong shape, an active neuron cannot be reached from the inputs, an input reaches
            nothing, or (when there are layers between them) an output neuron is not reached from every input.
    """

    groups: Groups
    input_mask: np.ndarray
    """(inputs, neurons) bool, |A_in| of Alg. 1."""
    recurrent_mask: np.ndarray
    """(neurons, neurons) bool, |A_rec| of Alg. 1. A row is a source, a column a target."""

    def __post_init__(self) -> None:
        for name in ("input_mask", "recurrent_mask"):
            mask = np.array(getattr(self, name), dtype=bool)
            mask.setflags(write=False)
            object.__setattr__(self, name, mask)
        _check_masks(self)
        _check_reachability(self)

    @property
    def inputs(self) -> int:
        """Number of inputs."""
        return self.input_mask.shape[0]

    @property
    def units(self) -> int:
        """Number of neurons, disabled ones included."""
        return self.groups.units

    @property
    def active_groups(self) -> tuple[str, ...]:
        """The groups from `input_group` to `output_group`."""
        return self.groups.active

    def group(self, name: str) -> slice:
        """Return one group's neurons, as a slice.

        It slices the masks' neuron axes.
        """
        return self.groups.slice(name)

    def to_config(self) -> dict[str, Any]:
        """Return a JSON-able dict. Each mask row is a string of 0 and 1."""
        config: dict[str, Any] = asdict(self.groups)
        for name in ("input_mask", "recurrent_mask"):
            config[name] = ["".join("01"[bit] for bit in row) for row in getattr(self, name).astype(int)]
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Wiring:
        """Build the wiring of a `to_config` dict.

        Raises:
            ValueError: A key is missing or unknown.
        """
        known = {*(f.name for f in fields(Groups)), "input_mask", "recurrent_mask"}
        if set(config) != known:
            raise ValueError(f"wiring config: keys must be exactly {sorted(known)}, got {sorted(config)}.")
        values = dict(config)
        masks = [
            np.array([[bit == "1" for bit in row] for row in values.pop(name)], dtype=bool)
            for name in ("input_mask", "recurrent_mask")
        ]
        return cls(Groups(**values), *masks)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Wiring) and self.to_config() == other.to_config()

    def __hash__(self) -> int:
        return hash((self.groups, self.input_mask.tobytes(), self.recurrent_mask.tobytes()))


def reached(wiring: Wiring, steps: int) -> np.ndarray:
    """Return which neurons an input reaches, (inputs, neurons) bool.

    An input is held from the start, for `steps` updates.
    """
    reach = wiring.input_mask
    synapses = wiring.recurrent_mask.astype(np.float32)
    for _ in range(steps - 1):
        further = wiring.input_mask | (reach.astype(np.float32) @ synapses > 0)
        if (further == reach).all():
            break
        reach = further
    return reach


def _check_masks(wiring: Wiring) -> None:
    groups, units = wiring.groups, wiring.units
    if wiring.input_mask.ndim != 2 or wiring.input_mask.shape[1] != units or wiring.input_mask.shape[0] == 0:
        raise ValueError(f"input_mask: shape must be (inputs >= 1, {units}), got {wiring.input_mask.shape}.")
    if wiring.recurrent_mask.shape != (units, units):
        raise ValueError(f"recurrent_mask: shape must be ({units}, {units}), got {wiring.recurrent_mask.shape}.")
    disabled = np.ones(units, dtype=bool)
    disabled[groups.slice(groups.input_group, groups.output_group)] = False
    if wiring.recurrent_mask[disabled].any() or wiring.recurrent_mask[:, disabled].any():
        raise ValueError(f"wiring: a disabled neuron (outside {groups.active}) has synapses; clear its rows.")
    outside = np.ones(units, dtype=bool)
    outside[groups.slice(groups.input_group)] = False
    if wiring.input_mask[:, outside].any():
        raise ValueError(f"input_mask: inputs may only reach the input group {groups.input_group!r}; clear the rest.")


def _check_reachability(wiring: Wiring) -> None:
    groups = wiring.groups
    reach = reached(wiring, wiring.units + 1)
    for name in groups.active:
        lost = np.flatnonzero(~reach[:, groups.slice(name)].any(axis=0))
        if lost.size:
            raise ValueError(f"wiring: {name} neurons {lost[:8].tolist()} are reached from no input; add synapses.")
    output = reach[:, groups.slice(groups.output_group)]
    enough = output.any(axis=1) if groups.input_group == groups.output_group else output.all(axis=1)
    if not enough.all():
        lost = np.flatnonzero(~enough)[:8].tolist()
        raise ValueError(f"wiring: inputs {lost} do not reach the {groups.output_group} neurons; add paths.")
