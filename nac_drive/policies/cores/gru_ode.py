"""GRU-ODE with GRU updates (De Brouwer et al. 2019)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nac_drive.policies.cores.base import RecurrentCore, State, StateSpec, scan
from nac_drive.policies.ops.ode import initial_log_tau


class GRUODE(RecurrentCore):
    """The autonomous GRU-ODE, with a GRU update at frames.

    It follows "GRU-ODE-Bayes".

        tau dh/dt = (1 - z) (g - h),  r, z = sigmoid(U h + b),  g = tanh(V (r h) + c)    over the dt before the frame
        h <- GRU(x, h)                                                                   torch.nn.GRU's

    The paper has no tau: its time has the unit of the data. Here every unit learns its own, 0.03 to 3 s at the start;
    otherwise the state would hardly move within a frame. The paper's parts for sparse, noisy data are left out: the
    observation model, the masks, and the preparation of inputs.

    The solver (`evolve`) is the exponential midpoint rule in `unfolds` equal steps: the equation with z and g held is
    solved exactly, once over half a step to find z and g in its middle, then over the whole step with those. It is of
    second order, and h stays within [-1, 1], as the paper proves of the exact solution, however long dt is. With the
    weights as they start, one step over a frame of 20 ms errs by less than 1e-3. The output is h.

    State: (h,), (B, d).

    Args:
        input_size: Number of input features, F.
        output_size: Number of output features, d.
        unfolds: Solver steps per frame.

    Raises:
        ValueError: `unfolds` is less than 1.
    """

    continuous_time = True
    neuron_names = ("h",)
    synapse_weights = ("input.weight", "recurrent.weight", "ode_gates.weight", "ode_target.weight")
    has_cells = True

    def __init__(self, input_size: int, output_size: int, *, unfolds: int = 1) -> None:
        super().__init__()
        if unfolds < 1:
            raise ValueError(f"unfolds: must be at least 1 solver step per frame, got {unfolds}.")
        self.input_size, self.output_size, self.unfolds = input_size, output_size, unfolds
        self.ode_gates = nn.Linear(output_size, 2 * output_size)  # r, z
        self.ode_target = nn.Linear(output_size, output_size)  # g
        self.log_tau = nn.Parameter(initial_log_tau(output_size))
        self.input = nn.Linear(input_size, 3 * output_size)  # r, z, g
        self.recurrent = nn.Linear(output_size, 3 * output_size)

    def state_shapes(self) -> StateSpec:
        return (((self.output_size,), None),)

    def forward(self, x: Tensor, dt: Tensor, state: State) -> tuple[Tensor, State]:
        d = self.output_size
        gates, target = self.input(x).split((2 * d, d), dim=2)  # (B, T, 2 d), (B, T, d): all steps at once
        spans = dt.unsqueeze(2) * torch.exp(-self.log_tau)  # (B, T, d), in units of tau

        def step(state: State, gates: Tensor, target: Tensor, span: Tensor) -> tuple[Tensor, State]:
            h = self.evolve(state[0], span)
            own_gates, own_target = F.linear(h, self.recurrent.weight, self.recurrent.bias).split((2 * d, d), dim=1)
            r, z = torch.sigmoid(gates + own_gates).chunk(2, dim=1)  # (B, d) each
            g = torch.addcmul(target, r, own_target).tanh()
            h = torch.lerp(g.to(h.dtype), h, z.to(h.dtype))
            return h, (h,)

        return scan(step, state, gates, target, spans)

    def evolve(self, h: Tensor, span: Tensor) -> Tensor:
        """Return the GRU-ODE's state after `span`, from h.

        Both are (B, d); `span` is in units of tau.
        """
        whole = span / self.unfolds
        half = 0.5 * whole
        for _ in range(self.unfolds):
            middle = self._hold(h, h, half)
            h = self._hold(h, middle, whole)
        return h

    def _hold(self, h: Tensor, at: Tensor, span: Tensor) -> Tensor:
        """Return the state after `span` with z and g held.

        The state starts at h (B, d). z and g are held as they are at the state `at` (B, d).
        """
        r, z = F.linear(at, self.ode_gates.weight, self.ode_gates.bias).sigmoid().chunk(2, dim=1)
        g = F.linear(r * at, self.ode_target.weight, self.ode_target.bias).tanh()
        return torch.lerp(g.to(h.dtype), h, torch.addcmul(-span, z, span).exp())
