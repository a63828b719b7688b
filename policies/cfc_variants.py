"""The closed-form continuous-time network on an NCP wiring."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from policies.bptt import Feedback, recur
from policies.cfc_forms import Gated, feedback_of_tanh
from policies.core import Core, State
from policies.fold import Memo, weights_of
from policies.graphs import ncp_wiring
from policies.wiring import Groups, Wiring


class WiredCfC(Core):
    """Three layers of gated CfC cells, inter, command and motor, joined as an NCP: x -> inter -> command -> motor.

    With layers l = 1, 2, 3 and h_0 = x, each layer sees its own state and what the layer before makes of this frame:

        h_l' = (1 - z) tanh(f_1) + z tanh(f_2),    z = sigmoid(t_a dt + t_b),    all affine in [h_{l-1}'; h_l]

    f_1 and f_2 have weights from h_{l-1}' only where the wiring has synapses; t_a and t_b have all, and every neuron of
    a layer sees every other, as in ncps (WiredCfCCell): the wiring's synapses among command neurons play no part. There
    is no backbone. y is the state of the motor neurons, output_size of them; of the others 40 % are command neurons, as
    in ncps (AutoNCP). state: (h,), (B, units): inter, command, motor.

    units: all neurons; None is twice output_size, at least two more. sparsity: see `ncp_wiring`.
    Raises ValueError if `units` leaves fewer than two hidden neurons, or `sparsity` is outside [0, 1).
    """

    continuous_time = True

    def __init__(
        self, input_size: int, output_size: int, *, units: int | None = None, sparsity: float = 0.5, seed: int = 0
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
        self.sizes = [groups.size(name) for name in groups.active]
        into = self.wiring.recurrent_mask
        masks = (
            self.wiring.input_mask[:, groups.slice("inter")],
            into[groups.slice("inter"), groups.slice("command")],
            into[groups.slice("command"), groups.slice("motor")],
        )
        self.layers = nn.ModuleList(CfCLayer(torch.from_numpy(mask.T.copy())) for mask in masks)

    def state_shapes(self) -> tuple[tuple[tuple[int, ...], torch.dtype | None], ...]:
        return (((sum(self.sizes),), None),)

    def forward(self, x: Tensor, dt: Tensor, state: State) -> tuple[Tensor, State]:
        y, last = x, []
        with torch.autocast(x.device.type, enabled=False):
            for layer, h in zip(self.layers, state[0].split(self.sizes, dim=1), strict=True):
                y = layer(y, dt, h)  # (B, T, neurons of the layer): a layer runs through all frames before the next
                last.append(y[:, -1])
        return y, (torch.cat(last, dim=1),)


class CfCLayer(nn.Module):
    """Gated CfC neurons without a backbone; mask (neurons, inputs) bool is where f_1 and f_2 see an input."""

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
        self._folded: Memo[tuple[Tensor, Tensor, Feedback]] = Memo()

    def forward(self, x: Tensor, dt: Tensor, h: Tensor) -> Tensor:
        """x (B, T, F), dt (B, T), h (B, d) -> (B, T, d)."""
        weight, bias, feedback = self._folded(weights_of(self), self._fold)
        drive = F.linear(x.to(h.dtype), weight, bias)  # (B, T, 4 d)
        return recur(Gated, drive, h, feedback, None, dt.unsqueeze(2).to(h.dtype))

    def _fold(self) -> tuple[Tensor, Tensor, Feedback]:
        weight, bias, recurrent = map(Gated.arrange, (self.weight * self.mask, self.bias, self.recurrent))
        return weight, *feedback_of_tanh(recurrent, bias)
