"""A linear dynamical system that can be kept stable (Lechner, Hasani, Rus and Grosu 2020)."""

from __future__ import annotations

from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nac_drive.policies.cores.base import RecurrentCore, State, StateSpec, scan
from nac_drive.policies.ops.ode import initial_log_tau

Stability = Literal["penalty", "descent"]
"""The Gershgorin loss is added to the loss of training, or descended alone where an eigenvalue is unstable."""

DESCENT = 1e-3
"""Step size of the descent, in units of `dynamics`: about as much as a step of Adam changes it."""


class LDS(RecurrentCore):
    """The linear system of Hasani's thesis and its stabilising loss.

    See Eq. 2.17 and Section 2.8.3 (2020).

        dh/dt = A h + B x,  y = C h

    The input is held over the dt seconds before its frame. The thesis steps by explicit Euler, which may diverge where
    A is stable but dt long. Here A is split into its diagonal and the rest; in each of `unfolds` equal steps the rest
    acts on the state at the start of the step, and the diagonal is solved exactly. That is of first order, and where
    `penalty` is zero, the largest |h_i| cannot grow without input, however long dt is. A diagonal entry above
    -margin is split as well: -margin is solved exactly, and what exceeds it belongs to the rest.

    Row i of A and B is row i of the parameters `dynamics` and `drive` divided by a fixed time constant (0.03 to 3 s),
    so that one learning rate suits all rows. The diagonal of `dynamics` starts at -1, the rest so small that the loss
    is zero.

    State: (h,), (B, d).

    Args:
        input_size: Number of input features, F.
        output_size: Number of output features, d.
        unfolds: Solver steps per frame.
        margin: Epsilon of the loss, in 1/s.
        stability: "penalty" adds the loss to the training loss; "descent" is Algorithm 1 of the thesis, see
            `after_step`.

    Raises:
        ValueError: `unfolds` is less than 1, `margin` is not positive, or `stability` is unknown.
    """

    continuous_time = True
    neuron_names = ("h",)
    synapse_weights = ("drive.weight", "dynamics")
    tau: Tensor

    def __init__(
        self, input_size: int, output_size: int, *, unfolds: int = 4, margin: float = 0.01,
        stability: Stability = "penalty",
    ) -> None:  # fmt: skip
        super().__init__()
        if unfolds < 1:
            raise ValueError(f"unfolds: must be at least 1 solver step per frame, got {unfolds}.")
        if margin <= 0.0:
            raise ValueError(f"margin: must be positive, got {margin}.")
        if stability not in get_args(Stability):
            raise ValueError(f"stability: must be one of {', '.join(get_args(Stability))}, got {stability!r}.")
        self.input_size, self.output_size = input_size, output_size
        self.unfolds, self.margin, self.stability = unfolds, margin, stability
        self.register_buffer("tau", initial_log_tau(output_size).exp().unsqueeze(1))  # (d, 1)
        dynamics = torch.empty(output_size, output_size).uniform_(-0.5, 0.5) / output_size
        self.dynamics = nn.Parameter(dynamics.fill_diagonal_(-1.0))
        self.drive = nn.Linear(input_size, output_size, bias=False)
        self.readout = nn.Linear(output_size, output_size, bias=False)

    def state_shapes(self) -> StateSpec:
        return (((self.output_size,), None),)

    def state_matrix(self) -> Tensor:
        """A (d, d), in 1/s."""
        return self.dynamics / self.tau

    def gershgorin_loss(self) -> Tensor:
        """Return the Gershgorin circle loss (Eq. 2.19), a scalar.

        sum_i max(0, A_ii + sum_{j != i} |A_ij| + margin).

        Where it is zero every eigenvalue of A has a real part of at most -margin (Theorem 3).
        """
        matrix = self.state_matrix()
        diagonal = matrix.diagonal()
        radius = matrix.abs().sum(dim=1) - diagonal.abs()  # (d,)
        return (diagonal + radius + self.margin).relu().sum()

    def penalty(self) -> Tensor | float:
        """Return the Gershgorin loss with "penalty", 0 with "descent"."""
        return self.gershgorin_loss() if self.stability == "penalty" else 0.0

    def after_step(self) -> None:
        """With "descent", descend the Gershgorin loss while an eigenvalue of A has a positive real part (Algorithm 1).

        An element of `dynamics` moves by DESCENT at a time: a few times after a step of Adam at its usual rate. The
        algorithm also does so before training, while an eigenvalue is not negative; a new core has negative ones.
        A moving average of the weights is not corrected.
        """
        if self.stability != "descent" or not self.dynamics.isfinite().all():
            return
        with torch.enable_grad():
            while (loss := self.gershgorin_loss()) > 0.0 and self._unstable():
                (gradient,) = torch.autograd.grad(loss, self.dynamics)
                self.dynamics.data.sub_(DESCENT * self.tau * gradient)

    def _unstable(self) -> bool:
        return bool(torch.linalg.eigvals(self.state_matrix().detach()).real.max() > 0.0)

    def forward(self, x: Tensor, dt: Tensor, state: State) -> tuple[Tensor, State]:
        matrix = self.state_matrix()
        rate = matrix.diagonal().clamp(max=-self.margin)  # (d,)
        rest = (matrix - rate.diag()).t()
        exponent = dt.unsqueeze(2) * (rate / self.unfolds)  # (B, T, d)
        decay, gain = exponent.exp(), torch.expm1(exponent) / rate
        drive = self.drive(x) / self.tau.squeeze(1)  # (B, T, d): all steps at once

        def step(state: State, drive: Tensor, decay: Tensor, gain: Tensor) -> tuple[Tensor, State]:
            h = state[0]
            for _ in range(self.unfolds):
                h = torch.addcmul(decay * h, gain, torch.addmm(drive, h, rest))  # (B, d)
            return h, (h,)

        h, state = scan(step, state, drive, decay, gain)
        return F.linear(h, self.readout.weight), state  # (B, T, d)
