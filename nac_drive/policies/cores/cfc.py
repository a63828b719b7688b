"""The closed-form continuous-time network (Hasani et al. 2022), true dt."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nac_drive.policies.cores.base import NOMINAL_DT, RecurrentCore, State, StateSpec, check_time_unit
from nac_drive.policies.ops.bptt import Feedback, recur
from nac_drive.policies.ops.cfc_steps import FORMS, SCALE, SLOPE, Gated, feedback_of_tanh
from nac_drive.policies.ops.weight_cache import WeightCache, weights_of
from nac_drive.policies.wiring.graphs import ncp_wiring
from nac_drive.policies.wiring.wiring import Groups, Wiring

FASTEST, SLOWEST = 20.0, 0.5
"""Range of the pure form's initial rates w_tau in 1 / s: time constants from 50 ms to 2 s, for frames of 20 ms."""


class CfC(RecurrentCore):
    """Closed-form continuous-time neurons. `cores.cfc_naive` holds the same function in plain form.

    With g = lecun_tanh(W [x; h] + b) and z = sigmoid(t_a(g) dt + t_b(g)), in three modes:

        gated:    h' = (1 - z) tanh(f_1(g)) + z tanh(f_2(g))
        no-gate:  h' = tanh(f_1(g)) + z tanh(f_2(g))
        pure:     h' = A - A exp(-(|w_tau| + |f_1(g)|) dt) f_1(g)

    f_1, f_2, t_a and t_b are affine, w_tau and A vectors. In z, dt counts units of `time_unit`: in seconds it would be
    too small to have an effect. The pure form has rates in 1 / s. The output is h'. It runs in the precision of its
    weights, under autocast too.

    State: (h,), (B, d).

    Args:
        input_size: Number of input features, F.
        output_size: Number of output features, d.
        backbone_units: Number of units of the backbone g.
        mode: "gated", "no-gate" or "pure".
        time_unit: Seconds of one unit of dt in z: a frame by default, on which z equals ncps'.

    Raises:
        ValueError: `backbone_units` is less than 1, `mode` is unknown, or `time_unit` is not positive.
    """

    continuous_time = True
    neuron_names = ("h",)
    has_cells = True

    def __init__(
        self,
        input_size: int,
        output_size: int,
        *,
        backbone_units: int = 128,
        mode: str = "gated",
        time_unit: float = NOMINAL_DT,
    ) -> None:
        super().__init__()
        if backbone_units < 1:
            raise ValueError(f"backbone_units: must be at least 1, got {backbone_units}.")
        if mode not in FORMS:
            raise ValueError(f"mode: must be one of {sorted(FORMS)}, got {mode!r}.")
        self.input_size, self.output_size = input_size, output_size
        self.time_unit = check_time_unit(time_unit)
        self.mode, self._form = mode, FORMS[mode]
        heads = self._form.heads
        self.input = nn.Linear(input_size, backbone_units)
        self.recurrent = nn.Linear(output_size, backbone_units, bias=False)
        self.heads = nn.Linear(backbone_units, heads * output_size)
        for block in self.heads.weight.chunk(heads):
            nn.init.xavier_uniform_(block)
        joint = torch.empty(backbone_units, input_size + output_size)
        nn.init.xavier_uniform_(joint)
        with torch.no_grad():
            self.input.weight.copy_(joint[:, :input_size])
            self.recurrent.weight.copy_(joint[:, input_size:])
        self.w_tau: nn.Parameter | None = None
        self.limit: nn.Parameter | None = None  # A
        if mode == "pure":
            self.w_tau = nn.Parameter(SLOWEST * (FASTEST / SLOWEST) ** torch.rand(output_size))
            self.limit = nn.Parameter(torch.ones(output_size))
        self._cache: WeightCache[tuple[Tensor, Tensor, Feedback, tuple[Tensor, Tensor]]] = WeightCache()

    def state_shapes(self) -> StateSpec:
        return (((self.output_size,), None),)

    def forward(self, x: Tensor, dt: Tensor, state: State) -> tuple[Tensor, State]:
        (h,), weights = state, weights_of(self, self.input, self.recurrent, self.heads)
        with torch.autocast(x.device.type, enabled=False):
            weight, bias, feedback, heads = self._cache(weights, self._fuse)
            drive = F.linear(x.to(h.dtype), weight, bias)  # (B, T, units): all steps at once
            clock = dt.unsqueeze(2).to(h.dtype)  # (B, T, 1)
            clocks = (clock / self.time_unit,) if self.w_tau is None else (-clock, -clock * self.w_tau.abs())
            y = recur(self._form, drive, h, feedback, heads, *clocks)  # (B, T, d)
        return y, (y[:, -1],)

    def _fuse(self) -> tuple[Tensor, Tensor, Feedback, tuple[Tensor, Tensor]]:
        """Fuse LeCun's tanh into the weights around it.

        SCALE tanh(SLOPE z) = SCALE (2 sigmoid(2 SLOPE z) - 1).

        Returns:
            Weight and bias of the drive, the feedback of h, and the weights of the heads in the order of the form.
        """
        affine = self.input.weight, self.input.bias, self.recurrent.weight
        weight, bias, recurrent = (2.0 * SLOPE * tensor for tensor in affine)
        heads, offsets = self.heads.weight, self.heads.bias
        heads, offsets = self._form.arrange(2.0 * SCALE * heads), self._form.arrange(offsets - SCALE * heads.sum(dim=1))
        if self.limit is None:
            bias, feedback = feedback_of_tanh(recurrent, bias)
        else:
            bias, feedback = Feedback.of(recurrent, bias, -self.limit, self.limit)
        return weight, bias, feedback, (heads, offsets)


class WiredCfC(RecurrentCore):
    """Three layers of gated CfC cells, joined as an NCP.

    x -> inter -> command -> motor.

    With layers l = 1, 2, 3 and h_0 = x, each layer reads its own state and the new state of the layer before:

        h_l' = (1 - z) tanh(f_1) + z tanh(f_2),    z = sigmoid(t_a dt + t_b),    all affine in [h_{l-1}'; h_l]

    f_1 and f_2 have weights from h_{l-1}' only where the wiring has synapses; t_a and t_b have all, and every neuron of
    a layer sees every other, as in ncps (WiredCfCCell): the wiring's synapses among command neurons have no effect.
    There is no backbone. dt counts units of `time_unit`. The output is the state of the motor neurons, output_size of
    them; of the others 40 % are command neurons, as in ncps (AutoNCP).

    State: (h,), (B, units): inter, command, motor.

    Args:
        input_size: Number of input features, F.
        output_size: Number of output features, d.
        units: Number of all neurons; None is twice `output_size`, at least two more.
        sparsity: Fraction of synapses left out, in [0, 1), see `ncp_wiring`.
        seed: Seed of the wiring.
        time_unit: Seconds of one unit of dt in z: a frame by default, on which z equals ncps'.

    Raises:
        ValueError: `units` leaves fewer than two inter and command neurons, `sparsity` is outside [0, 1), or
            `time_unit` is not positive.
    """

    continuous_time = True
    neuron_names = ("h",)

    def __init__(
        self,
        input_size: int,
        output_size: int,
        *,
        units: int | None = None,
        sparsity: float = 0.5,
        seed: int = 0,
        time_unit: float = NOMINAL_DT,
    ) -> None:
        super().__init__()
        units = max(2 * output_size, output_size + 2) if units is None else units
        hidden = units - output_size
        if hidden < 2:
            raise ValueError(f"units: must be at least output_size + 2 = {output_size + 2} neurons, got {units}.")
        command = max(1, int(0.4 * hidden))
        groups = Groups(inter=hidden - command, command=command, motor=output_size, input_group="inter")
        self.input_size, self.output_size = input_size, output_size
        self.wiring: Wiring = ncp_wiring(input_size, groups, sparsity=sparsity, seed=seed)
        self.time_unit = check_time_unit(time_unit)
        self.sizes = [groups.size(name) for name in groups.active]
        into = self.wiring.recurrent_mask
        masks = (
            self.wiring.input_mask[:, groups.slice("inter")],
            into[groups.slice("inter"), groups.slice("command")],
            into[groups.slice("command"), groups.slice("motor")],
        )
        self.layers = nn.ModuleList(CfCLayer(torch.from_numpy(mask.T.copy())) for mask in masks)

    @property
    def synapses(self) -> int:
        layers = [layer for layer in self.layers if isinstance(layer, CfCLayer)]
        return sum(int(layer.mask.sum()) + layer.recurrent.numel() for layer in layers)

    def state_shapes(self) -> StateSpec:
        return (((sum(self.sizes),), None),)

    def forward(self, x: Tensor, dt: Tensor, state: State) -> tuple[Tensor, State]:
        y, last, clock = x, [], dt / self.time_unit
        with torch.autocast(x.device.type, enabled=False):
            for layer, h in zip(self.layers, state[0].split(self.sizes, dim=1), strict=True):
                y = layer(y, clock, h)  # (B, T, neurons of the layer): a layer runs through all frames before the next
                last.append(y[:, -1])
        return y, (torch.cat(last, dim=1),)


class CfCLayer(nn.Module):
    """Gated CfC neurons without a backbone. `mask` (neurons, inputs) bool is True where f_1 and f_2 see an input."""

    def __init__(self, mask: Tensor) -> None:
        super().__init__()
        neurons, inputs = mask.shape
        self.mask: Tensor
        self.register_buffer("mask", torch.cat((mask, mask, torch.ones_like(mask), torch.ones_like(mask))))
        weights = [nn.init.xavier_uniform_(torch.empty(neurons, inputs + neurons)) for _ in range(4)]
        weight = torch.cat(weights)  # f_1, f_2, t_a, t_b: (4 d, F + d)
        self.weight = nn.Parameter(weight[:, :inputs] * self.mask)
        self.recurrent = nn.Parameter(weight[:, inputs:].clone())
        self.bias = nn.Parameter(torch.empty(4 * neurons).uniform_(-1.0, 1.0) / (inputs + neurons) ** 0.5)
        self._cache: WeightCache[tuple[Tensor, Tensor, Feedback]] = WeightCache()

    def forward(self, x: Tensor, clock: Tensor, h: Tensor) -> Tensor:
        """Return the neurons (B, T, d) after each frame of x (B, T, F), from the state h (B, d).

        clock (B, T) is the time since the frame before, in the core's unit.
        """
        weight, bias, feedback = self._cache(weights_of(self), self._fuse)
        drive = F.linear(x.to(h.dtype), weight, bias)  # (B, T, 4 d)
        return recur(Gated, drive, h, feedback, None, clock.unsqueeze(2).to(h.dtype))

    def _fuse(self) -> tuple[Tensor, Tensor, Feedback]:
        weight, bias, recurrent = map(Gated.arrange, (self.weight * self.mask, self.bias, self.recurrent))
        return weight, *feedback_of_tanh(recurrent, bias)
