"""Continuous-time attention in a neural differential equation (Chien & Chen 2021)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nac_drive.policies.cores.base import State, StateSpec, scan
from nac_drive.policies.cores.ode_rnn import LONGEST, ODERNN

LARGEST_KEY = 30.0
"""Limit of an element of k, so that the integrals of exp(k) stay finite: e^30 is 1e13."""


class CTA(ODERNN):
    """An ODE-RNN that attends to its own path.

    It attends at all times, between the frames as well as at them.

        dz/dt = W_2 tanh(W_1 z + b_1) + b_2 between frames,    z <- GRU(x, z) at a frame
        c(t) = int_0^t v(u) e(q(t)).e(k(u)) du / int_0^t e(q(t)).e(k(u)) du,    y = tanh(c) + z

    with q, k and v affine in z and e(x) = exp(x) per element. Sources: Chien & Chen 2021, "Continuous-time attention
    for sequential learning" (AAAI), and its causal form in "Continuous-time self-attention in neural differential
    equation" (ICASSP): a query of the present attends to the past by means of two running integrals, of e(k) and of v
    e(k)^T. So there is no window: all the episode counts, and the state does not grow.

    z is the state of `ODERNN`. The integrals are trapezoidal sums over the ends of its midpoint steps; both are of
    second order. q is computed from z after the frame. (The source integrates the score and the context themselves
    too, with derivatives that the two running integrals imply, and takes adaptive steps.) At the start, where no time
    has passed, c is 0. The source weighs the update of z by an estimated variance as well; here it is torch's GRU
    cell. A gap of more than 1 s counts as 1 s, an element of k above 30 as 30.

    State: z (B, d), the integrals of e(k) (B, d) and of v e(k)^T (B, d, d).

    Args:
        input_size: Number of input features, F.
        output_size: Number of output features, d.
        ode_steps: Midpoint steps per frame.

    Raises:
        ValueError: `ode_steps` is less than 1.
    """

    has_cells = False

    def __init__(self, input_size: int, output_size: int, *, ode_steps: int = 1) -> None:
        super().__init__(input_size, output_size, ode_steps=ode_steps)
        self.query = nn.Linear(output_size, output_size)
        self.kv = nn.Linear(output_size, 2 * output_size)  # key, value

    @property
    def neurons(self) -> None:
        """None: it is attention over the path of an ODE-RNN."""

    def state_shapes(self) -> StateSpec:
        d = self.output_size
        return ((d,), None), ((d,), None), ((d, d), None)

    def forward(self, x: Tensor, dt: Tensor, state: State) -> tuple[Tensor, State]:
        z, keys, values = state

        def step(state: State, drive: Tensor, seconds: Tensor) -> tuple[Tensor, State]:
            path = self.evolve(state[0], seconds)  # (n + 1, B, d)
            z = self.update(drive, path[-1])
            return torch.cat((z.unsqueeze(0), path)).transpose(0, 1), (z,)

        path, (z,) = scan(step, (z,), self.input(x), dt.unsqueeze(2))  # (B, T, n + 2, d): after the frame, before it
        weight = torch.full((self.ode_steps + 1,), 1.0 / self.ode_steps, device=x.device, dtype=dt.dtype)
        weight[0] = weight[-1] = 0.5 / self.ode_steps  # the trapezoidal rule
        k, v = self.kv(path[:, :, 1:]).chunk(2, dim=3)  # (B, T, n + 1, d)
        e_k = dt.clamp(max=LONGEST)[:, :, None, None] * weight[:, None] * k.clamp(max=LARGEST_KEY).exp()
        keys = keys.unsqueeze(1) + e_k.sum(dim=2).cumsum(dim=1)  # (B, T, d)
        values = values.unsqueeze(1) + (v.transpose(2, 3) @ e_k).cumsum(dim=1)  # (B, T, d, d)
        e_q = self.query(path[:, :, 0]).softmax(dim=2)  # exp up to a factor, which has no effect
        context = (values @ e_q.unsqueeze(3)).squeeze(3) / ((keys * e_q).sum(dim=2, keepdim=True) + 1e-8)
        return context.tanh() + path[:, :, 0], (z, keys[:, -1], values[:, -1])
