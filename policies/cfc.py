"""The closed-form continuous-time network (Hasani et al. 2022) with a true dt per sample and step."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from policies.bptt import Feedback, recur
from policies.cfc_forms import FORMS, feedback_of_tanh
from policies.core import Core, State
from policies.fold import Memo, weights_of

SCALE, SLOPE = 1.7159, 0.666
"""LeCun's tanh is SCALE tanh(SLOPE z)."""

FASTEST, SLOWEST = 20.0, 0.5
"""Range of the pure form's initial rates w_tau in 1 / s: time constants from 50 ms to 2 s, for frames of 20 ms."""


class CfC(Core):
    """The recurrence, with g = lecun_tanh(W [x; h] + b) and z = sigmoid(t_a(g) dt + t_b(g)), in three modes:

        gated:    h' = (1 - z) tanh(f_1(g)) + z tanh(f_2(g))
        no-gate:  h' = tanh(f_1(g)) + z tanh(f_2(g))
        pure:     h' = A - A exp(-(|w_tau| + |f_1(g)|) dt) f_1(g)

    f_1, f_2, t_a and t_b are affine, w_tau and A vectors. The output is h'; the state is (h,), (B, d). It runs in the
    precision of its weights, under autocast too.

    Raises ValueError if `backbone_units` is less than 1 or `mode` unknown.
    """

    continuous_time = True

    def __init__(self, input_size: int, output_size: int, *, backbone_units: int = 128, mode: str = "gated") -> None:
        super().__init__()
        if backbone_units < 1:
            raise ValueError(f"backbone_units: must be at least 1, got {backbone_units}.")
        if mode not in FORMS:
            raise ValueError(f"mode: must be one of {sorted(FORMS)}, got {mode!r}.")
        self.input_size, self.output_size = input_size, output_size
        self._form = FORMS[mode]
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
        self._folded: Memo[tuple[Tensor, Tensor, Feedback, tuple[Tensor, Tensor]]] = Memo()

    def state_shapes(self) -> tuple[tuple[tuple[int, ...], torch.dtype | None], ...]:
        return (((self.output_size,), None),)

    def forward(self, x: Tensor, dt: Tensor, state: State) -> tuple[Tensor, State]:
        (h,), weights = state, weights_of(self, self.input, self.recurrent, self.heads)
        with torch.autocast(x.device.type, enabled=False):
            weight, bias, feedback, heads = self._folded(weights, self._fold)
            drive = F.linear(x.to(h.dtype), weight, bias)  # (B, T, units): all steps at once
            clock = dt.unsqueeze(2).to(h.dtype)  # (B, T, 1)
            clocks = (clock,) if self.w_tau is None else (-clock, -clock * self.w_tau.abs())
            y = recur(self._form, drive, h, feedback, heads, *clocks)  # (B, T, d)
        return y, (y[:, -1],)

    def _fold(self) -> tuple[Tensor, Tensor, Feedback, tuple[Tensor, Tensor]]:
        """LeCun's tanh, SCALE tanh(SLOPE z) = SCALE (2 sigmoid(2 SLOPE z) - 1), taken into the weights around it, the
        heads as the form takes them, and what comes back of h."""
        affine = self.input.weight, self.input.bias, self.recurrent.weight
        weight, bias, recurrent = (2.0 * SLOPE * tensor for tensor in affine)
        heads, offsets = self.heads.weight, self.heads.bias
        heads, offsets = self._form.arrange(2.0 * SCALE * heads), self._form.arrange(offsets - SCALE * heads.sum(dim=1))
        if self.limit is None:
            bias, feedback = feedback_of_tanh(recurrent, bias)
        else:
            bias, feedback = Feedback.of(recurrent, bias, -self.limit, self.limit)
        return weight, bias, feedback, (heads, offsets)
