"""S4D, the diagonal state space model (Gu et al. 2022).

It gets a true dt per sample and step.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nac_drive.policies.cores.base import State, scan
from nac_drive.policies.cores.state_space import StateSpaceCore


class S4D(StateSpaceCore):
    """Diagonal state space model of independent complex modes.

    Each of the d channels drives N / 2 of them.

        ds/dt = r (A s + u),    y = 2 Re(C s) + D u,    output = GLU(W_o GELU(y) + b_o)

    with A = -exp(a) + i w diagonal; the rest is inherited from `StateSpaceCore`. Between two observations u is held
    (zero-order hold), so that over dt seconds s' = exp(r dt A) s + (exp(r dt A) - 1) / A u: the S4D-Lin of Gu et al.
    2022, "On the Parameterization and Initialization of Diagonal State Space Models", sec. 3 and 4. At first A_n = -1/2
    + i pi n: memories 2 / r of 0.4 to 10 s, within which the modes turn 0 to N / 2 - 1 times.

    Two routes lead to the same numbers. Where all steps after the first of a call have one dt in the whole batch, the
    modes sum to one kernel and whole sequences are convolved with it, by FFT; otherwise, and for single steps, the
    recurrence runs.

    State: real and imaginary part of A s, each (B, d, N / 2).
    """

    log_decay: nn.Parameter
    frequency: nn.Parameter

    def initial_system(self) -> dict[str, Tensor]:
        return {
            "log_decay": torch.full((self.output_size, self.modes), math.log(0.5)),
            "frequency": math.pi * torch.arange(float(self.modes)).repeat(self.output_size, 1),
        }

    def respond(self, u: Tensor, dt: Tensor, state: State) -> tuple[Tensor, State]:
        later = dt[:, 1:]
        even = later.numel() > 0 and bool((later == later[0, 0]).all())
        return (self.convolve if even else self.recur)(u, dt, state)

    def recur(self, u: Tensor, dt: Tensor, state: State) -> tuple[Tensor, State]:
        """Run step by step, in terms of h = A s.

        Args:
            u: Inputs of the modes, (B, T, d).
            dt: Seconds since the previous observation, (B, T), any values.
            state: Real and imaginary part of h, each (B, d, N / 2).

        Returns:
            2 Re(C s), (B, T, d), and the new state.
        """
        readout = self._readout()

        def step(state: State, u: Tensor, keep: Tensor) -> tuple[Tensor, State]:
            h = torch.view_as_complex(keep) * (state[0] + u) - u  # (B, d, N / 2)
            return (readout * h).sum(dim=2).real, (h,)

        keep = torch.view_as_real(self._power(dt[:, :, None, None]))  # ONNX cannot unbind complex numbers
        y, (h,) = scan(step, (torch.complex(*state),), u.unsqueeze(3), keep)
        return y, (h.real, h.imag)

    def convolve(self, u: Tensor, dt: Tensor, state: State) -> tuple[Tensor, State]:
        """Compute `recur` by FFT, for one irregular first step.

        dt may differ between samples in the first of two or more steps only.
        """
        readout, length = self._readout(), u.shape[1] - 1
        first = u[:, 0, :, None]
        h = self._power(dt[:, 0, None, None]) * (torch.complex(*state) + first) - first  # (B, d, N / 2) after one step
        powers = self._power(dt[0, 1] * torch.arange(length + 1, device=u.device)[:, None, None])  # (T, d, N / 2)
        decays, input = powers[:length], powers[1] - 1  # Abar^0..Abar^(T - 2), Abar - 1
        kernel = (readout * input * decays).sum(dim=2).real  # (T - 1, d)
        spectrum = torch.fft.rfft(kernel, 2 * length, dim=0) * torch.fft.rfft(u[:, 1:], 2 * length, dim=1)
        forced = torch.fft.irfft(spectrum, 2 * length, dim=1)[:, :length]  # (B, T - 1, d)
        free = torch.einsum("tdn,bdn->btd", powers, readout * h).real  # (B, T, d)
        y = free + F.pad(forced, (0, 0, 1, 0))
        driven = torch.einsum("tdn,btd->bdn", decays, u[:, 1:].flip(1).to(decays.dtype))  # (B, d, N / 2)
        h = powers[length] * h + input * driven
        return y, (h.real, h.imag)

    def _power(self, seconds: Tensor) -> Tensor:
        """Return exp(r A seconds), the decay of the modes: (..., d, N / 2) for seconds (..., 1, 1)."""
        time = seconds * self.log_rate.exp()
        return torch.polar(torch.exp(-time * self.log_decay.exp()), time * self.frequency)

    def _readout(self) -> Tensor:
        """Return 2 C / A, which reads h = A s: (d, N / 2)."""
        return 2.0 * torch.complex(*self.readout) / torch.complex(-self.log_decay.exp(), self.frequency)
