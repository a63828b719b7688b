"""The closed-form continuous-time network (Hasani et al. 2022), gated form, with a true dt per sample and step."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from policies.core import Core, State


class CfC(Core):
    """The recurrence, with g = lecun_tanh(W [x; h] + b) and z = sigmoid(t_a(g) dt + t_b(g)):

        h' = (1 - z) tanh(f_1(g)) + z tanh(f_2(g))

    f_1, f_2, t_a and t_b are affine. The output is h'; the state is (h,), (B, d).
    Raises ValueError if `backbone_units` is less than 1.
    """

    continuous_time = True

    def __init__(self, input_size: int, output_size: int, *, backbone_units: int = 128) -> None:
        super().__init__()
        if backbone_units < 1:
            raise ValueError(f"backbone_units: must be at least 1, got {backbone_units}.")
        self.input_size, self.output_size = input_size, output_size
        self.input = nn.Linear(input_size, backbone_units)
        self.recurrent = nn.Linear(output_size, backbone_units, bias=False)
        self.heads = nn.Linear(backbone_units, 4 * output_size)  # f_1, f_2, t_a, t_b
        for block in self.heads.weight.chunk(4):
            nn.init.xavier_uniform_(block)
        joint = torch.empty(backbone_units, input_size + output_size)
        nn.init.xavier_uniform_(joint)
        with torch.no_grad():
            self.input.weight.copy_(joint[:, :input_size])
            self.recurrent.weight.copy_(joint[:, input_size:])

    def state_shapes(self) -> tuple[tuple[tuple[int, ...], torch.dtype | None], ...]:
        return (((self.output_size,), None),)

    def forward(self, x: Tensor, dt: Tensor, state: State) -> tuple[Tensor, State]:
        drive = self.input(x)  # (B, T, units): all steps at once
        (h,) = state
        weight, d, outputs = self.recurrent.weight.t(), self.output_size, []
        for step, seconds in zip(drive.unbind(1), dt.unsqueeze(2).unbind(1), strict=True):
            g = 1.7159 * torch.tanh(0.666 * torch.addmm(step, h, weight))  # (B, units)
            f, t_a, t_b = self.heads(g).split((2 * d, d, d), dim=1)
            f_1, f_2 = f.tanh().split(d, dim=1)  # (B, d) each
            gate = torch.sigmoid(torch.addcmul(t_b, t_a, seconds)).to(f_1.dtype)  # mixed precision has two
            h = torch.lerp(f_1, f_2, gate)
            outputs.append(h)
        return torch.stack(outputs, dim=1), (h,)  # (B, T, d)
