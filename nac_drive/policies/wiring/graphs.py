"""Graphs of wirings: NCP, its baselines, NAC's two circuits.

Source: NAC paper, Algorithm 1 and Section 4; fan-outs as in ncps' AutoNCP (Lechner et al. 2020). The paper lists the
baselines (random, fully connected) as future work; "mlp" is its ablation NAC-FC (appendix D.2).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from nac_drive.policies.ops.size_limit import count_mask
from nac_drive.policies.wiring.wiring import Groups, Wiring, reached


def ncp_wiring(
    inputs: int,
    groups: Groups,
    *,
    sparsity: float,
    seed: int,
    sensory_fanout: int | None = None,
    inter_fanout: int | None = None,
    recurrent_command_synapses: int | None = None,
    motor_fanin: int | None = None,
) -> Wiring:
    """Draw the four-layer NCP graph.

    inputs -> (sensory ->) inter -> command -> motor, and command -> command.

    With density = 1 - sparsity, each source has max(1, floor(density * targets)) synapses, each motor neuron max(1,
    floor(density * command)) incoming ones, and max(1, floor(2 * density * command)) synapses are drawn among the
    command neurons (with repetition). Floating point rounds the products, as in ncps: a sparsity of 0.8 leaves
    each source 1 of 10 targets, since 1 - 0.8 is a little less than 0.2. Neurons left out by chance are connected
    afterwards (as in ncps; Algorithm 12 of the thesis leaves them out). A single motor neuron therefore takes all
    command neurons. Synapses into the last layer are added until every input reaches every output neuron in one step
    per layer.

    Args:
        inputs: Number of inputs.
        groups: Sizes of the groups of neurons.
        sparsity: Fraction of synapses left out, in [0, 1).
        seed: Seed of the draw.
        sensory_fanout: Synapses of each input, k_s of Algorithm 9; None: from `sparsity`, as the other three.
        inter_fanout: Synapses of each inter neuron, k_i of Algorithm 10.
        recurrent_command_synapses: Draws among the command neurons, k_c of Algorithm 11.
        motor_fanin: Synapses into each motor neuron, k_m of Algorithm 12.

    Raises:
        ValueError: `sparsity` is outside [0, 1), `inputs` is less than 1, or a number of synapses does not fit.
    """
    density = _density(sparsity)
    rng = np.random.default_rng(seed)
    masks = _Masks(inputs, groups)
    first = groups.size(groups.input_group)
    masks.input[:, groups.slice(groups.input_group)] = _fan_out(
        rng, inputs, first, _fan("sensory_fanout", sensory_fanout, first, density)
    )
    for source, target in pairwise(groups.active):
        sources, targets = groups.size(source), groups.size(target)
        if target == "motor":  # this layer is drawn by fan-in
            block = _fan_out(rng, targets, sources, _fan("motor_fanin", motor_fanin, sources, density)).T
        else:
            given = inter_fanout if source == "inter" else None
            block = _fan_out(rng, sources, targets, _fan("inter_fanout", given, targets, density))
        masks.recurrent[groups.slice(source), groups.slice(target)] = block
    masks.complete(rng)
    if "command" in groups.active:
        command = groups.command
        draws = _fan("recurrent_command_synapses", recurrent_command_synapses, command**2, 2 * density / command)
        ends = rng.integers(command, size=(2, draws))
        masks.recurrent[groups.slice("command"), groups.slice("command")][ends[0], ends[1]] = True
    return masks.freeze()


def mlp_wiring(inputs: int, groups: Groups, *, sparsity: float, seed: int) -> Wiring:
    """Draw a multi-layer perceptron of the same sizes.

    Synapses lead from each layer to the next, none within a layer.

    Each synapse exists with probability 1 - sparsity, on its own; neurons left out by chance get one synapse, and
    synapses into the last layer are added as in `ncp_wiring`. Sparsity 0 is the dense MLP.

    Raises:
        ValueError: `sparsity` is outside [0, 1).
    """
    density = _density(sparsity)
    rng = np.random.default_rng(seed)
    masks = _Masks(inputs, groups)
    masks.input[:, groups.slice(groups.input_group)] = _independent(
        rng, inputs, groups.size(groups.input_group), density
    )
    for source, target in pairwise(groups.active):
        block = _independent(rng, groups.size(source), groups.size(target), density)
        masks.recurrent[groups.slice(source), groups.slice(target)] = block
    masks.complete(rng)
    return masks.freeze()


def random_wiring(inputs: int, groups: Groups, *, sparsity: float, seed: int) -> Wiring:
    """Draw synapses among all active neurons, and from inputs.

    Inputs lead to the input group.

    Each exists with probability 1 - sparsity. They are drawn again until every input reaches every output neuron in one
    step per group.

    Raises:
        ValueError: `sparsity` is outside [0, 1), or so high that 100 draws all fail.
    """
    density = _density(sparsity)
    rng = np.random.default_rng(seed)
    active = groups.slice(groups.input_group, groups.output_group)
    error: object = "an input needs more than one step per group to reach an output neuron"
    for _ in range(100):
        masks = _Masks(inputs, groups)
        for block in (masks.input[:, groups.slice(groups.input_group)], masks.recurrent[active, active]):
            block[:] = rng.random(block.shape) < density
        try:
            wiring = masks.freeze()
        except ValueError as invalid:
            error = invalid
            continue
        steps = len(groups.active)
        if steps == 1 or reached(wiring, steps)[:, groups.slice(groups.output_group)].all():
            return wiring
    raise ValueError(f"sparsity: 100 graphs drawn at sparsity={sparsity} all failed ({error}); lower the sparsity.")


def fully_connected_wiring(inputs: int, groups: Groups) -> Wiring:
    """Connect all inputs and all active neurons.

    Inputs lead to the input group, active neurons to every active neuron.
    """
    masks = _Masks(inputs, groups)
    active = groups.slice(groups.input_group, groups.output_group)
    masks.input[:, groups.slice(groups.input_group)] = True
    masks.recurrent[active, active] = True
    return masks.freeze()


WIRINGS: dict[str, Callable[..., Wiring]] = {"ncp": ncp_wiring, "mlp": mlp_wiring}
"""Name -> graph of the circuits of a NAC layer."""


def sensory_gate_wiring(inputs: int, d_model: int, sparsity: float, seed: int, graph: str = "ncp") -> Wiring:
    """Draw the wiring of a q, k or v gate (Eq. 13).

    It has ceil((d - 0.5) / 0.6) units, the first d of them sensory.
    """
    units = int(np.ceil((d_model - 0.5) / 0.6))
    inter, command = _split(units - d_model)
    groups = Groups(d_model, inter, command, output_group="sensory")
    return WIRINGS[graph](inputs, groups, sparsity=sparsity, seed=seed)


def backbone_wiring(inputs: int, d_model: int, sparsity: float, seed: int, graph: str = "ncp") -> Wiring:
    """Draw the wiring of a head's backbone (Eq. 14).

    It has d + floor(d / 0.6) units, two of them motor neurons.

    Of the others 60 % are sensory (disabled here); the rest splits one third inter, two thirds command. For
    d_model = 64: 101 sensory, 22 inter, 45 command, 2 motor.
    """
    units = d_model + int(d_model / 0.6)
    hidden = max(2, int(0.4 * (units - 2)))
    inter, command = _split(hidden)
    groups = Groups(max(0, units - 2 - hidden), inter, command, motor=2, input_group="inter")
    return WIRINGS[graph](inputs, groups, sparsity=sparsity, seed=seed)


class _Masks:
    """Two masks in the making. `freeze` returns them as a Wiring."""

    def __init__(self, inputs: int, groups: Groups) -> None:
        if inputs < 1:
            raise ValueError(f"inputs: must be at least 1, got {inputs}.")
        count_mask(inputs + groups.units, groups.units)
        self.groups = groups
        self.input = np.zeros((inputs, groups.units), dtype=bool)
        self.recurrent = np.zeros((groups.units, groups.units), dtype=bool)

    def complete(self, rng: np.random.Generator) -> None:
        """Add synapses until every input reaches every output.

        They lead into the last layer; a path has one synapse per layer.
        """
        groups, layers = self.groups, self.groups.active
        if len(layers) == 1:
            return
        reach = self.input[:, groups.slice(layers[0])]
        for source, target in pairwise(layers[:-1]):
            block = self.recurrent[groups.slice(source), groups.slice(target)]
            reach = reach.astype(int) @ block > 0  # (inputs, target neurons)
        last = self.recurrent[groups.slice(layers[-2]), groups.slice(layers[-1])]
        for neuron in range(last.shape[1]):
            for sources in reach:
                if not last[sources, neuron].any():
                    last[rng.choice(np.flatnonzero(sources)), neuron] = True

    def freeze(self) -> Wiring:
        return Wiring(self.groups, self.input, self.recurrent)


def _split(hidden: int) -> tuple[int, int]:
    """Split `hidden` into inter (one third, at least one if there are any) and command neurons."""
    inter = max(min(1, hidden), hidden // 3)
    return inter, hidden - inter


def _density(sparsity: float) -> float:
    if not 0.0 <= sparsity < 1.0:
        raise ValueError(f"sparsity: must be in [0, 1), got {sparsity}; 0 keeps every synapse, 0.5 is the default.")
    return 1.0 - sparsity


def _fan(name: str, given: int | None, most: int, density: float) -> int:
    """Return the number of synapses that is given, or max(1, floor(density * most)).

    Raises:
        ValueError: It is given, and is less than 1 or more than `most`.
    """
    if given is None:
        return max(1, int(density * most))
    if not 1 <= given <= most:
        raise ValueError(f"{name}: must lie in 1 to {most} in a circuit of this size, got {given}.")
    return given


def _fan_out(rng: np.random.Generator, sources: int, targets: int, count: int) -> np.ndarray:
    """Draw a mask in which each source has `count` targets.

    It is (sources, targets), and no target has none.
    """
    mask = np.zeros((sources, targets), dtype=bool)
    for row in mask:
        row[rng.choice(targets, size=count, replace=False)] = True
    forgotten = np.flatnonzero(~mask.any(axis=0))
    fan_in = int(np.clip(sources * count // targets, 1, sources))
    for target in forgotten:
        mask[rng.choice(sources, size=fan_in, replace=False), target] = True
    return mask


def _independent(rng: np.random.Generator, sources: int, targets: int, density: float) -> np.ndarray:
    """Draw a mask of independent synapses.

    It is (sources, targets), and no source and no target is left out.
    """
    mask = rng.random((sources, targets)) < density
    for source in np.flatnonzero(~mask.any(axis=1)):
        mask[source, rng.integers(targets)] = True
    for target in np.flatnonzero(~mask.any(axis=0)):
        mask[rng.integers(sources), target] = True
    return mask
