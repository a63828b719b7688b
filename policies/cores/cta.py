"""Continuous-time attention in a neural differential equation (Chien & Chen 2021)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nac_drive.policies.cores.base import Core, State, scan
from nac_drive.policies.ops.ode import midpoint_path

LONGEST = 1.0
"""Seconds; a longer gap counts as this. The path moves without a bound, and a midpoint step does not follow it far."""

LARGEST_KEY = 30.0
"""Limit of an element of k, so that the integrals of exp(k) stay finite: e^30 is 1e13."""


class CTA(Core):
    """An ODE-RNN that attends to its own path, at all times between the frames as well as at them.

        dz/dt = W_2 tanh(W_1 z + b_1) + b_2 between frames,    z <- GRU(x, z) at a frame
        c(t) = int_0^t v(u) e(q(t)).e(k(u)) du / int_0^t e(q(t)).e(k(u)) du,    y = tanh(c) + z

    with q, k and v affine in z and e(x) = exp(x) per element. Sources: Chien & Chen 2021, "Continuous-time attention
    for sequential learning" (AAAI), and its causal form in "Continuous-time self-attention in neural differential
    equation" (ICASSP): a query of the present attends to the past by means of two running integrals, of e(k) and of v
    e(k)^T. So there is no window: all the episode counts, and the state does not grow.

    The gap before each frame is cut into `ode_steps` equal midpoint steps, on [0, 1] with the derivative
    multiplied by dt; the integrals are trapezoidal sums over their ends. Both are of second order. q is that of z after
    the frame. (The source integrates the score and the context themselves too, with derivatives that the two running
    integrals imply, and takes adaptive steps.) At the start, where no time has passed, c is 0. The source weighs the
    update of z by an estimated variance as well; here it is torch's GRU cell. A gap of more than 1 s counts as 1 s, an
    element of k above 30 as 30.

    State: z (B, d), the integrals of e(k) (B, d) and of v e(k)^T (B, d, d).

    Args:
        input_size: Number of input features, F.
        output_size: Number of output features, d.
        ode_steps: Midpoint steps per frame.

    Raises:
        ValueError: `ode_steps` is less than 1.
    """

    continuous_time = True
    neuron_names = ("z",)

    def __init__(self, input_size: int, output_size: int, *, ode_steps: int = 1) -> None:
        super().__init__()
        if ode_steps < 1:
            raise ValueError(f"ode_steps: must be at least 1, got {ode_steps}.")
        self.input_size, self.output_size, self.ode_steps = input_size, output_size, ode_steps
        self.field_input = nn.Linear(output_size, output_size)
        self.field_output = nn.Linear(output_size, output_size)
        self.input = nn.Linear(input_size, 3 * output_size)
        self.recurrent = nn.Linear(output_size, 3 * output_size)
        self.query = nn.Linear(output_size, output_size)
        self.kv = nn.Linear(output_size, 2 * output_size)  # key, value

    def state_shapes(self) -> tuple[tuple[tuple[int, ...], torch.dtype | None], ...]:
        d = self.output_size
        return ((d,), None), ((d,), None), ((d, d), None)

    def forward(self, x: Tensor, dt: Tensor, state: State) -> tuple[Tensor, State]:
        z, keys, values = state
        dt = dt.clamp(max=LONGEST)

        def step(state: State, drive: Tensor, seconds: Tensor) -> tuple[Tensor, State]:
            path = midpoint_path(lambda z: seconds * self.field(z), state[0], self.ode_steps)  # (n + 1, B, d)
            z = self._update(drive, path[-1])
            return torch.cat((z.unsqueeze(0), path)).transpose(0, 1), (z,)

        path, (z,) = scan(step, (z,), self.input(x), dt.unsqueeze(2))  # (B, T, n + 2, d): after the frame, before it
        weight = torch.full((self.ode_steps + 1,), 1.0 / self.ode_steps, device=x.device, dtype=dt.dtype)
        weight[0] = weight[-1] = 0.5 / self.ode_steps  # the trapezoidal rule
        k, v = self.kv(path[:, :, 1:]).chunk(2, dim=3)  # (B, T, n + 1, d)
        e_k = dt[:, :, None, None] * weight[:, None] * k.clamp(max=LARGEST_KEY).exp()
        keys = keys.unsqueeze(1) + e_k.sum(dim=2).cumsum(dim=1)  # (B, T, d)
        values = values.unsqueeze(1) + (v.transpose(2, 3) @ e_k).cumsum(dim=1)  # (B, T, d, d)
        e_q = self.query(path[:, :, 0]).softmax(dim=2)  # exp up to a factor, which has no effect
        context = (values @ e_q.unsqueeze(3)).squeeze(3) / ((keys * e_q).sum(dim=2, keepdim=True) + 1e-8)
        return context.tanh() + path[:, :, 0], (z, keys[:, -1], values[:, -1])

    def field(self, z: Tensor) -> Tensor:
        """Return dz/dt (B, d) between frames at z (B, d)."""
        return self.field_output(self.field_input(z).tanh())

    def _update(self, drive: Tensor, z: Tensor) -> Tensor:
        """Update z (B, d) by torch's GRU cell; drive = W x + b (B, 3 d) for reset, update and new."""
        own = self.recurrent(z)
        d = self.output_size
        reset, update = torch.sigmoid(drive[:, : 2 * d] + own[:, : 2 * d]).chunk(2, dim=1)
        new = torch.tanh(drive[:, 2 * d :] + reset * own[:, 2 * d :])
        return new + update * (z - new)
