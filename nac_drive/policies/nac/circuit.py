"""The repurposed NCP cell (NAC paper, Algorithm 1).

Its two uses are the sensory gate and the backbone.

    u~  = u * w_in + b_in
    x'  = tanh(x (W_rec * M_rec) + u~ (W_in * M_in) + b)        disabled groups stay at 0
    y   = x'[output group] * w_out + b_out

The paper leaves the activation open; tanh is used throughout. Inside, a neuron carries s = sigmoid(2 z) instead of
tanh(z) = 2 s - 1, the difference being fused into the weights: the same function, and sigmoid is several times faster
than tanh on CPUs.

Shapes: B batch, T time, F features, H heads, D = d / H, N pairs, E neurons of the backbone's input group, M motor
neurons, L settling steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from nac_drive.policies.ops.weight_cache import WeightCache, weights_of
from nac_drive.policies.wiring.wiring import Wiring, reached


class SensoryGate(nn.Module):
    """P projections (q, k, v) of one input by NCP cells.

    In each cell, the input group and the output group are sensory.

    There are no synapses among sensory neurons, so the cell has no memory (its recurrent mask must be empty in that
    block): one sparse affine map over all time steps at once, tanh, then a scale and a shift per neuron (Eq. 13).
    """

    def __init__(self, wirings: Sequence[Wiring]) -> None:
        super().__init__()
        for wiring in wirings:
            block = wiring.group("sensory")
            if wiring.active_groups != ("sensory",) or wiring.recurrent_mask[block, block].any():
                raise ValueError(
                    "wirings: a sensory gate needs input_group = output_group = 'sensory' and no synapses between "
                    f"sensory neurons, got groups {wiring.active_groups}; use sensory_gate_wiring."
                )
        inputs, units, count = wirings[0].inputs, wirings[0].groups.sensory, len(wirings)
        mask = torch.stack([torch.from_numpy(w.input_mask[:, w.group("sensory")].copy()) for w in wirings], dim=1)
        self.mask: Tensor
        self.register_buffer("mask", mask)  # (F, P, d)
        self.in_scale = nn.Parameter(torch.ones(inputs, count, 1))
        self.in_shift = nn.Parameter(torch.zeros(inputs, count, 1))
        self.weight = nn.Parameter(torch.randn(inputs, count, units) * mask / mask.sum(dim=0).sqrt())
        self.bias = nn.Parameter(torch.zeros(count, units))
        self.out_scale = nn.Parameter(torch.ones(count, units))
        self.out_shift = nn.Parameter(torch.zeros(count, units))

    def forward(self, x: Tensor) -> Tensor:
        """Return the P projections (B, T, P, d) of x (B, T, F)."""
        weight, bias, scale, shift = self.fuse()
        z = torch.addmm(bias.flatten(), x.flatten(0, 1), weight.flatten(1))  # (B T, P d)
        neurons = z.sigmoid().view(*x.shape[:2], *bias.shape)  # (B, T, P, d)
        return torch.addcmul(shift, neurons, scale)  # (B, T, P, d)

    def fuse(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the affine maps before and after the sigmoid.

        Weight (F, P, d) and bias (P, d) lead from x to 2 z, scale and shift (P, d) from s to y.
        """
        synapses = 2.0 * (self.weight * self.mask)  # (F, P, d)
        bias = torch.add((self.in_shift * synapses).sum(dim=0), self.bias, alpha=2.0)  # (P, d)
        return self.in_scale * synapses, bias, 2.0 * self.out_scale, self.out_shift - self.out_scale


class Backbone(nn.Module):
    """The circuit that computes phi and omega (Eq. 14-16).

    H cells have their own weights on one wiring.

    A signal needs one step per layer to travel from the inputs to the motor neurons, so the cell is settled: `steps`
    steps from x = 0 with the input held. Only the groups that can still influence the motor neurons are computed at
    each step; a group that does not depend on the input is computed once for all pairs.

    Raises:
        ValueError: `steps` is too small for the input to reach every motor neuron.
    """

    def __init__(self, wiring: Wiring, num_heads: int, steps: int) -> None:
        super().__init__()
        self.input_group, self.output_group, self.steps = wiring.groups.input_group, wiring.groups.output_group, steps
        self.sources = _synapse_groups(wiring)
        self.plan = _plan(self.sources, self.output_group, steps)
        _check_steps(wiring, steps)
        entry = wiring.group(self.input_group)
        fan_in = wiring.input_mask.sum(axis=0) + wiring.recurrent_mask.sum(axis=0)  # (neurons,)
        scale = torch.from_numpy(fan_in).clamp(min=1).rsqrt()  # (neurons,)

        mask = torch.from_numpy(wiring.input_mask[:, entry].copy())  # (2D, E)
        self.in_mask: Tensor
        self.register_buffer("in_mask", mask)
        self.in_scale = nn.Parameter(torch.ones(num_heads, wiring.inputs, 1))
        self.in_shift = nn.Parameter(torch.zeros(num_heads, wiring.inputs, 1))
        self.in_weight = nn.Parameter(torch.randn(num_heads, *mask.shape) * mask * scale[entry] * _GAIN)
        self.bias = nn.ParameterDict()
        self.weight = nn.ParameterDict()
        for target in wiring.active_groups:
            columns = wiring.group(target)
            self.bias[target] = nn.Parameter(0.1 * torch.randn(num_heads, 1, columns.stop - columns.start))
            for source in self.sources[target]:
                block = torch.from_numpy(wiring.recurrent_mask[wiring.group(source), columns].copy())  # (S, n)
                self.register_buffer(f"mask_{source}_{target}", block)
                value = torch.randn(num_heads, *block.shape) * block * scale[columns] * _GAIN  # (H, S, n)
                self.weight[f"{source}_{target}"] = nn.Parameter(value)
        self.out_scale = nn.Parameter(torch.ones(num_heads, 1, wiring.groups.size(self.output_group)))
        self.out_shift = nn.Parameter(torch.zeros(num_heads, 1, wiring.groups.size(self.output_group)))
        self._cache: WeightCache[FusedBackbone] = WeightCache()

    def input_map(self) -> tuple[Tensor, Tensor]:
        """Return the affine map from u to the drive.

        Weight (H, 2D, E) and bias (H, 1, E) lead to the input group.

        The drive is twice the pre-activation of the input group, its bias included. Being affine, the drive of a pair
        [q; k] is the sum of a query part and a key part, each projected once per token.
        """
        synapses = 2.0 * (self.in_weight * self.in_mask)  # (H, 2D, E)
        bias = torch.add((self.in_shift * synapses).sum(dim=1, keepdim=True), self.bias[self.input_group], alpha=2.0)
        return self.in_scale * synapses, bias

    def forward(self, drive: Tensor, fused: FusedBackbone | None = None) -> Tensor:
        """Settle: compute the motor outputs y (B, H, M, N).

        The drive (B, H, N, E) comes from `input_map`.

        `fused` is the result of `fused()`, for several calls with the same weights.
        """
        (*steps, last), out_scale, out_shift = self.fused() if fused is None else fused
        neurons: dict[str, Tensor] = {}  # s of the groups the input has reached: (B, H, N, n) each
        for updates in steps:
            neurons = {update.target: _step(update, neurons, drive) for update in updates}
        (motor,) = last  # the last step computes the output group alone
        return torch.addcmul(out_shift, _last_step(motor, neurons, drive), out_scale)  # (B, H, M, N)

    def trajectory(self, drive: Tensor) -> dict[str, Tensor]:
        """Record every active neuron after every settling step.

        This is Algorithm 1 literally, without fused weights, and slow.

        Args:
            drive: From `input_map`, (B, H, N, E).

        Returns:
            x (L, B, H, N, n) by group.
        """
        pairs = drive.shape[:3]
        x = {group: drive.new_zeros(*pairs, bias.shape[2]) for group, bias in self.bias.items()}
        record: dict[str, list[Tensor]] = {group: [] for group in x}
        for _ in range(self.steps):
            z = {group: 0.5 * drive if group == self.input_group else bias for group, bias in self.bias.items()}
            for target, sources in self.sources.items():
                for source in sources:
                    name = f"{source}_{target}"
                    z[target] = z[target] + x[source] @ (self.weight[name] * getattr(self, f"mask_{name}"))
            x = {group: torch.tanh(z[group]).expand_as(x[group]) for group in x}  # (B, H, N, n)
            for group, states in record.items():
                states.append(x[group])
        return {group: torch.stack(states) for group, states in record.items()}

    def fused(self) -> FusedBackbone:
        """Return the updates of each step with their constants.

        Scale and shift from s to y follow, (H, M, 1) each.
        """
        return self._cache(weights_of(self, self.bias, self.weight), self._fuse)

    def _fuse(self) -> FusedBackbone:
        synapses, shifts = {}, {}
        for name, weight in self.weight.items():
            synapses[name] = 4.0 * (weight * getattr(self, f"mask_{name}"))  # (H, S, n)
            shifts[name] = 0.5 * synapses[name].sum(dim=1, keepdim=True)  # (H, 1, n)
        steps: list[list[_Update]] = []
        constants: dict[str, Tensor] = {}  # s of the groups no input has reached yet: (H, 1, n) each
        for number, groups in enumerate(self.plan):
            before, constants, updates = constants, {}, []
            for target in groups:
                z = 2.0 * self.bias[target] if target != self.input_group else torch.zeros_like(self.bias[target])
                arrived = []
                for source in self.sources[target] if number else ():
                    name = f"{source}_{target}"
                    z = z - shifts[name]
                    if source in before:
                        z = z + torch.bmm(before[source], synapses[name])
                    else:
                        arrived.append((source, synapses[name]))
                if arrived or target == self.input_group:
                    alone = not self.sources[target] or not number
                    updates.append(_Update(target, target == self.input_group, None if alone else z, arrived))
                else:
                    constants[target] = torch.sigmoid(z)
            steps.append(updates)
        out_scale = 2.0 * self.out_scale.transpose(1, 2)
        return steps, out_scale, self.out_shift.transpose(1, 2) - 0.5 * out_scale


class _Update(NamedTuple):
    """Update of one group in one step.

    s' = sigmoid(drive + constant + sum_source s_source weight).
    """

    target: str
    driven: bool
    constant: Tensor | None
    """(H, 1, n), or None where only the drive enters."""
    arrived: list[tuple[str, Tensor]]
    """Sources that the input has reached, with weights (H, S, n)."""


FusedBackbone = tuple[list[list[_Update]], Tensor, Tensor]


def _step(update: _Update, neurons: dict[str, Tensor], drive: Tensor) -> Tensor:
    """Return the next s (B, H, N, n) of one group."""
    batch, heads, pairs, _ = drive.shape
    if update.constant is None:  # the input is held and nothing else arrives: once computed, it stays
        return neurons[update.target] if update.target in neurons else torch.sigmoid(drive)
    if update.driven:
        z = drive + update.constant  # (B, H, N, n)
    else:
        z = update.constant.expand(batch, -1, -1, -1)  # (B, H, 1, n)
    z = z.flatten(0, 1)
    for source, weight in update.arrived:
        spread = weight.expand(batch, -1, -1, -1).flatten(0, 1)  # (B H, S, n)
        z = torch.baddbmm(z, neurons[source].flatten(0, 1), spread)  # (B H, N, n)
    return z.sigmoid_().view(batch, heads, pairs, -1)


def _last_step(update: _Update, neurons: dict[str, Tensor], drive: Tensor) -> Tensor:
    """Return the next s (B, H, n, N) of the output group. Few neurons by many pairs multiply faster with pairs last."""
    if update.constant is None or update.driven:
        return _step(update, neurons, drive).transpose(2, 3)
    batch, heads, pairs, _ = drive.shape
    z = update.constant.transpose(1, 2).expand(batch, -1, -1, -1).flatten(0, 1)  # (B H, n, 1)
    for source, weight in update.arrived:
        spread = weight.expand(batch, -1, -1, -1).flatten(0, 1).transpose(1, 2)  # (B H, n, S), as in a batch of one
        z = torch.baddbmm(z, spread, neurons[source].flatten(0, 1).transpose(1, 2))  # (B H, n, N)
    return z.sigmoid_().view(batch, heads, -1, pairs)


_GAIN = 1.5
"""Initial gain of the synapses: tanh(1.5 x) roughly keeps a unit signal's variance from layer to layer."""


def _synapse_groups(wiring: Wiring) -> dict[str, tuple[str, ...]]:
    """Return the groups with synapses into each active group."""
    mask = wiring.recurrent_mask
    return {
        target: tuple(
            source for source in wiring.active_groups if mask[wiring.group(source), wiring.group(target)].any()
        )
        for target in wiring.active_groups
    }


def _plan(sources: dict[str, tuple[str, ...]], exit_group: str, steps: int) -> list[tuple[str, ...]]:
    """Return the groups to compute at each step.

    The output group still depends on them. They are in reading order.
    """
    plan: list[tuple[str, ...]] = [(exit_group,)]
    for _ in range(steps - 1):
        needed = {source for target in plan[0] for source in sources[target]}
        plan.insert(0, tuple(group for group in sources if group in needed))
    return plan


def _check_steps(wiring: Wiring, steps: int) -> None:
    exit_group = wiring.groups.output_group
    if not reached(wiring, steps)[:, wiring.group(exit_group)].all():
        raise ValueError(
            f"steps: the input needs one step per layer to reach the {exit_group} neurons, got {steps}, so "
            f"the outputs would be constants; use at least {len(wiring.active_groups)}."
        )
